//! The recipes of `contrib/recipes`: each is run by `tests/clients/recipes.py` with the program or the
//! library that it is for, and the pages show them as they are.
//!
//! The interpreter is that of `BSD_VENV`, and the server the one under test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ROOT;
use crate::client_python::run;
use crate::clients::{folder, python_with, script};
use crate::harness::{Launch, bsd_ctl};

/// The pages that show them.
const PAGES: [&str; 2] = ["docs/recipes.md", "docs/deployment.md"];

/// Run the recipe of this class.
fn recipe(name: &str) {
    let (Some(python), Some(_)) = (python_with("ansible, django"), Launch::bsd_alone()) else {
        return;
    };
    let built = || env!("CARGO_BIN_EXE_bsd-server").into();
    let server = std::env::var_os("BSD_SERVER_UNDER_TEST").unwrap_or_else(built);
    let text = run(Command::new(python)
        .args(["-W", "error", "-m", "unittest", "-v"])
        .arg(format!("recipes.{name}"))
        .current_dir(script(""))
        .env(
            "BSD_NODE_MODULES",
            folder("BSD_NODE_MODULES", "node/node_modules"),
        )
        .env("BSD_CTL_UNDER_TEST", bsd_ctl())
        .env("BSD_SERVER_UNDER_TEST", server));
    println!("{text}");
}

/// A test for each of them, so that they run side by side.
macro_rules! recipes {
    ($($test:ident: $class:literal,)*) => {
        /// The classes of `recipes.py` that are run.
        const CLASSES: &[&str] = &[$($class),*];

        $(
            #[test]
            fn $test() {
                recipe($class);
            }
        )*
    };
}

recipes! {
    the_recipe_for_laravel_works: "Laravel",
    the_recipe_for_symfony_works: "Symfony",
    the_recipe_for_django_works: "Django",
    the_recipe_for_fastapi_works: "FastApi",
    the_recipe_for_backburner_can_be_read: "Backburner",
    the_recipe_for_jackd_works: "Jackd",
    the_recipe_for_go_can_be_read: "Go",
    the_recipe_for_docker_compose_has_a_check_that_tells: "Compose",
    the_recipe_for_kubernetes_makes_a_cluster_of_three: "Kubernetes",
    the_recipe_for_systemd_is_verified: "Systemd",
    the_recipe_for_supervisor_works: "Supervisor",
    the_recipe_for_ansible_writes_flags_that_the_server_takes: "Ansible",
    the_recipe_for_haproxy_finds_the_next_leader: "Haproxy",
    the_recipe_for_keepalived_knows_the_leader: "Keepalived",
}

#[test]
fn each_recipe_of_the_script_is_run() {
    let text = fs::read_to_string(script("recipes.py")).unwrap();
    let classes = text.lines().filter_map(|line| line.strip_prefix("class "));
    let classes = classes.filter_map(|line| line.strip_suffix("(Recipe):"));
    let run: BTreeSet<&str> = CLASSES.iter().copied().collect();
    assert_eq!(classes.collect::<BTreeSet<_>>(), run);
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(path),
        }
    }
}

/// The blocks of code of a page that are no commands.
fn sources_on(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut block) {
            (Some(kind), None) => block = Some(format!("{kind}\n")),
            (Some(_), Some(_)) => blocks.extend(block.take()),
            (None, Some(text)) => *text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    let sources = blocks.iter().filter_map(|block| {
        let (kind, text) = block.split_once('\n')?;
        (!kind.starts_with("sh ") && !kind.starts_with("console ")).then(|| text.to_owned())
    });
    sources.collect()
}

#[test]
fn the_pages_of_recipes_name_each_file_and_show_nothing_else() {
    let pages = PAGES.map(|page| fs::read_to_string(Path::new(ROOT).join(page)).unwrap());
    let mut files = Vec::new();
    files_below(&Path::new(ROOT).join("contrib/recipes"), &mut files);
    assert!(files.len() > 15, "{files:?}");
    let mut texts = Vec::new();
    for file in files {
        let name = file.strip_prefix(ROOT).unwrap_or(&file).to_str().unwrap();
        let name = &name[name.find("contrib/recipes").unwrap()..];
        let named = format!("`{name}`");
        assert!(
            pages.iter().any(|page| page.contains(&named)),
            "no page names {name}"
        );
        texts.push(fs::read_to_string(&file).unwrap());
    }
    let mut shown = 0;
    for source in pages.iter().flat_map(|page| sources_on(page)) {
        assert!(
            texts.iter().any(|text| text.contains(&source)),
            "no file of contrib/recipes has:\n{source}"
        );
        shown += 1;
    }
    assert!(shown > 10, "only {shown} blocks");
}
