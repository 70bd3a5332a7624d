//! What can be said of an archive without its keys: whether its objects have the sizes and the
//! checksums that they say they have, and which keys are needed.
//!
//! That finds what a store has lost, cut or changed. It does not find what was forged, and says
//! nothing of what could be restored.

use std::collections::BTreeSet;
use std::ops::Range;

use super::ahead::ReadAhead;
use super::apart::Marks;
use super::chain::{Bad, begin};
use super::format::{
    Fault, Head, LINK_SIZE_MAX, Named, chain_dir, joined_dir, names_dir, number_in, numbered,
    parts_dir, sum_in,
};
use super::joined::{HEADER_SIZE, Joined};
use super::keys::KeyId;
use super::reader::Reader;
use super::seal::{OVERHEAD_MAX, check, is_sealed};
use super::store::{Answer, Flight, Listed, Put, Store, Trouble, Want};
use bsd::storage::format::LogId;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unopened {
    /// The log.
    pub log: LogId,
    /// Links, parts of bases, and their names.
    pub objects: u64,
    /// Those of them that are encrypted.
    pub encrypted: u64,
    /// Bytes of all of them, in the store.
    pub bytes: u64,
    /// Each of them opens something.
    pub keys: BTreeSet<KeyId>,
    /// Objects that are not as they were put.
    pub bad: Vec<Bad>,
}

/// A store of which nothing is opened.
#[derive(Debug)]
struct Closed<'a>(&'a dyn Store);

impl Store for Closed<'_> {
    fn place(&self) -> &str {
        self.0.place()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<Put, Trouble> {
        self.0.put_if_absent(name, bytes)
    }

    fn get(&self, name: &str) -> Answer {
        self.0.answer(&Want::whole(name))
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Answer {
        self.0.answer(&Want {
            name: name.to_owned(),
            range: Some(range),
        })
    }

    fn flight(&self, connections: usize) -> Box<dyn Flight + '_> {
        self.0.flight(connections)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, Trouble> {
        self.0.list(prefix, after)
    }

    fn tops(&self) -> Result<Vec<String>, Trouble> {
        self.0.tops()
    }

    fn remove(&self, names: &[String]) -> Result<(), Trouble> {
        self.0.remove(names)
    }
}

/// Read every link and every part of the archive of `log`, and check what can be checked without keys.
///
/// # Errors
/// The store did not answer.
pub fn look(
    reader: &Reader<'_>,
    log: LogId,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Unopened, Trouble> {
    let closed = Closed(reader.store());
    let reader = Reader::new(&closed, reader.wait()).with_connections(reader.connections());
    let chain = chain_dir(log);
    let begin = reader.again(|store| begin(store, log))?;
    let holes = reader.pieces(log, begin - 1)?.holes(begin - 1).into_iter();
    let missing = holes.map(|(from, to)| Bad::missing(&chain, from, to - from));
    let mut objects = reader.list(&chain, &numbered(&chain, begin - 1))?;
    objects.extend(reader.list(&joined_dir(log), &Joined::before(log, begin))?);
    let mut found = Unopened {
        log,
        objects: 0,
        encrypted: 0,
        bytes: 0,
        keys: BTreeSet::new(),
        bad: missing.collect(),
    };
    objects.extend(reader.list(&parts_dir(log), "")?);
    objects.extend(reader.list(&names_dir(log), "")?);
    let apart = Marks::read(&reader, log)?.before(begin);
    let before = reader.list(&chain, "")?.into_iter();
    let is_apart = |object: &Listed| {
        let number = number_in(&chain, &object.name);
        number.is_some_and(|number| number < begin && apart.contains(&number))
    };
    let before: Vec<Listed> = before.filter(is_apart).collect();
    for number in apart {
        let name = numbered(&chain, number);
        if !before.iter().any(|object| object.name == name) {
            found.bad.push(Bad::missing(&chain, number, 1));
        }
    }
    objects.extend(before);
    let total = objects.iter().map(|object| object.size).sum();
    let mut ahead = ReadAhead::new(reader);
    let mut objects = objects.into_iter().peekable();
    loop {
        while let Some(object) = objects.next_if(|next| ahead.has_room(next.size)) {
            let want = Want::whole(&object.name);
            match object.size > LINK_SIZE_MAX + OVERHEAD_MAX {
                true => {
                    let what =
                        format!("it has {} bytes, more than an object can have", object.size);
                    ahead.push_fault(object, what);
                }
                false => {
                    let size = object.size;
                    ahead.push(object, want, size);
                }
            }
        }
        let Some((object, read)) = ahead.next(|object, bytes| sound(log, &object.name, &bytes))?
        else {
            return Ok(found);
        };
        found.objects += 1;
        found.bytes += object.size;
        progress(found.bytes, total);
        match read {
            Ok(keys) => {
                found.encrypted += u64::from(!keys.is_empty());
                found.keys.extend(keys);
            }
            Err(what) => found.bad.push(Bad {
                name: object.name,
                what,
            }),
        }
    }
}

/// The keys of an object of which the checksums hold.
fn sound(log: LogId, name: &str, bytes: &[u8]) -> Result<BTreeSet<KeyId>, Fault> {
    Ok(match is_sealed(bytes) {
        true => {
            let header = check(name, bytes, u64::MAX)?;
            if let Some(size) = size_in(log, name)
                && size != header.size
            {
                return Err(format!("it has {} bytes instead of {size}", header.size));
            }
            header.keys()
        }
        false => {
            check_plain(log, name, bytes)?;
            BTreeSet::new()
        }
    })
}

/// Bytes of the content of an object, as its name says.
fn size_in(log: LogId, name: &str) -> Option<u64> {
    match Joined::parse(log, name) {
        Some(joined) => Some(HEADER_SIZE as u64 + joined.size),
        None => sum_in(log, name).map(|(size, _)| size),
    }
}

fn check_plain(log: LogId, name: &str, bytes: &[u8]) -> Result<(), Fault> {
    if let Some(joined) = Joined::parse(log, name) {
        return joined.check(log, bytes).map(|_| ());
    }
    if let Some(number) = number_in(&chain_dir(log), name) {
        let (head, ..) = Head::decode(bytes)?;
        return head.check_place(log, number);
    }
    if name.starts_with(&names_dir(log)) {
        return Named::decode(bytes).map(drop);
    }
    match sum_in(log, name) {
        Some((size, crc)) if (size, crc) == (bytes.len() as u64, crc32fast::hash(bytes)) => Ok(()),
        Some(_) => Err("its size or its checksum is not that in its name".to_owned()),
        None if name.starts_with(&chain_dir(log)) => Err("it is not named as a link is".to_owned()),
        None => Err(format!(
            "it is not named as a part of a base is, and has {} bytes",
            bytes.len()
        )),
    }
}
