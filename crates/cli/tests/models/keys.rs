//! Keys of providers on a machine without a keyring.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::json;

use super::{ModelListServer, ModelsOutput, ModelsWorkspace, chat, command_output, own};

/// Runs `models login own`, and types a key.
pub(super) fn log_in(
    workspace: &ModelsWorkspace,
    key: &str,
    environment: &[(&str, &str)],
) -> ModelsOutput {
    let mut command = workspace.command(&["models", "login", "own"]);
    command
        .envs(environment.iter().copied())
        .stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(format!("{key}\n").as_bytes()).unwrap();
    drop(input);
    command_output(child)
}

#[test]
fn without_a_keyring_a_key_is_stored_in_a_private_file() {
    let server = ModelListServer::start(chat);
    let workspace = own(&server, "env_key = \"OWN_KEY\"");
    let file = workspace.0.path().join("credentials.json");
    let seen = log_in(&workspace, "sk-typed", &[]);
    let shown = file.display();
    assert_eq!((seen.status, seen.out.as_str()), (0, ""), "{seen:?}");
    assert_eq!(
        seen.err,
        format!(
            "note: no system keyring is running; the key will be stored in {shown}\n\
             stored the key of own in {shown}\n"
        )
    );
    let mode = file.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // The key is used, and each command says where it is.
    assert_eq!(workspace.run(&["test"], &[]).status, 0);
    assert!(
        server.asked()[0].contains("authorization: bearer sk-typed"),
        "{:?}",
        server.asked()
    );
    let listed = workspace.run(&["list", "--provider", "own"], &[]);
    let place = format!("2 models, key from {shown}\n");
    assert!(listed.out.contains(&place), "{}", listed.out);
    let listed = workspace.run(&["list", "--provider", "own", "--json"], &[]);
    assert_eq!(listed.json()[0]["key"]["place"], "file");
    let doctor = command_output(workspace.command(&["doctor"]).spawn().unwrap());
    for line in [
        format!("! keyring        no system keyring is running; keys are stored in {shown}\n"),
        format!("can be reached; its key is from {shown}; run `selvedge models test`"),
    ] {
        assert!(doctor.out.contains(&line), "{line}: {}", doctor.out);
    }

    // A variable has precedence over the stored key.
    let environment = [("OWN_KEY", "sk-variable")];
    let listed = workspace.run(&["list", "--provider", "own"], &environment);
    assert!(listed.out.contains(", key from OWN_KEY\n"), "{listed:?}");
    let seen = log_in(&workspace, "sk-other", &environment);
    let note = "note: OWN_KEY is set, and is used instead of the stored key\n";
    assert!(seen.err.ends_with(note), "{seen:?}");
    let listed = workspace.run(&["list", "--provider", "own", "--json"], &environment);
    assert_eq!(listed.json()[0]["key"]["place"], "environment");

    let seen = workspace.run(&["logout", "own"], &[]);
    assert_eq!(seen.err, format!("deleted the key of own from {shown}\n"));
    assert!(!file.exists());
    let seen = workspace.run(&["logout", "own"], &[]);
    assert_eq!(seen.err, "note: no key of own is stored\n");
    let listed = workspace.run(&["list", "--provider", "own"], &[]);
    assert!(listed.out.contains("OWN_KEY is not set"), "{listed:?}");
}

#[test]
fn a_place_that_cannot_take_a_key_is_reported_before_the_question() {
    let server = ModelListServer::start(chat);
    let workspace = own(&server, "env_key = \"OWN_KEY\"");
    std::fs::write(workspace.0.path().join("credentials.json"), "{").unwrap();
    let mut command = workspace.command(&["models", "login", "own"]);
    // Standard input stays open: a command that waited for the key would not end.
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let input = child.stdin.take();
    let seen = command_output(child);
    drop(input);
    assert_eq!(seen.status, 2, "{seen:?}");
    assert!(
        seen.err.starts_with("error: other users have access to"),
        "{}",
        seen.err
    );
}

#[test]
fn keys_that_other_users_can_read_are_not_used() {
    let server = ModelListServer::start(chat);
    let workspace = own(&server, "env_key = \"OWN_KEY\"");
    assert_eq!(log_in(&workspace, "sk-typed", &[]).status, 0);
    let file = workspace.0.path().join("credentials.json");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let seen = workspace.run(&["test"], &[]);
    let shown = file.display();
    let expected = format!(
        "error: other users have access to the keys in {shown}\n\
         hint: run `chmod 600 {shown}`, and replace the keys\n"
    );
    assert_eq!((seen.status, seen.err), (2, expected));
    assert!(server.asked().is_empty());
    // What the hint says works.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(workspace.run(&["test"], &[]).status, 0);
}

#[test]
fn doctor_asks_the_provider_and_no_model_is_only_a_warning() {
    let doctor = |workspace: &ModelsWorkspace| {
        let mut command = workspace.command(&["doctor"]);
        command_output(command.stdin(Stdio::null()).spawn().unwrap())
    };
    let server = ModelListServer::start(chat);
    let seen = doctor(&own(&server, ""));
    let line = "\n✓ model          tiny of own at http://127.0.0.1:";
    let is_reached = seen
        .out
        .contains(" can be reached; run `selvedge models test`");
    assert!(
        seen.status == 0 && seen.out.contains(line) && is_reached,
        "{seen:?}"
    );
    let listed = |head: &str, _: &str| {
        let models = json!({"object": "list", "data": [{"id": "large"}]});
        match head.starts_with("get ") {
            true => (200, models.to_string()),
            false => (404, String::new()),
        }
    };
    let server = ModelListServer::start(listed);
    let seen = doctor(&own(&server, ""));
    let line = "\n! model          tiny is not in the list of own at http://127.0.0.1:";
    let hint = "; run `selvedge models list --provider own`\n";
    assert!(
        seen.status == 0 && seen.out.contains(line) && seen.out.contains(hint),
        "{seen:?}"
    );
    let seen = doctor(&ModelsWorkspace::new(
        "model_provider = \"own\"\nmodel = \"tiny\"\n\
         [model_providers.own]\nbase_url = \"http://127.0.0.1:9/v1\"\n",
    ));
    let line =
        "\n✗ model          tiny of own at http://127.0.0.1:9 cannot be used: cannot connect";
    assert!(seen.status == 1 && seen.out.contains(line), "{seen:?}");
    let seen = doctor(&ModelsWorkspace::new(""));
    let line = "\n! model          no model is available: ";
    assert!(seen.status == 0 && seen.out.contains(line), "{seen:?}");
}

#[test]
fn a_pipe_in_place_of_the_keys_does_not_block() {
    let server = ModelListServer::start(chat);
    let workspace = own(&server, "env_key = \"OWN_KEY\"");
    let file = workspace.0.path().join("credentials.json");
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success());
    let seen = workspace.run(&["test"], &[]);
    let shown = file.display();
    let expected = format!(
        "error: {shown} is not read: it is a pipe, not a regular file\n\
         hint: run `rm {shown}`, then `selvedge models login PROVIDER`\n"
    );
    assert_eq!((seen.status, seen.err), (2, expected));
}
