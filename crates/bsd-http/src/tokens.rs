//! Tokens and their roles. The file has one a line, `ROLE:SALT:SHA256`: the digest of the salt and
//! the token, one behind the other, in hexadecimal digits. Empty lines and those that begin with
//! `#` are ignored. A token itself is written nowhere.

use std::fmt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::route::Role;
use bsd::{SetupError, UsageError};
use bsd_net::secrets;

/// Characters that a salt must have.
const SALT_LEN_MIN: usize = 8;

/// Those that are let in.
pub(super) struct Tokens(Vec<Token>);

struct Token {
    role: Role,
    salt: String,
    digest: [u8; 32],
    /// Of the file.
    line: usize,
}

/// Whose token it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) role: Role,
    /// The line of the file that lets it in.
    pub(super) line: usize,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

impl Tokens {
    /// Read the file, which no one but its owner may read or write.
    pub(super) fn read(path: &Path) -> Result<Tokens, SetupError> {
        let text = secrets::read_private(path)?;
        Tokens::parse(&text).map_err(|error| secrets::unusable(path, &error))
    }

    fn parse(text: &str) -> Result<Tokens, UsageError> {
        let parsed = secrets::lines(text).map(|(number, line)| {
            parse_line(number, line).ok_or_else(|| {
                UsageError::new(format_args!(
                    "line {number} is not ROLE:SALT:SHA256, with read or admin for a role, \
                     {SALT_LEN_MIN} characters or more for a salt, and 64 hexadecimal digits"
                ))
            })
        });
        let tokens = parsed.collect::<Result<Vec<_>, _>>()?;
        match tokens.is_empty() {
            true => Err("there is none".into()),
            false => Ok(Tokens(tokens)),
        }
    }

    /// Of a file with this text.
    #[cfg(test)]
    pub(super) fn of(text: &str) -> Tokens {
        Tokens::parse(text).unwrap()
    }

    /// Whose token this is. How long it takes says nothing of how near it comes to one.
    pub(super) fn find(&self, token: &[u8]) -> Option<Holder> {
        let mut found = None;
        for known in &self.0 {
            let digest = Sha256::new()
                .chain_update(&known.salt)
                .chain_update(token)
                .finalize();
            if secrets::is_same(&digest, &known.digest) {
                found = Some(Holder {
                    role: known.role,
                    line: known.line,
                });
            }
        }
        found
    }
}

fn parse_line(number: usize, line: &str) -> Option<Token> {
    let mut parts = line.split(':');
    let (role, salt, digest) = (parts.next()?, parts.next()?, parts.next()?);
    let role = match role {
        "read" => Role::Read,
        "admin" => Role::Admin,
        _ => return None,
    };
    if parts.next().is_some() || salt.len() < SALT_LEN_MIN {
        return None;
    }
    Some(Token {
        role,
        salt: salt.to_owned(),
        digest: secrets::parse_digest(digest)?,
        line: number,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use bsd_net::secrets::FILE_SIZE_MAX;

    /// `printf %s saltsalttoken | sha256sum`
    const DIGEST: &str = "0325ad3b92ad50ecb48e11333b4fbbac11018a376a95a148a2ad9b361c0aa0fe";

    fn line(role: &str, salt: &str, token: &str) -> String {
        let digest = Sha256::new().chain_update(salt).chain_update(token);
        let digest = digest.finalize();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{role}:{salt}:{hex}")
    }

    #[test]
    fn a_token_is_known_by_its_digest_and_has_the_role_of_its_line() {
        let (read, admin) = (
            line("read", "saltsalt", "one"),
            line("admin", "pepperpe", "two"),
        );
        let tokens = Tokens::parse(&format!("# who\n{read}\n\n{admin}\n")).unwrap();
        let holder = |role, line| Some(Holder { role, line });
        assert_eq!(tokens.find(b"one"), holder(Role::Read, 2));
        assert_eq!(tokens.find(b"two"), holder(Role::Admin, 4));
        for wrong in [&b""[..], b"on", b"onee", b"saltsaltone", b"\xff"] {
            assert_eq!(tokens.find(wrong), None);
        }
    }

    #[test]
    fn a_file_of_tokens_has_64_kib_at_most() {
        use std::io::Write;
        // The rights of a temporary file are its owner's alone.
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let token = line("read", "saltsalt", "one");
        let rest = FILE_SIZE_MAX as usize - token.len() - 2;
        write!(file, "{token}\n#{}", "x".repeat(rest)).unwrap();
        let tokens = Tokens::read(file.path()).unwrap();
        assert!(tokens.find(b"one").is_some());
        write!(file, "x").unwrap();
        let why = Tokens::read(file.path()).unwrap_err().to_string();
        assert!(why.contains("it has more than 65536 bytes"), "{why}");
    }

    #[test]
    fn the_digest_is_what_sha256sum_prints() {
        let tokens = Tokens::parse(&format!("read:saltsalt:{DIGEST}")).unwrap();
        assert!(tokens.find(b"token").is_some());
    }

    #[test]
    fn lines_that_let_no_one_in_are_refused() {
        let good = line("read", "saltsalt", "one");
        for text in [
            String::new(),
            "# no one".to_owned(),
            good.replace("read", "root"),
            good.replace("saltsalt", "salt"),
            good[..good.len() - 1].to_owned(),
            format!("{good}0"),
            format!("{good}:"),
            format!("read:{DIGEST}"),
            format!("read:saltsalt:{}", "g".repeat(64)),
            format!("read:saltsalt:{}", "ä".repeat(32)),
        ] {
            assert!(Tokens::parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        #[allow(clippy::disallowed_methods)]
        std::fs::write(file.path(), line("admin", "saltsalt", "one")).unwrap();
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
}
