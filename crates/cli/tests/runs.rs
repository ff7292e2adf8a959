//! `selvedge runs` through the binary: hints to resume, read-only journals, exports, and cancelling
//! runs of other processes.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

mod support;

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

use serde_json::{Value, json};
use support::{Client, TestWorkspace};

/// Runs a command. Returns its exit status, standard output and standard error.
fn run(workspace: &TestWorkspace, args: &[&str]) -> (i32, String, String) {
    let output = workspace.command(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn json_of(workspace: &TestWorkspace, args: &[&str]) -> Value {
    let (_, out, err) = run(workspace, args);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
}

fn last_run(workspace: &TestWorkspace) -> String {
    json_of(workspace, &["runs", "list", "--json"])[0]["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// A script that fails after a completed call that changed something.
const FAILS: &str = "await tools.writeFile({ path: 'a', content: '' }); throw new Error('no')";

#[test]
fn a_run_without_a_reusable_call_is_not_suggested_for_resuming() {
    let workspace = TestWorkspace::new();
    workspace.config("[script_harness.expose]\nenable_spawn = true\n");
    for (calls, reusable) in [
        ("await tools.listDir({ path: '.' })", false),
        ("await tools.exec({ command: ['false'] })", false),
        (
            "await tools.spawn.exec('list_dir', { path: '.' }).done",
            false,
        ),
        ("await tools.writeFile({ path: 'a', content: '' })", true),
        (
            "await tools.spawn.exec('write_file', { path: 'b', content: '' }).done",
            true,
        ),
    ] {
        let script = format!("{calls}; throw new Error('no')");
        let item = json_of(&workspace, &["run", "--json", "-e", &script]);
        assert_eq!(item["error"]["message"], "Error: no", "{item}");
        let suggested = item["error"]["suggestions"].to_string().contains("resume");
        assert_eq!(suggested, reusable, "{item}");
    }
}

#[test]
fn suggestions_to_resume_differ_for_people_and_models() {
    let workspace = TestWorkspace::new();
    let (status, _, err) = run(&workspace, &["run", "-e", FAILS]);
    let id = last_run(&workspace);
    assert_eq!(status, 1);
    assert!(
        err.contains(&format!("correct the script and pass `--resume {id}`")),
        "{err}"
    );
    for (file, word) in [("fails.ts", "fails.ts"), ("it fails.ts", "'it fails.ts'")] {
        std::fs::write(workspace.work().join(file), FAILS).unwrap();
        let (_, _, err) = run(&workspace, &["run", file]);
        let id = last_run(&workspace);
        assert!(
            err.contains(&format!("`selvedge run {word} --resume {id}`")),
            "{err}"
        );
    }
    assert!(err.contains(&format!("`selvedge runs show {id}`")), "{err}");
    let item = json_of(&workspace, &["run", "--json", "-e", FAILS]);
    let suggestions = item["error"]["suggestions"].to_string();
    assert!(
        suggestions.contains(&format!("--resume {}", item["id"].as_str().unwrap())),
        "{item}"
    );

    let mut client = Client::start(&workspace, &[], json!({}));
    let item = client.script(FAILS);
    let suggestions: Vec<&str> = item["error"]["suggestions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let argument = format!("`resume: \"{}\"`", item["id"].as_str().unwrap());
    assert!(
        suggestions.iter().any(|text| text.contains(&argument)),
        "{item}"
    );
    assert!(
        suggestions.iter().all(|text| !text.contains("--resume")),
        "{item}"
    );
}

#[test]
fn ephemeral_runs_are_not_referred_to() {
    let workspace = TestWorkspace::new();
    let (status, _, err) = run(&workspace, &["run", "--ephemeral", "-e", FAILS]);
    assert_eq!(status, 1);
    assert!(err.contains("note: 1 of 1 call completed\n"), "{err}");
    assert!(
        !err.contains("runs show") && !err.contains("resume"),
        "{err}"
    );
    let item = json_of(&workspace, &["run", "--ephemeral", "--json", "-e", FAILS]);
    assert!(!item.to_string().contains("resume"), "{item}");
}

fn mode_of(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn exported_files_are_readable_only_by_their_owner() {
    let workspace = TestWorkspace::new();
    assert_eq!(run(&workspace, &["run", "-q", "-e", "return 1"]).0, 0);
    let id = last_run(&workspace);
    let seen = run(&workspace, &["runs", "export", &id, "run.json"]);
    assert_eq!(seen.0, 0, "{seen:?}");
    assert_eq!(mode_of(&workspace.work().join("run.json")), 0o600);
    let seen = run(&workspace, &["memory", "export", "--out", "memory.jsonl"]);
    assert_eq!(seen.0, 0, "{seen:?}");
    assert_eq!(mode_of(&workspace.work().join("memory.jsonl")), 0o600);
    // An existing file is made private and truncated before it is written.
    let old = workspace.work().join("old.json");
    std::fs::write(&old, "x".repeat(100_000)).unwrap();
    assert_ne!(
        mode_of(&old) & 0o077,
        0,
        "the file of the test is readable by others"
    );
    assert_eq!(run(&workspace, &["runs", "export", &id, "old.json"]).0, 0);
    assert_eq!(mode_of(&old), 0o600);
    assert_eq!(
        std::fs::read(&old).unwrap(),
        std::fs::read(workspace.work().join("run.json")).unwrap()
    );
    assert_eq!(run(&workspace, &["runs", "replay", "old.json"]).1, "1\n");
    // A device is written without changing its permissions.
    assert_eq!(run(&workspace, &["runs", "export", &id, "/dev/null"]).0, 0);
}

/// User id without privileges: root could write everywhere.
const UNPRIVILEGED_UID: u32 = 65534;

fn is_root() -> bool {
    Path::new("/proc/self")
        .metadata()
        .is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0)
}

/// Permissions to set below a folder.
#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

fn set_permissions_below(access: Access, path: &Path) {
    let (folder, file) = match access {
        Access::Read => (0o500, 0o400),
        Access::Write => (0o700, 0o600),
    };
    if path.is_dir() {
        std::fs::read_dir(path)
            .unwrap()
            .for_each(|entry| set_permissions_below(access, &entry.unwrap().path()));
    }
    if is_root() {
        chown(path, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
    }
    let mode = if path.is_dir() { folder } else { file };
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Runs a command as a user without write permission.
fn run_unprivileged(workspace: &TestWorkspace, args: &[&str]) -> (i32, String, String) {
    let mut command = workspace.command(args);
    if is_root() {
        command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
    }
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Creates a workspace that other users can enter.
fn traversable_workspace() -> TestWorkspace {
    let workspace = TestWorkspace::new();
    std::fs::set_permissions(workspace.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    workspace
}

/// Checks that a run can be listed and shown without write permission.
fn assert_readable(workspace: &TestWorkspace, id: &str, call: &str) {
    let (status, out, err) = run_unprivileged(workspace, &["runs", "list"]);
    assert!(status == 0 && out.contains(id), "{out}{err}");
    let (status, out, err) = run_unprivileged(workspace, &["runs", "show", id]);
    assert!(status == 0 && out.contains(call), "{out}{err}");
}

#[test]
fn runs_can_be_read_from_a_read_only_folder() {
    let workspace = traversable_workspace();
    assert_eq!(
        run(
            &workspace,
            &[
                "run",
                "-q",
                "-e",
                "await tools.listDir({ path: '.' }); return 7"
            ]
        )
        .0,
        0
    );
    let id = last_run(&workspace);
    assert!(
        !workspace.home().join("journal.sqlite-wal").exists(),
        "the last process merges the log into the file"
    );
    set_permissions_below(Access::Read, &workspace.home());
    assert_readable(&workspace, &id, "list_dir");
    let (status, out, err) = run_unprivileged(&workspace, &["runs", "export", &id]);
    assert!(status == 0 && out.contains("list_dir"), "{out}{err}");
    assert_eq!(
        run_unprivileged(&workspace, &["runs", "replay", &id]).1,
        "7\n"
    );
    assert_eq!(run_unprivileged(&workspace, &["sessions", "list"]).0, 0);
    // A command that writes fails with a hint.
    let (status, _, err) = run_unprivileged(&workspace, &["run", "-e", "return 1"]);
    assert!(status == 2 && err.contains("hint: "), "{err}");
    let doctor = || run_unprivileged(&workspace, &["doctor"]);
    let (status, out, _) = doctor();
    assert!(
        status == 1 && out.contains("\n✗ journal ") && out.contains("\n✗ folder "),
        "{out}"
    );
    set_permissions_below(Access::Write, &workspace.home());
    // Only the file is read-only.
    std::fs::set_permissions(
        workspace.home().join("journal.sqlite"),
        PermissionsExt::from_mode(0o400),
    )
    .unwrap();
    assert_readable(&workspace, &id, "list_dir");
    let (status, out, _) = doctor();
    assert!(status == 1 && out.contains("\n✗ journal "), "{out}");
}

#[test]
fn the_log_of_a_killed_process_is_read_or_reported() {
    let workspace = traversable_workspace();
    let code = "await tools.writeFile({ path: 'begun', content: '' }); await tools.exec({ command: ['sleep', '60'] })";
    let mut child = workspace
        .command(&["run", "-q", "-e", code])
        .spawn()
        .unwrap();
    while json_of(&workspace, &["runs", "list", "--json"])[0]["calls"] != json!(2) {
        assert!(child.try_wait().unwrap().is_none());
    }
    let id = last_run(&workspace);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        workspace
            .home()
            .join("journal.sqlite-wal")
            .metadata()
            .unwrap()
            .len()
            > 0
    );
    set_permissions_below(Access::Read, &workspace.home());
    // Its command ends a little later.
    let began = std::time::Instant::now();
    while run_unprivileged(&workspace, &["runs", "show", &id])
        .1
        .contains("running")
    {
        assert!(began.elapsed() < support::TEST_TIMEOUT);
    }
    assert_readable(&workspace, &id, "outcome unknown");
    // Without the index of the log, its content cannot be read, which is an error.
    set_permissions_below(Access::Write, &workspace.home());
    std::fs::remove_file(workspace.home().join("journal.sqlite-shm")).unwrap();
    set_permissions_below(Access::Read, &workspace.home());
    let (status, out, err) = run_unprivileged(&workspace, &["runs", "list"]);
    assert_eq!((status, out.as_str()), (2, ""), "{err}");
    let expected = format!(
        "error: the journal in {} is read-only and its latest writes are in the log",
        workspace.home().display()
    );
    assert!(
        err.starts_with(&expected) && err.contains("\nhint: run `cp -r "),
        "{err}"
    );
    set_permissions_below(Access::Write, &workspace.home());
}

#[test]
fn the_configuration_of_a_read_only_home_is_kept_as_the_hint_says() {
    let workspace = traversable_workspace();
    workspace.config("[script_harness.limits]\nmemory_mb = 17\n");
    set_permissions_below(Access::Read, &workspace.home());
    let temporary = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temporary.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let unprivileged = |mut command: std::process::Command| {
        if is_root() {
            command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
        }
        let output = command.env("TMPDIR", temporary.path()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    let code = "return context.sandbox.memoryMb";
    let (_, err) = unprivileged(workspace.command(&["run", "-q", "-e", code]));
    let hint = err
        .split_once("\nhint: run `")
        .unwrap_or_else(|| panic!("{err}"));
    let (fix, rest) = hint.1.split_once('`').unwrap();
    assert_eq!(rest, ", or pass --ephemeral\n", "{err}");
    let mut shell = std::process::Command::new("sh");
    shell
        .arg("-c")
        .arg(format!("{fix} && \"$0\" run -q -e '{code}'"))
        .arg(workspace.command(&[]).get_program())
        .current_dir(workspace.work());
    let (out, err) = unprivileged(shell);
    assert_eq!(out, "17\n", "{err}");
    set_permissions_below(Access::Write, &workspace.home());
}

#[test]
fn a_journal_with_the_tables_of_another_version_can_be_renamed_as_the_hint_says() {
    let workspace = traversable_workspace();
    assert_eq!(run(&workspace, &["run", "-q", "-e", "return 7"]).0, 0);
    let file = workspace.home().join("journal.sqlite");
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection
        .execute_batch("ALTER TABLE runs DROP COLUMN recording")
        .unwrap();
    drop(connection);
    let file = file.display();
    for (command, or_ephemeral) in [
        (&["runs", "list"][..], ""),
        (&["run", "-q", "-e", "return 7"], ", or pass --ephemeral"),
    ] {
        let (status, _, err) = run(&workspace, command);
        let expected = format!(
            "error: {file} has the tables of another, unreleased version of Selvedge\n\
             hint: run `mv {file} {file}.old`, or set SELVEDGE_HOME to another \
             folder{or_ephemeral}\n"
        );
        assert_eq!((status, err), (2, expected));
    }
    std::fs::rename(
        workspace.home().join("journal.sqlite"),
        workspace.home().join("journal.sqlite.old"),
    )
    .unwrap();
    assert_eq!(run(&workspace, &["run", "-q", "-e", "return 7"]).0, 0);
}

#[test]
fn an_older_read_only_journal_is_reported() {
    let workspace = traversable_workspace();
    assert_eq!(run(&workspace, &["run", "-q", "-e", "return 7"]).0, 0);
    let file = rusqlite::Connection::open(workspace.home().join("journal.sqlite")).unwrap();
    file.execute_batch("UPDATE schema_versions SET version = version - 1")
        .unwrap();
    drop(file);
    set_permissions_below(Access::Read, &workspace.home());
    let (status, _, err) = run_unprivileged(&workspace, &["runs", "list"]);
    assert!(
        status == 2 && err.contains("older version") && err.contains("hint: run `cp -r "),
        "{err}"
    );
    set_permissions_below(Access::Write, &workspace.home());
}

/// Starts a run that completes one command and then waits for an endless one. Returns the process
/// and the id of the run.
fn start_endless_run(workspace: &TestWorkspace, then: &str) -> (std::process::Child, String) {
    let code = format!(
        "await tools.exec({{ command: ['sh', '-c', 'echo one >> effects'] }});
         await tools.exec({{ command: ['sh', '-c', 'echo two >> effects; exec sleep {}'] }});{then}",
        unique_sleep_seconds()
    );
    let mut command = workspace.command(&["run", "--json", "--timeout", "600s", "-e", &code]);
    let child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until(|| {
        effects(workspace) == "one\ntwo\n" && (sleeping() == 1 || !Path::new("/proc/self").exists())
    });
    (child, last_run(workspace))
}

/// Returns a sleep time that identifies the commands of this test process.
fn unique_sleep_seconds() -> String {
    format!("600.{}", std::process::id())
}

/// Returns the number of such commands, if the system has /proc.
fn sleeping() -> usize {
    let words = format!("sleep\0{}\0", unique_sleep_seconds());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|process| {
            std::fs::read(process.path().join("cmdline")).is_ok_and(|is| is == words.as_bytes())
        })
        .count()
}

fn effects(workspace: &TestWorkspace) -> String {
    std::fs::read_to_string(workspace.work().join("effects")).unwrap_or_default()
}

fn until(mut condition: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < support::TEST_TIMEOUT);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_run_of_another_process_is_cancelled() {
    let workspace = TestWorkspace::new();
    let (child, id) = start_endless_run(
        &workspace,
        " await tools.exec({ command: ['sh', '-c', 'echo three >> effects'] })",
    );
    let (status, _, err) = run(&workspace, &["runs", "cancel", &id]);
    assert_eq!(status, 0, "{err}");
    assert!(err.contains(&format!("note: cancelled {id}\n")), "{err}");
    // Its process ended as after an interrupt, and its command with it.
    let output = child.wait_with_output().unwrap();
    let item: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{item}");
    assert_eq!(item["error"]["code"], "ScriptCancelledError", "{item}");
    assert!(
        item["error"]["message"]
            .as_str()
            .unwrap()
            .contains("`selvedge runs cancel`"),
        "{item}"
    );
    assert_eq!(
        (sleeping(), effects(&workspace)),
        (0, "one\ntwo\n".to_owned())
    );
    let shown = json_of(&workspace, &["runs", "show", &id, "--json"]);
    assert_eq!(shown["run"]["state"], "failed", "{shown}");
    let states: Vec<&Value> = shown["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| &call["state"])
        .collect();
    assert_eq!(states, ["done", "aborted"], "{shown}");
    // The stop request is removed, and a run that has ended cannot be cancelled again.
    let file = rusqlite::Connection::open(workspace.home().join("journal.sqlite")).unwrap();
    let requests: i64 = file
        .query_row("SELECT count(*) FROM cancel_requests", [], |row| row.get(0))
        .unwrap();
    assert_eq!(requests, 0);
    let (status, _, err) = run(&workspace, &["runs", "cancel", &id]);
    assert!(status == 2 && err.contains("has ended"), "{err}");
}

#[test]
fn a_task_of_another_process_is_cancelled() {
    let workspace = TestWorkspace::new();
    workspace.config("[script_harness.expose]\nenable_spawn = true\n");
    let source = "const task = tools.spawn.exec('exec', { command: ['sh', '-c', 'echo one >> effects; sleep 60'] });
        try { await task.done } catch (error) { return error.message }";
    let child = workspace
        .command(&["run", "-q", "-e", source])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until(|| effects(&workspace) == "one\n");
    let runs = json_of(&workspace, &["runs", "list", "--json"]);
    let mut ids = runs
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["id"].as_str().unwrap());
    let id = ids.find(|id| id.starts_with("tsk_")).unwrap();
    let (status, _, err) = run(&workspace, &["runs", "cancel", id]);
    assert!(
        status == 0 && err.contains(&format!("note: cancelled {id};")),
        "{err}"
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "exec was cancelled"
    );
    assert_eq!(
        json_of(&workspace, &["runs", "show", id, "--json"])["calls"][0]["state"],
        "aborted"
    );
}

#[test]
fn a_run_of_a_stopped_process_is_cancelled_when_it_continues() {
    let workspace = TestWorkspace::new();
    let (child, id) = start_endless_run(&workspace, "");
    let signal = |name: &str| {
        let sent = std::process::Command::new("kill")
            .args([name, &child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    };
    signal("-STOP");
    let (status, _, err) = run(&workspace, &["runs", "cancel", &id]);
    signal("-CONT");
    assert_eq!(status, 1, "{err}");
    assert!(
        err.contains(&format!("error: {id} has not stopped")) && err.contains("\nhint: "),
        "{err}"
    );
    let item: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(item["error"]["code"], "ScriptCancelledError", "{item}");
}

#[test]
fn cancelling_one_run_of_a_server_leaves_the_others_running() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let waits = |name: &str| {
        let command = format!("echo {name} >> effects; until [ -e {name} ]; do sleep 0.01; done");
        json!({"name": "script", "arguments": {"timeoutMs": 600_000, "yieldAfterMs": 500_000,
            "code": format!("await tools.exec({{ command: ['sh', '-c', '{command}'] }}); return '{name}'")}})
    };
    let first = client.ask("tools/call", waits("first"));
    until(|| effects(&workspace) == "first\n");
    let cancelled = last_run(&workspace);
    let second = client.ask("tools/call", waits("second"));
    until(|| effects(&workspace) == "first\nsecond\n");
    let (status, _, err) = run(&workspace, &["runs", "cancel", &cancelled]);
    assert_eq!(status, 0, "{err}");
    let item = client.answer_to(first)["result"]["structuredContent"].clone();
    assert_eq!(
        (item["id"].as_str(), item["error"]["code"].as_str()),
        (Some(&*cancelled), Some("ScriptCancelledError"))
    );
    std::fs::write(workspace.work().join("second"), "").unwrap();
    let item = client.answer_to(second)["result"]["structuredContent"].clone();
    assert_eq!(support::value(&item), "second");
}

#[test]
fn a_script_in_an_endless_loop_can_be_cancelled() {
    let workspace = TestWorkspace::new();
    let mut command =
        workspace.command(&["run", "--json", "--timeout", "600s", "-e", "for (;;) {}"]);
    let child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until(|| json_of(&workspace, &["runs", "list", "--json"])[0]["state"] == "running");
    let (status, _, err) = run(&workspace, &["runs", "cancel", &last_run(&workspace)]);
    assert_eq!(status, 0, "{err}");
    let item: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(item["error"]["code"], "ScriptCancelledError", "{item}");
}
