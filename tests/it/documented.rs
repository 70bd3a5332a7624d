//! `docs/dev/testing.md`, `bounds.md`, `promises.md` and the patches of `tests/mutants` say which test
//! shows what: here they are held to it. The pages of the handbook name no test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::ROOT;

/// Tests by the names of their functions, each with the names of the directories, files and modules that
/// it is in.
type Tests = BTreeMap<String, Vec<Vec<String>>>;

/// All sources below a directory, with their text.
fn sources_below(dir: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(dir).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source is text");
            found.push((path, text));
        }
    }
}

/// All tests in the sources below a directory.
fn tests_below(dir: &Path, found: &mut Tests) {
    let mut sources = Vec::new();
    sources_below(dir, &mut sources);
    for (path, text) in sources {
        for (modules, test) in tests_in(&text) {
            let place = path.with_extension("");
            let names = place.iter().map(|name| name.to_string_lossy().into_owned());
            let names = names.chain(modules).collect();
            found.entry(test).or_default().push(names);
        }
    }
}

/// The functions that have the attribute `test`, however many others they have, and the modules of the
/// file that they are in.
fn tests_in(text: &str) -> Vec<(Vec<String>, String)> {
    let mut is_test = false;
    let mut modules = Vec::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if line == "}" {
            modules.pop();
        }
        if line.ends_with('{')
            && let Some((_, rest)) = line.trim_end_matches(" {").split_once("mod ")
            && !line.starts_with(' ')
        {
            modules.push(rest.to_owned());
        }
        let line = line.trim();
        if line == "#[test]" {
            is_test = true;
        } else if let Some((_, rest)) = line.split_once("fn ") {
            let test = name(rest).filter(|_| is_test);
            found.extend(test.map(|name| (modules.clone(), name)));
            is_test = false;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_test = false;
        }
    }
    found
}

#[test]
fn only_tests_count_as_tests() {
    let text = "#[test]\n#[should_panic]\n// why\npub(super) fn one() {\n}\nfn two() {\n#[test]\n}\nfn \
                three() {\n}\nmod tests {\n    #[test]\n    fn four() {\n    }\n}\n";
    let none = Vec::<String>::new();
    let found = [
        (none, "one".to_owned()),
        (vec!["tests".into()], "four".into()),
    ];
    assert_eq!(tests_in(text), found);
}

/// The name that a text begins with, if a parameter list follows it.
fn name(text: &str) -> Option<String> {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    (end > 0 && text[end..].starts_with('(')).then(|| text[..end].to_owned())
}

fn all_tests() -> Tests {
    let mut found = Tests::new();
    for dir in ["src", "crates", "tests", "tools"] {
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

/// The function exists, and every name before it is that of a directory, a file or a module that it is
/// in, in their order.
fn assert_exist(tests: &Tests, row: &str, named: &[&str]) {
    for test in named {
        let mut names: Vec<&str> = test.split("::").collect();
        let function = names.pop().unwrap_or_default();
        let places = tests.get(function);
        let is_in = |place: &Vec<String>| {
            let mut place = place.iter();
            names.iter().all(|name| place.any(|it| it == name))
        };
        assert!(
            places.is_some_and(|places| places.iter().any(is_in)),
            "{row}: there is no test {test}; of that name there is {places:?}"
        );
    }
}

#[test]
fn every_test_that_the_table_of_faults_names_exists() {
    let tests = all_tests();
    let rows = rows("docs/dev/testing.md", 'B');
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
    for (letter, count) in [('F', 45), ('T', 13), ('G', 45)] {
        let rows = rows("docs/dev/testing.md", letter);
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
    let rows = rows("docs/dev/promises.md", 'D');
    assert_numbered(&rows, 32);
    for (number, _) in rows {
        let id = format!("d{number}");
        let has_it = |name: &String| name.split('_').any(|word| word == id);
        assert!(tests.keys().any(has_it), "no test has {id} in its name");
    }
}

#[test]
fn every_test_that_the_table_of_bounds_names_exists() {
    let tests = all_tests();
    let page = fs::read_to_string(Path::new(ROOT).join("docs/dev/bounds.md")).expect("the page");
    let mut seen = 0;
    for row in page.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let (_, named) = row.rsplit_once(" | ").expect("two cells");
        for test in named.split('`').skip(1).step_by(2) {
            seen += 1;
            assert!(tests.contains_key(test), "there is no test {test}");
        }
    }
    assert!(seen > 100, "{seen}");
}

/// Who runs a server has neither the tests nor the pages for contributors.
#[test]
fn no_page_of_the_handbook_names_a_test() {
    let tests = all_tests();
    let mut named = Vec::new();
    for entry in fs::read_dir(Path::new(ROOT).join("docs")).expect("the handbook") {
        let page = entry.expect("an entry").path();
        if page.extension().is_none_or(|end| end != "md") {
            continue;
        }
        let text = fs::read_to_string(&page).expect("a page");
        for span in text.split('`').skip(1).step_by(2) {
            let last = span.rsplit("::").next().unwrap_or_default();
            let is_test = last.contains('_') && tests.contains_key(last);
            if is_test || span.starts_with("tests/") {
                named.push(format!("{}: {span}", page.display()));
            }
        }
    }
    assert!(named.is_empty(), "{}", named.join("\n"));
}

/// Hunks of a patch that do not fit: their old lines are not in the file, or are there more than
/// once.
fn misfits(patch: &str) -> Vec<String> {
    let mut misfits = Vec::new();
    for file in patch.split("\n--- a/").skip(1) {
        let path = file.lines().next().expect("a path");
        let text = fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        for hunk in file.split("\n@@ ").skip(1) {
            let hunk = hunk.lines().skip(1).filter(|line| !line.starts_with('+'));
            let old: Vec<&str> = hunk.map(|line| line.get(1..).unwrap_or_default()).collect();
            let places = lines.windows(old.len()).filter(|lines| *lines == old);
            match places.count() {
                1 => (),
                count => misfits.push(format!("{path} has {count} times:\n{}", old.join("\n"))),
            }
        }
    }
    misfits
}

/// Otherwise only `tests/mutants/run` says it, after an hour.
#[test]
fn every_mistake_made_on_purpose_fits_one_place_of_the_code_and_its_checks_exist() {
    let tests = all_tests();
    let entries = fs::read_dir(Path::new(ROOT).join("tests/mutants")).expect("the patches");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let (mut seen, mut all) = (0, Vec::new());
    for path in paths.filter(|path| path.extension().is_some_and(|it| it == "patch")) {
        let name = path.display();
        let patch = fs::read_to_string(&path).expect("a patch is text");
        let head = patch.lines().take_while(|line| !line.starts_with("--- "));
        let checks = head.filter_map(|line| line.strip_prefix("check: ")?.split_once(' '));
        let checks: Vec<&str> = checks.map(|(_, test)| test).collect();
        assert!(!checks.is_empty() && patch.contains("\n@@ "), "{name}");
        assert_exist(&tests, &name.to_string(), &checks);
        all.extend(misfits(&patch).iter().map(|it| format!("{name}: {it}")));
        seen += 1;
    }
    assert!(seen > 100, "{seen} patches");
    let rewrite = "make each of these mistakes in the code of today (see CONTRIBUTING.md)";
    assert!(all.is_empty(), "{rewrite}:\n{}", all.join("\n\n"));
}

/// One build has every flag of the packages: the features of a package are for tests and manual pages.
#[test]
fn g43_no_package_has_a_feature_without_which_a_program_has_less() {
    let mut seen = 0;
    for dir in [".", "crates/*", "tools/*"] {
        for manifest in manifests(dir) {
            let text = fs::read_to_string(&manifest).expect("a manifest");
            seen += 1;
            let Some(features) = text.split("\n[features]\n").nth(1) else {
                continue;
            };
            let features = features.split("\n[").next().expect("the section");
            let lines = features.lines().filter(|line| !line.starts_with('#'));
            let names = lines.filter_map(|line| line.split_once(" = "));
            for (name, _) in names {
                assert!(
                    ["sim", "man"].contains(&name),
                    "{}: {name}",
                    manifest.display()
                );
            }
        }
    }
    assert!(seen >= 9, "{seen} packages");
}

/// A failure of a random test ends with the command that repeats it. No package has a feature for a part
/// of the program, and each part is a package.
#[test]
fn each_command_that_runs_tests_names_packages_that_exist_and_no_feature() {
    let manifests = [".", "crates/*", "tools/*", "tests/*"].map(manifests);
    let packages: Vec<String> = (manifests.iter().flatten())
        .map(|manifest| fs::read_to_string(manifest).expect("a manifest"))
        .filter_map(|text| Some(text.split("\nname = \"").nth(1)?.split('"').next()?.into()))
        .collect();
    let mut sources = Vec::new();
    for dir in ["src", "crates", "tests", "tools"] {
        sources_below(&Path::new(ROOT).join(dir), &mut sources);
    }
    let mut seen = 0;
    for (path, text) in &sources {
        for (_, rest) in text
            .match_indices("cargo test ")
            .map(|(at, _)| text.split_at(at))
        {
            let command = rest.split(['"', '`', '\n']).next().expect("a beginning");
            let package = command.split_once(" -p ").map(|(_, rest)| rest);
            let package = package.map(|rest| rest.split_whitespace().next().expect("a name"));
            let exists = |package: &str| packages.iter().any(|name| name == package);
            let is_right = !command.contains("--features") && package.is_none_or(exists);
            assert!(is_right, "{}: {command}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 12, "{seen} commands");
}

/// The manifests of the packages of the workspace in a directory, or in those below it.
fn manifests(dir: &str) -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    let Some(above) = dir.strip_suffix("/*") else {
        return vec![root.join(dir).join("Cargo.toml")];
    };
    let entries = fs::read_dir(root.join(above)).expect("packages");
    let manifests = entries.map(|entry| entry.expect("an entry").path().join("Cargo.toml"));
    manifests.filter(|manifest| manifest.is_file()).collect()
}

/// Each table of architecture.md that walks through files: its rows, as file and functions.
fn walks(page: &str) -> Vec<Vec<(String, Vec<String>)>> {
    let mut walks = Vec::new();
    let mut lines = page.lines();
    while lines.any(|line| line == "| file | function | what happens |") {
        let rows = lines
            .by_ref()
            .skip(1)
            .take_while(|line| line.starts_with('|'));
        let rows = rows.map(|row| {
            let mut cells = row.split('|').skip(1);
            let names = |cell: Option<&str>| -> Vec<String> {
                let quoted = cell.expect("three cells").split('`').skip(1).step_by(2);
                quoted.map(str::to_owned).collect()
            };
            let file = names(cells.next()).pop().expect("the name of a file");
            (file, names(cells.next()))
        });
        walks.push(rows.collect());
    }
    walks
}

#[test]
fn each_walk_names_functions_that_are_in_their_files_and_few_files() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/dev/architecture.md")).unwrap();
    let walks = walks(&page);
    assert_eq!(walks.len(), 6, "the walks of architecture.md");
    for (number, walk) in walks.iter().enumerate() {
        let mut files: Vec<&String> = walk.iter().map(|(file, _)| file).collect();
        files.sort();
        files.dedup();
        // The page says why the first one is longer.
        let most = if number == 0 { 14 } else { 12 };
        assert!(files.len() <= most, "{} files: {files:?}", files.len());
        for (file, functions) in walk {
            let source = fs::read_to_string(Path::new(ROOT).join(file));
            let source = source.unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(!functions.is_empty(), "{file}: no function is named");
            for function in functions {
                let has_it = ["(", "<"]
                    .iter()
                    .any(|end| source.contains(&format!("fn {function}{end}")));
                assert!(has_it, "{file} has no `fn {function}`");
            }
        }
    }
}
