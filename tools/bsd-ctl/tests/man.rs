//! The manual pages and completions that are made from the command line's definition.
#![cfg(feature = "man")]
#![allow(clippy::unwrap_used, reason = "a test's unwrap is a check")]

use std::process::Command;

use tempfile::TempDir;

#[test]
fn manual_pages_and_completions_are_there_for_every_command() {
    let dir = TempDir::new().unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_bsd-ctl"))
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["man", dir.path().to_str().unwrap()]);
    let help = run(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    let names = commands.filter_map(|line| line.split_whitespace().next());
    let mut pages = vec!["bsd-ctl.1".to_owned()];
    pages.extend(
        names
            .filter(|name| *name != "help")
            .map(|name| format!("bsd-ctl-{name}.1")),
    );
    assert!(
        pages.len() > 10 && !pages.contains(&"bsd-ctl-man.1".to_owned()),
        "{pages:?}"
    );
    for page in pages {
        let page = std::fs::read_to_string(dir.path().join("man1").join(page)).unwrap();
        assert!(page.contains(".SH \"EXIT STATUS\""), "{page}");
    }
    for script in ["bash/bsd-ctl", "zsh/_bsd-ctl", "fish/bsd-ctl.fish"] {
        let script = std::fs::read_to_string(dir.path().join(script)).unwrap();
        assert!(script.contains("unpause"), "{script}");
        assert!(script.contains("bsd-ctl tubes --names"), "{script}");
    }
    // Bash understands its script, and finds the function of clap that ours asks first.
    let bash = std::fs::read_to_string(dir.path().join("bash/bsd-ctl")).unwrap();
    assert!(bash.contains("\n_bsd__ctl() {") || bash.starts_with("_bsd__ctl() {"));
    if let Ok(checked) = Command::new("bash")
        .arg("-n")
        .arg(dir.path().join("bash/bsd-ctl"))
        .output()
    {
        assert!(checked.status.success(), "{checked:?}");
    }
    // Each state that it sets is one that it knows.
    let states = |begin: &str, end: &str| -> std::collections::BTreeSet<String> {
        let lines = bash.lines().map(str::trim);
        let states = lines.filter_map(|line| line.strip_prefix(begin)?.strip_suffix(end));
        let states = states.filter(|state| state.starts_with("bsd__") && !state.contains(','));
        states.map(str::to_owned).collect()
    };
    let (set, known) = (states("cmd=\"", "\""), states("", ")"));
    assert!(set.len() > 30 && set.is_subset(&known), "{set:?} {known:?}");
    // Names of tubes are offered where a tube is expected, and nowhere else.
    let zsh = std::fs::read_to_string(dir.path().join("zsh/_bsd-ctl")).unwrap();
    for (line, is_of_tubes) in [
        ("':tube -- The tube:", true),
        ("'::to -- The tube that they are moved to:", true),
        ("':name -- The schedule", false),
        ("':id -- The job:", false),
    ] {
        let mut lines = zsh.lines().filter(|it| it.contains(line)).peekable();
        assert!(lines.peek().is_some(), "{line}");
        assert!(
            lines.all(|it| it.contains("_bsd_ctl_tubes") == is_of_tubes),
            "{line}"
        );
    }
}
