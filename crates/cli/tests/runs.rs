//! What people do with runs that were written down: going on, looking where nothing may be written, taking along,
//! stopping one that lives in another process.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

mod support;

use serde_json::{Value, json};
use support::{Client, Place};

/// Status, standard output and standard error.
fn run(place: &Place, args: &[&str]) -> (i32, String, String) {
    let output = place.command(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json_of(place: &Place, args: &[&str]) -> Value {
    let (_, out, err) = run(place, args);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
}

fn last(place: &Place) -> String {
    json_of(place, &["runs", "list", "--json"])[0]["id"].as_str().unwrap().to_owned()
}

/// Does something, then fails.
const FAILS: &str = "await tools.listDir({ path: '.' }); throw new Error('no')";

#[test]
fn whoever_wrote_the_script_is_told_their_own_way_to_go_on() {
    let place = Place::new();
    let (status, _, err) = run(&place, &["run", "-e", FAILS]);
    let id = last(&place);
    assert_eq!(status, 1);
    assert!(err.contains(&format!("`selvedge run FILE --resume {id}`")), "{err}");
    assert!(err.contains(&format!("`selvedge runs show {id}`")), "{err}");
    let item = json_of(&place, &["run", "--json", "-e", FAILS]);
    let suggestions = item["error"]["suggestions"].to_string();
    assert!(suggestions.contains(&format!("--resume {}", item["id"].as_str().unwrap())), "{item}");

    let mut client = Client::start(&place, &[], json!({}));
    let item = client.script(FAILS);
    let suggestions: Vec<&str> =
        item["error"]["suggestions"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let argument = format!("`resume: \"{}\"`", item["id"].as_str().unwrap());
    assert!(suggestions.iter().any(|words| words.contains(&argument)), "{item}");
    assert!(suggestions.iter().all(|words| !words.contains("--resume")), "{item}");
}

#[test]
fn of_a_run_that_was_not_kept_nobody_is_sent_to_look() {
    let place = Place::new();
    let (status, _, err) = run(&place, &["run", "--ephemeral", "-e", FAILS]);
    assert_eq!(status, 1);
    assert!(err.contains("note: 1 of 1 calls had finished\n"), "{err}");
    assert!(!err.contains("runs show") && !err.contains("resume"), "{err}");
    let item = json_of(&place, &["run", "--ephemeral", "--json", "-e", FAILS]);
    assert!(!item.to_string().contains("resume"), "{item}");
}

fn mode_of(path: &std::path::Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
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
    assert_ne!(mode_of(&old) & 0o077, 0, "the test's own file is readable for others");
    assert_eq!(run(&place, &["runs", "export", &id, "old.json"]).0, 0);
    assert_eq!(mode_of(&old), 0o600);
    assert_eq!(std::fs::read(&old).unwrap(), std::fs::read(place.work().join("run.json")).unwrap());
    assert_eq!(run(&place, &["runs", "replay", "old.json"]).1, "1\n");
    // What is no file is written to as it is.
    assert_eq!(run(&place, &["runs", "export", &id, "/dev/null"]).0, 0);
}
