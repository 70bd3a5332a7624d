//! The words of sources, pages, helps and errors: a list of those that a reader whose first language is
//! another one looks up, each with what is written in its place.

use std::fs;
use std::path::{Path, PathBuf};

use crate::ROOT;

/// Refused words, in small letters, and their replacements. A word of one part also counts inside a
/// name: `nobody_waits`.
const WORDS: [(&str, &str); 16] = [
    ("anew", "again"),
    ("anybody", "anyone"),
    ("everybody", "everyone"),
    ("means no good", "is hostile"),
    ("mend", "fix, repair"),
    ("mended", "fixed, repaired"),
    ("mends", "fixes, repairs"),
    ("nobody", "no one"),
    ("so many are", "these are, N are"),
    ("so many bytes", "N bytes"),
    ("so many jobs", "N jobs"),
    ("so many of", "N of"),
    ("so many seconds", "N seconds"),
    ("somebody", "someone"),
    ("whoever", "anyone who, the one that, no matter who"),
    ("whosoever", "anyone who"),
];

/// Where the words are looked for.
const PLACES: [&str; 12] = [
    "benches",
    "contrib",
    "crates",
    "docs",
    "examples",
    "fuzz/fuzz_targets",
    "packaging",
    "src",
    "tests/it",
    "tests/simulation",
    "tests/golden",
    "tools",
];
/// Not looked at: this file, which has them all, and one that names a user of the system, `nobody`.
const EXCEPTED: [&str; 2] = ["tests/it/words.rs", "tests/it/activation.rs"];

/// Files of text below a directory.
fn texts(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let is_text = path.extension().is_some_and(|extension| {
            [
                "css", "html", "js", "md", "rs", "service", "sh", "toml", "yml",
            ]
            .iter()
            .any(|it| extension == *it)
        });
        if path.is_dir() {
            texts(&path, found);
        } else if is_text {
            found.push(path);
        }
    }
}

/// The first word of the list in a line.
fn first_in(line: &str) -> Option<(&'static str, &'static str)> {
    let line = line.to_lowercase();
    let is_end = |letter: Option<char>| !letter.is_some_and(char::is_alphanumeric);
    let has = |word: &str| {
        line.match_indices(word).any(|(at, _)| {
            is_end(line[..at].chars().next_back()) && is_end(line[at + word.len()..].chars().next())
        })
    };
    WORDS.into_iter().find(|(word, _)| has(word))
}

#[test]
fn a_word_is_found_inside_a_name_and_not_inside_a_word() {
    assert_eq!(first_in("fn nobody_waits()"), Some(("nobody", "no one")));
    assert_eq!(
        first_in("/// Whoever asks.").map(|row| row.0),
        Some("whoever")
    );
    assert_eq!(first_in("commended, renewed, so many that"), None);
}

#[test]
fn sources_pages_helps_and_errors_are_in_plain_words() {
    let root = Path::new(ROOT);
    let mut files = Vec::new();
    for place in PLACES {
        texts(&root.join(place), &mut files);
    }
    for page in [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "archive-format.md",
        "storage-format.md",
    ] {
        files.push(root.join(page));
    }
    assert!(files.len() > 300, "{} files", files.len());
    files.retain(|file| !EXCEPTED.iter().any(|it| file.ends_with(it)));
    let mut found = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for (number, line) in text.lines().enumerate() {
            if let Some((word, better)) = first_in(line) {
                let place = file.strip_prefix(root).unwrap().display();
                found.push(format!(
                    "{place}:{}: \"{word}\": write {better}",
                    number + 1
                ));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
