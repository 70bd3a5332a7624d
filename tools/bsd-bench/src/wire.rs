//! The protocol from a client's side: writing commands and recognising replies, without copying or
//! allocating.

use std::io;

/// A longer first line is no valid reply.
pub(crate) const LINE_SIZE_MAX: usize = 1024;

/// A command of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Put,
    Reserve,
    Delete,
    Release,
    Bury,
    Kick,
    Clear,
    Touch,
    Use,
    Watch,
    Pause,
    Peek,
    ListTubes,
}

impl Op {
    /// The number of operations.
    pub(crate) const COUNT: usize = Op::ListTubes as usize + 1;
}

/// The replies that a load can get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    Inserted(u64),
    /// The id, and the bytes of the body that follows.
    Reserved(u64, usize),
    TimedOut,
    Deleted,
    Released,
    Buried,
    Kicked,
    Cleared,
    Touched,
    Using,
    Watching,
    Paused,
    /// The bytes of the list that follows.
    Listed(usize),
    /// The server has no room for this put.
    OutOfMemory,
}

impl Reply {
    /// Bytes after the line: a body or a list, and its end.
    pub(crate) fn tail_size(self) -> usize {
        match self {
            Reply::Reserved(_, size) | Reply::Listed(size) => size + 2,
            _ => 0,
        }
    }
}

/// The first line in `input`, as a reply, and its size in bytes; `None` while it is incomplete.
///
/// # Errors
/// If a load does not know it.
pub(crate) fn parse_reply(input: &[u8]) -> io::Result<Option<(Reply, usize)>> {
    let Some(end) = memchr::memchr(b'\n', input) else {
        return if input.len() > LINE_SIZE_MAX {
            Err(unexpected(&input[..LINE_SIZE_MAX]))
        } else {
            Ok(None)
        };
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let reply = parse_line(line).ok_or_else(|| unexpected(line))?;
    Ok(Some((reply, end + 1)))
}

fn unexpected(line: &[u8]) -> io::Error {
    let line = line.escape_ascii();
    io::Error::other(format!("the server said: {line}"))
}

fn parse_line(line: &[u8]) -> Option<Reply> {
    if let Some(rest) = line.strip_prefix(b"RESERVED ") {
        let (id, rest) = parse_number(rest);
        let (body, _) = parse_number(rest.strip_prefix(b" ")?);
        return Some(Reply::Reserved(id, body as usize));
    }
    if let Some(rest) = line.strip_prefix(b"INSERTED ") {
        return Some(Reply::Inserted(parse_number(rest).0));
    }
    if let Some(rest) = line.strip_prefix(b"OK ") {
        return Some(Reply::Listed(parse_number(rest).0 as usize));
    }
    match line {
        b"DELETED" => Some(Reply::Deleted),
        b"TIMED_OUT" => Some(Reply::TimedOut),
        b"RELEASED" => Some(Reply::Released),
        b"BURIED" => Some(Reply::Buried),
        b"TOUCHED" => Some(Reply::Touched),
        b"PAUSED" => Some(Reply::Paused),
        b"OUT_OF_MEMORY" => Some(Reply::OutOfMemory),
        _ if line.starts_with(b"KICKED") => Some(Reply::Kicked),
        _ if line.starts_with(b"CLEARED") => Some(Reply::Cleared),
        _ if line.starts_with(b"USING ") => Some(Reply::Using),
        _ if line.starts_with(b"WATCHING ") => Some(Reply::Watching),
        _ => None,
    }
}

/// The number at the start of `text`, 0 without digits, and the rest.
pub(crate) fn parse_number(text: &[u8]) -> (u64, &[u8]) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = text[..digits].iter().fold(0u64, |sum, byte| {
        sum.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'))
    });
    (number, &text[digits..])
}

/// Append a number in decimal.
pub(crate) fn push_number(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Append a word and then numbers, and end the line.
pub(crate) fn push_line(word: &[u8], numbers: &[u64], out: &mut Vec<u8>) {
    out.extend_from_slice(word);
    for number in numbers {
        out.push(b' ');
        push_number(*number, out);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_taken_when_its_line_is_complete() {
        type Row = (&'static [u8], Option<(Reply, usize)>);
        let table: &[Row] = &[
            (b"", None),
            (b"INSERTED 1\r", None),
            (b"INSERTED 12\r\nDEL", Some((Reply::Inserted(12), 13))),
            (b"DELETED\r\n", Some((Reply::Deleted, 9))),
            (b"TIMED_OUT\r\n", Some((Reply::TimedOut, 11))),
            (b"KICKED 5\r\n", Some((Reply::Kicked, 10))),
            (b"CLEARED 5\r\n", Some((Reply::Cleared, 11))),
            (b"USING default\r\n", Some((Reply::Using, 15))),
            (b"RESERVED 7 3\r\nab", Some((Reply::Reserved(7, 3), 14))),
            (b"PAUSED\r\n", Some((Reply::Paused, 8))),
            (b"OK 14\r\n---", Some((Reply::Listed(14), 7))),
            (b"OUT_OF_MEMORY\r\n", Some((Reply::OutOfMemory, 15))),
        ];
        for (input, expected) in table {
            let found = parse_reply(input).unwrap();
            assert_eq!(found, *expected, "{}", input.escape_ascii());
        }
        for wrong in [&b"INTERNAL_ERROR\r\n"[..], b"RESERVED 7\r\n", &[b'x'; 2000]] {
            assert!(parse_reply(wrong).is_err());
        }
    }

    #[test]
    fn numbers_are_written_as_they_are_read() {
        for number in [0, 7, 10, 65_535, u64::MAX] {
            let mut out = Vec::new();
            push_number(number, &mut out);
            assert_eq!(out, number.to_string().into_bytes());
            assert_eq!(parse_number(&out), (number, &b""[..]));
        }
    }

    #[test]
    fn a_line_is_a_word_and_numbers() {
        let mut out = Vec::new();
        push_line(b"release", &[5, 0, 10], &mut out);
        assert_eq!(out, b"release 5 0 10\r\n");
    }
}
