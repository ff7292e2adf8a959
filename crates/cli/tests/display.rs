//! Text from outside on a terminal: hidden characters are shown as escapes on every surface, and
//! output into a pipe stays exact.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(target_os = "linux")]

#[allow(dead_code)]
#[path = "terminal/pty.rs"]
mod pty;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use pty::PtyTerminal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Characters that a terminal obeys or does not show, one of each kind.
const HOSTILE: &str = "A\u{1b}[35mB\u{7}\u{9b}35mC\u{200b}\u{61c}\u{202e}\u{2066}D\u{e0041}\u{2028}\
    \u{3164}\u{2800}\u{ad}\u{fff9}\u{feff}E";

/// How [`HOSTILE`] is shown.
const SHOWN: &str = "A\\u{1b}[35mB\\u{7}\\u{9b}35mC\\u{200b}\\u{61c}\\u{202e}\\u{2066}D\\u{e0041}\
    \\u{2028}\\u{3164}\\u{2800}\\u{ad}\\u{fff9}\\u{feff}E";

struct DisplayFixture {
    dir: TempDir,
}

impl DisplayFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for folder in ["work", "home"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        Self { dir }
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    fn configure(&self, config: &str) {
        std::fs::write(self.dir.path().join("home/config.toml"), config).unwrap();
    }

    /// Runs `selvedge` without a terminal.
    fn piped(&self, args: &[&str], input: &str) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_selvedge"))
            .args(args)
            .env("SELVEDGE_HOME", self.dir.path().join("home"))
            .current_dir(self.work())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        child.wait_with_output().unwrap()
    }

    /// Runs `selvedge` in a terminal, and checks that it gets no hidden character of [`HOSTILE`].
    #[track_caller]
    fn shown(&self, args: &[&str]) -> String {
        self.shown_with_status(args).1
    }

    /// Like `shown`, and returns the exit status, too.
    #[track_caller]
    fn shown_with_status(&self, args: &[&str]) -> (i32, String) {
        let (status, output) = PtyTerminal::run(self.dir.path(), args).wait_for_exit();
        assert_visible(args, &output);
        (status, output)
    }

    /// Like `shown`, and checks that [`HOSTILE`] is shown.
    #[track_caller]
    fn shows_hostile(&self, args: &[&str]) {
        let output = self.shown(args);
        assert!(output.contains(SHOWN), "{args:?}: {output}");
    }
}

#[track_caller]
fn assert_visible(args: &[&str], output: &str) {
    for c in HOSTILE.chars().filter(|c| selvedge_text::is_hidden(*c)) {
        let reached = match c {
            '\u{1b}' => output.contains("\u{1b}[35m"),
            c => output.contains(c),
        };
        assert!(!reached, "{args:?}: {c:?} reached the terminal: {output:?}");
    }
}

#[test]
fn the_output_and_the_error_of_a_script_are_shown() {
    let fixture = DisplayFixture::new();
    let hostile = json!(HOSTILE);
    for (expected, source) in [
        (0, format!("return {hostile}")),
        (0, format!("text({hostile})")),
        (0, format!("console.log({hostile})")),
        (0, format!("console.warn({hostile})")),
        (0, format!("context.telemetry.emitProgress({hostile})")),
        (0, format!("notify({hostile})")),
        (1, format!("throw new Error({hostile})")),
    ] {
        std::fs::write(fixture.work().join("a.ts"), &source).unwrap();
        let (status, output) = fixture.shown_with_status(&["run", "a.ts"]);
        assert_eq!(status, expected, "{source}: {output}");
        assert!(output.contains(SHOWN), "{source}: {output}");
    }
    for source in [
        format!("await tools.readFile({{ path: {hostile} }})"),
        format!("await tools.exec({{ command: ['false', {hostile}] }}); throw 1 // {HOSTILE}"),
    ] {
        std::fs::write(fixture.work().join("a.ts"), &source).unwrap();
        fixture.shown(&["run", "a.ts"]);
    }
    fixture.shows_hostile(&["run", "-e", &format!("return {hostile}")]);
    // The value of JSON stays the same.
    let output = fixture.shown(&["run", "--json", "-e", &format!("return {hostile}")]);
    let line = output.lines().find(|line| line.starts_with('{')).unwrap();
    let item: Value = serde_json::from_str(line).unwrap();
    let value: Value = serde_json::from_str(item["output_json"].as_str().unwrap()).unwrap();
    assert_eq!(value, hostile);
}

#[test]
fn names_with_line_breaks_stay_on_one_line() {
    let fixture = DisplayFixture::new();
    let name = "no\nerror: fake\u{202e}.ts";
    let output = fixture.shown(&["run", name]);
    assert!(!output.contains("\nerror: fake"), "{output}");
    assert!(output.contains("error: fake\\u{202e}.ts"), "{output}");
    // A file whose name has a line break, in the list of calls and in the diff.
    let source = "await tools.writeFile({ path: 'a\\n✓ exec rm\\u202e', content: 'x' })";
    let output = fixture.shown(&["run", "--diff", "-e", source]);
    assert!(!output.contains("\n✓ exec rm"), "{output}");
}

#[test]
fn lists_of_runs_sessions_and_memory_are_shown() {
    let fixture = DisplayFixture::new();
    let model = ModelServer::start();
    fixture.configure(&model.config());
    let hostile = json!(HOSTILE);
    let source = format!(
        "try {{ await tools.readFile({{ path: {hostile} }}) }} catch {{}} \
         throw new Error({hostile})"
    );
    let run = fixture.piped(&["run", "--json", "-e", &source], "");
    let run: Value = serde_json::from_slice(&run.stdout).unwrap();
    fixture.shown(&["runs", "list"]);
    fixture.shows_hostile(&["runs", "show", run["id"].as_str().unwrap()]);
    let answer = fixture.piped(&["exec", "--json", "-"], HOSTILE);
    assert!(answer.status.success(), "{answer:?}");
    let sessions = fixture.piped(&["sessions", "list", "--json"], "");
    let sessions: Value = serde_json::from_slice(&sessions.stdout).unwrap();
    let id = sessions[0]["id"].as_str().unwrap();
    fixture.shown(&["sessions", "list"]);
    fixture.shows_hostile(&["sessions", "show", id]);
    fixture.shown(&["sessions", "export", id]);
    fixture.shown(&["memory", "stats"]);
    fixture.shown(&["memory", "export"]);
    fixture.shown(&["memory", "search", "A"]);
    fixture.shown(&["memory", "turn", "T-1", "--session", id, "--level", "R"]);
    fixture.shown(&["memory", "show", "--session", id, "--text"]);
    // The answer is wrapped.
    let answer = fixture.shown(&["exec", "Say it"]).replace("\r\n", "");
    assert!(answer.contains(SHOWN), "{answer}");
    let output = fixture.shown(&["models", "list", "--provider", "mock"]);
    assert!(output.contains("\\u{202e}"), "{output}");
}

#[test]
fn what_servers_and_configuration_files_say_is_shown() {
    let fixture = DisplayFixture::new();
    std::fs::write(fixture.work().join("message"), HOSTILE).unwrap();
    let message = fixture.work().join("message");
    fixture.configure(&format!(
        "\"k\u{202e}\u{200b}ey\" = 1\n[mcp_servers.odd]\ncommand = \"sh\"\n\
         args = [\"-c\", \"cat {} >&2\"]\n",
        message.display()
    ));
    let output = fixture.shown(&["mcp", "list"]);
    assert!(
        output.contains("k\\u{202e}\\u{200b}ey") && output.contains("D\\u{e0041}"),
        "{output}"
    );
    fixture.shown(&["doctor"]);
    fixture.shown(&["check", "--command", "--", "rm", HOSTILE]);
    let log = fixture.dir.path().join("log.jsonl");
    let source = format!(
        "try {{ await tools.readFile({}) }} catch {{}}",
        json!(HOSTILE)
    );
    fixture.piped(&["--log", log.to_str().unwrap(), "run", "-e", &source], "");
    assert_visible(&["--log"], &std::fs::read_to_string(log).unwrap());
}

#[test]
fn output_into_a_pipe_is_exact() {
    let fixture = DisplayFixture::new();
    let hostile = json!(HOSTILE);
    let output = fixture.piped(&["run", "-e", &format!("return {hostile}")], "");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("{HOSTILE}\n")
    );
    let output = fixture.piped(&["run", "-e", &format!("throw new Error({hostile})")], "");
    assert!(String::from_utf8(output.stderr).unwrap().contains(HOSTILE));
    let output = fixture.piped(&["run", "--json", "-e", &format!("return {hostile}")], "");
    let item: Value = serde_json::from_slice(&output.stdout).unwrap();
    let value: Value = serde_json::from_str(item["output_json"].as_str().unwrap()).unwrap();
    assert_eq!(value, hostile);
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains('\u{202e}')
    );
}

#[test]
fn ordinary_text_of_any_script_is_not_changed() {
    let fixture = DisplayFixture::new();
    let text = "cafe\u{301} שלום مرحبا می\u{200c}خواهم 漢字　かな 👩\u{200d}🚀 ❤\u{fe0f} 1\u{fe0f}\u{20e3}";
    let output = fixture.shown(&["run", "-e", &format!("return {}", json!(text))]);
    assert!(output.contains(text), "{output:?}");
}

/// A model on loopback whose name and answers are [`HOSTILE`].
struct ModelServer {
    address: String,
}

impl ModelServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = Vec::new();
                let mut chunk = [0; 4096];
                // The body follows the headers in the same or the next piece.
                while let Ok(read @ 1..) = stream.read(&mut chunk) {
                    request.extend_from_slice(&chunk[..read]);
                    if is_complete(&request) {
                        break;
                    }
                }
                let (kind, body) = match request.starts_with(b"GET") {
                    true => (
                        "application/json",
                        json!({"data": [{"id": HOSTILE}]}).to_string(),
                    ),
                    false => ("text/event-stream", answer()),
                };
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\
                     connection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Self { address }
    }

    fn config(&self) -> String {
        format!(
            "model = \"mock\"\nmodel_provider = \"mock\"\n[model_providers.mock]\n\
             base_url = \"http://{}/v1\"\nwire_api = \"chat\"\n",
            self.address
        )
    }
}

fn answer() -> String {
    let piece = json!({"choices": [{"index": 0, "delta": {"content": HOSTILE}}]});
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    format!("data: {piece}\n\ndata: {end}\n\ndata: [DONE]\n\n")
}

/// Whether a request has the body that its headers announce.
fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).into_owned();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().unwrap())
    });
    body.len() >= length.unwrap_or(0)
}
