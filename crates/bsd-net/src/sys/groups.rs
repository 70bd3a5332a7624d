//! In which groups is this process?

use std::ffi::CStr;
use std::io;

use nix::unistd::{Gid, User};

/// Enter the groups of this user, and leave all others. `user` is its name.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`]: the process may not; it is in the groups that it was in.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn enter(name: &CStr, user: &User) -> io::Result<()> {
    nix::unistd::initgroups(name, user.gid)?;
    Ok(nix::unistd::setgid(user.gid)?)
}

/// The supplementary groups cannot be changed here, and root's would stay: launchd does it before
/// it starts a program.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] if the process is this user already; else
/// [`io::ErrorKind::Unsupported`].
#[cfg(target_vendor = "apple")]
pub(crate) fn enter(_: &CStr, user: &User) -> io::Result<()> {
    match user.uid == nix::unistd::geteuid() {
        true => Err(io::ErrorKind::PermissionDenied.into()),
        false => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this system does not let a program leave the groups that it was started in: let \
             launchd start it as that user (UserName), without -u",
        )),
    }
}

/// The groups of this process that the user is not in.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn foreign(name: &CStr, user: &User) -> io::Result<Vec<Gid>> {
    use nix::unistd::{getegid, getgrouplist, getgroups};
    let own = getgrouplist(name, user.gid)?;
    let mut others = getgroups()?;
    others.push(getegid());
    others.retain(|group| !own.contains(group));
    others.sort_by_key(|group| group.as_raw());
    others.dedup();
    Ok(others)
}

/// A process here may be in more groups than the system lists: nothing is said about them.
#[cfg(target_vendor = "apple")]
pub(crate) fn foreign(_: &CStr, _: &User) -> io::Result<Vec<Gid>> {
    Ok(Vec::new())
}
