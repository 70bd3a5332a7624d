//! Asking before more than one job is deleted, or what cannot be taken back is done.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::Failure;

/// Go on only if it is one thing, or `yes` was said, or someone at a terminal says so now.
///
/// # Errors
/// The answer was no, or no one can be asked.
pub(crate) fn confirm(what: &str, count: u64, is_yes: bool) -> Result<(), Failure> {
    match count {
        0 | 1 => Ok(()),
        _ => ask(what, is_yes),
    }
}

/// Go on only if `yes` was said, or someone at a terminal says so now.
///
/// # Errors
/// The answer was no, or no one can be asked.
pub(crate) fn ask(what: &str, is_yes: bool) -> Result<(), Failure> {
    if is_yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::NotDone(format!(
            "nothing was done: would {what}, and the standard input is no terminal to ask at; add \
             --yes to do it"
        )));
    }
    let mut prompt = io::stderr();
    let asked = write!(prompt, "{what}? [y/N] ").and_then(|()| prompt.flush());
    let mut answer = String::new();
    let read = asked.and_then(|()| io::stdin().lock().read_line(&mut answer));
    read.map_err(|error| {
        Failure::Input(format!(
            "nothing was done: the answer cannot be read: {error}; add --yes"
        ))
    })?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::NotDone("nothing was done".to_owned())),
    }
}
