//! Scripts and commands of an attacker, as tables: requests to this machine, files outside of the
//! workspace, and changes in the name of another session.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts};
use crate::support::api::ApiClient;
use crate::support::{TEST_TIMEOUT, folder_without_commands};

/// Runs a script in a new session, denies what it asks for, and returns the answer.
pub fn run_and_deny(client: &ApiClient, code: &str) -> String {
    let session = client.session(json!({}));
    let number = client.message(&session, &format!("RUN:{code}"));
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let path = format!("/api/v1/sessions/{session}/messages/{number}?wait_ms=100");
        let message = client.get(&path).body;
        if ["answered", "failed"].contains(&message["state"].as_str().unwrap()) {
            return message["answer"].as_str().unwrap_or_default().to_owned();
        }
        let asked = client.get(&format!("/api/v1/approvals?session={session}"));
        for approval in asked.body["approvals"].as_array().unwrap() {
            let path = format!("/api/v1/approvals/{}", approval["id"].as_str().unwrap());
            client.post(&path, json!({"decision": "deny"}));
        }
        assert!(Instant::now() < deadline, "not answered: {message}");
    }
}

/// Returns a script that runs a shell command and returns its output.
fn shell(command: &str) -> String {
    let command = json!(["sh", "-c", command]);
    format!("return (await tools.exec({{ command: {command} }})).aggregatedOutput")
}

/// A port of this machine, and how many connections it has accepted.
fn listen() -> (u16, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = Arc::new(AtomicU32::new(0));
    let count = accepted.clone();
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (port, accepted)
}

fn wait_until_exists(path: &Path) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} is missing", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nothing_on_this_machine_is_requested() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let (port, accepted) = listen();
    let urls = [
        "http://127.0.0.1:PORT/x",
        "http://localhost:PORT/x",
        "http://LOCALHOST.:PORT/x",
        "http://foo.localhost:PORT/x",
        "http://127.1:PORT/x",
        "http://2130706433:PORT/x",
        "http://0x7f.0.0.1:PORT/x",
        "http://0177.0.0.1:PORT/x",
        "http://[::ffff:127.0.0.1]:PORT/x",
        "http://[::127.0.0.1]:PORT/",
        "http://0.0.0.0:PORT/x",
        "http://0:PORT/x",
        "http://[::]:PORT/x",
        "http://①②⑦.⓪.⓪.①:PORT/x",
        "http://127。0。0。1:PORT/x",
        "http://127.0.0.1:PORT\\@example.com/",
        "http://example.com@127.0.0.1:PORT/",
        "http:127.0.0.1:PORT/x",
        "//127.0.0.1:PORT/x",
        "127.0.0.1:PORT/x",
        "http://[64:ff9b::7f00:1]:PORT/",
        "http://[2002:7f00:1::]:PORT/",
        "gopher://127.0.0.1:PORT/_x",
        "file:///etc/passwd",
        "jar:file:///etc/passwd",
    ];
    for url in urls {
        let url = json!(url.replace("PORT", &port.to_string()));
        let code = format!(
            "return await tools.fetchUrl({{ urls: [{url}] }}) \
             .then(r => 'RESULT ' + JSON.stringify(r), e => 'REFUSED ' + e)"
        );
        let answer = run_and_deny(&client, &code);
        let is_answered = answer.contains("RESULT ") || answer.contains("REFUSED ");
        assert!(is_answered && !answer.contains("root:x"), "{url}: {answer}");
        assert_eq!(accepted.load(Ordering::SeqCst), 0, "{url}: {answer}");
    }
    for command in [
        format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'"),
        format!("git ls-remote http://127.0.0.1:{port}/r.git"),
    ] {
        let code = shell(&format!("{command} && echo CONN''ECTED || echo FAI''LED"));
        let answer = run_and_deny(&client, &code);
        let has_failed = answer.contains("FAILED") || answer.contains("exec was denied");
        let is_connected = answer.contains("CONNECTED");
        assert!(has_failed && !is_connected, "{command}: {answer}");
    }
    for code in [
        format!("tools.viewImage({{ path: 'http://127.0.0.1:{port}/x.png' }})"),
        format!("tools.agents.llm.chat({{ model: 'http://127.0.0.1:{port}/v1', prompt: 'x' }})"),
    ] {
        // The name of a model goes to the configured provider, whatever it looks like.
        let code = format!("return await {code}.then(() => 'DO' + 'NE', e => 'REFUSED ' + e)");
        let answer = run_and_deny(&client, &code);
        let is_answered = answer.contains("REFUSED ") || answer.contains("DONE");
        assert!(
            is_answered && !answer.contains("rejected"),
            "{code}: {answer}"
        );
        assert_eq!(accepted.load(Ordering::SeqCst), 0, "{code}: {answer}");
    }
    let url = format!("http://127.0.0.1:{port}/v1");
    let image = json!([{"type": "image_url", "image_url": {"url": url}}]);
    for (model, content) in [(url.as_str(), json!("x")), ("default", image)] {
        let messages = json!([{"role": "user", "content": content}]);
        let body = json!({"model": model, "messages": messages});
        let refused = client.post("/v1/chat/completions", body);
        assert!([400, 404].contains(&refused.status), "{model}: {refused:?}");
    }
    let text = format!("![x]({url}) <img src={url}>");
    client.post(
        "/api/v1/render",
        json!({"text": text, "format": "markdown"}),
    );
    assert_eq!(accepted.load(Ordering::SeqCst), 0);
}

#[test]
fn scripts_and_commands_change_nothing_outside_of_their_workspace() {
    let fixture = ServeFixture::new(runs_scripts);
    let kept = folder_without_commands();
    let other = kept.path().canonicalize().unwrap();
    std::fs::write(other.join("notes.txt"), "zebra").unwrap();
    let work = fixture.workspace.work().canonicalize().unwrap();
    let home = fixture.workspace.home();
    std::os::unix::fs::symlink(&other, work.join("linkdir")).unwrap();
    std::os::unix::fs::symlink(home.join("config.toml"), work.join("cfg.md")).unwrap();
    let (server, client) = fixture.start();
    let (other, home) = (other.display().to_string(), home.display().to_string());
    let pid = server.child.id();
    for code in [
        format!("tools.readFile({{ path: '{home}/config.toml' }})"),
        format!("tools.readFile({{ path: '/proc/{pid}/environ' }})"),
        format!("tools.readFile({{ path: '/proc/{pid}/root{home}/config.toml' }})"),
        "tools.readFile({ path: 'cfg.md' })".to_owned(),
        format!("tools.saveToFc({{ path: '{home}/config.toml' }})"),
        format!("tools.writeFile({{ path: '{other}/evil', content: 'x' }})"),
        "tools.writeFile({ path: 'linkdir/evil', content: 'x' })".to_owned(),
        "tools.writeFile({ path: '.git/hooks/pre-commit', content: 'x' })".to_owned(),
        "tools.writeFile({ path: 'sub/.GIT/config', content: 'x' })".to_owned(),
        format!(
            "tools.applyPatch('*** Begin Patch\\n*** Add File: {other}/evil\\n+x\\n*** End Patch')"
        ),
        format!("tools.editFile({{ path: '{other}/notes.txt', oldString: 'z', newString: 'x' }})"),
        "workspace.write('linkdir/evil.md', '# x')".to_owned(),
    ] {
        let code = format!("return await {code}.then(() => 'DO' + 'NE', e => 'REFUSED ' + e)");
        let answer = run_and_deny(&client, &code);
        let is_refused = answer.contains("REFUSED ") && !answer.contains("DONE");
        assert!(
            is_refused && !answer.contains("rejected"),
            "{code}: {answer}"
        );
    }
    let work = work.display().to_string();
    for command in [
        format!("echo x > {other}/evil"),
        format!("touch {other}/../evil"),
        format!("mv {work} {work}2"),
        format!("rmdir {work} || ln -sfn {other} {work} && test -L {work}"),
        format!("cat {home}/config.toml"),
        format!("cat {home}/journal.sqlite"),
        "mkdir .git".to_owned(),
        "mkdir -p .selvedge && touch .selvedge/config.toml".to_owned(),
        "echo '{}' > .mcp.json".to_owned(),
        format!("ln {other}/notes.txt stolen && echo x >> stolen"),
        format!("mount --bind {other} ."),
        format!("kill -0 {pid}"),
        format!("cat /proc/{pid}/maps"),
        format!("unshare -Ur sh -c 'echo x > {other}/evil'"),
        "mkdir -p /tmp/.git/hooks".to_owned(),
    ] {
        let code = shell(&format!("({command}) && echo DO''NE || echo REF''USED"));
        let answer = run_and_deny(&client, &code);
        let is_refused = answer.contains("REFUSED") && !answer.contains("DONE");
        assert!(is_refused, "{command}: {answer}");
    }
    let left: Vec<_> = std::fs::read_dir(&other).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let notes = std::fs::read_to_string(format!("{other}/notes.txt")).unwrap();
    assert_eq!(notes, "zebra");
    // A message names files, and reads none.
    let session = client.session(json!({}));
    let number = client.message(&session, &format!("look at @{other}/notes.txt"));
    client.answer(&session, number);
    assert!(!fixture.model.asked().pop().unwrap().raw.contains("zebra"));
}

/// A client resumes a run of one session while another session works in the folder.
#[test]
fn changes_of_a_resumed_run_belong_to_no_other_turn() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work();
    let (_server, client) = fixture.start();
    let first = client.session(json!({}));
    run_script(&client, &first, "return 1");
    let run = client.get("/api/v1/runs").body["runs"][0]["id"].clone();
    let resume = |command: &str| {
        let path = format!("/api/v1/runs/{}/resume", run.as_str().unwrap());
        let resumed = client.post(&path, json!({"source": shell(command)}));
        assert_eq!(resumed.status, 202, "{resumed:?}");
        resumed.body["id"].as_str().unwrap().to_owned()
    };
    let second = client.session(json!({}));
    let wait = "touch ready; while [ ! -e other ]; do sleep 0.02; done; echo x > mine";
    let number = client.message(&second, &format!("RUN:{}", shell(wait)));
    wait_until_exists(&work.join("ready"));
    resume("echo y > new && mv new other");
    assert_eq!(client.answer(&second, number)["state"], "answered");
    let revert =
        |session: &str| client.post(&format!("/api/v1/sessions/{session}/revert"), json!({}));
    let reverted = revert(&second);
    assert_eq!(reverted.status, 400, "{reverted:?}");
    assert!(reverted.text.contains("not recorded"), "{reverted:?}");
    assert!(work.join("other").exists() && work.join("mine").exists());
    // Nothing is reverted below a script that runs.
    let resumed = resume("touch begun; while [ ! -e end ]; do sleep 0.02; done");
    wait_until_exists(&work.join("begun"));
    let busy = revert(&first);
    assert_eq!(busy.status, 409, "{busy:?}");
    std::fs::write(work.join("end"), "").unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let run: Value = client.get(&format!("/api/v1/runs/{resumed}")).body;
        if revert(&first).status != 409 {
            break;
        }
        assert!(Instant::now() < deadline, "{run}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
