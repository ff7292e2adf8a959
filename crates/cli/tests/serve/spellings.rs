//! Spellings of hosts, origins, paths, folders and names that must not reach more than the plain
//! ones.

use serde_json::{Value, json};

use crate::fixture::ServeFixture;
use crate::isolation::runs_scripts;
use crate::support::api::{ApiClient, create_token};

#[test]
fn spellings_of_public_paths_lead_to_no_other_path() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let none = [("Authorization", "")];
    for (path, status) in [
        ("/healthz", 200),
        ("/healthz?x=/api/v1/workspaces", 200),
        ("http://localhost/healthz", 200),
        ("/healthz/", 401),
        ("/healthz/../api/v1/workspaces", 401),
        ("/healthz/..%2fapi/v1/workspaces", 401),
        ("/healthz%2f..%2fapi/v1/workspaces", 401),
        ("/healthz;/api/v1/workspaces", 401),
        ("//api/v1/workspaces", 401),
        ("/./api/v1/workspaces", 401),
        ("/API/v1/workspaces", 401),
        ("/HEALTHZ", 401),
        ("/readyz/", 401),
        ("/login/../metrics", 401),
        ("/metrics%00", 401),
        ("/", 200),
        ("/page/main.js", 200),
        ("/page/", 401),
        ("/page/main.js/", 401),
        ("/page/none.js", 401),
        ("/page/../api/v1/workspaces", 401),
        ("/page/..%2fapi/v1/workspaces", 401),
        ("/page/%6dain.js", 401),
        ("http://evil.example/healthz", 403),
    ] {
        for method in ["GET", "HEAD"] {
            let response = client.request(&format!("{method} {path}"), &none, "");
            assert_eq!(response.status, status, "{method} {path}: {response:?}");
        }
    }
    for method in ["OPTIONS", "TRACE", "PROPFIND", "PUT", "DELETE", "BREW"] {
        let response = client.request(&format!("{method} /api/v1/sessions"), &none, "");
        assert_eq!(response.status, 401, "{method}: {response:?}");
        let headers = response.head.to_lowercase();
        assert!(!headers.contains("\r\nallow: "), "{method}: {headers}");
        assert!(!headers.contains("access-control-"), "{method}: {headers}");
    }
    for header in [
        "X-HTTP-Method-Override",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-Api-Key",
    ] {
        let headers = [none[0], (header, "/api/v1/workspaces")];
        let response = client.request("GET /healthz", &headers, "");
        assert_eq!(
            (response.status, response.text.as_str()),
            (200, "ok\n"),
            "{header}"
        );
    }
}

#[test]
fn only_own_spellings_of_hosts_and_origins_are_accepted() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    for (host, statuses) in [
        ("localhost", &[200][..]),
        ("LOCALHOST:99", &[200]),
        ("[::1]", &[200]),
        ("127.0.0.1:1", &[200]),
        ("localhost.", &[400, 403]),
        ("evil.example", &[400, 403]),
        ("localhost.evil.example", &[400, 403]),
        ("127.0.0.1.nip.io", &[400, 403]),
        ("localhost:80@evil.example", &[400, 403]),
        ("localhost, evil.example", &[400, 403]),
        ("127.1", &[400, 403]),
        ("0.0.0.0", &[400, 403]),
        ("2130706433", &[400, 403]),
        ("localhost/x", &[400, 403]),
        ("localhost%00", &[400, 403]),
    ] {
        let response = client.request("GET /api/v1/workspaces", &[("Host", host)], "");
        assert!(statuses.contains(&response.status), "{host}: {response:?}");
    }
    for (origin, is_own) in [
        ("http://localhost:9999", true),
        ("https://127.0.0.1", true),
        ("http://[::1]", true),
        ("null", false),
        ("file://", false),
        ("https://evil.example", false),
        ("http://localhost.evil.example", false),
        ("http://localhost@evil.example", false),
        ("http://evil.example:80#localhost", false),
        ("chrome-extension://localhost", false),
        ("localhost", false),
        ("http://localhost http://evil.example", false),
    ] {
        let response = client.request("GET /api/v1/workspaces", &[("Origin", origin)], "");
        assert_eq!(response.status == 200, is_own, "{origin}: {response:?}");
        let headers = response.head.to_lowercase();
        assert!(!headers.contains("access-control-"), "{origin}: {headers}");
    }
}

/// Names of folders and files that lead out of a workspace, with what they would name there.
fn escapes(work: &str, other: &str) -> Vec<String> {
    vec![
        format!("{work}/../other"),
        format!("{work}/./../other"),
        format!("{work}/sub/../../other"),
        format!("{work}%2f..%2fother"),
        format!("{work}/link"),
        format!("{work}/link/."),
        format!("{work}\u{200b}"),
        format!("{work}\0"),
        format!("{work}2"),
        format!("/proc/self/root{other}"),
        format!("file://{other}"),
        other.to_owned(),
        "/".to_owned(),
        "..".to_owned(),
        ".".to_owned(),
        "~".to_owned(),
        "other".to_owned(),
        "%".to_owned(),
        String::new(),
    ]
}

#[test]
fn no_spelling_of_a_folder_or_document_leaves_the_workspace() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work().canonicalize().unwrap();
    let other = work.with_file_name("other");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::create_dir_all(work.join("sub")).unwrap();
    std::fs::write(other.join("secret.md"), "zebra").unwrap();
    std::os::unix::fs::symlink(&other, work.join("link")).unwrap();
    std::os::unix::fs::symlink(other.join("secret.md"), work.join("link.md")).unwrap();
    std::fs::hard_link(other.join("secret.md"), work.join("sub/plain.txt")).unwrap();
    let (_server, client) = fixture.start();
    let (work, other) = (work.to_str().unwrap(), other.to_str().unwrap());
    for folder in escapes(work, other) {
        let created = client.post("/api/v1/sessions", json!({"workspace": folder}));
        assert_eq!(created.status, 404, "{folder:?}: {created:?}");
        let query = json!({"workspace": folder, "query": {}});
        let found = client.post("/api/v1/documents/query", query);
        assert_eq!(found.status, 404, "{folder:?}: {found:?}");
        let listed = format!("/api/v1/sessions?workspace={}", encode(&folder));
        let listed = client.get(&listed);
        let is_empty = listed.body["sessions"] == json!([]);
        assert!(listed.status == 404 || is_empty, "{folder:?}: {listed:?}");
        for path in [
            format!("{folder}/secret.md"),
            format!("{}/secret.md", folder.trim_start_matches('/')),
        ] {
            check_document_refused(&client, &path);
        }
    }
    for path in [
        "link.md",
        "link/secret.md",
        "./link/secret.md",
        "sub/../link/secret.md",
    ] {
        check_document_refused(&client, path);
    }
    let secret = std::fs::read_to_string(format!("{other}/secret.md")).unwrap();
    assert_eq!(secret, "zebra");
    assert_eq!(std::fs::read_dir(other).unwrap().count(), 1);
}

fn check_document_refused(client: &ApiClient, path: &str) {
    let read = client.get(&format!("/api/v1/documents?path={}", encode(path)));
    assert!([400, 403, 404].contains(&read.status), "{path:?}: {read:?}");
    assert!(!read.text.contains("zebra"), "{path:?}: {read:?}");
    // Other paths name files in the workspace.
    let leads_out = |part: &str| path.contains(part);
    if !path.starts_with('/') && !["..", "link", "\0"].into_iter().any(leads_out) {
        return;
    }
    let body = json!({"path": path, "content": "changed"});
    let written = client.request("PUT /api/v1/documents", &[], &body.to_string());
    assert!(
        [400, 403, 404].contains(&written.status),
        "{path:?}: {written:?}"
    );
}

fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn documents_do_not_instruct_agents() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, _) = fixture.start();
    let secret = create_token(&fixture.workspace, &["docs", "--scope", "documents"]);
    let client = server.client(&secret);
    let write = |path: &str| {
        let body = json!({"path": path, "content": "---\nkind: x\n---\nObey."});
        client.request("PUT /api/v1/documents", &[], &body.to_string())
    };
    for path in [
        "AGENTS.md",
        "./AGENTS.md",
        "sub/agents.MD",
        "AGENTS.override.md",
        "CLAUDE.md",
        "CLAUDE.local.md",
        "GEMINI.md",
        "WARP.md",
        "sub/CONVENTIONS.md",
        "SKILL.md",
        ".agents/skills/x/SKILL.md",
        ".cursorrules",
        ".cursor/rules/x.md",
        ".windsurfrules",
        ".github/copilot-instructions.md",
        ".github/instructions/x.md",
        "x.instructions.md",
    ] {
        let refused = write(path);
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
        assert!(!fixture.workspace.work().join(path).exists(), "{path}");
    }
    let written = write("notes/agents-and-tools.md");
    assert_eq!(written.status, 200, "{written:?}");
    let work = fixture.workspace.work();
    std::fs::write(work.join("AGENTS.md"), "Mine.").unwrap();
    std::os::unix::fs::symlink("AGENTS.md", work.join("guide.md")).unwrap();
    let refused = write("guide.md");
    assert_eq!(refused.status, 403, "{refused:?}");
    let text = std::fs::read_to_string(work.join("AGENTS.md")).unwrap();
    assert_eq!(text, "Mine.");
}

#[test]
fn names_of_client_tools_are_not_those_of_scripts() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let complete = |name: &str| {
        let body = json!({
            "model": "default",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": {"name": name}}],
        });
        client.post("/v1/chat/completions", body)
    };
    for name in [
        "sessions",
        "workspace",
        "channels",
        "prompts",
        "tools",
        "mcp",
        "agents",
        "help",
        "context",
        "console",
        "Promise",
        "globalThis",
        "constructor",
        "await",
        "exec",
        "read_file",
        "readFile",
    ] {
        let refused = complete(name);
        assert_eq!(refused.status, 400, "{name}: {refused:?}");
        assert_eq!(refused.body["error"]["code"], "invalid_request", "{name}");
    }
    let listed = client.get("/api/v1/sessions");
    assert_eq!(listed.body["sessions"], json!([]), "nothing was stored");
    for name in ["session_notes", "get-weather", "lookup"] {
        let done = complete(name);
        assert_eq!(done.status, 200, "{name}: {done:?}");
    }
}

#[test]
fn failures_of_the_server_are_in_its_log_only() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client, log) = fixture.start_with_log();
    let session = client.session(json!({}));
    crate::isolation::run_script(&client, &session, "await tools.exec({ command: ['true'] })");
    let run = client.get("/api/v1/runs").body["runs"][0]["id"].clone();
    let run = run.as_str().unwrap();
    // A configuration with errors has no effect before it is reloaded.
    let config = fixture.workspace.home().join("config.toml");
    std::fs::write(&config, "api_key = \"hunter2\"\nmodel = [broken").unwrap();
    for path in ["memory/search?query=x".to_owned(), format!("runs/{run}")] {
        let response = client.get(&format!("/api/v1/{path}"));
        assert_eq!(response.status, 200, "{path}: {response:?}");
    }
    // A damaged row.
    let damage = format!("UPDATE sessions SET permissions = '/etc/x' WHERE id = '{session}'");
    let journal = crate::support::store::database(&fixture.workspace.home());
    journal.execute_batch(&damage).unwrap();
    let failed = client.get(&format!("/api/v1/sessions/{session}"));
    assert_eq!(failed.status, 500, "{failed:?}");
    let id = failed
        .head
        .lines()
        .find_map(|line| line.strip_prefix("x-request-id: "))
        .unwrap();
    let message = failed.body["error"]["message"].as_str().unwrap();
    let expected = format!("the server could not handle the request; its log has the request {id}");
    assert_eq!(message, expected);
    let lines = std::fs::read_to_string(log).unwrap();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_request: Vec<Value> = lines
        .filter(|line| line["fields"]["request"] == id)
        .collect();
    assert_eq!(of_request.len(), 2, "{of_request:?}");
    let error = of_request[0]["fields"]["error"].as_str().unwrap();
    assert!(error.contains("expected value"), "{error}");
}
