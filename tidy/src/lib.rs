//! Reads the files of this repository for the tests of this package, which check its mechanical
//! rules. There are no dependencies, so that `cargo test -p selvedge-tidy` takes seconds. A failure
//! names file, line and rule.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Names that hold no source: build output, downloads, version control.
const SKIPPED: &[&str] = &[
    ".git",
    ".tools",
    "artifacts",
    "corpus",
    "node_modules",
    "target",
    "__pycache__",
];

/// Returns every text file of the repository: its path from the root, with `/`, and its content.
pub fn sources() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if SKIPPED.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                // What is not UTF-8 is data for a test.
                files.extend(
                    fs::read_to_string(entry.path()).map(|text| (shown(&entry.path()), text)),
                );
            }
        }
    }
    files.sort();
    files
}

/// Returns the root folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

fn shown(path: &Path) -> String {
    let path = path.strip_prefix(root()).unwrap_or(path);
    path.components()
        .map(|part| part.as_os_str().to_string_lossy())
        .collect::<Vec<_>>()
        .join("/")
}

/// Iterates over the lines of a text with their numbers, from 1.
pub fn numbered_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// Fails with all problems of a rule, one per line.
pub fn assert_none(problems: impl IntoIterator<Item = String>) {
    let problems: Vec<String> = problems.into_iter().collect();
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}
