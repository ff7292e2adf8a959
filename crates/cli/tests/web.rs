//! The web, documents and background work through the command, as the configuration has them.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// A server that answers every request with the same; returns its port.
fn server(kind: &'static str, body: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = Vec::new();
            let mut piece = [0; 4096];
            while !request.windows(4).any(|window| window == b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(read @ 1..) => request.extend_from_slice(&piece[..read]),
                    _ => break,
                }
            }
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {kind}\r\n\r\n{body}"
            );
        }
    });
    port
}

struct Place(tempfile::TempDir);

impl Place {
    fn new(config: &str) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for folder in ["home", "work"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("home/config.toml"), config).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, args: &[&str], script: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_selvedge"))
            .args(["run", "-q"])
            .args(args)
            .args(["-e", script])
            .env("SELVEDGE_HOME", self.path().join("home"))
            .env_remove("PERPLEXITY_API_KEY")
            .env_remove("FIRECRAWL_API_KEY")
            .current_dir(self.path().join("work"))
            .output()
            .unwrap()
    }

    fn value(&self, script: &str) -> Value {
        let output = self.run(&[], script);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_str(&text).unwrap_or(Value::String(text.trim_end().to_owned()))
    }

    fn error(&self, script: &str) -> String {
        let output = self.run(&[], script);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[test]
fn without_anybody_to_ask_a_host_is_denied_unless_the_configuration_has_it() {
    let port = server("text/plain", "hello".into());
    let script =
        format!("return (await tools.fetchUrl('http://127.0.0.1:{port}/')).fetches[0].content");
    let denied = Place::new("").error(&script);
    assert!(
        denied
            .contains("ApprovalDeniedError: fetch_url was denied: there is no terminal to ask at"),
        "{denied}"
    );
    let place = Place::new(&format!("[web]\nallow_hosts = [\"127.0.0.1:{port}\"]\n"));
    assert_eq!(place.value(&script), json!("hello"));
    // What a person allowed for ever stands beside it.
    let place = Place::new("");
    std::fs::write(
        place.path().join("home/rules.toml"),
        format!("allow_hosts = [\"127.0.0.1:{port}\"]\n"),
    )
    .unwrap();
    assert_eq!(place.value(&script), json!("hello"));
}

#[test]
fn a_search_server_of_ones_own_is_asked() {
    let results = json!({"results": [{"url": "https://example.com/a", "title": "A", "content": "about a", "score": 1.5}]});
    let port = server("application/json", results.to_string());
    let place = Place::new(&format!(
        "[web]\nsearxng_url = \"http://127.0.0.1:{port}\"\nallow_hosts = [\"127.0.0.1:{port}\"]\n"
    ));
    let found = place.value("return (await tools.webSearch({ query: 'a' })).results");
    assert_eq!(
        found,
        json!([{"url": "https://example.com/a", "title": "A", "snippet": "about a", "relevanceScore": 1.5}])
    );
    let missing = Place::new("").error("await tools.webSearch('a')");
    assert!(
        missing.contains("no search service is configured") && missing.contains("web.searxng_url"),
        "{missing}"
    );
}

#[test]
fn documents_are_there_for_the_next_command_and_ephemeral_ones_are_not() {
    let place = Place::new("");
    let key = place
        .value("return (await tools.saveToFC({ content: 'kept\\r\\n', title: 'Note' })).fileKey");
    let key = key.as_str().unwrap();
    assert_eq!(
        place.value(&format!("return (await tools.fetchFromFC('{key}')).title")),
        json!("Note")
    );
    place.value(&format!(
        "return await tools.writeFile({{ fileKey: '{key}', path: 'note.txt' }})"
    ));
    assert_eq!(
        std::fs::read(place.path().join("work/note.txt")).unwrap(),
        b"kept\r\n"
    );
    let script = "const { fileKey } = await tools.saveToFC('x'); return [fileKey, (await tools.fetchFromFC(fileKey)).content]";
    let output = place.run(&["--ephemeral"], script);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value[1], "x");
    let gone = place.error(&format!("await tools.fetchFromFC({})", value[0]));
    assert!(
        gone.contains("no document in the File Cabinet has the key"),
        "{gone}"
    );
}

#[test]
fn plain_requests_and_background_work_are_off_until_they_are_switched_on() {
    let off = "return ['http' in tools, 'spawn' in tools]";
    assert_eq!(Place::new("").value(off), json!([false, false]));
    let place = Place::new("[script_harness.expose]\nenable_http = true\nenable_spawn = true\n");
    assert_eq!(place.value(off), json!([true, true]));
    let script = "const task = tools.spawn.exec('exec', { command: ['echo', 'hi'] }); return (await task.done).stdout";
    assert_eq!(place.value(script), json!("hi"));
    // What goes on in the background ends with the command, which says so.
    let output = place.run(
        &[],
        "tools.spawn.exec({ command: ['sleep', '1000'] }); return 'started'",
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "started\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("a task was still running in the background, and was stopped"),
        "{said}"
    );
    let runs = Command::new(env!("CARGO_BIN_EXE_selvedge"))
        .args(["runs", "list"])
        .env("SELVEDGE_HOME", place.path().join("home"))
        .current_dir(place.path().join("work"))
        .output()
        .unwrap();
    let list = String::from_utf8_lossy(&runs.stdout).into_owned();
    assert_eq!(list.matches("tsk_").count(), 2, "{list}");
}
