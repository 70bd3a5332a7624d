//! Data that programs write without JSON, and how it is read here: what PHP serializes, and
//! MessagePack. Both become the same tree, which is written in the notation of JSON.
//!
//! Only the beginning of a body may be there: then the tree ends where the bytes do. A tree has at
//! most [`NODES_MAX`] values, [`DEPTH_MAX`] deep; a body with more is no such data here.

use std::fmt::Write;

/// Values of a tree.
const NODES_MAX: usize = 20_000;
/// Values in values.
const DEPTH_MAX: usize = 32;
/// Bytes of binary data inside a tree that are written in digits.
const BYTES_SHOWN: usize = 32;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Datum {
    /// A number, or one of the words of JSON, as it is written.
    Word(String),
    Text(String),
    List(Vec<Datum>),
    Map(Vec<(Datum, Datum)>),
    /// An object of a class of this name.
    Named(String, Box<Datum>),
    /// What comes behind the bytes that are there.
    Rest,
}

/// Why no value was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The bytes end here.
    Short,
    /// They are no such data.
    Wrong,
}

type Read<T> = Result<T, Stop>;

/// What PHP has serialized: all of the bytes, or, of some that are cut, what is there.
pub(super) fn php(bytes: &[u8], is_cut: bool) -> Option<Datum> {
    // Other text begins like a number of PHP, too.
    let begins = [b"a:", b"O:", b"s:", b"C:", b"E:"].contains(&bytes.get(..2)?.try_into().ok()?);
    read(bytes, is_cut, begins, |it, depth| it.php(depth))
}

/// A map or a list of MessagePack.
pub(super) fn message_pack(bytes: &[u8], is_cut: bool) -> Option<Datum> {
    let is_whole = matches!(bytes.first()?, 0x80..=0x9f | 0xdc..=0xdf);
    read(bytes, is_cut, is_whole, |it, depth| it.message_pack(depth))
}

fn read(
    bytes: &[u8],
    is_cut: bool,
    begins: bool,
    parse: fn(&mut Reader<'_>, usize) -> Read<Datum>,
) -> Option<Datum> {
    let mut reader = Reader {
        rest: bytes,
        is_cut,
        nodes: 0,
        is_short: false,
    };
    let datum = begins.then(|| parse(&mut reader, 0))?.ok()?;
    (reader.rest.is_empty() || reader.is_short).then_some(datum)
}

struct Reader<'a> {
    rest: &'a [u8],
    /// More bytes come behind these.
    is_cut: bool,
    nodes: usize,
    /// A value was not read to its end.
    is_short: bool,
}

impl<'a> Reader<'a> {
    fn enter(&mut self, depth: usize) -> Read<()> {
        self.nodes += 1;
        match self.nodes > NODES_MAX || depth > DEPTH_MAX {
            true => Err(Stop::Wrong),
            false => Ok(()),
        }
    }

    /// The bytes are not all there.
    fn ends(&mut self) -> Stop {
        match self.is_cut {
            true => Stop::Short,
            false => Stop::Wrong,
        }
    }

    fn take(&mut self, size: usize) -> Read<&'a [u8]> {
        match self.rest.split_at_checked(size) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.ends()),
        }
    }

    /// Up to `size` bytes: of a text that is cut, what is there.
    fn take_text(&mut self, size: usize) -> Read<&'a [u8]> {
        if self.rest.len() >= size || !self.is_cut {
            return self.take(size);
        }
        self.is_short = true;
        Ok(std::mem::take(&mut self.rest))
    }

    fn expect(&mut self, wanted: &[u8]) -> Read<()> {
        if self.is_short {
            return Ok(());
        }
        match self.take(wanted.len())? == wanted {
            true => Ok(()),
            false => Err(Stop::Wrong),
        }
    }

    /// What stands before `end`, which is taken, too.
    fn until(&mut self, end: u8) -> Read<&'a str> {
        let Some(at) = self.rest.iter().take(32).position(|byte| *byte == end) else {
            return Err(match self.rest.len() < 32 {
                true => self.ends(),
                false => Stop::Wrong,
            });
        };
        let text = std::str::from_utf8(&self.rest[..at]).map_err(|_| Stop::Wrong)?;
        self.rest = &self.rest[at + 1..];
        Ok(text)
    }

    /// The value of a key, as far as it is there.
    fn behind_a_key(&mut self, read: impl FnOnce(&mut Self) -> Read<Datum>) -> Read<Datum> {
        if self.is_short {
            return Ok(Datum::Rest);
        }
        match read(self) {
            Err(Stop::Short) => {
                self.is_short = true;
                Ok(Datum::Rest)
            }
            other => other,
        }
    }

    /// Some values, one after the other, as far as they are there.
    fn some<T>(
        &mut self,
        count: usize,
        mut one: impl FnMut(&mut Self) -> Read<T>,
        rest: impl FnOnce() -> T,
    ) -> Read<Vec<T>> {
        let mut values = Vec::new();
        for _ in 0..count {
            if self.is_short {
                break;
            }
            match one(self) {
                Ok(value) => values.push(value),
                Err(Stop::Short) => self.is_short = true,
                Err(Stop::Wrong) => return Err(Stop::Wrong),
            }
        }
        if values.len() < count {
            values.push(rest());
        }
        Ok(values)
    }
}

/// PHP.
impl<'a> Reader<'a> {
    fn php(&mut self, depth: usize) -> Read<Datum> {
        self.enter(depth)?;
        let kind = self.take(1)?[0];
        if kind == b'N' {
            self.expect(b";")?;
            return Ok(Datum::Word("null".into()));
        }
        self.expect(b":")?;
        match kind {
            b'b' => match self.until(b';')? {
                "0" => Ok(Datum::Word("false".into())),
                "1" => Ok(Datum::Word("true".into())),
                _ => Err(Stop::Wrong),
            },
            b'i' | b'd' | b'r' | b'R' => self.php_number(kind),
            b's' => {
                let text = self.php_text()?;
                self.expect(b";")?;
                Ok(text_of(text))
            }
            b'E' => {
                let text = self.php_text()?;
                self.expect(b";")?;
                Ok(Datum::Word(in_quotes(text).replacen(':', "::", 1)))
            }
            b'a' => self.php_entries(depth).map(list_or_map),
            b'O' => {
                let name = readable(self.php_text()?);
                self.expect(b":")?;
                let entries = match self.is_short {
                    true => vec![(Datum::Rest, Datum::Rest)],
                    false => self.php_entries(depth)?,
                };
                Ok(Datum::Named(name, Box::new(Datum::Map(entries))))
            }
            _ => Err(Stop::Wrong),
        }
    }

    fn php_number(&mut self, kind: u8) -> Read<Datum> {
        let text = self.until(b';')?;
        let is_number = text.parse::<f64>().is_ok() && !text.is_empty();
        match is_number {
            true if matches!(kind, b'r' | b'R') => Ok(Datum::Word(format!("\"value {text}\""))),
            true => Ok(Datum::Word(text.to_owned())),
            false => Err(Stop::Wrong),
        }
    }

    /// `SIZE:"TEXT"`
    fn php_text(&mut self) -> Read<&'a [u8]> {
        let size = self.until(b':')?.parse().map_err(|_| Stop::Wrong)?;
        self.expect(b"\"")?;
        let text = self.take_text(size)?;
        if !self.is_short {
            match self.take(1)? {
                b"\"" => {}
                _ => return Err(Stop::Wrong),
            }
        }
        Ok(text)
    }

    /// `COUNT:{KEY VALUE …}`
    fn php_entries(&mut self, depth: usize) -> Read<Vec<(Datum, Datum)>> {
        let count: usize = self.until(b':')?.parse().map_err(|_| Stop::Wrong)?;
        self.expect(b"{")?;
        let one = |it: &mut Self| {
            let key = it.php(depth + 1)?;
            Ok((key, it.behind_a_key(|it| it.php(depth + 1))?))
        };
        let entries = self.some(count, one, || (Datum::Rest, Datum::Rest))?;
        match self.expect(b"}") {
            Err(Stop::Short) => self.is_short = true,
            other => other?,
        }
        Ok(entries)
    }
}

/// MessagePack.
impl Reader<'_> {
    fn number(&mut self, size: usize) -> Read<u64> {
        let bytes = self.take(size)?;
        Ok(bytes
            .iter()
            .fold(0, |all, byte| all << 8 | u64::from(*byte)))
    }

    fn size(&mut self, size: usize) -> Read<usize> {
        usize::try_from(self.number(size)?).map_err(|_| Stop::Wrong)
    }

    fn message_pack(&mut self, depth: usize) -> Read<Datum> {
        self.enter(depth)?;
        let first = self.take(1)?[0];
        let word = |text: String| Ok(Datum::Word(text));
        match first {
            0x00..=0x7f => word(first.to_string()),
            0xe0..=0xff => word((first as i8).to_string()),
            0x80..=0x8f => self.pack_map((first & 15).into(), depth),
            0x90..=0x9f => self.pack_list((first & 15).into(), depth),
            0xa0..=0xbf => self.pack_text((first & 31).into()),
            0xc0 => word("null".into()),
            0xc2 => word("false".into()),
            0xc3 => word("true".into()),
            0xca => {
                let bits = u32::try_from(self.number(4)?).map_err(|_| Stop::Wrong)?;
                word(f32::from_bits(bits).to_string())
            }
            0xcb => word(f64::from_bits(self.number(8)?).to_string()),
            0xcc..=0xcf => word(self.number(1 << (first - 0xcc))?.to_string()),
            0xd0..=0xd3 => {
                let size = 1 << (first - 0xd0);
                let unused = 64 - 8 * size as u32;
                let number = self.number(size)? << unused;
                word((number as i64 >> unused).to_string())
            }
            0xc4..=0xc6 => {
                let size = self.size(1 << (first - 0xc4))?;
                Ok(text_of(self.take_text(size)?))
            }
            0xd9..=0xdb => {
                let size = self.size(1 << (first - 0xd9))?;
                self.pack_text(size)
            }
            0xdc | 0xdd => {
                let count = self.size(2 << (first - 0xdc))?;
                self.pack_list(count, depth)
            }
            0xde | 0xdf => {
                let count = self.size(2 << (first - 0xde))?;
                self.pack_map(count, depth)
            }
            0xd4..=0xd8 => self.pack_other(1 << (first - 0xd4)),
            0xc7..=0xc9 => {
                let size = self.size(1 << (first - 0xc7))?;
                self.pack_other(size)
            }
            0xc1 => Err(Stop::Wrong),
        }
    }

    fn pack_text(&mut self, size: usize) -> Read<Datum> {
        let bytes = self.take_text(size)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Datum::Text(text.to_owned())),
            Err(error) if self.is_short && error.error_len().is_none() => {
                Ok(Datum::Text(String::from_utf8_lossy(bytes).into_owned()))
            }
            Err(_) => Err(Stop::Wrong),
        }
    }

    /// A value of a kind of the program's own.
    fn pack_other(&mut self, size: usize) -> Read<Datum> {
        let kind = self.take(1)?[0] as i8;
        let bytes = self.take_text(size)?;
        let value = Datum::Word(in_digits(bytes));
        Ok(Datum::Named(format!("kind {kind}"), Box::new(value)))
    }

    fn pack_list(&mut self, count: usize, depth: usize) -> Read<Datum> {
        let one = |it: &mut Self| it.message_pack(depth + 1);
        Ok(Datum::List(self.some(count, one, || Datum::Rest)?))
    }

    fn pack_map(&mut self, count: usize, depth: usize) -> Read<Datum> {
        let one = |it: &mut Self| {
            let key = it.message_pack(depth + 1)?;
            match key {
                Datum::Text(_) | Datum::Word(_) => {}
                _ => return Err(Stop::Wrong),
            }
            Ok((key, it.behind_a_key(|it| it.message_pack(depth + 1))?))
        };
        let entries = self.some(count, one, || (Datum::Rest, Datum::Rest))?;
        Ok(Datum::Map(entries))
    }
}

/// Arrays of PHP are lists and maps.
fn list_or_map(entries: Vec<(Datum, Datum)>) -> Datum {
    let is_nth = |(nth, (key, _)): (usize, &(Datum, Datum))| match key {
        Datum::Word(word) => *word == nth.to_string(),
        Datum::Rest => true,
        _ => false,
    };
    match entries.iter().enumerate().all(is_nth) {
        true => Datum::List(entries.into_iter().map(|(_, value)| value).collect()),
        false => Datum::Map(entries),
    }
}

/// A text, or bytes that are none.
fn text_of(bytes: &[u8]) -> Datum {
    match std::str::from_utf8(bytes) {
        Ok(text) => Datum::Text(without_visibility(text).to_owned()),
        Err(_) => Datum::Word(in_digits(bytes)),
    }
}

/// The name of a property, which PHP writes behind the class that may see it.
fn without_visibility(name: &str) -> &str {
    let behind = name.strip_prefix('\0').and_then(|it| it.split_once('\0'));
    behind.map_or(name, |(_, name)| name)
}

fn readable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn in_quotes(bytes: &[u8]) -> String {
    format!("\"{}\"", readable(bytes))
}

/// `"3 bytes: 00 01 ff"`
fn in_digits(bytes: &[u8]) -> String {
    let shown = bytes.iter().take(BYTES_SHOWN);
    let digits: Vec<String> = shown.map(|byte| format!("{byte:02x}")).collect();
    let more = if bytes.len() > BYTES_SHOWN {
        " …"
    } else {
        ""
    };
    format!("\"{} bytes: {}{more}\"", bytes.len(), digits.join(" "))
}

impl Datum {
    /// With a line for each value.
    pub(super) fn in_lines(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, Some(0));
        text
    }

    /// In one line.
    pub(super) fn in_one_line(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, None);
        text
    }

    /// `depth` is `None` in one line.
    fn write(&self, text: &mut String, depth: Option<usize>) {
        match self {
            Datum::Rest => text.push('…'),
            Datum::Word(word) => text.push_str(word),
            Datum::Text(value) => {
                // A string takes everything.
                let _ = write!(text, "{}", serde_json::Value::from(&**value));
            }
            Datum::Named(name, value) => {
                let _ = write!(text, "{name} ");
                value.write(text, depth);
            }
            Datum::List(values) => {
                within(text, ('[', ']'), depth, values, |text, value, depth| {
                    value.write(text, depth);
                });
            }
            Datum::Map(entries) => {
                within(
                    text,
                    ('{', '}'),
                    depth,
                    entries,
                    |text, (key, value), depth| {
                        key.write_key(text);
                        if *key != Datum::Rest {
                            text.push_str(": ");
                            value.write(text, depth);
                        }
                    },
                );
            }
        }
    }

    /// A key of a map is a text in JSON.
    fn write_key(&self, text: &mut String) {
        match self {
            Datum::Word(word) if !word.starts_with('"') => {
                let _ = write!(text, "\"{word}\"");
            }
            other => other.write(text, None),
        }
    }
}

/// Values between brackets.
fn within<T>(
    text: &mut String,
    (open, close): (char, char),
    depth: Option<usize>,
    values: &[T],
    write: impl Fn(&mut String, &T, Option<usize>),
) {
    let new_line = |text: &mut String, depth: Option<usize>| {
        if let Some(depth) = depth {
            text.push('\n');
            text.extend(std::iter::repeat_n("  ", depth));
        }
    };
    let inner = depth.map(|depth| depth + 1);
    text.push(open);
    for (nth, value) in values.iter().enumerate() {
        if nth > 0 {
            text.push(',');
            if depth.is_none() {
                text.push(' ');
            }
        }
        new_line(text, inner);
        write(text, value, inner);
    }
    if !values.is_empty() {
        new_line(text, depth);
    }
    text.push(close);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_php_serializes_is_read() {
        for (bytes, said) in [
            (&b"a:2:{i:0;s:2:\"ab\";i:1;b:1;}"[..], "[\"ab\", true]"),
            (
                b"a:2:{s:4:\"mail\";N;s:1:\"n\";d:0.5;}",
                "{\"mail\": null, \"n\": 0.5}",
            ),
            (
                b"O:8:\"App\\Mail\":2:{s:5:\"\0*\0to\";s:1:\"x\";s:1:\"y\";i:-3;}",
                "App\\Mail {\"to\": \"x\", \"y\": -3}",
            ),
            (b"E:11:\"Suit:Hearts\";", "\"Suit::Hearts\""),
            (b"a:1:{i:5;s:2:\"\xff\0\";}", "{\"5\": \"2 bytes: ff 00\"}"),
            (b"s:3:\"a\"b\";", "\"a\\\"b\""),
            (b"a:0:{}", "[]"),
        ] {
            let read = php(bytes, false).map(|datum| datum.in_one_line());
            assert_eq!(read.as_deref(), Some(said));
        }
        for wrong in [
            &b"s:3:\"abcd\";"[..],
            b"a:1:{i:0;}",
            b"a: note",
            b"i:5;",
            b"a:0:{}x",
            b"",
            b"O:9999999999999999999999:\"",
        ] {
            assert_eq!(php(wrong, false), None, "{wrong:?}");
        }
    }

    #[test]
    fn message_pack_is_read() {
        for (bytes, said) in [
            (
                &b"\x82\xa2id\x07\xa4name\xa3\xc3\xa9!"[..],
                "{\"id\": 7, \"name\": \"é!\"}",
            ),
            (b"\x94\xc0\xc2\xff\xd1\xff\x00", "[null, false, -1, -256]"),
            (b"\x91\xcb\x3f\xe0\0\0\0\0\0\0", "[0.5]"),
            (
                b"\x92\xc4\x02\xff\x01\xcd\x01\x00",
                "[\"2 bytes: ff 01\", 256]",
            ),
            (b"\x91\xd4\xff\x07", "[kind -1 \"1 bytes: 07\"]"),
            (b"\xdc\x00\x01\xa0", "[\"\"]"),
        ] {
            let read = message_pack(bytes, false).map(|datum| datum.in_one_line());
            assert_eq!(read.as_deref(), Some(said));
        }
        for wrong in [
            &b"\x07"[..],
            b"\x81\x91\x01\x02",
            b"\x92\x01",
            b"\x90\x90",
            b"\x91\xc1",
        ] {
            assert_eq!(message_pack(wrong, false), None, "{wrong:?}");
        }
    }

    #[test]
    fn of_the_beginning_of_a_body_what_is_there_is_read() {
        let whole = b"a:2:{s:4:\"mail\";a:1:{i:0;s:5:\"hello\";}s:1:\"n\";i:55;}";
        for end in 5..whole.len() {
            let read = php(&whole[..end], true);
            assert!(read.is_some(), "{end}: {read:?}");
            assert_eq!(php(&whole[..end], false), None, "{end}");
        }
        let read = php(&whole[..20], true).map(|datum| datum.in_one_line());
        assert_eq!(read.as_deref(), Some("{\"mail\": …, …}"));
        let whole = b"\x82\xa4mail\x91\xa5hello\xa1n\xcd\x01\x00";
        for end in 1..whole.len() {
            assert!(message_pack(&whole[..end], true).is_some(), "{end}");
        }
    }

    #[test]
    fn deep_and_large_data_is_refused() {
        let deep = b"\x91".repeat(100_000);
        assert_eq!(message_pack(&deep, true), None);
        let mut many = b"\xdd\x00\x10\x00\x00".to_vec();
        many.extend([0xc0; 100_000]);
        assert_eq!(message_pack(&many, true), None);
    }

    #[test]
    fn a_tree_is_set_in_lines() {
        let datum = php(b"a:2:{s:1:\"a\";a:1:{i:0;i:1;}s:1:\"b\";a:0:{}}", false).unwrap();
        let lines = "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}";
        assert_eq!(datum.in_lines(), lines);
    }
}
