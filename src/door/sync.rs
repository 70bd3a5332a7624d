//! The locks of [`super::handover`], which the tests replace with those of a model checker.

pub(super) use std::sync::{Arc, Mutex, MutexGuard};

/// The lock, also where a thread panicked with it: nothing is left half done under these locks.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
