//! Names of tubes: as they are typed, as patterns, and as they are shown.

use bsd::UsageError;
use bsd::types::{TUBE_NAME_MAX, is_invisible, is_tube_name};
use bsd_tools::client::{Client, ClientError};

use crate::{Failure, note};

/// A name that may be sent in a command.
pub(crate) fn parse_tube(text: &str) -> Result<String, UsageError> {
    match is_tube_name(text.as_bytes()) {
        true => Ok(text.to_owned()),
        false => Err(UsageError::new(format_args!(
            "it is no name of a tube: 1 to {TUBE_NAME_MAX} letters, digits and -+/;.$_(), and no - \
             first"
        ))),
    }
}

/// The name of a schedule, which is as one of a tube.
pub(crate) fn parse_schedule(text: &str) -> Result<String, UsageError> {
    match is_tube_name(text.as_bytes()) {
        true => Ok(text.to_owned()),
        false => Err(UsageError::new(format_args!(
            "it is no name of a schedule: 1 to {TUBE_NAME_MAX} letters, digits and -+/;.$_(), and no \
             - first"
        ))),
    }
}

/// A name, or a pattern: `*` is any number of characters, `?` is one.
pub(crate) fn parse_pattern(text: &str) -> Result<String, UsageError> {
    parse_tube(&text.replace(['*', '?'], "x"))?;
    Ok(text.to_owned())
}

pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Whether the whole of `name` is what `pattern` says.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where to go on if what follows the last star does not match.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, n));
                p += 1;
            }
            Some(letter) if *letter == b'?' || *letter == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((after, from)) => {
                    *from += 1;
                    (p, n) = (*after, *from);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|letter| *letter == b'*')
}

/// The names of the server's tubes that a pattern says, in the order of the alphabet. Those that no
/// command can carry are named and left out.
pub(crate) fn matching(
    client: &mut Client,
    pattern: Option<&str>,
) -> Result<Vec<String>, ClientError> {
    let mut names = client.tube_names()?;
    names.retain(|name| pattern.is_none_or(|pattern| matches(pattern, name)));
    names.retain(|name| {
        let is_legal = is_tube_name(name.as_bytes());
        if !is_legal {
            let name = name.escape_debug();
            note(format_args!(
                "tube \"{name}\" is left out: no command can carry its name"
            ));
        }
        is_legal
    });
    names.sort();
    Ok(names)
}

/// Error for a tube that does not exist.
pub(crate) fn no_tube(name: &str) -> Failure {
    Failure::NotDone(format!(
        "there is no tube \"{name}\"; `bsd-ctl tubes` lists those that there are"
    ))
}

/// Text of a server's, fit for a terminal: control characters are escaped.
pub(crate) fn shown(text: &str) -> String {
    let show = |letter: char| match letter.is_control() || is_invisible(letter) {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_about_the_whole_name() {
        for (pattern, name, is_match) in [
            ("mail", "mail", true),
            ("mail", "mails", false),
            ("mail*", "mail", true),
            ("*.dead", "a.dead.dead", true),
            ("*.dead", "a.dead.x", false),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbX", false),
            ("?", "a", true),
            ("?", "", false),
            ("*", "", true),
            ("a?c*", "abc", true),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }

    #[test]
    fn names_that_would_be_commands_are_refused() {
        for wrong in ["", "a b", "a\r\ndelete 1", "-a", "\u{e9}"] {
            assert!(parse_tube(wrong).is_err(), "{wrong}");
            assert!(parse_pattern(wrong).is_err(), "{wrong}");
        }
        assert!(parse_tube("a*").is_err() && parse_pattern("*a?").is_ok());
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(shown("a\u{1b}[2Jb\r\u{202e}"), "a\\u{1b}[2Jb\\r\\u{202e}");
    }
}
