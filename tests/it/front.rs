//! What the library promises: its front, in a golden file.
//!
//! The front is what the root of the library exports, and the types of the library that its
//! signatures name. The sources are read as text, as `rustfmt` writes them: what begins at one
//! indentation is a statement. After an intended change of the front, this writes `front.txt` again:
//!
//! ```sh
//! BSD_MAKE_GOLDEN=1 cargo test --all-features --test it front
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::ROOT;
use crate::tidy::{Crate, Module, collect, module};
use crate::tokens::words;

const GOLDEN: &str = "tests/it/front.txt";

/// Types that the front names and that follow the server. A program takes the default.
const NAMED: [&str; 1] = ["storage::disk::Fs"];

/// An item, a field, a variant or a method: in one line, without its comments.
#[derive(Debug, Default)]
struct Statement {
    attributes: Vec<String>,
    head: String,
    /// The lines between its braces.
    body: Vec<String>,
}

/// The statements at the indentation of the first line, without those for tests and hidden ones.
fn statements(lines: &[String]) -> Vec<Statement> {
    let mut lines = lines
        .iter()
        .map(String::as_str)
        .filter(|line| !line.is_empty() && !line.trim_start().starts_with("//"))
        .peekable();
    let first = lines.peek().map_or("", |line| *line);
    let indent = first.len() - first.trim_start().len();
    let mut found = Vec::new();
    let mut next = Statement::default();
    while let Some(line) = lines.next() {
        let mut text = line.trim().to_owned();
        let is_over = |line: &str| line.ends_with([';', ',', '{', '}', ']']);
        let mut last = line;
        while !is_over(last)
            && let Some(line) = lines.next()
        {
            text = format!("{text} {}", line.trim());
            let is_here = line.len() - line.trim_start().len() == indent;
            last = if is_here { line } else { "" };
        }
        if text.starts_with('#') {
            next.attributes.push(one_line(&text));
            continue;
        }
        if let Some(head) = text.strip_suffix('{') {
            text = head.to_owned();
            let close = format!("{}}}", " ".repeat(indent));
            let inside = lines.by_ref().take_while(|line| !line.starts_with(&close));
            next.body = inside.map(str::to_owned).collect();
        }
        next.head = one_line(text.trim_end_matches([';', ',', '{', '}', ' ']));
        let done = std::mem::take(&mut next);
        let is_left_out =
            |it: &String| it.contains("cfg(") && it.contains("test") || it.contains("hidden");
        if !done.attributes.iter().any(is_left_out) {
            found.push(done);
        }
    }
    found
}

/// What `rustfmt` writes over several lines, as it writes it in one. A constant's value goes.
fn one_line(text: &str) -> String {
    let text = match text.strip_prefix("pub const ") {
        Some(_) => text.split(" = ").next().unwrap_or_default(),
        None => text,
    };
    let mut text = text.to_owned();
    for (long, short) in [
        ("( ", "("),
        ("(mut self", "(self"),
        (", )", ")"),
        (" )", ")"),
        ("< ", "<"),
        (", >", ">"),
        ("[ ", "["),
        (" .", "."),
    ] {
        text = text.replace(long, short);
    }
    text
}

/// The lines of an item's fields, variants or methods that are public with it.
fn members(kind: &str, body: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut has_private = false;
    for part in statements(body) {
        let is_pub = part.head.starts_with("pub ");
        has_private |= !is_pub;
        match kind {
            "enum" if !part.body.is_empty() => {
                let fields = statements(&part.body).into_iter().map(|field| field.head);
                lines.push(format!(
                    "    {} {{ {} }}",
                    part.head,
                    Vec::from_iter(fields).join(", ")
                ));
            }
            "struct" | "impl" if !is_pub => {}
            "fn" => {}
            _ => lines.push(format!("    {}", part.head)),
        }
    }
    if kind == "struct" && has_private {
        lines.push("    ..".to_owned());
    }
    lines
}

/// The kind of an item: the word before its name.
fn kind(head: &str) -> Option<(&str, &str)> {
    let mut words = head.strip_prefix("pub ")?.split([' ', '(', '<', ':', ';']);
    let kind = words
        .by_ref()
        .find(|word| !matches!(*word, "unsafe" | "async"))?;
    Some((kind, words.next()?))
}

/// `pub struct A(B, pub C)` as others see it: `pub struct A(_, pub C)`.
fn without_private_parts(head: &str) -> String {
    let Some((name, parts)) = head.strip_suffix(')').and_then(|head| head.split_once('(')) else {
        return head.to_owned();
    };
    let part = |part| {
        if str::starts_with(part, "pub ") {
            part
        } else {
            "_"
        }
    };
    let parts: Vec<_> = parts.split(", ").map(part).collect();
    format!("{name}({})", parts.join(", "))
}

/// The head of an `impl` of a trait, and the types in it.
fn implemented(statement: &Statement) -> String {
    let body = statements(&statement.body).into_iter();
    let types = body.filter(|it| it.head.starts_with("type "));
    let types = types.map(|it| format!(" {{ {} }}", it.head));
    format!("{}{}", statement.head, String::from_iter(types))
}

/// The path of the type that an `impl` is for.
fn implementer(head: &str) -> Option<Vec<String>> {
    let mut rest = head.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.match_indices(['<', '>']).find(|(at, sign)| {
            let is_arrow = *at > 0 && matches!(rest.as_bytes()[at - 1], b'-' | b'=');
            depth += if *sign == "<" {
                1
            } else {
                -i32::from(!is_arrow)
            };
            depth == 0
        });
        rest = &rest[end?.0 + 1..];
    }
    let rest = rest.split_once(" for ").map_or(rest, |(_, of)| of);
    let path = words(rest).into_iter().take_while(|word| word != "<");
    Some(path.filter(|word| word != "::").collect())
}

/// The sources of the library, and where their names lead.
#[derive(Debug, Default)]
struct Library {
    names: Crate,
    statements: BTreeMap<Module, Vec<Statement>>,
    /// By the item that they are for.
    impls: BTreeMap<Name, Vec<(Module, Statement)>>,
}

type Name = (Module, String);

impl Library {
    fn of(sources: &[(String, String)]) -> Library {
        let texts = sources.iter().map(|(path, text)| (path.clone(), &**text));
        let mut library = Library {
            names: Crate::of(texts),
            ..Library::default()
        };
        for (path, text) in sources {
            let module = module(path);
            if library.names.is_of_tests(&module, true) {
                continue;
            }
            let lines: Vec<_> = text.lines().map(str::to_owned).collect();
            for statement in statements(&lines) {
                match implementer(&statement.head) {
                    Some(path) => {
                        if let Some(item) = library.find(&module, &path) {
                            let impls = library.impls.entry(item).or_default();
                            impls.push((module.clone(), statement));
                        }
                    }
                    None => {
                        let of_module = library.statements.entry(module.clone()).or_default();
                        of_module.push(statement);
                    }
                }
            }
        }
        library
    }

    /// The item that a path leads to, in the file of a module.
    fn find(&self, from: &Module, path: &[String]) -> Option<Name> {
        let (first, rest) = path.split_first()?;
        let file = self.names.files.get(from)?;
        if let Some((module, name)) = self.names.resolve(from, path) {
            return Some(self.names.defining(module, &name?, &mut BTreeSet::new()));
        }
        if file.defined.contains(first) {
            return Some((from.clone(), first.clone()));
        }
        let (_, import, _) = file.imports.iter().find(|(_, _, given)| given == first)?;
        let full = [import, rest].concat();
        if full == path {
            None
        } else {
            self.find(from, &full)
        }
    }

    /// All items of the library that the words of a line lead to.
    fn named(&self, from: &Module, line: &str) -> Vec<Name> {
        let words = words(line);
        let mut found = Vec::new();
        let mut at = 0;
        while at < words.len() {
            let mut path = vec![words[at].clone()];
            while words.get(at + 1).is_some_and(|word| word == "::") && at + 2 < words.len() {
                path.push(words[at + 2].clone());
                at += 2;
            }
            at += 1;
            let is_field = words.get(at).is_some_and(|word| word == ":");
            if !is_field {
                found.extend(self.find(from, &path));
            }
        }
        found
    }

    /// The lines of an item with all that is public of it; none if it is not public itself.
    fn lines<'a>(&'a self, item: &'a Name) -> Vec<(&'a Module, String)> {
        let mut lines = Vec::new();
        let of_module = self.statements.get(&item.0).map_or(&[][..], Vec::as_slice);
        for statement in of_module {
            let Some((kind, _)) = kind(&statement.head).filter(|(_, name)| *name == item.1) else {
                continue;
            };
            let shown = |it: &&String| it.contains("derive") || it.contains("non_exhaustive");
            let attributes = statement.attributes.iter().filter(shown).cloned();
            let head = [without_private_parts(&statement.head)];
            let members = members(kind, &statement.body);
            let all = attributes.chain(head).chain(members);
            lines.extend(all.map(|line| (&item.0, line)));
        }
        if !lines.is_empty() {
            for (module, statement) in self.impls.get(item).into_iter().flatten() {
                let body = match statement.head.contains(" for ") {
                    false => members("impl", &statement.body),
                    true => vec![implemented(statement)],
                };
                lines.extend(body.into_iter().map(|line| (module, line)));
            }
        }
        lines
    }

    /// The whole front: a paragraph an item, what the root exports first.
    fn front(&self) -> String {
        let root = &self.names.files[&Module::new()];
        let exports = root.imports.iter().filter(|(is_pub, ..)| *is_pub);
        let mut front = BTreeMap::new();
        let exports =
            exports.filter_map(|(_, path, given)| Some((self.find(&Module::new(), path)?, given)));
        let mut open: Vec<(Name, String)> = exports
            .map(|(item, given)| (item, format!("bsd::{given}")))
            .collect();
        let mut seen: BTreeSet<Name> = open.iter().map(|(item, _)| item.clone()).collect();
        while let Some((item, shown)) = open.pop() {
            let lines = match NAMED.contains(&&*shown) {
                true => vec![(&item.0, "follows the server".to_owned())],
                false => self.lines(&item),
            };
            for name in lines.iter().flat_map(|(from, line)| self.named(from, line)) {
                if seen.insert(name.clone()) {
                    let shown = [&name.0[..], std::slice::from_ref(&name.1)]
                        .concat()
                        .join("::");
                    open.push((name, shown));
                }
            }
            if !lines.is_empty() {
                let lines: String = lines.iter().map(|(_, line)| format!("{line}\n")).collect();
                front.insert((!shown.starts_with("bsd::"), shown), lines);
            }
        }
        let parts: Vec<_> = front
            .iter()
            .map(|((_, name), lines)| format!("{name}\n{lines}"))
            .collect();
        parts.join("\n")
    }
}

/// The lines of one text that the other has not, each with the item that it belongs to.
fn more<'a>(one: &'a str, other: &'a str) -> Vec<String> {
    let lines = |text: &'a str| {
        let parts = text.split("\n\n").map(str::trim_end);
        parts.flat_map(|part| {
            let name = part.lines().next().unwrap_or_default();
            part.lines().map(move |line| (name, line))
        })
    };
    let others: BTreeSet<_> = lines(other).collect();
    let more = lines(one).filter(|line| !others.contains(line));
    more.map(|(name, line)| format!("{name}: {}", line.trim_start()))
        .collect()
}

#[test]
fn the_front_of_the_library_is_what_its_golden_file_says() {
    let dir = Path::new(ROOT).join("src");
    let mut sources = Vec::new();
    collect(&dir, &dir, &mut sources);
    sources.sort();
    let now = Library::of(&sources).front();
    let path = Path::new(ROOT).join(GOLDEN);
    if std::env::var_os("BSD_MAKE_GOLDEN").is_some() {
        return fs::write(&path, now).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    let (gone, new) = (more(&golden, &now), more(&now, &golden));
    let gone = gone.iter().map(|line| format!("- {line}\n"));
    let diff: String = gone
        .chain(new.iter().map(|line| format!("+ {line}\n")))
        .collect();
    assert!(
        now == golden,
        "the front of the library has changed:\n{diff}Each line with `-` breaks programs and takes a new \
         major version. If all of it is intended, BSD_MAKE_GOLDEN=1 writes {GOLDEN} again."
    );
}

#[test]
fn the_front_is_what_the_root_exports_and_what_that_names() {
    let sources = [
        (
            "lib.rs",
            "mod a;\npub mod b;\npub use a::{A, make as made};\n",
        ),
        (
            "a.rs",
            "use std::fmt;\nuse crate::b::{self, B};\n\n/// An A.\n#[derive(Debug)]\n#[must_use]\npub struct A {\n    \
             /// Public.\n    pub b: Option<B>,\n    hidden: b::Hidden,\n}\n\nimpl A {\n    /// Long.\n    pub fn \
             long(\n        &self,\n        b: u8,\n    ) -> Option<b::C> {\n        self.f(Unseen)\n    }\n\n    fn f() \
             {}\n}\n\nimpl fmt::Display for A {\n    fn fmt() {}\n}\n\nimpl Iterator for A {\n    type Item = u8;\n}\n\n\
             #[cfg(test)]\nimpl Clone for A {}\n\npub fn make<T>() -> T\nwhere\n    T: From<u8>,\n{\n    1\n}\n",
        ),
        (
            "b.rs",
            "pub struct B(u8, pub u16);\npub struct Hidden;\npub struct Unseen;\n\n#[non_exhaustive]\npub enum C {\n    \
             One,\n    Two {\n        /// It.\n        it: u8,\n    },\n}\nimpl<'a, T> From<&'a T> for C {}\n",
        ),
    ];
    let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let front = Library::of(&sources).front();
    let wanted = "bsd::A\n#[derive(Debug)]\npub struct A\n    pub b: Option<B>\n    ..\n    pub fn long(&self, b: \
                  u8) -> Option<b::C>\nimpl fmt::Display for A\nimpl Iterator for A { type Item = u8 }\n\nbsd::made\npub fn \
                  make<T>() -> T where T: From<u8>\n\nb::B\npub struct B(_, pub u16)\n\nb::C\n#[non_exhaustive]\npub enum \
                  C\n    One\n    Two { it: u8 }\nimpl<'a, T> From<&'a T> for C\n";
    assert_eq!(front, wanted);
    let changed = front.replace("    One\n", "    Three\n");
    assert_eq!(more(&front, &changed), ["b::C: One"]);
    assert_eq!(more(&changed, &front), ["b::C: Three"]);
}
