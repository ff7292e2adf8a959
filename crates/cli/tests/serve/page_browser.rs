//! The browser of the tests of the page, and what a flow prints.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// How long a flow may print nothing: some check many views without a question in between.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(900);

/// Where `scripts/setup-browser` put Playwright, and Chromium; `None` with a note if one is
/// missing. In CI that is a failure.
pub fn browser() -> Option<(PathBuf, PathBuf)> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/browser");
    let folder = std::env::var_os("SELVEDGE_BROWSER").map_or_else(default, PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join("chromium"));
    let chromium = places.find(|file| file.exists());
    let has_packages = folder.join("node_modules/playwright-core").exists();
    match (
        folder.canonicalize().ok().filter(|_| has_packages),
        chromium,
    ) {
        (Some(folder), Some(chromium)) => Some((folder, chromium)),
        _ => {
            assert!(
                std::env::var_os("CI").is_none(),
                "scripts/setup-browser was not run"
            );
            eprintln!("skipped: scripts/setup-browser was not run");
            None
        }
    }
}

/// Fails without a browser: what a person starts must not be skipped.
pub fn require_browser() {
    assert!(browser().is_some(), "scripts/setup-browser was not run");
}

/// Reads the lines of a program in a thread of its own, which ends with the output.
pub fn read_lines(output: ChildStdout) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            if sender.send(line.unwrap()).is_err() {
                return;
            }
        }
    });
    lines
}

/// Returns the next line of a flow, and `None` at its end. Ends a flow that prints nothing.
pub fn next_line(lines: &Receiver<String>, node: &mut Child, name: &str) -> Option<String> {
    match lines.recv_timeout(SILENCE_TIMEOUT) {
        Ok(line) => Some(line),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => {
            node.kill().unwrap();
            panic!("the flow {name} printed nothing for {SILENCE_TIMEOUT:?}");
        }
    }
}
