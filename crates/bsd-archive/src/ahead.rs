//! Reading objects ahead: several at a time, and given in the order in which they were asked for.
//!
//! ```text
//! push    1 2 3 4 5 6 7        while there is room: a number of objects, and bytes of them
//! read      2   4 5            as the store answers; 1, 3, 6 are under way, 7 waits for one of them
//! next    1                    waits until 1 is sound, or wrong each time
//! ```
//!
//! What is read counts against the bytes until it is given, so a slow first object bounds what is
//! read behind it. A sealed object is kept as it came, and opened when it is given, so that what is in
//! small objects needs no room before. After an answer that cannot be used nothing more is asked for until all others
//! have come; then there is a pause, as `reader` says. An object for which the whole room is too small
//! is read alone.

use std::collections::VecDeque;

use super::flight::InTurn;
use super::format::{Fault, HEAD_SIZE, Head};
use super::links::Pieces;
use super::reader::{READINGS, Reader, Spell};
use super::seal::is_sealed;
use super::sealed::check_sealed;
use super::store::{Answer, Flight, Trouble, Want};
use bsd::storage::format::LogId;

/// Bytes of objects that are under way, or read and not yet given.
pub(super) const BYTES_AHEAD: u64 = 64 << 20;
/// Objects of that kind, for each connection: others are read while the first is slow.
const OBJECTS_AHEAD: usize = 2;

/// Objects that are read, each with its key.
#[derive(Debug)]
pub(super) struct ReadAhead<'a, K, T> {
    reader: Reader<'a>,
    flight: Box<dyn Flight + 'a>,
    connections: usize,
    slots: VecDeque<Slot<K, T>>,
    /// The tag of the first slot; the others have the next ones.
    first: u64,
    under_way: usize,
    /// Of all slots.
    bytes: u64,
    /// Failures since the last sound object.
    spell: Option<Spell>,
    /// Why there will be a pause: calls failed, or answers were wrong.
    trouble: Option<Trouble>,
    doubt: Option<String>,
}

/// An object with its key: what was made of it, or its fault.
pub(super) type Given<K, T> = (K, Result<T, Fault>);

#[derive(Debug)]
struct Slot<K, T> {
    key: K,
    want: Want,
    size: u64,
    /// How often it was wrong.
    readings: u32,
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    Open,
    UnderWay,
    /// It is sealed, and its checksums hold.
    Sealed(Vec<u8>),
    Read(Result<T, Fault>),
}

impl<K, T> Slot<K, T> {
    /// What was made of an answer. Returns why it is read again, if it is.
    fn settle(&mut self, checked: Result<State<T>, Fault>) -> Option<String> {
        let fault = match checked {
            Ok(state) => {
                self.state = state;
                return None;
            }
            Err(fault) => fault,
        };
        self.readings += 1;
        if self.readings < READINGS {
            self.state = State::Open;
            return Some(format!("{}: {fault}", self.want.name));
        }
        self.state = State::Read(Err(fault));
        None
    }
}

impl<'a, K, T> ReadAhead<'a, K, T> {
    /// Nothing yet.
    pub(super) fn new(reader: Reader<'a>) -> ReadAhead<'a, K, T> {
        let connections = reader.connections();
        let flight: Box<dyn Flight + 'a> = match connections {
            1 => Box::new(InTurn::new(reader.store())),
            many => reader.store().flight(many),
        };
        ReadAhead {
            reader,
            flight,
            connections,
            slots: VecDeque::new(),
            first: 0,
            under_way: 0,
            bytes: 0,
            spell: None,
            trouble: None,
            doubt: None,
        }
    }

    /// True if an object of `size` bytes can be read besides. There is always room for one.
    pub(super) fn has_room(&self, size: u64) -> bool {
        self.slots.is_empty()
            || self.slots.len() < OBJECTS_AHEAD * self.connections
                && self.bytes.saturating_add(size) <= BYTES_AHEAD
    }

    /// Read this after the others; it has to be there. Check first that there is room.
    pub(super) fn push(&mut self, key: K, want: Want, size: u64) {
        self.put(key, want, size, State::Open);
    }

    /// Give this fault when its turn comes: it is not read.
    pub(super) fn push_fault(&mut self, key: K, fault: Fault) {
        let nothing = Want::whole("");
        self.put(key, nothing, 0, State::Read(Err(fault)));
    }

    fn put(&mut self, key: K, want: Want, size: u64, state: State<T>) {
        self.bytes = self.bytes.saturating_add(size);
        self.slots.push_back(Slot {
            key,
            want,
            size,
            readings: 0,
            state,
        });
    }

    /// The key of the next object.
    pub(super) fn next_key(&self) -> Option<&K> {
        self.slots.front().map(|slot| &slot.key)
    }

    /// The next object, as `check` makes of it. An inner error: it is wrong, however often it is read.
    ///
    /// # Errors
    /// The store failed for minutes, or in a way that does not pass.
    pub(super) fn next(
        &mut self,
        check: impl Fn(&K, Vec<u8>) -> Result<T, Fault>,
    ) -> Result<Option<Given<K, T>>, Trouble> {
        loop {
            self.ask();
            while let Some((tag, answer)) = self.flight.answer(false) {
                self.take(tag, answer, &check);
                self.ask();
            }
            match self.slots.pop_front() {
                None => return Ok(None),
                Some(Slot {
                    key,
                    size,
                    state: State::Read(read),
                    ..
                }) => {
                    self.first += 1;
                    self.bytes -= size;
                    return Ok(Some((key, read)));
                }
                Some(mut slot) => match std::mem::replace(&mut slot.state, State::Open) {
                    State::Sealed(bytes) => {
                        self.open(slot, bytes, &check)?;
                        continue;
                    }
                    state => {
                        slot.state = state;
                        self.slots.push_front(slot);
                    }
                },
            }
            match self.flight.answer(true) {
                Some((tag, answer)) => self.take(tag, answer, &check),
                None => self.rest()?,
            }
        }
    }

    /// Ask for those that are not read, but for a pause that is due.
    fn ask(&mut self) {
        if self.trouble.is_some() || self.doubt.is_some() {
            return;
        }
        for (tag, slot) in (self.first..).zip(&mut self.slots) {
            if self.under_way == self.connections {
                break;
            }
            if let State::Open = slot.state {
                slot.state = State::UnderWay;
                self.under_way += 1;
                self.flight.ask(tag, slot.want.clone());
            }
        }
    }

    fn take(&mut self, tag: u64, answer: Answer, check: impl Fn(&K, Vec<u8>) -> Result<T, Fault>) {
        self.under_way -= 1;
        // A slot leaves when it is read, and has nothing under way then.
        let index = (tag - self.first) as usize;
        let bytes = match answer {
            Ok(bytes) => bytes,
            Err(trouble) => {
                self.slots[index].state = State::Open;
                self.trouble = Some(trouble);
                return;
            }
        };
        let missing = || "it is missing".to_owned();
        let slot = &mut self.slots[index];
        let checked = bytes.ok_or_else(missing).and_then(|bytes| {
            Ok(match is_sealed(&bytes) {
                true => {
                    check_sealed(&slot.want, &bytes)?;
                    State::Sealed(bytes)
                }
                false => State::Read(Ok(check(&slot.key, bytes)?)),
            })
        });
        let doubt = slot.settle(checked);
        if let State::Sealed(_) | State::Read(Ok(_)) = slot.state {
            self.spell = None;
        }
        self.doubt = doubt.or(self.doubt.take());
    }

    /// Open the first object, which is sealed.
    fn open(
        &mut self,
        mut slot: Slot<K, T>,
        bytes: Vec<u8>,
        check: impl Fn(&K, Vec<u8>) -> Result<T, Fault>,
    ) -> Result<(), Trouble> {
        let opened = self.reader.store().opened(&slot.want, bytes)?;
        let checked = opened.and_then(|bytes| check(&slot.key, bytes));
        let doubt = slot.settle(checked.map(|sound| State::Read(Ok(sound))));
        self.doubt = doubt.or(self.doubt.take());
        self.slots.push_front(slot);
        Ok(())
    }

    /// The pause before what could not be used is asked for again.
    fn rest(&mut self) -> Result<(), Trouble> {
        let wait = self.reader.wait();
        let spell = self.spell.get_or_insert_with(|| Spell::begin(wait));
        match (self.trouble.take(), self.doubt.take()) {
            (Some(trouble), _) => spell.wait_out(wait, trouble),
            (None, Some(doubt)) => {
                spell.rest(wait, &doubt);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }
}

impl Reader<'_> {
    /// An object that has to be there, as `check` makes of it. An inner error: it is wrong, however
    /// often it is read.
    pub(super) fn read<T>(
        &self,
        want: Want,
        check: impl Fn(Vec<u8>) -> Result<T, Fault>,
    ) -> Result<Result<T, Fault>, Trouble> {
        let mut ahead = ReadAhead::new(self.with_connections(1));
        ahead.push((), want, 0);
        let read = ahead.next(|(), bytes| check(bytes))?;
        Ok(read.map_or_else(|| Err(String::new()), |((), read)| read))
    }

    /// An object that need not be there.
    pub(super) fn find<T>(
        &self,
        name: &str,
        check: impl Fn(Vec<u8>) -> Result<T, Fault>,
    ) -> Result<Option<Result<T, Fault>>, Trouble> {
        match self.again(|store| store.get(name))? {
            None => Ok(None),
            Some(bytes) => match check(bytes) {
                Ok(sound) => Ok(Some(Ok(sound))),
                Err(_) => self.read(Want::whole(name), check).map(Some),
            },
        }
    }

    /// The heads of these links, in the order of `numbers`.
    pub(super) fn heads(
        &self,
        log: LogId,
        pieces: &Pieces,
        numbers: &[u64],
    ) -> Result<Vec<Result<Head, Fault>>, Trouble> {
        let mut heads = self.heads_in(log, pieces, numbers)?;
        let wrong = numbers.iter().zip(&heads).filter(|(_, head)| head.is_err());
        if let Some(first) = wrong.map(|(number, _)| *number).min() {
            // Some may have been joined since they were listed.
            let fresh = self.pieces(log, first.saturating_sub(1))?;
            for (number, head) in numbers.iter().zip(&mut heads) {
                if head.is_err() && fresh.find(*number) != pieces.find(*number) {
                    let again = self.heads_in(log, &fresh, &[*number])?;
                    *head = again.into_iter().next().unwrap_or_else(missing);
                }
            }
        }
        Ok(heads)
    }

    fn heads_in(
        &self,
        log: LogId,
        pieces: &Pieces,
        numbers: &[u64],
    ) -> Result<Vec<Result<Head, Fault>>, Trouble> {
        let mut ahead = ReadAhead::new(*self);
        let mut rest = numbers;
        let mut heads = Vec::with_capacity(numbers.len());
        loop {
            while !rest.is_empty() && ahead.has_room(HEAD_SIZE as u64) {
                let number = rest[0];
                let Some(piece) = pieces.find(number) else {
                    ahead.push_fault((number, 1), "it is missing".to_owned());
                    rest = &rest[1..];
                    continue;
                };
                // Those of one object that follow one another are read at once.
                let next = (number..=piece.last).zip(rest);
                let count = next
                    .take_while(|(number, wanted)| number == *wanted)
                    .count();
                let want = piece.want_heads(log, number, count as u64);
                ahead.push((number, count), want, (count * HEAD_SIZE) as u64);
                rest = &rest[count..];
            }
            let read = ahead.next(|(first, count), bytes| {
                let parts = bytes.chunks(HEAD_SIZE);
                let found = (*first..).zip(parts).map(|(number, bytes)| {
                    let (head, ..) = Head::decode_alone(bytes)?;
                    head.check_place(log, number)?;
                    Ok(head)
                });
                let found = found.collect::<Result<Vec<Head>, Fault>>()?;
                match found.len() == *count {
                    true => Ok(found),
                    false => Err(format!("it has only {} heads", found.len())),
                }
            })?;
            match read {
                None => return Ok(heads),
                Some((_, Ok(found))) => heads.extend(found.into_iter().map(Ok)),
                Some(((_, 1), Err(what))) => heads.push(Err(what)),
                // Not each of them need be wrong.
                Some(((first, count), Err(_))) => {
                    for number in first..first + count as u64 {
                        let one = self.heads_in(log, pieces, &[number])?;
                        heads.extend(one);
                    }
                }
            }
        }
    }
}

fn missing() -> Result<Head, Fault> {
    Err("it is missing".to_owned())
}
