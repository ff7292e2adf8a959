//! Sessions that scripts create, and messages between sessions, with a model server on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;

#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

mod support;

#[path = "session_messages/example.rs"]
mod example;
#[path = "session_messages/stop.rs"]
mod stop;
#[path = "session_messages/worktrees.rs"]
mod worktrees;

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use answer_encoding::{block, text};
use serde_json::{Value, json};
use server::{Asked, Reply, Server};
use support::TestWorkspace;

/// A workspace whose model is a server on loopback.
struct MessageFixture {
    workspace: TestWorkspace,
    server: Server,
    _runtime: tokio::runtime::Runtime,
}

impl MessageFixture {
    fn new(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start(script));
        let fixture = Self {
            workspace: TestWorkspace::new(),
            server,
            _runtime: runtime,
        };
        fixture.configure("");
        fixture
    }

    fn configure(&self, more: &str) {
        // The models of these tests read whole requests, which must not quote other sessions.
        self.workspace.config(&format!(
            "model = \"mock\"\nmodel_provider = \"mock\"\nmemory.scope = \"session\"\n\
             [model_providers.mock]\nbase_url = \"{}\"\nwire_api = \"chat\"\n{more}",
            self.server.url
        ));
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = self.workspace.command(args);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    fn json(&self, args: &[&str]) -> Value {
        let (_, out, err) = self.run(args);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
    }

    fn script(&self, code: &str) -> Value {
        self.json(&["run", "-q", "-e", code])
    }

    fn sessions(&self) -> Vec<Value> {
        let list = self.json(&["sessions", "list", "--json"]);
        list.as_array().unwrap().clone()
    }
}

/// Returns the text of the last message of a request.
fn last_text(asked: &Asked) -> String {
    let messages = asked.body["messages"].as_array().unwrap();
    messages.last().unwrap()["content"].to_string()
}

#[test]
fn a_script_creates_a_session_and_waits_for_its_answer() {
    let fixture = MessageFixture::new(|asked| {
        let reply = match last_text(asked).contains("second") {
            true => "the second answer",
            false => "the first answer",
        };
        vec![text(reply)].into()
    });
    fixture.configure("[environments.frontend]\nsandbox_mode = \"read-only\"\n");
    let value = fixture.script(
        "const session = await tools.sessions.create({ env: 'frontend', title: 'Fix login' });
         const first = await session.send('do it', { wait: true });
         const queued = await tools.sessions.send(session.id, 'second');
         const [busy] = await sessions.list({ title: 'login' });
         const second = await busy.send('third', { wait: true });
         return { session, first, queued, busy, second };",
    );
    let id = value["session"]["id"].as_str().unwrap();
    assert_eq!(value["first"]["answer"], "the first answer");
    assert_eq!(value["first"]["state"], "answered");
    assert_eq!(value["queued"]["state"], "queued");
    let note = value["queued"]["note"].as_str().unwrap();
    assert!(
        note.contains(&format!("selvedge sessions send {id} --wait")),
        "{note}"
    );
    assert_eq!(value["busy"]["queued"], 1);
    assert_eq!(value["second"]["number"], 3);
    assert_eq!(fixture.server.asked().len(), 3);
    let listed = &fixture.sessions()[0];
    assert_eq!(listed["title"], "Fix login");
    assert_eq!(listed["environment"], "frontend");
    assert_eq!(listed["queued"], 0);
    let (_, out, _) = fixture.run(&["sessions", "show", id]);
    assert!(
        out.starts_with("Fix login  environment frontend\n"),
        "{out}"
    );
    assert!(out.contains("the second answer"), "{out}");
}

#[test]
fn the_shell_queues_shows_and_answers_messages() {
    let fixture = MessageFixture::new(|_| vec![text("an answer")].into());
    let created = fixture.script("return await tools.sessions.create({ prompt: 'first task' })");
    let id = created["id"].as_str().unwrap();
    let (status, out, err) = fixture.run(&["sessions", "send", id, "second task"]);
    assert_eq!((status, out), (0, format!("{id}#2\n")), "{err}");
    assert!(
        err.contains(&format!("run `selvedge sessions send {id} --wait`")),
        "{err}"
    );
    let (_, out, _) = fixture.run(&["sessions", "show", id]);
    assert!(
        out.contains(": second task\n") && out.contains("2 queued"),
        "{out}"
    );
    assert_eq!(fixture.server.asked().len(), 0);
    let (status, out, err) = fixture.run(&["sessions", "send", id, "--wait"]);
    assert_eq!((status, out.as_str()), (0, "an answer\n"), "{err}");
    assert_eq!(fixture.server.asked().len(), 2);
    let shown = fixture.json(&["sessions", "show", id, "--json"]);
    assert_eq!(shown["queue"], json!([]));
    let (status, _, err) = fixture.run(&["sessions", "send", id, "--wait"]);
    assert_eq!(status, 2);
    assert!(
        err.starts_with("error: no message waits for session"),
        "{err}"
    );
    let (status, _, err) = fixture.run(&["sessions", "send", "ses_none", "x"]);
    assert_eq!(status, 2);
    assert!(err.contains("hint: run `selvedge sessions list`"), "{err}");
}

#[test]
fn a_session_cannot_wait_for_its_own_creator() {
    let fixture = MessageFixture::new(|asked| {
        let last = last_text(asked);
        let code = match () {
            () if last.contains("start") => {
                "const child = await tools.sessions.create({ title: 'child' });
                 await tools.channels.post('log', context.sessionId);
                 return (await child.send('ask back', { wait: true })).answer"
            }
            () if last.contains("ask back") => {
                "const [{ text: id }] = await tools.channels.read('log');
                 try { await tools.sessions.send(id, 'x', { wait: true }) }
                 catch (e) { return e.message }"
            }
            () if last.contains("waits for this session") => {
                return vec![text("refused: waits for this session")].into();
            }
            () => return vec![text(&format!("no error: {last}"))].into(),
        };
        vec![text(&block(code))].into()
    });
    let (status, out, err) = fixture.run(&["exec", "-q", "start"]);
    assert_eq!(status, 0, "{err}");
    assert_eq!(out, "refused: waits for this session\n", "{err}");
    let sessions = fixture.sessions();
    let child = sessions.iter().find(|session| session["title"] == "child");
    let parent = sessions.iter().find(|session| session["title"].is_null());
    assert_eq!(child.unwrap()["creator"], parent.unwrap()["id"]);
}

#[test]
fn turns_that_a_script_waits_for_at_once_share_its_budget() {
    let fixture = MessageFixture::new(|asked| {
        if asked.raw.contains("start the others") {
            let code = "const ids = await Promise.all([1, 2, 3, 4].map(n =>
                    tools.sessions.create({ title: `s${n}` })));
                await Promise.all(ids.map(s => s.send('go', { wait: true }).catch(() => 0)));
                return 'all'";
            return match asked.number {
                0 => vec![text(&block(code))].into(),
                _ => vec![text("done")].into(),
            };
        }
        vec![text(&block(&format!("return {}", asked.number)))].into()
    });
    let limit = 16;
    let tokens = limit * (answer_encoding::INPUT + answer_encoding::OUTPUT);
    fixture.configure(&format!("[agent]\nsession_max_tokens = {tokens}\n"));
    fixture.run(&["exec", "start the others"]);
    let requests = fixture.server.asked().len();
    // Each of the four turns may exceed its part by one request.
    assert!((6..=16 + 4).contains(&requests), "{requests}");
}

#[test]
fn a_created_session_has_at_most_the_permissions_of_its_creator() {
    let fixture = MessageFixture::new(|asked| {
        let last = last_text(asked);
        if last.contains("write a file") {
            let code = "await tools.writeFile({ path: 'x.txt', content: 'x' })";
            return vec![text(&block(code))].into();
        }
        vec![text("done")].into()
    });
    fixture.configure(
        "[environments.wide]\nsandbox_mode = \"danger-full-access\"\n\
         [environments.away]\nworkspace = \"..\"\n\
         [tool_packs.few]\ntools = [\"sessions.*\", \"read_file\"]\n",
    );
    let code = "const s = await tools.sessions.create({ title: 'child' });
        return (await s.send('write a file', { wait: true })).answer";
    for restricted in [["--sandbox", "read-only"], ["--pack", "few"]] {
        let args = [&["run", "-q", "-e", code][..], &restricted].concat();
        let (status, out, err) = fixture.run(&args);
        assert_eq!((status, out.as_str()), (0, "done\n"), "{err}");
        assert!(!fixture.workspace.work().join("x.txt").exists());
    }
    for (environment, more) in [("wide", "a wider sandbox"), ("away", "the folder ")] {
        let code = format!("return await tools.sessions.create({{ env: '{environment}' }})");
        let output = fixture.json(&["run", "--json", "-e", &code]);
        assert_eq!(output["error"]["code"], "ApprovalDeniedError", "{output}");
        let message = output["error"]["message"].as_str().unwrap();
        assert!(message.contains(more), "{message}");
    }
    let (_, _, err) = fixture.run(&["run", "-e", "await tools.sessions.create({ env: 'none' })"]);
    assert!(err.contains("there is no environment `none`"), "{err}");
    let (status, out, err) = fixture.run(&["run", "-q", "-e", code]);
    assert_eq!((status, out.as_str()), (0, "done\n"), "{err}");
    assert!(fixture.workspace.work().join("x.txt").exists());
}

#[test]
fn a_mention_survives_a_killed_process_and_is_answered_once() {
    let answers = Arc::new(AtomicBool::new(false));
    let may_answer = answers.clone();
    let fixture = MessageFixture::new(move |_| match may_answer.load(Ordering::Relaxed) {
        true => vec![text("I saw it")].into(),
        false => Reply::Hang(vec![text("thinking")]),
    });
    let session = fixture.script("return await tools.sessions.create({ title: 'Fix login' })");
    let id = session["id"].as_str().unwrap();
    let (status, _, err) = fixture.run(&["channels", "follow", "eng", id]);
    assert_eq!(status, 0, "{err}");
    let posted = fixture.json(&["channels", "post", "eng", "@fix-login look", "--json"]);
    assert_eq!(posted["queued"], json!([id]));
    let mut waiting = fixture
        .workspace
        .command(&["sessions", "send", id, "--wait"]);
    let mut waiting = waiting
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while fixture.server.asked().is_empty() {
        std::thread::yield_now();
    }
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    answers.store(true, Ordering::Relaxed);
    let (status, out, err) = fixture.run(&["sessions", "send", id, "--wait"]);
    assert_eq!((status, out.as_str()), (0, "I saw it\n"), "{err}");
    let shown = fixture.json(&["sessions", "show", id, "--json"]);
    let messages = shown["items"].as_array().unwrap();
    let of_user = messages
        .iter()
        .filter(|item| item["item"]["role"] == "user")
        .count();
    assert_eq!(of_user, 1, "{shown:#}");
    assert_eq!(shown["queue"], json!([]));
}
