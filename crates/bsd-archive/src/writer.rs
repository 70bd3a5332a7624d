//! The writer of a chain: its next put, and the meaning of a failed one.
//!
//! A state machine without a thread and without a clock: each [`Writer::step`] makes at most a few
//! calls of the store, and can be repeated after an error. The link that is being put is kept until
//! the store has it, byte for byte: a put whose answer was lost is made again, finds its name taken,
//! and reads back what is there. If that is what was put, all is well; if it is anything else,
//! another writer has taken over, and this one stops for good.
//!
//! ```text
//! start   probe -> find the end of the chain -> is it an end of this log, or of the one from which
//!         this one was restored? -> claim
//! then    link to put? -> put it
//!         bytes?       -> the next link; or, if they are no longer held, a gap
//!         base?        -> its next part; its list, when its end is durable
//!                         asked for: its pin before its link, its name after it
//! ```

mod begin;

use std::path::PathBuf;
use std::sync::Arc;

use crc32fast::Hasher;

use super::base::Making;
use super::chain::begin;
use super::claims::{Claim, Which};
use super::format::{
    BaseList, FRAMES_SIZE_MAX, HEAD_SIZE, Head, Kind, MARKER, Named, bases_dir, chain_dir, marker,
    numbered, pins_dir,
};
use super::labels::refusal;
use super::lead::Lead;
use super::order::{Made, NotMade, Order};
use super::reader::read_until;
use super::store::{Put, Store, Trouble};
use bsd::storage::convert::parts::LogParts;
use bsd::storage::disk::Fs;
use bsd::storage::format::LogId;
use bsd::storage::{OpenError, Trail};
use bsd::types::Position;

/// Bytes of a segment that are read at once to sum it up.
const SUMMED_AT_ONCE: u32 = 1 << 20;

/// When a new base is made, and how large objects are. The default is what servers use.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// A new base is made when the links since the last one have this multiple of its size: with 4,
    /// bases take a quarter of what links take …
    pub base_ratio: u64,
    /// … but not before they have this size, bytes …
    pub base_min: u64,
    /// … unless there are this many links: a restore reads each.
    pub links_max: u64,
    /// Bytes of a link with frames, at most.
    pub frames_max: u32,
    /// Bytes of a part of a base, at most.
    pub part_max: u32,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            base_ratio: 4,
            base_min: 16 << 20,
            links_max: 20_000,
            frames_max: FRAMES_SIZE_MAX,
            part_max: super::format::PART_SIZE_MAX,
        }
    }
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Something; there may be more.
    Some,
    /// A link was made of what is new; the next step puts it.
    Link,
    /// There is nothing to do now.
    Nothing,
    /// A gap begins: what follows this position is not in the chain, up to the next base.
    Gap(Position),
    /// The last link that was put, with this number, is not in the store any more: a gap begins.
    Hole(u64),
}

/// Why a step was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Another try may get over it.
    Trouble(Trouble),
    /// Another writer has the chain. This one must not go on, and nor must its server.
    Fenced(String),
    /// The store cannot hold an archive.
    Refused(String),
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        match trouble.is_final {
            true => Failure::Refused(trouble.what),
            false => Failure::Trouble(trouble),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Trouble(trouble) => trouble.fmt(f),
            Failure::Fenced(what) | Failure::Refused(what) => f.write_str(what),
        }
    }
}

/// Puts the log that a [`Trail`] tells of into a store.
#[derive(Debug)]
pub struct Writer {
    store: Arc<dyn Store>,
    trail: Arc<Trail>,
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Who it is, for people.
    node: String,
    sizes: Sizes,
    /// A second log may be begun in the archive.
    may_add_log: bool,
    /// It is a member of a cluster, and leads; `None`: it is a server that is alone.
    lead: Option<Lead>,
    which: Which,
    is_probed: bool,
    /// The store was seen to have the last link, a moment ago.
    is_proved: bool,
    /// The address of the store, and the checksum of its marker.
    place: Option<(String, u32)>,
    chain: Option<Chain>,
    /// Wall time at which bytes were seen that are not archived.
    seen_wall_ns: Option<u64>,
    /// Up to where the last link with bytes goes, and the CRC-32 of its segment up to there.
    sum: Option<(Position, u32)>,
    figures: Figures,
    asked: Option<Asked>,
    /// What came of the base that was asked for.
    answer: Option<Result<Made, NotMade>>,
}

/// A base that was asked for.
#[derive(Debug)]
struct Asked {
    order: Order,
    /// Its name is free, and there are not too many.
    is_checked: bool,
    /// The base that is being made, or is complete but for its link, was begun after it was asked for.
    is_begun: bool,
    /// Bytes of that base that were in the store.
    reused: u64,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Links put.
    pub links: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Gaps begun.
    pub gaps: u64,
    /// Bases completed.
    pub bases: u64,
    /// Wall time of the last base, of this or an earlier writer, ns since 1970; 0: none is known.
    pub base_wall_ns: u64,
}

/// The chain of this writer.
#[derive(Debug)]
struct Chain {
    log: LogId,
    epoch: u32,
    /// The number of the next link.
    next: u64,
    /// The CRC of the head of the last one.
    previous: u32,
    /// Where the chain stands; `None`: nothing can follow but a base.
    at: Option<Position>,
    pending: Option<Pending>,
    making: Option<Making>,
    /// The base is complete, but for its link.
    made: Option<BaseList>,
    since_base: u64,
    links_since_base: u64,
    base_size: Option<u64>,
    /// The newest base of the chain.
    last_base: Option<BaseList>,
}

/// A link that is being put.
#[derive(Debug)]
struct Pending {
    head: Head,
    bytes: Vec<u8>,
    crc: u32,
}

impl Writer {
    /// A writer for the log in `dir`, which `trail` tells of. It does nothing before a step.
    pub fn new(
        store: Arc<dyn Store>,
        trail: Arc<Trail>,
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        node: String,
        sizes: Sizes,
    ) -> Writer {
        Writer {
            store,
            trail,
            fs,
            dir,
            node,
            sizes,
            may_add_log: false,
            lead: None,
            which: Which::First,
            is_probed: false,
            is_proved: false,
            place: None,
            chain: None,
            seen_wall_ns: None,
            sum: None,
            figures: Figures::default(),
            asked: None,
            answer: None,
        }
    }

    /// The archive may have other logs, beside which that of this writer is begun.
    #[must_use]
    pub fn beside_others(self, may_add_log: bool) -> Writer {
        Writer {
            may_add_log,
            ..self
        }
    }

    /// The log is that of a member, which leads: other members have claimed the chain, and will.
    #[must_use]
    pub fn led(self, lead: Lead) -> Writer {
        Writer {
            lead: Some(lead),
            ..self
        }
    }

    /// Which of the archives of the log this is.
    #[must_use]
    pub fn of(self, which: Which) -> Writer {
        Writer { which, ..self }
    }

    /// Totals go on after these.
    pub(super) fn counting_on(self, figures: Figures) -> Writer {
        Writer { figures, ..self }
    }

    /// It is a member's.
    pub(super) fn is_led(&self) -> bool {
        self.lead.is_some()
    }

    /// The next step checks whether the store still has the last link.
    pub fn doubt(&mut self) {
        self.is_proved = false;
    }

    /// Everything before this position can be restored; `None` during a gap, and before the start.
    #[must_use]
    pub fn archived(&self) -> Option<Position> {
        let chain = self.chain.as_ref()?;
        match &chain.pending {
            Some(pending) if pending.head.kind == Kind::Frames => Some(pending.head.from),
            // The base is not there yet.
            Some(pending) if pending.head.kind == Kind::Base && chain.base_size.is_none() => None,
            _ => chain.at,
        }
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Its source of frames.
    pub(super) fn trail(&self) -> &Arc<Trail> {
        &self.trail
    }

    /// The epoch of this writer; `None` before it has claimed the chain.
    #[must_use]
    pub fn epoch(&self) -> Option<u32> {
        self.chain.as_ref().map(|chain| chain.epoch)
    }

    /// Durable bytes that are not archived. During a gap it is what is held.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.trail
            .bytes_after(self.archived().unwrap_or(Position::ZERO))
    }

    /// True during a gap, and before the first base.
    #[must_use]
    pub fn is_in_gap(&self) -> bool {
        self.chain.is_some() && self.archived().is_none()
    }

    /// The end of what this writer has taken from the log, as long as it needs what follows it. `None`
    /// during a gap and before the start.
    pub(super) fn needs(&self) -> Option<Position> {
        self.chain.as_ref()?.at
    }

    /// The bytes after this position are needed and no longer held: a gap is certain.
    pub(super) fn lost(&self) -> Option<Position> {
        self.needs().filter(|at| self.trail.after(*at).is_none())
    }

    /// Bytes of the base that is being made that are in the store, and bytes of all of it; `None`: none
    /// is being made.
    #[must_use]
    pub fn base_progress(&self) -> Option<(u64, u64)> {
        let chain = self.chain.as_ref()?;
        match (&chain.making, &chain.made) {
            (Some(making), _) => Some(making.progress()),
            (None, Some(list)) => Some((list.size(), list.size())),
            (None, None) => None,
        }
    }

    /// Totals since the start.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// Make a base as soon as no other one is under way. [`Writer::answer`] says what came of it. One
    /// that was asked for before and is not complete gives way.
    pub fn ask_for_base(&mut self, order: Order) {
        self.asked = Some(Asked {
            order,
            is_checked: false,
            is_begun: false,
            reused: 0,
        });
    }

    /// True while a base that was asked for is not complete, nor refused.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// True while the base that was asked for is being made.
    #[must_use]
    pub fn is_making_what_was_asked(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.is_begun)
    }

    /// What came of the base that was asked for, once: it is complete in the store, with its pin and its
    /// name, or why not.
    pub fn answer(&mut self) -> Option<Result<Made, NotMade>> {
        self.answer.take()
    }

    /// Do the next piece of work. With `is_due` a link may be made of what is new; a base goes on
    /// in any case.
    ///
    /// # Errors
    /// See [`Failure`]. After trouble the call is to be repeated.
    pub fn step(&mut self, wall_ns: u64, is_due: bool) -> Result<Done, Failure> {
        let done = self.work(wall_ns, is_due);
        // After trouble it may be another store than before.
        self.is_proved &= done.is_ok();
        done
    }

    fn work(&mut self, wall_ns: u64, is_due: bool) -> Result<Done, Failure> {
        if self.chain.is_none() {
            self.start(wall_ns)?;
            return Ok(Done::Some);
        }
        if !self.is_proved {
            self.find_marker()?;
        }
        if self.put_pending()? {
            return Ok(Done::Some);
        }
        if !self.is_proved
            && let Some(hole) = self.find_hole(wall_ns)?
        {
            return Ok(hole);
        }
        if let Some(done) = self.follow(wall_ns, is_due)? {
            return Ok(done);
        }
        self.make_base(wall_ns)
    }

    /// Ask whether another writer has taken over, for a log in which nothing happens.
    ///
    /// # Errors
    /// [`Failure::Fenced`], or trouble.
    pub fn check_owner(&mut self) -> Result<(), Failure> {
        let Some(chain) = self.chain.as_ref().filter(|it| it.pending.is_none()) else {
            return Ok(());
        };
        let name = numbered(&chain_dir(chain.log), chain.next);
        match self.store.get(&name)? {
            None => Ok(()),
            Some(found) => Err(fenced(&name, &found)),
        }
    }

    /// The store is the one that it was: a directory may be a mount point now, whose disk is elsewhere.
    /// Returns the checksum of its marker.
    fn find_marker(&self) -> Result<Option<u32>, Failure> {
        let found = self.store.get(MARKER)?;
        let found = found.map(|marker| crc32fast::hash(&marker));
        match &self.place {
            Some((url, known)) if url == self.store.place() && found != Some(*known) => {
                let what = match found {
                    Some(_) => "is that of another archive",
                    None => "is not there",
                };
                Err(Trouble::passing(format!(
                    "{url} is not the archive that this log was put into: its object {MARKER} {what}; \
                     is its disk mounted? Nothing is written there"
                ))
                .into())
            }
            _ => Ok(found),
        }
    }

    /// The last link is where it was put. Otherwise what follows has nothing to follow, and only a base
    /// can be restored.
    fn find_hole(&mut self, wall_ns: u64) -> Result<Option<Done>, Failure> {
        let Some(chain) = &self.chain else {
            return Ok(None);
        };
        let last = chain.next - 1;
        let name = numbered(&chain_dir(chain.log), last);
        let get = || self.store.get_range(&name, 0..HEAD_SIZE as u64);
        let is_last = |head: &Option<Vec<u8>>| {
            let head = head.as_ref().and_then(|it| Head::decode_alone(it).ok());
            head.is_some_and(|(_, crc, _)| crc == chain.previous)
        };
        let is_there = is_last(&read_until(get, is_last)?);
        let at = chain.at;
        self.is_proved = true;
        Ok(at.filter(|_| !is_there).map(|at| {
            self.begin_gap(at, wall_ns);
            Done::Hole(last)
        }))
    }

    /// Put the link that is waiting. `false`: no link is waiting.
    fn put_pending(&mut self) -> Result<bool, Failure> {
        let Some(chain) = &mut self.chain else {
            return Ok(false);
        };
        let Some(Pending { head, bytes, crc }) = &chain.pending else {
            return Ok(false);
        };
        let number = head.number;
        let asked = self.asked.as_ref().filter(|asked| asked.is_begun);
        let asked = asked.filter(|_| head.kind == Kind::Base);
        if head.kind == Kind::Base {
            // First, so that no base of the chain is without.
            let mark = numbered(&bases_dir(chain.log), number);
            self.store.put_if_absent(&mark, &[])?;
        }
        if asked.is_some_and(|asked| asked.order.is_pinned) {
            // First, so that an expiry that sees the base sees the pin.
            let pin = numbered(&pins_dir(chain.log), number);
            self.store.put_if_absent(&pin, &[])?;
        }
        let name = numbered(&chain_dir(chain.log), number);
        if self.store.put_if_absent(&name, bytes)? == Put::Exists {
            let get = || self.store.get(&name);
            match read_until(get, |found| found.as_ref() == Some(bytes))? {
                Some(found) if found == *bytes => {}
                Some(found) => return Err(fenced(&name, &found)),
                None => return Err(Trouble::passing(format!("{name} is and is not there")).into()),
            }
        }
        let mut answer = None;
        if let Some(asked) = asked {
            let named = Named {
                base: number,
                end: head.to,
            };
            let refused = put_name(&*self.store, chain.log, &asked.order, named)?;
            let named = refused.map_or(Ok(()), |why| Err(NotMade(why)));
            answer = Some(named.map(|()| Made {
                base: number,
                end: head.to,
                wall_ns: head.wall_ns,
                size: chain.made.as_ref().map_or(0, BaseList::size),
                reused: asked.reused,
            }));
        }
        if answer.is_some() {
            (self.asked, self.answer) = (None, answer);
        }
        self.figures.links += 1;
        self.figures.bytes += bytes.len() as u64;
        chain.previous = *crc;
        chain.next = number + 1;
        match head.kind {
            Kind::Base => {
                self.figures.bases += 1;
                self.figures.base_wall_ns = head.wall_ns;
                chain.at = Some(head.from);
                chain.last_base = chain.made.take();
                chain.base_size = chain.last_base.as_ref().map(BaseList::size);
                chain.since_base = 0;
                chain.links_since_base = 0;
            }
            _ => {
                chain.since_base += (bytes.len() - HEAD_SIZE) as u64;
                chain.links_since_base += 1;
            }
        }
        if let Some(at) = chain.at {
            self.trail.release(at.segment());
        }
        chain.pending = None;
        Ok(true)
    }

    /// Make a link of what follows the chain's end. `None`: nothing does, or the chain has no end.
    fn follow(&mut self, wall_ns: u64, is_due: bool) -> Result<Option<Done>, Failure> {
        let Some(at) = self.chain.as_ref().and_then(|chain| chain.at) else {
            return Ok(None);
        };
        let Some(stretch) = self.trail.after(at) else {
            return Ok(Some(self.begin_gap(at, wall_ns)));
        };
        if stretch.from == stretch.to {
            return Ok(None);
        }
        let seen_wall_ns = *self.seen_wall_ns.get_or_insert(wall_ns);
        let size_max = self.sizes.frames_max.min(FRAMES_SIZE_MAX);
        let is_full = stretch.to.offset() - stretch.from.offset() >= size_max;
        // To wait is of use only if the link would hold more then. A base waits for what is before its
        // end: a server that goes on there must find it in the chain.
        let is_sealed = self.trail.durable().segment() > stretch.from.segment();
        let made = self.chain.as_ref().and_then(|chain| chain.made.as_ref());
        let is_awaited = made.is_some_and(|list| list.end > at);
        if !(is_due || is_full || is_sealed || is_awaited) {
            return Ok(None);
        }
        let body = stretch.read(size_max);
        let body = body.map_err(|error| {
            let dir = self.dir.display();
            Trouble::passing(format!("cannot read {} of {dir}: {error}", stretch.from))
        })?;
        let from = stretch.from;
        let to = Position::new(from.segment(), from.offset() + body.len() as u32);
        let before = match self.sum {
            Some((up_to, crc)) if up_to == from => Some(crc),
            _ => self.sum_up_to(from)?,
        };
        let Some(before) = before else {
            return Err(Trouble::passing(format!("{from} is no longer held")).into());
        };
        let mut sum = Hasher::new_with_initial(before);
        sum.update(&body);
        let crc = sum.finalize();
        let times = (seen_wall_ns, wall_ns);
        self.prepare(Kind::Frames, (from, to), times, (&body, crc));
        self.sum = Some((to, crc));
        if let Some(chain) = &mut self.chain {
            chain.at = Some(to);
        }
        self.seen_wall_ns = None;
        Ok(Some(Done::Link))
    }

    /// The bytes after the chain's end are no longer held.
    fn begin_gap(&mut self, at: Position, wall_ns: u64) -> Done {
        self.prepare(Kind::Gap, (at, at), (wall_ns, wall_ns), (&[], 0));
        if let Some(chain) = &mut self.chain {
            chain.at = None;
            chain.making = None;
            chain.made = None;
            chain.base_size = None;
        }
        if let Some(asked) = &mut self.asked {
            asked.is_begun = false;
        }
        self.seen_wall_ns = None;
        self.figures.gaps += 1;
        Done::Gap(at)
    }

    /// Have a link put by the next step.
    fn prepare(
        &mut self,
        kind: Kind,
        (from, to): (Position, Position),
        (seen_wall_ns, wall_ns): (u64, u64),
        (body, segment_crc): (&[u8], u32),
    ) {
        if let Some(chain) = &mut self.chain {
            let head = Head {
                kind,
                epoch: chain.epoch,
                number: chain.next,
                log: chain.log,
                from,
                to,
                seen_wall_ns,
                wall_ns,
                previous: chain.previous,
                segment_crc,
            };
            let (bytes, crc) = head.encode(body);
            chain.pending = Some(Pending { head, bytes, crc });
        }
    }

    /// Go on with a base, or begin one, if one is needed.
    fn make_base(&mut self, wall_ns: u64) -> Result<Done, Failure> {
        if self.refuse_order()? {
            return Ok(Done::Some);
        }
        let sizes = self.sizes;
        let Some(chain) = &mut self.chain else {
            return Ok(Done::Nothing);
        };
        if let Some(list) = &chain.made {
            let is_in_chain = chain.at.is_none_or(|at| at >= list.end);
            if self.trail.durable() < list.end || !is_in_chain {
                return Ok(Done::Nothing);
            }
            let (from, to, body) = (chain.at.unwrap_or(list.end), list.end, list.encode());
            self.prepare(Kind::Base, (from, to), (wall_ns, wall_ns), (&body, 0));
            return Ok(Done::Some);
        }
        if let Some(making) = &mut chain.making {
            if let Some(list) = making.step(&*self.store, sizes.part_max)? {
                chain.made = Some(list.clone());
                if let Some(asked) = &mut self.asked {
                    asked.reused = making.reused();
                }
                chain.making = None;
            }
            return Ok(Done::Some);
        }
        let is_long = chain.base_size.is_none_or(|size| {
            chain.since_base > size.saturating_mul(sizes.base_ratio).max(sizes.base_min)
                || chain.links_since_base > sizes.links_max
        });
        if chain.at.is_some() && !is_long && self.asked.is_none() {
            return Ok(Done::Nothing);
        }
        let files = LogParts::take(&*self.fs, &self.dir);
        let files = files.map_err(|error| Trouble::passing(error.to_string()))?;
        // If the log was let go meanwhile, what is in the directory may have been changing.
        if self.trail.is_over() {
            return Err(Trouble::passing("the log is not open any more").into());
        }
        let Some(files) = files else {
            let dir = self.dir.display();
            let what = format!("no base can be made: run `bsd-wal verify {dir} --live`");
            return Err(Trouble::passing(what).into());
        };
        let making = Making::begin(chain.log, files, chain.next, chain.last_base.as_ref());
        if chain.at.is_none() {
            self.trail.release(making.end().segment());
        }
        chain.making = Some(making);
        if let Some(asked) = &mut self.asked {
            asked.is_begun = true;
        }
        Ok(Done::Some)
    }

    /// A base that was asked for and cannot have its name or its pin is not made. `false`: it can be made,
    /// or no base was asked for.
    fn refuse_order(&mut self) -> Result<bool, Failure> {
        let (Some(chain), Some(asked)) = (&self.chain, &mut self.asked) else {
            return Ok(false);
        };
        if asked.is_checked {
            return Ok(false);
        }
        let Order { name, is_pinned } = &asked.order;
        let refused = refusal(&*self.store, chain.log, name.as_ref(), *is_pinned)?;
        asked.is_checked = refused.is_none();
        if let Some(why) = refused {
            (self.asked, self.answer) = (None, Some(Err(NotMade(why))));
            return Ok(true);
        }
        Ok(false)
    }
}

/// Give a base that is in the chain its name. Returns why it has not got it, if another has it.
fn put_name(
    store: &dyn Store,
    log: LogId,
    order: &Order,
    named: Named,
) -> Result<Option<String>, Trouble> {
    let Some(name) = &order.name else {
        return Ok(None);
    };
    let (object, bytes) = (name.object(log), named.encode());
    if store.put_if_absent(&object, &bytes)? == Put::Done {
        return Ok(None);
    }
    match store.get(&object)? {
        Some(found) if found == bytes => Ok(None),
        Some(_) => Ok(Some(format!(
            "another base was given the name {name} meanwhile: base {} is there without a name{}",
            named.base,
            if order.is_pinned { ", and pinned" } else { "" }
        ))),
        None => Err(Trouble::passing(format!("{object} is and is not there"))),
    }
}

fn in_the_way(error: OpenError) -> Failure {
    Trouble::passing(error.to_string()).into()
}

fn fenced(name: &str, found: &[u8]) -> Failure {
    let by = match Head::decode(found) {
        Ok((head, _, body)) => {
            let who = match head.kind {
                Kind::Claim { .. } | Kind::Takeover => {
                    String::from_utf8_lossy(body).escape_debug().to_string()
                }
                _ => "another writer".to_owned(),
            };
            format!("{who}, in epoch {}", head.epoch)
        }
        Err(fault) => format!("something else: {fault}"),
    };
    Failure::Fenced(format!(
        "the archive has another writer: {name} was put by {by}; two servers go on with one log, and \
         this one stops; decide which of them has the right jobs (`bsd-wal archive ls`)"
    ))
}
