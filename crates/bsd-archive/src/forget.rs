//! The archive of one log goes, when no one needs it any more. Those of other logs stay.

use super::chain::logs;
use super::format::{LOGS, MARKER, log_name};
use super::store::{Store, Trouble};
use bsd::storage::format::LogId;

/// Objects that one call removes.
const REMOVED_AT_ONCE: usize = 1000;

/// Every object of the archive of `log`, and bytes of all of them; without its mark.
///
/// # Errors
/// The store did not answer.
pub fn objects(store: &dyn Store, log: LogId) -> Result<(Vec<String>, u64), Trouble> {
    let listed = store.list(&format!("{}/", log_name(log)), "")?;
    let bytes = listed.iter().map(|object| object.size).sum();
    Ok((
        listed.into_iter().map(|object| object.name).collect(),
        bytes,
    ))
}

/// Remove these objects, then the mark of `log` and, if it was the last one, that of the archive.
/// Interrupted or after an error, it can be run again.
///
/// # Errors
/// The store did not answer.
pub fn forget(
    store: &dyn Store,
    log: LogId,
    objects: &[String],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Trouble> {
    let mut done = 0;
    for names in objects.chunks(REMOVED_AT_ONCE) {
        store.remove(names)?;
        done += names.len() as u64;
        progress(done, objects.len() as u64);
    }
    store.remove(&[format!("{LOGS}{}", log_name(log))])?;
    match logs(store)?.is_empty() {
        true => store.remove(&[MARKER.to_owned()]),
        false => Ok(()),
    }
}
