//! Documents, channels, idempotency keys, the OpenAPI document and TLS.

use std::io::BufReader;

use serde_json::{Value, json};

use crate::answer_encoding::text;
use crate::fixture::ServeFixture;
use crate::support::api::{ApiServer, EventReader, create_token};

#[test]
fn documents_are_queried_read_and_written() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let issues = fixture.workspace.work().join("issues");
    std::fs::create_dir_all(&issues).unwrap();
    let login =
        "---\nkind: issue\nstatus: open\ntitle: Login fails\n---\nAn empty password works.\n";
    std::fs::write(issues.join("login.md"), login).unwrap();
    let (_server, client) = fixture.start();
    let query = json!({"query": {"kind": "issue", "status": "open"}});
    let found = client.post("/api/v1/documents/query", query.clone());
    assert_eq!(found.status, 200, "{found:?}");
    assert!(found.text.contains("Login fails"), "{found:?}");
    let below = json!({"query": {"path": "issues/**"}});
    let below = client.post("/api/v1/documents/query", below);
    assert!(below.text.contains("Login fails"), "{below:?}");
    let read = client.get("/api/v1/documents?path=issues/login.md");
    assert!(read.text.contains("empty password"), "{read:?}");
    let body = json!({"path": "issues/login.md", "content": login.replace("open", "closed")});
    let written = client.request("PUT /api/v1/documents", &[], &body.to_string());
    assert_eq!(written.status, 200, "{written:?}");
    let text = std::fs::read_to_string(issues.join("login.md")).unwrap();
    assert!(text.contains("status: closed"), "{text}");
    let found = client.post("/api/v1/documents/query", query);
    assert!(!found.text.contains("Login fails"), "{found:?}");
    assert_eq!(
        client.get("/api/v1/documents?path=issues/none.md").status,
        400
    );
    let home = fixture.workspace.home();
    std::os::unix::fs::symlink(&home, fixture.workspace.work().join("link")).unwrap();
    let absolute = home.join("config.toml").display().to_string();
    for path in [
        "../home/config.toml",
        "issues/../../home/config.toml",
        &absolute,
        "/etc/passwd",
        "link/config.toml",
        "link/new.md",
    ] {
        let refused = client.get(&format!("/api/v1/documents?path={path}"));
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
        let body = json!({"path": path, "content": "---\nkind: x\n---\n"});
        let refused = client.request("PUT /api/v1/documents", &[], &body.to_string());
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
    }
    // Files of the workspace that are no documents.
    let work = fixture.workspace.work();
    std::fs::write(work.join(".env"), "PASSWORD=1").unwrap();
    std::fs::write(work.join(".gitignore"), "ignored.md\n").unwrap();
    std::fs::write(work.join("ignored.md"), "ignored").unwrap();
    std::fs::create_dir_all(work.join(".git")).unwrap();
    std::fs::write(work.join(".git/config.md"), "x").unwrap();
    for path in [
        ".env",
        "./.env",
        ".git/config.md",
        "ignored.md",
        ".gitignore",
    ] {
        let refused = client.get(&format!("/api/v1/documents?path={path}"));
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
    }
    for path in [
        "Makefile",
        "main.py",
        "AGENTS.md",
        "issues/agents.md",
        "CLAUDE.md",
        ".envrc",
    ] {
        let body = json!({"path": path, "content": "---\nkind: x\n---\n"});
        let refused = client.request("PUT /api/v1/documents", &[], &body.to_string());
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
    }
    // A request that changes a document is a recorded call; others write nothing.
    let runs = client.get("/api/v1/runs");
    let run = runs.body["runs"][0]["id"].as_str().unwrap();
    let run = client.get(&format!("/api/v1/runs/{run}"));
    assert!(run.text.contains("\"workspace_write\""), "{run:?}");
}

#[test]
fn channels_are_posted_read_and_followed() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (_server, client) = fixture.start();
    let path = "/api/v1/channels/eng/messages";
    let posted = client.post(path, json!({"text": "first"}));
    assert_eq!(posted.status, 201, "{posted:?}");
    assert_eq!(posted.body["message"]["author"], "all");
    let stream = client.send("GET /api/v1/channels/eng/events", &[], "");
    let mut followed = EventReader(BufReader::new(stream));
    assert_eq!(followed.next_event().unwrap().1["text"], "first");
    client.post(path, json!({"text": "second"}));
    let (number, second) = followed.next_event().unwrap();
    assert_eq!((number, &second["text"]), (Some(2), &json!("second")));
    assert_eq!(
        (&second["author"], &second["is_own"]),
        (&json!("all"), &json!(true))
    );
    let read = client.get(&format!("{path}?after=1"));
    assert_eq!(read.body["messages"].as_array().unwrap().len(), 1);
    let listed = client.get("/api/v1/channels");
    assert_eq!(listed.body["channels"][0]["messages"], 2);
    assert_eq!(client.get("/api/v1/channels/none/messages").status, 404);
    assert_eq!(client.get("/api/v1/channels/none/events").status, 404);
    let invalid = client.post("/api/v1/channels/No%20Name/messages", json!({"text": "x"}));
    assert_eq!(invalid.status, 400, "{invalid:?}");
}

#[test]
fn a_document_replaces_no_file_that_cannot_be_read() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let work = fixture.workspace.work();
    std::fs::write(work.join(".gitignore"), "ignored.md\n").unwrap();
    let binary: &[u8] = b"\xff\xfe\xff";
    std::fs::write(work.join("ignored.md"), "mine").unwrap();
    std::fs::write(work.join("binary.md"), binary).unwrap();
    let (_server, client) = fixture.start();
    let put = |path: &str, replaces: Option<&str>| {
        let body = json!({"path": path, "content": "# new\n", "replaces": replaces}).to_string();
        client.request("PUT /api/v1/documents", &[], &body).status
    };
    for (path, replaces, status) in [
        ("ignored.md", Some(""), 403),
        ("ignored.md", None, 403),
        ("binary.md", Some(""), 400),
        ("fresh.md", Some(""), 200),
        ("fresh.md", Some(""), 200),
        ("fresh.md", Some("other"), 200),
        ("later.md", Some("old"), 409),
    ] {
        assert_eq!(put(path, replaces), status, "{path} {replaces:?}");
    }
    assert_eq!(std::fs::read(work.join("ignored.md")).unwrap(), b"mine");
    assert_eq!(std::fs::read(work.join("binary.md")).unwrap(), binary);
}

#[test]
fn a_repeated_request_gets_the_first_answer() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (mut server, client) = fixture.start();
    let key = [("Idempotency-Key", "k1")];
    let post = |body: &Value| client.request("POST /api/v1/sessions", &key, &body.to_string());
    let body = json!({"title": "once", "prompt": "go"});
    let first = post(&body);
    assert_eq!(first.status, 201, "{first:?}");
    let again = post(&body);
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert!(
        again
            .head
            .to_lowercase()
            .contains("idempotent-replayed: true"),
        "{again:?}"
    );
    let other = post(&json!({"title": "other"}));
    assert_eq!(
        (other.status, &other.body["error"]["code"]),
        (422, &json!("key_reused"))
    );
    assert_eq!(
        client.get("/api/v1/sessions").body["sessions"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    // The answer survives a restart, and keys of other tokens are others.
    server.kill();
    let (server, client) = fixture.start();
    let again = client.request("POST /api/v1/sessions", &key, &body.to_string());
    assert_eq!(again.body, first.body);
    let other = server.client(&create_token(&fixture.workspace, &["other"]));
    let separate = other.request("POST /api/v1/sessions", &key, &body.to_string());
    assert_ne!(separate.body["id"], first.body["id"]);
    let long = "k".repeat(300);
    for wrong in [" ", long.as_str()] {
        let headers = [("Idempotency-Key", wrong)];
        let refused = client.request("POST /api/v1/sessions", &headers, "{}");
        assert_eq!(refused.status, 400, "{wrong}: {refused:?}");
    }
}

#[test]
fn the_openapi_document_describes_the_api() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (_server, client) = fixture.start();
    let document = client.get("/openapi.json").body;
    assert!(
        document["openapi"].as_str().unwrap().starts_with("3.1"),
        "{document}"
    );
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/api/v1/sessions",
        "/api/v1/sessions/{id}/messages",
        "/api/v1/sessions/{id}/events",
        "/api/v1/approvals/{id}",
        "/api/v1/documents/query",
        "/api/v1/channels/{name}/messages",
        "/api/v1/runs/{id}",
        "/healthz",
    ] {
        assert!(paths.contains_key(path), "{path}: {:?}", paths.keys());
    }
    // Every reference has a target.
    let text = document.to_string();
    for name in text.split("#/components/schemas/").skip(1) {
        let name = name.split('"').next().unwrap();
        assert!(
            document["components"]["schemas"].get(name).is_some(),
            "{name}"
        );
    }
    let printed = fixture
        .workspace
        .command(&["serve", "openapi"])
        .output()
        .unwrap();
    let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(printed, document);
}

#[test]
fn the_example_of_the_docs_runs() {
    let fixture = ServeFixture::new(|_| vec![text("It checks passwords.")].into());
    let (server, _client) = fixture.start();
    let page = include_str!("../../../../docs/server.md");
    let (_, example) = page.split_once("## Example").unwrap();
    let (_, example) = example.split_once("```sh\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let output = std::process::Command::new("bash")
        .args(["-e", "-u", "-o", "pipefail", "-c", example])
        .env("TOKEN", &fixture.secret)
        .env("URL", format!("http://{}", server.address))
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}{output:?}");
    for part in [
        "\"state\":\"answered\"",
        "It checks passwords.",
        "turn.completed",
        "login.py is understood",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn other_machines_are_served_with_tls_only() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let workspace = &fixture.workspace;
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, secret) = (
        workspace.work().join("cert.pem"),
        workspace.work().join("key.pem"),
    );
    std::fs::write(&cert, key.cert.pem()).unwrap();
    std::fs::write(&secret, key.signing_key.serialize_pem()).unwrap();
    let (cert, secret) = (cert.to_str().unwrap(), secret.to_str().unwrap());
    let args = [
        "serve",
        "--addr",
        "127.0.0.1:0",
        "--tls-cert",
        cert,
        "--tls-key",
        secret,
    ];
    let server = ApiServer::listen(workspace.command(&args));
    let port = server.address.rsplit(':').next().unwrap();
    let curl = |url: &str| {
        let auth = format!("Authorization: Bearer {}", fixture.secret);
        let args = [
            "-sS",
            "--cacert",
            cert,
            "-H",
            &auth,
            "--max-time",
            "30",
            url,
        ];
        let output = std::process::Command::new("curl").args(args).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let listed = curl(&format!("https://localhost:{port}/api/v1/sessions"));
    assert_eq!(listed, "{\"sessions\":[]}");
    assert_eq!(curl(&format!("http://localhost:{port}/healthz")), "");
    // A client that never completes the handshake does not stop others.
    let _silent = std::net::TcpStream::connect(&server.address).unwrap();
    assert_eq!(curl(&format!("https://localhost:{port}/healthz")), "ok\n");
}

#[test]
fn the_memory_of_own_sessions_is_searched() {
    let fixture = ServeFixture::new(|_| vec![text("The zebra sleeps in the barn.")].into());
    let (server, client) = fixture.start();
    let session = client.session(json!({"prompt": "Where does the zebra sleep?"}));
    client.answer(&session, 1);
    let found = client.get("/api/v1/memory/search?query=zebra");
    assert_eq!(found.status, 200, "{found:?}");
    let turn = &found.body["turns"][0];
    assert_eq!(
        (&turn["session"], &turn["turn"]),
        (&json!(session), &json!(1))
    );
    assert!(turn["text"].as_str().unwrap().contains("barn"), "{turn}");
    let (_, secret) = fixture.other_workspace("far");
    let far = server.client(&secret);
    let hidden = far.get("/api/v1/memory/search?query=zebra");
    assert_eq!(hidden.body, json!({"turns": []}), "{hidden:?}");
    let narrow = create_token(&fixture.workspace, &["narrow", "--scope", "sessions"]);
    let denied = server
        .client(&narrow)
        .get("/api/v1/memory/search?query=zebra");
    assert_eq!(denied.status, 403, "{denied:?}");
}
