//! Parsing the lines of extended commands, which beanstalkd does not know.
//!
//! [`super::parse`] reads each line first: only what it takes for no command, or for another one that
//! is misspelt, comes here. So nothing here can change what a command of beanstalkd does.
//!
//! The rules are those of beanstalkd, and stricter where it is lax: a word, then blanks and
//! arguments, and nothing after the last one.

use super::{Capabilities, Command, Refusal, Request};

/// Reads the rest of the line after the word. `None`: `BAD_FORMAT`, uncounted.
type Reader = for<'a> fn(&'a [u8]) -> Option<Request<'a>>;

/// The beginning of a line, and the reader of the rest. No word begins with another.
const COMMANDS: [(&[u8], Reader); 1] = [(b"capabilities", |rest| {
    alone(rest, Command::Capabilities(Capabilities::ALL))
})];

/// Bytes of the longest word, its blank included.
pub(super) const WORD_SIZE_MAX: usize = 14;

/// Whether a line that begins so may be longer than one of beanstalkd.
pub(super) fn may_be_long(head: &[u8]) -> bool {
    let begins = |(word, _): &(&[u8], Reader)| word.ends_with(b" ") && head.starts_with(word);
    COMMANDS.iter().any(begins)
}

/// Reads a line, without its CR LF. `None`: it is no extended command either.
pub(super) fn request(line: &[u8]) -> Option<Request<'_>> {
    let bad = Request::refused(Refusal::BadFormat, None);
    let (word, read) = COMMANDS.iter().find(|(word, _)| line.starts_with(word))?;
    Some(read(&line[word.len()..]).unwrap_or(bad))
}

/// A command without arguments: the word is the whole line.
fn alone<'a>(rest: &[u8], this: Command<'a>) -> Option<Request<'a>> {
    rest.is_empty().then_some(Request::Command(this))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD_FORMAT: Option<Request<'_>> = Some(Request::refused(Refusal::BadFormat, None));

    fn table() -> Vec<(&'static [u8], Option<Request<'static>>)> {
        use Command as C;
        let run = |command| Some(Request::Command(command));
        vec![
            (b"capabilities", run(C::Capabilities(Capabilities::ALL))),
            (b"capabilities ", BAD_FORMAT),
            (b"capabilities\0", BAD_FORMAT),
            (b"capabilitiesx", BAD_FORMAT),
            (b"capability", None),
            (b" capabilities", None),
            (b"CAPABILITIES", None),
            (b"", None),
            (b"nonsense", None),
            (b"reserve", None),
        ]
    }

    #[test]
    fn every_line_says_what_the_specification_says() {
        for (line, expected) in table() {
            assert_eq!(request(line), expected, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn no_word_begins_with_another_and_none_is_longer_than_what_is_compared() {
        for (word, _) in COMMANDS {
            let begun = |(other, _): &&(&[u8], Reader)| other.starts_with(word);
            assert_eq!(COMMANDS.iter().filter(begun).count(), 1);
            assert!(word.len() <= WORD_SIZE_MAX);
        }
    }

    #[test]
    fn each_command_is_among_the_capabilities_by_its_word() {
        let mut words = COMMANDS.map(|(word, _)| word.trim_ascii_end().to_vec());
        words.sort_unstable();
        let listed: Vec<_> = Capabilities::ALL.words().map(str::as_bytes).collect();
        assert_eq!(listed, words.to_vec());
        let mut allowed = Capabilities::ALL;
        allowed.retain(|_| false);
        assert_eq!(allowed.words().count(), 0);
    }
}
