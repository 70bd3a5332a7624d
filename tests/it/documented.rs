//! `docs/testing.md` and `docs/promises.md` say which test shows what: here they are held to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The names of all tests in the sources below a directory.
fn tests_below(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            tests_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(tests_in(
                &fs::read_to_string(&path).expect("a source is text"),
            ));
        }
    }
}

/// The names of the functions that have the attribute `test`, however many others they have.
fn tests_in(text: &str) -> Vec<String> {
    let mut is_test = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some((_, rest)) = line.split_once("fn ") {
            found.extend(name(rest).filter(|_| is_test));
            is_test = false;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_test = false;
        }
    }
    found
}

#[test]
fn only_tests_count_as_tests() {
    let text = "#[test]\n#[should_panic]\n// why\npub(super) fn one() {\nfn two() {\n#[test]\n}\nfn three() {";
    assert_eq!(tests_in(text), ["one"]);
}

/// The name that a text begins with, if a parameter list follows it.
fn name(text: &str) -> Option<String> {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    (end > 0 && text[end..].starts_with('(')).then(|| text[..end].to_owned())
}

fn all_tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for dir in ["src", "tests", "tools"] {
        tests_below(&Path::new(ROOT).join(dir), &mut found);
    }
    assert!(found.len() > 700, "only {} tests", found.len());
    found
}

/// The cells of the rows of a document whose first cell is `letter` and a number.
fn rows(document: &str, letter: char) -> Vec<(u32, Vec<String>)> {
    let text = fs::read_to_string(Path::new(ROOT).join(document)).expect("the document");
    let row = |line: &str| {
        let cells: Vec<String> = line
            .trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect();
        let number = cells[0].strip_prefix(letter)?.parse().ok()?;
        Some((number, cells))
    };
    text.lines().filter_map(row).collect()
}

fn assert_numbered(rows: &[(u32, Vec<String>)], least: u32) {
    let numbers: Vec<u32> = rows.iter().map(|row| row.0).collect();
    assert!(numbers.len() >= least as usize, "{numbers:?}");
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u32));
}

/// The texts between backquotes in the last cell.
fn named(cells: &[String]) -> Vec<&str> {
    cells[cells.len() - 1]
        .split('`')
        .skip(1)
        .step_by(2)
        .collect()
}

fn assert_exist(tests: &BTreeSet<String>, row: &str, named: &[&str]) {
    for test in named {
        let function = test.rsplit("::").next().unwrap_or(test);
        assert!(tests.contains(function), "{row}: there is no test {test}");
    }
}

#[test]
fn every_test_that_the_table_of_faults_names_exists() {
    let tests = all_tests();
    let rows = rows("docs/testing.md", 'B');
    assert_numbered(&rows, 36);
    for (number, cells) in rows {
        let named = named(&cells);
        assert!(!named.is_empty(), "B{number} names no test");
        assert_exist(&tests, &format!("B{number}"), &named);
    }
}

/// A row without a test must say which document gives the answer in its place.
#[test]
fn every_finding_has_a_row_and_every_test_that_it_names_exists() {
    let tests = all_tests();
    for (letter, count) in [('F', 45), ('T', 13), ('G', 14)] {
        let rows = rows("docs/testing.md", letter);
        assert!(rows.len() >= count, "{letter}: {}", rows.len());
        assert!(rows.is_sorted_by(|one, next| one.0 < next.0), "{letter}");
        for (number, cells) in rows {
            let row = format!("{letter}{number}");
            let named = named(&cells);
            let has_answer = !named.is_empty() || cells[cells.len() - 1].contains(".md");
            assert!(has_answer, "{row} names neither a test nor a document");
            assert_exist(&tests, &row, &named);
        }
    }
}

#[test]
fn every_fault_of_beanstalkd_has_a_test_with_its_number_in_its_name() {
    let tests = all_tests();
    let rows = rows("docs/promises.md", 'D');
    assert_numbered(&rows, 32);
    for (number, _) in rows {
        let id = format!("d{number}");
        let has_it = |name: &String| name.split('_').any(|word| word == id);
        assert!(tests.iter().any(has_it), "no test has {id} in its name");
    }
}

/// One build has every flag of the packages: what is not a default feature is for tests.
#[test]
fn g43_the_default_features_are_all_but_the_simulated_disk() {
    let manifest = fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).expect("a manifest");
    let features = manifest.split("\n[features]\n").nth(1).expect("features");
    let features = features.split("\n[").next().expect("the section");
    let lines = features.lines().filter(|line| !line.starts_with('#'));
    let features = lines.filter_map(|line| line.split_once(" = "));
    let (default, others): (Vec<_>, Vec<_>) = features.partition(|(name, _)| *name == "default");
    let default: BTreeSet<&str> = default[0].1.split('"').skip(1).step_by(2).collect();
    let others: BTreeSet<&str> = others.into_iter().map(|(name, _)| name).collect();
    let rest: Vec<&&str> = others.difference(&default).collect();
    assert_eq!(rest, [&"sim"]);
}
