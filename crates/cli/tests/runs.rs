//! What people do with runs that were written down: going on, looking where nothing may be written, taking along,
//! stopping one that lives in another process.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

mod support;

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

use serde_json::{Value, json};
use support::{Client, Place};

/// Status, standard output and standard error.
fn run(place: &Place, args: &[&str]) -> (i32, String, String) {
    let output = place.command(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn json_of(place: &Place, args: &[&str]) -> Value {
    let (_, out, err) = run(place, args);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
}

fn last(place: &Place) -> String {
    json_of(place, &["runs", "list", "--json"])[0]["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Does something, then fails.
const FAILS: &str = "await tools.listDir({ path: '.' }); throw new Error('no')";

#[test]
fn whoever_wrote_the_script_is_told_their_own_way_to_go_on() {
    let place = Place::new();
    let (status, _, err) = run(&place, &["run", "-e", FAILS]);
    let id = last(&place);
    assert_eq!(status, 1);
    assert!(
        err.contains(&format!("`selvedge run FILE --resume {id}`")),
        "{err}"
    );
    assert!(err.contains(&format!("`selvedge runs show {id}`")), "{err}");
    let item = json_of(&place, &["run", "--json", "-e", FAILS]);
    let suggestions = item["error"]["suggestions"].to_string();
    assert!(
        suggestions.contains(&format!("--resume {}", item["id"].as_str().unwrap())),
        "{item}"
    );

    let mut client = Client::start(&place, &[], json!({}));
    let item = client.script(FAILS);
    let suggestions: Vec<&str> = item["error"]["suggestions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let argument = format!("`resume: \"{}\"`", item["id"].as_str().unwrap());
    assert!(
        suggestions.iter().any(|words| words.contains(&argument)),
        "{item}"
    );
    assert!(
        suggestions.iter().all(|words| !words.contains("--resume")),
        "{item}"
    );
}

#[test]
fn of_a_run_that_was_not_kept_nobody_is_sent_to_look() {
    let place = Place::new();
    let (status, _, err) = run(&place, &["run", "--ephemeral", "-e", FAILS]);
    assert_eq!(status, 1);
    assert!(err.contains("note: 1 of 1 calls had finished\n"), "{err}");
    assert!(
        !err.contains("runs show") && !err.contains("resume"),
        "{err}"
    );
    let item = json_of(&place, &["run", "--ephemeral", "--json", "-e", FAILS]);
    assert!(!item.to_string().contains("resume"), "{item}");
}

fn mode_of(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn what_is_taken_along_is_for_its_owner_alone() {
    let place = Place::new();
    assert_eq!(run(&place, &["run", "-q", "-e", "return 1"]).0, 0);
    let id = last(&place);
    let seen = run(&place, &["runs", "export", &id, "run.json"]);
    assert_eq!(seen.0, 0, "{seen:?}");
    assert_eq!(mode_of(&place.work().join("run.json")), 0o600);
    let seen = run(&place, &["memory", "export", "--out", "memory.jsonl"]);
    assert_eq!(seen.0, 0, "{seen:?}");
    assert_eq!(mode_of(&place.work().join("memory.jsonl")), 0o600);
    // One that was there is closed before anything is in it, and holds nothing of what it held.
    let old = place.work().join("old.json");
    std::fs::write(&old, "x".repeat(100_000)).unwrap();
    assert_ne!(
        mode_of(&old) & 0o077,
        0,
        "the test's own file is readable for others"
    );
    assert_eq!(run(&place, &["runs", "export", &id, "old.json"]).0, 0);
    assert_eq!(mode_of(&old), 0o600);
    assert_eq!(
        std::fs::read(&old).unwrap(),
        std::fs::read(place.work().join("run.json")).unwrap()
    );
    assert_eq!(run(&place, &["runs", "replay", "old.json"]).1, "1\n");
    // What is no file is written to as it is.
    assert_eq!(run(&place, &["runs", "export", &id, "/dev/null"]).0, 0);
}

/// Nobody in particular: root may write wherever it likes.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    Path::new("/proc/self")
        .metadata()
        .is_ok_and(|facts| std::os::unix::fs::MetadataExt::uid(&facts) == 0)
}

/// What may be done below a folder.
#[derive(Clone, Copy)]
enum May {
    Look,
    Write,
}

fn let_all(may: May, path: &Path) {
    let (folder, file) = match may {
        May::Look => (0o500, 0o400),
        May::Write => (0o700, 0o600),
    };
    if path.is_dir() {
        std::fs::read_dir(path)
            .unwrap()
            .for_each(|entry| let_all(may, &entry.unwrap().path()));
    }
    if is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mode = if path.is_dir() { folder } else { file };
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// The same as [`run`], by somebody who may not write.
fn look(place: &Place, args: &[&str]) -> (i32, String, String) {
    let mut command = place.command(args);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A place of which nobody else is kept out by the folder above.
fn open_place() -> Place {
    let place = Place::new();
    std::fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    place
}

/// What can be seen of a run, by somebody who may not write.
fn is_seen(place: &Place, id: &str, call: &str) {
    let (status, out, err) = look(place, &["runs", "list"]);
    assert!(status == 0 && out.contains(id), "{out}{err}");
    let (status, out, err) = look(place, &["runs", "show", id]);
    assert!(status == 0 && out.contains(call), "{out}{err}");
}

#[test]
fn runs_are_seen_where_nothing_may_be_written() {
    let place = open_place();
    assert_eq!(
        run(
            &place,
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
    let id = last(&place);
    assert!(
        !place.home().join("journal.sqlite-wal").exists(),
        "its log is folded in when the last one leaves"
    );
    let_all(May::Look, &place.home());
    is_seen(&place, &id, "list_dir");
    let (status, out, err) = look(&place, &["runs", "export", &id]);
    assert!(status == 0 && out.contains("list_dir"), "{out}{err}");
    assert_eq!(look(&place, &["runs", "replay", &id]).1, "7\n");
    assert_eq!(look(&place, &["sessions", "list"]).0, 0);
    // What would write says so.
    let (status, _, err) = look(&place, &["run", "-e", "return 1"]);
    assert!(status == 2 && err.contains("hint: "), "{err}");
    let_all(May::Write, &place.home());
    // Only the file.
    std::fs::set_permissions(
        place.home().join("journal.sqlite"),
        PermissionsExt::from_mode(0o400),
    )
    .unwrap();
    is_seen(&place, &id, "list_dir");
}

#[test]
fn what_a_killed_process_left_in_the_log_is_seen_or_told_of() {
    let place = open_place();
    let code = "await tools.writeFile({ path: 'begun', content: '' }); await tools.exec({ command: ['sleep', '60'] })";
    let mut child = place.command(&["run", "-q", "-e", code]).spawn().unwrap();
    while json_of(&place, &["runs", "list", "--json"])[0]["calls"] != json!(2) {
        assert!(child.try_wait().unwrap().is_none());
    }
    let id = last(&place);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        place
            .home()
            .join("journal.sqlite-wal")
            .metadata()
            .unwrap()
            .len()
            > 0
    );
    let_all(May::Look, &place.home());
    // Its command lives a moment longer.
    let began = std::time::Instant::now();
    while look(&place, &["runs", "show", &id]).1.contains("running") {
        assert!(began.elapsed() < support::PATIENCE);
    }
    is_seen(&place, &id, "outcome unknown");
    // Without the index of the log nothing can be read from it, and nothing is passed over in silence.
    let_all(May::Write, &place.home());
    std::fs::remove_file(place.home().join("journal.sqlite-shm")).unwrap();
    let_all(May::Look, &place.home());
    let (status, out, err) = look(&place, &["runs", "list"]);
    assert_eq!((status, out.as_str()), (2, ""), "{err}");
    let told = format!(
        "error: the journal in {} is read-only and its latest writes are in the log",
        place.home().display()
    );
    assert!(
        err.starts_with(&told) && err.contains("\nhint: copy the folder"),
        "{err}"
    );
    let_all(May::Write, &place.home());
}

#[test]
fn an_older_journal_that_may_not_be_written_is_told_of() {
    let place = open_place();
    assert_eq!(run(&place, &["run", "-q", "-e", "return 7"]).0, 0);
    let file = rusqlite::Connection::open(place.home().join("journal.sqlite")).unwrap();
    file.execute_batch("UPDATE schema_versions SET version = version - 1")
        .unwrap();
    drop(file);
    let_all(May::Look, &place.home());
    let (status, _, err) = look(&place, &["runs", "list"]);
    assert!(
        status == 2 && err.contains("older version") && err.contains("hint: copy the folder"),
        "{err}"
    );
    let_all(May::Write, &place.home());
}

/// A run that does something and then waits for a command that never ends by itself, and what it is known by.
fn begun(place: &Place, then: &str) -> (std::process::Child, String) {
    let code = format!(
        "await tools.exec({{ command: ['sh', '-c', 'echo one >> effects'] }});
         await tools.exec({{ command: ['sh', '-c', 'echo two >> effects; exec sleep {}'] }});{then}",
        as_long_as_nobody_else()
    );
    let mut command = place.command(&["run", "--json", "--timeout", "600s", "-e", &code]);
    let child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until(|| {
        effects(place) == "one\ntwo\n" && (sleeping() == 1 || !Path::new("/proc/self").exists())
    });
    (child, last(place))
}

/// How long a command sleeps, by which it is told from all others.
fn as_long_as_nobody_else() -> String {
    format!("600.{}", std::process::id())
}

/// How many such commands there are, where the system tells.
fn sleeping() -> usize {
    let words = format!("sleep\0{}\0", as_long_as_nobody_else());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|process| {
            std::fs::read(process.path().join("cmdline")).is_ok_and(|is| is == words.as_bytes())
        })
        .count()
}

fn effects(place: &Place) -> String {
    std::fs::read_to_string(place.work().join("effects")).unwrap_or_default()
}

fn until(mut it_is_so: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !it_is_so() {
        assert!(began.elapsed() < support::PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_run_of_another_process_is_cancelled() {
    let place = Place::new();
    let (child, id) = begun(
        &place,
        " await tools.exec({ command: ['sh', '-c', 'echo three >> effects'] })",
    );
    let (status, _, err) = run(&place, &["runs", "cancel", &id]);
    assert_eq!(status, 0, "{err}");
    assert!(err.contains(&format!("note: {id} is cancelled")), "{err}");
    // Its process ended as by an interrupt, and its command with it.
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
    assert_eq!((sleeping(), effects(&place)), (0, "one\ntwo\n".to_owned()));
    let shown = json_of(&place, &["runs", "show", &id, "--json"]);
    assert_eq!(shown["run"]["state"], "failed", "{shown}");
    let states: Vec<&Value> = shown["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| &call["state"])
        .collect();
    assert_eq!(states, ["done", "aborted"], "{shown}");
    // Nobody is asked to stop any more, and what is over is not cancelled again.
    let file = rusqlite::Connection::open(place.home().join("journal.sqlite")).unwrap();
    let stops: i64 = file
        .query_row("SELECT count(*) FROM stops", [], |row| row.get(0))
        .unwrap();
    assert_eq!(stops, 0);
    let (status, _, err) = run(&place, &["runs", "cancel", &id]);
    assert!(status == 2 && err.contains("has ended"), "{err}");
}

#[test]
fn a_task_of_another_process_is_cancelled() {
    let place = Place::new();
    place.config("[script_harness.expose]\nenable_spawn = true\n");
    let source = "const task = tools.spawn.exec('exec', { command: ['sh', '-c', 'echo one >> effects; sleep 60'] });
        try { await task.done } catch (error) { return error.message }";
    let child = place
        .command(&["run", "-q", "-e", source])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until(|| effects(&place) == "one\n");
    let runs = json_of(&place, &["runs", "list", "--json"]);
    let mut ids = runs
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["id"].as_str().unwrap());
    let id = ids.find(|id| id.starts_with("tsk_")).unwrap();
    let (status, _, err) = run(&place, &["runs", "cancel", id]);
    assert!(
        status == 0 && err.contains(&format!("note: {id} is cancelled")),
        "{err}"
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "exec was stopped"
    );
    assert_eq!(
        json_of(&place, &["runs", "show", id, "--json"])["calls"][0]["state"],
        "aborted"
    );
}

#[test]
fn a_run_whose_process_is_held_up_stops_when_it_goes_on() {
    let place = Place::new();
    let (child, id) = begun(&place, "");
    let signal = |name: &str| {
        let sent = std::process::Command::new("kill")
            .args([name, &child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    };
    signal("-STOP");
    let (status, _, err) = run(&place, &["runs", "cancel", &id]);
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
fn of_a_servers_runs_only_the_one_that_is_meant_is_cancelled() {
    let place = Place::new();
    let mut client = Client::start(&place, &[], json!({}));
    let waits = |name: &str| {
        let command = format!("echo {name} >> effects; until [ -e {name} ]; do sleep 0.01; done");
        json!({"name": "script", "arguments": {"timeoutMs": 600_000, "yieldAfterMs": 500_000,
            "code": format!("await tools.exec({{ command: ['sh', '-c', '{command}'] }}); return '{name}'")}})
    };
    let first = client.ask("tools/call", waits("first"));
    until(|| effects(&place) == "first\n");
    let meant = last(&place);
    let second = client.ask("tools/call", waits("second"));
    until(|| effects(&place) == "first\nsecond\n");
    let (status, _, err) = run(&place, &["runs", "cancel", &meant]);
    assert_eq!(status, 0, "{err}");
    let item = client.answer_to(first)["result"]["structuredContent"].clone();
    assert_eq!(
        (item["id"].as_str(), item["error"]["code"].as_str()),
        (Some(&*meant), Some("ScriptCancelledError"))
    );
    std::fs::write(place.work().join("second"), "").unwrap();
    let item = client.answer_to(second)["result"]["structuredContent"].clone();
    assert_eq!(support::value(&item), "second");
}

#[test]
fn a_script_that_only_computes_is_cancelled_too() {
    let place = Place::new();
    let mut command = place.command(&["run", "--json", "--timeout", "600s", "-e", "for (;;) {}"]);
    let child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until(|| json_of(&place, &["runs", "list", "--json"])[0]["state"] == "running");
    let (status, _, err) = run(&place, &["runs", "cancel", &last(&place)]);
    assert_eq!(status, 0, "{err}");
    let item: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(item["error"]["code"], "ScriptCancelledError", "{item}");
}
