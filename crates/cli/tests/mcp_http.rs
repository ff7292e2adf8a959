//! `selvedge mcp serve --http`: authorization, approvals, limits, and separate sessions per client.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::http::{ServeProcess, initialize, message_in_line, tool_call};
use support::{TEST_TIMEOUT, TestWorkspace, value};

#[test]
fn each_client_has_its_own_session() {
    let workspace = TestWorkspace::new();
    let server = ServeProcess::start(&workspace, &[]);
    let (a, b) = (server.session(), server.session());
    assert_ne!(a, b);
    let first = server.script(&a, "store('k', 'mine'); return context.sessionId");
    let second = server.script(&b, "return [load('k') ?? 'nothing', context.sessionId]");
    assert_eq!(
        (&second[0], server.script(&a, "return load('k')")),
        (&json!("nothing"), json!("mine"))
    );
    assert_ne!(first, second[1]);
    // Concurrent sessions.
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8)
            .map(|number| {
                let server = &server;
                scope.spawn(move || {
                    let session = server.session();
                    server.script(
                        &session,
                        &format!("store('n', {number}); await new Promise(r => setTimeout(r, 200)); return load('n')"),
                    )
                })
            })
            .collect();
        for (number, run) in runs.into_iter().enumerate() {
            assert_eq!(run.join().unwrap(), number);
        }
    });
    let listed = workspace
        .command(&["runs", "list", "--json"])
        .output()
        .unwrap();
    let runs: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(runs.as_array().unwrap().len(), 11);
}

#[test]
fn foreign_origins_and_hosts_are_rejected() {
    let workspace = TestWorkspace::new();
    let server = ServeProcess::start(&workspace, &[]);
    let port = server.address.rsplit(':').next().unwrap();
    let no_token = ("Authorization", "");
    for foreign in [
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Host", "evil.example"),
        ("Host", &format!("rebound.example:{port}")),
    ] {
        assert_eq!(server.hello(&[foreign]).0, 403, "{foreign:?}");
        assert_eq!(server.hello(&[foreign, no_token]).0, 403, "{foreign:?}");
    }
    // Only one of two is checked, and only the part after a user name.
    let own = ("Host", server.address.as_str());
    let with_user = format!("evil.example@{}", server.address);
    for ambiguous in [
        &[own, ("Host", "evil.example")][..],
        &[
            ("Origin", "http://localhost"),
            ("Origin", "https://evil.example"),
        ],
        &[("Host", with_user.as_str())],
    ] {
        assert_eq!(server.hello(ambiguous).0, 400, "{ambiguous:?}");
    }
    // The host in the target counts, not the header.
    let mut text = String::new();
    let mut stream = server.send("POST http://evil.example/mcp", &[], &initialize());
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 403"), "{text}");
    assert_eq!(server.hello(&[("Origin", "http://localhost:3000")]).0, 200);
    assert_eq!(
        server.hello(&[("Host", &format!("localhost:{port}"))]).0,
        200
    );
}

#[test]
fn a_random_token_is_printed_and_required() {
    let workspace = TestWorkspace::new();
    let server = ServeProcess::start(&workspace, &[]);
    let token = server.token.clone().unwrap();
    assert!(token.len() == 64 && token.chars().all(|c| c.is_ascii_hexdigit()));
    for wrong in [
        String::new(),
        "Bearer".to_owned(),
        "Bearer wrong".to_owned(),
        format!("Basic {token}"),
        format!("Bearer {}", &token[1..]),
        format!("Bearer {token}0"),
        token.clone(),
    ] {
        let (status, head) = server.hello(&[("Authorization", &wrong)]);
        assert_eq!(status, 401, "{wrong}: {head}");
        assert!(!head.to_lowercase().contains("mcp-session-id"), "{head}");
    }
    let mut text = String::new();
    let start = format!("POST /mcp?token={token}&access_token={token}");
    let mut in_query = server.send(&start, &[("Authorization", "")], &initialize());
    in_query.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 401"), "{text}");
    assert_eq!(server.hello(&[]).0, 200);
    assert_ne!(ServeProcess::start(&workspace, &[]).token, Some(token));
}

#[test]
fn a_configured_token_is_required_and_hidden_from_commands() {
    let workspace = TestWorkspace::new();
    for (args, variable) in [
        (&[][..], "SELVEDGE_MCP_TOKEN"),
        (&["--token-env", "OTHER_TOKEN_NAME"], "OTHER_TOKEN_NAME"),
    ] {
        let server = ServeProcess::start_with(&workspace, args, |command| {
            command.env(variable, "s3cret-0123456789");
        });
        assert_eq!(server.token, None);
        assert_eq!(server.hello(&[("Authorization", "")]).0, 401);
        assert_eq!(server.hello(&[("Authorization", "Bearer wrong")]).0, 401);
        assert_eq!(
            server
                .hello(&[("Authorization", "Basic s3cret-0123456789")])
                .0,
            401
        );
        let shown = server.script(
            &server.session(),
            "return (await tools.exec({ command: ['sh', '-c', 'env; echo all'] })).stdout",
        );
        let shown = shown.to_string();
        assert!(
            shown.contains("all") && !shown.contains("s3cret"),
            "{shown}"
        );
    }
}

/// Runs a server that must not start, and returns its error.
fn refused(workspace: &TestWorkspace, args: &[&str]) -> String {
    let mut command = workspace.command(&[&["mcp", "serve"], args].concat());
    let refused = command.env_remove("SELVEDGE_MCP_TOKEN").output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{args:?}");
    String::from_utf8(refused.stderr).unwrap()
}

#[test]
fn a_token_file_must_be_private() {
    use std::os::unix::fs::PermissionsExt;
    let workspace = TestWorkspace::new();
    let path = workspace.dir.path().join("token");
    let file = path.to_str().unwrap();
    let args = ["--http", "127.0.0.1:0", "--token-file", file];
    assert!(refused(&workspace, &args).contains("cannot read"));
    std::fs::write(&path, "s3cret-0123456789\n").unwrap();
    for mode in [0o644, 0o640, 0o620, 0o602] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let stderr = refused(&workspace, &args);
        assert!(
            stderr.contains("other users have access to the token")
                && stderr.contains(&format!("hint: run `chmod 600 {file}`")),
            "{mode:o}: {stderr}"
        );
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let server = ServeProcess::start(&workspace, &["--token-file", file]);
    assert_eq!(
        (server.hello(&[("Authorization", "")]).0, &server.token),
        (401, &None)
    );
    assert_eq!(server.hello(&[]).0, 200);
    drop(server);
    for short in ["x", "0123456789abcde"] {
        std::fs::write(&path, short).unwrap();
        let stderr = refused(&workspace, &args);
        assert!(
            stderr.contains("it must have at least 16") && stderr.contains("openssl rand -hex 32"),
            "{stderr}"
        );
    }
    for invalid in ["", "two words", "ünicode"] {
        std::fs::write(&path, invalid).unwrap();
        let stderr = refused(&workspace, &args);
        assert!(
            stderr.contains("must be one word of ASCII characters"),
            "{stderr}"
        );
    }
}

#[test]
fn a_public_address_requires_a_token() {
    let workspace = TestWorkspace::new();
    let stderr = refused(&workspace, &["--http", "0.0.0.0:0", "--no-token"]);
    assert!(
        stderr.contains("can be reached from other machines")
            && stderr.contains("hint: remove --no-token"),
        "{stderr}"
    );
    let stderr = refused(&workspace, &["--http", "nowhere"]);
    assert!(stderr.contains("cannot listen on nowhere"), "{stderr}");
    let stderr = refused(
        &workspace,
        &["--http", "127.0.0.1:0", "--token-env", "NOT_SET"],
    );
    assert!(
        stderr.contains("error: NOT_SET is not set") && stderr.contains("hint: run `export"),
        "{stderr}"
    );
    let both = ["--http", "127.0.0.1:0", "--no-token", "--token-env", "X"];
    assert!(refused(&workspace, &both).contains("cannot be used with"));
    assert!(refused(&workspace, &["--no-token"]).contains("--http"));
    let server = ServeProcess::start(&workspace, &["--no-token"]);
    assert_eq!(
        (server.hello(&[("Authorization", "")]).0, &server.token),
        (200, &None)
    );
    assert_eq!(
        server
            .hello(&[("Authorization", ""), ("Host", "evil.example")])
            .0,
        403
    );
}

/// A script that runs a command without confinement.
const ESCALATED: &str = "return (await tools.exec({ command: ['touch', 'escaped'], \
    withEscalatedPermissions: true, justification: 'test' })).exitCode";

#[test]
fn a_client_does_not_approve_its_own_calls() {
    let workspace = TestWorkspace::new();
    let server = ServeProcess::start(&workspace, &[]);
    let session = server.session();
    let header = [("Mcp-Session-Id", session.as_str())];
    let call = tool_call("script", json!({"code": ESCALATED}));
    let mut text = String::new();
    let mut stream = server.send("POST /mcp", &header, &call);
    stream.read_to_string(&mut text).unwrap();
    assert!(!text.contains("elicitation/create"), "{text}");
    assert!(text.contains("--client-approves"), "{text}");
    assert!(!workspace.work().join("escaped").exists());
}

#[test]
fn the_owner_can_let_clients_approve() {
    let workspace = TestWorkspace::new();
    let server = ServeProcess::start(&workspace, &["--client-approves"]);
    let session = server.session();
    let header = [("Mcp-Session-Id", session.as_str())];
    let call = tool_call("script", json!({"code": ESCALATED}));
    let lines = BufReader::new(server.send("POST /mcp", &header, &call)).lines();
    let mut messages = lines.filter_map(|line| message_in_line(&line.unwrap()));
    let question = messages
        .find(|message| message["method"] == "elicitation/create")
        .unwrap();
    assert!(question.to_string().contains("touch escaped"), "{question}");
    let yes = json!({"action": "accept", "content": {"answer": "yes, once"}});
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": yes});
    assert_eq!(server.post(&header, &answer).0, 202);
    let result = messages.find(|message| message["id"] == 2).unwrap();
    assert_eq!(value(&result["result"]["structuredContent"]), 0, "{result}");
    assert!(workspace.work().join("escaped").exists());
}

#[test]
fn a_silent_connection_ends_within_30_seconds() {
    let workspace = TestWorkspace::new();
    let server = ServeProcess::start(&workspace, &[]);
    let began = Instant::now();
    let silent = server.connect();
    let mut half = server.connect();
    half.write_all(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX: ")
        .unwrap();
    let idle = server.send("POST /mcp", &[("Connection", "keep-alive")], &initialize());
    let mut body = server.connect();
    let token = server.token.as_ref().unwrap();
    write!(
        body,
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{"
    )
    .unwrap();
    for (name, mut connection) in [
        ("silent", silent),
        ("half of the headers", half),
        ("idle", idle),
        ("half of the body", body),
    ] {
        // Ends when the server closes the connection.
        let mut received = Vec::new();
        let ended = connection.read_to_end(&mut received);
        let took = began.elapsed();
        assert!(
            ended.is_ok() && took < Duration::from_secs(33),
            "{name}: {took:?}"
        );
    }
}

/// The server may open few files, so that connections without a request could use them all.
#[test]
fn half_open_connections_do_not_keep_others_out() {
    let workspace = TestWorkspace::new();
    let inner = workspace.command(&[]);
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "ulimit -n 256; exec \"$0\" mcp serve --http 127.0.0.1:0",
        ])
        .arg(inner.get_program())
        .env("SELVEDGE_HOME", workspace.home())
        .env_remove("SELVEDGE_MCP_TOKEN")
        .current_dir(workspace.work());
    let server = ServeProcess::listen(command);
    let session = server.session();
    let mut half_open: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = server.connect();
            // The server may have closed the connection already.
            let _ = stream.write_all(b"POST /mcp HTTP/1.1\r\nHost: ");
            stream
        })
        .collect();
    let began = Instant::now();
    assert_eq!(server.script(&session, "return 1"), 1);
    assert_eq!(server.script(&server.session(), "return 2"), 2);
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    // The oldest was closed for the newest.
    let mut rest = Vec::new();
    let _ = half_open[0].read_to_end(&mut rest);
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn large_headers_and_bodies_are_rejected() {
    let workspace = TestWorkspace::new();
    let server = ServeProcess::start(&workspace, &[]);
    let large = "x".repeat(64 << 10);
    assert_eq!(server.hello(&[("X-Large", &large)]).0, 431);
    let (status, ..) = server.post(&[], &json!("y".repeat(4 << 20)));
    assert_eq!(status, 413);
    assert_eq!(server.hello(&[]).0, 200);
}

#[test]
fn unused_sessions_are_replaced() {
    let workspace = TestWorkspace::new();
    let server = ServeProcess::start(&workspace, &[]);
    let first = server.session();
    let used = server.session();
    for number in 0..256 {
        server.session();
        if number % 100 == 0 {
            assert_eq!(server.script(&used, "return 1"), 1);
        }
    }
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let (status, ..) = server.post(&[("Mcp-Session-Id", &first)], &list);
    assert_eq!(status, 404);
    assert_eq!(server.script(&used, "return 2"), 2);
}

#[test]
fn a_run_is_private_to_its_session_until_the_session_ends() {
    let workspace = TestWorkspace::new();
    let server = ServeProcess::start(&workspace, &[]);
    let (a, b) = (server.session(), server.session());
    let running = server.endless(&a);
    let failing =
        "const v = await tools.writeFile({ path: 'a.txt', content: 'x' }); throw new Error('no')";
    let failed = server.call(&a, "script", json!({"code": failing}));
    let failed = failed["id"].as_str().unwrap().to_owned();
    let unknown = "scr_0000000000000000";
    // Everything that another session can try, for one id.
    let tries = |session: &str, id: &str| {
        let fixed = "await tools.writeFile({ path: 'a.txt', content: 'x' }); return 1";
        let recall = format!("return await tools.recall('{id}').catch(e => e.message)");
        let pragma = format!("// @exec: {{\"resume\": \"{id}\"}}\nreturn 1");
        let message = |item: Value| format!("{} {}", item["status"], item["error"]["message"]);
        [
            message(server.call(session, "script_wait", json!({"id": id, "timeoutMs": 1}))),
            message(server.call(session, "script_wait", json!({"id": id, "terminate": true}))),
            message(server.call(session, "script", json!({"code": fixed, "resume": id}))),
            message(server.call(session, "script", json!({"code": pragma}))),
            server.script(session, &recall).to_string(),
        ]
        .map(|text| text.replace(id, "ID"))
    };
    let missing = tries(&b, unknown);
    assert_eq!(tries(&b, &running), missing);
    assert_eq!(tries(&b, &failed), missing);
    // A prefix does not tell that runs exist, either.
    assert_eq!(tries(&b, "scr_"), missing);
    assert_eq!(
        server.call(&a, "script_wait", json!({"id": running, "timeoutMs": 1}))["status"],
        "running"
    );
    // The session ends, and its client comes back with the same token.
    let mut text = String::new();
    let header = [("Mcp-Session-Id", a.as_str())];
    let mut stream = server.send("DELETE /mcp", &header, &json!({}));
    stream.read_to_string(&mut text).unwrap();
    let began = Instant::now();
    loop {
        let args = json!({"id": running, "timeoutMs": 1});
        match server.call(&b, "script_wait", args)["status"].as_str() {
            Some("running") => break,
            // The session ends soon after the response.
            _ => assert!(began.elapsed() < TEST_TIMEOUT, "{text}"),
        }
    }
    let fixed = "await tools.writeFile({ path: 'a.txt', content: 'x' }); return 1";
    let resumed = server.call(&b, "script", json!({"code": fixed, "resume": failed}));
    assert_eq!(value(&resumed), 1);
}

#[test]
fn a_task_is_private_to_its_session_until_the_session_ends() {
    let workspace = TestWorkspace::new();
    workspace.config("[script_harness.expose]\nenable_spawn = true\n");
    let server = ServeProcess::start(&workspace, &[]);
    let (a, b) = (server.session(), server.session());
    let start = "const task = tools.spawn.exec('exec', { command: ['echo', 'private'] }); \
        await task.done; return task.id";
    let id = server.script(&a, start);
    let id = id.as_str().unwrap();
    let result = |session: &str, id: &str| {
        let code = format!(
            "return [await tools.spawn.wait({{ id: '{id}' }}).then(r => r.stdout, e => e.message),
                await tools.spawn.cancel({{ id: '{id}' }}).catch(e => e.message)]"
        );
        server.script(session, &code).to_string().replace(id, "ID")
    };
    let missing = result(&b, "tsk_0000000000000000");
    assert_eq!(result(&b, id), missing);
    assert!(result(&a, id).contains("private"));
}

#[test]
fn a_recorded_run_belongs_to_its_token() {
    let workspace = TestWorkspace::new();
    let with_token = |token: &'static str| {
        ServeProcess::start_with(&workspace, &[], move |command| {
            command.env("SELVEDGE_MCP_TOKEN", token);
        })
    };
    let failing = "await tools.writeFile({ path: 'a.txt', content: 'x' }); throw new Error('no')";
    let fixed = "await tools.writeFile({ path: 'a.txt', content: 'x' }); return 1";
    let server = with_token("s3cret-0123456789");
    let failed = server.call(&server.session(), "script", json!({"code": failing}));
    drop(server);
    let resume = |server: &ServeProcess| {
        let args = json!({"code": fixed, "resume": failed["id"]});
        server.call(&server.session(), "script", args)
    };
    let mut other = with_token("other-0123456789");
    other.token = Some("other-0123456789".to_owned());
    let refused = resume(&other);
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .contains("there is no run"),
        "{refused}"
    );
    drop(other);
    let mut stdio = support::Client::start(&workspace, &[], json!({}));
    let refused = stdio.call("script", json!({"code": fixed, "resume": failed["id"]}));
    assert_eq!(refused["isError"], true, "{refused}");
    drop(stdio);
    assert_eq!(value(&resume(&with_token("s3cret-0123456789"))), 1);
}

#[test]
fn the_error_at_the_server_limit_names_no_runs_of_other_sessions() {
    let workspace = TestWorkspace::new();
    let server = ServeProcess::start(&workspace, &[]);
    let ids: Vec<String> = (0..4)
        .flat_map(|_| {
            let session = server.session();
            // Eight run, the others wait.
            (0..24).map(move |_| session.clone())
        })
        .map(|session| {
            let code = "await new Promise(r => setTimeout(r, 60000))";
            let args = json!({"code": code, "timeoutMs": 60000, "yieldAfterMs": 1});
            let item = server.call(&session, "script", args);
            item["id"].as_str().unwrap().to_owned()
        })
        .collect();
    let item = server.call(&server.session(), "script", json!({"code": "return 1"}));
    let message = item["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("32 scripts are running and 64 are queued"),
        "{message}"
    );
    assert!(!ids.iter().any(|id| message.contains(id)), "{message}");
    assert!(!message.contains("setTimeout"), "{message}");
}
