//! The file of tokens, for the protocol and for HTTP. It has one a line; empty lines and those that
//! begin with `#` say nothing.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::grant::Grant;
use crate::secrets;
use bsd::{SetupError, UsageError};

/// Bytes that a file of tokens may have.
const FILE_SIZE_MAX: u64 = 64 << 10;

/// The tokens of a file, at least one.
pub struct Tokens(Vec<Arc<Grant>>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

impl Tokens {
    /// Read the file, which no one but its owner may read or write.
    ///
    /// # Errors
    /// The fault of the file.
    pub fn read(path: &Path) -> Result<Tokens, SetupError> {
        let cannot_use =
            |why: &dyn fmt::Display| format!("cannot use the tokens in {}: {why}", path.display());
        let text = read_private(path).map_err(|error| SetupError::io(cannot_use(&error), error))?;
        Tokens::parse(&text).map_err(|why| SetupError::new(cannot_use(&why)))
    }

    /// The tokens of a file with this text.
    ///
    /// # Errors
    /// The text has no token, or a line that is not a token.
    pub fn parse(text: &str) -> Result<Tokens, UsageError> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let parsed = lines.map(|(number, line)| Grant::parse(number, line).map(Arc::new));
        let grants = parsed.collect::<Result<Vec<_>, _>>()?;
        match grants.is_empty() {
            true => Err("it has no tokens".into()),
            false => Ok(Tokens(grants)),
        }
    }

    /// The line of this token. How long it takes says nothing of how near it comes to one.
    pub fn find(&self, token: &[u8]) -> Option<&Arc<Grant>> {
        let mut found = None;
        for grant in &self.0 {
            let digest = Sha256::new().chain_update(&grant.salt).chain_update(token);
            if secrets::is_same(&digest.finalize(), &grant.digest) {
                found = Some(grant);
            }
        }
        found
    }

    /// Whether a token is still in the file, and allows what it did in that line.
    pub(super) fn still_has(&self, old: &Grant) -> bool {
        let is_same = |new: &Arc<Grant>| new.digest == old.digest && new.scope == old.scope;
        self.0.iter().any(is_same)
    }
}

/// The text of a file that no one but its owner may read or write.
fn read_private(path: &Path) -> io::Result<String> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    #[allow(clippy::disallowed_methods)] // no file of the log
    let file = std::fs::File::open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let why = format!("its rights are {mode:04o}; make them 0600 (chmod 600)");
        return Err(refused(why));
    }
    let mut text = String::new();
    file.take(FILE_SIZE_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > FILE_SIZE_MAX {
        true => Err(refused(format!("it has more than {FILE_SIZE_MAX} bytes"))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn digest(text: &str) -> String {
        secrets::hex(&Sha256::digest(text))
    }

    #[test]
    fn a_token_is_known_by_its_digest_salted_or_not() {
        let of_http = format!("read:saltsalt:{}", digest("saltsaltone"));
        let plain = format!("put:mail-* {}", digest("two"));
        let tokens = Tokens::parse(&format!("# who\n{of_http}\n\n{plain}\n")).unwrap();
        let found = |token: &[u8]| {
            let grant = tokens.find(token)?;
            Some((grant.line, grant.scope.to_string()))
        };
        assert_eq!(found(b"one"), Some((2, "read".into())));
        assert_eq!(found(b"two"), Some((4, "put:mail-*".into())));
        for wrong in [&b""[..], b"on", b"onee", b"saltsaltone", b"\xff"] {
            assert_eq!(found(wrong), None);
        }
    }

    /// `printf %s token | sha256sum`, and the same with `saltsalttoken`.
    #[test]
    fn the_digest_is_what_sha256sum_prints() {
        for line in [
            "all 3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0",
            "read:saltsalt:0325ad3b92ad50ecb48e11333b4fbbac11018a376a95a148a2ad9b361c0aa0fe",
        ] {
            assert!(Tokens::parse(line).unwrap().find(b"token").is_some());
        }
    }

    #[test]
    fn a_file_of_tokens_has_64_kib_at_most() {
        // The rights of a temporary file are its owner's alone.
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let line = format!("all {}", digest("one"));
        let rest = FILE_SIZE_MAX as usize - line.len() - 2;
        write!(file, "{line}\n#{}", "x".repeat(rest)).unwrap();
        assert!(Tokens::read(file.path()).unwrap().find(b"one").is_some());
        write!(file, "x").unwrap();
        let why = Tokens::read(file.path()).unwrap_err().to_string();
        assert!(why.contains("it has more than 65536 bytes"), "{why}");
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "all {}", digest("one")).unwrap();
        let set = |mode| {
            let rights = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path(), rights).unwrap();
        };
        set(0o640);
        let why = Tokens::read(file.path()).unwrap_err().to_string();
        assert!(why.contains("0640") && why.contains("chmod 600"), "{why}");
        set(0o600);
        assert!(Tokens::read(file.path()).is_ok());
    }

    #[test]
    fn a_file_without_a_token_is_refused() {
        for text in ["", "# no one", "\n \n"] {
            assert!(Tokens::parse(text).is_err(), "{text}");
        }
    }
}
