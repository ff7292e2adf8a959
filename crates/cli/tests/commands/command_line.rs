//! Commands that people expect: init, completions, man, config get and set, mcp add, remove and
//! get, tools NAME, sessions delete.

use super::CommandsWorkspace;

#[test]
fn init_writes_a_starter_once() {
    let workspace = CommandsWorkspace::new();
    workspace.write("project/Cargo.toml", "");
    let seen = workspace.run(&["init"]);
    assert_eq!(seen.status, 0, "{seen:?}");
    let file = workspace.dir.path().join("project/AGENTS.md");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("- `cargo test`"), "{text}");
    let seen = workspace.run(&["init"]);
    assert!(
        seen.status == 2 && seen.err.contains("hint: run `selvedge`, and type /init"),
        "{seen:?}"
    );
}

#[test]
fn completions_and_manual_pages_name_the_commands() {
    let workspace = CommandsWorkspace::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let seen = workspace.run(&["completions", shell]);
        assert!(
            seen.status == 0 && seen.out.contains("sessions") && seen.out.contains("doctor"),
            "{shell}"
        );
    }
    let seen = workspace.run(&["man"]);
    assert!(
        seen.status == 0 && seen.out.contains(".TH selvedge 1"),
        "{seen:?}"
    );
    let seen = workspace.run(&["man", "pages"]);
    assert_eq!(seen.status, 0, "{seen:?}");
    let page = workspace
        .dir
        .path()
        .join("project/pages/selvedge-sessions-list.1");
    assert!(page.exists());
}

#[test]
fn keys_are_printed_and_set_and_comments_stay() {
    let workspace = CommandsWorkspace::new();
    workspace.write(
        "home/config.toml",
        "# mine\n[memory]\nrecall = true # yes\n",
    );
    assert_eq!(
        workspace.run(&["config", "get", "memory.recall"]).out,
        "true\n"
    );
    for (key, value) in [("memory.recall", "false"), ("model", "gpt-5")] {
        let seen = workspace.run(&["config", "set", key, value]);
        assert_eq!(seen.status, 0, "{seen:?}");
        assert_eq!(
            workspace.run(&["config", "get", key]).out,
            format!("{value}\n")
        );
    }
    let file = workspace.dir.path().join("home/config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("# mine\n") && text.contains("\nrecall = false # yes\n"),
        "{text}"
    );
    for wrong in [
        &["config", "set", "memory.recal", "true"][..],
        &["config", "set", "memory.recall", "maybe"],
        &["config", "set", "approval_policy", "sometimes"],
        &["config", "get", "no.such.key"],
        &["config", "set", "--unset", "no.such.key"],
    ] {
        let seen = workspace.run(wrong);
        assert!(
            seen.status == 2 && seen.err.contains("error: ") && seen.err.contains("hint: "),
            "{wrong:?}: {seen:?}"
        );
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    // A part with a dot is quoted.
    let both = "{ input = 3.0, output = 15.0 }";
    let prices = ["config", "set", "models.\"gpt-4.1\".prices", both];
    assert_eq!(workspace.run(&prices).status, 0);
    let key = "models.\"gpt-4.1\".prices.output";
    assert_eq!(workspace.run(&["config", "get", key]).out, "15.0\n");
    assert_eq!(
        workspace.run(&["config", "set", "--unset", "model"]).status,
        0
    );
    assert_eq!(workspace.run(&["config", "get", "model"]).out, "not set\n");
}

#[cfg(unix)]
#[test]
fn the_file_keeps_its_permissions_and_its_place() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let workspace = CommandsWorkspace::new();
    let file = workspace.dir.path().join("home/config.toml");
    let mode = |file: &std::path::Path| file.metadata().unwrap().permissions().mode() & 0o777;
    // A new file may get keys, so only its owner can read it.
    let add = ["mcp", "add", "git", "--env", "TOKEN=secret", "--", "npx"];
    assert_eq!(workspace.run(&add).status, 0);
    assert_eq!(mode(&file), 0o600);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(workspace.run(&["config", "set", "model", "a"]).status, 0);
    assert_eq!(mode(&file), 0o640);
    // A link to a file in another folder stays a link.
    let elsewhere = workspace.dir.path().join("dotfiles.toml");
    std::fs::rename(&file, &elsewhere).unwrap();
    symlink(&elsewhere, &file).unwrap();
    assert_eq!(workspace.run(&["config", "set", "model", "b"]).status, 0);
    assert!(file.symlink_metadata().unwrap().is_symlink());
    let text = std::fs::read_to_string(&elsewhere).unwrap();
    assert!(text.contains("model = \"b\""), "{text}");
}

#[test]
fn servers_are_added_shown_and_removed() {
    let workspace = CommandsWorkspace::new();
    let add = [
        "mcp",
        "add",
        "git",
        "--env",
        "TOKEN=secret",
        "--",
        "npx",
        "-y",
        "server",
    ];
    let seen = workspace.run(&add);
    assert_eq!(seen.status, 0, "{seen:?}");
    let shown = workspace.run(&["mcp", "get", "git"]);
    assert!(
        shown.out.contains("\"npx\"") && shown.out.contains("***") && !shown.out.contains("secret"),
        "{shown:?}"
    );
    let seen = workspace.run(&add);
    assert!(
        seen.status == 2 && seen.err.contains("hint: pass --force"),
        "{seen:?}"
    );
    let seen = workspace.run(&["mcp", "add", "web", "--url", "https://example.com/mcp"]);
    assert_eq!(seen.status, 0, "{seen:?}");
    assert_eq!(workspace.run(&["mcp", "remove", "git"]).status, 0);
    for wrong in [
        &["mcp", "get", "git"][..],
        &["mcp", "remove", "git"],
        &["mcp", "add", "empty"],
        &["mcp", "add", "a b", "--", "x"],
    ] {
        let seen = workspace.run(wrong);
        assert!(seen.status == 2 && seen.err.contains("hint: "), "{wrong:?}");
    }
    let file = workspace.dir.path().join("home/config.toml");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(
        text.contains("[mcp_servers.web]") && !text.contains("npx"),
        "{text}"
    );
}

#[test]
fn one_tool_is_described() {
    let workspace = CommandsWorkspace::new();
    for name in ["readFile", "read_file", "tools.readFile"] {
        let seen = workspace.run(&["tools", name]);
        assert!(
            seen.status == 0
                && seen.out.starts_with("tools.readFile\n")
                && seen.out.contains("totalLines"),
            "{seen:?}"
        );
    }
    let seen = workspace.run(&["tools", "readFil"]);
    assert!(
        seen.status == 2 && seen.err.contains("hint: run `selvedge tools readFile`"),
        "{seen:?}"
    );
}

#[test]
fn a_session_that_does_not_exist_cannot_be_deleted() {
    let workspace = CommandsWorkspace::new();
    let seen = workspace.run(&["sessions", "delete", "ses_missing", "-y"]);
    let expected = "error: there is no session `ses_missing`\n\
                    hint: run `selvedge sessions list` to list the sessions\n";
    assert_eq!((seen.status, seen.err.as_str()), (2, expected));
}
