//! MCP servers from configuration files, `mcp list` and `mcp install`.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "mcp_servers/install.rs"]
mod install;
mod support;

use serde_json::{Value, json};
use support::TestWorkspace;

fn run(workspace: &TestWorkspace, args: &[&str]) -> (i32, String, String) {
    let output = workspace.command(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn configured_servers_are_available_in_every_command() {
    let workspace = TestWorkspace::new();
    workspace.config(&TestWorkspace::odd("odd", "good"));
    let (status, out, _) = run(
        &workspace,
        &["run", "-q", "-e", "return (await odd.echo({ x: 3 })).x"],
    );
    assert_eq!((status, out.trim()), (0, "3"));
    let (status, _, stderr) = run(
        &workspace,
        &[
            "run",
            "-q",
            "-e",
            "return await tools.mcp.odd.echo({ y: 'x', x: 'no' })",
        ],
    );
    assert!(
        status == 2 && stderr.contains("ToolValidationError"),
        "{stderr}"
    );
    let (_, out, _) = run(&workspace, &["tools"]);
    assert!(
        out.contains("tools.mcp.odd.echo") && out.contains("tools.search"),
        "{out}"
    );
    let (_, out, _) = run(&workspace, &["tools", "--ts"]);
    assert!(
        out.contains("declare const odd: typeof tools.mcp.odd;"),
        "{out}"
    );
    let (status, out, _) = run(&workspace, &["mcp", "list"]);
    assert!(
        status == 0 && out.contains("✓ odd") && out.contains("10 tools"),
        "{out}"
    );
    let (_, out, _) = run(&workspace, &["mcp", "list", "--json"]);
    let listed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (
            &listed[0]["state"],
            listed[0]["tools"].as_array().unwrap().len()
        ),
        (&json!("ready"), 10)
    );
    // A pack offers only the tools that it names.
    let (_, out, _) = run(&workspace, &["tools", "--pack", "file-ops"]);
    assert!(!out.contains("mcp.odd"), "{out}");
    workspace.config(&format!(
        "{}[script_harness.expose]\nenable_mcp = false\n",
        TestWorkspace::odd("odd", "good")
    ));
    let (_, out, _) = run(&workspace, &["tools"]);
    assert!(!out.contains("mcp.odd"), "{out}");
}

#[test]
fn a_projects_servers_start_only_if_it_is_trusted() {
    let workspace = TestWorkspace::new();
    let script =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/servers/odd.py");
    let file = json!({"mcpServers": {"ours": {"command": "python3", "args": [script, "good"]}}});
    std::fs::write(workspace.work().join(".mcp.json"), file.to_string()).unwrap();
    let code = "return (await ours.echo({ x: 4 })).x";
    let (status, _, stderr) = run(&workspace, &["run", "-q", "-e", code]);
    assert!(
        status != 0
            && stderr
                .contains(".mcp.json is ignored: this folder is not trusted\nhint: pass --trust"),
        "{stderr}"
    );
    let trusting = ["run", "-q", "--approval", "never", "-e", code, "--trust"];
    let (status, out, _) = run(&workspace, &trusting);
    assert_eq!((status, out.trim()), (0, "4"));
    let (status, out, _) = run(&workspace, &trusting[..6]);
    assert_eq!((status, out.trim()), (0, "4"));
}

/// Returns which of the tools `look` (declared read-only), `plain` (no annotations) and `wipe`
/// (declared destructive) run without a person, under each approval policy.
fn tools_that_run(workspace: &TestWorkspace) -> [String; 4] {
    let code = "const ran = [];
        for (const name of ['look', 'plain', 'wipe']) {
            await tools.mcp.odd[name]({ x: 1 }).then(() => ran.push(name), () => {});
        }
        return ran.join(' ')";
    ["untrusted", "on-request", "on-failure", "never"].map(|policy| {
        let args = ["run", "-q", "--trust", "--approval", policy, "-e", code];
        let (status, out, stderr) = run(workspace, &args);
        assert_eq!(status, 0, "{stderr}");
        out.trim().to_owned()
    })
}

#[test]
fn unannotated_tools_run_for_user_servers_and_need_approval_for_project_servers() {
    let workspace = TestWorkspace::new();
    let odd = TestWorkspace::odd("odd", "annotated");
    let approve = "default_tools_approval_mode = \"approve\"\n";
    let all = "look plain wipe";
    workspace.config(&odd);
    let users = ["", "look plain", "look plain", "look plain"];
    assert_eq!(tools_that_run(&workspace), users);
    workspace.config(&format!("{odd}{approve}"));
    assert_eq!(tools_that_run(&workspace), [all; 4]);

    // The server comes from the project's configuration, in which it approves itself.
    let projects = ["", "", "look plain", "look plain"];
    let config = workspace.work().join(".selvedge/config.toml");
    std::fs::create_dir(workspace.work().join(".selvedge")).unwrap();
    workspace.config("");
    std::fs::write(&config, format!("{odd}{approve}")).unwrap();
    assert_eq!(tools_that_run(&workspace), projects);
    // The project changes a server that the user approved.
    workspace.config(&format!("{odd}{approve}"));
    std::fs::write(&config, &odd).unwrap();
    assert_eq!(tools_that_run(&workspace), projects);
    // The server comes from the project's `.mcp.json`.
    std::fs::remove_file(&config).unwrap();
    workspace.config("");
    let script =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/servers/odd.py");
    let file =
        json!({"mcpServers": {"odd": {"command": "python3", "args": [script, "annotated"]}}});
    std::fs::write(workspace.work().join(".mcp.json"), file.to_string()).unwrap();
    assert_eq!(tools_that_run(&workspace), projects);
    // The user's server of the same name is used instead of the project's.
    workspace.config(&odd);
    assert_eq!(tools_that_run(&workspace), users);
}

#[test]
fn requests_to_a_projects_server_need_approval_by_every_tool() {
    let workspace = TestWorkspace::new();
    let script =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/servers/odd.py");
    let file =
        json!({"mcpServers": {"odd": {"command": "python3", "args": [script, "annotated"]}}});
    std::fs::write(workspace.work().join(".mcp.json"), file.to_string()).unwrap();
    for call in [
        "mcp.odd.look.raw({ x: 1 })",
        "mcpCallTool({ server: 'odd', tool: 'look', arguments: {} })",
        "readMcpResource({ server: 'odd', uri: 'x://secret' })",
        "mcp_read_resource({ server: 'odd', uri: 'x://secret' })",
        "getMcpPrompt({ server: 'odd', name: 'secret' })",
        "listMcpResources({ server: 'odd', cursor: 'secret' })",
        "listMcpResourceTemplates({ server: 'odd', cursor: 'secret' })",
        "listMcpPrompts({ server: 'odd', cursor: 'secret' })",
    ] {
        let code = format!("return await tools.{call}.catch(e => e.code)");
        let args = ["run", "-q", "--trust", "-e", &code];
        let (_, out, stderr) = run(&workspace, &args);
        assert_eq!(out.trim(), "ApprovalDeniedError", "{call}: {stderr}");
    }
}

#[test]
fn a_missing_variable_disables_only_its_server() {
    let workspace = TestWorkspace::new();
    let odd = TestWorkspace::odd("odd", "good");
    let web = "[mcp_servers.web]\nurl = \"http://127.0.0.1:9/mcp\"\n";
    let headers = "env_http_headers = { X-Key = \"SELVEDGE_NOT_SET\" }\n";
    let token = "bearer_token_env_var = \"SELVEDGE_NOT_SET\"\n";
    let code = "return [(await odd.echo({ x: 1 })).x, await tools.mcp.web.anything().catch(e => e.message)]";
    for (more, why) in [
        (
            headers.to_owned(),
            "the MCP server `web` cannot be used: the environment variable SELVEDGE_NOT_SET is not set",
        ),
        (
            format!("{headers}enabled = false\n"),
            "the MCP server `web` is disabled",
        ),
        (
            format!("{token}enabled = false\n"),
            "the MCP server `web` is disabled",
        ),
    ] {
        workspace.config(&format!("{odd}{web}{more}"));
        let (status, out, stderr) = run(&workspace, &["run", "-q", "-e", code]);
        let value: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{stderr}"));
        assert_eq!((status, value), (0, json!([1, why])), "{stderr}");
    }
    workspace.config(&format!("{odd}{web}{token}"));
    let (_, out, stderr) = run(&workspace, &["run", "-q", "-e", code]);
    assert!(
        out.contains("  1,") && out.contains("SELVEDGE_NOT_SET is not set"),
        "{out}{stderr}"
    );
    // The same in a project's file.
    workspace.config("");
    let headers = json!({"X-Key": "${SELVEDGE_NOT_SET}"});
    let file =
        json!({"mcpServers": {"web": {"url": "http://127.0.0.1:9/mcp", "headers": headers}}});
    std::fs::write(workspace.work().join(".mcp.json"), file.to_string()).unwrap();
    let (_, out, stderr) = run(
        &workspace,
        &[
            "run",
            "-q",
            "--trust",
            "-e",
            "return await web.x('by position').catch(e => e.message)",
        ],
    );
    assert!(
        out.contains("the environment variable SELVEDGE_NOT_SET is not set"),
        "{out}{stderr}"
    );
    let (status, out, _) = run(&workspace, &["mcp", "list"]);
    assert!(
        status == 1 && out.contains("✗ web") && out.contains("SELVEDGE_NOT_SET"),
        "{out}"
    );
}

/// A program that is not installed, and a program that prints other lines than messages.
const BROKEN_SERVERS: &str = "[mcp_servers.missing]\ncommand = 'selvedge-no-such-program'\n\
    [mcp_servers.chatty]\ncommand = 'sh'\n\
    args = ['-c', 'while true; do echo hello; sleep 0.5; done']\nstartup_timeout_sec = 3\n";

#[test]
fn broken_servers_are_named_with_their_reason_and_a_hint() {
    let workspace = TestWorkspace::new();
    workspace.config(BROKEN_SERVERS);
    let missing = "warning: the MCP server `missing` did not start: `selvedge-no-such-program` was \
        not found\nhint: install it, or change `command` under [mcp_servers.missing]";
    let chatty = "warning: the MCP server `chatty` did not start: it printed ";
    let log_to_stderr = "hint: make the server write its log to standard error\n";
    let search = "return (await tools.search('x')).length";
    for args in [&["tools"][..], &["run", "-q", "-e", search]] {
        let (status, _, stderr) = run(&workspace, args);
        assert!(
            status == 0 && stderr.starts_with("note: waiting for the MCP server `chatty`"),
            "{stderr}"
        );
        assert!(
            stderr.contains(missing)
                && stderr.contains(chatty)
                && stderr.contains(" lines that are not MCP messages, the first: `hello`\n")
                && stderr.contains(log_to_stderr),
            "{stderr}"
        );
    }
    let (status, out, _) = run(&workspace, &["mcp", "list"]);
    assert!(
        status == 1
            && out.contains("\n    hint: install it, or change `command`")
            && out.contains("    hint: make the server write its log to standard error"),
        "{out}"
    );
    // The line of the failed call names the reason, so there is no further warning.
    let call = "return await tools.mcp.missing.x({})";
    let (_, _, stderr) = run(&workspace, &["run", "-q", "-e", call]);
    assert!(
        stderr.contains("error: ToolExecutionError: the MCP server `missing` did not start")
            && !stderr.contains("warning: "),
        "{stderr}"
    );
    // A script that does not use them is not delayed, and prints no warning.
    let (_, out, stderr) = run(&workspace, &["run", "-q", "-e", "return 1"]);
    assert_eq!((out.as_str(), stderr.as_str()), ("1\n", ""));
}

#[test]
fn calls_of_a_broken_server_are_reported_as_not_checked() {
    let workspace = TestWorkspace::new();
    workspace.config(BROKEN_SERVERS);
    let code = "await tools.mcp.missing.x({ a: 1 })";
    std::fs::write(workspace.work().join("s.ts"), code).unwrap();
    let (status, out, stderr) = run(&workspace, &["check", "s.ts"]);
    assert_eq!(
        (status, out.as_str()),
        (
            0,
            "ok: 1 tool call found\n  line   1  mcp.missing.x  (not checked: the server is \
             unavailable)\n"
        )
    );
    let warning = "warning: the MCP server `missing` did not start";
    assert!(stderr.contains(warning), "{stderr}");
    let (_, out, stderr) = run(&workspace, &["run", "--dry-run", "s.ts"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    let planned = &report["calls"][0];
    assert_eq!(planned["readOnly"], false, "{report}");
    let reason = planned["unavailable"].as_str().unwrap();
    assert!(reason.contains("was not found"), "{report}");
    assert!(stderr.contains(warning), "{stderr}");
}

#[test]
fn servers_over_http_name_what_to_do() {
    let workspace = TestWorkspace::new();
    for (status, token, reason, hint) in [
        (
            "500 Internal Server Error",
            None,
            "answered with HTTP status 500",
            "hint: read the log of the server, then try again",
        ),
        (
            "401 Unauthorized\r\nwww-authenticate: Bearer",
            Some("wrong"),
            "does not accept the token in SELVEDGE_TEST_TOKEN",
            "hint: run `export SELVEDGE_TEST_TOKEN=TOKEN` with a valid token",
        ),
        (
            "401 Unauthorized\r\nwww-authenticate: Bearer",
            None,
            "the environment variable SELVEDGE_TEST_TOKEN is not set",
            "hint: run `export SELVEDGE_TEST_TOKEN=VALUE`",
        ),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 4096];
                let _ = std::io::Read::read(&mut stream, &mut request);
                let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
            }
        });
        let variable = match status.starts_with("401") {
            true => "bearer_token_env_var = 'SELVEDGE_TEST_TOKEN'\n",
            false => "",
        };
        workspace.config(&format!("[mcp_servers.web]\nurl = '{url}'\n{variable}"));
        let mut command = workspace.command(&["mcp", "list"]);
        command.env_remove("SELVEDGE_TEST_TOKEN");
        command.envs(token.map(|token| ("SELVEDGE_TEST_TOKEN", token)));
        let output = command.output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.contains(reason) && out.contains(hint), "{out}");
    }
}

#[test]
fn a_call_that_times_out_has_one_hint() {
    let workspace = TestWorkspace::new();
    let odd = TestWorkspace::odd("odd", "good");
    workspace.config(&format!("{odd}tool_timeout_sec = 0.5\n"));
    let call = "await tools.mcp.odd.hang({})";
    let (_, _, stderr) = run(&workspace, &["run", "-q", "-e", call]);
    assert!(
        stderr.contains("hint: set tool_timeout_sec = 1 under [mcp_servers.odd] in config.toml, ")
            && stderr.contains("resume.repeat(\"scr_")
            && stderr.contains(", and pass `--resume scr_"),
        "{stderr}"
    );
    assert_eq!(stderr.matches("hint: ").count(), 1, "{stderr}");
}

#[test]
fn invalid_servers_are_reported() {
    let workspace = TestWorkspace::new();
    for (config, part) in [
        (
            "[mcp_servers.x]\nargs = []\n",
            "config.toml:1: the MCP server `x` has neither `command` nor `url`",
        ),
        (
            "[mcp_servers.x]\ncommand = 'a'\nurl = 'b'\n",
            "config.toml:1: the MCP server `x` has both `command` and `url`",
        ),
        (
            "[mcp_servers.x]\ncommand = 'a'\ntool_timeout_sec = -1\n",
            "config.toml:3: mcp_servers.x.tool_timeout_sec must be a number of seconds greater than 0, got -1",
        ),
    ] {
        workspace.config(config);
        let (status, _, stderr) = run(&workspace, &["run", "-e", "return 1"]);
        assert!(
            status == 2 && stderr.contains(part) && stderr.contains("hint:"),
            "{stderr}"
        );
    }
    workspace.config(
        "[mcp_servers.x]\nurl = 'http://127.0.0.1:1/mcp'\nbearer_token_env_var = 'NO_SUCH_TOKEN'\n",
    );
    let (status, out, _) = run(&workspace, &["mcp", "list"]);
    assert!(
        status == 1 && out.contains("NO_SUCH_TOKEN is not set"),
        "{out}"
    );
    workspace.config("[mcp_servers.x]\nurl = 'http://127.0.0.1:1/mcp'\n");
    let (status, out, _) = run(&workspace, &["mcp", "list"]);
    assert!(status == 1 && out.contains("✗ x"), "{out}");
}
