//! The program of README.md is the example `mailer`, which is compiled.

use std::path::Path;

#[test]
fn the_program_of_the_readme_is_the_example_that_is_compiled() {
    let read = |path: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        std::fs::read_to_string(path).unwrap()
    };
    let example = read("examples/mailer.rs");
    let (_, program) = example.split_once("\n\n").unwrap();
    assert!(read("README.md").contains(&format!("```rust\n{program}```")));
}
