//! Where do bytes come from that no one can guess?

use std::io;

/// Fill `bytes`; waits, after the machine has started, until the system has random numbers.
///
/// # Errors
/// The system has none.
#[cfg(target_os = "linux")]
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    fill_with(bytes, rustix::rand::GetRandomFlags::empty())
}

/// The same, but where it would have to wait it fails.
#[cfg(target_os = "linux")]
pub(crate) fn fill_now(bytes: &mut [u8]) -> io::Result<()> {
    fill_with(bytes, rustix::rand::GetRandomFlags::NONBLOCK)
}

#[cfg(target_os = "linux")]
fn fill_with(bytes: &mut [u8], flags: rustix::rand::GetRandomFlags) -> io::Result<()> {
    if rustix::rand::getrandom(&mut *bytes, flags)? < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    Ok(getrandom::fill(bytes)?)
}

/// These systems have random numbers before any program runs.
#[cfg(not(target_os = "linux"))]
pub(crate) fn fill_now(bytes: &mut [u8]) -> io::Result<()> {
    fill(bytes)
}
