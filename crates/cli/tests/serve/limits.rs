//! Shares and limits of tokens: connections, documents, repeated requests, queues and money.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answer_encoding::text;
use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts};
use crate::recovery::wait_until;
use crate::server::Reply;
use crate::support::TEST_TIMEOUT;
use crate::support::api::{ApiClient, ApiServer, EventReader, create_token};

/// Starts a server that may open only some files.
fn start_with_files(fixture: &ServeFixture, files: u32) -> ApiServer {
    let plain = fixture
        .workspace
        .command(&["serve", "--addr", "127.0.0.1:0"]);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(plain.get_current_dir().unwrap());
    for (name, value) in plain.get_envs() {
        limited.env(name, value.unwrap());
    }
    ApiServer::listen(limited)
}

#[test]
fn one_token_leaves_connections_to_others() {
    let fixture = ServeFixture::new(runs_scripts);
    let other = create_token(&fixture.workspace, &["other"]);
    // Half of the files are for connections.
    let server = start_with_files(&fixture, 400);
    let (client, other) = (server.client(&fixture.secret), server.client(&other));
    client.post("/api/v1/channels/eng/messages", json!({"text": "x"}));
    let mut open = Vec::new();
    let refused = loop {
        let stream = client.send("GET /api/v1/channels/eng/events", &[], "");
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        reader.read_line(&mut head).unwrap();
        if !head.contains(" 200 ") {
            reader.read_to_string(&mut head).unwrap();
            break head;
        }
        open.push(reader);
        assert!(open.len() < 200, "one token has all connections");
    };
    assert!(open.len() > 50, "{} connections: {refused}", open.len());
    assert!(refused.contains(" 429 "), "{refused}");
    assert!(
        refused.to_lowercase().contains("retry-after: "),
        "{refused}"
    );
    let served = other.get("/api/v1/workspaces");
    assert_eq!(served.status, 200, "{served:?}");
    // A closed connection is free again.
    open.truncate(10);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while client.get("/api/v1/workspaces").status != 200 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn folders_of_a_workspace_do_not_use_up_watches() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, client) = fixture.start();
    let work = fixture.workspace.work().canonicalize().unwrap();
    for number in 0..40 {
        let folder = work.join(format!("many/{number}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("x.md"), "# x").unwrap();
        let body = json!({"workspace": folder});
        let refused = client.post("/api/v1/documents/query", body);
        assert_eq!(refused.status, 404, "{refused:?}");
    }
    // The index of the workspace has them.
    let body = json!({"workspace": work, "query": {"path": "many/7/**"}});
    let found = client.post("/api/v1/documents/query", body);
    assert!(found.text.contains("many/7/x.md"), "{found:?}");
    let files = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
    let targets = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    let watches = targets.filter(|target| target.to_string_lossy().contains("inotify"));
    let watches = watches.count();
    assert!(watches <= 3, "{watches} watches");
}

#[test]
fn a_repeated_completion_gets_the_outcome_of_the_first() {
    let fixture =
        ServeFixture::new(
            |asked| match asked.body["messages"].to_string().contains("explode") {
                true => Reply::Fail(400, "{\"error\": \"no\"}".to_owned()),
                false => runs_scripts(asked),
            },
        );
    let (mut server, client) = fixture.start();
    let complete = |client: &crate::support::api::ApiClient, key: &str, text: &str, more: Value| {
        let mut body = json!({"model": "default", "messages": [{"role": "user", "content": text}]});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let key = [("Idempotency-Key", key)];
        client.request("POST /v1/chat/completions", &key, &body.to_string())
    };
    let sessions = |client: &crate::support::api::ApiClient| {
        let listed = client.get("/api/v1/sessions");
        listed.body["sessions"].as_array().unwrap().len()
    };
    // A turn that failed is not run again, and the request does not hang.
    let first = complete(&client, "k1", "explode", json!({}));
    assert_eq!(first.status, 500, "{first:?}");
    let again = complete(&client, "k1", "explode", json!({}));
    assert_eq!(again.status, 500, "{again:?}");
    assert_eq!(sessions(&client), 1);
    let other = complete(&client, "k1", "something else", json!({}));
    assert_eq!(other.status, 422, "{other:?}");
    // A stream is repeated as a stream.
    for replayed in [false, true] {
        let streamed = complete(&client, "k2", "hi", json!({"stream": true}));
        let head = streamed.head.to_lowercase();
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        assert_eq!(head.contains("idempotent-replayed"), replayed, "{head}");
        assert!(streamed.text.contains("[DONE]"), "{streamed:?}");
    }
    // The turn continues although the client disconnects, and a repetition gets its answer.
    let slow = "RUN:await tools.exec({ command: ['sleep', '2'] }); return 'rested'";
    let body = json!({"model": "default", "messages": [{"role": "user", "content": slow}]});
    let key = [("Idempotency-Key", "k3")];
    let open = client.send("POST /v1/chat/completions", &key, &body.to_string());
    wait_until("the request has its session", || sessions(&client) == 3);
    drop(open);
    let deadline = Instant::now() + TEST_TIMEOUT;
    let answer = loop {
        let answer = complete(&client, "k3", slow, json!({}));
        if answer.status != 409 {
            break answer;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.text.contains("rested"), "{answer:?}");
    assert_eq!(sessions(&client), 3);
    // The same after a crash.
    let key = [("Idempotency-Key", "k4")];
    let _open = client.send("POST /v1/chat/completions", &key, &body.to_string());
    wait_until("the request has its session", || sessions(&client) == 4);
    let newest = client.get("/api/v1/sessions").body["sessions"][0]["id"].clone();
    let newest = newest.as_str().unwrap();
    wait_until("its turn runs", || is_claimed(&client, newest));
    server.kill();
    let (_server, client) = fixture.start();
    let answer = complete(&client, "k4", slow, json!({}));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(sessions(&client), 4);
}

#[test]
fn a_stream_with_a_key_arrives_while_it_is_written() {
    let fixture = ServeFixture::new(|_| Reply::Hang(vec![text("first words")]));
    let (_server, client) = fixture.start();
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "default", "messages": messages, "stream": true}).to_string();
    let key = [("Idempotency-Key", "k1")];
    let stream = client.send("POST /v1/chat/completions", &key, &body);
    let mut events = EventReader(BufReader::new(stream));
    let session = loop {
        let (_, chunk) = events.next_event().unwrap();
        let delta = chunk["choices"][0]["delta"]["content"].as_str();
        if delta.is_some_and(|delta| delta.contains("first")) {
            break chunk["metadata"]["session"].as_str().unwrap().to_owned();
        }
    };
    let stopped = client.post(&format!("/api/v1/sessions/{session}/stop"), json!({}));
    assert_eq!(stopped.status, 200, "{stopped:?}");
    let mut rest = String::new();
    events.0.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
    // The end of the stream means that its copy is stored.
    let again = client.request("POST /v1/chat/completions", &key, &body);
    let head = again.head.to_lowercase();
    assert!(head.contains("idempotent-replayed"), "{again:?}");
    for part in ["first", "[DONE]"] {
        assert!(again.text.contains(part), "{again:?}");
    }
}

/// Whether the turn of the first message of a session runs.
fn is_claimed(client: &ApiClient, session: &str) -> bool {
    let message = client.get(&format!("/api/v1/sessions/{session}/messages/1"));
    message.body["state"] == "claimed"
}

#[test]
fn a_revoked_token_ends_its_turns_and_requests() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, client) = fixture.start();
    let revoked = server.client(&create_token(&fixture.workspace, &["gone"]));
    let session = revoked.session(json!({}));
    revoked.message(
        &session,
        "RUN:await tools.exec({ command: ['sleep', '20'] }); return 1",
    );
    let write = "RUN:await tools.writeFile({ path: 'late.txt', content: 'x' }); return 1";
    revoked.message(&session, write);
    let own = client.message(&session, "hello");
    let started = Instant::now();
    let waiting = {
        let (client, session) = (revoked.clone(), session.clone());
        let path = format!("GET /api/v1/sessions/{session}/messages/2?wait_ms=60000");
        std::thread::spawn(move || client.request(&path, &[], ""))
    };
    wait_until("its turn runs", || is_claimed(&client, &session));
    let mut revoke = fixture
        .workspace
        .command(&["serve", "token", "revoke", "gone"]);
    assert!(revoke.stderr(Stdio::null()).status().unwrap().success());
    let waited = waiting.join().unwrap();
    assert_eq!(waited.status, 401, "{waited:?}");
    assert_eq!(client.answer(&session, 1)["state"], "stopped");
    let second = client.answer(&session, 2);
    assert_eq!(
        (&second["state"], &second["answer"]),
        (&json!("failed"), &json!("the token `gone` was revoked"))
    );
    // Messages of other tokens in the same session are answered.
    assert_eq!(client.answer(&session, own)["state"], "answered");
    assert!(
        started.elapsed() < Duration::from_secs(18),
        "{:?}",
        started.elapsed()
    );
    assert!(!fixture.workspace.work().join("late.txt").exists());
}

#[test]
fn mentions_count_as_queued_messages() {
    let fixture = ServeFixture::with_config("serve.max_queued_turns = 3", |_| {
        Reply::Hang(vec![text("thinking")])
    });
    let (_server, client) = fixture.start();
    for number in 0..5 {
        let session = client.session(json!({"title": "twin"}));
        let args = ["channels", "follow", "eng", &session];
        let followed = fixture.workspace.command(&args).output().unwrap();
        assert!(followed.status.success(), "{number}: {followed:?}");
    }
    let posted = client.post("/api/v1/channels/eng/messages", json!({"text": "@twin hi"}));
    assert_eq!(posted.status, 201, "{posted:?}");
    assert_eq!(
        posted.body["queued"].as_array().unwrap().len(),
        3,
        "{posted:?}"
    );
    let refused = posted.body["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 2, "{posted:?}");
    assert!(
        refused[0]
            .as_str()
            .unwrap()
            .contains("are not answered yet"),
        "{posted:?}"
    );
}

#[test]
fn client_tools_belong_to_their_message() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let session = client.session(json!({}));
    client.message(
        &session,
        "RUN:await tools.exec({ command: ['sleep', '1'] }); return 1",
    );
    let has_tool = "RUN:return `has ${Object.keys(tools).includes('mine')} tool`";
    let plain = client.message(&session, has_tool);
    let complete = |text: &str, names: &[&str]| {
        let tools = names
            .iter()
            .map(|name| json!({"type": "function", "function": {"name": name}}))
            .collect::<Vec<_>>();
        let body = json!({
            "model": "default",
            "messages": [{"role": "user", "content": text}],
            "metadata": {"session": session},
            "tools": tools,
        });
        client.post("/v1/chat/completions", body)
    };
    let done = complete(has_tool, &["mine"]);
    assert!(done.text.contains("has true tool"), "{done:?}");
    let other = client.answer(&session, plain);
    assert!(
        other["answer"].as_str().unwrap().contains("has false tool"),
        "{other}"
    );
    // Names that the agent cannot use are refused before anything is stored.
    let before = client.get("/api/v1/sessions").text;
    for names in [&["exec"][..], &["t", "t"], &[""], &["a b"], &["write_file"]] {
        let refused = complete("hi", names);
        assert_eq!(refused.status, 400, "{names:?}: {refused:?}");
        let tools = json!([{"type": "function", "function": {"name": names[0]}}]);
        let tools = if names.len() > 1 {
            json!([tools[0], tools[0]])
        } else {
            tools
        };
        let body = json!({"model": "default", "tools": tools,
            "messages": [{"role": "user", "content": "hi"}]});
        let refused = client.post("/v1/chat/completions", body);
        assert_eq!(refused.status, 400, "{names:?}: {refused:?}");
    }
    assert_eq!(client.get("/api/v1/sessions").text, before);
}

#[test]
fn the_number_of_sessions_and_of_past_turns_is_limited() {
    let fixture = ServeFixture::with_config("serve.max_sessions = 2", runs_scripts);
    let (server, client) = fixture.start();
    let session = client.session(json!({}));
    let fork = format!("/api/v1/sessions/{session}/fork");
    assert_eq!(client.post(&fork, json!({})).status, 201);
    for refused in [
        client.post("/api/v1/sessions", json!({})),
        client.post(&fork, json!({})),
    ] {
        assert_eq!(refused.status, 429, "{refused:?}");
    }
    let other = server.client(&create_token(&fixture.workspace, &["other"]));
    let mut messages = Vec::new();
    for _ in 0..1001 {
        messages.push(json!({"role": "user", "content": "u"}));
        messages.push(json!({"role": "assistant", "content": "a"}));
    }
    messages.push(json!({"role": "user", "content": "hi"}));
    let body = json!({"model": "default", "messages": messages});
    let refused = other.post("/v1/chat/completions", body);
    assert_eq!(refused.status, 400, "{refused:?}");
}

#[test]
fn a_token_does_not_spend_more_than_its_limit() {
    // A hundred input tokens and twenty output tokens per answer.
    let prices = "models.mock.prices = { input = 10000.0, output = 0.0, cached_input = 10000.0 }";
    let fixture = ServeFixture::with_config(prices, runs_scripts);
    let (server, _) = fixture.start();
    let args = ["poor", "--max-cost", "1.5"];
    let poor = server.client(&create_token(&fixture.workspace, &args));
    let session = poor.session(json!({}));
    let first = poor.message(&session, "hi");
    assert_eq!(poor.answer(&session, first)["state"], "answered");
    // A script whose session another turn runs: the token pays for both.
    let child = "const s = await sessions.create({ prompt: 'work' }); return s.id";
    run_script(&poor, &session, child);
    let deadline = Instant::now() + TEST_TIMEOUT;
    let refused = loop {
        let path = format!("/api/v1/sessions/{session}/messages");
        let sent = poor.post(&path, json!({"text": "more"}));
        if sent.status != 202 {
            break sent;
        }
        assert!(Instant::now() < deadline, "{sent:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.text.contains("of 1.50"), "{refused:?}");
    let listed = fixture
        .workspace
        .command(&["serve", "token", "list"])
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("of 1.50"), "{listed}");
    // What was queued before does not run.
    let queue = poor.get(&format!("/api/v1/sessions/{session}/messages"));
    for message in queue.body["messages"].as_array().unwrap() {
        let number = message["number"].as_u64().unwrap();
        assert_eq!(poor.answer(&session, number)["state"], "failed");
    }
}

#[test]
fn a_configuration_with_errors_changes_nothing_for_new_folders_either() {
    let fixture = ServeFixture::new(runs_scripts);
    let (server, _) = fixture.start();
    let (_, secret) = fixture.other_workspace("new");
    let client = server.client(&secret);
    std::fs::write(
        fixture.workspace.home().join("config.toml"),
        "model = [broken",
    )
    .unwrap();
    let pid = rustix::process::Pid::from_child(&server.child);
    assert_eq!(client.get("/api/v1/workspaces").status, 200);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    server.wait_for_message("warning: the configuration stays as it was: ");
    let session = client.session(json!({}));
    let number = client.message(&session, "hello");
    let answer = client.answer(&session, number);
    assert_eq!(answer["state"], "answered", "{answer}");
}

#[test]
fn turns_in_many_folders_do_not_use_up_the_files() {
    let fixture = ServeFixture::new(runs_scripts);
    let other = create_token(&fixture.workspace, &["other"]);
    let work = fixture.workspace.work().canonicalize().unwrap();
    let folders: Vec<String> = (0..40)
        .map(|number| {
            let folder = work.with_file_name(format!("many-{number}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("x.md"), "# x").unwrap();
            folder.display().to_string()
        })
        .collect();
    let of_all = folders.iter().flat_map(|folder| ["--workspace", folder]);
    let of_all: Vec<&str> = ["many"].into_iter().chain(of_all).collect();
    let many = create_token(&fixture.workspace, &of_all);
    let server = start_with_files(&fixture, 256);
    let (client, other) = (server.client(&many), server.client(&other));
    let mut sent = Vec::new();
    for folder in folders {
        let session = client.session(json!({"workspace": folder}));
        let query = "RUN:const found = await workspace.query({}); return `FOUND ${found.length}`";
        sent.push((session.clone(), client.message(&session, query)));
    }
    for (session, number) in sent {
        let answer = client.answer(&session, number);
        assert!(answer.to_string().contains("FOUND 1"), "{answer}");
    }
    let session = other.session(json!({}));
    let number = other.message(&session, "hello");
    assert_eq!(other.answer(&session, number)["state"], "answered");
    let files = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
    let files = files.count();
    assert!(files < 128, "{files} open files");
}
