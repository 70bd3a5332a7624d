//! The object store as an archive needs it: a trait of few methods.
//!
//! Every call blocks its caller; a [`Flight`] has several reads under way. An object is put as a whole or not at all, and is never changed:
//! all that guards the archive against a second writer is that [`Store::put_if_absent`] succeeds for
//! one of those who put the same name.

use std::fmt::{self, Debug};
use std::ops::Range;

use super::format::Fault;

/// Result of a put that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The object is there, as it was given.
    Done,
    /// There is an object of this name, which may be the result of an earlier try. It is unchanged.
    Exists,
}

/// An object of a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

/// An object that is read, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// Its name.
    pub name: String,
    /// The bytes; `None`: all.
    pub range: Option<Range<u64>>,
}

impl Want {
    /// All of an object.
    #[must_use]
    pub fn whole(name: &str) -> Want {
        Want {
            name: name.to_owned(),
            range: None,
        }
    }
}

/// Answer to a read: the bytes, or `None` if the store has no such object.
pub type Answer = Result<Option<Vec<u8>>, Trouble>;

/// Reads that are under way at the same time. Those without an answer when it is dropped are given
/// up. An answer has the bytes as the store keeps them: [`Store::opened`] has those that were put.
pub trait Flight: Debug {
    /// Begin a read, or note it where as many are under way as there may be. Its answer has this
    /// `tag`.
    fn ask(&mut self, tag: u64, want: Want);

    /// An answer, whichever comes first. With `is_awaited` it is waited for. `None`: no read is under
    /// way or, without that, none is answered yet.
    fn answer(&mut self, is_awaited: bool) -> Option<(u64, Answer)>;
}

/// Why a call has no result. The put may have happened nevertheless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The operation, and the error of the store or the network.
    pub what: String,
    /// To try again cannot help: the store does not know the operation, or a key is missing.
    pub is_final: bool,
    /// An object is encrypted, and no key was given that opens it.
    pub lacks_key: bool,
    /// An object is not as it was put, each time that it was read.
    pub is_damage: bool,
}

impl Trouble {
    /// Something that another try may get over.
    pub fn passing(what: impl Into<String>) -> Trouble {
        Trouble {
            what: what.into(),
            is_final: false,
            lacks_key: false,
            is_damage: false,
        }
    }

    /// An object is not as it was put. Another try helps only if the object is put right by hand.
    pub fn damage(what: impl Into<String>) -> Trouble {
        Trouble {
            is_damage: true,
            ..Trouble::passing(what)
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Trouble {}

/// An object store, below one prefix. Names are relative to it, of ASCII letters, digits, `-`, `.`
/// and `/`.
pub trait Store: Debug + Send + Sync {
    /// Its address, for people, and to tell it from others.
    fn place(&self) -> &str;

    /// Put an object unless there is one of that name. Durable when it returns.
    ///
    /// # Errors
    /// [`Trouble`]: it is unknown whether the object was put.
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<Put, Trouble>;

    /// An object; `None` if the store has no such object.
    ///
    /// # Errors
    /// The store did not answer.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Trouble>;

    /// A part of an object: fewer bytes if it ends before. `None` if the store has no such object.
    ///
    /// # Errors
    /// The store did not answer.
    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Option<Vec<u8>>, Trouble>;

    /// An object or a part of one, as a flight brings it.
    ///
    /// # Errors
    /// The store did not answer.
    fn answer(&self, want: &Want) -> Answer {
        match &want.range {
            Some(range) => self.get_range(&want.name, range.clone()),
            None => self.get(&want.name),
        }
    }

    /// The bytes that were put, of those that a flight has brought. An inner error: they are not as they
    /// were put.
    ///
    /// # Errors
    /// A key is missing.
    fn opened(&self, _: &Want, bytes: Vec<u8>) -> Result<Result<Vec<u8>, Fault>, Trouble> {
        Ok(Ok(bytes))
    }

    /// A way to read several objects at the same time: `connections` at most, which is at least 1.
    fn flight(&self, connections: usize) -> Box<dyn Flight + '_>;

    /// All objects whose name begins with `prefix`, which ends in `/`, and comes after `after`; in
    /// the order of their names.
    ///
    /// # Errors
    /// The store did not answer.
    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, Trouble>;

    /// The first parts, before a `/`, of the names of all objects, and the names without one.
    ///
    /// # Errors
    /// The store did not answer.
    fn tops(&self) -> Result<Vec<String>, Trouble>;

    /// Remove objects, those that are there.
    ///
    /// # Errors
    /// [`Trouble`]: it is unknown which of the objects are still there.
    fn remove(&self, names: &[String]) -> Result<(), Trouble>;
}
