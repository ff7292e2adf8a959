//! Files that no command names are read by the crate `files` alone: one test, with the exceptions.
#![allow(clippy::unwrap_used, missing_docs)]

use selvedge_tidy::{assert_none, numbered_lines, sources};

/// Calls that open or read a file, or walk folders and read their ignore files.
const READERS: &[&str] = &[
    "fs::read(",
    // Without a parenthesis: also passed as a function.
    "fs::read_to_string",
    "File::open(",
    "File::options(",
    "OpenOptions::new(",
    "WalkBuilder::new(",
    "Gitignore::new(",
    "Gitignore::global(",
    "build_global(",
    "image::open(",
];

/// Files with such a call that does not read a file implicitly, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/files/src/open.rs", "is the reader"),
    ("crates/files/src/lock_file.rs", "locks files"),
    ("crates/cli/src/chat/history.rs", "writes the history"),
    (
        "crates/toolbox/src/file_replacement.rs",
        "reads files that it replaces",
    ),
    (
        "crates/cli/src/exec.rs",
        "reads the file of --output-schema",
    ),
    (
        "crates/cli/src/doctor.rs",
        "opens the journal for writing, to find out whether it can",
    ),
    ("crates/cli/src/log.rs", "writes the file of --log"),
    (
        "crates/cli/src/memory/import.rs",
        "reads the file to import",
    ),
    (
        "crates/cli/src/memory/layer.rs",
        "reads the text of a layer",
    ),
    (
        "crates/cli/src/private_file.rs",
        "writes the file to export",
    ),
    (
        "crates/cli/src/mcp_token.rs",
        "reads the file of --token-file",
    ),
    ("crates/cli/src/run.rs", "reads the script to run"),
    (
        "crates/cli/src/runs/replay.rs",
        "reads the recording to replay",
    ),
    ("crates/cli/src/sessions.rs", "reads the file to import"),
    ("crates/cli/src/terminal_input.rs", "opens the terminal"),
    ("crates/config/src/trust.rs", "appends a decision"),
    ("crates/confine/src/linux.rs", "opens /dev/null"),
    (
        "crates/confine/src/placeholder.rs",
        "opens a folder that it created",
    ),
    (
        "crates/confine/src/sockets.rs",
        "reads the kernel's list of sockets",
    ),
    ("crates/journal/src/connection.rs", "creates the journal"),
    (
        "crates/journal/src/liveness.rs",
        "opens files to lock them, reads nothing",
    ),
    ("crates/mcp/src/login.rs", "writes tokens"),
    (
        "crates/memory/src/distill_lock.rs",
        "opens and reads its own lock file, and the id of the machine",
    ),
    (
        "crates/models/src/port_owner.rs",
        "reads the kernel's list of sockets",
    ),
    (
        "crates/models/src/transport.rs",
        "reads certificates that the environment names",
    ),
    (
        "crates/sandbox/src/budget.rs",
        "reads the kernel's memory limits",
    ),
    (
        "crates/sandbox/src/code.rs",
        "reads the memory map of the process, in a test",
    ),
    (
        "crates/confine/src/child.rs",
        "reads the system's name servers",
    ),
    ("crates/toolbox/src/commands.rs", "opens /dev/null"),
    (
        "crates/toolbox/src/commit.rs",
        "writes the files of a patch",
    ),
    ("crates/toolbox/src/exec.rs", "opens /dev/null"),
    (
        "crates/toolbox/src/hidden_paths.rs",
        "reads the system's password files to see whether they have passwords",
    ),
    (
        "crates/toolbox/src/target_file.rs",
        "opens a file that a call names",
    ),
    (
        "crates/toolbox/src/walk.rs",
        "walks with standard_filters(false)",
    ),
    (
        "crates/toolbox/src/web/client.rs",
        "reads certificates that the environment names",
    ),
    (
        "crates/toolbox/src/workspace.rs",
        "opens files that calls name, with its own checks",
    ),
];

#[test]
fn files_that_no_command_names_are_read_in_one_place() {
    let mut problems = Vec::new();
    let mut unused: Vec<&str> = EXCEPTIONS.iter().map(|(path, _)| *path).collect();
    for (path, text) in sources() {
        if !path.starts_with("crates/") || !path.contains("/src/") || !path.ends_with(".rs") {
            continue;
        }
        let tests = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
        for (number, line) in numbered_lines(&text[..tests]) {
            let Some(reader) = READERS.iter().find(|reader| calls(line, reader)) else {
                continue;
            };
            match EXCEPTIONS.iter().any(|(exception, _)| *exception == path) {
                true => unused.retain(|exception| *exception != path),
                false => problems.push(format!(
                    "{path}:{number}: `{reader}`: use selvedge_files::ProjectFiles or \
                     read_user_file, or explain it in EXCEPTIONS of tidy/tests/readers.rs"
                )),
            }
        }
    }
    let unused = unused.into_iter().map(|path| {
        format!("{path}:1: reads no file: remove it from EXCEPTIONS in tidy/tests/readers.rs")
    });
    assert_none(problems.into_iter().chain(unused));
}

/// Whether a line has this call, and not that of a longer name.
fn calls(line: &str, call: &str) -> bool {
    line.match_indices(call).any(|(at, _)| {
        !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
    })
}
