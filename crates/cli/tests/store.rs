//! `selvedge store` and the key `store`: other databases, their errors, and copying what is stored.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::process::Output;

use serde_json::Value;
use support::{TestWorkspace, store};

fn run(workspace: &TestWorkspace, args: &[&str]) -> Output {
    workspace.command(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the number of runs in the configured store.
fn run_count(workspace: &TestWorkspace) -> usize {
    let listed = run(workspace, &["runs", "list", "--json"]);
    assert!(listed.status.success(), "{}", stderr(&listed));
    listed_runs(&listed)
}

/// Returns the number of runs that `runs list --json` printed.
fn listed_runs(output: &Output) -> usize {
    let runs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    runs.len()
}

#[test]
fn an_address_that_is_wrong_or_cannot_be_reached_gives_a_hint_and_shows_no_password() {
    let workspace = TestWorkspace::new();
    for (address, error, hint) in [
        (
            "mysql://me:hunter22@db/x",
            "must begin with postgres://",
            "set",
        ),
        (
            "postgres://me:hunter22@db/x?sslmode=maybe",
            "sslmode must be",
            "set",
        ),
        (
            "postgres://me:hunter22@127.0.0.1:1/x",
            "cannot connect to postgres://127.0.0.1:1/x",
            "check that the database of the key `store` runs",
        ),
    ] {
        workspace.config(&format!("store = \"{address}\"\n"));
        for args in [
            &["runs", "list"][..],
            &["memory", "stats"],
            &["run", "-e", "1"],
        ] {
            let mut command = workspace.command(args);
            let output = command.env_remove("SELVEDGE_STORE").output().unwrap();
            let shown = format!(
                "{}{}",
                stderr(&output),
                String::from_utf8_lossy(&output.stdout)
            );
            assert!(!output.status.success(), "{args:?}: {shown}");
            assert!(
                shown.contains("error: ") && shown.contains(error),
                "{args:?}: {shown}"
            );
            assert!(
                shown.contains(&format!("hint: {hint}")),
                "{args:?}: {shown}"
            );
            assert!(!shown.contains("hunter22"), "{args:?}: {shown}");
        }
    }
    let get = run(&workspace, &["config", "get", "store"]);
    let shown = String::from_utf8(get.stdout).unwrap();
    assert!(
        shown.contains("127.0.0.1") && !shown.contains("hunter22"),
        "{shown}"
    );
}

#[test]
fn a_project_cannot_choose_the_store() {
    let workspace = TestWorkspace::new();
    let folder = workspace.work().join(".selvedge");
    std::fs::create_dir_all(&folder).unwrap();
    let config = "store = \"postgres://127.0.0.1:1/x\"\n";
    std::fs::write(folder.join("config.toml"), config).unwrap();
    let mut command = workspace.command(&["run", "-q", "-e", "return 1"]);
    let output = command.env("SELVEDGE_TRUST", "1").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(run_count(&workspace), 1);
}

#[test]
fn what_is_stored_is_checked_and_copied_to_another_store() {
    let workspace = TestWorkspace::new();
    let call = "await tools.exec({ command: ['true'] }); return 1";
    for script in ["return 1", call] {
        let output = run(&workspace, &["run", "-q", "-e", script]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_eq!(run_count(&workspace), 2);
    let checked = run(&workspace, &["store", "check", "--json"]);
    assert!(checked.status.success(), "{}", stderr(&checked));
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let name = if store::uses_files() {
        "SQLite"
    } else {
        "PostgreSQL"
    };
    assert!(
        checked["database"].as_str().unwrap().starts_with(name),
        "{checked}"
    );
    assert_eq!(checked["problems"], serde_json::json!([]));

    let target = workspace.dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let target = target.to_str().unwrap();
    let migrate = ["store", "migrate", "--from", "configured", "--to", target];
    let copied = run(&workspace, &migrate);
    assert!(copied.status.success(), "{}", stderr(&copied));
    let shown = String::from_utf8(copied.stdout).unwrap();
    assert!(shown.contains("runs: 2 rows copied"), "{shown}");
    assert!(
        shown.ends_with("rows are equal in both stores\n"),
        "{shown}"
    );
    let again = String::from_utf8(run(&workspace, &migrate).stdout).unwrap();
    assert!(again.contains("runs: 2 rows were equal"), "{again}");
    // The copy is a journal.
    let mut command = workspace.command(&["runs", "list", "--json"]);
    let command = command
        .env("SELVEDGE_HOME", target)
        .env_remove("SELVEDGE_STORE");
    assert_eq!(listed_runs(&command.output().unwrap()), 2);

    let unknown = run(&workspace, &["store", "check", "oracle"]);
    assert!(
        stderr(&unknown).contains("there is no store `oracle`"),
        "{}",
        stderr(&unknown)
    );
    assert!(
        stderr(&unknown).contains("hint: pass sqlite"),
        "{}",
        stderr(&unknown)
    );
}

#[test]
fn a_program_that_is_too_old_for_the_store_gets_one_error_and_one_hint() {
    let workspace = TestWorkspace::new();
    let output = run(&workspace, &["run", "-q", "-e", "return 1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let raw = store::database(&workspace.home());
    let change = |sql: &str| raw.execute_batch(sql).unwrap();
    // A newer version has added something.
    change("UPDATE schema_versions SET version = 99");
    let output = run(&workspace, &["run", "-q", "-e", "return 1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(run_count(&workspace), 2);
    // It has removed something.
    change("UPDATE schema_versions SET compatible_since = 98 WHERE component = 'journal'");
    for args in [
        &["runs", "list"][..],
        &["memory", "stats"],
        &["run", "-e", "return 1"],
        &["store", "check"],
    ] {
        let shown = stderr(&run(&workspace, args));
        let count = |word: &str| shown.lines().filter(|line| line.starts_with(word)).count();
        assert_eq!(
            (count("error: "), count("hint: ")),
            (1, 1),
            "{args:?}: {shown}"
        );
        assert!(
            shown.contains("requires a newer version of Selvedge (schema version 98 of journal"),
            "{args:?}: {shown}"
        );
        assert!(
            shown.contains("hint: install a newer version"),
            "{args:?}: {shown}"
        );
    }
}
