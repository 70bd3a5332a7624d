//! TLS: whom a client believes, and how it shows who it is.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Result};

/// Authorities that a client believes, and its own certificate, for addresses with `tls:`.
///
/// ```no_run
/// use bsd_client::{Client, Config, Tls};
///
/// let tls = Tls::with_authorities(&std::fs::read("ca.pem")?)?;
/// let config: Config = "tls:queue.example:11301".parse()?;
/// let client = Client::connect(config.tls(tls))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn wrong(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::usage(format!("{what} cannot be used: {error}")).because(error)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| wrong("a certificate", error))?;
    match read.is_empty() {
        false => Ok(read),
        true => Err(Error::usage("there is no certificate in PEM")),
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots
            .add(certificate)
            .map_err(|error| wrong("an authority", error))?;
    }
    Ok(roots)
}

impl Tls {
    /// Believe servers whose certificate is of one of these authorities, PEM.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage): the PEM has no certificate that can be used.
    pub fn with_authorities(pem: &[u8]) -> Result<Tls> {
        Tls::new(pem, None)
    }

    /// The same, and show this certificate (PEM, with those between it and its authority) to servers
    /// that ask for one; `key` is its private key, PEM.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage): one of them cannot be used.
    pub fn with_identity(authorities: &[u8], certificate: &[u8], key: &[u8]) -> Result<Tls> {
        Tls::new(authorities, Some((certificate, key)))
    }

    fn new(authorities: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<Tls> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(roots(authorities)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
        let verifier = verifier
            .build()
            .map_err(|error| wrong("the authorities", error))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong("the cipher suites", error))?
            .with_webpki_verifier(verifier);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key);
                let key = key.map_err(|error| wrong("the private key", error))?;
                builder
                    .with_client_auth_cert(certificates(certificate)?, key)
                    .map_err(|error| wrong("the certificate", error))?
            }
        };
        Ok(Tls::with_config(Arc::new(config)))
    }

    /// Any configuration of rustls.
    #[must_use]
    pub fn with_config(config: Arc<ClientConfig>) -> Tls {
        Tls { config, name: None }
    }

    /// The name that the server's certificate must have, if it is not the host of the address.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage): it is no name and no IP address.
    pub fn server_name(mut self, name: &str) -> Result<Tls> {
        self.name = Some(server_name(name)?);
        Ok(self)
    }

    /// What a connection to this host needs.
    pub(crate) fn of(&self, host: &str) -> Result<(Arc<ClientConfig>, ServerName<'static>)> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => server_name(host)?,
        };
        Ok((self.config.clone(), name))
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>> {
    let read = ServerName::try_from(name.to_owned());
    read.map_err(|error| wrong(&format!("the server's name {name:?}"), error))
}

#[cfg(test)]
pub(crate) mod tests {
    //! A server at the other end of a wire in memory, which breaks where it is told to.

    use std::io::{self, Read, Write};
    use std::time::{Duration, Instant};

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::{ClientConnection, ServerConfig, ServerConnection};

    use super::*;
    use crate::calls;
    use crate::error::ErrorKind;
    use crate::job::Put;
    use crate::link::{Link, Step};
    use crate::reply::Reply;

    /// beanstalkd's answer to `capabilities`.
    pub(crate) const GREETING: &[u8] = b"UNKNOWN_COMMAND\r\n";

    #[derive(Debug)]
    pub(crate) struct Wire {
        server: ServerConnection,
        /// What the server has read.
        heard: String,
        /// Bytes that still get through, and what is then said: always, or twice if it is a signal.
        failure: Option<(usize, io::ErrorKind)>,
        signals: u32,
    }

    impl Wire {
        pub(crate) fn fail_after(&mut self, size: usize, kind: io::ErrorKind) {
            self.failure = Some((size, kind));
            self.signals = 2;
        }
    }

    impl Write for Wire {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut size = bytes.len();
            match &mut self.failure {
                Some((0, io::ErrorKind::Interrupted)) if self.signals == 0 => self.failure = None,
                Some((0, kind)) => {
                    self.signals -= u32::from(*kind == io::ErrorKind::Interrupted);
                    return Err((*kind).into());
                }
                Some((left, _)) => {
                    size = size.min(*left);
                    *left -= size;
                }
                None => {}
            }
            let mut bytes = &bytes[..size];
            while !bytes.is_empty() {
                self.server.read_tls(&mut bytes).unwrap();
                self.server.process_new_packets().unwrap();
                // There is nothing more so far: that is an error to it.
                _ = self.server.reader().read_to_string(&mut self.heard);
            }
            Ok(size)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Wire {
        fn read(&mut self, mut buffer: &mut [u8]) -> io::Result<usize> {
            match self.server.wants_write() {
                true => self.server.write_tls(&mut buffer),
                false => Err(io::ErrorKind::WouldBlock.into()),
            }
        }
    }

    /// What a client needs, and the wire to its server.
    pub(crate) fn ends() -> (Arc<ClientConfig>, ServerName<'static>, Wire) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let signed = params.signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![signed.der().clone()], key)
            .unwrap();
        let tls = Tls::with_authorities(issuer.as_ref().pem().as_bytes()).unwrap();
        let (client, name) = tls.of("localhost").unwrap();
        let wire = Wire {
            server: ServerConnection::new(Arc::new(config)).unwrap(),
            heard: String::new(),
            failure: None,
            signals: 0,
        };
        (client, name, wire)
    }

    pub(crate) fn connection() -> (ClientConnection, Wire) {
        let (config, name, wire) = ends();
        (ClientConnection::new(config, name).unwrap(), wire)
    }

    fn body(number: usize) -> String {
        format!("{number:0600}")
    }

    /// The puts before the last one, which rustls takes at one time.
    const COUNT: usize = 100;

    /// A link with puts to do. rustls takes only a part of the last one together with the others.
    pub(crate) fn with_puts() -> Link {
        let now = Instant::now();
        let mut link = Link::new("host".parse().unwrap(), now);
        let bodies = (0..COUNT).map(body).chain([last()]);
        let puts = bodies.map(|body| calls::put(&Put::new(body)).unwrap().request);
        link.begin(puts.collect(), now, true);
        link
    }

    fn last() -> String {
        "z".repeat(30_000)
    }

    pub(crate) fn connected(link: &mut Link) {
        let now = Instant::now();
        loop {
            match link.next(now) {
                Step::Close => {}
                Step::Connect(..) => return link.connected(now),
                step => panic!("{step:?}"),
            }
        }
    }

    /// Some puts have come as a whole before the wire broke.
    pub(crate) fn some_puts_were_heard(wire: &Wire) {
        assert!(wire.heard.contains(&body(40)));
        assert!(!wire.heard.contains(&body(COUNT - 1)));
    }

    pub(crate) fn all_puts_were_heard_once(wire: &Wire) {
        for body in (0..COUNT).map(body).chain([last()]) {
            assert_eq!(wire.heard.matches(&body).count(), 1, "{body}");
        }
    }

    /// The last put was not sent as a whole: it alone is sent again.
    pub(crate) fn only_the_last_put_was_heard(wire: &Wire, mut link: Link) {
        for number in 0..COUNT {
            assert!(!wire.heard.contains(&body(number)), "{number}");
        }
        assert!(wire.heard.contains(&last()));
        link.received(b"INSERTED 1\r\n", Instant::now());
        let mut results = link.take();
        assert!(results.pop().unwrap().is_ok());
        are_unanswered(results);
    }

    fn are_unanswered(results: Vec<Result<Reply>>) {
        assert_eq!(results.len(), COUNT);
        for result in results {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Unanswered);
        }
    }

    /// The time is over: what has left may have been done, and the last put was not sent as a whole.
    pub(crate) fn only_the_last_put_was_not_done(mut link: Link) {
        let late = Instant::now() + Duration::from_secs(3600);
        assert!(matches!(link.next(late), Step::Close));
        let mut results = link.take();
        let last = results.pop().unwrap().unwrap_err();
        assert_eq!(last.kind(), ErrorKind::TimedOut);
        are_unanswered(results);
    }
}
