//! Exit codes: what the end of the process says to a service manager, and to a person.
//!
//! A code is that of the error's class, and of nothing else.

use bsd::ErrorClass;

/// The process stopped as requested.
pub const EXIT_OK: u8 = 0;

/// Meaning of an exit of one class.
struct End {
    code: u8,
    meaning: &'static str,
    is_tried_again: bool,
}

fn end(class: ErrorClass) -> End {
    let (code, meaning, is_tried_again) = match class {
        ErrorClass::Setup => (1, "cannot start", false),
        ErrorClass::Damaged => {
            let meaning = "the log is damaged: acknowledged jobs cannot be read";
            (3, meaning, false)
        }
        ErrorClass::Disk => {
            let meaning = "the disk failed; nothing was acknowledged after that";
            (4, meaning, true)
        }
        ErrorClass::Usage => (5, "the command line is wrong", false),
        ErrorClass::Replaced => {
            let meaning = "the archive has another writer, or its store cannot hold an archive";
            (6, meaning, false)
        }
        ErrorClass::Diverged => {
            let meaning = "the copy of this member is not what the others of the cluster have";
            (7, meaning, false)
        }
        ErrorClass::Full => (8, "the disk has no room for what cannot wait", true),
        ErrorClass::Descriptors => (9, "no more files can be opened", true),
        ErrorClass::InUse => (10, "another process has the data directory", false),
        ErrorClass::Memory => (11, "the system has no memory", true),
    };
    End {
        code,
        meaning,
        is_tried_again,
    }
}

/// The exit code of a server that ended with an error of this class.
#[must_use]
pub fn exit_code(class: ErrorClass) -> u8 {
    end(class).code
}

/// Whether a service manager should start the server again after an error of this class: it may be
/// better then, and nothing gets worse.
#[must_use]
pub fn is_tried_again(class: ErrorClass) -> bool {
    end(class).is_tried_again
}

/// The end of the text of `--help`.
pub(super) fn help() -> String {
    let mut help = "\
Sizes take a suffix: k, m or g (powers of 1024).

Exit codes:
  0   stopped as asked (SIGTERM, SIGINT), or help or version shown"
        .to_owned();
    for class in ErrorClass::ALL {
        let End { code, meaning, .. } = end(class);
        help.push_str(&format!("\n  {code:<3} {meaning}"));
    }
    help
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::read_to_string;

    use super::*;

    fn file(name: &str) -> String {
        read_to_string(format!(
            "{}/{name}",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
        ))
        .unwrap()
    }

    /// The rows of the first table below this heading.
    fn rows(page: &str, heading: &str) -> Vec<String> {
        let below = page.split_once(heading).unwrap().1;
        let rows = below.lines().skip_while(|line| !line.starts_with('|'));
        let rows = rows.take_while(|line| line.starts_with('|'));
        rows.map(str::to_owned).collect()
    }

    #[test]
    fn g02_each_class_has_one_exit_code_which_help_handbook_and_units_know() {
        let codes = ErrorClass::ALL.map(exit_code);
        assert_eq!(codes, [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let help = help();
        let operating = rows(&file("docs/operating.md"), "\n## Exit codes\n");
        let runbook = rows(&file("docs/runbook.md"), "\n## By exit code\n");
        for class in ErrorClass::ALL {
            let End { code, meaning, .. } = end(class);
            let is_of = |row: &&String| row.starts_with(&format!("| {code} |"));
            let [row] = &operating.iter().filter(is_of).collect::<Vec<_>>()[..] else {
                panic!("operating.md has not one row of {code}");
            };
            let short = meaning.split(':').next().unwrap();
            assert!(row.contains(short), "{meaning}: {row}");
            assert_eq!(runbook.iter().filter(is_of).count(), 1, "{code}");
            assert!(help.contains(&format!("\n  {code:<3} {meaning}")), "{help}");
        }
        let final_ones = ErrorClass::ALL.iter().filter(|it| !is_tried_again(**it));
        let final_ones: BTreeSet<u8> = final_ones.map(|it| exit_code(*it)).collect();
        for unit in ["bsd.service", "beanstalkd.service"] {
            let text = file(&format!("packaging/systemd/{unit}"));
            let lines = text.lines();
            let found = lines.filter_map(|line| line.strip_prefix("RestartPreventExitStatus="));
            let codes: Vec<BTreeSet<u8>> = found
                .map(|codes| codes.split(' ').map(|code| code.parse().unwrap()).collect())
                .collect();
            assert_eq!(codes, std::slice::from_ref(&final_ones), "{unit}");
        }
        let last = final_ones.last().unwrap();
        let others = final_ones.iter().filter(|it| *it != last);
        let others: Vec<String> = others.map(u8::to_string).collect();
        let said = format!("not after exit codes {} and {last}", others.join(", "));
        let page = file("docs/packages.md").replace('\n', " ");
        assert!(page.contains(&said), "docs/packages.md: {said}");
    }
}
