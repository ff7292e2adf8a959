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

/// Copies the examples, and creates a Git history of the sample that is always the same.
fn copy_of_examples() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let sample = dir.path().join("examples/sample");
    std::fs::create_dir_all(&sample).unwrap();
    copy(&root().join("examples"), &dir.path().join("examples"));
    let git = |args: &[&str], day: u32, author: &str| {
        let date = format!("2026-01-{day:02}T12:00:00Z");
        let output = Command::new("git")
            .args(args)
            .current_dir(&sample)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .env("GIT_AUTHOR_NAME", author)
            .env("GIT_AUTHOR_EMAIL", "shop@example.org")
            .env("GIT_COMMITTER_NAME", author)
            .env("GIT_COMMITTER_EMAIL", "shop@example.org")
            .env("GIT_AUTHOR_DATE", &date)
            .env("GIT_COMMITTER_DATE", &date)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "git {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    git(&["init", "-q", "-b", "main"], 1, "Ada");
    for (day, author, paths, subject) in [
        (1, "Ada", "README.md", "A shop"),
        (
            2,
            "Ada",
            "shop/__init__.py shop/price.py tests/test_price.py",
            "Prices in cents",
        ),
        (
            3,
            "Grace",
            "shop/basket.py tests/test_basket.py",
            "A basket",
        ),
        (4, "Grace", "docs tests/layout.test.sh", "Documentation"),
    ] {
        let add: Vec<&str> = ["add"].into_iter().chain(paths.split(' ')).collect();
        git(&add, day, author);
        git(&["commit", "-q", "-m", subject], day, author);
    }
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
            "selvedge run -q examples/survey.ts -C examples/sample",
        ),
        (
            "Which tests fail?",
            "selvedge run -q examples/test-all.ts -C examples/sample --timeout 2m",
        ),
        (
            "Rename an identifier in all files, or in none.",
            "selvedge run -q examples/rename.ts -C examples/sample -- show_price format_price",
        ),
        (
            "Which links lead nowhere?",
            "selvedge run -q examples/dead-links.ts -C examples/sample",
        ),
        (
            "What changed recently?",
            "selvedge run -q examples/git-range.ts -C examples/sample -- HEAD~3..HEAD",
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
        std::fs::read_to_string(folder.path().join("examples/sample/shop/basket.py")).unwrap();
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
