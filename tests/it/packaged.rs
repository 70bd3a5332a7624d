//! Files of the packages: each link of an installed page leads to an installed file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::ROOT;
use crate::pages::links_of;

/// Source and destination of each asset of a list in `Cargo.toml`.
fn assets(list: &str) -> Vec<(String, String)> {
    let manifest = fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap();
    let section = manifest.split(list).nth(1).unwrap();
    let section = section.split("\nassets = [").nth(1).unwrap();
    let lines = section.split("\n]").next().unwrap().lines();
    let lines = lines.filter(|line| !line.trim_start().starts_with('#'));
    let words = lines.map(|line| line.split('"').skip(1).step_by(2).collect::<Vec<_>>());
    words
        .filter(|words| words.len() >= 2)
        .map(|words| {
            (
                words[0].to_owned(),
                words[1].trim_start_matches('/').to_owned(),
            )
        })
        .collect()
}

/// The files of the repository that a pattern with at most one `*` in its last part means.
fn matching(pattern: &str) -> Vec<PathBuf> {
    let (dir, name) = pattern.rsplit_once('/').unwrap_or(("", pattern));
    let Some((begin, end)) = name.split_once('*') else {
        return vec![pattern.into()];
    };
    let entries = fs::read_dir(Path::new(ROOT).join(dir)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.starts_with(begin) && name.ends_with(end))
        .map(|name| Path::new(dir).join(name))
        .collect()
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn g39_each_link_of_an_installed_page_leads_to_an_installed_file() {
    for list in ["[package.metadata.deb]", "[package.metadata.generate-rpm]"] {
        let mut installed = BTreeSet::new();
        let mut pages = Vec::new();
        for (source, to) in assets(list) {
            if source.starts_with("target/") {
                continue;
            }
            for file in matching(&source) {
                assert!(
                    Path::new(ROOT).join(&file).is_file(),
                    "{list}: {}",
                    file.display()
                );
                let at = match to.ends_with('/') {
                    true => Path::new(&to).join(file.file_name().unwrap()),
                    false => PathBuf::from(&to),
                };
                if file.extension().is_some_and(|end| end == "md") {
                    pages.push((file, at.clone()));
                }
                installed.insert(at);
            }
        }
        let (mut seen, mut dead) = (0, Vec::new());
        for (file, at) in &pages {
            let text = fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
            for link in links_of(&text) {
                let path = link.split('#').next().unwrap();
                if path.is_empty() || path.contains("://") {
                    continue;
                }
                seen += 1;
                let to = plain(&at.parent().unwrap().join(path));
                if !installed.contains(&to) {
                    dead.push(format!("{}: {link}", at.display()));
                }
            }
        }
        assert!(seen > 200, "{list}: {seen} links");
        assert!(dead.is_empty(), "{list}:\n{}", dead.join("\n"));
    }
}

#[test]
fn g39_the_paths_that_the_handbook_names_are_those_of_the_packages() {
    let installed = |list: &str| -> BTreeSet<String> {
        let assets = assets(list)
            .into_iter()
            .filter(|(source, _)| !source.starts_with("target/"));
        let files = assets.flat_map(|(source, to)| {
            matching(&source)
                .into_iter()
                .map(move |file| match to.ends_with('/') {
                    true => format!("{to}{}", file.file_name().unwrap().to_str().unwrap()),
                    false => to.clone(),
                })
        });
        files.collect()
    };
    for list in ["[package.metadata.deb]", "[package.metadata.generate-rpm]"] {
        let files = installed(list);
        for page in ["docs/admin.md", "docs/runbook.md", "docs/packages.md"] {
            let text = fs::read_to_string(Path::new(ROOT).join(page)).unwrap();
            let words =
                text.split(|letter: char| letter.is_whitespace() || "`()[],;".contains(letter));
            let paths = words.filter(|word| word.starts_with("/usr/share/bsd-server/"));
            for path in paths.map(|path| path.trim_end_matches('.')) {
                assert!(files.contains(&path[1..]), "{list}: {page}: {path}");
            }
        }
        for file in [
            "usr/bin/bsd-generations",
            "usr/lib/systemd/system/bsd-backup.timer",
            "usr/bin/bsd-rehearsal",
            "usr/lib/systemd/system/bsd-rehearsal.service",
            "usr/lib/systemd/system/bsd-rehearsal.timer",
        ] {
            assert!(files.contains(file), "{list}: {file}");
        }
    }
}
