//! How a writer begins: may this log be archived here, is the end of the chain one of this log, and where
//! does the chain go on?

use crc32fast::Hasher;

use super::*;
use crate::chain::{LOOK_BACK_MAX, logs};
use crate::claims::{Claims, Origin, put_claim};
use crate::format::{LOGS, log_name, number_in};
use crate::lead::Right;
use crate::links::{Listing, Piece, links_from};
use crate::reader::read_sound;
use crate::store::Answer;
use bsd::storage::Life;
use bsd::storage::format::segment_header;

/// The end of a chain.
struct Tip {
    number: u64,
    epoch: u32,
    crc: u32,
    /// The last link, with its number and its checksum; `None`: the chain is empty.
    last: Option<(u64, Head, u32)>,
}

/// Relation of a log to the end of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// The chain goes on at this position of the log.
    Here(Position),
    /// The log was restored from there.
    Copy(Origin),
    /// Nothing that is known.
    Elsewhere,
}

impl Writer {
    /// An archive of another log is not taken for an empty place: a server that was started on an empty
    /// directory would put its log there, and anyone who restores would have to choose.
    fn refuse_second_log(&self, log: LogId) -> Result<(), Failure> {
        let found = logs(&*self.store)?;
        if self.may_add_log || found.is_empty() || found.contains(&log) {
            return Ok(());
        }
        let (url, own) = (self.store.place(), log_name(log));
        let others: Vec<_> = found.iter().map(|log| log_name(*log)).collect();
        Err(Failure::Refused(format!(
            "{url} is the archive of another log ({}), and this server has the log {own}; was it \
             started on a wrong or empty directory? To go on with the other one, restore it \
             (--restore-if-empty); to archive this one, give another address, or --archive-new-log",
            others.join(" ")
        )))
    }

    /// Make this place an archive, with this log in it.
    fn mark(&mut self, log: LogId, wall_ns: u64) -> Result<(), Failure> {
        self.store
            .put_if_absent(&format!("{LOGS}{}", log_name(log)), &[])?;
        let found = match self.find_marker()? {
            Some(found) => found,
            None => {
                self.store.put_if_absent(MARKER, &marker(log, wall_ns))?;
                // The name may have been taken meanwhile.
                let found = self.find_marker()?;
                found.ok_or_else(|| Trouble::passing(format!("{MARKER} is not what was put")))?
            }
        };
        self.place = Some((self.store.place().to_owned(), found));
        Ok(())
    }

    pub(super) fn start(&mut self, wall_ns: u64) -> Result<(), Failure> {
        let Some(log) = self.trail.log() else {
            return Err(Trouble::passing("the log is not open yet").into());
        };
        let own = Claims::read(&*self.fs, &self.dir, log, self.which);
        let mut own = own.map_err(in_the_way)?;
        if self.place.is_none() {
            self.place = own.place_of(self.store.place());
        }
        self.find_marker()?;
        if !self.is_probed {
            self.refuse_second_log(log)?;
            self.probe(log, wall_ns)?;
            self.mark(log, wall_ns)?;
            self.is_probed = true;
        }
        own.place.clone_from(&self.place);
        let tip = self.find_tip(log)?;
        let is_own = self.may_claim(log, &own, tip.epoch)?;
        let stand = match tip.last {
            Some(last) => self.stand(log, (&own, is_own), last)?,
            None => Stand::Elsewhere,
        };
        let (last_base, since_base, links_since_base) = self.measure(log)?;
        let base_size = last_base.as_ref().map(BaseList::size);
        let claim = |goes_on| Kind::Claim { goes_on };
        let (kind, from, at, segment_crc) = match stand {
            _ if base_size.is_none() => (claim(false), Position::ZERO, None, 0),
            Stand::Here(at) => (claim(true), at, Some(at), 0),
            Stand::Copy(Origin { at, life, .. }) => {
                let begin = Position::new(life.segment, 0);
                (Kind::Takeover, at, Some(begin), life.crc)
            }
            Stand::Elsewhere => (claim(false), Position::ZERO, None, 0),
        };
        let head = Head {
            kind,
            epoch: tip.epoch.saturating_add(1),
            number: tip.number + 1,
            log,
            from,
            to: at.unwrap_or(Position::ZERO),
            seen_wall_ns: wall_ns,
            wall_ns,
            previous: tip.crc,
            segment_crc,
        };
        let who = match self.lead {
            Some(lead) => lead.sign(&self.node),
            None => self.node.clone(),
        };
        let (bytes, crc) = head.encode(who.as_bytes());
        let claim = Claim {
            number: head.number,
            epoch: head.epoch,
            crc,
        };
        own.note(&*self.fs, &self.dir, claim).map_err(in_the_way)?;
        let name = numbered(&chain_dir(log), head.number);
        if !put_claim(&*self.store, log, head.number, &bytes)? {
            // Another writer was faster, or a put of an earlier one came late: look again.
            return Err(Trouble::passing(format!(
                "{name} was put by another writer at the same time"
            ))
            .into());
        }
        self.figures.links += 1;
        if let Some(at) = at {
            self.trail.release(at.segment());
        }
        self.chain = Some(Chain {
            log,
            epoch: head.epoch,
            next: head.number + 1,
            previous: crc,
            at,
            pending: None,
            making: None,
            made: None,
            since_base,
            links_since_base,
            base_size: at.and(base_size),
            last_base,
        });
        Ok(())
    }

    /// An error, unless the next claim may be that of this writer. True: the chain was claimed before by
    /// the server of this directory, or by its cluster.
    fn may_claim(&self, log: LogId, own: &Claims, newest: u32) -> Result<bool, Failure> {
        let right = self.lead.map(|lead| lead.right(&*self.store, log));
        match right.transpose()? {
            Some(Right::Claims) => return Ok(true),
            Some(Right::Waits(by)) => {
                return Err(Trouble::passing(format!(
                    "it is written by {by}; this member has led before that one, or leads no more"
                ))
                .into());
            }
            Some(Right::Replaced { who, epoch }) => {
                return Err(Failure::Fenced(format!(
                    "the archive has another writer: {}, in epoch {epoch}; it has taken over from this \
                     cluster, whose members stop as they come to lead; decide which has the right \
                     jobs (`bsd-wal archive ls`); to go on with this cluster, stop the other, and \
                     archive to another address",
                    who.escape_debug()
                )));
            }
            Some(Right::AsAlone) | None => {}
        }
        match own.epoch(&*self.store)? {
            Some((epoch, marker)) if epoch < newest => {
                Err(self.replaced(log, (epoch, marker), newest))
            }
            epoch => Ok(epoch.is_some()),
        }
    }

    /// This directory was the one that was archived, until another server took over.
    fn replaced(&self, log: LogId, (epoch, marker): (u32, &str), newest: u32) -> Failure {
        let (dir, log) = (self.dir.display(), log_name(log));
        let marker = self.dir.join(marker);
        Failure::Fenced(format!(
            "the archive has another writer: {dir} was archived in epoch {epoch} of the log {log}, and \
             epoch {newest} is that of a server that has taken over; this one stops; decide which \
             of them has the right jobs (`bsd-wal archive ls`); to go on with this one, stop the \
             other and remove {}",
            marker.display()
        ))
    }

    /// Find out whether the store refuses to overwrite.
    fn probe(&self, log: LogId, wall_ns: u64) -> Result<(), Failure> {
        let name = format!("{}/probe-{wall_ns:020}", log_name(log));
        let node = self.node.as_bytes();
        self.store.put_if_absent(&name, node)?;
        let again = self.store.put_if_absent(&name, b"another")?;
        let found = self.store.get(&name)?;
        self.store.remove(std::slice::from_ref(&name))?;
        match (again, found) {
            (Put::Exists, Some(found)) if found == node => Ok(()),
            // The first put may have been one of a namesake.
            (Put::Exists, _) => Err(Trouble::passing(format!("{name} is not what was put")).into()),
            (Put::Done, _) => Err(Failure::Refused(
                "the store overwrites an object although it was told not to (If-None-Match: *): two \
                 servers could spoil the archive; use a store with conditional writes"
                    .to_owned(),
            )),
        }
    }

    /// The end of the chain.
    fn find_tip(&self, log: LogId) -> Result<Tip, Failure> {
        let bases = self.store.list(&bases_dir(log), "")?;
        let last_base = bases
            .iter()
            .rev()
            .find_map(|mark| number_in(&bases_dir(log), &mark.name));
        let last = |after| -> Result<Option<u64>, Failure> {
            let listing = Listing::get(&*self.store, log, after)?;
            Ok(listing.pieces(after + 1).last())
        };
        let mut found = last(last_base.map_or(0, |number| number - 1))?;
        if found.is_none() && last_base.is_some() {
            // A mark whose link was never put: the chain may be anywhere before it.
            found = last(0)?;
        }
        let Some(last) = found else {
            return Ok(Tip {
                number: 0,
                epoch: 0,
                crc: 0,
                last: None,
            });
        };
        let (head, crc) = self.link(log, last)?;
        Ok(Tip {
            number: last,
            epoch: head.epoch,
            crc,
            last: Some((last, head, crc)),
        })
    }

    /// Relation of this log to the chain whose last link is `last`: its number, its head, and the
    /// checksum of that.
    ///
    /// A restore lays out again what follows a base. So a log that was restored goes on with no chain but
    /// that of which it was restored, although others have its beginning: their ends would seem to be
    /// later than they are.
    fn stand(
        &self,
        log: LogId,
        (own, is_own): (&Claims, bool),
        last: (u64, Head, u32),
    ) -> Result<Stand, Failure> {
        let begin = begin(&*self.store, log)?;
        let (mut number, mut head, mut crc) = last;
        // What is later has no base, and is of no other history.
        let (mut has_base, mut is_over) = (false, false);
        while number + LOOK_BACK_MAX > last.0 {
            let origin = own.origin_at(number, crc);
            if let Some(origin) = origin.filter(|_| !has_base)
                && self.holds(origin.life)?
            {
                return Ok(Stand::Copy(origin));
            }
            match head.kind {
                // Of a standby that has just taken over, or of this directory.
                Kind::Takeover
                    if !is_over
                        && (is_own || head.to.segment() == self.trail.durable().segment())
                        && self.holds(life_of(&head))? =>
                {
                    return Ok(Stand::Here(head.to));
                }
                Kind::Frames => {
                    // The same segment, begun by the same server: then it is the same history.
                    let is_here =
                        is_own && !is_over && self.sum_up_to(head.to)? == Some(head.segment_crc);
                    return Ok(match is_here {
                        true => Stand::Here(head.to),
                        false => Stand::Elsewhere,
                    });
                }
                Kind::Gap | Kind::Claim { goes_on: false } | Kind::Takeover => is_over = true,
                Kind::Claim { goes_on: true } => {}
                Kind::Base => has_base = true,
            }
            number -= 1;
            if number < begin || is_over && (has_base || !own.has_origin()) {
                break;
            }
            (head, crc) = self.link(log, number)?;
        }
        Ok(Stand::Elsewhere)
    }

    /// True if the bytes of this segment can be archived, from the first one on.
    fn holds(&self, Life { segment, crc }: Life) -> Result<bool, Trouble> {
        let header = Position::new(segment, segment_header::SIZE as u32);
        let is_held = self.trail.after(Position::new(segment, 0)).is_some();
        Ok(is_held && self.sum_up_to(header)? == Some(crc))
    }

    fn link(&self, log: LogId, number: u64) -> Result<(Head, u32), Failure> {
        let name = numbered(&chain_dir(log), number);
        let decode = |bytes: &[u8]| {
            let (head, crc, _) = Head::decode(bytes)?;
            match head.number == number && head.log == log {
                true => Ok((head, crc)),
                false => Err("it is another link under this name".to_owned()),
            }
        };
        let get = || -> Answer {
            if let Some(bytes) = self.store.get(&name)? {
                return Ok(Some(bytes));
            }
            let joined = links_from(&*self.store, log, number)?;
            Ok(joined.and_then(|links| links.into_iter().next()))
        };
        let whole = (self.store.place(), &*name, "the chain goes on after it");
        let found = read_sound(whole, get, decode)?;
        found.ok_or_else(|| Trouble::passing(format!("{name} is missing")).into())
    }

    /// The CRC-32 of a segment of this log, from its first byte to `to`. `None`: it is not held, or
    /// shorter.
    pub(super) fn sum_up_to(&self, to: Position) -> Result<Option<u32>, Trouble> {
        let (mut sum, mut at) = (Hasher::new(), Position::new(to.segment(), 0));
        while at < to {
            let size = (to.offset() - at.offset()).min(SUMMED_AT_ONCE);
            let next = Position::new(to.segment(), at.offset() + size);
            let bytes = self.trail.read(at, next).map_err(|error| {
                let dir = self.dir.display();
                Trouble::passing(format!("cannot read the log in {dir}: {error}"))
            })?;
            let Some(bytes) = bytes else { return Ok(None) };
            sum.update(&bytes);
            at = next;
        }
        Ok(Some(sum.finalize()))
    }

    /// The last base, and the size and the number of the links since.
    fn measure(&mut self, log: LogId) -> Result<(Option<BaseList>, u64, u64), Failure> {
        let (dir, bases) = (chain_dir(log), bases_dir(log));
        let marks = self.store.list(&bases, "")?;
        for number in marks
            .iter()
            .rev()
            .filter_map(|mark| number_in(&bases, &mark.name))
        {
            let Some(bytes) = self.store.get(&numbered(&dir, number))? else {
                continue;
            };
            let Ok((head, _, body)) = Head::decode(&bytes) else {
                continue;
            };
            let Ok(list) = BaseList::decode(body) else {
                continue;
            };
            self.figures.base_wall_ns = head.wall_ns;
            let links = Listing::get(&*self.store, log, number)?
                .pieces(number + 1)
                .0;
            let bytes = links.iter().map(Piece::content).sum();
            let count = links.iter().map(Piece::links).sum();
            return Ok((Some(list), bytes, count));
        }
        Ok((None, 0, 0))
    }
}

/// The segment with which the history goes on after a takeover.
fn life_of(head: &Head) -> Life {
    Life {
        segment: head.to.segment(),
        crc: head.segment_crc,
    }
}
