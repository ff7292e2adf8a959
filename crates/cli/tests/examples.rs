//! Runs the examples on the sample project. The README shows their output; `UPDATE_DOCS=1` updates
//! it.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Copies what the examples need from a checkout, and creates the sample project there.
fn copy_of_examples() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for folder in ["examples", "scripts"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    copy(&root().join("examples"), &dir.path().join("examples"));
    let script = dir.path().join("scripts/sample-project");
    std::fs::copy(root().join("scripts/sample-project"), &script).unwrap();
    let output = Command::new(script).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    dir
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            if entry.file_name() != "__pycache__" {
                copy(&entry.path(), &target);
            }
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Runs a command of the README in a folder, and returns its output.
fn run(line: &str, folder: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_selvedge"))
        .args(line.split(' ').skip(1))
        .current_dir(folder)
        .env("SELVEDGE_HOME", folder.join("home"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_readme_shows_the_output_of_the_examples() {
    const START: &str = "<!-- examples -->\n";
    const END: &str = "<!-- /examples -->";
    let path = root().join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text
        .split_once(START)
        .expect("the README has a section for the examples");
    let (shown, after) = rest.split_once(END).unwrap();
    let folder = copy_of_examples();
    let mut expected = String::new();
    for (heading, line) in [
        (
            "What does this project consist of?",
            "selvedge run -q examples/survey.ts -C target/sample",
        ),
        (
            "Which tests fail?",
            "selvedge run -q examples/test-all.ts -C target/sample --timeout 2m",
        ),
        (
            "Rename an identifier in all files, or in none.",
            "selvedge run -q examples/rename.ts -C target/sample -- show_price format_price",
        ),
        (
            "Which links lead nowhere?",
            "selvedge run -q examples/dead-links.ts -C target/sample",
        ),
        (
            "What changed recently?",
            "selvedge run -q examples/git-range.ts -C target/sample -- HEAD~3..HEAD",
        ),
    ] {
        expected.push_str(&format!(
            "{heading}\n\n```console\n$ {line}\n{}```\n\n",
            run(line, folder.path())
        ));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(&path, format!("{before}{START}{expected}{END}{after}")).unwrap();
    }
    assert_eq!(shown, expected, "run `make docs`");
    let basket =
        std::fs::read_to_string(folder.path().join("target/sample/shop/basket.py")).unwrap();
    assert!(
        basket.contains("import format_price") && basket.contains("{format_price("),
        "{basket}"
    );
}

#[test]
fn the_commands_of_the_readme_and_the_guide_print_what_is_shown() {
    let home = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_selvedge")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut commands = 0;
    for page in ["README.md", "docs/guide.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        // The examples run on a copy of the sample project, in the test above.
        let (before, rest) = text.split_once("<!-- examples -->").unwrap_or((&text, ""));
        let (_, after) = rest.split_once("<!-- /examples -->").unwrap_or_default();
        for block in [before, after].iter().flat_map(|part| console_blocks(part)) {
            for command in block.split("$ ").skip(1) {
                let (line, shown) = command.split_once('\n').unwrap();
                let output = Command::new("sh")
                    .args(["-c", line])
                    .current_dir(root())
                    .env("SELVEDGE_HOME", home.path())
                    .env("PATH", &path)
                    .output()
                    .unwrap();
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{page}: {line}: {errors}");
                let printed = String::from_utf8(output.stdout).unwrap();
                assert_eq!(printed, shown, "{page}: {line}");
                commands += 1;
            }
        }
    }
    assert!(commands >= 3, "only {commands} commands were found");
}

/// Returns the contents of the fenced blocks marked `console`.
fn console_blocks(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.split("```console\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap())
}
