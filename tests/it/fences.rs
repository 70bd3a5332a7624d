//! Code on the pages. Each block says what it is, and each with commands is run here, or says why
//! it is not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::ROOT;
use crate::harness::{Launch, bsd_ctl, bsd_wal, program, skip};
use crate::http::Site;

/// Kinds of blocks without commands.
const OTHER: [&str; 10] = [
    "go", "ini", "json", "php", "python", "ruby", "rust", "text", "toml", "yaml",
];
/// Why a block of commands is not run.
const REASONS: [(&str, &str); 8] = [
    ("build", "it builds the project"),
    ("elsewhere", "it names machines and files of the reader"),
    ("example", "it tells of a state that the page describes"),
    ("long", "it takes minutes"),
    ("machine", "it changes the machine, or looks at all of it"),
    ("ports", "it needs the ports that it names"),
    ("stays", "its last command does not end"),
    ("run", ""),
];

/// A block of code of a page.
struct Fence {
    page: PathBuf,
    line: usize,
    /// The text after the backquotes.
    kind: String,
    lines: Vec<String>,
}

impl Fence {
    fn is_run(&self) -> bool {
        self.kind.ends_with(" run")
    }

    fn place(&self) -> String {
        format!("{}:{}", self.page.display(), self.line)
    }
}

fn fences_of(page: &Path) -> Vec<Fence> {
    let mut fences: Vec<Fence> = Vec::new();
    let mut is_inside = false;
    let text = fs::read_to_string(Path::new(ROOT).join(page)).unwrap();
    for (at, line) in text.lines().enumerate() {
        match line.trim_start().strip_prefix("```") {
            Some(kind) if !is_inside => {
                is_inside = true;
                fences.push(Fence {
                    page: page.to_owned(),
                    line: at + 1,
                    kind: kind.to_owned(),
                    lines: Vec::new(),
                });
            }
            Some(_) => is_inside = false,
            None if is_inside => fences.last_mut().unwrap().lines.push(line.to_owned()),
            None => {}
        }
    }
    fences
}

/// The pages of the handbook, and the README.
fn pages() -> Vec<PathBuf> {
    let mut pages = pages_in("docs");
    pages.push("README.md".into());
    pages
}

fn pages_in(dir: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(ROOT).join(dir)).unwrap();
    let paths = entries.map(|entry| Path::new(dir).join(entry.unwrap().file_name()));
    let mut pages: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .collect();
    pages.sort();
    pages
}

#[test]
fn each_block_of_code_says_what_it_is_and_why_it_is_not_run() {
    let is_known = |kind: &str| match kind.split_once(' ') {
        None => OTHER.contains(&kind),
        Some(("sh" | "console", why)) => REASONS.iter().any(|(it, _)| *it == why),
        Some(_) => false,
    };
    let mut all = pages();
    all.extend(pages_in("docs/dev"));
    all.extend(pages_in("docs/dev/decisions"));
    all.push("CONTRIBUTING.md".into());
    let fences = all.into_iter().flat_map(|page| fences_of(&page));
    let unknown = fences.filter(|fence| !is_known(&fence.kind));
    let unknown: Vec<String> = unknown
        .map(|fence| format!("{}: {:?}", fence.place(), fence.kind))
        .collect();
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

/// A command and what the page says that it says.
struct Shown {
    place: String,
    command: String,
    /// `None`: that is not shown.
    said: Option<Vec<String>>,
}

fn shown(fence: &Fence) -> Vec<Shown> {
    let place = fence.place();
    if fence.kind.starts_with("sh ") {
        return vec![Shown {
            place,
            command: fence.lines.join("\n"),
            said: None,
        }];
    }
    let mut all: Vec<Shown> = Vec::new();
    for line in &fence.lines {
        let is_open = |shown: &Shown| shown.command.matches('\'').count() % 2 == 1;
        match (line.strip_prefix("$ "), all.last_mut()) {
            (_, Some(last)) if is_open(last) => last.command += &format!("\n{line}"),
            (Some(command), _) => all.push(Shown {
                place: place.clone(),
                command: command.to_owned(),
                said: Some(Vec::new()),
            }),
            (None, Some(last)) => last.said.as_mut().unwrap().push(line.clone()),
            (None, None) => panic!("{place}: it begins with no command"),
        }
    }
    all
}

/// The text with 0 for each number.
fn without_numbers(text: &str) -> String {
    let mut without = String::new();
    for letter in text.trim_end().chars() {
        let is_part = letter.is_ascii_digit() || letter == '.' && without.ends_with('0');
        match is_part {
            true if without.ends_with('0') => {}
            true => without.push('0'),
            false => without.push(letter),
        }
    }
    without
}

/// Whether this was said: numbers may differ, `…` stands for anything, and a last line of `…` for any
/// number of lines.
fn is_said(shown: &[String], said: &str) -> bool {
    let said: Vec<&str> = said.lines().collect();
    let (shown, may_go_on) = match shown.split_last() {
        Some((last, before)) if last == "…" => (before, true),
        _ => (shown, false),
    };
    let is_line = |(shown, said): (&String, &&str)| {
        let (shown, said) = (without_numbers(shown), without_numbers(said));
        let mut parts = shown.split('…');
        let Some(mut rest) = parts.next().and_then(|first| said.strip_prefix(first)) else {
            return false;
        };
        let mut is_cut = false;
        for part in parts {
            is_cut = true;
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.is_empty() || is_cut && shown.ends_with('…')
    };
    let is_long_enough = said.len() == shown.len() || may_go_on && said.len() > shown.len();
    is_long_enough && shown.iter().zip(&said).all(is_line)
}

#[test]
fn what_is_said_is_compared_as_people_do() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(is_said(&lines("{\"id\":2}"), "{\"id\":17}\n"));
    assert!(!is_said(&lines("{\"id\":2}"), "{\"id\":17}\nmore\n"));
    assert!(is_said(
        &lines("a 0.25 …b\n…"),
        "a 3 xyz b\nmore\nand more\n"
    ));
    assert!(!is_said(&lines("a …b"), "a b c\n"));
    assert!(!is_said(&lines("a"), ""));
}

/// All blocks of one page that are run, one after another in one shell, beside a server with a log.
fn run(page: &Path) -> usize {
    let fences = fences_of(page);
    let shown: Vec<Shown> = fences
        .iter()
        .filter(|it| it.is_run())
        .flat_map(shown)
        .collect();
    if shown.is_empty() {
        return 0;
    }
    let dir = TempDir::new().unwrap();
    // Without a terminal it would show how far it is.
    fs::write(dir.path().join(".curlrc"), "silent\nshow-error\n").unwrap();
    let site = Site::start(Launch::bsd().dir(&dir.path().join("bsd-data")));
    let (queue, http) = (site.server.address(), site.address.to_string());
    let mut script = String::from("exec 2>&1\n");
    for Shown { command, .. } in &shown {
        let command = command
            .replace("127.0.0.1:11300", &queue.to_string())
            .replace(
                "127.0.0.1 11300",
                &format!("{} {}", queue.ip(), queue.port()),
            )
            .replace("127.0.0.1:11380", &http);
        script += &format!("{command}\nprintf '\\036%s\\036' $?\n");
    }
    let bins = [bsd_ctl(), bsd_wal()].map(|program| program.parent().unwrap().display());
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(dir.path())
        .env("PATH", format!("{}:{}:{path}", bins[0], bins[1]))
        .env("BSD_CTL_ADDRESS", queue.to_string())
        .env("BSD_CTL_HTTP", &http)
        .env("CURL_HOME", dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let parts: Vec<&str> = said.split('\u{1e}').collect();
    let mut wrong = Vec::new();
    for (nth, it) in shown.iter().enumerate() {
        let (said, code) = (parts[2 * nth], parts[2 * nth + 1]);
        let is_right = match &it.said {
            None => code == "0",
            Some(shown) => is_said(shown, said),
        };
        if !is_right {
            wrong.push(format!("{}: {}\n{said}", it.place, it.command));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    shown.len()
}

#[test]
fn what_the_pages_show_is_what_is_said() {
    let needed = ["bash", "curl", "nc", "openssl", "python3"];
    if let Some(missing) = needed.iter().find(|name| program(name).is_none()) {
        return skip(&format!("{missing} is not installed"));
    }
    let ran: usize = pages().iter().map(|page| run(page)).sum();
    assert!(ran > 25, "only {ran} commands were run");
}
