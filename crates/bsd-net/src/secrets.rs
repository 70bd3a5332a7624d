//! Secrets: how they are made, written and compared.

use std::io;

use bsd::sys::random;

/// 256 random bits, in hexadecimal digits.
///
/// # Errors
/// The system has no random bytes.
pub fn random_word() -> io::Result<String> {
    let mut bytes = [0; 32];
    random::fill(&mut bytes)?;
    Ok(hex(&bytes))
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
pub(crate) fn parse_digest(text: &str) -> Option<[u8; 32]> {
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
