//! A store whose objects are compressed or encrypted, or read if they are: for writers and readers
//! it is one like others.
//!
//! Each object says of itself whether it is sealed, so a reader needs no flags but keys. Marks, which
//! are empty, and the marker of the archive are put as they are. With neither a level nor keys so is
//! everything else.
//!
//! Two puts of the same content are different bytes, because each has a random key. Who compares
//! what is there with what was put does so through [`Store::get`], which opens it.

use std::collections::HashMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};

use bsd::SetupError;

use super::format::{Fault, MARKER, broken};
use super::keys::{KEYS_MAX, Key, KeySource, listed};
use super::seal::{Closed, check, enough_for, is_sealed, is_whole, open, seal};
use super::store::{Answer, Flight, Listed, Put, Store, Trouble, Want};

/// The levels of compression: the higher, the smaller and slower. Beyond 19 a writer would need
/// hundreds of megabytes.
pub const LEVELS: RangeInclusive<i32> = 1..=19;
/// The level if none is named: some hundred megabytes a second.
pub const LEVEL_DEFAULT: i32 = 3;

/// How objects are put, and which can be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Codec {
    level: Option<i32>,
    /// Each of them opens what is put.
    recipients: Vec<Key>,
    /// Those, and those of earlier times.
    keys: Vec<Key>,
}

impl Codec {
    /// What is put is compressed with this level of [`LEVELS`].
    #[must_use]
    pub fn compressing(self, level: Option<i32>) -> Codec {
        Codec { level, ..self }
    }

    /// What is put is encrypted for each of these, at most [`KEYS_MAX`]; none: it is not.
    #[must_use]
    pub fn encrypting_for(mut self, keys: Vec<Key>) -> Codec {
        self.keys.extend(keys.iter().cloned());
        Codec {
            recipients: keys,
            ..self
        }
    }

    /// What was encrypted for one of these can be read, too.
    #[must_use]
    pub fn opening_with(mut self, keys: Vec<Key>) -> Codec {
        self.keys.extend(keys);
        self
    }

    /// Read keys: of those for whom is encrypted, and of those that only open.
    ///
    /// # Errors
    /// One of them cannot be read, or there are more than [`KEYS_MAX`] of either.
    pub fn with_keys_of(
        self,
        write: &[KeySource],
        read: &[KeySource],
    ) -> Result<Codec, SetupError> {
        if write.len().max(read.len()) > KEYS_MAX {
            return Err(SetupError::new(format_args!(
                "too many keys of an archive: at most {KEYS_MAX}"
            )));
        }
        let all = |sources: &[KeySource]| -> Result<Vec<Key>, SetupError> {
            let mut keys: Vec<Key> = Vec::new();
            for source in sources {
                let key = source.read()?;
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            Ok(keys)
        };
        Ok(self.encrypting_for(all(write)?).opening_with(all(read)?))
    }

    /// What is put is neither compressed nor encrypted.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.level.is_none() && self.recipients.is_empty()
    }
}

/// What is done to an object that is put, for people.
impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Some(level) => write!(f, "compressed with level {level}")?,
            None => f.write_str("not compressed")?,
        }
        let ids: Vec<_> = self.recipients.iter().map(Key::id).collect();
        match &ids[..] {
            [] => f.write_str(", not encrypted"),
            ids => write!(f, ", encrypted for {}", listed(ids)),
        }
    }
}

/// A store behind a [`Codec`].
#[derive(Debug, Clone)]
pub struct Sealed<S> {
    inner: S,
    codec: Codec,
}

impl<S: Store> Sealed<S> {
    /// `inner`, with this codec.
    pub fn new(inner: S, codec: Codec) -> Sealed<S> {
        Sealed { inner, codec }
    }

    /// The store itself: objects as they are there.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// How objects are put and read.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// The bytes of `want` in a sealed object, of which the inner store has given enough.
    fn open(&self, want: &Want, bytes: Vec<u8>) -> Result<Result<Vec<u8>, Fault>, Trouble> {
        match open(&want.name, &bytes, end_of(want), &self.codec.keys) {
            Ok(plain) => Ok(Ok(cut(plain, want))),
            Err(Closed::Broken(fault)) => Ok(Err(fault)),
            Err(Closed::For(keys)) => {
                let keys = match &keys[..] {
                    [key] => format!("the key {key}, which was not given"),
                    several => format!("the keys {}, none of which was given", listed(several)),
                };
                Err(Trouble {
                    what: format!(
                        "{} at {} is encrypted with {keys}: give it with --archive-key",
                        want.name,
                        self.place()
                    ),
                    is_final: true,
                    lacks_key: true,
                    is_damage: false,
                })
            }
        }
    }

    /// What is enough to open what is wanted.
    fn closed(&self, want: &Want) -> Answer {
        let found = self.inner.answer(&sealed(want))?;
        match found.as_ref().is_some_and(|bytes| is_part(bytes, want)) {
            true => self.inner.get(&want.name),
            false => Ok(found),
        }
    }

    fn read(&self, want: &Want) -> Answer {
        let Some(bytes) = self.closed(want)? else {
            return Ok(None);
        };
        if !is_sealed(&bytes) {
            return Ok(Some(cut(bytes, want)));
        }
        Ok(Some(match self.open(want, bytes)? {
            Ok(plain) => plain,
            Err(fault) => broken(&fault),
        }))
    }
}

/// Where the bytes that are wanted end.
fn end_of(want: &Want) -> u64 {
    want.range.as_ref().map_or(u64::MAX, |range| range.end)
}

/// Of what the inner store has, enough for what is wanted.
fn sealed(want: &Want) -> Want {
    let range = want.range.as_ref().map(|range| 0..enough_for(range.end));
    Want {
        name: want.name.clone(),
        range,
    }
}

/// It is sealed and larger than what is wanted of it: then it is opened as a whole.
fn is_part(bytes: &[u8], want: &Want) -> bool {
    let end = end_of(want);
    is_whole(end) && is_sealed(bytes) && bytes.len() as u64 == enough_for(end)
}

/// What is wanted of what was put, of which the beginning is there.
fn cut(mut bytes: Vec<u8>, want: &Want) -> Vec<u8> {
    bytes.truncate(usize::try_from(end_of(want)).unwrap_or(usize::MAX));
    let begin = want.range.as_ref().map_or(0, |range| range.start);
    bytes.drain(..bytes.len().min(begin as usize));
    bytes
}

/// Check what a flight has brought of a sealed object, as far as that is possible without a key.
///
/// # Errors
/// Its fault.
pub(super) fn check_sealed(want: &Want, bytes: &[u8]) -> Result<(), Fault> {
    check(&want.name, bytes, end_of(want)).map(drop)
}

impl<S: Store> Store for Sealed<S> {
    fn place(&self) -> &str {
        self.inner.place()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<Put, Trouble> {
        let (level, keys) = (self.codec.level, &self.codec.recipients[..]);
        if bytes.is_empty() || name == MARKER {
            return self.inner.put_if_absent(name, bytes);
        }
        let sealed = seal(name, bytes, level, keys).map_err(|_| {
            Trouble::passing(format!("cannot encrypt {name}: there are no random bytes"))
        })?;
        self.inner
            .put_if_absent(name, sealed.as_deref().unwrap_or(bytes))
    }

    fn get(&self, name: &str) -> Answer {
        self.read(&Want::whole(name))
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Answer {
        self.read(&Want {
            name: name.to_owned(),
            range: Some(range),
        })
    }

    fn answer(&self, want: &Want) -> Answer {
        let found = self.closed(want)?;
        Ok(found.map(|bytes| match is_sealed(&bytes) {
            true => bytes,
            false => cut(bytes, want),
        }))
    }

    fn opened(&self, want: &Want, bytes: Vec<u8>) -> Result<Result<Vec<u8>, Fault>, Trouble> {
        match is_sealed(&bytes) {
            true => self.open(want, bytes),
            false => Ok(Ok(bytes)),
        }
    }

    fn flight(&self, connections: usize) -> Box<dyn Flight + '_> {
        Box::new(SealedFlight {
            inner: self.inner.flight(connections),
            wanted: HashMap::new(),
        })
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, Trouble> {
        self.inner.list(prefix, after)
    }

    fn tops(&self) -> Result<Vec<String>, Trouble> {
        self.inner.tops()
    }

    fn remove(&self, names: &[String]) -> Result<(), Trouble> {
        self.inner.remove(names)
    }
}

/// Brings sealed objects as they are: they are opened one at a time, when their turn comes.
#[derive(Debug)]
struct SealedFlight<'a> {
    inner: Box<dyn Flight + 'a>,
    /// What is under way, by tag, and whether it is asked for as a whole object now.
    wanted: HashMap<u64, (Want, bool)>,
}

impl Flight for SealedFlight<'_> {
    fn ask(&mut self, tag: u64, want: Want) {
        self.inner.ask(tag, sealed(&want));
        self.wanted.insert(tag, (want, false));
    }

    fn answer(&mut self, is_awaited: bool) -> Option<(u64, Answer)> {
        loop {
            let (tag, answer) = self.inner.answer(is_awaited)?;
            let Some((want, is_whole)) = self.wanted.remove(&tag) else {
                return Some((tag, answer));
            };
            match answer {
                Ok(Some(bytes)) if !is_whole && is_part(&bytes, &want) => {
                    self.inner.ask(tag, Want::whole(&want.name));
                    self.wanted.insert(tag, (want, true));
                }
                Ok(Some(bytes)) if !is_sealed(&bytes) => {
                    return Some((tag, Ok(Some(cut(bytes, &want)))));
                }
                answer => return Some((tag, answer)),
            }
        }
    }
}
