//! The words of sources, pages, helps, errors and subjects of commits: a list of those that a reader
//! whose first language is another one looks up, each with what is written in its place.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ROOT;

/// Refused words, in small letters, and their replacements. A word of one part also counts inside a
/// name: `nobody_waits`.
const WORDS: [(&str, &str); 18] = [
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
    (
        "there are none",
        "no jobs (files, …) are there, it is empty",
    ),
    ("there is none", "no job (file, …) is there, it is missing"),
    ("whoever", "anyone who, the one that, no matter who"),
    ("whosoever", "anyone who"),
];

/// Where the words are looked for.
const PLACES: [&str; 13] = [
    "benches",
    "clients",
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

/// The last commit whose subject is not looked at, while there is no tag of a release. What has landed
/// cannot be changed, and the subjects up to this one were written before they had a fixed form.
const SINCE: &str = "0624e60";
/// The longest subject, in columns.
const SUBJECT_MAX: usize = 72;
/// Areas that are no file or directory of the tree.
const AREAS: [&str; 4] = ["changelog", "ci", "errors", "packages"];
/// What is no verb, as the first word of a subject.
const NO_VERBS: [&str; 24] = [
    "a", "all", "an", "and", "another", "at", "each", "for", "from", "how", "if", "in", "it", "no",
    "of", "on", "one", "that", "the", "there", "what", "when", "where", "who",
];

/// Files of text below a directory.
fn texts(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let is_text = path.extension().is_some_and(|extension| {
            [
                "css", "html", "js", "md", "py", "rs", "service", "sh", "toml", "yml",
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

/// What git prints, if it can.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .current_dir(ROOT)
        .args(arguments)
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Names of the parts of the tree: directories, files of sources, packages with and without `bsd-`.
fn areas(files: &str) -> BTreeSet<&str> {
    let parts = files.lines().flat_map(|path| path.split('/'));
    let names = parts.map(|part| part.trim_end_matches(".rs"));
    let packages = names.clone().filter_map(|name| name.strip_prefix("bsd-"));
    names.chain(packages).chain(AREAS).collect()
}

/// Why a subject is not `area: imperative what`, if it is not.
fn wrong_with(subject: &str, areas: &BTreeSet<&str>) -> Option<String> {
    if subject.chars().count() > SUBJECT_MAX {
        return Some(format!("more than {SUBJECT_MAX} columns"));
    }
    if let Some((word, better)) = first_in(subject) {
        return Some(format!("\"{word}\": write {better}"));
    }
    let Some((named, what)) = subject.split_once(": ") else {
        return Some("no area".to_owned());
    };
    if let Some(area) = named.split(", ").find(|area| !areas.contains(area)) {
        return Some(format!("{area:?} is no part of the tree"));
    }
    let verb = what.split([' ', ',']).next().unwrap_or_default();
    let is_form = |end: &str| verb.len() > end.len() + 2 && verb.ends_with(end);
    let is_verb =
        !NO_VERBS.contains(&verb) && (verb == "bring" || !is_form("ing")) && !is_form("ied");
    (!is_verb).then(|| format!("{verb:?} is no imperative"))
}

#[test]
fn a_subject_of_a_commit_has_an_area_an_imperative_and_plain_words() {
    let areas = areas("src/storage/log/mod.rs\ncrates/bsd-net/src/lib.rs\nREADME.md");
    let wrong = |subject| wrong_with(subject, &areas).unwrap_or_default();
    for fine in [
        "log, net: bring it",
        "bsd-net: use one",
        "ci: say why",
        "storage: read it: twice",
    ] {
        assert_eq!(wrong(fine), "");
    }
    for (subject, why) in [
        ("say why", "no area"),
        ("door: say why", "\"door\" is no part of the tree"),
        ("net: the door says why", "\"the\" is no imperative"),
        ("net: saying why", "\"saying\" is no imperative"),
    ] {
        assert_eq!(wrong(subject), why);
    }
    let (word, better) = WORDS[0];
    let why = format!("\"{word}\": write {better}");
    let subject = format!("net: answer {word}");
    assert_eq!(wrong(&subject), why);
    assert_eq!(
        wrong(&format!("net: {}", "a".repeat(68))),
        "more than 72 columns"
    );
}

#[test]
fn subjects_of_commits_since_the_last_release_are_in_plain_words() {
    if git(&["rev-parse", "--is-shallow-repository"]).as_deref() != Some("false") {
        println!("skipped: no git, or a clone without the history");
        return;
    }
    let tag = git(&["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]);
    let range = format!("{}..HEAD", tag.as_deref().unwrap_or(SINCE));
    let subjects = git(&["log", "--no-merges", "--format=%h %s", &range]).unwrap();
    let files = git(&["ls-files"]).unwrap();
    let areas = areas(&files);
    let wrong = subjects.lines().filter_map(|line| {
        let why = wrong_with(line.split_once(' ')?.1, &areas)?;
        Some(format!("{line}: {why}\n"))
    });
    let wrong: String = wrong.collect();
    assert!(
        wrong.is_empty(),
        "`git rebase -i` before it lands:\n{wrong}"
    );
}
