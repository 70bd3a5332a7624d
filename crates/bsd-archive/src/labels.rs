//! Names and pins of bases: which base has which name, and which stay until they are unpinned?
//!
//! A pin is put before the link of its base, so an expiry that sees the base sees the pin, too. A name
//! is put after the link: it is of a base that is there. A writer that ends between the two leaves a
//! pin of a number that becomes a claim, or a base without its name.

use std::collections::BTreeSet;

use super::ahead::ReadAhead;
use super::error::RestoreError;
use super::format::{Bad, BaseName, Named, claims_dir, names_dir, number_in, numbered, pins_dir};
use super::reader::Reader;
use super::store::{Store, Trouble, Want};
use bsd::storage::format::LogId;

/// Names of bases that a server gives in the archive of one log, at most.
pub const NAMES_MAX: usize = 1000;
/// Pins that a server puts into the archive of one log, at most.
pub const PINS_MAX: usize = 1000;

/// The numbers of the empty objects in a directory.
pub(super) fn marked(
    reader: &Reader<'_>,
    log: LogId,
    dir: fn(LogId) -> String,
) -> Result<BTreeSet<u64>, Trouble> {
    let dir = dir(log);
    let listed = reader.list(&dir, "")?;
    let numbers = listed.iter().filter_map(|it| number_in(&dir, &it.name));
    Ok(numbers.collect())
}

/// Bases by their names.
pub(super) type Names = Vec<(BaseName, Named)>;

/// All names of bases, in their order, and the objects among them that are none.
///
/// # Errors
/// The store did not answer.
pub(super) fn names(reader: &Reader<'_>, log: LogId) -> Result<(Names, Vec<Bad>), Trouble> {
    let dir = names_dir(log);
    let (mut names, mut bad) = (Vec::new(), Vec::new());
    let mut ahead = ReadAhead::new(*reader);
    let mut listed = reader.list(&dir, "")?.into_iter().peekable();
    loop {
        while let Some(object) = listed.next_if(|next| ahead.has_room(next.size)) {
            let (want, size) = (Want::whole(&object.name), object.size);
            ahead.push(object.name, want, size);
        }
        let Some((object, found)) = ahead.next(|_, bytes| Named::decode(&bytes))? else {
            break;
        };
        let name = object.strip_prefix(&dir).and_then(BaseName::parse);
        match (name, found) {
            (Some(name), Ok(named)) => names.push((name, named)),
            (None, _) => bad.push(Bad {
                what: "it is not named as a name of a base is".to_owned(),
                name: object,
            }),
            // It may have expired since the list was made.
            (_, Err(what)) if reader.again(|store| store.get(&object))?.is_some() => {
                bad.push(Bad { name: object, what });
            }
            (_, Err(_)) => {}
        }
    }
    Ok((names, bad))
}

/// The number of the base that has this name.
///
/// # Errors
/// No base has it, or its object is not as it was put; or the store did not answer.
pub fn find(reader: &Reader<'_>, log: LogId, name: &BaseName) -> Result<u64, RestoreError> {
    let object = name.object(log);
    match reader.find(&object, |bytes| Named::decode(&bytes))? {
        Some(Ok(named)) => Ok(named.base),
        Some(Err(what)) => Err(RestoreError::Bad {
            bad: Bad { name: object, what },
            sound: None,
        }),
        None => Err(RestoreError::Refused(format!(
            "no base has the name {name}; `bsd-wal archive ls` shows the names"
        ))),
    }
}

/// Remove the pin of a base: the next expiry decides about it as about others. `false`: it has none.
///
/// # Errors
/// The store did not answer.
pub fn unpin(reader: &Reader<'_>, log: LogId, number: u64) -> Result<bool, Trouble> {
    let is_pinned = marked(reader, log, pins_dir)?.contains(&number);
    if is_pinned {
        reader.again(|store| store.remove(&[numbered(&pins_dir(log), number)]))?;
    }
    Ok(is_pinned)
}

/// The bases that are pinned. Nothing is opened for that, so no key is needed.
///
/// # Errors
/// The store did not answer.
pub fn pinned(store: &dyn Store, log: LogId) -> Result<BTreeSet<u64>, Trouble> {
    let numbers = |dir: String| -> Result<BTreeSet<u64>, Trouble> {
        let listed = store.list(&dir, "")?;
        let numbers = listed.iter().filter_map(|it| number_in(&dir, &it.name));
        Ok(numbers.collect())
    };
    let (pins, claims) = (numbers(pins_dir(log))?, numbers(claims_dir(log))?);
    // A writer that was interrupted leaves a pin, and the next one its claim under that number.
    Ok(pins.difference(&claims).copied().collect())
}

/// Why an order cannot be carried out, as far as names and pins say; `None`: it can.
///
/// # Errors
/// The store did not answer.
pub(super) fn refusal(
    store: &dyn Store,
    log: LogId,
    name: Option<&BaseName>,
    is_pinned: bool,
) -> Result<Option<String>, Trouble> {
    if let Some(name) = name {
        let names = store.list(&names_dir(log), "")?;
        if names.iter().any(|it| it.name == name.object(log)) {
            return Ok(Some(format!("a base has the name {name} already")));
        }
        if names.len() >= NAMES_MAX {
            return Ok(Some(format!(
                "there are {NAMES_MAX} names of bases already; they go when their bases expire"
            )));
        }
    }
    if is_pinned && store.list(&pins_dir(log), "")?.len() >= PINS_MAX {
        return Ok(Some(format!(
            "there are {PINS_MAX} pins of bases already: `bsd-wal archive unpin` removes one"
        )));
    }
    Ok(None)
}
