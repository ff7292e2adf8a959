//! `selvedge doctor` finds what is wrong: the journal, git and the folder.

use super::{CliOutput, CommandsWorkspace};

#[test]
fn a_journal_that_cannot_be_used_is_a_failure() {
    let workspace = CommandsWorkspace::new();
    let seen = workspace.run(&["doctor"]);
    assert!(
        seen.status == 0 && !seen.out.contains("journal"),
        "{seen:?}"
    );
    assert_eq!(workspace.run(&["run", "-q", "-e", "return 1"]).status, 0);
    let file = workspace.dir.path().join("home/journal.sqlite");
    let seen = workspace.run(&["doctor"]);
    let line = format!("\n✓ journal        {} can be written\n", file.display());
    assert!(seen.status == 0 && seen.out.contains(&line), "{seen:?}");
    std::fs::write(&file, "no database".repeat(1000)).unwrap();
    let seen = workspace.run(&["doctor"]);
    assert!(
        seen.status == 1 && seen.out.contains("\n✗ journal        "),
        "{seen:?}"
    );
}

#[test]
fn git_of_the_system_is_checked_whatever_path_says() {
    let workspace = CommandsWorkspace::new();
    let seen = workspace.run(&["doctor"]);
    assert!(
        seen.out.contains("\n✓ git            git version "),
        "{seen:?}"
    );
    let empty = workspace.dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let output = workspace.command(&["doctor"]).env("PATH", &empty).output();
    let seen = CliOutput::of(output.unwrap());
    assert!(
        seen.out.contains("\n✓ git            git version "),
        "{seen:?}"
    );
}

#[test]
fn every_configured_model_is_checked_once() {
    let workspace = CommandsWorkspace::new();
    workspace.write(
        "home/config.toml",
        "model = 'big'\nmodel_provider = 'mock'\nmemory.model = 'mock/small'\n\
         [environments.fast]\nmodel = 'quick'\n[environments.same]\nmodel = 'big'\n\
         [model_providers.mock]\nbase_url = 'http://127.0.0.1:1/v1'\nwire_api = 'chat'\n",
    );
    let seen = workspace.run(&["doctor"]);
    for model in ["big", "quick", "small"] {
        let line = format!("✗ model          {model} of mock at http://127.0.0.1:1");
        assert_eq!(seen.out.matches(&line).count(), 1, "{model}: {seen:?}");
    }
    assert_eq!(seen.out.matches(" of mock at ").count(), 3, "{seen:?}");
}
