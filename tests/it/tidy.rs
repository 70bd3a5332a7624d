//! Allowed dependencies: files inside a crate, layers and rooms of the library, packages.
//!
//! The sources are read as text. An arrow goes from a file to the file that defines a name it uses, by
//! a `use` or by a path that begins with `crate`, `self` or `super`; a name that is re-exported leads to
//! the file that defines it. A file and the files below it are one room: arrows between them do not
//! count. Files that exist only in tests do not count either.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::ROOT;
use crate::tokens::{behind, words};

/// The layers of the library, from the ground up. Each knows only those above its line here; those
/// of one line do not know each other.
const LAYERS: &[&[&str]] = &[
    &["sys", "types"],
    &["attributes"],
    &[
        "clock",
        "error_class",
        "histogram",
        "human",
        "random",
        "rlimit",
        "shortage",
    ],
    &["pattern"],
    &["clearing", "policy", "schedule"],
    &["protocol", "queue", "storage"],
    &["engine"],
    &["door"],
    &["library"],
    &["check"],
];

/// Known exceptions of rooms of the storage that use one below: see `src/storage/mod.rs`.
const ROOMS_EXCEPTED: &[(&str, &str)] = &[
    ("storage::inspect", "storage::convert::backup"),
    ("storage::inspect::repair", "storage::convert::build"),
    ("storage::read", "storage::log::files"),
];

/// At most this many lines of programs depend on a feature. Test support (`sim`) is not counted.
const FEATURE_LINES_MAX: usize = 15;

/// The page that has the picture of the packages.
const PICTURE: &str = "docs/dev/architecture.md";

/// Where the package `bsd-client` is.
const CLIENT: &str = "clients/rust";

/// Path of a module: `storage::log` is `["storage", "log"]`.
pub(crate) type Module = Vec<String>;

/// Names in one file.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// Names that it defines at its top.
    pub(crate) defined: BTreeSet<String>,
    /// The paths in its `use` lines, whether they are public, and the names that they get here.
    pub(crate) imports: Vec<(bool, Vec<String>, String)>,
    /// All other paths that begin in this crate.
    paths: Vec<Vec<String>>,
    /// The modules that it declares for tests alone, and those for tests and their support.
    tests: BTreeSet<String>,
    support: BTreeSet<String>,
}

/// Which names a file uses of another one.
type Arrows = BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>;

/// The paths of a tree of `use`, and the names that they give.
fn tree(words: &[String], prefix: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while at < words.len() {
        match words[at].as_str() {
            "::" => at += 1,
            "{" => {
                let end = behind(words, at);
                let mut from = at + 1;
                let mut depth = 0;
                for index in at + 1..end {
                    let is_last = index == end - 1;
                    match words[index].as_str() {
                        "{" => depth += 1,
                        "}" if !is_last => depth -= 1,
                        _ => {}
                    }
                    if is_last || (depth == 0 && words[index] == ",") {
                        tree(&words[from..index], &path, found);
                        from = index + 1;
                    }
                }
                return;
            }
            "as" => {
                found.push((path, words[at + 1].clone()));
                return;
            }
            word => {
                path.push(word.to_owned());
                at += 1;
            }
        }
    }
    if path.len() > prefix.len() {
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = path.last().cloned().unwrap_or_default();
        found.push((path, name));
    }
}

impl File {
    fn read(text: &str) -> File {
        let words = words(text);
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        let mut file = File::default();
        let (mut at, mut depth) = (0, 0);
        // Of the item that comes next: whether it is public, and for tests or their support.
        let (mut is_pub, mut is_test, mut is_support) = (false, false, false);
        while at < words.len() {
            let next = at + 1;
            match word(at) {
                "#" => {
                    let open = if word(next) == "!" { next + 1 } else { next };
                    let end = behind(&words, open);
                    let cfg = &words[open..end];
                    let has = |what: &str| cfg.iter().any(|word| word == what);
                    if word(open) == "[" && has("cfg") && has("test") && !has("not") {
                        is_support = true;
                        is_test |= !has("any");
                    }
                    at = end;
                    continue;
                }
                "pub" => {
                    is_pub = true;
                    at = if word(next) == "(" {
                        behind(&words, next)
                    } else {
                        next
                    };
                    continue;
                }
                "use" if word(next) != "<" => {
                    let end = (at..words.len())
                        .find(|i| words[*i] == ";")
                        .unwrap_or(words.len());
                    let mut found = Vec::new();
                    tree(&words[next..end], &[], &mut found);
                    if !is_test {
                        let imports = found.into_iter().map(|(path, name)| (is_pub, path, name));
                        file.imports.extend(imports);
                    }
                    at = end;
                }
                "mod" => {
                    let name = word(next).to_owned();
                    if is_test {
                        file.tests.insert(name.clone());
                    }
                    if is_support {
                        file.support.insert(name);
                    }
                    if is_test && word(next + 1) == "{" {
                        at = behind(&words, next + 1);
                        (is_pub, is_test, is_support) = (false, false, false);
                        continue;
                    }
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "static" | "union" | "const"
                    if depth == 0 =>
                {
                    let name = if word(next) == "mut" { next + 1 } else { next };
                    file.defined.insert(word(name).to_owned());
                }
                "crate" | "self" | "super" if word(next) == "::" => {
                    let mut path = vec![word(at).to_owned()];
                    at = next;
                    while word(at) == "::" && is_name(word(at + 1)) {
                        path.push(word(at + 1).to_owned());
                        at += 2;
                    }
                    if path.len() > 1 {
                        file.paths.push(path);
                    }
                    continue;
                }
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if matches!(word(at), "{" | "}" | ";") {
                (is_pub, is_test, is_support) = (false, false, false);
            }
            at += 1;
        }
        file
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Module of the file at this path below `src`.
pub(crate) fn module(path: &str) -> Module {
    let parts = path.trim_end_matches(".rs").split('/');
    let mut module: Module = parts.map(str::to_owned).collect();
    if matches!(
        module.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        module.pop();
    }
    module
}

/// The files of a crate.
#[derive(Debug, Default)]
pub(crate) struct Crate {
    pub(crate) files: BTreeMap<Module, File>,
}

impl Crate {
    /// Of sources, each at its path below the crate's `src`.
    pub(crate) fn of<'a>(sources: impl IntoIterator<Item = (String, &'a str)>) -> Crate {
        let mut files: BTreeMap<Module, File> = BTreeMap::new();
        for (path, text) in sources {
            let new = File::read(text);
            let file = files.entry(module(&path)).or_default();
            file.defined.extend(new.defined);
            file.imports.extend(new.imports);
            file.paths.extend(new.paths);
            file.tests.extend(new.tests);
            file.support.extend(new.support);
        }
        Crate { files }
    }

    pub(crate) fn read(root: &str) -> Crate {
        let mut found = Vec::new();
        let root = Path::new(ROOT).join(root);
        collect(&root, &root, &mut found);
        Crate::of(
            found
                .iter()
                .map(|(path, text)| (path.clone(), text.as_str())),
        )
    }

    /// The file that a path leads to, and the name in it.
    pub(crate) fn resolve(
        &self,
        from: &Module,
        path: &[String],
    ) -> Option<(Module, Option<String>)> {
        let mut rest = path;
        let mut module = match rest.first()?.as_str() {
            "crate" => Module::new(),
            "self" | "super" => from.clone(),
            child if self.has(from, child) => from.clone(),
            _ => return None,
        };
        while let Some((first, others)) = rest.split_first()
            && matches!(first.as_str(), "crate" | "self" | "super")
        {
            if first == "super" {
                module.pop();
            }
            rest = others;
        }
        while let Some((first, others)) = rest.split_first()
            && self.has(&module, first)
        {
            module.push(first.clone());
            rest = others;
        }
        Some((module, rest.first().cloned()))
    }

    /// True if the module has a file for this one below it.
    fn has(&self, module: &Module, child: &str) -> bool {
        let below: Module = module
            .iter()
            .map(String::as_str)
            .chain([child])
            .map(str::to_owned)
            .collect();
        self.files.contains_key(&below)
    }

    /// The file that defines a name which a path leads to in `module`, and the name in it.
    pub(crate) fn defining(
        &self,
        module: Module,
        name: &str,
        seen: &mut BTreeSet<(Module, String)>,
    ) -> (Module, String) {
        let here = (module, name.to_owned());
        let Some(file) = self.files.get(&here.0) else {
            return here;
        };
        if file.defined.contains(name) || !seen.insert(here.clone()) {
            return here;
        }
        let import = file.imports.iter().find(|(_, _, given)| given == name);
        match import.and_then(|(_, path, _)| self.resolve(&here.0, path)) {
            Some((next, Some(name))) => self.defining(next, &name, seen),
            Some((next, None)) => (next, here.1),
            None => here,
        }
    }

    /// True if the file, or one that it is in, is declared for tests; `with_support`: or for what
    /// supports them.
    pub(crate) fn is_of_tests(&self, module: &Module, with_support: bool) -> bool {
        (1..=module.len()).any(|length| {
            let (name, parent) = (&module[length - 1], &module[..length - 1]);
            let parent = self.files.get(parent);
            parent.is_some_and(|file| {
                file.tests.contains(name) || (with_support && file.support.contains(name))
            })
        })
    }

    /// All arrows. `with_support`: also those of what supports tests.
    fn arrows(&self, with_support: bool) -> Arrows {
        let mut arrows = Arrows::new();
        for (from, file) in &self.files {
            if self.is_of_tests(from, !with_support) {
                continue;
            }
            let imports = file
                .imports
                .iter()
                .filter(|(is_pub, ..)| !is_pub)
                .map(|(_, path, _)| path);
            for path in imports.chain(&file.paths) {
                let Some((module, name)) = self.resolve(from, path) else {
                    continue;
                };
                let to = match &name {
                    Some(name) => self.defining(module, name, &mut BTreeSet::new()).0,
                    None => module,
                };
                if to.starts_with(from)
                    || from.starts_with(&to)
                    || self.is_of_tests(&to, !with_support)
                {
                    continue;
                }
                let names = arrows
                    .entry(from.clone())
                    .or_default()
                    .entry(to)
                    .or_default();
                names.extend(path.last().cloned());
            }
        }
        arrows
    }
}

pub(crate) fn collect(root: &Path, dir: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path
                .strip_prefix(root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

fn said(from: &Module, to: &Module, names: &BTreeSet<String>) -> String {
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    format!(
        "{} -> {}: {}",
        from.join("::"),
        to.join("::"),
        names.join(", ")
    )
}

/// The arrows that are part of a circle.
fn circles(arrows: &Arrows) -> Vec<String> {
    let reaches = |from: &Module, to: &Module| {
        let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
        while let Some(at) = open.pop() {
            let next = arrows.get(at).into_iter().flat_map(BTreeMap::keys);
            open.extend(next.filter(|next| seen.insert(*next)));
        }
        seen.contains(to)
    };
    let mut found = Vec::new();
    for (from, others) in arrows {
        let closing = others.iter().filter(|(to, _)| reaches(to, from));
        found.extend(closing.map(|(to, names)| said(from, to, names)));
    }
    found
}

/// The arrows against an order of the first parts of paths below `room`: each line knows only those
/// before it. A part that is in no line is one.
fn upward(arrows: &Arrows, room: &[&str], order: &[&[&str]]) -> Vec<String> {
    let part = |module: &Module| {
        let is_below = module.len() > room.len() && module.iter().zip(room).all(|(a, b)| a == b);
        is_below.then(|| module[room.len()].clone())
    };
    let place = |part: &str| order.iter().position(|line| line.contains(&part));
    let mut found = Vec::new();
    for (from, others) in arrows {
        for (to, names) in others {
            let (Some(one), Some(other)) = (part(from), part(to)) else {
                continue;
            };
            let is_down = match (place(&one), place(&other)) {
                (Some(one), Some(other)) => other < one,
                _ => false,
            };
            if one != other && !is_down {
                found.push(said(from, to, names));
            }
        }
    }
    found
}

/// True if a file is this one, or below it.
fn is_in(module: &Module, room: &str) -> bool {
    let room: Vec<_> = room.split("::").map(str::to_owned).collect();
    module.starts_with(&room)
}

/// The sources of all packages.
fn sources() -> Vec<String> {
    let mut roots = vec!["src".to_owned()];
    for dir in ["crates", "tools"] {
        let packages = packages(dir).into_iter();
        roots.extend(packages.map(|name| format!("{dir}/{name}/src")));
    }
    roots.push(format!("{CLIENT}/src"));
    roots
}

/// The packages in a directory, without those that are a workspace of their own.
fn packages(dir: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(Path::new(ROOT).join(dir)).unwrap();
    let packages = entries.map(|entry| entry.unwrap());
    let packages = packages.filter(|entry| {
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml"));
        manifest.is_ok_and(|text| !text.lines().any(|line| line == "[workspace]"))
    });
    packages
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

#[test]
fn no_circle_of_files_is_in_a_crate() {
    let found: Vec<_> = sources()
        .into_iter()
        .flat_map(|root| {
            let closing = circles(&Crate::read(&root).arrows(true)).into_iter();
            closing.map(move |arrow| format!("{root}: {arrow}"))
        })
        .collect();
    assert!(found.is_empty(), "arrows in circles:\n{}", found.join("\n"));
}

#[test]
fn no_layer_of_the_library_knows_one_above_it() {
    let found = upward(&Crate::read("src").arrows(false), &[], LAYERS);
    assert!(found.is_empty(), "arrows upward:\n{}", found.join("\n"));
}

#[test]
fn each_room_of_the_storage_knows_only_those_above_it_in_its_table() {
    let text = fs::read_to_string(Path::new(ROOT).join("src/storage/mod.rs")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let rooms: Vec<_> = rows
        .filter_map(|row| Some([row.split_once('`')?.0]))
        .collect();
    let order: Vec<&[&str]> = rooms.iter().map(<[&str; 1]>::as_slice).collect();
    let mut arrows = Crate::read("src").arrows(false);
    let mut excepted: BTreeSet<&(&str, &str)> = BTreeSet::new();
    for (from, others) in &mut arrows {
        others.retain(|to, _| {
            let exception = ROOMS_EXCEPTED
                .iter()
                .find(|(room, other)| is_in(from, room) && is_in(to, other));
            excepted.extend(exception);
            exception.is_none()
        });
    }
    let found = upward(&arrows, &["storage"], &order);
    assert!(
        order.len() > 5 && found.is_empty(),
        "arrows upward:\n{}",
        found.join("\n")
    );
    assert_eq!(
        excepted.len(),
        ROOMS_EXCEPTED.len(),
        "no more than {excepted:?} are needed"
    );
}

#[test]
fn few_lines_depend_on_a_feature_and_no_file_stands_in_for_a_missing_one() {
    let mut lines = Vec::new();
    for dir in ["src", "crates", "tools"] {
        let mut found = Vec::new();
        let dir = Path::new(ROOT).join(dir);
        collect(&dir, &dir, &mut found);
        for (path, text) in found {
            let name = path.rsplit('/').next().unwrap_or_default();
            assert!(
                !name.starts_with("no_"),
                "{path} stands in for what a feature leaves out"
            );
            let of_features = text.lines().filter(|line| depends_on_a_feature(line));
            lines.extend(of_features.map(|line| format!("{path}: {}", line.trim())));
        }
    }
    assert!(
        lines.len() <= FEATURE_LINES_MAX,
        "{} lines:\n{}",
        lines.len(),
        lines.join("\n")
    );
}

fn depends_on_a_feature(line: &str) -> bool {
    let mut features = line.split("feature = \"").skip(1);
    line.contains("cfg") && features.any(|name| !name.starts_with("sim\""))
}

/// Whether an error is a bare text outside of tests: `Result<_, String>`, `Result<_, &'static str>`,
/// `type Err = String`.
fn has_text_for_error(text: &str) -> bool {
    let words = words(text);
    let is_at = |at: usize, what: &[&str]| {
        let there = words.get(at..at + what.len());
        there.is_some_and(|there| there.iter().zip(what).all(|(word, what)| word == what))
    };
    // The last type before this index.
    let is_text = |end: usize| {
        let is_str = words[end - 1] == "str";
        is_at(end - 2, &[",", "String"])
            || is_str && (is_at(end - 3, &[",", "&"]) || end > 4 && is_at(end - 4, &[",", "&"]))
    };
    let mut open = Vec::new();
    let mut at = 0;
    while at < words.len() {
        if is_at(at, &["#", "[", "cfg", "(", "test", ")", "]"]) {
            let is_end = |at: &usize| matches!(words[*at].as_str(), "{" | ";");
            let end = (at..words.len()).find(is_end).unwrap_or(at);
            at = behind(&words, end);
            continue;
        }
        match words[at].as_str() {
            "<" => open.push(at > 0 && words[at - 1] == "Result"),
            ">" if at > 0 && matches!(words[at - 1].as_str(), "-" | "=") => {}
            ">" if open.pop() == Some(true) && is_text(at) => return true,
            "Err" if is_at(at, &["Err", "=", "String", ";"]) => return true,
            "Err" if is_at(at, &["Err", "=", "&"]) => return true,
            "{" | "}" => open.clear(),
            _ => {}
        }
        at += 1;
    }
    false
}

#[test]
fn no_error_is_a_bare_text_that_has_lost_its_class_and_its_cause() {
    let mut found = Vec::new();
    for root in sources() {
        let dir = Path::new(ROOT).join(&root);
        let mut files = Vec::new();
        collect(&dir, &dir, &mut files);
        let sources = files.iter().map(|(path, text)| (path.clone(), &**text));
        let of = Crate::of(sources);
        files.retain(|(path, text)| {
            !of.is_of_tests(&module(path), false) && has_text_for_error(text)
        });
        found.extend(files.into_iter().map(|(path, _)| format!("{root}/{path}")));
    }
    let found = found.join("\n");
    assert!(
        found.is_empty(),
        "`UsageError` for what a person gave, or another type:\n{found}"
    );
}

/// The packages of this workspace that a manifest names in its dependencies; with `?` if they are
/// optional.
fn known(manifest: &str) -> BTreeSet<String> {
    let mut is_in = false;
    let mut known = BTreeSet::new();
    for line in manifest.lines() {
        if let Some(table) = line.strip_prefix('[') {
            is_in = table == "dependencies]" || table.ends_with(".dependencies]");
            is_in &= !table.starts_with("workspace");
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if is_in && (name == "bsd" || name.starts_with("bsd-")) {
            let name = if name == "bsd" { "bsd-queue" } else { name };
            let mark = if line.contains("optional = true") {
                "?"
            } else {
                ""
            };
            known.insert(format!("{name}{mark}"));
        }
    }
    known
}

/// The picture of the packages: each with those that it knows.
fn picture(page: &str) -> Vec<(String, BTreeSet<String>)> {
    let block = page
        .split("```text\n")
        .find(|block| block.starts_with("package "));
    let block = block
        .and_then(|block| block.split("```").next())
        .unwrap_or_default();
    let rows = block.lines().skip(1).map(|line| {
        let mut words = line.split_whitespace().map(str::to_owned);
        (words.next().unwrap_or_default(), words.collect())
    });
    rows.collect()
}

#[test]
fn packages_know_each_other_as_the_picture_shows_it() {
    let read = |path: &str| fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
    let picture = picture(&read(PICTURE));
    let mut found = BTreeMap::from([("bsd-queue".to_owned(), known(&read("Cargo.toml")))]);
    for dir in ["crates", "tools"] {
        for name in packages(dir) {
            let known = known(&read(&format!("{dir}/{name}/Cargo.toml")));
            found.insert(name, known);
        }
    }
    let client = known(&read(&format!("{CLIENT}/Cargo.toml")));
    found.insert("bsd-client".to_owned(), client);
    let drawn: BTreeMap<_, _> = picture.iter().cloned().collect();
    assert_eq!(found, drawn, "the manifests, and the picture in {PICTURE}");
    let mut above = BTreeSet::new();
    for (name, known) in &picture {
        let known = known.iter().map(|name| name.trim_end_matches('?'));
        let upward: Vec<_> = known.filter(|name| !above.contains(*name)).collect();
        assert!(
            upward.is_empty(),
            "{name} knows {upward:?}, which are not above it"
        );
        above.insert(name.as_str());
    }
}

/// A crate of small sources.
fn small(sources: &[(&str, &str)]) -> Crate {
    Crate::of(
        sources
            .iter()
            .map(|(path, text)| ((*path).to_owned(), *text)),
    )
}

#[test]
fn a_circle_is_found_through_uses_paths_and_names_that_are_exported_again() {
    let by_use = [
        ("a.rs", "use crate::b::{One, Two as Three};"),
        ("b.rs", "use super::a;\npub struct One;"),
    ];
    let by_path = [
        ("a.rs", "fn a() { crate::b::b(1) }"),
        ("b.rs", "fn b() -> super::a::A {}"),
    ];
    let lib = (
        "lib.rs",
        "mod a; mod b; pub use self::b::B; use self::a::A;",
    );
    let by_parent = [
        lib,
        ("a.rs", "use crate::B;\nstruct A;"),
        ("b.rs", "pub enum B {}\nfn b(_: super::A) {}"),
    ];
    for sources in [&by_use[..], &by_path, &by_parent] {
        let found = circles(&small(sources).arrows(true));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("a -> b: ") && found[1].starts_with("b -> a: "),
            "{found:?}"
        );
    }
    let found = circles(&small(&by_use).arrows(true));
    assert_eq!(found[0], "a -> b: One, Two");
    let longer = [
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use crate::c::C;"),
        ("c.rs", "use crate::a::A;"),
    ];
    assert_eq!(circles(&small(&longer).arrows(true)).len(), 3);
    assert_eq!(
        circles(&small(&longer[..2]).arrows(true)),
        Vec::<String>::new()
    );
}

#[test]
fn what_is_above_or_below_in_tests_or_no_code_makes_no_circle() {
    let none: &[&[(&str, &str)]] = &[
        &[
            ("a/mod.rs", "mod b; use self::b::B; struct A;"),
            ("a/b.rs", "use super::A; pub struct B;"),
        ],
        &[
            (
                "a.rs",
                "// use crate::b::B;\n/* crate::b */ const A: &str = r#\"\" crate::b::B\"#;",
            ),
            ("b.rs", "use crate::a::A;"),
        ],
        &[
            (
                "a.rs",
                "const A: char = '\"'; fn f<'a>() {} #[cfg(test)] mod tests { use crate::b::B; }",
            ),
            ("b.rs", "use crate::a::A;"),
        ],
        &[
            ("lib.rs", "#[cfg(test)]\nmod b; mod a;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::a::A;"),
        ],
        &[
            ("a.rs", "pub use crate::b::B;"),
            ("b.rs", "use crate::a::A;"),
        ],
    ];
    for sources in none {
        let found = circles(&small(sources).arrows(true));
        assert_eq!(found, Vec::<String>::new(), "{sources:?}");
    }
    let support = [
        (
            "lib.rs",
            "#[cfg(any(test, feature = \"sim\"))] mod b; mod a;",
        ),
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use crate::a::A;"),
    ];
    assert_eq!(circles(&small(&support).arrows(true)).len(), 2);
    assert_eq!(circles(&small(&support).arrows(false)).len(), 0);
}

#[test]
fn an_arrow_upward_or_to_the_side_is_found() {
    let sources = small(&[
        ("low.rs", "use crate::high::H;"),
        ("side.rs", "use crate::low::L;"),
        ("high.rs", "use crate::low::L; use crate::side::S;"),
        ("high/part.rs", "use super::H; use crate::unknown::U;"),
        ("unknown.rs", ""),
    ]);
    let arrows = sources.arrows(true);
    let found = upward(&arrows, &[], &[&["low", "side"], &["high"]]);
    assert_eq!(
        found,
        [
            "high::part -> unknown: U",
            "low -> high: H",
            "side -> low: L"
        ]
    );
    let found = upward(&arrows, &["high"], &[&["part"]]);
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_bare_text_for_an_error_is_found_outside_of_tests() {
    for (source, has_one) in [
        ("fn f() -> Result<[u8; 2], String> {}", true),
        ("fn f() -> Result<Box<dyn Fn(u8) -> u8>, String> {}", true),
        ("enum E { A(Sender<Result<(), String>>) }", true),
        ("impl FromStr for A { type Err = String; }", true),
        ("fn f() -> Result<(), &'static str> {}", true),
        ("fn f() -> Result<&'a str, &str> {}", true),
        ("impl FromStr for A { type Err = &'static str; }", true),
        ("fn f() -> Result<&'static str, Untrue> {}", false),
        ("fn f() -> Option<(u8, &'static str)> {}", false),
        (
            "fn f(a: [u8; 2]) -> Result<\n    (),\n    String> { a < b }",
            true,
        ),
        ("fn f() -> io::Result<String> { Err(String::new()) }", false),
        ("fn f() -> Result<String, Vec<String>> {}", false),
        ("fn f() -> HashMap<u8, String> { a < b; c > d }", false),
        (
            "#[cfg(test)]\nmod tests { fn f() -> Result<(), String> {} }\nfn g() {}",
            false,
        ),
        (
            "#[cfg(test)]\nuse a::b;\nfn g() -> Result<(), String> {}",
            true,
        ),
        (
            "// Result<(), String>\nconst A: &str = \"Result<(), String>\";",
            false,
        ),
    ] {
        assert_eq!(has_text_for_error(source), has_one, "{source}");
    }
}

#[test]
fn features_and_packages_are_read_as_they_are_written() {
    for (line, is_one) in [
        ("#[cfg(feature = \"man\")]", true),
        ("#[cfg(any(test, feature = \"sim\"))]", false),
        ("#![cfg_attr(not(feature = \"tls\"), allow(unused))]", true),
        ("//! a feature", false),
    ] {
        assert_eq!(depends_on_a_feature(line), is_one, "{line}");
    }
    let manifest = "[workspace.dependencies]\nbsd-net = 1\n[dependencies]\nbsd.workspace = true\n\
                    bsd-wal = { optional = true }\nclap = 4\n[dev-dependencies]\nbsd-archive = 1\n\
                    [target.'cfg(unix)'.dependencies]\nbsd-tools = 1\n";
    let found = Vec::from_iter(known(manifest));
    assert_eq!(found, ["bsd-queue", "bsd-tools", "bsd-wal?"]);
    let page = "```text\nother\n```\n```text\npackage  knows\na\nb  a c?\n```\n";
    let drawn = picture(page);
    assert_eq!(
        drawn[1],
        ("b".to_owned(), ["a", "c?"].map(str::to_owned).into())
    );
    assert_eq!(drawn.len(), 2);
}
