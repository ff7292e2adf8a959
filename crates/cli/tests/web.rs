//! Web access, documents and background tasks through the binary.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// Starts a server that gives the same response to every request. Returns its port.
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

struct WebWorkspace(tempfile::TempDir);

impl WebWorkspace {
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
fn without_approval_only_configured_hosts_are_fetched() {
    let port = server("text/plain", "hello".into());
    let script =
        format!("return (await tools.fetchUrl('http://127.0.0.1:{port}/')).fetches[0].content");
    let denied = WebWorkspace::new("").error(&script);
    assert!(
        denied.contains(&format!(
            "ApprovalDeniedError: fetch_url needs approval: fetches http://127.0.0.1:{port}/ \
             (a private address); there is no terminal to ask on\n"
        )),
        "{denied}"
    );
    let workspace = WebWorkspace::new(&format!("[web]\nallow_hosts = [\"127.0.0.1:{port}\"]\n"));
    assert_eq!(workspace.value(&script), json!("hello"));
    // The same with a rule that was saved with "always".
    let workspace = WebWorkspace::new("");
    std::fs::write(
        workspace.path().join("home/rules.toml"),
        format!("allow_hosts = [\"127.0.0.1:{port}\"]\n"),
    )
    .unwrap();
    assert_eq!(workspace.value(&script), json!("hello"));
}

#[test]
fn a_configured_search_server_is_used() {
    let results = json!({"results": [{"url": "https://example.com/a", "title": "A", "content": "about a", "score": 1.5}]});
    let port = server("application/json", results.to_string());
    let workspace = WebWorkspace::new(&format!(
        "[web]\nsearxng_url = \"http://127.0.0.1:{port}\"\nallow_hosts = [\"127.0.0.1:{port}\"]\n"
    ));
    let found = workspace.value("return (await tools.webSearch({ query: 'a' })).results");
    assert_eq!(
        found,
        json!([{"url": "https://example.com/a", "title": "A", "snippet": "about a", "relevanceScore": 1.5}])
    );
    let missing = WebWorkspace::new("").error("await tools.webSearch('a')");
    assert!(
        missing.contains("no search service is configured") && missing.contains("web.searxng_url"),
        "{missing}"
    );
}

#[test]
fn documents_persist_unless_the_command_is_ephemeral() {
    let workspace = WebWorkspace::new("");
    let key = workspace
        .value("return (await tools.saveToFC({ content: 'kept\\r\\n', title: 'Note' })).fileKey");
    let key = key.as_str().unwrap();
    assert_eq!(
        workspace.value(&format!("return (await tools.fetchFromFC('{key}')).title")),
        json!("Note")
    );
    workspace.value(&format!(
        "return await tools.writeFile({{ fileKey: '{key}', path: 'note.txt' }})"
    ));
    assert_eq!(
        std::fs::read(workspace.path().join("work/note.txt")).unwrap(),
        b"kept\r\n"
    );
    let script = "const { fileKey } = await tools.saveToFC('x'); return [fileKey, (await tools.fetchFromFC(fileKey)).content]";
    let output = workspace.run(&["--ephemeral"], script);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value[1], "x");
    let gone = workspace.error(&format!("await tools.fetchFromFC({})", value[0]));
    assert!(
        gone.contains("no document in the File Cabinet has the key"),
        "{gone}"
    );
}

#[test]
fn http_and_spawn_are_off_unless_enabled() {
    let off = "return ['http' in tools, 'spawn' in tools]";
    assert_eq!(WebWorkspace::new("").value(off), json!([false, false]));
    let workspace =
        WebWorkspace::new("[script_harness.expose]\nenable_http = true\nenable_spawn = true\n");
    assert_eq!(workspace.value(off), json!([true, true]));
    let script = "const task = tools.spawn.exec('exec', { command: ['echo', 'hi'] }); return (await task.done).stdout";
    assert_eq!(workspace.value(script), json!("hi"));
    // Background tasks are stopped at the end of the command, with a note.
    let output = workspace.run(
        &[],
        "tools.spawn.exec({ command: ['sleep', '1000'] }); return 'started'",
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "started\n");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("note: stopped 1 task that was still running in the background"),
        "{stderr}"
    );
    let runs = Command::new(env!("CARGO_BIN_EXE_selvedge"))
        .args(["runs", "list"])
        .env("SELVEDGE_HOME", workspace.path().join("home"))
        .current_dir(workspace.path().join("work"))
        .output()
        .unwrap();
    let list = String::from_utf8_lossy(&runs.stdout).into_owned();
    assert_eq!(list.matches("tsk_").count(), 2, "{list}");
}
