//! On which server a tube is: rendezvous hashing.
//!
//! The score of a server for a tube is the first 8 bytes, big-endian, of SHA-256 over the server's name,
//! a zero byte, and the tube's name. The highest score wins; of equal ones, the first name in the order
//! of bytes. So every client with the same names places a tube alike, and a server that is added or
//! taken away moves only the tubes that it gets or had.

use sha2::{Digest, Sha256};

/// The score of a server for a tube.
///
/// ```
/// assert_eq!(bsd_client::score("a", "mail"), bsd_client::score("a", "mail"));
/// ```
#[must_use]
pub fn score(server: &str, tube: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(server.as_bytes());
    hash.update([0]);
    hash.update(tube.as_bytes());
    let digest = hash.finalize();
    let first = digest.iter().take(8);
    first.fold(0, |score, byte| score << 8 | u64::from(*byte))
}

/// The index of the server with the highest score, if there is a server.
pub(crate) fn place<'a>(servers: impl Iterator<Item = &'a str>, tube: &str) -> Option<usize> {
    let rated = servers.enumerate();
    let rated = rated.map(|(index, name)| (score(name, tube), std::cmp::Reverse(name), index));
    rated.max().map(|(_, _, index)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tube_moves_only_to_a_server_that_is_new_or_from_one_that_is_gone() {
        let three = ["a", "b", "c"];
        let mut counts = [0; 3];
        for number in 0..300 {
            let tube = format!("tube-{number}");
            let before = place(three.into_iter(), &tube).unwrap();
            counts[before] += 1;
            let after = place(["a", "b", "c", "d"].into_iter(), &tube).unwrap();
            assert!(after == before || after == 3);
        }
        assert!(counts.iter().all(|count| *count > 60), "{counts:?}");
        assert_eq!(place(std::iter::empty(), "tube"), None);
    }
}
