//! Requests of an attacker, as tables: without the right token, in other spellings of hosts and
//! paths, and for what belongs to another token.

use serde_json::{Value, json};

use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts};
use crate::support::api::{ApiClient, ApiResponse, create_token};

/// An id of the right form that does not exist.
const NO_SESSION: &str = "ses_0000000000000000";
const NO_RUN: &str = "scr_0000000000000000";

/// Returns methods and paths of the API, without those that need no token.
fn routes(client: &ApiClient) -> Vec<(String, String)> {
    let description = client.get("/openapi.json").body;
    let paths = description["paths"].as_object().unwrap();
    let is_open = |path: &str| ["/healthz", "/readyz", "/login"].contains(&path);
    let methods = ["get", "post", "put", "patch", "delete"];
    let all = paths.iter().filter(|(path, _)| !is_open(path));
    let all = all.flat_map(|(path, route)| {
        let methods = methods
            .iter()
            .filter(|method| route.get(**method).is_some());
        methods.map(|method| (method.to_uppercase(), path.clone()))
    });
    let all: Vec<_> = all.collect();
    assert!(all.len() > 40, "{all:?}");
    all
}

/// Sends a request to a route with ids in the place of its parameters.
fn call(
    client: &ApiClient,
    (method, path): &(String, String),
    (session, run): (&str, &str),
    headers: &[(&str, &str)],
) -> ApiResponse {
    let id = match () {
        () if path.contains("/runs/") => run,
        () if path.contains("/approvals/") => "apr_0000000000000000",
        () => session,
    };
    let mut filled = path.replace("{id}", id).replace("{session}", session);
    for (name, value) in [
        ("{number}", "1"),
        ("{turn}", "1"),
        ("{name}", "news"),
        ("{lesson}", "les_x"),
    ] {
        filled = filled.replace(name, value);
    }
    let body = match (method.as_str(), path.as_str()) {
        ("GET" | "DELETE", _) => String::new(),
        (_, path) if path.ends_with("/resume") => json!({"source": "return 1"}).to_string(),
        ("POST", path) if path.ends_with("/messages") => json!({"text": "x"}).to_string(),
        _ => "{}".to_owned(),
    };
    client.request(&format!("{method} {filled}"), headers, &body)
}

/// Creates a session with a run, and returns both ids.
fn session_with_run(client: &ApiClient, title: &str) -> (String, String) {
    let session = client.session(json!({"title": title}));
    run_script(client, &session, "return 'zebra'");
    let run = client.get("/api/v1/runs").body["runs"][0]["id"].clone();
    (session, run.as_str().unwrap().to_owned())
}

#[test]
fn every_route_needs_a_token_with_its_scope() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, client) = fixture.start();
    let (session, run) = session_with_run(&client, "alpha");
    let ids = (session.as_str(), run.as_str());
    let secret = &fixture.secret;
    for header in [
        ("Authorization", String::new()),
        ("Authorization", format!("Bearer slv_{}", "0".repeat(64))),
        ("Authorization", format!("Basic {secret}")),
        ("Authorization", "Bearer ".to_owned()),
        ("Authorization", format!("Bearer {}", secret.to_uppercase())),
        ("Authorization", format!("Bearer {secret}0")),
        ("Authorization", secret.clone()),
        ("Cookie", format!("token={secret}")),
    ] {
        let headers = [("Authorization", ""), (header.0, header.1.as_str())];
        for route in routes(&client) {
            let refused = call(&client, &route, ids, &headers);
            assert_eq!(refused.status, 401, "{route:?} {header:?}: {refused:?}");
        }
    }
    let scope_of = |path: &str| {
        let path = path.strip_prefix("/api/v1").unwrap_or(path);
        let has = |start: &str| path.starts_with(start);
        match () {
            () if has("/approvals") => Some("approvals"),
            () if has("/documents") => Some("documents"),
            () if has("/channels") => Some("channels"),
            () if has("/memory") || has("/sessions/{id}/memory") => Some("memory"),
            () if ["/v1/", "/sessions", "/runs", "/environments", "/tools"]
                .into_iter()
                .any(has) =>
            {
                Some("sessions")
            }
            () => None,
        }
    };
    for scope in ["sessions", "documents", "channels", "memory", "approvals"] {
        let secret = create_token(
            &fixture.workspace,
            &[&format!("only-{scope}"), "--scope", scope],
        );
        let only = server.client(&secret);
        for route in routes(&client) {
            let needed = scope_of(&route.1).filter(|needed| *needed != scope);
            if needed.is_some() {
                let refused = call(&only, &route, ids, &[]);
                assert_eq!(refused.status, 403, "{route:?} with {scope}: {refused:?}");
            }
        }
    }
}

#[test]
fn other_spellings_of_hosts_and_paths_show_nothing() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    let get = |start: &str, headers: &[(&str, &str)]| client.request(start, headers, "");
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "localhost.",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "127.1",
        "2130706433",
        "user@localhost",
        "localhost@evil.example",
        "evil.example#localhost",
        "localhost, evil.example",
        "localhost/evil",
        "127.0.0.1\\@evil",
        "",
    ] {
        for more in [("X", "y"), ("X-Forwarded-Host", "localhost")] {
            let refused = get("GET /api/v1/sessions", &[("Host", host), more]);
            assert!([400, 403].contains(&refused.status), "{host}: {refused:?}");
        }
    }
    for origin in [
        "http://evil.example",
        "null",
        "http://localhost.evil.example",
        "file://localhost",
        "chrome-extension://x",
        "http://localhost@evil.example",
        "https://evil.example:443/localhost",
    ] {
        let refused = get("GET /api/v1/sessions", &[("Origin", origin)]);
        assert!(
            [400, 403].contains(&refused.status),
            "{origin}: {refused:?}"
        );
    }
    for headers in [
        &[("Host", "localhost"), ("Host", "evil.example")][..],
        &[("Authorization", "Bearer x"), ("Authorization", "Bearer y")],
    ] {
        let refused = get("GET /api/v1/sessions", headers);
        assert!(
            [400, 401].contains(&refused.status),
            "{headers:?}: {refused:?}"
        );
    }
    let refused = get("GET http://evil.example/api/v1/sessions", &[]);
    assert_eq!(refused.status, 403, "{refused:?}");
    for path in [
        "//api/v1/sessions",
        "/api/v1/../v1/sessions",
        "/healthz/../api/v1/sessions",
        "/healthz/..%2fapi/v1/sessions",
        "/login/../api/v1/sessions",
        "/readyz/%2e%2e/api/v1/sessions",
        "/API/V1/sessions",
        "/api/v1/sessions/",
        "/healthz;/api/v1/sessions",
        "/login%3f/../metrics",
        "*",
        "/assets/../api/v1/sessions",
        "/../../etc/passwd",
        "/assets/..%2f..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/assets//etc/passwd",
    ] {
        let refused = get(&format!("GET {path}"), &[("Authorization", "")]);
        assert!(
            [400, 401, 404].contains(&refused.status),
            "{path}: {refused:?}"
        );
        let shown = refused.text.contains(&session) || refused.text.contains("root:x");
        assert!(!shown, "{path}: {refused:?}");
    }
    for method in ["TRACE", "CONNECT", "OPTIONS", "PROPFIND"] {
        let refused = get(
            &format!("{method} /api/v1/sessions"),
            &[("Authorization", "")],
        );
        assert!(
            (400..=405).contains(&refused.status),
            "{method}: {refused:?}"
        );
        let allows = refused.head.to_lowercase().contains("\r\nallow: ");
        assert!(!allows, "{method}: {refused:?}");
    }
}

#[test]
fn texts_that_look_like_paths_are_wrong_requests() {
    let more = "[environments.sub]\nworkspace = \"sub\"";
    let fixture = ServeFixture::with_config(more, runs_scripts);
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    let is_refused = |response: &ApiResponse, what: &str| {
        let refused = [400, 403, 404, 405, 414, 431].contains(&response.status);
        assert!(refused, "{what}: {response:?}");
    };
    for name in [
        "/etc",
        "/",
        "../x",
        "sub",
        "none",
        "a/b",
        "",
        "sub\0",
        "/etc/passwd x",
    ] {
        let created = client.post("/api/v1/sessions", json!({"environment": name}));
        assert!(
            [400, 403].contains(&created.status),
            "{name:?}: {created:?}"
        );
        let messages = json!([{"role": "user", "content": "x"}]);
        let body = json!({"model": name, "messages": messages});
        is_refused(&client.post("/v1/chat/completions", body), name);
    }
    let created = client.post("/api/v1/sessions", json!({"environment": "/etc"}));
    let message = &created.body["error"]["message"];
    assert_eq!(message, "there is no environment `/etc`", "{created:?}");
    for id in [
        "..%2f..%2fetc%2fpasswd",
        "ses_%2e%2e",
        "%00",
        &format!("{session}%2f"),
        &session.to_uppercase(),
        &session[..8],
        "ses_*",
        "ses_'--",
        "%25",
        &"a".repeat(3000),
    ] {
        for end in ["", "/events?follow=false", "/diff", "/items"] {
            is_refused(&client.get(&format!("/api/v1/sessions/{id}{end}")), id);
        }
    }
    for name in [
        "../x",
        "a@b",
        "a%2fb",
        ".",
        "A%20B",
        "%00",
        "a%0ab",
        &"x".repeat(200),
    ] {
        let path = format!("/api/v1/channels/{name}/messages");
        is_refused(&client.post(&path, json!({"text": "x"})), name);
    }
}

/// A folder with the name of a file that instructs agents would take its place.
#[test]
fn a_document_switches_off_no_instructions() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work();
    std::fs::write(work.join("CLAUDE.md"), "Never deploy on walrus day.").unwrap();
    let (server, client) = fixture.start();
    let secret = create_token(&fixture.workspace, &["docs", "--scope", "documents"]);
    let documents = server.client(&secret);
    for path in [
        "AGENTS.md/x.md",
        "./agents.md/a/x.md",
        "sub/CLAUDE.md/x.md",
        "x.mdc/y.md",
    ] {
        let body = json!({"path": path, "content": "x"}).to_string();
        let refused = documents.request("PUT /api/v1/documents", &[], &body);
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
    }
    assert!(!work.join("AGENTS.md").exists());
    // An agent can create such a folder.
    std::fs::create_dir(work.join("AGENTS.md")).unwrap();
    let session = client.session(json!({}));
    run_script(&client, &session, "return 1");
    let asked = fixture.model.asked().pop().unwrap().raw;
    assert!(asked.contains("walrus day"), "{asked}");
}

#[test]
fn what_belongs_to_another_token_does_not_exist() {
    let fixture = ServeFixture::new(runs_scripts);
    let (folder, secret) = fixture.other_workspace("bravo-folder");
    let (server, client) = fixture.start();
    let other = server.client(&secret);
    let (own_session, own_run) = session_with_run(&client, "alpha");
    let (session, run) = session_with_run(&other, "bravo");
    let without_ids = |response: &ApiResponse| {
        let text = response.text.replace(&session, NO_SESSION);
        (response.status, text.replace(&run, NO_RUN))
    };
    for route in routes(&client) {
        if route.1.contains("{id}") && !route.1.contains("/approvals") {
            let foreign = call(&client, &route, (&session, &run), &[]);
            let missing = call(&client, &route, (NO_SESSION, NO_RUN), &[]);
            assert_eq!(foreign.status, 404, "{route:?}: {foreign:?}");
            assert_eq!(without_ids(&foreign), without_ids(&missing), "{route:?}");
        }
    }
    // The list of runs begins after a run of its own only.
    session_with_run(&client, "alpha");
    let after = |id: &str| client.get(&format!("/api/v1/runs?after={id}"));
    assert_eq!(without_ids(&after(&run)), without_ids(&after(NO_RUN)));
    let newest = client.get("/api/v1/runs").body["runs"][0]["id"].clone();
    assert_eq!(
        after(newest.as_str().unwrap()).body["runs"][0]["id"],
        own_run
    );
    let folder = folder.to_str().unwrap();
    for path in [
        "/api/v1/sessions?limit=500",
        "/api/v1/sessions?title=bravo",
        "/api/v1/runs?limit=500",
        "/api/v1/workspaces",
        "/api/v1/status",
        "/api/v1/channels",
        "/api/v1/approvals",
        "/api/v1/memory/lessons",
        "/api/v1/memory/topics",
        "/api/v1/memory/search?query=zebra",
        "/api/v1/environments",
        "/api/v1/tools",
        "/v1/models",
        "/metrics",
    ] {
        let shown = client.get(path);
        assert_eq!(shown.status, 200, "{path}: {shown:?}");
        for foreign in [&session, &run, folder] {
            assert!(!shown.text.contains(foreign), "{path}: {shown:?}");
        }
    }
    let listed = client.get(&format!("/api/v1/sessions?workspace={folder}"));
    assert_eq!(listed.status, 404, "{listed:?}");
    let continued = json!({
        "model": "default",
        "messages": [{"role": "user", "content": "x"}],
        "input": "x",
        "metadata": {"session": session},
    });
    for path in ["/v1/chat/completions", "/v1/responses"] {
        let mut body = continued.clone();
        let unused = if path.ends_with("responses") {
            "messages"
        } else {
            "input"
        };
        body.as_object_mut().unwrap().remove(unused);
        let refused = client.post(path, body);
        assert_eq!(refused.status, 404, "{path}: {refused:?}");
    }
    for id in ["1", "", "1.1"] {
        let previous = format!("resp_{session}_{id}");
        let body = json!({"model": "default", "input": "x", "previous_response_id": previous});
        let refused = client.post("/v1/responses", body);
        assert!(
            [400, 404].contains(&refused.status),
            "{previous}: {refused:?}"
        );
    }
    // Scripts find nothing of it either.
    for code in [
        format!("await sessions.get('{session}')"),
        format!("await tools.sessions.send({{ id: '{session}', message: 'x' }})"),
        format!("await recall('{run}')"),
        format!("await tools.history.getTurn('{session}/T-1')"),
    ] {
        let code =
            format!("try {{ return 'GOT ' + JSON.stringify({code}) }} catch (e) {{ return 'NO' }}");
        let answer = run_script(&client, &own_session, &code);
        assert!(
            answer.contains("NO") && !answer.contains("GOT"),
            "{code}: {answer}"
        );
    }
}

#[test]
fn the_stored_answer_of_a_deleted_session_is_gone() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let body = json!({
        "model": "default",
        "messages": [{"role": "user", "content": "my zebra phrase"}],
    });
    let complete = || {
        let key = [("Idempotency-Key", "k1")];
        client.request("POST /v1/chat/completions", &key, &body.to_string())
    };
    let session = |response: &ApiResponse| response.body["metadata"]["session"].clone();
    let first = complete();
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(session(&complete()), session(&first));
    let id = session(&first);
    let path = format!("DELETE /api/v1/sessions/{}", id.as_str().unwrap());
    assert_eq!(client.request(&path, &[], "").status, 204);
    let again = complete();
    assert_eq!(again.status, 200, "{again:?}");
    assert_ne!(session(&again), id, "a new session answers");
    assert_ne!(session(&again), Value::Null);
}
