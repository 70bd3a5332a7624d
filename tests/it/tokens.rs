//! Sources of Rust as words, for the tests that read them.

/// Rust's words, `::`, and single signs; without comments and literals.
pub(crate) fn words(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let starts = |at: usize, what: &str| {
        what.chars()
            .enumerate()
            .all(|(i, c)| chars.get(at + i) == Some(&c))
    };
    let find = |from: usize, what: &str| {
        (from..chars.len())
            .find(|at| starts(*at, what))
            .unwrap_or(chars.len())
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let c = chars[at];
        if starts(at, "//") {
            at = find(at, "\n");
        } else if starts(at, "/*") {
            at = find(at + 2, "*/") + 2;
        } else if let Some(hashes) = raw_string(&chars[at..]) {
            let end = format!("\"{}", "#".repeat(hashes));
            at = find(find(at, "\"") + 1, &end) + end.len();
        } else if c == '"' {
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if c == '\'' {
            // A character, or the name of a lifetime.
            at = match (chars.get(at + 1), chars.get(at + 2)) {
                (Some('\\'), _) => find(at + 3, "'") + 1,
                (Some(_), Some('\'')) => at + 3,
                _ => at + 1,
            };
        } else if is_word(c) {
            let end = (at..chars.len())
                .find(|i| !is_word(chars[*i]))
                .unwrap_or(chars.len());
            words.push(chars[at..end].iter().collect());
            at = end;
        } else if starts(at, "::") {
            words.push("::".to_owned());
            at += 2;
        } else {
            if !c.is_whitespace() {
                words.push(c.to_string());
            }
            at += 1;
        }
    }
    words
}

/// How many `#` the raw string has that begins here, if one does.
fn raw_string(chars: &[char]) -> Option<usize> {
    let prefix = chars
        .iter()
        .take_while(|c| matches!(c, 'b' | 'c' | 'r'))
        .count();
    if prefix == 0 || prefix > 2 || chars[prefix - 1] != 'r' {
        return None;
    }
    let hashes = chars[prefix..].iter().take_while(|c| **c == '#').count();
    (chars.get(prefix + hashes) == Some(&'"')).then_some(hashes)
}

/// The index behind what is closed by the bracket that opens at `at`.
pub(crate) fn behind(words: &[String], at: usize) -> usize {
    let mut depth = 0;
    for (index, word) in words.iter().enumerate().skip(at) {
        match word.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    words.len()
}
