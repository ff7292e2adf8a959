//! `mcp install`: the entry of Selvedge in the settings of agents.

use serde_json::{Value, json};

use super::support::TestWorkspace;

#[test]
fn install_prints_or_writes_the_client_configuration() {
    let workspace = TestWorkspace::new();
    let install = |client: &str, more: &[&str]| {
        let mut command = workspace.command(&["mcp", "install", "--client", client]);
        command
            .args(more)
            .env("CODEX_HOME", workspace.home())
            .env("HOME", workspace.dir.path())
            .env("XDG_CONFIG_HOME", workspace.dir.path().join("settings"));
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    for (client, file, key) in [
        ("claude-code", ".mcp.json", "mcpServers"),
        ("cursor", ".cursor/mcp.json", "mcpServers"),
        ("gemini-cli", ".gemini/settings.json", "mcpServers"),
        ("vscode", ".vscode/mcp.json", "servers"),
        (
            "claude-desktop",
            "../settings/Claude/claude_desktop_config.json",
            "mcpServers",
        ),
        (
            "cline",
            "../settings/Code/User/globalStorage/saoudrizwan.claude-dev/settings/\
             cline_mcp_settings.json",
            "mcpServers",
        ),
        (
            "windsurf",
            "../.codeium/windsurf/mcp_config.json",
            "mcpServers",
        ),
        ("zed", "../settings/zed/settings.json", "context_servers"),
    ] {
        let shown: Value = serde_json::from_str(&install(client, &[])).unwrap();
        let mut serve = vec!["mcp".to_owned(), "serve".to_owned()];
        if client == "claude-desktop" {
            let folder = workspace.work().canonicalize().unwrap();
            serve.extend(["-C".to_owned(), folder.display().to_string()]);
        }
        assert_eq!(shown[key]["selvedge"]["args"], json!(serve), "{client}");
        serve.extend(["--approval".to_owned(), "untrusted".to_owned()]);
        assert!(!workspace.work().join(file).exists());
        std::fs::create_dir_all(workspace.work().join(file).parent().unwrap()).unwrap();
        std::fs::write(
            workspace.work().join(file),
            format!(r#"{{"{key}": {{"other": {{"command": "x"}}}}, "more": 1}}"#),
        )
        .unwrap();
        assert!(install(client, &["--write", "--", "--approval", "untrusted"]).contains("wrote"));
        let written: Value =
            serde_json::from_str(&std::fs::read_to_string(workspace.work().join(file)).unwrap())
                .unwrap();
        assert_eq!(
            (&written[key]["other"]["command"], &written["more"]),
            (&json!("x"), &json!(1)),
            "{client}"
        );
        assert_eq!(written[key]["selvedge"]["args"], json!(serve));
        assert!(
            install(client, &["--write", "--", "--approval", "untrusted"])
                .contains("is up to date")
        );
    }
    std::fs::write(
        workspace.home().join("config.toml"),
        "model = \"m\"\n\n[mcp_servers.selvedge]\ncommand = \"old\"\n\n[other]\na = 1\n",
    )
    .unwrap();
    install("codex", &["--write"]);
    let written = std::fs::read_to_string(workspace.home().join("config.toml")).unwrap();
    assert!(
        written.starts_with("model = \"m\"\n")
            && written.contains("[other]\na = 1")
            && !written.contains("\"old\""),
        "{written}"
    );
    assert!(
        written.contains("[mcp_servers.selvedge]\ncommand = ")
            && written.contains("args = [\"mcp\", \"serve\"]"),
        "{written}"
    );
    assert!(install("codex", &["--write"]).contains("is up to date"));
    // A file that cannot be parsed is not changed, and the entry is printed.
    std::fs::write(workspace.work().join(".mcp.json"), "{ // a comment\n").unwrap();
    assert!(install("claude-code", &[]).contains("mcpServers"));
    let refused = workspace
        .command(&["mcp", "install", "--client", "claude-code", "--write"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        std::fs::read_to_string(workspace.work().join(".mcp.json")).unwrap(),
        "{ // a comment\n"
    );
}

#[test]
fn install_keeps_the_comments_of_a_file() {
    let workspace = TestWorkspace::new();
    let install = |client: &str| {
        let mut command = workspace.command(&["mcp", "install", "--client", client, "--write"]);
        command
            .env("CODEX_HOME", workspace.home())
            .env("HOME", workspace.dir.path())
            .env("XDG_CONFIG_HOME", workspace.dir.path().join("settings"));
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{error}");
        String::from_utf8(output.stdout).unwrap()
    };
    // The section has a comment behind its heading, and a setting of its own.
    let codex = workspace.home().join("config.toml");
    for before in [
        "[mcp_servers.selvedge] # mine\ncommand = \"old\" # here\nenabled = true\n",
        "[mcp_servers] # mine\nselvedge.command = \"old\" # here\nselvedge.enabled = true\n",
        "mcp_servers = { selvedge = { command = \"old\", enabled = true } } # mine, here\n",
    ] {
        std::fs::write(&codex, before).unwrap();
        install("codex");
        let written = std::fs::read_to_string(&codex).unwrap();
        let parsed: toml_edit::DocumentMut = written.parse().unwrap();
        let entry = &parsed["mcp_servers"]["selvedge"];
        assert_eq!(entry["args"].as_array().unwrap().len(), 2, "{written}");
        assert_ne!(entry["command"].as_str(), Some("old"), "{written}");
        assert_eq!(entry["enabled"].as_bool(), Some(true), "{written}");
        assert!(
            written.contains("mine") && written.contains("here"),
            "{written}"
        );
        assert!(install("codex").contains("is up to date"));
    }
    // The settings that Zed creates begin with comments and end with a comma.
    let zed = workspace.dir.path().join("settings/zed/settings.json");
    std::fs::create_dir_all(zed.parent().unwrap()).unwrap();
    let settings = "// Zed settings\n//\n// For information, see https://zed.dev/docs\n{\n  \
        \"theme\": {\n    \"mode\": \"system\", // as the desktop\n  },\n}\n";
    std::fs::write(&zed, settings).unwrap();
    install("zed");
    let written = std::fs::read_to_string(&zed).unwrap();
    assert!(
        written.starts_with("// Zed settings\n//\n")
            && written.contains("\"mode\": \"system\", // as the desktop\n  },\n}\n")
            && written.contains("{\n  \"context_servers\": {\n    \"selvedge\": {\n"),
        "{written}"
    );
    assert!(install("zed").contains("is up to date"));
}

#[cfg(unix)]
#[test]
fn install_writes_nothing_outside_of_the_project_and_keeps_permissions() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let workspace = TestWorkspace::new();
    let outside = workspace.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let precious = outside.join("precious");
    std::fs::write(&precious, "precious").unwrap();
    let install = |client: &str| {
        let mut command = workspace.command(&["mcp", "install", "--write", "--client", client]);
        let command = command.env("CODEX_HOME", &outside);
        command.output().unwrap().status.code()
    };
    // Links that a project may contain.
    for name in [".mcp.json.new", ".mcp.json"] {
        let link = workspace.work().join(name);
        symlink(&precious, &link).unwrap();
        install("claude-code");
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        // Whether the file was written or not.
        let _ = std::fs::remove_file(workspace.work().join(".mcp.json"));
    }
    symlink(&outside, workspace.work().join(".cursor")).unwrap();
    assert_eq!(install("cursor"), Some(2));
    assert!(!outside.join("mcp.json").exists());
    // A file of the user that others cannot read stays so.
    let config = outside.join("config.toml");
    std::fs::write(&config, "model = \"m\"\n").unwrap();
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(install("codex"), Some(0));
    let mode = config.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
