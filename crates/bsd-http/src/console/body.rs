//! What is in a body, for a person: text, JSON, what PHP serializes, MessagePack; also inside zlib,
//! gzip and base64. Everything else is shown byte by byte. Whatever it is, it is text on the page.
//!
//! What is unpacked has at most [`UNPACKED_MAX`] bytes, so a small body cannot become a large page.

use std::borrow::Cow;
use std::fmt::Write;

use base64::Engine as _;
use maud::{Markup, html};
use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZFlush};
use serde_json::Value;

use super::notation::{Datum, message_pack, php};
use bsd::types::is_invisible;

/// Bytes of a body that is no text which are shown.
const HEX_MAX: usize = 4 << 10;
/// Bytes that one body is unpacked to.
const UNPACKED_MAX: usize = 256 << 10;
/// Bytes of a body that a list looks at.
pub(super) const PREFIX: usize = 1 << 10;
/// Characters of a body in a list.
const PREVIEW_MAX: usize = 160;
/// Bytes of a body that is no text in a list.
const PREVIEW_BYTES: usize = 24;
/// Packings inside each other.
const LAYERS_MAX: usize = 3;
/// A shorter text is not taken for base64.
const BASE64_MIN: usize = 24;

/// A body as it can be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Readable {
    /// What it is: `JSON`, `base64: zlib: PHP`.
    pub(super) kind: String,
    pub(super) text: String,
    form: Form,
    /// It was not put like this.
    is_decoded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    /// In the notation of JSON, with colours.
    Data,
    Bytes,
}

/// The contents of some bytes.
enum Content<'a> {
    Json(&'a str),
    Other(&'static str, Datum),
    Text(&'a str),
    Bytes,
}

/// Read a body. Of one that is cut there is only the beginning.
pub(super) fn read(body: &[u8], is_cut: bool) -> Readable {
    unpacked(body, is_cut, |kind, bytes, content| Readable {
        form: match content {
            Content::Text(_) => Form::Text,
            Content::Json(_) | Content::Other(..) => Form::Data,
            Content::Bytes => Form::Bytes,
        },
        is_decoded: !kind.is_empty() || matches!(content, Content::Other(..)),
        kind: format!("{kind}{}", name_of(&content, bytes)),
        text: match content {
            Content::Json(json) => in_lines(json),
            Content::Other(_, datum) => datum.in_lines(),
            Content::Text(text) => text.to_owned(),
            Content::Bytes => hex(&bytes[..bytes.len().min(HEX_MAX)]),
        },
    })
}

/// A body in one line: what it is, and its beginning. Of one that is cut that is all there is.
pub(super) fn preview(body: &[u8], is_cut: bool) -> (String, String) {
    unpacked(body, is_cut, |kind, bytes, content| {
        let kind = format!("{kind}{}", name_of(&content, bytes));
        let line = match content {
            Content::Json(text) | Content::Text(text) => one_line(text, is_cut),
            Content::Other(_, datum) => one_line(&datum.in_one_line(), false),
            Content::Bytes => {
                let shown = bytes.iter().take(PREVIEW_BYTES);
                let digits: Vec<String> = shown.map(|byte| format!("{byte:02x}")).collect();
                let more = if bytes.len() > PREVIEW_BYTES || is_cut {
                    " …"
                } else {
                    ""
                };
                format!("{}{more}", digits.join(" "))
            }
        };
        (kind, line)
    })
}

fn name_of(content: &Content<'_>, bytes: &[u8]) -> &'static str {
    match content {
        Content::Json(_) => "JSON",
        Content::Other(name, _) => name,
        Content::Text("") => "empty",
        Content::Text(_) => "text",
        Content::Bytes if bytes.len() > HEX_MAX => "no text; its first 4 KiB, byte by byte",
        Content::Bytes => "no text; byte by byte",
    }
}

/// Take the packings off, and say what they were.
fn unpacked<T>(body: &[u8], is_cut: bool, say: impl FnOnce(&str, &[u8], Content<'_>) -> T) -> T {
    let (mut kind, mut bytes, mut is_cut) = (String::new(), Cow::Borrowed(body), is_cut);
    for _ in 0..LAYERS_MAX {
        let Some((name, inner)) = unpack(&bytes, is_cut) else {
            break;
        };
        is_cut |= inner.len() == UNPACKED_MAX;
        kind.push_str(name);
        kind.push_str(": ");
        bytes = Cow::Owned(inner);
    }
    let content = content(&bytes, is_cut);
    say(&kind, &bytes, content)
}

fn content(bytes: &[u8], is_cut: bool) -> Content<'_> {
    if let Some(datum) = php(bytes, is_cut) {
        return Content::Other("PHP", datum);
    }
    match text_of(bytes, is_cut) {
        Some(text) if is_json(text, is_cut) => Content::Json(text),
        Some(text) => Content::Text(text),
        None => match message_pack(bytes, is_cut) {
            Some(datum) => Content::Other("MessagePack", datum),
            None => Content::Bytes,
        },
    }
}

/// Text is UTF-8 without control characters but those that set it. The last character may be cut.
fn text_of(bytes: &[u8], is_cut: bool) -> Option<&str> {
    let is_control = |char: char| char.is_control() && !matches!(char, '\n' | '\r' | '\t');
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if is_cut && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return None,
    };
    (!text.contains(is_control)).then_some(text)
}

/// An object or a list. Of a beginning that is what it looks like.
fn is_json(text: &str, is_cut: bool) -> bool {
    let begun = text.trim_start();
    let is_object = begun.starts_with(['{', '[']);
    let is_begun = || {
        let second = begun[1..].trim_start().chars().next();
        second.is_none_or(|char| "\"{[]}-0123456789tfn".contains(char))
    };
    is_object && (serde_json::from_str::<Value>(text).is_ok() || (is_cut && is_begun()))
}

/// The bytes inside a packing, and its name.
fn unpack(bytes: &[u8], is_cut: bool) -> Option<(&'static str, Vec<u8>)> {
    match bytes {
        [0x1f, 0x8b, 8, flags, ..] => {
            let data = behind_gzip_head(bytes, *flags)?;
            Some(("gzip", inflated(data, DataFormat::Raw, is_cut)?))
        }
        [first @ (0x58 | 0x68 | 0x78), second, ..]
            if (u16::from(*first) << 8 | u16::from(*second)).is_multiple_of(31) =>
        {
            Some(("zlib", inflated(bytes, DataFormat::Zlib, is_cut)?))
        }
        _ => Some(("base64", of_base64(bytes, is_cut)?)),
    }
}

fn behind_gzip_head(bytes: &[u8], flags: u8) -> Option<&[u8]> {
    let mut rest = bytes.get(10..)?;
    if flags & 4 > 0 {
        let (size, behind) = rest.split_first_chunk::<2>()?;
        rest = behind.get(usize::from(u16::from_le_bytes(*size))..)?;
    }
    for flag in [8, 16] {
        if flags & flag > 0 {
            let end = rest.iter().position(|byte| *byte == 0)?;
            rest = &rest[end + 1..];
        }
    }
    rest.get(if flags & 2 > 0 { 2.. } else { 0.. })
}

/// Up to [`UNPACKED_MAX`] bytes; a byte more says that they are not all.
fn inflated(bytes: &[u8], format: DataFormat, is_cut: bool) -> Option<Vec<u8>> {
    let mut state = InflateState::new_boxed(format);
    let size = match is_cut {
        true => PREFIX,
        false => UNPACKED_MAX,
    };
    let mut output = vec![0; size];
    let done = inflate(&mut state, bytes, &mut output, MZFlush::Sync);
    // A body that is cut, or larger than is shown, ends in its middle.
    let is_right = done.status.is_ok() || done.status == Err(miniz_oxide::MZError::Buf);
    output.truncate(done.bytes_written);
    (is_right && !output.is_empty()).then_some(output)
}

/// What base64 stands for, where that can be read itself: many a name could be base64.
fn of_base64(bytes: &[u8], is_cut: bool) -> Option<Vec<u8>> {
    use base64::engine::general_purpose::STANDARD;
    let is_of_it = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=\r\n".contains(byte);
    if bytes.len() < BASE64_MIN || !bytes.iter().all(is_of_it) {
        return None;
    }
    let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let mut digits: Vec<u8> = bytes.iter().copied().filter(|it| !is_break(it)).collect();
    if is_cut {
        digits.truncate(digits.len() / 4 * 4);
    }
    let inner = STANDARD.decode(digits).ok()?;
    let is_packed = matches!(inner.first_chunk(), Some([0x1f, 0x8b] | [0x78, _]));
    let can_be_read = match content(&inner, is_cut) {
        Content::Json(_) | Content::Other("PHP", _) | Content::Text(_) => true,
        Content::Bytes | Content::Other(..) => is_packed && unpack(&inner, is_cut).is_some(),
    };
    can_be_read.then_some(inner)
}

/// A text without its lines, as long as a list shows it. A mark stands for what cannot be seen.
pub(super) fn one_line(text: &str, is_cut: bool) -> String {
    let mut line = String::new();
    let (mut count, mut was_blank) = (0, true);
    for char in text.chars() {
        let is_blank = char.is_whitespace();
        if is_blank && was_blank {
            continue;
        }
        if count == PREVIEW_MAX {
            line.push('…');
            return line;
        }
        count += 1;
        was_blank = is_blank;
        line.push(match char {
            _ if is_blank => ' ',
            char if char.is_control() || is_invisible(char) => '\u{fffd}',
            char => char,
        });
    }
    if is_cut {
        line.push('…');
    }
    line
}

/// All of a body, or its beginning, as far as it can be read.
pub(super) fn shown(body: &[u8], is_cut: bool, label: &str) -> Markup {
    let readable = read(body, is_cut);
    html! {
        p class="kind" { (readable.kind) @if is_cut { ", the beginning" } }
        @if !readable.text.is_empty() { (block(&readable, label)) }
        @if readable.is_decoded {
            details {
                summary { "As it was put" }
                (block(&raw(body), "The body as it was put"))
            }
        }
    }
}

fn raw(body: &[u8]) -> Readable {
    let (form, text) = match text_of(body, false) {
        Some(text) => (Form::Text, text.to_owned()),
        None => (Form::Bytes, hex(&body[..body.len().min(HEX_MAX)])),
    };
    Readable {
        kind: String::new(),
        text,
        form,
        is_decoded: false,
    }
}

/// The script of the pages adds a button that copies it.
fn block(readable: &Readable, label: &str) -> Markup {
    html! {
        div class="copied" {
            pre class="body" tabindex="0" aria-label=(label) {
                @if readable.form == Form::Data {
                    (coloured(&readable.text))
                } @else {
                    (readable.text)
                }
            }
        }
    }
}

/// Keys, texts, numbers and words of JSON, each in a colour of its own.
fn coloured(text: &str) -> Markup {
    html! {
        @for (class, piece) in pieces(text) {
            @match class {
                Some(class) => span class=(class) { (piece) },
                None => (piece),
            }
        }
    }
}

fn pieces(text: &str) -> Vec<(Option<&'static str>, &str)> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |char: char| char.is_ascii_alphanumeric() || "+-.".contains(char);
        let (class, size) = match first {
            '"' => {
                let size = quoted(rest);
                let is_key = rest[size..].trim_start().starts_with(':');
                (Some(if is_key { "k" } else { "s" }), size)
            }
            '-' | '0'..='9' => (Some("n"), word_size(rest, is_word)),
            'a'..='z' | 'A'..='Z' => (Some("w"), word_size(rest, is_word)),
            _ => {
                let is_other = |char: char| char != '"' && !is_word(char);
                (None, word_size(rest, is_other).max(first.len_utf8()))
            }
        };
        let (piece, behind) = rest.split_at(size);
        pieces.push((class, piece));
        rest = behind;
    }
    pieces
}

fn word_size(text: &str, is_of_it: impl Fn(char) -> bool) -> usize {
    text.find(|char| !is_of_it(char)).unwrap_or(text.len())
}

/// The size of a text in quotes, which may have no end.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        match char {
            '"' if !is_escaped => return at + 1,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    text.len()
}

/// JSON with a line for each value. No value is changed: numbers stay as they were written.
fn in_lines(json: &str) -> String {
    let mut lines = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut is_escaped, mut is_open) = (0_usize, false, false, false);
    for char in json.chars() {
        if in_string {
            lines.push(char);
            in_string = is_escaped || char != '"';
            is_escaped = char == '\\' && !is_escaped;
            continue;
        }
        let is_end = matches!(char, '}' | ']');
        if char.is_ascii_whitespace() {
            continue;
        }
        if is_end {
            depth = depth.saturating_sub(1);
        }
        if is_open != is_end {
            new_line(&mut lines, depth);
        }
        is_open = false;
        match char {
            '{' | '[' => {
                depth += 1;
                is_open = true;
            }
            '"' => in_string = true,
            _ => {}
        }
        lines.push(char);
        if char == ':' {
            lines.push(' ');
        }
        if char == ',' {
            new_line(&mut lines, depth);
        }
    }
    lines
}

fn new_line(lines: &mut String, depth: usize) {
    lines.push('\n');
    lines.extend(std::iter::repeat_n("  ", depth.min(64)));
}

/// Sixteen bytes a line: where, in digits, as characters.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (nth, line) in bytes.chunks(16).enumerate() {
        let digits: String = line.iter().map(|byte| format!("{byte:02x} ")).collect();
        let as_char = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '.',
        };
        let chars: String = line.iter().map(as_char).collect();
        // A string takes everything.
        let _ = writeln!(text, "{:06x}  {digits:48} {chars}", nth * 16);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use miniz_oxide::deflate::{compress_to_vec, compress_to_vec_zlib};

    fn kind_and_text(body: &[u8]) -> (String, String) {
        let readable = read(body, false);
        (readable.kind, readable.text)
    }

    fn base64(bytes: &[u8]) -> Vec<u8> {
        base64::engine::general_purpose::STANDARD
            .encode(bytes)
            .into()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = vec![0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 3];
        packed.extend(b"name\0");
        packed.extend(compress_to_vec(bytes, 6));
        packed.extend([0; 8]);
        packed
    }

    #[test]
    fn json_is_set_in_lines_and_stays_what_it_was() {
        let json = r#"{"a":[1.00, {"b":{}},[]],"c\"d{,": "x:y" , "e":null}"#;
        let wanted = "{\n  \"a\": [\n    1.00,\n    {\n      \"b\": {}\n    },\n    []\n  ],\n  \
                      \"c\\\"d{,\": \"x:y\",\n  \"e\": null\n}";
        assert_eq!(
            kind_and_text(json.as_bytes()),
            ("JSON".into(), wanted.into())
        );
    }

    #[test]
    fn what_is_no_json_is_text_and_what_is_no_text_is_shown_byte_by_byte() {
        for (body, kind, text) in [
            (&b"{not json}"[..], "text", "{not json}"),
            (b"12", "text", "12"),
            (b"", "empty", ""),
            (b"<b>\n", "text", "<b>\n"),
            (
                b"abcdefghijklmnopqrstuvwxyz01",
                "text",
                "abcdefghijklmnopqrstuvwxyz01",
            ),
        ] {
            assert_eq!(kind_and_text(body), (kind.into(), text.into()));
        }
        let (kind, text) = kind_and_text(b"a\0\xff");
        assert_eq!(kind, "no text; byte by byte");
        assert_eq!(text, format!("000000  61 00 ff {} a..\n", " ".repeat(39)));
        let (kind, text) = kind_and_text(&[0; 5000]);
        assert!(kind.contains("first 4 KiB"));
        assert_eq!(text.lines().count(), 256);
    }

    #[test]
    fn what_is_packed_is_unpacked_and_named() {
        let json = b"{\"id\":5}";
        let php = b"a:1:{i:0;s:5:\"hello\";}";
        for (body, kind, text) in [
            (
                compress_to_vec_zlib(json, 6),
                "zlib: JSON",
                "{\n  \"id\": 5\n}",
            ),
            (gzip(json), "gzip: JSON", "{\n  \"id\": 5\n}"),
            (base64(php), "base64: PHP", "[\n  \"hello\"\n]"),
            (
                base64(&compress_to_vec_zlib(php, 6)),
                "base64: zlib: PHP",
                "[\n  \"hello\"\n]",
            ),
            (
                b"\x81\xa2id\x05".to_vec(),
                "MessagePack",
                "{\n  \"id\": 5\n}",
            ),
            (
                base64(b"some words of a text"),
                "base64: text",
                "some words of a text",
            ),
        ] {
            assert_eq!(kind_and_text(&body), (kind.into(), text.into()));
            assert!(read(&body, false).is_decoded);
        }
    }

    #[test]
    fn a_small_body_does_not_become_a_large_page() {
        let packed = compress_to_vec_zlib(&[b'x'; 4 << 20], 9);
        assert!(packed.len() < 8 << 10);
        assert_eq!(read(&packed, false).text.len(), UNPACKED_MAX);
        let (_, line) = preview(&packed, true);
        assert_eq!(line.chars().count(), PREVIEW_MAX + 1);
    }

    #[test]
    fn a_preview_is_one_line_of_the_beginning() {
        for (body, is_cut, kind, line) in [
            (
                &b"{\n  \"a\": [1,\n 2]\n}"[..],
                false,
                "JSON",
                "{ \"a\": [1, 2] }",
            ),
            (b"{\"a\": \"x\xc3", true, "JSON", "{\"a\": \"x…"),
            (b"a\x01", false, "no text; byte by byte", "61 01"),
            ("a\u{202e}b".as_bytes(), false, "text", "a\u{fffd}b"),
            (b"a:1:{i:0;s:9:\"hel", true, "PHP", "[\"hel\"]"),
        ] {
            assert_eq!(preview(body, is_cut), (kind.into(), line.into()));
        }
        let many: String = (0..4000).map(|id| format!("{{\"id\":{id}}}")).collect();
        let zlib = compress_to_vec_zlib(many.as_bytes(), 6);
        assert_eq!(preview(&zlib[..PREFIX], true).0, "zlib: JSON");
    }

    #[test]
    fn colours_tell_keys_texts_numbers_and_words_apart_and_change_nothing() {
        let json = "{\n  \"a\\\"\": \"b: \\\\\", \"c\": [-1.5e3, true, …], <é>}";
        let found = pieces(json);
        assert_eq!(
            found.iter().map(|(_, piece)| *piece).collect::<String>(),
            json
        );
        let of = |class| {
            let found = found.iter().filter(|(it, _)| *it == Some(class));
            found.map(|(_, piece)| *piece).collect::<Vec<_>>()
        };
        assert_eq!(of("k"), ["\"a\\\"\"", "\"c\""]);
        assert_eq!(of("s"), ["\"b: \\\\\""]);
        assert_eq!(of("n"), ["-1.5e3"]);
        assert_eq!(of("w"), ["true"]);
    }
}
