//! Keys, from the bytes of a terminal.
//!
//! Only the keys that `top` knows have names. Anything else is dropped, never taken for another key.

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    CtrlC,
    Escape,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

const ESCAPE: u8 = 0x1b;
const CTRL_C: u8 = 3;
/// No key's sequence is longer. One that is would never end.
const SEQUENCE_SIZE_MAX: usize = 32;

/// Bytes that are not yet a key.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<u8>);

impl Keys {
    /// True while the beginning of a sequence waits for its end. A lone Escape is one of these.
    pub(super) fn is_begun(&self) -> bool {
        !self.0.is_empty()
    }

    /// The keys in these bytes, and in those left over before. The beginning of a sequence is left
    /// over.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.0.extend_from_slice(bytes);
        let mut keys = Vec::new();
        while let Some(size) = size_of_first(&self.0) {
            keys.extend(key(&self.0[..size]));
            self.0.drain(..size);
        }
        if self.0.len() > SEQUENCE_SIZE_MAX {
            self.0.clear();
        }
        keys
    }

    /// No more bytes came: Escape alone is the key, any other beginning is dropped.
    pub(super) fn give_up(&mut self) -> Option<Key> {
        let is_escape = self.0 == [ESCAPE];
        self.0.clear();
        is_escape.then_some(Key::Escape)
    }
}

/// The bytes of the first key; `None`: its end is missing, or no key is in them.
fn size_of_first(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [] | [ESCAPE] => None,
        // `ESC [`, parameters, and a letter or `~`; or `ESC O` and a letter.
        [ESCAPE, b'[' | b'O', rest @ ..] => {
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte))?;
            Some(2 + end + 1)
        }
        // Alt with a key.
        [ESCAPE, ..] => Some(2),
        _ => Some(1),
    }
}

fn key(bytes: &[u8]) -> Option<Key> {
    match bytes {
        [CTRL_C] => Some(Key::CtrlC),
        [byte @ b' '..=b'~'] => Some(Key::Char(char::from(*byte))),
        [ESCAPE, b'[' | b'O', sequence @ ..] => match sequence {
            b"A" => Some(Key::Up),
            b"B" => Some(Key::Down),
            b"H" | b"1~" | b"7~" => Some(Key::Home),
            b"F" | b"4~" | b"8~" => Some(Key::End),
            b"5~" => Some(Key::PageUp),
            b"6~" => Some(Key::PageDown),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_terminals_send_for_them() {
        for (bytes, expected) in [
            (
                &b"qh?"[..],
                &[Key::Char('q'), Key::Char('h'), Key::Char('?')][..],
            ),
            (b"\x1b[A\x1bOB", &[Key::Up, Key::Down]),
            (b"\x1b[5~\x1b[6~", &[Key::PageUp, Key::PageDown]),
            (b"\x1b[H\x1bOH\x1b[1~\x1b[7~", &[Key::Home; 4]),
            (b"\x1b[F\x1bOF\x1b[4~\x1b[8~", &[Key::End; 4]),
            (b"\x03", &[Key::CtrlC]),
            // Unknown sequences, Alt-q, the other controls and UTF-8 are no keys.
            (b"\x1b[1;5A\x1b[3~\x1bq\x01\r\xc3\xa9", &[]),
        ] {
            let mut keys = Keys::default();
            assert_eq!(keys.read(bytes), expected, "{}", bytes.escape_ascii());
            assert!(!keys.is_begun());
        }
    }

    #[test]
    fn a_sequence_may_come_in_parts_and_escape_is_a_key_once_nothing_follows() {
        let mut keys = Keys::default();
        assert_eq!(keys.read(b"\x1b"), []);
        assert_eq!(keys.read(b"["), []);
        assert!(keys.is_begun());
        assert_eq!(keys.read(b"Aq"), [Key::Up, Key::Char('q')]);
        assert_eq!(keys.give_up(), None);
        assert_eq!(keys.read(b"\x1b"), []);
        assert_eq!(keys.give_up(), Some(Key::Escape));
        assert_eq!(keys.read(b"\x1b[1"), []);
        assert_eq!(keys.give_up(), None);
        assert!(!keys.is_begun());
    }

    #[test]
    fn a_sequence_without_end_takes_no_memory() {
        let mut keys = Keys::default();
        for _ in 0..100 {
            keys.read(b"\x1b[");
            keys.read(&[b'0'; 1000]);
            assert!(keys.0.len() <= SEQUENCE_SIZE_MAX);
        }
    }
}
