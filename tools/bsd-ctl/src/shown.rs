//! Bodies as one line for people: text where it is text, else bytes in hexadecimal digits, cut.

/// The beginning of a body, in at most this number of characters.
pub(crate) fn body(body: &[u8], width: usize) -> String {
    match std::str::from_utf8(body) {
        Ok(text) => in_one_line(text, width),
        Err(_) => hex(body, width),
    }
}

/// A text without what would move a terminal's cursor.
pub(crate) fn in_one_line(text: &str, width: usize) -> String {
    let mut line = String::new();
    let mut letters = 0;
    let text = text.strip_suffix('\n').unwrap_or(text);
    for letter in text.chars() {
        let shown = match letter {
            '\n' => "\\n".to_owned(),
            '\t' => " ".to_owned(),
            letter => crate::names::shown(letter.encode_utf8(&mut [0; 4])),
        };
        letters += shown.chars().count();
        if letters > width {
            line.push('…');
            break;
        }
        line.push_str(&shown);
    }
    line
}

fn hex(body: &[u8], width: usize) -> String {
    let fit = width.saturating_sub(2) / 2;
    let digits = body.iter().take(fit).map(|byte| format!("{byte:02x}"));
    let mark = if body.len() > fit { "…" } else { "" };
    format!("0x{}{mark}", digits.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_line_and_bytes_are_digits() {
        for (bytes, width, shown) in [
            (&b"to: ann\n"[..], 80, "to: ann"),
            (b"a\nb\tc", 80, "a\\nb c"),
            (b"abcdef", 3, "abc…"),
            (b"\x1b[2J", 80, "\\u{1b}[2J"),
            (b"\xff\x00\x10", 80, "0xff0010"),
            (b"\xff\x00\x10", 6, "0xff00…"),
            (b"", 80, ""),
        ] {
            assert_eq!(body(bytes, width), shown);
        }
    }
}
