//! Real object stores, through the crate `object_store`; directories are in `local`.
//!
//! Its calls are asynchronous; each is run to its end here, on a current-thread runtime that belongs
//! to the store. Of several threads that wait for calls, one runs it for all. Credentials and regions
//! come from the environment, as the vendors' own tools read them.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, ObjectStoreScheme,
    PutMode, PutOptions, PutPayload, RetryConfig,
};
use tokio::runtime::Runtime;

use bsd::SetupError;

use super::flight::Threads;
use super::local::LocalStore;
use super::sealed::{Codec, Sealed};
use super::store::{Flight, Listed, Put, Store, Trouble};

/// A request takes at most this long, with its answer: 64 MiB under way at once need 2 Mbit/s.
const REQUEST_TIME: Duration = Duration::from_secs(300);
/// For this long a store may send nothing of an answer.
const SILENT_TIME: Duration = Duration::from_secs(60);
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The client repeats a request for this long before it is trouble.
const RETRY_TIME: Duration = Duration::from_secs(10);
const RETRIES: usize = 3;

/// Open the store at `url`: `s3://BUCKET/PREFIX`, `gs://…`, `az://…` or `file:///DIR`. Objects are put
/// and read as `codec` says. Nothing is asked of it yet.
///
/// # Errors
/// The address cannot be understood, or the environment lacks what it needs; says which.
pub fn open(url: &str, codec: Codec) -> Result<Box<dyn Store>, SetupError> {
    let cannot = |why: &dyn std::fmt::Display| {
        SetupError::new(format_args!(
            "cannot use {url} for an archive: {why}; give s3://BUCKET/PREFIX, gs://, az:// or file:///DIR"
        ))
    };
    let parsed = url.parse().map_err(|why| cannot(&why))?;
    let (scheme, prefix) = ObjectStoreScheme::parse(&parsed).map_err(|why| cannot(&why))?;
    let retry = RetryConfig {
        max_retries: RETRIES,
        retry_timeout: RETRY_TIME,
        ..RetryConfig::default()
    };
    let built: Result<Arc<dyn ObjectStore>, Error> = match scheme {
        ObjectStoreScheme::Local => {
            let store = LocalStore::new(local_root(&prefix), url);
            return Ok(Box::new(Sealed::new(store, codec)));
        }
        ObjectStoreScheme::AmazonS3 => AmazonS3Builder::from_env()
            .with_url(url)
            .with_retry(retry)
            .with_client_options(client("AWS_ALLOW_HTTP"))
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .build()
            .map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
        ObjectStoreScheme::GoogleCloudStorage => GoogleCloudStorageBuilder::from_env()
            .with_url(url)
            .with_retry(retry)
            .with_client_options(client("GOOGLE_ALLOW_HTTP"))
            .build()
            .map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
        ObjectStoreScheme::MicrosoftAzure => MicrosoftAzureBuilder::from_env()
            .with_url(url)
            .with_retry(retry)
            .with_client_options(client("AZURE_ALLOW_HTTP"))
            .build()
            .map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
        _ => return Err(cannot(&"it is of a kind that is not supported")),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let remote = Remote {
        store: built.map_err(|why| cannot(&why))?,
        prefix,
        url: url.to_owned(),
        runtime: runtime
            .map(Arc::new)
            .map_err(|why| SetupError::of_socket(format!("cannot reach {url}: {why}"), why))?,
    };
    Ok(Box::new(Sealed::new(remote, codec)))
}

/// The directory of an archive at `file:///DIR`; `None` for every other address.
#[must_use]
pub fn dir_of(url: &str) -> Option<PathBuf> {
    let parsed = url.parse().ok()?;
    match ObjectStoreScheme::parse(&parsed).ok()? {
        (ObjectStoreScheme::Local, dir) => Some(local_root(&dir)),
        _ => None,
    }
}

fn local_root(prefix: &Path) -> PathBuf {
    std::path::Path::new("/").join(prefix.as_ref())
}

/// Tell a directory that is missing, or not mounted, from an archive that is empty: both list
/// nothing. Of other stores nothing is asked.
///
/// # Errors
/// Says which directory.
pub fn check_place(url: &str) -> Result<(), SetupError> {
    match dir_of(url) {
        Some(dir) if !dir.is_dir() => Err(SetupError::new(format_args!(
            "the directory of the archive {url} is not there; make it or mount it"
        ))),
        _ => Ok(()),
    }
}

/// How requests are made. Without TLS only if the environment says so.
fn client(allow_http: &str) -> ClientOptions {
    let allowed = std::env::var(allow_http).is_ok_and(|value| value == "true" || value == "1");
    // `reqwest` takes the process's. An error says that it has one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    ClientOptions::new()
        .with_timeout(REQUEST_TIME)
        .with_read_timeout(SILENT_TIME)
        .with_connect_timeout(CONNECT_TIME)
        .with_allow_http(allowed)
}

/// Clones are of the same store: they share its connections.
#[derive(Debug, Clone)]
struct Remote {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    url: String,
    runtime: Arc<Runtime>,
}

impl Remote {
    fn path(&self, name: &str) -> Path {
        name.split('/')
            .filter(|part| !part.is_empty())
            .fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// A put was refused. S3 does that with "conflict" also while another put of the same name is
    /// under way, and then there may be no object yet.
    fn exists(&self, name: &str, path: &Path, refused: &Error) -> Result<Put, Trouble> {
        match self.runtime.block_on(self.store.head(path)) {
            Ok(_) => Ok(Put::Exists),
            Err(Error::NotFound { .. }) => Err(Trouble::passing(format!(
                "another put of {name} is under way at {}: {}",
                self.url,
                causes(refused)
            ))),
            Err(error) => Err(self.trouble("look for", name, &error)),
        }
    }

    async fn read(
        &self,
        name: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<Vec<u8>>, Trouble> {
        let doing = match range {
            None => "get",
            Some(_) => "get a part of",
        };
        let options = GetOptions {
            range: range.map(GetRange::Bounded),
            ..GetOptions::default()
        };
        let path = self.path(name);
        let read = async { self.store.get_opts(&path, options).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes.to_vec())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.trouble(doing, name, &error)),
        }
    }

    fn trouble(&self, doing: &str, name: &str, error: &Error) -> Trouble {
        let is_final = matches!(
            error,
            Error::NotImplemented { .. } | Error::NotSupported { .. }
        );
        Trouble {
            what: format!("cannot {doing} {name} at {}: {}", self.url, causes(error)),
            is_final,
            lacks_key: false,
            is_damage: false,
        }
    }
}

/// An error and what caused it, in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text.replace('\n', " ")
}

impl Store for Remote {
    fn place(&self) -> &str {
        &self.url
    }

    fn tops(&self) -> Result<Vec<String>, Trouble> {
        let listed = self.store.list_with_delimiter(Some(&self.prefix));
        let listed = self.runtime.block_on(listed);
        let listed = listed.map_err(|error| self.trouble("list", "/", &error))?;
        let objects = listed.objects.iter().map(|meta| &meta.location);
        let names = listed.common_prefixes.iter().chain(objects);
        Ok(names
            .filter_map(|name| name.filename().map(str::to_owned))
            .collect())
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<Put, Trouble> {
        let payload = PutPayload::from(bytes.to_vec());
        let options = PutOptions::from(PutMode::Create);
        let path = self.path(name);
        match self
            .runtime
            .block_on(self.store.put_opts(&path, payload, options))
        {
            Ok(_) => Ok(Put::Done),
            Err(error @ (Error::AlreadyExists { .. } | Error::Precondition { .. })) => {
                self.exists(name, &path, &error)
            }
            Err(error) => Err(self.trouble("put", name, &error)),
        }
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Trouble> {
        self.runtime.block_on(self.read(name, None))
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Option<Vec<u8>>, Trouble> {
        self.runtime.block_on(self.read(name, Some(range)))
    }

    fn flight(&self, connections: usize) -> Box<dyn Flight + '_> {
        let store = self.clone();
        Box::new(Threads::new(connections, move |want| store.answer(want)))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, Trouble> {
        let dir = self.path(prefix);
        let found = async {
            match after.is_empty() {
                true => self.store.list(Some(&dir)).try_collect::<Vec<_>>().await,
                false => {
                    let after = self.path(after);
                    let found = self.store.list_with_offset(Some(&dir), &after);
                    found.try_collect().await
                }
            }
        };
        let found = self.runtime.block_on(found);
        let found = found.map_err(|error| self.trouble("list", prefix, &error))?;
        let own = self.prefix.as_ref();
        let mut listed: Vec<Listed> = found
            .into_iter()
            .filter_map(|meta| {
                let name = meta.location.as_ref().strip_prefix(own)?;
                let name = name.trim_start_matches('/').to_owned();
                let size = meta.size;
                Some(Listed { name, size })
            })
            .filter(|it| it.name.starts_with(prefix) && it.name.as_str() > after)
            .collect();
        listed.sort();
        Ok(listed)
    }

    fn remove(&self, names: &[String]) -> Result<(), Trouble> {
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        let removed = self.store.delete_stream(stream::iter(paths).boxed());
        let first = names.first().map_or("", String::as_str);
        let failures = removed.filter_map(async |result| match result {
            Ok(_) | Err(Error::NotFound { .. }) => None,
            Err(error) => Some(self.trouble("remove objects, beginning with", first, &error)),
        });
        let failures: Vec<_> = self.runtime.block_on(failures.collect());
        failures.into_iter().next().map_or(Ok(()), Err)
    }
}
