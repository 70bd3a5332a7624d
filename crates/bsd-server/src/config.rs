//! The command line as given (`Args`), and its meaning ([`Config`]).
//!
//! The letters are beanstalkd's, so that its command lines still work; bsd's additions have only
//! long names. Nothing here opens, binds or creates anything: a `Config` is a value, and every rule
//! about flags can be tested without a server.

mod exit;
mod open;
mod unknown;

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};

pub use self::exit::{EXIT_OK, exit_code, is_tried_again};
use bsd::protocol::Protocol;
use bsd::storage::SyncPolicy;
use bsd::storage::format::LogId;
use bsd::storage::{SEGMENT_SIZE_DEFAULT, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN};
use bsd::{ErrorClass, UsageError};
use bsd_archive::format::parse_log_name;
use bsd_archive::{KeySource, LEVEL_DEFAULT, LEVELS};
use bsd_cluster::JOB_SIZE_MAX;
use bsd_http::{HttpArgs, Setup};
use bsd_net::{Address, Layers, Network, Port, Probing, Scope};
use bsd_net::{ClusterArgs, ClusterConfig};
use bsd_net::{TlsArgs, TlsFiles};

/// Where the log is if nothing is said, below the directory of the start.
pub const DIR_DEFAULT: &str = "bsd-data";
/// The port that beanstalkd's clients try first.
pub const PORT_DEFAULT: u16 = 11300;
/// The largest value of `-z`, bytes: beanstalkd's bound.
pub const JOB_SIZE_LIMIT: u32 = 1 << 30;

/// The least that `--max-memory` takes. Requests and replies have 128 KiB of it; with much less than
/// the rest nothing could be put.
const MEMORY_MIN: u64 = 256 << 10;

/// The name of the program that bsd takes the place of. Under this name the server has
/// beanstalkd's defaults: see [`Config::parse`].
pub const BEANSTALKD: &str = "beanstalkd";

/// Minutes for which a client may leave its replies unread, unless `--idle-output` says otherwise.
const DEAD_AFTER_SECONDS: u32 = 60;
/// The most that Linux takes.
const DEAD_AFTER_SECONDS_MAX: u64 = 32_767;
const IDLE_OUTPUT_MINUTES: u32 = 10;

/// The command line as given. If a flag is repeated, the last one counts, as in beanstalkd:
/// packages append to existing flags.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "bsd-server",
    version,
    about = "A durable job queue that speaks beanstalkd's protocol",
    after_help = exit::help(),
    disable_version_flag = true,
    args_override_self = true
)]
struct Args {
    /// Keep the log in DIR [default: ./bsd-data]
    #[arg(short = 'b', value_name = "DIR", conflicts_with = "memory")]
    dir: Option<PathBuf>,

    /// If DIR holds beanstalkd's log, import it once; its files are kept in a subdirectory
    #[arg(long, conflicts_with = "memory")]
    import: bool,

    /// Sync at most MS milliseconds after a command is acknowledged; 0 syncs before [default: 0]
    #[arg(
        short = 'f',
        value_name = "MS",
        overrides_with = "never_sync",
        conflicts_with = "memory",
        value_parser = parse_milliseconds
    )]
    sync_interval_ms: Option<u32>,

    /// Sync only when idle: the operating system decides what a power cut loses
    #[arg(
        short = 'F',
        overrides_with = "sync_interval_ms",
        conflicts_with = "memory"
    )]
    never_sync: bool,

    /// Keep no log at all: a restart forgets everything
    #[arg(long)]
    memory: bool,

    /// Listen on ADDR: HOST, HOST:PORT, [IPV6]:PORT, each with `tls:` before it for TLS, `proxy:`
    /// for the PROXY protocol or `proxy+tls:` for both; or unix:PATH, with `,mode=0660` after PATH
    /// for the permissions of the socket; may be repeated [default: 127.0.0.1]
    #[arg(short = 'l', value_name = "ADDR")]
    listen: Vec<String>,

    /// Listen on PORT if ADDR names none: a number, or a name from /etc/services
    #[arg(short = 'p', value_name = "PORT", default_value_t = Port::Number(PORT_DEFAULT))]
    port: Port,

    /// Become USER, with its groups, after the sockets are bound; USER must be able to write DIR
    #[arg(short = 'u', value_name = "USER")]
    user: Option<String>,

    /// Refuse jobs with more than BYTES in the body (at most 1073741824)
    #[arg(short = 'z', value_name = "BYTES", default_value = "65535", value_parser = parse_size)]
    job_size_max: u64,

    /// Make each file of the log BYTES long: 65536 to 2147483648 [default: 67108864]
    #[arg(short = 's', value_name = "BYTES", value_parser = parse_size, conflicts_with = "memory")]
    segment_size: Option<u64>,

    /// Limit the memory: a quarter of BYTES is for unfinished requests and unread replies, the rest
    /// for jobs and tubes, of which at most an eighth of BYTES for watch lists, tubes without jobs
    /// and pauses; anything beyond that is answered with OUT_OF_MEMORY
    #[arg(long, value_name = "BYTES", value_parser = parse_memory)]
    max_memory: Option<u64>,

    /// Close a client that reads none of its waiting replies for MINUTES; 0: never
    #[arg(long, value_name = "MINUTES", default_value_t = IDLE_OUTPUT_MINUTES)]
    idle_output: u32,

    /// Refuse connections beyond N [default: what the limit of open files allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: Option<u32>,

    /// Ask clients for a token of FILE, in which a line is ROLE[:TUBES] SHA256 [NAME], at all
    /// listeners but Unix sockets; SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,

    /// Print a new token and its line for the file of --auth-file or --http-tokens, and end; ROLE is
    /// all, put, work or read, and TUBES a tube or a pattern such as mail-*
    #[arg(long, value_name = "ROLE[:TUBES]")]
    new_token: Option<Scope>,

    /// Refuse connections beyond N of one address (of IPv6: of one network of 64 bits)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_address: Option<u32>,

    /// Close a client that asks for nothing for SECONDS, unless it waits for a job or has reserved
    /// one; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u32,

    /// Close a client whose machine has not answered for SECONDS, or a little later; 0: at the
    /// system's own times, which are hours
    #[arg(long, value_name = "SECONDS", default_value_t = DEAD_AFTER_SECONDS)]
    dead_after: u32,

    /// Believe what proxies of these addresses and networks (10.0.0.0/8,…) say of their clients, at
    /// listeners that begin with proxy:
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    proxy_from: Vec<Network>,

    /// Take the commands of WHICH: beanstalkd, or extended, which has more; a client that does not
    /// send one of them is served alike
    #[arg(long, value_name = "WHICH", default_value = "extended", value_parser = parse_protocol)]
    protocol: Protocol,

    #[command(flatten)]
    tls: TlsArgs,

    #[command(flatten)]
    http: HttpArgs,

    #[command(flatten)]
    archive: ArchiveArgs,

    #[command(flatten)]
    cluster: ClusterArgs,

    /// Log more: -V details, -VV connections, -VVV every request
    #[arg(short = 'V', action = ArgAction::Count)]
    verbosity: u8,

    /// Show the version
    #[arg(short = 'v', long = "version", action = ArgAction::Version)]
    version: (),

    /// No effect: the log is always compacted (accepted for compatibility with beanstalkd)
    #[arg(short = 'c')]
    compact: bool,

    /// No effect: the log is always compacted (accepted for compatibility with beanstalkd)
    #[arg(short = 'n')]
    no_compact: bool,
}

impl Args {
    /// Defaults of beanstalkd for flags that are not given. beanstalkd takes `-f`, `-F` and `-s`
    /// also where it keeps no log.
    fn become_beanstalkd(&mut self) {
        self.memory |= self.dir.is_none();
        self.import |= self.dir.is_some();
        let port = self.port.clone();
        let is_dressed = |text: &String| {
            address(text, &port).is_ok_and(|address| address.layers() != Layers::NONE)
        };
        let (dressed, mut plain): (Vec<_>, Vec<_>) = self.listen.drain(..).partition(is_dressed);
        let last = plain.pop();
        let everywhere = || dressed.is_empty().then(|| "0.0.0.0".to_owned());
        self.listen.extend(last.or_else(everywhere));
        self.listen.extend(dressed);
    }
}

/// The flags of the archive.
#[derive(Debug, Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("archive_url").args(["archive", "follow"]).multiple(true))]
struct ArchiveArgs {
    /// Archive the log at URL as it grows: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,
    /// az://CONTAINER/PREFIX or file:///DIR; given twice, at both
    #[arg(long, value_name = "URL", conflicts_with = "memory")]
    archive: Vec<String>,

    /// Be a standby: keep DIR a copy of the log that is archived at URL, serve no one, and take over
    /// when told to (`bsd-ctl promote`, or SIGUSR2); then archive to URL, and to that of --archive
    #[arg(long, value_name = "URL", conflicts_with_all = ["memory", "import"])]
    follow: Option<String>,

    /// Put new changes into the archive, or look for them there, every MS milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 1000,
        requires = "archive_url"
    )]
    archive_interval: u64,

    /// Hold at most BYTES of the log for the archive while it cannot be written; the rest is a gap
    /// in it
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = parse_size, requires = "archive_url")]
    archive_hold_max: u64,

    /// If the data directory is missing or empty, restore the log from the archive first
    #[arg(long, requires = "archive", conflicts_with_all = ["import", "follow"])]
    restore_if_empty: bool,

    /// Restore or follow the log ID, if URL has archives of several
    #[arg(long, value_name = "ID", value_parser = parse_log, requires = "archive_url")]
    archive_log: Option<LogId>,

    /// Begin the archive of this log although URL has that of another one
    #[arg(long, requires = "archive_url")]
    archive_new_log: bool,

    /// Refuse puts while the archive, or each of two, lacks something older than TIME, such as 30s
    /// [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "archive_url")]
    archive_lag_max: Option<Duration>,

    /// Join links of the archive that are older than TIME into larger objects: 10m, 24h; off: none
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_fine, requires = "archive_url")]
    archive_fine: Fine,

    /// Compress what is archived with zstd: LEVEL 1 to 19, or off [default: off; without LEVEL: 3]
    #[arg(
        long,
        value_name = "LEVEL",
        num_args = 0..=1,
        default_missing_value = LEVEL_DEFAULT_TEXT,
        value_parser = parse_compression,
        requires = "archive_url"
    )]
    archive_compress: Option<Compression>,

    /// Encrypt what is archived for the key in FILE, 32 bytes in base64 or hexadecimal digits; if
    /// there are several, each of them opens it
    #[arg(long, value_name = "FILE", requires = "archive_url")]
    archive_key: Vec<PathBuf>,

    /// The same with the key that this command writes to its standard output
    #[arg(long, value_name = "CMD", requires = "archive_url")]
    archive_key_command: Vec<String>,

    /// Read what was archived with the key in FILE, and encrypt nothing for it any more
    #[arg(long, value_name = "FILE", requires = "archive_url")]
    archive_old_key: Vec<PathBuf>,
}

/// Links of the archive stay objects of their own for this long; `None`: for ever.
#[derive(Debug, Clone, Copy)]
struct Fine(Option<Duration>);

fn parse_fine(text: &str) -> Result<Fine, UsageError> {
    match (text, parse_time(text)) {
        ("off", _) => Ok(Fine(None)),
        (_, Ok(time)) => Ok(Fine(Some(time))),
        (_, Err(_)) => Err("a time is expected, such as 10m or 24h, or off".into()),
    }
}

/// [`LEVEL_DEFAULT`] as it is typed.
const LEVEL_DEFAULT_TEXT: &str = "3";
const _: () = assert!(LEVEL_DEFAULT == 3);

/// The level of compression; `None`: off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Compression(Option<i32>);

fn parse_compression(text: &str) -> Result<Compression, UsageError> {
    let level = text.parse().ok().filter(|level| LEVELS.contains(level));
    match (text, level) {
        ("off", _) => Ok(Compression(None)),
        (_, Some(level)) => Ok(Compression(Some(level))),
        (_, None) => Err("a level from 1 to 19, or off".into()),
    }
}

/// Seconds with the suffix `s`, minutes with `m`, or hours with `h`.
fn parse_time(text: &str) -> Result<Duration, UsageError> {
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 60 * 60,
        _ => 0,
    };
    let number = text.get(..text.len().saturating_sub(1)).unwrap_or_default();
    match number.parse::<u32>() {
        Ok(number) if number > 0 && unit > 0 => Ok(Duration::from_secs(u64::from(number) * unit)),
        _ => Err("a time is expected, such as 30s or 5m".into()),
    }
}

fn parse_log(text: &str) -> Result<LogId, UsageError> {
    parse_log_name(text).ok_or_else(|| "a log has 32 hexadecimal digits".into())
}

/// An archive that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveConfig {
    /// Where; of a standby, what it follows.
    pub url: String,
    /// Where else, at the same time and in the same way; of a standby, after it has taken over.
    pub second: Option<String>,
    /// First follow what another server puts there, until this one takes over.
    pub is_followed: bool,
    /// How often, if there is something new.
    pub interval: Duration,
    /// Bytes of the log that are held for it at most.
    pub hold_max: u64,
    /// Restore the log from it first, if the data directory is missing or empty.
    pub restore_if_empty: bool,
    /// Which log is restored or followed; `None`: the one that there is.
    pub log: Option<LogId>,
    /// It may have archives of other logs, too.
    pub is_shared: bool,
    /// Puts are refused while it lacks something older.
    pub lag_max: Option<Duration>,
    /// Links that are older are joined into larger objects; `None`: none are.
    pub fine: Option<Duration>,
    /// Level with which objects are compressed; `None`: they are not.
    pub compression: Option<i32>,
    /// Keys for each of which objects are encrypted; none: they are not.
    pub keys: Vec<KeySource>,
    /// Keys with which objects of earlier times were.
    pub old_keys: Vec<KeySource>,
}

impl ArchiveConfig {
    /// The address of each archive, one or two.
    pub fn urls(&self) -> impl Iterator<Item = &String> {
        [Some(&self.url), self.second.as_ref()]
            .into_iter()
            .flatten()
    }
}

/// Settings of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The data directory; `None` keeps no log.
    pub dir: Option<PathBuf>,
    /// Import beanstalkd's log first, if the data directory holds one.
    pub import: bool,
    /// When the log is synced; ignored if `dir` is `None`.
    pub sync: SyncPolicy,
    /// Bytes of a file of the log.
    pub segment_size: u32,
    /// The largest body a new job may have, bytes.
    pub job_size_max: u32,
    /// The limit of the memory, bytes.
    pub memory_max: Option<u64>,
    /// A client that reads none of its replies for this long is closed; `None`: never.
    pub idle_output: Option<Duration>,
    /// The limit of open connections; `None`: what the limit of open files allows.
    pub connections_max: Option<u32>,
    /// Where to listen; at least one address.
    pub listen: Vec<Address>,
    /// Whether `listen` was given, and is not the default.
    pub listen_is_explicit: bool,
    /// Connections of one address; `None`: any number.
    pub each_max: Option<u32>,
    /// A client that has asked for nothing for this long is closed; `None`: never.
    pub idle: Option<Duration>,
    /// How machines are noticed that are gone.
    pub probing: Probing,
    /// Trusted proxies.
    pub proxy_from: Vec<Network>,
    /// The file of tokens; `None`: none are asked for.
    pub auth_file: Option<PathBuf>,
    /// Only make a token.
    pub new_token: Option<Scope>,
    /// The commands that clients may use.
    pub protocol: Protocol,
    /// The files of TLS; `None`: no listener needs them.
    pub tls: Option<TlsFiles>,
    /// Settings of HTTP; `None`: HTTP is off.
    pub http: Option<Setup>,
    /// The archive; `None`: the server has no archive.
    pub archive: Option<ArchiveConfig>,
    /// The part in a cluster; `None`: the server is alone.
    pub cluster: Option<ClusterConfig>,
    /// The user to become after binding.
    pub user: Option<String>,
    /// How often `-V` was given.
    pub verbosity: u8,
    /// Warnings to log once there is a log: values that were changed.
    pub warnings: Vec<String>,
}

/// Why there is no [`Config`]: there is a text to print instead.
#[derive(Debug)]
pub struct Usage(clap::Error);

impl Usage {
    /// Print the text: help and version to the standard output, mistakes to the standard error.
    pub fn print(&self) {
        // If the terminal is gone, there is no one to report it to.
        let _ = self.0.print();
    }

    /// [`EXIT_OK`] for help and version, otherwise that of [`ErrorClass::Usage`].
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.0.use_stderr() {
            exit_code(ErrorClass::Usage)
        } else {
            EXIT_OK
        }
    }

    /// The text that [`Usage::print`] prints, without colours.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.to_string()
    }
}

impl Config {
    /// Parse a command line, whose first word is the program's name.
    ///
    /// If that name is [`BEANSTALKD`], what is not said is as beanstalkd has it: without `-b` there
    /// is no log, its log in the directory of `-b` is imported, the server listens everywhere, and
    /// of several `-l` the last one counts, and those with `tls:` or `proxy:`, which beanstalkd does
    /// not know, besides. Only the sync policy stays bsd's.
    ///
    /// # Errors
    /// A text to print: a usage error, or the requested help or version.
    pub fn parse<I>(words: I) -> Result<Config, Usage>
    where
        I: IntoIterator,
        I::Item: Into<OsString> + Clone,
    {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let is_beanstalkd = words
            .first()
            .and_then(|name| Path::new(name).file_name())
            .is_some_and(|name| name == BEANSTALKD);
        let mut command = Args::command();
        if is_beanstalkd {
            // The unit names a directory first, and the flags of an operator follow.
            command = command.mut_arg("memory", |memory| memory.overrides_with("dir"));
        }
        let matches = command
            .try_get_matches_from(words)
            .map_err(|error| Usage(unknown::explained(error)))?;
        let mut args = Args::from_arg_matches(&matches).map_err(Usage)?;
        if is_beanstalkd {
            args.become_beanstalkd();
        }
        Config::from_args(args).map_err(Usage)
    }

    fn from_args(args: Args) -> Result<Config, clap::Error> {
        let mut warnings = Vec::new();
        let listen = addresses(&args)?;
        let cluster = args.cluster.config().map_err(invalid)?;
        let mut config = Config {
            dir: (!args.memory).then(|| args.dir.clone().unwrap_or_else(|| DIR_DEFAULT.into())),
            import: args.import,
            sync: sync_policy(&args),
            segment_size: clamp_segment_size(args.segment_size, &mut warnings),
            job_size_max: clamp_job_size(args.job_size_max, &mut warnings),
            memory_max: args.max_memory,
            idle_output: (args.idle_output > 0)
                .then(|| Duration::from_secs(60 * u64::from(args.idle_output))),
            connections_max: args.max_connections,
            each_max: args.max_connections_per_address,
            idle: (args.idle_timeout > 0).then(|| Duration::from_secs(args.idle_timeout.into())),
            probing: probing(&args),
            proxy_from: proxy_from(&args, &listen)?,
            auth_file: args.auth_file.clone(),
            new_token: args.new_token.clone(),
            protocol: args.protocol,
            tls: tls(&args, &listen)?,
            listen,
            listen_is_explicit: !args.listen.is_empty(),
            http: http(&args)?,
            archive: archive(&args.archive)?,
            cluster,
            user: args.user,
            verbosity: args.verbosity,
            warnings,
        };
        config.fit_cluster()?;
        Ok(config)
    }
}

impl Config {
    /// Adjust the settings that a member of a cluster cannot choose.
    fn fit_cluster(&mut self) -> Result<(), clap::Error> {
        if self.cluster.is_none() {
            return Ok(());
        }
        if let Some(archive) = &self.archive {
            archive.fits_cluster()?;
        }
        if self.job_size_max > JOB_SIZE_MAX {
            self.warnings.push(format!(
                "-z {} is too large for a cluster: the maximum job size is {JOB_SIZE_MAX}",
                self.job_size_max
            ));
            self.job_size_max = JOB_SIZE_MAX;
        }
        if self.segment_size < CLUSTER_SEGMENT_SIZE_MIN {
            self.warnings.push(format!(
                "-s {} is too small for a cluster: files of the log are {CLUSTER_SEGMENT_SIZE_MIN} \
                 bytes long",
                self.segment_size
            ));
            self.segment_size = CLUSTER_SEGMENT_SIZE_MIN;
        }
        Ok(())
    }
}

impl ArchiveConfig {
    /// An error, unless a member of a cluster can have such an archive.
    fn fits_cluster(&self) -> Result<(), clap::Error> {
        if self.is_followed {
            return Err(invalid(
                "--cluster and --follow cannot be used together: the other members are the copies; give \
                 all members the same --archive, and start a standby elsewhere, without --cluster",
            ));
        }
        if self.restore_if_empty {
            return Err(invalid(
                "--cluster and --restore-if-empty cannot be used together: a member whose disk is lost \
                 gets its log from the others (--cluster-join); if all are lost, restore by hand \
                 (`bsd-wal archive restore`), and start the first member of a new cluster on that \
                 directory (--cluster-init)",
            ));
        }
        Ok(())
    }
}

/// In smaller files a turn of a leader's loop would often not fit.
const CLUSTER_SEGMENT_SIZE_MIN: u32 = 16 << 20;

/// The definition of the command line, for manual pages and shell completions.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

fn archive(args: &ArchiveArgs) -> Result<Option<ArchiveConfig>, clap::Error> {
    let urls: Vec<&String> = args.follow.iter().chain(&args.archive).collect();
    // The same directory, or the same prefix.
    let place = |url: &String| url.trim_end_matches('/').to_owned();
    let (url, second) = match &urls[..] {
        [] => return Ok(None),
        [url] => (*url, None),
        [first, second] if place(first) == place(second) => {
            return Err(invalid(format_args!(
                "{second} is given twice: two archives of a log need two addresses"
            )));
        }
        [first, second] => (*first, Some((*second).clone())),
        [..] => {
            return Err(invalid(
                "a log has two archives at most: --archive twice, or --follow and --archive once",
            ));
        }
    };
    let files =
        |paths: &[PathBuf]| -> Vec<_> { paths.iter().cloned().map(KeySource::File).collect() };
    let commands = args.archive_key_command.iter().cloned();
    let mut keys = files(&args.archive_key);
    keys.extend(commands.map(KeySource::Command));
    Ok(Some(ArchiveConfig {
        url: url.clone(),
        second,
        is_followed: args.follow.is_some(),
        interval: Duration::from_millis(args.archive_interval),
        hold_max: args.archive_hold_max,
        restore_if_empty: args.restore_if_empty,
        log: args.archive_log,
        is_shared: args.archive_new_log,
        lag_max: args.archive_lag_max,
        fine: args.archive_fine.0,
        compression: args.archive_compress.and_then(|it| it.0),
        keys,
        old_keys: files(&args.archive_old_key),
    }))
}

fn sync_policy(args: &Args) -> SyncPolicy {
    match args.sync_interval_ms {
        _ if args.never_sync => SyncPolicy::Never,
        None | Some(0) => SyncPolicy::Always,
        Some(ms) => SyncPolicy::Interval(ms),
    }
}

/// beanstalkd lowers a `-z` that is too large and says so; its command lines must still work.
/// A machine that answers and takes nothing is not gone: how long it may do that, `--idle-output` says.
fn probing(args: &Args) -> Probing {
    if args.dead_after == 0 {
        return Probing::default();
    }
    let seconds = u64::from(args.dead_after).min(DEAD_AFTER_SECONDS_MAX);
    let untaken = seconds.max(60 * u64::from(args.idle_output));
    Probing {
        after: Some(Duration::from_secs(seconds)),
        untaken: (args.idle_output > 0).then(|| Duration::from_secs(untaken)),
    }
}

fn clamp_job_size(asked: u64, warnings: &mut Vec<String>) -> u32 {
    if asked > u64::from(JOB_SIZE_LIMIT) {
        warnings.push(format!(
            "-z {asked} is too large: the maximum job size is {JOB_SIZE_LIMIT}"
        ));
    }
    asked.min(u64::from(JOB_SIZE_LIMIT)) as u32
}

/// beanstalkd accepts any size; its command lines must not fail because a size is not round.
fn clamp_segment_size(asked: Option<u64>, warnings: &mut Vec<String>) -> u32 {
    let asked = asked.unwrap_or(u64::from(SEGMENT_SIZE_DEFAULT));
    let size = asked.clamp(u64::from(SEGMENT_SIZE_MIN), u64::from(SEGMENT_SIZE_MAX));
    if size != asked {
        warnings.push(format!(
            "-s {asked} is not in {SEGMENT_SIZE_MIN}..={SEGMENT_SIZE_MAX}: files of the log are \
             {size} bytes long"
        ));
    }
    size as u32
}

fn addresses(args: &Args) -> Result<Vec<Address>, clap::Error> {
    if args.listen.is_empty() {
        return Ok(vec![Address::Tcp {
            host: "127.0.0.1".into(),
            port: args.port.clone(),
            layers: Layers::NONE,
        }]);
    }
    args.listen
        .iter()
        .map(|text| address(text, &args.port))
        .collect()
}

fn address(text: &str, port: &Port) -> Result<Address, clap::Error> {
    Address::parse(text, port).map_err(|why| {
        invalid(format_args!(
            "invalid value '{text}' for '-l <ADDR>': {why}"
        ))
    })
}

fn invalid(why: impl Display) -> clap::Error {
    Args::command().error(clap::error::ErrorKind::ValueValidation, format!("{why}\n"))
}

fn proxy_from(args: &Args, listen: &[Address]) -> Result<Vec<Network>, clap::Error> {
    let is_wanted = listen.iter().any(|address| address.layers().proxy);
    match (is_wanted, args.proxy_from.is_empty()) {
        (true, true) => Err(invalid(
            "a listener with proxy: needs --proxy-from: the addresses of the proxies",
        )),
        (false, false) => Err(invalid(
            "no listener believes proxies; say where with -l proxy:ADDR",
        )),
        _ => Ok(args.proxy_from.clone()),
    }
}

fn tls(args: &Args, listen: &[Address]) -> Result<Option<TlsFiles>, clap::Error> {
    let has_http = http(args)?.is_some_and(|http| http.has_tls);
    let is_wanted = has_http || listen.iter().any(|address| address.layers().tls);
    args.tls.files(is_wanted).map_err(invalid)
}

fn http(args: &Args) -> Result<Option<Setup>, clap::Error> {
    let setup = args.http.setup();
    setup.map_err(|why| invalid(format_args!("invalid value for '--http <ADDR>': {why}")))
}

/// A bare number, as beanstalkd has it.
fn parse_milliseconds(text: &str) -> Result<u32, UsageError> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    match (digits.parse(), digits == text) {
        (Ok(ms), true) => Ok(ms),
        (Ok(ms), false) if text[digits.len()..].eq_ignore_ascii_case("ms") => {
            Err(format!("the number of milliseconds has no unit: -f {ms}").into())
        }
        _ => Err("a whole number of milliseconds is expected, such as -f 50".into()),
    }
}

fn parse_protocol(text: &str) -> Result<Protocol, UsageError> {
    match text {
        "beanstalkd" => Ok(Protocol::Beanstalkd),
        "extended" => Ok(Protocol::Extended),
        _ => Err("it is beanstalkd or extended".into()),
    }
}

fn parse_memory(text: &str) -> Result<u64, UsageError> {
    match parse_size(text)? {
        ..MEMORY_MIN => Err(UsageError::new(format_args!(
            "nothing could be put: at least {}k are needed; without --max-memory there is no bound",
            MEMORY_MIN >> 10
        ))),
        size => Ok(size),
    }
}

/// A number of bytes with an optional suffix `k`, `m` or `g` (of either case): powers of 1024.
fn parse_size(text: &str) -> Result<u64, UsageError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        suffix => {
            return Err(format!("'{suffix}' is not one of the suffixes k, m and g").into());
        }
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a number of bytes is expected".into());
    }
    let number: u64 = digits.parse().map_err(|_| "the number is too large")?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "the number is too large".into())
}

#[cfg(test)]
mod tests;
