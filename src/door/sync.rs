//! The locks of [`super::handover`], which the tests replace with those of a model checker.

pub(super) use std::sync::{Arc, Mutex, MutexGuard};

/// Takes the lock, also if a thread panicked while it held it: no change under these locks can be
/// left half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
