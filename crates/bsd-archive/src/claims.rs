//! Which claims the server of a data directory has made, in a file of that directory.
//!
//! A server that comes back finds the chain claimed by another one. If it was the writer before,
//! then it was replaced, and must not go on. A directory that has never been archived there, or that
//! was restored from there, has no such file: it may claim the chain.
//!
//! A claim is noted before it is put, because no one knows whether a put that failed has happened.
//!
//! Of a log that was restored from the end of a chain the file says which link was the last one, and
//! with which segment the log goes on after it: then no base has to be made of it.
//!
//! A log that is put into two archives at the same time has a file for each, and each writer changes
//! its own. It reads both: which archive is named first may be another at each start.

use std::path::Path;

use super::chain::begin;
use super::format::{HEAD_SIZE, Head, chain_dir, claims_dir, log_name, numbered, parse_log_name};
use super::links::is_joined;
use super::store::{Put, Store, Trouble};
use bsd::storage::disk::Fs;
use bsd::storage::format::LogId;
use bsd::storage::marker_file::{ARCHIVE_MARKER, SECOND_ARCHIVE_MARKER, read_marker, write_marker};
use bsd::storage::{Life, OpenError};
use bsd::types::{Position, SegmentId};

const FIRST_LINE: &str = "bsd-archived 1";
/// Claims of one number that are noted at most, the newest, and as many of others: each is one that may
/// come late.
const CLAIMS_MAX: usize = 64;

/// A claim that was put, or may have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) number: u64,
    pub(super) epoch: u32,
    pub(super) crc: u32,
}

/// The end of a chain from which a log was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    /// The last link that was applied, or after which there was nothing to apply.
    pub(super) number: u64,
    pub(super) crc: u32,
    /// Where the chain stands there.
    pub(super) at: Position,
    /// The log before this segment has the same jobs.
    pub(super) life: Life,
}

/// One of the archives into which a log is put at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    /// The first, or the only one.
    #[default]
    First,
    /// The second.
    Second,
}

impl Which {
    /// Both.
    pub const ALL: [Which; 2] = [Which::First, Which::Second];

    /// The name of the file with its claims.
    pub(super) fn marker(self) -> &'static str {
        match self {
            Which::First => ARCHIVE_MARKER,
            Which::Second => SECOND_ARCHIVE_MARKER,
        }
    }
}

/// The claims of a directory on the chain of one log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claims {
    log: LogId,
    /// Whose file this is.
    which: Which,
    /// The address of the archive, and the checksum of its marker. `None`: not known yet.
    pub(super) place: Option<(String, u32)>,
    /// `None`: the log was not restored, or not from the end of a chain.
    pub(super) origin: Option<Origin>,
    claims: Vec<Claim>,
    /// What the other file says.
    other: Option<Box<Claims>>,
}

/// True if the server of this directory has claimed a chain, or may have.
///
/// # Errors
/// As of [`Claims::read`].
pub(super) fn has_claimed(fs: &dyn Fs, dir: &Path) -> Result<bool, OpenError> {
    let found = both(fs, dir)?;
    Ok(found.iter().any(|it| !it.claims.is_empty()))
}

/// What the files of both archives say.
fn both(fs: &dyn Fs, dir: &Path) -> Result<Vec<Claims>, OpenError> {
    let found = Which::ALL.map(|which| read(fs, dir, which));
    let found: Result<Vec<_>, _> = found.into_iter().collect();
    Ok(found?.into_iter().flatten().collect())
}

/// What the file of one archive says; `None`: it is not there.
fn read(fs: &dyn Fs, dir: &Path, which: Which) -> Result<Option<Claims>, OpenError> {
    let marker = read_marker(fs, dir, which.marker())?;
    let parsed = marker.map(|marker| parse(&marker, which).ok_or_else(|| damaged(dir, which)));
    parsed.transpose()
}

/// True if the log in `dir` was restored from the end of an archive, and no server has claimed that
/// since.
///
/// # Errors
/// The disk does not answer, or the file that says so is damaged.
pub fn is_restored(fs: &dyn Fs, dir: &Path) -> Result<bool, OpenError> {
    let found = both(fs, dir)?;
    let is_new = found.iter().all(|it| it.claims.is_empty());
    Ok(is_new && found.iter().any(|it| it.origin.is_some()))
}

fn damaged(dir: &Path, which: Which) -> OpenError {
    OpenError::Foreign {
        path: dir.join(which.marker()),
        what: "it says which archives this log has been put into, and is damaged; if no other \
               server has taken over, remove it"
            .to_owned(),
    }
}

impl Claims {
    /// Claims of a log that was restored from the end of a chain, and has claimed nothing.
    pub(super) fn restored(log: LogId, origin: Origin) -> Claims {
        Claims {
            origin: Some(origin),
            ..Claims::nothing(log, Which::First)
        }
    }

    fn nothing(log: LogId, which: Which) -> Claims {
        Claims {
            log,
            which,
            place: None,
            origin: None,
            claims: Vec::new(),
            other: None,
        }
    }

    /// Read the files in the directory, to go on with that of one archive; no claims, if they are about
    /// another log.
    ///
    /// # Errors
    /// The disk does not answer, or a file is damaged.
    pub(super) fn read(
        fs: &dyn Fs,
        dir: &Path,
        log: LogId,
        which: Which,
    ) -> Result<Claims, OpenError> {
        let found = both(fs, dir)?.into_iter().filter(|it| it.log == log);
        let (mut own, mut other): (Vec<_>, Vec<_>) = found.partition(|it| it.which == which);
        Ok(Claims {
            other: other.pop().map(Box::new),
            ..own.pop().unwrap_or_else(|| Claims::nothing(log, which))
        })
    }

    /// This, and what the other file says.
    fn all(&self) -> impl Iterator<Item = &Claims> {
        [Some(self), self.other.as_deref()].into_iter().flatten()
    }

    /// True if the server of this directory has put this claim, or has tried to.
    pub(super) fn has(&self, claim: &Claim) -> bool {
        self.all().any(|it| it.claims.contains(claim))
    }

    /// The checksum of the marker of the archive at this address; `None`: it is not known.
    pub(super) fn place_of(&self, url: &str) -> Option<(String, u32)> {
        let mut places = self.all().filter_map(|it| it.place.as_ref());
        places.find(|(known, _)| known == url).cloned()
    }

    /// The link after which this log goes on, if this is it.
    pub(super) fn origin_at(&self, number: u64, crc: u32) -> Option<Origin> {
        let mut origins = self.all().filter_map(|it| it.origin);
        origins.find(|it| (it.number, it.crc) == (number, crc))
    }

    /// True if the log was restored from the end of a chain.
    pub(super) fn has_origin(&self) -> bool {
        self.all().any(|it| it.origin.is_some())
    }

    /// The greatest epoch that this directory has claimed, and the file that says so; `None`: it has
    /// claimed nothing here.
    ///
    /// # Errors
    /// The store did not answer.
    pub(super) fn epoch(&self, store: &dyn Store) -> Result<Option<(u32, &'static str)>, Trouble> {
        let mut greatest = None;
        for of in self.all() {
            let found = of.epoch_in(store)?;
            greatest = greatest.max(found.map(|epoch| (epoch, of.which.marker())));
        }
        Ok(greatest)
    }

    fn epoch_in(&self, store: &dyn Store) -> Result<Option<u32>, Trouble> {
        // Of several tries with the same number at most one is there.
        let tries = self.claims.chunk_by(|one, next| one.number == next.number);
        for tries in tries.rev() {
            let name = numbered(&chain_dir(self.log), tries[0].number);
            let head = store.get_range(&name, 0..HEAD_SIZE as u64)?;
            let found = head.and_then(|head| Head::decode_alone(&head).ok());
            let is_put =
                |claim: &&Claim| found.as_ref().is_some_and(|(_, crc, _)| *crc == claim.crc);
            if let Some(claim) = tries.iter().find(is_put) {
                return Ok(Some(claim.epoch));
            }
        }
        Ok(None)
    }

    /// Note a claim that is about to be put. Durable on return.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub(super) fn note(&mut self, fs: &dyn Fs, dir: &Path, claim: Claim) -> Result<(), OpenError> {
        if self.claims.last() == Some(&claim) {
            return Ok(());
        }
        self.claims.push(claim);
        // However often one number is tried, the claims before it stay: one of them is in the chain.
        let mut room = [CLAIMS_MAX; 2];
        let is_kept = |it: &Claim| {
            let room = &mut room[usize::from(it.number == claim.number)];
            *room > 0 && {
                *room -= 1;
                true
            }
        };
        let newest_first = self.claims.drain(..).rev().filter(is_kept);
        self.claims = newest_first.collect();
        self.claims.reverse();
        write_marker(fs, dir, self.which.marker(), &self.marker())
    }

    /// Content of the file.
    pub(super) fn marker(&self) -> Vec<u8> {
        let mut text = format!("{FIRST_LINE}\nlog {}\n", log_name(self.log));
        if let Some((url, marker)) = &self.place {
            text.push_str(&format!("place {marker:08x} {url}\n"));
        }
        if let Some(origin) = &self.origin {
            let Origin {
                number,
                crc,
                at,
                life,
            } = origin;
            let (in_segment, offset, Life { segment, crc: of }) = (at.segment(), at.offset(), life);
            text.push_str(&format!(
                "origin {number} {crc:08x} {in_segment} {offset} {segment} {of:08x}\n"
            ));
        }
        for Claim { number, epoch, crc } in &self.claims {
            text.push_str(&format!("claim {number} {epoch} {crc:08x}\n"));
        }
        let crc = crc32fast::hash(text.as_bytes());
        text.push_str(&format!("crc {crc:08x}\n"));
        text.into_bytes()
    }
}

/// Put the claim `number`, and its mark: an expiry leaves claims alone, so that a writer that was
/// replaced finds the number after its last link taken, however late it comes. `false`: another link
/// was there first, though it may have expired meanwhile.
///
/// # Errors
/// The store did not answer; the same claim can be put again.
pub(super) fn put_claim(
    store: &dyn Store,
    log: LogId,
    number: u64,
    bytes: &[u8],
) -> Result<bool, Trouble> {
    store.put_if_absent(&numbered(&claims_dir(log), number), &[])?;
    let name = numbered(&chain_dir(log), number);
    let is_put = match store.put_if_absent(&name, bytes)? {
        Put::Done => true,
        Put::Exists => store.get(&name)?.as_deref() == Some(bytes),
    };
    // An expiry says where the chain begins before it removes a link, and a joined object is there
    // before the links of which it is made go. Where one has the number, this claim is not read.
    Ok(is_put && begin(store, log)? <= number && !is_joined(store, log, number)?)
}

fn parse(marker: &[u8], which: Which) -> Option<Claims> {
    let text = std::str::from_utf8(marker).ok()?;
    let (checked, crc) = text.strip_suffix('\n')?.rsplit_once("crc ")?;
    if crc != format!("{:08x}", crc32fast::hash(checked.as_bytes())) {
        return None;
    }
    let mut lines = checked.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let log = parse_log_name(lines.next()?.strip_prefix("log ")?)?;
    let mut lines = lines.peekable();
    let first = lines.peek().copied().unwrap_or_default();
    let place = match first.strip_prefix("place ") {
        None => None,
        Some(fields) => {
            lines.next();
            let (marker, url) = fields.split_once(' ')?;
            Some((url.to_owned(), u32::from_str_radix(marker, 16).ok()?))
        }
    };
    let first = lines.peek().copied().unwrap_or_default();
    let origin = match first.strip_prefix("origin ") {
        None => None,
        Some(fields) => {
            let mut fields = fields.split(' ');
            lines.next();
            Some(Origin {
                number: fields.next()?.parse().ok()?,
                crc: u32::from_str_radix(fields.next()?, 16).ok()?,
                at: Position::new(
                    SegmentId(fields.next()?.parse().ok()?),
                    fields.next()?.parse().ok()?,
                ),
                life: Life {
                    segment: SegmentId(fields.next()?.parse().ok()?),
                    crc: u32::from_str_radix(fields.next()?, 16).ok()?,
                },
            })
        }
    };
    let claims = lines.map(|line| {
        let mut fields = line.strip_prefix("claim ")?.split(' ');
        Some(Claim {
            number: fields.next()?.parse().ok()?,
            epoch: fields.next()?.parse().ok()?,
            crc: u32::from_str_radix(fields.next()?, 16).ok()?,
        })
    });
    let claims = claims.collect::<Option<_>>()?;
    Some(Claims {
        log,
        which,
        place,
        origin,
        claims,
        other: None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::format::Kind;
    use crate::histories::LOG;
    use crate::sim::SimStore;
    use bsd::storage::SimFs;

    fn disk() -> SimFs {
        let disk = SimFs::new(1);
        Fs::create_dir(&disk, "/d".as_ref()).unwrap();
        disk
    }

    pub(crate) fn claim(number: u64, epoch: u32, node: &str) -> (Vec<u8>, Claim) {
        let head = Head {
            kind: Kind::Claim { goes_on: false },
            epoch,
            number,
            log: LOG,
            from: Position::ZERO,
            to: Position::ZERO,
            seen_wall_ns: 1,
            wall_ns: 1,
            previous: 0,
            segment_crc: 0,
        };
        let (bytes, crc) = head.encode(node.as_bytes());
        (bytes, Claim { number, epoch, crc })
    }

    #[test]
    fn a_server_that_was_replaced_knows_it_whatever_became_of_its_puts() {
        let (disk, store) = (disk(), SimStore::new(1));
        let read = || Claims::read(&disk, "/d".as_ref(), LOG, Which::First).unwrap();
        assert_eq!(read().epoch(&store).unwrap(), None);
        let put = |(bytes, claim): &(Vec<u8>, Claim)| {
            store
                .put_if_absent(&numbered(&chain_dir(LOG), claim.number), bytes)
                .unwrap()
        };
        let first = claim(1, 1, "a");
        read().note(&disk, "/d".as_ref(), first.1).unwrap();
        assert_eq!(read().epoch(&store).unwrap(), None, "it was not put");
        assert_eq!(put(&first), Put::Done);
        assert_eq!(read().epoch(&store).unwrap(), Some((1, ARCHIVE_MARKER)));
        // Tries whose answers were lost: any of them may have happened.
        let tries: Vec<_> = (0..CLAIMS_MAX)
            .map(|nth| claim(2, 2, &nth.to_string()))
            .collect();
        let mut own = read();
        for each in &tries {
            own.note(&disk, "/d".as_ref(), each.1).unwrap();
        }
        assert_eq!(read(), own);
        assert_eq!(put(&tries[0]), Put::Done);
        let calls = store.calls();
        assert_eq!(read().epoch(&store).unwrap(), Some((2, ARCHIVE_MARKER)));
        assert_eq!(store.calls() - calls, 1, "however often it was tried");
        assert_eq!(read().claims.len(), CLAIMS_MAX + 1);
        // More tries that were not put: the one that was is not forgotten.
        let mut own = read();
        for nth in 0..3 * CLAIMS_MAX {
            let next = claim(3, 3, &nth.to_string());
            own.note(&disk, "/d".as_ref(), next.1).unwrap();
            assert!(read().claims.contains(&next.1));
        }
        assert_eq!(read().claims.len(), 2 * CLAIMS_MAX);
        assert_eq!(read().epoch(&store).unwrap(), Some((2, ARCHIVE_MARKER)));
        let other = Claims::read(&disk, "/d".as_ref(), LogId([4; 16]), Which::First).unwrap();
        assert_eq!(other.claims, []);
    }

    #[test]
    fn g15_where_a_log_comes_from_is_kept_with_its_claims() {
        let disk = disk();
        let origin = Origin {
            number: 7,
            crc: 0xfe,
            at: Position::new(SegmentId(3), 4096),
            life: Life {
                segment: SegmentId(4),
                crc: 0xff,
            },
        };
        let restored = Claims {
            place: Some(("file:///a b".to_owned(), 5)),
            ..Claims::restored(LOG, origin)
        };
        write_marker(&disk, "/d".as_ref(), ARCHIVE_MARKER, &restored.marker()).unwrap();
        let read = || Claims::read(&disk, "/d".as_ref(), LOG, Which::First).unwrap();
        assert_eq!(read(), restored);
        let dir = "/d".as_ref();
        assert!(!has_claimed(&disk, dir).unwrap() && is_restored(&disk, dir).unwrap());
        let (_, claim) = claim(8, 2, "a");
        read().note(&disk, dir, claim).unwrap();
        assert_eq!(read().origin, Some(origin));
        assert!(has_claimed(&disk, dir).unwrap() && !is_restored(&disk, dir).unwrap());
    }

    /// Which archive is named first may be another at each start.
    #[test]
    fn a_writer_finds_the_claims_of_its_archive_in_the_file_of_either() {
        let disk = disk();
        let read = |which| Claims::read(&disk, "/d".as_ref(), LOG, which).unwrap();
        let stores = [SimStore::new(1), SimStore::new(2)];
        for ((which, store), epoch) in Which::ALL.into_iter().zip(&stores).zip([3, 4]) {
            let (bytes, claim) = claim(u64::from(epoch), epoch, "a");
            let mut own = read(which);
            own.place = Some((format!("file:///{epoch}"), epoch));
            own.note(&disk, "/d".as_ref(), claim).unwrap();
            store
                .put_if_absent(&numbered(&chain_dir(LOG), claim.number), &bytes)
                .unwrap();
        }
        for which in Which::ALL {
            let found = stores
                .each_ref()
                .map(|store| read(which).epoch(store).unwrap());
            let wanted = [(3, ARCHIVE_MARKER), (4, SECOND_ARCHIVE_MARKER)];
            assert_eq!(found, wanted.map(Some), "{which:?}");
            let place = read(which).place_of("file:///4");
            assert_eq!(place, Some(("file:///4".to_owned(), 4)));
            assert_eq!(read(which).place_of("file:///5"), None);
        }
        assert!(has_claimed(&disk, "/d".as_ref()).unwrap());
    }

    #[test]
    fn a_damaged_file_is_named_and_never_taken_for_none() {
        let disk = disk();
        let mut own = Claims::read(&disk, "/d".as_ref(), LOG, Which::First).unwrap();
        own.note(&disk, "/d".as_ref(), claim(1, 1, "a").1).unwrap();
        let marker = read_marker(&disk, "/d".as_ref(), ARCHIVE_MARKER)
            .unwrap()
            .unwrap();
        for bit in 0..8 * marker.len() {
            let mut marker = marker.clone();
            marker[bit / 8] ^= 1 << (bit % 8);
            write_marker(&disk, "/d".as_ref(), ARCHIVE_MARKER, &marker).unwrap();
            let error = Claims::read(&disk, "/d".as_ref(), LOG, Which::First).unwrap_err();
            assert!(error.to_string().contains("archived"), "{error}");
        }
    }
}
