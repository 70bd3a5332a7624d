//! The handbook is held to the sources: each warning and error is in the runbook, and its script
//! for backups makes what it says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bsd::ErrorClass;

use crate::ROOT;
use crate::console::Page;
use crate::harness::{Launch, bsd_ctl, bsd_wal, wal};
use crate::http::Site;

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// The string that begins here, as it is printed, and nothing if none does.
fn literal(source: &str) -> Option<String> {
    let mut text = String::new();
    let mut chars = source.trim_start().strip_prefix('"')?.chars().peekable();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' if chars.next_if_eq(&'\n').is_some() => {
                while chars.next_if(|next| next.is_whitespace()).is_some() {}
            }
            '\\' => text.push(chars.next()?),
            char => text.push(char),
        }
    }
}

/// The words of a line that do not change, up to the clause that only advises; what is between
/// parentheses is left out.
fn fixed_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let line = line.split(';').next().unwrap();
    for (number, part) in line.split('{').enumerate() {
        let part = match number {
            0 => part,
            _ => part.split_once('}').map_or("", |(_, rest)| rest),
        };
        let part = part
            .trim_start_matches(')')
            .split('(')
            .next()
            .unwrap()
            .trim();
        if part.chars().filter(|char| char.is_alphabetic()).count() >= 8 {
            words.push(part.to_owned());
        }
    }
    words
}

/// Each line that a source says, with its beginning as the page would have it.
fn lines_of(source: &str) -> Vec<String> {
    let product = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    let mut lines = Vec::new();
    for (begin, prefix) in [
        ("error!(", ""),
        ("warn!(", ""),
        ("Failure::cannot(", "cannot "),
        ("Failure::cannot(format_args!(", "cannot "),
        ("Failure::Refused(", ""),
        ("Failure::Refused(format!(", ""),
        ("LoadError::Refused(", ""),
        ("foreign(", ""),
        ("foreign(format!(", ""),
    ] {
        for at in product.split(begin).skip(1) {
            lines.extend(literal(at).map(|line| format!("{prefix}{line}")));
        }
    }
    lines.extend(refusals_of(product));
    lines
}

/// Why a directory is refused: the field `what` of each `OpenError::Foreign`.
fn refusals_of(source: &str) -> impl Iterator<Item = String> {
    source
        .split("OpenError::Foreign {")
        .skip(1)
        .filter_map(|at| {
            let fields = at.split("\n}").next()?;
            let what = fields.split("what:").nth(1)?.trim_start();
            literal(what.strip_prefix("format!(").unwrap_or(what))
        })
}

#[test]
fn each_warning_error_and_refusal_is_in_the_runbook() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/runbook.md")).unwrap();
    let mut files = Vec::new();
    for dir in ["src", "crates", "tools/bsd-wal/src"] {
        sources(&Path::new(ROOT).join(dir), &mut files);
    }
    let (mut seen, mut missing) = (0, Vec::new());
    for file in files {
        for line in lines_of(&fs::read_to_string(&file).unwrap()) {
            let words = fixed_words(&line);
            seen += usize::from(!words.is_empty());
            if !words.iter().all(|words| page.contains(words.as_str())) {
                missing.push(format!("{}: {line}", file.display()));
            }
        }
    }
    assert!(seen >= 100, "{seen} lines were found");
    assert!(
        missing.is_empty(),
        "not in docs/runbook.md:\n{}",
        missing.join("\n")
    );
}

#[test]
fn the_words_of_a_line_that_do_not_change_are_found() {
    let source = "warn!(\n  \"cannot do {what} in \\\n   {}: no room here; make some\"\n)";
    let lines = lines_of(source);
    assert_eq!(lines, ["cannot do {what} in {}: no room here; make some"]);
    assert_eq!(fixed_words(&lines[0]), ["cannot do", ": no room here"]);
    let source = "Failure::cannot(format_args!(\"become {user}\"), error)";
    assert_eq!(lines_of(source), ["cannot become {user}"]);
    let source = "OpenError::Foreign {\n path,\n what: format!(\"this is {other}'s\"),\n })";
    assert_eq!(lines_of(source), ["this is {other}'s"]);
}

/// Help of a program with these words.
fn help(program: &Path, words: &[&str]) -> String {
    let output = Command::new(program).args(words).arg("--help").output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// The commands that a help lists.
fn commands_of(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next());
    names.collect()
}

/// Code of a page, a line each.
fn code_of(page: &str) -> Vec<String> {
    let mut is_block = false;
    let mut code = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if is_block {
            code.push(line.trim_start_matches(['$', '#', ' ']).to_owned());
        } else {
            code.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    code
}

/// The unknown part of a line of code, if it calls one of these programs.
fn unknown_in(line: &str, programs: &[(&str, &Path)]) -> Option<String> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let (_, program) = programs.iter().find(|(it, _)| *it == name)?;
    let words: Vec<&str> = words
        .take_while(|word| !["|", "\\|", "&&", ";", "&", "#", ">"].contains(word))
        .collect();
    let general = help(program, &[]);
    let mut path = Vec::new();
    let mut text = general.clone();
    for word in &words {
        let is_word = word
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        let commands = commands_of(&text);
        if word.starts_with('-') {
            continue;
        }
        if !is_word || commands.is_empty() {
            break;
        }
        if !commands.contains(word) {
            return Some(format!("{name} {} {word}", path.join(" ")));
        }
        path.push(*word);
        text = help(program, &path);
    }
    let flags = words
        .iter()
        .filter(|word| word.len() > 2 && word.starts_with("--"));
    let mut flags = flags.map(|flag| flag.split('=').next().unwrap_or(flag));
    let unknown = flags.find(|flag| {
        let flag = flag.trim_end_matches([']', ',', '.']);
        !text.contains(flag) && !general.contains(flag)
    });
    unknown.map(|flag| format!("{name} {} {flag}", path.join(" ")))
}

/// The numbers that follow "exit code" or "exit codes" in a text.
fn exit_codes_in(text: &str) -> Vec<u8> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut codes = Vec::new();
    for rest in text.split("exit code").skip(1) {
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        for word in rest.split_whitespace() {
            let number = word.trim_matches(|letter: char| !letter.is_ascii_digit());
            match number.parse() {
                Ok(code) => codes.push(code),
                Err(_) if ["and", "or"].contains(&word) => continue,
                Err(_) => break,
            }
            if !word.ends_with(',') && !word.ends_with(|letter: char| letter.is_ascii_digit()) {
                break;
            }
        }
    }
    codes
}

#[test]
fn each_exit_code_that_a_page_names_is_one_of_the_programs() {
    let page =
        "With exit code 3: stop. After exit codes 1, 3,\n5 and 10 it rests. The exit code is 7.";
    assert_eq!(exit_codes_in(page), [3, 1, 3, 5, 10]);
    let of_classes = ErrorClass::ALL.map(bsd_server::config::exit_code);
    // 2 is of the tools; a panic; killed with SIGKILL.
    let known: Vec<u8> = of_classes.into_iter().chain([0, 2, 101, 137]).collect();
    let (mut seen, mut wrong) = (0, Vec::new());
    for page in handbook() {
        let codes = exit_codes_in(&fs::read_to_string(&page).unwrap());
        seen += codes.len();
        let unknown = codes.iter().filter(|code| !known.contains(code));
        wrong.extend(unknown.map(|code| format!("{}: exit code {code}", page.display())));
    }
    assert!(seen > 25, "{seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The README and all pages of `docs`.
fn handbook() -> Vec<PathBuf> {
    let mut pages = vec![Path::new(ROOT).join("README.md")];
    let docs = fs::read_dir(Path::new(ROOT).join("docs")).unwrap();
    pages.extend(docs.map(|entry| entry.unwrap().path()));
    pages.retain(|page| page.extension().is_some_and(|it| it == "md"));
    pages
}

#[test]
fn g25_each_command_and_flag_that_a_page_calls_is_one_of_the_programs() {
    let programs: [(&str, &Path); 3] = [
        ("bsd-server", Path::new(env!("CARGO_BIN_EXE_bsd-server"))),
        ("bsd-wal", bsd_wal()),
        ("bsd-ctl", bsd_ctl()),
    ];
    let (mut seen, mut missing) = (0, Vec::new());
    for page in handbook() {
        for line in code_of(&fs::read_to_string(&page).unwrap()) {
            seen += usize::from(line.starts_with("bsd-"));
            let unknown = unknown_in(&line, &programs);
            missing.extend(unknown.map(|it| format!("{}: {it}: {line}", page.display())));
        }
    }
    assert!(seen > 80, "{seen}");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    for line in [
        "bsd-wal archive list URL",
        "bsd-server --standby",
        "bsd-ctl archives",
    ] {
        assert!(unknown_in(line, &programs).is_some(), "{line}");
    }
}

/// What is in a directory, by name.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn backups_in_generations_keep_the_newest_can_be_restored_and_are_told_to_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let [data, backups, restored] =
        ["data", "backups", "restored"].map(|name| dir.path().join(name));
    let site = Site::start(Launch::bsd().dir(&data));
    let mut client = site.server.connect();
    assert_eq!(client.put(b"kept"), 1);
    for old in [
        "2020-01-01T000000Z",
        "2020-01-02T000000Z",
        "not-of-the-script",
    ] {
        fs::create_dir_all(backups.join(old)).unwrap();
    }
    let programs = bsd_wal().parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let run_with = |data: &Path, path: &str| {
        Command::new(Path::new(ROOT).join("contrib/backup/bsd-generations"))
            .args([data, &backups])
            .arg("2")
            .env("PATH", path)
            .env("BSD_CTL_HTTP", site.address.to_string())
            .output()
            .unwrap()
    };
    let run = |data: &Path| run_with(data, &path);
    let output = run(&data);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr, b"");
    let page = Page::shown(&site, "/durability");
    let latest = backups.join("latest");
    for name in ["Last backup", "Last verification"] {
        let said = page.fact(name);
        assert!(said.contains(&format!(": {}<", latest.display())), "{said}");
    }
    let names = names_in(&backups);
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(names[0], "2020-01-02T000000Z");
    assert_eq!(names[2..], ["latest", "not-of-the-script"]);
    let generation = backups.join(&names[1]);
    let args = [
        "restore",
        generation.to_str().unwrap(),
        "--output",
        restored.to_str().unwrap(),
    ];
    let (code, said) = wal(&args);
    assert_eq!(code, Some(0), "{said}");
    let (_, dump) = wal(&["dump", restored.to_str().unwrap()]);
    assert!(dump.contains("kept"), "{dump}");

    // The clock was ahead when these were made: the new one has an earlier name, and stays.
    for ahead in ["9998-01-01T000000Z", "9999-01-01T000000Z"] {
        fs::create_dir(backups.join(ahead)).unwrap();
    }
    assert_eq!(client.put(b"later"), 2);
    let output = run(&data);
    assert!(output.status.success(), "{output:?}");
    let names = names_in(&backups);
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(
        names[1..],
        ["9999-01-01T000000Z", "latest", "not-of-the-script"]
    );
    let (_, dump) = wal(&["dump", backups.join(&names[0]).to_str().unwrap()]);
    assert!(dump.contains("later"), "{dump}");

    // Without hard links there is no generation, although there is a backup.
    let broken = dir.path().join("broken");
    fs::create_dir(&broken).unwrap();
    std::os::unix::fs::symlink("/bin/false", broken.join("cp")).unwrap();
    let output = run_with(&data, &format!("{}:{path}", broken.display()));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let checks = site.get("/api/v1/log").json()["checks"].clone();
    assert_eq!(checks["backup"]["failed"], true, "{checks}");

    let output = run(&dir.path().join("not there"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let checks = site.get("/api/v1/log").json()["checks"].clone();
    assert_eq!(checks["backup"]["failed"], true, "{checks}");
    assert_eq!(checks["verify"]["failed"], false, "{checks}");
    let page = Page::shown(&site, "/durability");
    let said = page.fact("Last backup");
    assert!(said.contains(">FAILED "), "{said}");
}
