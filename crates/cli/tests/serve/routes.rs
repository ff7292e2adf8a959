//! Every route of the OpenAPI document: tokens, scopes, workspaces, cookies and bodies. A new route
//! is covered as soon as the document has it.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde_json::{Value, json};

use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts, wait_for_approval};
use crate::support::TestWorkspace;
use crate::support::api::{ALL_SCOPES, ApiClient, ApiResponse, ApiServer, create_token};

/// The scope that the routes of each tag need; `None` if any valid token may use them.
const SCOPES: [(&str, Option<&str>); 13] = [
    ("workspaces", None),
    ("sessions", Some("sessions")),
    ("messages", Some("sessions")),
    ("runs", Some("sessions")),
    ("openai", Some("sessions")),
    ("approvals", Some("approvals")),
    ("documents", Some("documents")),
    ("channels", Some("channels")),
    ("memory", Some("memory")),
    ("health", Some("sessions")),
    ("page", None),
    ("server", None),
    ("login", None),
];
/// Routes that need no token.
const PUBLIC: [&str; 3] = ["/healthz", "/readyz", "/login"];

/// An operation of the OpenAPI document.
struct Operation {
    method: String,
    path: String,
    tag: String,
    /// A body with its required fields, if it has one.
    body: Option<Value>,
    /// Required parameters of the query.
    query: Vec<String>,
    is_public: bool,
}

impl Operation {
    /// Returns the start of a request with these values of path parameters.
    fn start(&self, values: &BTreeMap<&str, String>) -> String {
        let mut path = self.path.clone();
        for (name, value) in values {
            path = path.replace(&format!("{{{name}}}"), value);
        }
        assert!(!path.contains('{'), "{path}: a parameter has no value");
        let query: Vec<String> = self
            .query
            .iter()
            .map(|name| format!("{name}=x.md"))
            .collect();
        let separator = if query.is_empty() { "" } else { "?" };
        format!("{} {path}{separator}{}", self.method, query.join("&"))
    }

    fn body_text(&self) -> String {
        self.body.as_ref().map(Value::to_string).unwrap_or_default()
    }

    fn has_id(&self) -> bool {
        self.path.contains("{id}") || self.path.contains("{session}")
    }
}

/// Returns all operations of the document.
fn operations(workspace: &TestWorkspace) -> Vec<Operation> {
    let printed = workspace.command(&["serve", "openapi"]).output().unwrap();
    let document: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let no_parameters = Vec::new();
            let parameters = operation["parameters"].as_array().unwrap_or(&no_parameters);
            let required = parameters
                .iter()
                .filter(|one| one["in"] == "query" && one["required"] == true);
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            operations.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                tag: operation["tags"][0].as_str().unwrap().to_owned(),
                body: (!schema.is_null()).then(|| minimal(schema, &document)),
                query: required
                    .map(|one| one["name"].as_str().unwrap().to_owned())
                    .collect(),
                is_public: operation["security"] == json!([{}]),
            });
        }
    }
    assert!(operations.len() > 35, "{} operations", operations.len());
    operations
}

/// Returns a value of a schema with the required fields only.
fn minimal(schema: &Value, document: &Value) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return minimal(&document["components"]["schemas"][name], document);
    }
    if let Some(first) = schema["enum"].get(0).or(schema["oneOf"].get(0)) {
        return match first.is_object() {
            true => minimal(first, document),
            false => first.clone(),
        };
    }
    match schema["type"].as_str() {
        Some("string") => json!("x"),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(false),
        Some("array") => json!([minimal(&schema["items"], document)]),
        _ => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let field = |name: &Value| {
                let name = name.as_str().unwrap().to_owned();
                let value = match name.as_str() {
                    "role" => json!("user"),
                    _ => minimal(&schema["properties"][&name], document),
                };
                (name, value)
            };
            Value::Object(required.iter().map(field).collect())
        }
    }
}

fn scope_of(operation: &Operation) -> Option<&'static str> {
    let known = SCOPES.iter().find(|(tag, _)| *tag == operation.tag);
    known
        .unwrap_or_else(|| panic!("add the tag `{}` to SCOPES", operation.tag))
        .1
}

/// Sends a request, and returns the response as soon as its head is known, if it is a stream.
fn respond(client: &ApiClient, start: &str, headers: &[(&str, &str)], body: &str) -> ApiResponse {
    if !start.contains("/events") {
        return client.request(start, headers, body);
    }
    let mut reader = std::io::BufReader::new(client.send(start, headers, body));
    let mut head = String::new();
    reader.read_line(&mut head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut text = String::new();
    if status != 200 {
        std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
        text = text.split_once("\r\n\r\n").unwrap().1.to_owned();
    }
    ApiResponse {
        status,
        head,
        body: serde_json::from_str(&text).unwrap_or_default(),
        text,
    }
}

/// Values of path parameters that name nothing.
fn made_up() -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("id", "ses_none".to_owned()),
        ("session", "ses_none".to_owned()),
        ("name", "eng".to_owned()),
        ("number", "1".to_owned()),
        ("turn", "1".to_owned()),
        ("lesson", "les_none".to_owned()),
    ])
}

/// A server with something of each kind: a session with a message, a run, and an approval request.
struct Things {
    _server: ApiServer,
    client: ApiClient,
    session: String,
    run: String,
    approval: String,
}

impl Things {
    fn start(fixture: &ServeFixture) -> Self {
        let (server, client) = fixture.start();
        let session = client.session(json!({"title": "secret title"}));
        run_script(&client, &session, "await tools.exec({ command: ['true'] })");
        let run = client.get("/api/v1/runs").body["runs"][0]["id"].clone();
        let asking = client.session(json!({}));
        client.message(
            &asking,
            "RUN:await tools.exec({ command: ['rm', '-rf', 'doomed'] })",
        );
        let approval = wait_for_approval(&client)["id"].clone();
        client.post("/api/v1/channels/eng/messages", json!({"text": "hello"}));
        let text = |value: Value| value.as_str().unwrap().to_owned();
        Self {
            _server: server,
            client,
            session,
            run: text(run),
            approval: text(approval),
        }
    }

    /// Values of path parameters that name things of the first workspace.
    fn own(&self, operation: &Operation) -> BTreeMap<&'static str, String> {
        let id = match operation.tag.as_str() {
            "runs" => &self.run,
            "approvals" => &self.approval,
            _ => &self.session,
        };
        let mut values = made_up();
        values.insert("id", id.clone());
        values.insert("session", self.session.clone());
        values
    }
}

#[test]
fn every_route_needs_a_valid_token() {
    let fixture = ServeFixture::new(runs_scripts);
    let workspace = &fixture.workspace;
    let expired = create_token(
        workspace,
        &[&["old", "--expires", "1ms"], &ALL_SCOPES[..]].concat(),
    );
    let revoked = create_token(workspace, &[&["gone"], &ALL_SCOPES[..]].concat());
    let revoke = ["serve", "token", "revoke", "gone"];
    assert!(
        workspace
            .command(&revoke)
            .output()
            .unwrap()
            .status
            .success()
    );
    let things = Things::start(&fixture);
    let secret = &fixture.secret;
    let refused = [
        String::new(),
        format!("Bearer {expired}"),
        format!("Bearer {revoked}"),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        "Bearer null".to_owned(),
        "Bearer all".to_owned(),
        "Bearer ' OR 1=1 --".to_owned(),
        secret.clone(),
        format!("Basic {secret}"),
        format!("Bearer {secret}0"),
        format!("Bearer {}", &secret[..secret.len() - 1]),
        format!("Bearer {}", secret.to_uppercase()),
        format!("Bearer {secret}, Bearer {secret}"),
        format!("Bearer Bearer {secret}"),
    ];
    let mut public = Vec::new();
    for operation in operations(workspace) {
        let start = operation.start(&things.own(&operation));
        if operation.is_public {
            public.push(operation.path.clone());
            continue;
        }
        for wrong in &refused {
            let headers = [("Authorization", wrong.as_str())];
            let response = respond(&things.client, &start, &headers, &operation.body_text());
            assert_eq!(response.status, 401, "{start} with {wrong:?}: {response:?}");
            assert_eq!(response.body["error"]["code"], "unauthorized", "{start}");
        }
        // A method that the path does not have tells nothing either.
        let path = start.split_once(' ').unwrap().1;
        let headers = [("Authorization", "")];
        let unknown = things
            .client
            .request(&format!("PROPFIND {path}"), &headers, "");
        assert_eq!(unknown.status, 401, "PROPFIND {path}: {unknown:?}");
        let unknown = things.client.request(&format!("PROPFIND {path}"), &[], "");
        assert_eq!(unknown.status, 405, "PROPFIND {path}: {unknown:?}");
    }
    public.sort();
    let mut expected = PUBLIC.map(str::to_owned);
    expected.sort();
    assert_eq!(public, expected);
}

#[test]
fn every_route_needs_its_scope() {
    let fixture = ServeFixture::new(runs_scripts);
    let things = Things::start(&fixture);
    let all = ["sessions", "documents", "channels", "memory", "approvals"];
    let clients = all.map(|missing| {
        let others = all.iter().filter(|scope| **scope != missing);
        let mut args = vec![missing];
        args.extend(others.flat_map(|scope| ["--scope", *scope]));
        let secret = create_token(&fixture.workspace, &args);
        (
            missing,
            ApiClient {
                secret,
                ..things.client.clone()
            },
        )
    });
    for operation in operations(&fixture.workspace) {
        let Some(scope) = scope_of(&operation) else {
            continue;
        };
        let (_, client) = clients
            .iter()
            .find(|(missing, _)| *missing == scope)
            .unwrap();
        let start = operation.start(&things.own(&operation));
        // Also before the body is read: a wrong one gets the same answer.
        for body in [operation.body_text(), "{".to_owned()] {
            let response = respond(client, &start, &[], &body);
            assert_eq!(response.status, 403, "{start}: {response:?}");
            let message = response.body["error"]["message"].to_string();
            assert!(
                message.contains(&format!("`{scope}`")),
                "{start}: {message}"
            );
        }
    }
}

#[test]
fn things_of_another_workspace_do_not_exist_on_any_route() {
    let fixture = ServeFixture::new(runs_scripts);
    let things = Things::start(&fixture);
    let other = fixture.workspace.dir.path().join("other");
    std::fs::create_dir_all(&other).unwrap();
    let other = other.to_str().unwrap();
    let foreign = [&["foreign", "--workspace", other], &ALL_SCOPES[..]].concat();
    let secret = create_token(&fixture.workspace, &foreign);
    let foreign = ApiClient {
        secret,
        ..things.client.clone()
    };
    let before = things
        .client
        .get(&format!("/api/v1/sessions/{}", things.session));
    let mut checked = 0;
    let all = operations(&fixture.workspace);
    for operation in all.iter().filter(|operation| operation.has_id()) {
        let own = things.own(operation);
        let body = operation.body_text();
        let start = operation.start(&own);
        let hidden = respond(&foreign, &start, &[], &body);
        assert_eq!(hidden.status, 404, "{start}: {hidden:?}");
        // The answer is the same as for something that does not exist.
        let nothing = respond(&foreign, &operation.start(&made_up()), &[], &body);
        assert_eq!(nothing.status, 404, "{start}: {nothing:?}");
        let mut without_ids = [hidden.text, nothing.text];
        for text in &mut without_ids {
            for id in [&things.session, &things.run, &things.approval, "ses_none"] {
                *text = text.replace(id, "ID");
            }
        }
        assert_eq!(without_ids[0], without_ids[1], "{start}");
        // Spellings of the id that other programs might read as the same.
        let id = &own[if operation.path.contains("{id}") {
            "id"
        } else {
            "session"
        }];
        for odd in [
            format!("{id}%00"),
            format!("{id}%2f"),
            format!("{id}%20"),
            format!("{id}%0d%0aX-Evil:%201"),
            format!("x%2f..%2f{id}"),
            id.to_uppercase(),
            id[..id.len() - 1].to_owned(),
            "%25".to_owned(),
            "ses_%25".to_owned(),
            "*".to_owned(),
            "%2e%2e".to_owned(),
        ] {
            let mut values = own.clone();
            values.insert("id", odd.clone());
            values.insert("session", odd);
            let start = operation.start(&values);
            for client in [&foreign, &things.client] {
                let response = respond(client, &start, &[], &body);
                assert_eq!(response.status, 404, "{start}: {response:?}");
                assert!(!response.head.contains("X-Evil: 1"), "{start}");
            }
        }
        checked += 1;
    }
    assert!(checked > 15, "{checked} operations");
    let after = things
        .client
        .get(&format!("/api/v1/sessions/{}", things.session));
    assert_eq!((before.status, &before.body), (200, &after.body));
    // The ids are those of existing things.
    let mut with_ids: Vec<&Operation> = all.iter().filter(|one| one.has_id()).collect();
    // The session is deleted last.
    with_ids.sort_by_key(|one| (one.method == "DELETE", std::cmp::Reverse(one.path.len())));
    for operation in with_ids {
        let start = operation.start(&things.own(operation));
        let response = respond(&things.client, &start, &[], &operation.body_text());
        let is_done = response.status < 400 || [400, 409].contains(&response.status);
        assert!(is_done, "{start}: {response:?}");
    }
    // Lists have nothing of the other workspace.
    for path in ["sessions", "runs", "approvals", "memory/search?query=title"] {
        let list = foreign.get(&format!("/api/v1/{path}"));
        assert_eq!(list.status, 200, "{path}: {list:?}");
        let first = list.body.as_object().unwrap().values().next().unwrap();
        assert_eq!(first, &json!([]), "{path}: {list:?}");
    }
}

#[test]
fn every_change_with_a_cookie_needs_the_origin_of_the_server() {
    let fixture = ServeFixture::new(runs_scripts);
    let things = Things::start(&fixture);
    let url = format!("http://{}", things.client.address);
    let login = ["serve", "login", "--url", &url];
    let login = fixture.workspace.command(&login).output().unwrap();
    let login = String::from_utf8(login.stdout).unwrap();
    let path = login.trim().strip_prefix(&url).unwrap().to_owned();
    let none = ("Authorization", "");
    let logged_in = things.client.request(&format!("GET {path}"), &[none], "");
    let cookie = logged_in.head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("set-cookie").then_some(value)
    });
    let cookie = cookie.unwrap().split(';').next().unwrap();
    let port = things.client.address.rsplit(':').next().unwrap();
    let origins = [
        String::new(),
        "null".to_owned(),
        url.replace("http://", "https://"),
        "http://localhost".to_owned(),
        "http://localhost:1".to_owned(),
        format!("http://localhost:{port}"),
        url.replace("http://", "ftp://"),
        "https://evil.example".to_owned(),
    ];
    for operation in operations(&fixture.workspace) {
        if operation.is_public {
            continue;
        }
        let start = operation.start(&things.own(&operation));
        let is_read = operation.method == "GET";
        for origin in origins
            .iter()
            .filter(|origin| !is_read || !origin.is_empty())
        {
            let headers = [none, ("Cookie", cookie), ("Origin", origin)];
            let response = respond(&things.client, &start, &headers, &operation.body_text());
            assert_eq!(
                response.status, 403,
                "{start} from {origin:?}: {response:?}"
            );
        }
        if is_read {
            let headers = [none, ("Cookie", cookie)];
            let response = respond(&things.client, &start, &headers, "");
            assert_ne!(response.status, 403, "{start}: {response:?}");
        }
    }
    let headers = [none, ("Cookie", cookie), ("Origin", url.as_str())];
    let created = things
        .client
        .request("POST /api/v1/sessions", &headers, "{}");
    assert_eq!(created.status, 201, "{created:?}");
    let cross = [&headers[..], &[("Sec-Fetch-Site", "cross-site")]].concat();
    let refused = things.client.request("POST /api/v1/sessions", &cross, "{}");
    assert_eq!(refused.status, 403, "{refused:?}");
}

#[test]
fn every_body_that_is_no_request_is_refused() {
    let fixture = ServeFixture::new(runs_scripts);
    let things = Things::start(&fixture);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies = [
        "{",
        "[]",
        "null",
        "1",
        "\"x\"",
        "\u{feff}{}",
        "{} {}",
        "{\"a\":1,}",
        "\u{0}",
        &deep,
        "{\"text\": {\"$ref\": \"x\"}}",
    ];
    let mut checked = 0;
    for operation in operations(&fixture.workspace) {
        if operation.body.is_none() {
            continue;
        }
        let start = operation.start(&things.own(&operation));
        for body in bodies {
            let response = respond(&things.client, &start, &[], body);
            let shown: String = body.chars().take(20).collect();
            assert_eq!(response.status, 400, "{start} {shown:?}: {response:?}");
            assert_eq!(response.body["error"]["code"], "invalid_request", "{start}");
        }
        checked += 1;
    }
    assert!(checked > 8, "{checked} operations");
}
