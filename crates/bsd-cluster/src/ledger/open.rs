//! From files to an open ledger.
//!
//! Reading comes first and changes nothing; if something that was durable is gone or changed, it
//! ends there. Then the disk is put in order: everything that was read is made durable, and foreign
//! files are removed.
//!
//! | what is found | what it is |
//! |---|---|
//! | `ledger-next` | a crash while a file was made, or space set aside: removed |
//! | files before one that begins a ledger | a crash after a snapshot was installed: removed |
//! | a number missing between two files | damage |
//! | a header or an opening that is not sound | damage: they were durable before the file had its name |
//! | a file, not the last, that ends before the next one says | damage |
//! | a bad frame in the last file; a sound header behind it says more was durable | damage |
//! | the same, and nothing says so; something is behind it | a torn tail: the next commit begins a new file |
//! | the same, and only zeros are behind it | the end: the next commit continues there |
//! | sound frames that make no sense together | damage, or a fault of this program: refused |

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{
    DIR_NAME, LedgerFile, NewFile, SPARE_NAME, file_name, file_number, make_spare, remove_if_there,
};
use super::format::{
    Batch, Before, FileHeader, FrameHeader, HEADER_SIZE, Kind, Opening, Seed, decode_header,
};
use super::held::{Held, Place};
use super::read::{Fault, Reader, Step};
use super::{Base, HardState, Identity, Ledger, Sizes, assert_writable, put_members};
use crate::member::Members;
use bsd::storage::disk::{File, Fs, OpenMode, ReadFile, ReadFs, read_exact_at, write_all_at};
use bsd::storage::{Damage, OpenError};

/// Bytes that are copied at once.
const CHUNK: u64 = 1 << 20;

fn newer(path: PathBuf, version: u16) -> OpenError {
    OpenError::Foreign {
        path,
        what: format!(
            "it has ledger format version {version}, this program reads version {}; use the bsd \
             that wrote it, or a newer one",
            super::format::VERSION
        ),
    }
}

/// See [`Ledger::create`].
pub(super) fn create(
    fs: &Arc<dyn Fs>,
    data_dir: &Path,
    identity: Identity,
    base: Base,
    sizes: Sizes,
) -> Result<Ledger, OpenError> {
    assert_writable(&base.members);
    let dir = data_dir.join(DIR_NAME);
    fs.create_dir(&dir)
        .and_then(|()| fs.sync_dir(data_dir))
        .map_err(|error| OpenError::io("make", &dir, &error))?;
    if let Some(number) = numbers(&**fs, &dir)?.last() {
        return Err(OpenError::Foreign {
            path: dir.join(file_name(*number)),
            what: "there is a ledger already: this node belongs to a cluster; give the new one \
                   another directory"
                .to_owned(),
        });
    }
    let opening = Opening {
        state: HardState {
            term: base.term,
            vote: 0,
            commit: base.index,
        },
        before: None,
        index: base.index,
        term: base.term,
        members: vec![(base.index, base.members.clone())],
    };
    let spare = make_spare(&**fs, &dir, sizes.of_files())
        .map_err(|error| OpenError::io("set aside", &dir.join(SPARE_NAME), &error))?;
    let new = NewFile {
        fs: &**fs,
        dir: &dir,
        identity,
        number: 1,
        opening: &opening,
    };
    let file = new.create(spare)?;
    let end = file.end;
    let found = Found {
        files: VecDeque::from([file]),
        opening_end: end,
        durable: end,
        is_torn: false,
        replay: Replay::new(&opening),
    };
    Ok(found.into_ledger(fs, dir, identity, sizes))
}

/// See [`Ledger::abandon`].
pub(super) fn abandon(fs: &dyn Fs, data_dir: &Path) -> Result<(), OpenError> {
    let dir = data_dir.join(DIR_NAME);
    let path = dir.join(file_name(1));
    let io = |error| OpenError::io("remove", &path, &error);
    // What has another name means nothing to a start.
    let _ = remove_if_there(fs, &dir.join(SPARE_NAME));
    match fs.remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| fs.sync_dir(&dir)).map_err(io),
    }
}

/// See [`Ledger::open`].
pub(super) fn open(
    fs: &Arc<dyn Fs>,
    data_dir: &Path,
    sizes: Sizes,
) -> Result<Option<Ledger>, OpenError> {
    let dir = data_dir.join(DIR_NAME);
    let numbers = match numbers(&**fs, &dir) {
        Ok(numbers) => numbers,
        Err(OpenError::Io(_)) if is_missing(&**fs, data_dir)? => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(newest) = numbers.last() else {
        return Ok(None);
    };
    let open = |path: &Path| {
        let file = fs.open(path, OpenMode::ReadWrite)?;
        Ok((file.clone(), file as Arc<dyn ReadFile>))
    };
    let (begun, leftovers) = begin(&dir, &numbers, &open)?;
    let identity = begun.identity;
    let (found, damage) = read(&dir, *newest, begun, sizes)?;
    if let Some(damage) = damage {
        return Err(damage);
    }
    found
        .put_in_order(&**fs, data_dir, &dir, &leftovers)
        .map_err(|error| OpenError::io("put in order", &dir, &error))?;
    Ok(Some(found.into_ledger(fs, dir, identity, sizes)))
}

/// True if there is no directory of a ledger in `data_dir`.
pub(super) fn is_missing(fs: &dyn ReadFs, data_dir: &Path) -> Result<bool, OpenError> {
    let entries = fs
        .read_dir(data_dir)
        .map_err(|error| OpenError::io("list", data_dir, &error))?;
    Ok(entries.iter().all(|entry| entry.name != DIR_NAME))
}

/// The numbers of the files in `dir`, ascending.
pub(super) fn numbers(fs: &dyn ReadFs, dir: &Path) -> Result<Vec<u64>, OpenError> {
    let entries = fs
        .read_dir(dir)
        .map_err(|error| OpenError::io("list", dir, &error))?;
    let mut numbers: Vec<u64> = entries
        .iter()
        .filter_map(|entry| file_number(&entry.name))
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// How a file is opened: what is kept of it, and what it is read by.
pub(super) type Opener<'a, F> = &'a dyn Fn(&Path) -> io::Result<(F, Arc<dyn ReadFile>)>;

/// A file whose header and opening are sound.
struct Begun<F> {
    path: PathBuf,
    number: u64,
    file: F,
    size: u64,
    seed: Seed,
    opening: Opening,
    /// After the opening.
    reader: Reader,
}

pub(super) struct AllBegun<F> {
    pub(super) identity: Identity,
    /// Oldest first.
    files: VecDeque<Begun<F>>,
}

/// Damage of one file, in words.
fn damaged(dir: &Path, number: u64, range: Option<(u64, u64)>, what: &str) -> OpenError {
    OpenError::Damaged {
        dir: dir.to_owned(),
        damages: vec![Damage {
            file: file_name(number),
            range,
            what: what.to_owned(),
            jobs: Vec::new(),
        }],
    }
}

/// Header and opening of all files of the ledger, and the numbers of the files before it.
pub(super) fn begin<F>(
    dir: &Path,
    numbers: &[u64],
    open: Opener<'_, F>,
) -> Result<(AllBegun<F>, Vec<u64>), OpenError> {
    let mut identity = None;
    let mut files: VecDeque<Begun<F>> = VecDeque::new();
    let mut older = numbers.to_vec();
    while let Some(number) = older.pop() {
        if let Some(next) = files.front()
            && next.number != number + 1
        {
            let gone = next.number - 1;
            return Err(damaged(dir, gone, None, "the file is missing"));
        }
        let begun = begin_file(dir, number, &mut identity, open)?;
        let is_first = begun.opening.before.is_none();
        if begun
            .opening
            .before
            .is_some_and(|it| it.number + 1 != number)
        {
            let what = "it says that it continues another file than the one before it";
            return Err(damaged(dir, number, None, what));
        }
        files.push_front(begun);
        if is_first {
            break;
        }
    }
    let Some(identity) = identity else {
        return Err(damaged(dir, 0, None, "there is no file"));
    };
    Ok((AllBegun { identity, files }, older))
}

fn begin_file<F>(
    dir: &Path,
    number: u64,
    identity: &mut Option<Identity>,
    open: Opener<'_, F>,
) -> Result<Begun<F>, OpenError> {
    let path = dir.join(file_name(number));
    let io = |error: &io::Error| OpenError::io("read", &path, error);
    let (file, bytes) = open(&path).map_err(|it| io(&it))?;
    let size = bytes.size().map_err(|it| io(&it))?;
    let mut header = [0; HEADER_SIZE];
    let short = header
        .len()
        .min(usize::try_from(size).unwrap_or(HEADER_SIZE));
    read_exact_at(&*bytes, &mut header[..short], 0).map_err(|it| io(&it))?;
    let found = match decode_header(&header) {
        FileHeader::Newer(version) => return Err(newer(path, version)),
        FileHeader::Known {
            identity,
            number: found,
        } if found == number => identity,
        FileHeader::Known { number: found, .. } => {
            let what = format!("it has the header of file {found}");
            return Err(damaged(dir, number, None, &what));
        }
        FileHeader::Bad => {
            let range = Some((0, HEADER_SIZE as u64));
            return Err(damaged(dir, number, range, "its header is not sound"));
        }
    };
    let identity = *identity.get_or_insert(found);
    if found != identity {
        return Err(OpenError::Foreign {
            what: format!(
                "it belongs to node {} of cluster {}, the newest file to node {} of cluster {}; \
                 files of two ledgers are mixed: move those away that do not belong here",
                found.node, found.cluster, identity.node, identity.cluster
            ),
            path,
        });
    }
    let seed = Seed::new(identity, number);
    let mut reader = Reader::new(bytes, seed, size, HEADER_SIZE as u64);
    let opening = match reader.step().map_err(|it| io(&it))? {
        Step::Bad(Fault::Newer(version)) => return Err(newer(path, version.into())),
        Step::Frame(_, header, payload) if header.kind == Some(Kind::Opening) => {
            Opening::decode(payload)
        }
        _ => None,
    };
    let Some(opening) = opening else {
        let range = Some((HEADER_SIZE as u64, size.saturating_sub(HEADER_SIZE as u64)));
        return Err(damaged(dir, number, range, "its first frame is not sound"));
    };
    reader.pause();
    Ok(Begun {
        path,
        number,
        file,
        size,
        seed,
        opening,
        reader,
    })
}

/// Why a frame cannot follow those before it, as words for a person.
#[derive(Debug, Clone, Copy)]
struct NotNext(&'static str);

/// State after the frames so far.
struct Replay {
    /// The first file continues another one, which was discarded.
    is_continued: bool,
    state: HardState,
    members: Vec<(u64, Members)>,
    held: Held,
}

impl Replay {
    fn new(opening: &Opening) -> Replay {
        Replay {
            is_continued: opening.before.is_some(),
            state: opening.state,
            members: opening.members.clone(),
            held: Held::new((opening.index, opening.term)),
        }
    }

    /// The opening of a file after the first one agrees with what is before it.
    fn agrees(&self, opening: &Opening) -> bool {
        let last = self.held.last();
        opening.index == last
            && Some(opening.term) == self.held.term(last)
            && follows(self.state, opening.state)
    }

    /// Take a batch, which follows the ones before it.
    fn take(&mut self, batch: Batch, mut place: Place, sizes: Sizes) -> Result<(), NotNext> {
        if !follows(self.state, batch.state) {
            return Err(NotNext("term, vote or commit index go back in it"));
        }
        if let (Some(first), Some(last)) = (batch.entries.first(), batch.entries.last()) {
            (place.first, place.last) = (first.index, last.index);
            let before = place.first - 1;
            if before > self.held.last() {
                return Err(NotNext("entries before its own are missing"));
            }
            if before < self.state.commit {
                return Err(NotNext("it replaces entries that are committed"));
            }
            if before < self.held.base().0 {
                // What it replaced, and what was before that, was in files that are discarded.
                if !self.is_continued {
                    return Err(NotNext("it replaces what the ledger begins with"));
                }
                self.held.restart((before, batch.previous_term));
            }
            if self.held.term(before) != Some(batch.previous_term) {
                return Err(NotNext("it follows an entry of another term"));
            }
            batch.entries.into_iter().for_each(|it| self.held.push(it));
            self.held.settle(place);
            self.held.forget(sizes.recent, None);
        }
        for (index, members) in batch.members {
            put_members(&mut self.members, index, members);
        }
        self.state = batch.state;
        if self.state.commit > self.held.last() {
            return Err(NotNext("entries that it calls committed are missing"));
        }
        Ok(())
    }
}

/// True if a node's hard state may become `next`.
fn follows(state: HardState, next: HardState) -> bool {
    let may_vote = state.vote == 0 || next.vote == state.vote;
    (next.term > state.term || next.term == state.term && may_vote) && next.commit >= state.commit
}

/// Content of the files.
pub(super) struct Found<F> {
    files: VecDeque<LedgerFile<F>>,
    opening_end: u64,
    /// Up to where the last file was durable, as its frames say.
    durable: u64,
    is_torn: bool,
    replay: Replay,
}

/// The same for a ledger that is only read.
pub(super) struct View<F> {
    pub(super) files: VecDeque<LedgerFile<F>>,
    pub(super) state: HardState,
    pub(super) members: Vec<(u64, Members)>,
    pub(super) held: Held,
}

/// Read the files, up to damage that has sound frames after it.
pub(super) fn read<F>(
    dir: &Path,
    newest: u64,
    begun: AllBegun<F>,
    sizes: Sizes,
) -> Result<(Found<F>, Option<OpenError>), OpenError> {
    let begun = begun.files;
    let ends: Vec<Option<Before>> = begun
        .iter()
        .skip(1)
        .map(|it| it.opening.before)
        .chain([None])
        .collect();
    let Some(first) = begun.front() else {
        return Err(damaged(dir, newest, None, "the file is missing"));
    };
    let mut found = Found {
        files: VecDeque::new(),
        opening_end: 0,
        durable: 0,
        is_torn: false,
        replay: Replay::new(&first.opening),
    };
    let mut damage = None;
    for (nth, (file, end)) in begun.into_iter().zip(ends).enumerate() {
        if nth > 0 && !found.replay.agrees(&file.opening) {
            let what = "it does not follow what is in the file before it";
            damage = Some(damaged(dir, file.number, None, what));
            break;
        }
        // It may have one that was to be written with the next commit. What a later start reads,
        // which may not have the files before, is what this one reads.
        for (index, members) in &file.opening.members {
            put_members(&mut found.replay.members, *index, members.clone());
        }
        damage = found.read_file(dir, file, end, sizes)?;
        if damage.is_some() {
            break;
        }
    }
    let base = found.replay.held.base().0;
    if found.replay.members.first().is_none_or(|it| it.0 > base) {
        let what = "the membership that the ledger begins with is missing";
        return Err(damaged(dir, newest, None, what));
    }
    let state = &mut found.replay.state;
    // What is discarded was committed, even if no frame says so.
    state.commit = state.commit.max(base);
    Ok((found, damage))
}

impl<F> Found<F> {
    /// Read the frames of one file after its opening, up to `end` if a later file says where that
    /// is, or up to the damage that is returned.
    fn read_file(
        &mut self,
        dir: &Path,
        mut begun: Begun<F>,
        end: Option<Before>,
        sizes: Sizes,
    ) -> Result<Option<OpenError>, OpenError> {
        let io = |error: &io::Error| OpenError::io("read", &begun.path, error);
        let number = begun.number;
        (self.opening_end, self.durable) = (begun.reader.at, begun.reader.at);
        let mut damage = None;
        let fault = loop {
            if let Some(end) = end
                && (begun.reader.at, begun.reader.previous) == (end.end, end.crc)
            {
                break None;
            }
            match begun.reader.step().map_err(|it| io(&it))? {
                Step::Frame(at, header, payload) => {
                    if let Err(NotNext(what)) = self.take(at, &header, payload, number, sizes) {
                        let range = Some((at, header.frame_size()));
                        damage = Some(damaged(dir, number, range, what));
                        break None;
                    }
                }
                Step::Bad(Fault::Newer(version)) => {
                    return Err(newer(begun.path.clone(), version.into()));
                }
                Step::Bad(fault) => break Some(fault),
            }
        };
        let at = begun.reader.at;
        if let Some(fault) = fault {
            let ahead = begun.reader.look_ahead().map_err(|it| io(&it))?;
            let durable = end.map_or(0, |it| it.end).max(ahead.durable);
            if end.is_some() || durable > at || self.durable > at {
                let size = ahead.next_frame.unwrap_or(durable).saturating_sub(at);
                let what = fault.describe();
                damage = Some(damaged(dir, number, Some((at, size)), what));
            }
            self.is_torn = ahead.is_garbage;
        }
        begun.reader.pause();
        self.files.push_back(LedgerFile {
            number,
            seed: begun.seed,
            file: begun.file,
            end: at,
            crc: begun.reader.previous,
            capacity: begun.size.max(at),
            touched: at,
        });
        Ok(damage)
    }

    fn take(
        &mut self,
        at: u64,
        header: &FrameHeader,
        payload: &[u8],
        number: u64,
        sizes: Sizes,
    ) -> Result<(), NotNext> {
        const NO_BATCH: NotNext =
            NotNext("its checksums hold, and it says nothing that this program knows");
        if header.kind != Some(Kind::Batch) || header.durable > at {
            return Err(NO_BATCH);
        }
        let batch = Batch::decode(payload).ok_or(NO_BATCH)?;
        let place = Place {
            file: number,
            at,
            size: header.size,
            first: 0,
            last: 0,
        };
        self.durable = self.durable.max(header.durable);
        self.replay.take(batch, place, sizes)
    }

    /// Turn it into a ledger that can only be read.
    pub(super) fn into_view(self) -> View<F> {
        let Replay {
            state,
            members,
            held,
            ..
        } = self.replay;
        View {
            files: self.files,
            state,
            members,
            held,
        }
    }
}

impl Found<Arc<dyn File>> {
    /// Make durable everything that was read, and remove foreign files.
    ///
    /// After a sync that failed, the page cache may hold bytes that can be read and that count as
    /// written, and that the disk does not have: so what nothing attests is written once more.
    fn put_in_order(
        &self,
        fs: &dyn Fs,
        data_dir: &Path,
        dir: &Path,
        leftovers: &[u64],
    ) -> io::Result<()> {
        if let Some(newest) = self.files.back() {
            let mut at = self.durable;
            while at < newest.end {
                let mut bytes = vec![0; CHUNK.min(newest.end - at) as usize];
                read_exact_at(&*newest.file, &mut bytes, at)?;
                write_all_at(&*newest.file, &bytes, at)?;
                at += bytes.len() as u64;
            }
            newest.file.sync()?;
        }
        fs.sync_dir(data_dir)?;
        // The newest file must have its name for ever before those that it replaces go.
        fs.sync_dir(dir)?;
        remove_if_there(fs, &dir.join(SPARE_NAME))?;
        leftovers
            .iter()
            .try_for_each(|number| remove_if_there(fs, &dir.join(file_name(*number))))
    }

    fn into_ledger(
        self,
        fs: &Arc<dyn Fs>,
        dir: PathBuf,
        identity: Identity,
        sizes: Sizes,
    ) -> Ledger {
        let Replay {
            state,
            members,
            held,
            ..
        } = self.replay;
        let (index, term) = held.base();
        let last = held.last();
        let durable = self.files.back().map_or(0, |file| file.end);
        let mut ledger = Ledger {
            fs: fs.clone(),
            dir,
            sizes,
            identity,
            files: self.files,
            opening_end: self.opening_end,
            durable,
            is_torn: self.is_torn,
            spare: None,
            spare_from: 0,
            lacks_spare: false,
            has_lacked_spare: false,
            base: Base::default(),
            members,
            written_last: (last, held.term(last).unwrap_or(term)),
            held,
            state,
            written_state: state,
            pending: None,
            pending_members: Vec::new(),
            buffer: Vec::new(),
            failure: None,
        };
        let members = ledger.members_at(index).clone();
        ledger.base = Base {
            index,
            term,
            members,
        };
        ledger
    }
}
