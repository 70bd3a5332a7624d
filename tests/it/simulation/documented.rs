//! `docs/testing.md` and `docs/promises.md` say which test shows what: here they are held to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The names of all functions in the sources below a directory.
fn functions(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source is text");
            found.extend(text.split("fn ").skip(1).filter_map(name));
        }
    }
}

/// The name that a text begins with, if a parameter list follows it.
fn name(text: &str) -> Option<String> {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    (end > 0 && text[end..].starts_with('(')).then(|| text[..end].to_owned())
}

fn all_functions() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for dir in ["src", "tests"] {
        functions(&Path::new(ROOT).join(dir), &mut found);
    }
    assert!(found.len() > 1000, "only {} functions", found.len());
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

#[test]
fn every_test_that_the_table_of_faults_names_exists() {
    let functions = all_functions();
    let rows = rows("docs/testing.md", 'B');
    assert_numbered(&rows, 36);
    for (number, cells) in rows {
        let named: Vec<&str> = cells[cells.len() - 1]
            .split('`')
            .skip(1)
            .step_by(2)
            .collect();
        assert!(!named.is_empty(), "B{number} names no test");
        for test in named {
            let function = test.rsplit("::").next().unwrap_or(test);
            assert!(
                functions.contains(function),
                "B{number}: there is no {test}"
            );
        }
    }
}

#[test]
fn every_fault_of_beanstalkd_has_a_test_with_its_number_in_its_name() {
    let functions = all_functions();
    let rows = rows("docs/promises.md", 'D');
    assert_numbered(&rows, 32);
    for (number, _) in rows {
        let id = format!("d{number}");
        let has_it = |name: &String| name.split('_').any(|word| word == id);
        assert!(functions.iter().any(has_it), "no test has {id} in its name");
    }
}
