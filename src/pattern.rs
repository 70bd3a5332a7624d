//! Patterns of tube names.

use std::fmt;

use crate::UsageError;
use crate::types::{TUBE_NAME_MAX, is_tube_name_byte};

/// A tube's name, in which `*` stands for any text and `?` for any one character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Box<str>);

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Pattern {
    /// The pattern as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Parse it.
    ///
    /// # Errors
    /// A message: no tube can have such a name.
    pub fn parse(text: &str) -> Result<Pattern, UsageError> {
        let is_right = |byte: u8| is_tube_name_byte(byte) || byte == b'*' || byte == b'?';
        match (1..=TUBE_NAME_MAX).contains(&text.len()) && text.bytes().all(is_right) {
            true => Ok(Pattern(text.into())),
            false => Err(UsageError::new(format_args!(
                "{text:?} matches no tube: 1 to {TUBE_NAME_MAX} of the letters, digits and \
                 -+/;.$_(), with * for any text and ? for any one character"
            ))),
        }
    }

    /// The name, if there is only one that matches.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        (!self.0.contains(['*', '?'])).then_some(&*self.0)
    }

    /// Whether it stands for this name. Takes no longer than the product of the lengths.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut of_name) = (0, 0);
        // Where the last star was, and what it stood for so far.
        let mut star: Option<(usize, usize)> = None;
        while of_name < name.len() {
            if pattern.get(at) == Some(&b'*') {
                star = Some((at, of_name));
                at += 1;
            } else if pattern
                .get(at)
                .is_some_and(|it| *it == b'?' || *it == name[of_name])
            {
                (at, of_name) = (at + 1, of_name + 1);
            } else if let Some((of_star, upto)) = star {
                star = Some((of_star, upto + 1));
                (at, of_name) = (of_star + 1, upto + 1);
            } else {
                return false;
            }
        }
        pattern[at..].iter().all(|it| *it == b'*')
    }
}
