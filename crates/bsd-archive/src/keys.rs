//! Keys of an archive: 32 random bytes each, out of a file or of a command, and their names.
//!
//! A key never leaves this process. Its id, which is in every object that it opens, says which one
//! is needed: it is a digest, and tells nothing of the key.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

use bsd::SetupError;
use bsd::storage::RealFs;
use bsd::storage::disk::{ReadFs, read_exact_at};

/// Bytes of a key.
pub const KEY_SIZE: usize = 32;
/// Keys that an object can be encrypted for, and keys that can be given to open objects.
pub const KEYS_MAX: usize = 8;
/// Bytes of a file, or of what a command says, at most: a key in text has 64.
const TEXT_SIZE_MAX: u64 = 4096;

/// Which key: the first 8 bytes of its SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId(pub(super) [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Some ids, for people.
pub(super) fn listed(ids: &[KeyId]) -> String {
    let ids: Vec<_> = ids.iter().map(KeyId::to_string).collect();
    ids.join(", ")
}

/// A key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    id: KeyId,
    secret: [u8; KEY_SIZE],
}

/// It is never printed.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Key {
    /// The key that is these bytes, which are to be random.
    #[must_use]
    pub fn new(secret: [u8; KEY_SIZE]) -> Key {
        let mut id = [0; 8];
        id.copy_from_slice(&digest(&SHA256, &secret).as_ref()[..8]);
        Key {
            id: KeyId(id),
            secret,
        }
    }

    /// 64 hexadecimal digits, or base64 of 32 bytes. Spaces and line ends around it do not count.
    #[must_use]
    pub fn parse(text: &str) -> Option<Key> {
        let text = text.trim();
        let bytes = match text.len() == 2 * KEY_SIZE {
            true => from_hex(text),
            false => STANDARD.decode(text).ok(),
        };
        Some(Key::new(bytes?.try_into().ok()?))
    }

    /// Which one it is.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    pub(super) fn secret(&self) -> &[u8; KEY_SIZE] {
        &self.secret
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            let is_plain = pair.bytes().all(|it| it.is_ascii_hexdigit());
            is_plain.then(|| u8::from_str_radix(pair, 16).ok())?
        })
        .collect()
}

/// Where a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// In a file.
    File(PathBuf),
    /// In what this command, of a shell, says on its standard output.
    Command(String),
}

impl KeySource {
    /// Read the key.
    ///
    /// # Errors
    /// There is no file, the command fails, or what it says is no key; the text names the place and
    /// nothing of the content.
    pub fn read(&self) -> Result<Key, SetupError> {
        let (place, text) = match self {
            KeySource::File(path) => (path.display().to_string(), read_file(path)?),
            KeySource::Command(command) => (format!("the command {command:?}"), run(command)?),
        };
        let text = String::from_utf8(text).ok();
        text.as_deref().and_then(Key::parse).ok_or_else(|| {
            SetupError::new(format_args!(
                "{place} has no key of an archive: 32 bytes in base64 or in hexadecimal digits; make \
                 one with `openssl rand -base64 32`, and keep a copy of it elsewhere"
            ))
        })
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, SetupError> {
    let read = || {
        let file = RealFs.open_read(path)?;
        let mut bytes = vec![0; file.size()?.min(TEXT_SIZE_MAX) as usize];
        read_exact_at(&*file, &mut bytes, 0)?;
        Ok(bytes)
    };
    read().map_err(|error: std::io::Error| {
        let show = path.display();
        SetupError::io(
            format!("cannot read the key of the archive in {show}: {error}"),
            error,
        )
    })
}

fn run(command: &str) -> Result<Vec<u8>, SetupError> {
    let cannot = |why: String| {
        SetupError::new(format_args!(
            "the command {command:?} gives no key of an archive: {why}"
        ))
    };
    let child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| cannot(format!("it cannot be started: {error}")))?;
    let mut text = Vec::new();
    if let Some(output) = child.stdout.take() {
        // What says more than that ends because no one reads it.
        let read = output.take(TEXT_SIZE_MAX).read_to_end(&mut text);
        read.map_err(|error| cannot(error.to_string()))?;
    }
    let ended = child.wait().map_err(|error| cannot(error.to_string()))?;
    match ended.success() {
        true => Ok(text),
        false => Err(cannot(format!("it ended with {ended}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    #[test]
    fn a_key_is_the_same_in_digits_and_in_base64_and_is_never_printed() {
        let key = Key::parse(HEX).unwrap();
        assert_eq!(Key::parse(&format!(" {BASE64}\n")), Some(key.clone()));
        assert_eq!(key.id().to_string(), "630dcd2966c43366");
        assert_eq!(format!("{key:?}"), "Key { id: 630dcd2966c43366, .. }");
        let long = format!("{HEX}00");
        for wrong in ["", "secret", &HEX[1..], &long, &HEX.replace('a', "g")] {
            assert_eq!(Key::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_comes_out_of_a_file_or_a_command_and_what_is_none_is_named_but_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let file = KeySource::File(path.clone());
        assert!(file.read().unwrap_err().to_string().contains("key"));
        for (text, is_key) in [(HEX, true), (BASE64, true), ("hunter2", false)] {
            let command = KeySource::Command(format!("echo {text} > {}", path.display()));
            assert!(command.read().is_err(), "it says nothing");
            let said = KeySource::Command(format!("cat {}", path.display()));
            for source in [&file, &said] {
                match source.read() {
                    Ok(key) => assert!(is_key && Some(key) == Key::parse(text)),
                    Err(error) => assert!(!is_key && !error.to_string().contains("hunter2")),
                }
            }
        }
        let failed = KeySource::Command(format!("echo {HEX}; exit 3"));
        let error = failed.read().unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        let endless = KeySource::Command("yes".to_owned());
        assert!(endless.read().is_err());
    }
}
