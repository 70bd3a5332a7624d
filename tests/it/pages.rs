//! The pages of the repository: links lead somewhere, the README is short, lines of prose are not
//! too long, the summary lists each page of the handbook, and the constants in the page on tuning
//! are those of the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::ROOT;

/// The README is read to its end if it is no longer than this.
const README_LINES_MAX: usize = 120;
/// Columns of a line of prose; tables, code and headings may be wider.
const COLUMNS_MAX: usize = 100;
/// Pages whose lines have not been wrapped yet. A page is taken off this list, never put on it.
const UNWRAPPED: [&str; 5] = [
    "CHANGELOG.md",
    "storage-format.md",
    "docs/dev/performance.md",
    "docs/dev/testing.md",
    "fuzz/README.md",
];

/// Every page, by its path from the root of the repository.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for (dir, is_deep) in [
        ("", false),
        ("clients", true),
        ("docs", true),
        ("fuzz", false),
    ] {
        collect(Path::new(dir), is_deep, &mut pages);
    }
    assert!(pages.contains(&PathBuf::from("README.md")), "{pages:?}");
    pages
}

fn collect(dir: &Path, is_deep: bool, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(Path::new(ROOT).join(dir)).unwrap() {
        let entry = entry.unwrap();
        let path = dir.join(entry.file_name());
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        } else if is_deep && entry.file_type().unwrap().is_dir() {
            collect(&path, true, pages);
        }
    }
}

fn text(page: &Path) -> String {
    fs::read_to_string(Path::new(ROOT).join(page)).unwrap()
}

/// The lines of a page outside blocks of code, with their numbers.
fn lines_of_text(page: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push((number + 1, line));
        }
    }
    assert!(!is_code, "a block of code has no end");
    lines
}

/// Where the links of a line lead, code apart.
fn links(line: &str) -> Vec<String> {
    let parts = line.split('`').enumerate();
    let text: String = parts
        .map(|(number, part)| if number % 2 == 0 { part } else { "code" })
        .collect();
    let ends = text.split("](").skip(1);
    ends.map(|rest| rest.split(')').next().unwrap().to_owned())
        .collect()
}

/// Where all links of a page lead.
pub(crate) fn links_of(page: &str) -> Vec<String> {
    let lines = lines_of_text(page).into_iter();
    lines.flat_map(|(_, line)| links(line)).collect()
}

/// The anchors that a page's headings make, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in lines_of_text(page) {
        let title = line.trim_start_matches('#');
        if !line.starts_with('#') || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            _ if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
            _ => None,
        });
        let anchor: String = kept.collect();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(numbered);
        let free = names.find(|name| !anchors.contains(name)).unwrap();
        anchors.insert(free);
    }
    anchors
}

/// Why a link leads nowhere.
fn broken(page: &Path, link: &str) -> Option<String> {
    if link.starts_with("https://") || link.starts_with("http://") {
        return None;
    }
    let (path, anchor) = match link.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (link, None),
    };
    let target = match path {
        "" => page.to_owned(),
        _ => page.parent().unwrap().join(path),
    };
    if !Path::new(ROOT).join(&target).exists() {
        return Some("there is no such file".to_owned());
    }
    let anchor = anchor?;
    (!anchors(&text(&target)).contains(anchor)).then(|| "there is no such heading".to_owned())
}

#[test]
fn every_relative_link_of_every_page_leads_to_a_file_and_a_heading_that_exist() {
    let mut found = 0;
    let mut wrong = Vec::new();
    for page in pages() {
        for (number, line) in lines_of_text(&text(&page)) {
            for link in links(line) {
                found += 1;
                if let Some(why) = broken(&page, &link) {
                    wrong.push(format!("{}:{number}: {link}: {why}", page.display()));
                }
            }
        }
    }
    assert!(found > 50, "only {found} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The summary is what mdBook makes a book of: a page that is missing there cannot be found.
#[test]
fn the_summary_lists_each_page_of_the_handbook_once_in_its_groups() {
    let summary = text(Path::new("docs/SUMMARY.md"));
    let titles = summary.lines().filter_map(|line| line.strip_prefix("# "));
    let groups: Vec<&str> = titles.skip(1).collect();
    assert_eq!(
        groups,
        ["Start", "Use", "Operate", "Trouble", "Reference"],
        "the groups"
    );
    let mut listed = links_of(&summary);
    listed.sort();
    let mut pages = Vec::new();
    collect(Path::new("docs"), false, &mut pages);
    let names = pages.iter().map(|page| page.file_name().unwrap());
    let names = names.map(|name| name.to_str().unwrap().to_owned());
    let mut names: Vec<String> = names.filter(|name| name != "SUMMARY.md").collect();
    names.sort();
    assert_eq!(listed, names, "docs/SUMMARY.md, and the pages of docs");
}

#[test]
fn the_readme_is_short() {
    let lines = text(Path::new("README.md")).lines().count();
    assert!(lines <= README_LINES_MAX, "{lines} lines");
}

#[test]
fn lines_of_prose_are_not_too_long() {
    let mut wrong = Vec::new();
    for page in pages() {
        if UNWRAPPED.iter().any(|exempt| page == Path::new(exempt)) {
            continue;
        }
        for (number, line) in lines_of_text(&text(&page)) {
            let is_prose = !line.starts_with(['|', '#', '<']);
            let columns = line.chars().count();
            if is_prose && columns > COLUMNS_MAX {
                wrong.push(format!("{}:{number}: {columns} columns", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A row of the page on tuning: a constant's name, its value and its file, as the code has them.
#[test]
fn the_page_on_tuning_has_the_names_values_and_files_of_the_code() {
    let page = text(Path::new("docs/dev/tuning.md"));
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let mut found = 0;
    for row in rows {
        let code: Vec<&str> = row.split('`').skip(1).step_by(2).take(3).collect();
        let [name, value, file] = code[..] else {
            panic!("a name, a value and a file are expected: {row}");
        };
        let source = text(Path::new(file));
        let defined = source.lines().filter_map(|line| {
            let (_, rest) = line.split_once(&format!("const {name}: "))?;
            let (_, value) = rest.split_once(" = ")?;
            value.strip_suffix(';')
        });
        let defined: Vec<&str> = defined.collect();
        assert_eq!(defined, [value], "{name} in {file}");
        found += 1;
    }
    assert!(found > 50, "only {found} constants were found");
}

/// The test itself: a link that is broken is seen.
#[test]
fn links_and_anchors_are_found() {
    let line = "see [a](b.md), [c](#d) and `[no](link)`";
    assert_eq!(links(line), ["b.md", "#d"]);
    let page = "# A `b`: c, d\n```\n# no\n```\n## x\n## x\n";
    assert_eq!(Vec::from_iter(anchors(page)), ["a-b-c-d", "x", "x-1"]);
    let readme = Path::new("README.md");
    assert!(broken(readme, "no-such-page.md").is_some());
    assert!(broken(readme, "README.md#no-such-heading").is_some());
    assert!(broken(readme, "#start-it-and-try-it").is_none());
}
