//! Common rules of files of secrets: who may read them, and how a secret is compared.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bsd::SetupError;

/// Bytes that a file of tokens may have.
pub const FILE_SIZE_MAX: u64 = 64 << 10;

/// The text of a file of tokens, which no one but its owner may read or write.
///
/// # Errors
/// It cannot be read, others may read it, it is too large, or it is no text.
pub fn read_private(path: &Path) -> Result<String, SetupError> {
    let unreadable = |error: io::Error| SetupError::io(cannot_use(path, &error), error);
    #[allow(clippy::disallowed_methods)] // no file of the log
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?;
    let mode = mode.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let why = format!("its rights are {mode:04o}; make them 0600 (chmod 600)");
        return Err(unusable(path, &why));
    }
    let mut text = String::new();
    let read = file.take(FILE_SIZE_MAX + 1).read_to_string(&mut text);
    read.map_err(unreadable)?;
    if text.len() as u64 > FILE_SIZE_MAX {
        let why = format!("it has more than {FILE_SIZE_MAX} bytes");
        return Err(unusable(path, &why));
    }
    Ok(text)
}

/// Error: the content of the file cannot be used.
pub fn unusable(path: &Path, why: &dyn fmt::Display) -> SetupError {
    SetupError::new(cannot_use(path, why))
}

fn cannot_use(path: &Path, why: &dyn fmt::Display) -> String {
    format!("cannot use the tokens in {}: {why}", path.display())
}

/// The lines of such a file that say something, with their numbers. Empty lines and those that
/// begin with `#` say nothing.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// Looks at every byte, however many differ.
pub fn is_same(one: &[u8], other: &[u8]) -> bool {
    let pairs = one.iter().zip(other);
    let difference = pairs.fold(0, |all, (one, other)| {
        std::hint::black_box(all | (one ^ other))
    });
    one.len() == other.len() && difference == 0
}

/// A digest of SHA-256, from 64 hexadecimal digits.
pub fn parse_digest(text: &str) -> Option<[u8; 32]> {
    let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut digest = [0; 32];
    for (at, byte) in digest.iter_mut().enumerate().filter(|_| is_hex) {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    is_hex.then_some(digest)
}

/// The digits that [`parse_digest`] reads.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
