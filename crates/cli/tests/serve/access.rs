//! Tokens, scopes, hosts, limits, and errors of the command line.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::json;

use crate::answer_encoding::{block, text};
use crate::fixture::{ServeFixture, config_text};
use crate::shared::wait_until;
use crate::support::api::{ApiServer, create_token};
use crate::support::{TestWorkspace, store};

fn run(workspace: &TestWorkspace, args: &[&str]) -> (i32, String, String) {
    let mut command = workspace.command(args);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn every_request_needs_a_valid_token() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (_server, client) = fixture.start();
    for path in [
        "/api/v1/sessions",
        "/openapi.json",
        "/metrics",
        "/api/v1/none",
        "/page/",
    ] {
        let refused = client.request(&format!("GET {path}"), &[("Authorization", "")], "");
        assert_eq!(refused.status, 401, "{path}: {refused:?}");
        assert_eq!(refused.body["error"]["code"], "unauthorized");
        let unknown = client.request(&format!("PATCH {path}"), &[("Authorization", "")], "");
        assert_eq!(unknown.status, 401, "{path}: {unknown:?}");
        assert!(
            !unknown.head.to_lowercase().contains("allow: "),
            "{path}: {unknown:?}"
        );
        assert!(
            refused
                .head
                .to_lowercase()
                .contains("www-authenticate: bearer")
        );
    }
    let secret = &fixture.secret;
    for wrong in [
        format!("Bearer {}", &secret[1..]),
        format!("Bearer {secret}0"),
        format!("Basic {secret}"),
        secret.clone(),
        "Bearer".to_owned(),
    ] {
        let refused = client.request("GET /metrics", &[("Authorization", &wrong)], "");
        assert_eq!(refused.status, 401, "{wrong}");
    }
    let in_query = format!("GET /metrics?token={secret}&access_token={secret}");
    assert_eq!(
        client
            .request(&in_query, &[("Authorization", "")], "")
            .status,
        401
    );
    assert_eq!(client.get("/metrics").status, 200);
    for path in ["/healthz", "/readyz"] {
        let open = client.request(&format!("GET {path}"), &[("Authorization", "")], "");
        assert_eq!(open.status, 200, "{path}: {open:?}");
    }
    let missing = client.get("/api/v1/none");
    assert_eq!(
        (missing.status, &missing.body["error"]["code"]),
        (404, &json!("not_found"))
    );
    let wrong_method = client.request("PATCH /api/v1/sessions", &[], "");
    assert_eq!(wrong_method.status, 405, "{wrong_method:?}");
    // A token can be revoked while the server runs, which also ends its streams.
    let session = client.session(json!({}));
    let mut followed = client.follow(&session, None);
    let (status, _, err) = run(&fixture.workspace, &["serve", "token", "revoke", "all"]);
    assert_eq!(status, 0, "{err}");
    assert_eq!(client.get("/metrics").status, 401);
    assert_eq!(followed.next_event(), None);
}

#[test]
fn the_access_log_has_a_line_per_request() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let (server, client, log) = fixture.start_with_log();
    client.get("/api/v1/sessions?title=private");
    client.request("GET /api/v1/runs", &[("Authorization", "Bearer wrong")], "");
    drop(server);
    let lines = std::fs::read_to_string(log).unwrap();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let requests: Vec<serde_json::Value> = lines
        .filter(|line: &serde_json::Value| line["target"] == "selvedge_server::access")
        .collect();
    let fields = |index: usize| requests[index]["fields"].clone();
    let (first, second) = (fields(0), fields(1));
    assert_eq!(
        (&first["path"], &first["status"]),
        (&json!("/api/v1/sessions"), &json!(200))
    );
    assert_eq!(
        (&first["token"], &first["method"]),
        (&json!("all"), &json!("GET"))
    );
    assert_eq!(
        (&second["status"], second.get("token")),
        (&json!(401), None)
    );
    let text = requests.iter().map(ToString::to_string).collect::<String>();
    assert!(
        !text.contains(&fixture.secret) && !text.contains("private"),
        "{text}"
    );
}

#[test]
fn tokens_expire_and_their_secrets_are_not_stored() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let workspace = &fixture.workspace;
    let short = create_token(workspace, &["short", "--expires", "1ms"]);
    let (server, client) = fixture.start();
    assert_eq!(server.client(&short).get("/metrics").status, 401);
    let (_, out, _) = run(workspace, &["serve", "token", "list", "--json"]);
    let tokens: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(tokens.as_array().unwrap().len(), 2);
    let (_, out, _) = run(workspace, &["serve", "token", "list"]);
    assert!(out.contains("expired") && out.contains("valid"), "{out}");
    drop(client);
    drop(server);
    for file in std::fs::read_dir(workspace.home()).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            let found = String::from_utf8_lossy(&bytes).contains(&fixture.secret[4..]);
            assert!(!found, "{} has the secret", path.display());
        }
    }
}

#[test]
fn a_token_reaches_only_its_scopes_and_workspaces() {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let workspace = &fixture.workspace;
    let other = workspace.dir.path().join("other");
    std::fs::create_dir_all(&other).unwrap();
    let other = other.to_str().unwrap();
    let (server, client) = fixture.start();
    let scopes = [
        "--scope",
        "sessions",
        "--scope",
        "documents",
        "--scope",
        "channels",
    ];
    let args = [&["foreign", "--workspace", other][..], &scopes].concat();
    let foreign = create_token(workspace, &args);
    let foreign = server.client(&foreign);
    let reader = create_token(workspace, &["reader", "--scope", "channels"]);
    let reader = server.client(&reader);
    let session = client.session(json!({"prompt": "go"}));
    client.answer(&session, 1);
    let base = format!("/api/v1/sessions/{session}");
    for path in [
        "",
        "/items",
        "/events",
        "/messages",
        "/messages/1",
        "/plan",
        "/children",
    ] {
        let hidden = foreign.get(&format!("{base}{path}"));
        assert_eq!(hidden.status, 404, "{path}: {hidden:?}");
        let made_up = foreign.get(&format!("/api/v1/sessions/ses_none{path}"));
        let without_id = |text: &str| text.replace(&session, "ID").replace("ses_none", "ID");
        assert_eq!(
            without_id(&hidden.text),
            without_id(&made_up.text),
            "{path}"
        );
        let denied = reader.get(&format!("{base}{path}"));
        assert_eq!(denied.status, 403, "{path}: {denied:?}");
    }
    for path in ["/messages", "/stop", "/fork"] {
        let hidden = foreign.post(&format!("{base}{path}"), json!({"text": "x"}));
        assert!([400, 404].contains(&hidden.status), "{path}: {hidden:?}");
    }
    assert_eq!(
        foreign.get("/api/v1/sessions").body,
        json!({"sessions": []})
    );
    assert_eq!(foreign.get("/api/v1/runs").body, json!({"runs": []}));
    let work = workspace.work().canonicalize().unwrap();
    for named in [
        work.to_str().unwrap(),
        "/",
        &format!("{other}/../work"),
        &format!("{other}-2"),
    ] {
        let refused = foreign.post("/api/v1/sessions", json!({"workspace": named}));
        assert_eq!(refused.status, 404, "{named}: {refused:?}");
    }
    // A link in a workspace does not lead out of it.
    let link = format!("{other}/link");
    std::os::unix::fs::symlink(&work, &link).unwrap();
    for refused in [
        foreign.post("/api/v1/sessions", json!({"workspace": link})),
        foreign.post("/api/v1/documents/query", json!({"workspace": link})),
    ] {
        assert_eq!(refused.status, 404, "{refused:?}");
    }
    // A client cannot find out which folders exist outside.
    for outside in ["link/none", "link/issues", "none"] {
        let refused = foreign.post(
            "/api/v1/sessions",
            json!({"workspace": format!("{other}/{outside}")}),
        );
        assert_eq!(refused.status, 404, "{outside}: {refused:?}");
    }
    // A post starts no turn in a session that its token cannot use.
    let follow = ["channels", "follow", "eng", &session];
    assert_eq!(run(workspace, &follow).0, 0);
    let mention = json!({"text": format!("@{session} look")});
    for poster in [&foreign, &reader] {
        let posted = poster.post("/api/v1/channels/eng/messages", mention.clone());
        assert_eq!(posted.status, 201, "{posted:?}");
        assert_eq!(posted.body["queued"], json!([]), "{posted:?}");
        // The session does not exist for it.
        assert_eq!(posted.body["refused"], json!([]), "{posted:?}");
        let listed = poster.get("/api/v1/channels");
        assert_eq!(
            listed.body["channels"][0]["followers"],
            json!([]),
            "{listed:?}"
        );
    }
    let listed = client.get("/api/v1/channels");
    assert_eq!(
        listed.body["channels"][0]["followers"],
        json!([session]),
        "{listed:?}"
    );
    let posted = client.post("/api/v1/channels/eng/messages", mention);
    assert_eq!(posted.body["queued"], json!([session]), "{posted:?}");
    assert_eq!(client.answer(&session, 2)["state"], "answered");
    let own = foreign.post("/api/v1/sessions", json!({}));
    assert_eq!(own.status, 201, "{own:?}");
    assert_eq!(reader.get("/api/v1/channels").status, 200);
    assert_eq!(reader.get("/api/v1/approvals").status, 403);
}

#[test]
fn foreign_hosts_and_origins_are_refused() {
    let fixture =
        ServeFixture::with_config("serve.public_url = \"https://agents.example\"", |_| {
            vec![text("hello")].into()
        });
    let (_server, client) = fixture.start();
    for (headers, status) in [
        (&[("Host", "evil.example")][..], 403),
        (&[("Origin", "https://evil.example")], 403),
        (&[("Origin", "null")], 403),
        (
            &[("Host", "localhost"), ("Origin", "http://localhost:3000")],
            200,
        ),
        (&[("Host", "agents.example")], 200),
        (&[("Host", "u@localhost")], 400),
    ] {
        let response = client.request("GET /healthz", headers, "");
        assert_eq!(response.status, status, "{headers:?}: {response:?}");
        let response = client.request("GET /metrics", headers, "");
        assert_eq!(response.status, status, "{headers:?}: {response:?}");
    }
}

#[test]
fn malformed_and_oversized_requests_are_refused() {
    let fixture = ServeFixture::with_config("serve.max_request_bytes = 2048", |_| {
        vec![text("hello")].into()
    });
    let (server, client) = fixture.start();
    for body in ["{", "[]", "{\"titel\": \"x\"}", "{\"title\": 3}", "\u{0}"] {
        let refused = client.request("POST /api/v1/sessions", &[], body);
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert_eq!(refused.body["error"]["code"], "invalid_request");
    }
    let large = json!({"title": "x".repeat(4096)}).to_string();
    assert_eq!(
        client.request("POST /api/v1/sessions", &[], &large).status,
        413
    );
    let session = client.session(json!({}));
    let empty = client.post(
        &format!("/api/v1/sessions/{session}/messages"),
        json!({"text": " "}),
    );
    assert_eq!(empty.status, 400, "{empty:?}");
    assert_eq!(client.get("/api/v1/sessions?limit=many").status, 400);
    let events = format!("GET /api/v1/sessions/{session}/events");
    assert_eq!(
        client
            .request(&events, &[("Last-Event-ID", "x")], "")
            .status,
        400
    );
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(b"\x16\x03\x01nonsense\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(client.get("/readyz").status, 200);
}

#[test]
fn a_token_over_its_limit_gets_429() {
    let fixture = ServeFixture::with_config("serve.max_queued_turns = 2", |_| {
        crate::server::Reply::Hang(vec![text("thinking")])
    });
    let (_server, client) = fixture.start();
    let session = client.session(json!({"prompt": "one"}));
    client.message(&session, "two");
    let path = format!("/api/v1/sessions/{session}/messages");
    let refused = client.post(&path, json!({"text": "three"}));
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(
        refused.head.to_lowercase().contains("retry-after: "),
        "{refused:?}"
    );
    let refused = client.post("/api/v1/sessions", json!({"prompt": "three"}));
    assert_eq!(refused.status, 429, "{refused:?}");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let workspace = TestWorkspace::new();
    workspace.config(&config_text("http://127.0.0.1:9/v1", ""));
    let (status, _, err) = run(&workspace, &["serve", "--addr", "127.0.0.1:0"]);
    assert_eq!(status, 2);
    assert_eq!(
        err,
        "error: there is no valid token, so no client can use the server\n\
         hint: run `selvedge serve token create`\n"
    );
    create_token(&workspace, &["ci"]);
    let (status, _, err) = run(&workspace, &["serve", "token", "create", "ci"]);
    assert_eq!(status, 2);
    assert_eq!(
        err,
        "error: there is a token `ci` already\nhint: pass another name\n"
    );
    let (_, _, err) = run(&workspace, &["serve", "token", "revoke", "cd"]);
    assert!(
        err.starts_with("error: there is no token `cd`\nhint: run `selvedge"),
        "{err}"
    );
    let server = ApiServer::start(&workspace);
    let (status, _, err) = run(&workspace, &["serve", "--addr", &server.address]);
    assert_eq!(status, 2);
    assert!(
        err.starts_with(&format!("error: cannot listen on {}: ", server.address)),
        "{err}"
    );
    assert!(
        err.contains("\nhint: stop the other program, or pass a free port"),
        "{err}"
    );
    let (status, _, err) = run(&workspace, &["serve", "--addr", "0.0.0.0:0"]);
    assert_eq!(status, 2);
    assert!(
        err.contains("can be reached from other machines, which requires TLS"),
        "{err}"
    );
    assert!(
        err.contains("hint: pass --tls-cert FILE --tls-key FILE, or --insecure"),
        "{err}"
    );
    let args = ["serve", "--tls-cert", "none.pem", "--tls-key", "none.pem"];
    let (status, _, err) = run(&workspace, &args);
    assert_eq!(status, 2);
    assert!(err.starts_with("error: cannot read none.pem: "), "{err}");
}

#[test]
fn a_session_whose_folder_became_a_link_does_not_work_in_its_target() {
    let fixture = ServeFixture::new(|asked| {
        let messages = asked.body["messages"].as_array().unwrap();
        match messages.last().unwrap()["content"]
            .to_string()
            .contains("write it")
        {
            true => vec![text(&block(
                "await tools.writeFile({ path: 'a.txt', content: 'a' })",
            ))],
            false => vec![text("done")],
        }
        .into()
    });
    let (folder, secret) = fixture.other_workspace("sub");
    let other = tempfile::tempdir().unwrap();
    let (server, _) = fixture.start();
    let client = server.client(&secret);
    let session = client.session(json!({}));
    let number = client.message(&session, "hello");
    assert_eq!(client.answer(&session, number)["state"], "answered");
    std::fs::rename(&folder, folder.with_file_name("old")).unwrap();
    std::os::unix::fs::symlink(other.path(), &folder).unwrap();
    let number = client.message(&session, "write it");
    if store::uses_files() {
        let answer = client.answer(&session, number);
        assert_eq!(answer["state"], "failed", "{answer}");
        assert!(
            answer["answer"].to_string().contains("now leads to"),
            "{answer}"
        );
    } else {
        // Another machine may have the folder.
        let path = format!("/api/v1/sessions/{session}");
        wait_until("the session waits for a server", || {
            client.get(&path).body["state"] == "unserved"
        });
    }
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0);
}
