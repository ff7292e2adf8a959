//! Attempts to have a journal of a newer version written: every command that opens it, for every
//! component whose tables may be newer, with and without a log of unfinished writes.

use std::path::Path;

use anyhow::Result;

use crate::attempt::{Attempt, Verdict};
use crate::lab::Lab;

/// Components of the journal's file, with a version that does not exist yet.
const COMPONENTS: &[(&str, u32)] = &[("journal", 99), ("memory", 99), ("channels", 1)];

/// Commands that open the journal.
const COMMANDS: &[&[&str]] = &[
    &["run", "-e", "return 1"],
    &["runs", "list"],
    &["runs", "show", "scr_1"],
    &["runs", "cancel", "scr_1"],
    &["sessions", "list"],
    &["sessions", "show", "ses_1"],
    &["memory", "stats"],
    &["memory", "search", "x"],
    &["memory", "import", "turns.jsonl"],
    &["memory", "forget", "--session", "s"],
    &["doctor"],
];

const FILES: [&str; 2] = ["journal.sqlite", "journal.sqlite-wal"];

/// Returns one attempt per command, component and state. It succeeds if a byte of the file or its
/// log changes.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for command in COMMANDS {
        for (component, version) in COMPONENTS {
            for with_log in [false, true] {
                let log = if with_log { " with a log" } else { "" };
                let name = format!("{}: newer {component}{log}", command.join(" "));
                let attempt =
                    move |lab: &Lab| open_newer(lab, command, (component, *version), with_log);
                attempts.push(Attempt::new(name, attempt));
            }
        }
    }
    for (name, code) in WHILE_RUNNING {
        attempts.push(Attempt::new(
            format!("newer while a script runs: {name}"),
            |lab| become_newer(lab, code),
        ));
    }
    Ok(attempts)
}

/// What a script does after the journal became newer.
const WHILE_RUNNING: &[(&str, &str)] = &[
    ("returns", ""),
    ("calls a tool", "await tools.listDir({ path: '.' });"),
    (
        "writes a file",
        "await tools.writeFile({ path: 'late', content: 'x' });",
    ),
    (
        "saves a document",
        "await tools.saveToFc({ content: 'x' });",
    ),
    ("stores a value", "store('key', 'x');"),
    ("fails", "throw new Error('x');"),
];

/// Makes the journal newer while a script waits, and compares its bytes after the script has ended.
fn become_newer(lab: &Lab, code: &str) -> Result<Verdict> {
    let source = format!(
        "await tools.writeFile({{ path: 'started', content: 'x' }});\n\
         for (let waits = true; waits; await new Promise(resolve => setTimeout(resolve, 20))) {{ \
         try {{ waits = !(await tools.listDir({{ path: '.' }})).content.includes('go-on') }} \
         catch {{ waits = false }} }}\n{code}"
    );
    let args = [
        "run",
        "--json",
        "--timeout",
        "60s",
        "--max-calls",
        "5000",
        "-e",
    ];
    let mut command = lab.selvedge(&[&args[..], &[&source]].concat());
    let child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    let deadline = std::time::Instant::now() + crate::lab::ATTACK_TIMEOUT;
    while !lab.work().join("started").exists() {
        anyhow::ensure!(std::time::Instant::now() < deadline, "it does not start");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let connection = rusqlite::Connection::open(lab.home().join(FILES[0]))?;
    connection.busy_timeout(crate::lab::ATTACK_TIMEOUT)?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.execute(
        "INSERT OR REPLACE INTO schema_versions VALUES ('journal', 99, 99)",
        [],
    )?;
    let before = bytes(&lab.home())?;
    lab.write("go-on", "")?;
    let output = child.wait_with_output()?;
    let unchanged = bytes(&lab.home())? == before;
    drop(connection);
    Ok(Verdict::held_if(
        unchanged,
        String::from_utf8_lossy(&output.stdout).into_owned(),
    ))
}

fn open_newer(lab: &Lab, command: &[&str], newer: (&str, u32), with_log: bool) -> Result<Verdict> {
    lab.write(
        "turns.jsonl",
        "{\"session\": \"s\", \"turn\": 1, \"role\": \"user\", \"text\": \"x\"}\n",
    )?;
    let created = lab.run(&["run", "-e", "return 1"])?;
    anyhow::ensure!(created.exit_code == Some(0), "{}", created.output());
    let connection = rusqlite::Connection::open(lab.home().join(FILES[0]))?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.execute(
        "INSERT OR REPLACE INTO schema_versions VALUES (?1, ?2, ?2)",
        newer,
    )?;
    if with_log {
        // The copies are what a killed process leaves.
        for name in FILES {
            std::fs::copy(lab.home().join(name), lab.outside().join(name))?;
        }
        drop(connection);
        for name in FILES {
            std::fs::copy(lab.outside().join(name), lab.home().join(name))?;
        }
    } else {
        drop(connection);
    }
    let before = bytes(&lab.home())?;
    let seen = lab.run(command)?;
    let unchanged = bytes(&lab.home())? == before;
    Ok(Verdict::held_if(
        unchanged && seen.ended_cleanly(),
        format!("unchanged: {unchanged}; {}", seen.output()),
    ))
}

/// Returns the bytes of the file and its log.
fn bytes(home: &Path) -> Result<Vec<Vec<u8>>> {
    FILES
        .iter()
        .map(|name| match std::fs::read(home.join(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            read => Ok(read?),
        })
        .collect()
}
