//! Approvals in plain lines at a real terminal, and without a terminal.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use selvedge_confine::{
    Child, ChildCommand, ChildStdio, ConfinementMode, ConfinementSupport, spawn,
};

/// A `selvedge` process in a pseudo-terminal.
struct Terminal {
    master: File,
    child: Child,
    /// The output so far.
    output: String,
}

impl Terminal {
    fn run(dir: &Path, args: &[&str]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let tty: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap()
            .into();
        let argv = [&[env!("CARGO_BIN_EXE_selvedge")], args].concat();
        let env = [
            ("SELVEDGE_HOME", dir.join("home").to_str().unwrap()),
            ("PATH", "/usr/bin:/bin"),
            ("TERM", "dumb"),
        ]
        .map(|(name, value)| (name.into(), value.into()));
        let command = ChildCommand {
            argv: argv.iter().map(Into::into).collect(),
            cwd: dir.join("work"),
            env: env.to_vec(),
            stdio: ChildStdio::Terminal(tty),
            keep_open_fd: None,
        };
        let child = spawn(
            command,
            &ConfinementMode::Unconfined,
            &ConfinementSupport::probe(),
        )
        .unwrap();
        Self {
            master: File::from(master),
            child,
            output: String::new(),
        }
    }

    /// Reads until the output contains the text.
    fn wait_for(&mut self, text: &str) {
        while !self.output.contains(text) {
            assert!(self.read(), "{text:?} never came:\n{}", self.output);
        }
    }

    fn type_text(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Waits for the process to exit, and returns its status and output.
    fn wait_for_exit(mut self) -> (i32, String) {
        while self.read() {}
        (self.child.wait_exit().unwrap().reason.code(), self.output)
    }

    /// Reads more output. Returns whether there was any.
    fn read(&mut self) -> bool {
        let mut chunk = [0; 4096];
        match self.master.read(&mut chunk) {
            Ok(read @ 1..) => {
                let text = String::from_utf8_lossy(&chunk[..read]);
                self.output.push_str(&text);
                true
            }
            _ => false,
        }
    }
}

/// A temporary folder with the working folder `work`, which has a folder `doomed`.
fn temp_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::create_dir_all(dir.path().join("work/doomed")).unwrap();
    dir
}

const DOOM: &str = "// first\nawait tools.exec({ command: ['rm', '-rf', 'doomed'], \
    approvalContext: 'old build' });\nreturn 'gone'";

#[test]
fn an_approval_shows_the_call_and_approving_runs_it() {
    let dir = temp_dir();
    let mut terminal = Terminal::run(dir.path(), &["run", "-e", DOOM]);
    terminal.wait_for("\n> ");
    for text in [
        "? approval needed:",
        "rm -rf doomed",
        "deletes files by force",
        ">   2 | await tools.exec",
        "stated reason: old build",
        "n: deny | n REASON: deny with a reason",
    ] {
        assert!(
            terminal.output.contains(text),
            "{text:?} is not in\n{}",
            terminal.output
        );
    }
    assert!(dir.path().join("work/doomed").exists());
    terminal.type_text("what\n");
    terminal.type_text("y\n");
    let (status, output) = terminal.wait_for_exit();
    assert_eq!(status, 0, "{output}");
    assert!(
        !dir.path().join("work/doomed").exists() && output.contains("gone"),
        "{output}"
    );
}

#[test]
fn the_reason_of_a_denial_reaches_the_script() {
    let dir = temp_dir();
    let mut terminal = Terminal::run(dir.path(), &["run", "-e", DOOM]);
    terminal.wait_for("\n> ");
    terminal.type_text("n use the trash\n");
    let (status, output) = terminal.wait_for_exit();
    assert_eq!(status, 1, "{output}");
    assert!(
        output.contains("ApprovalDeniedError: exec was denied: use the trash"),
        "{output}"
    );
    assert!(dir.path().join("work/doomed").exists());
}

#[test]
fn always_is_saved_and_not_asked_again() {
    let dir = temp_dir();
    let script = "return (await tools.exec({ command: ['touch', 'made'] })).exitCode";
    let args = ["run", "--approval", "untrusted", "-e", script];
    let mut terminal = Terminal::run(dir.path(), &args);
    terminal.wait_for("\n> ");
    assert!(
        terminal.output.contains("a: always, for `touch made …`"),
        "{}",
        terminal.output
    );
    terminal.type_text("a\n");
    assert_eq!(terminal.wait_for_exit().0, 0);
    let rules = std::fs::read_to_string(dir.path().join("home/rules.toml")).unwrap();
    assert!(rules.contains("[\"touch\", \"made\"]"), "{rules}");
    let (status, output) = Terminal::run(dir.path(), &args).wait_for_exit();
    assert!(status == 0 && !output.contains("\n> "), "{output}");
}

#[test]
fn several_calls_can_be_answered_one_by_one() {
    let dir = temp_dir();
    let script = "const all = await Promise.allSettled(\
                  ['a', 'b'].map(f => tools.exec({ command: ['touch', f] }))); \
                  return all.map(r => r.status)";
    let mut terminal = Terminal::run(
        dir.path(),
        &["run", "--approval", "untrusted", "-e", script],
    );
    terminal.wait_for("? approval needed for 2 calls:");
    terminal.wait_for("\n> ");
    terminal.type_text("e\n");
    terminal.type_text("y\n");
    terminal.type_text("n\n");
    let (_, output) = terminal.wait_for_exit();
    assert!(
        dir.path().join("work/a").exists() && !dir.path().join("work/b").exists(),
        "{output}"
    );
}

#[test]
fn without_a_terminal_the_call_is_denied() {
    let dir = temp_dir();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_selvedge"))
        .args(["run", "-e", DOOM])
        .current_dir(dir.path().join("work"))
        .env("SELVEDGE_HOME", dir.path().join("home"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains(
            "exec needs approval: `rm -rf doomed`: deletes files by force; there is no terminal to \
             ask on\n"
        ),
        "{stderr}"
    );
    assert!(dir.path().join("work/doomed").exists());
}

/// Returns the id of the only run in the journal.
fn only_run(dir: &Path) -> String {
    let listed = selvedge(dir, &["runs", "list", "--json"]).stdout;
    let runs: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    runs[0]["id"].as_str().unwrap().to_owned()
}

fn selvedge(dir: &Path, args: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_selvedge"));
    command
        .args(args)
        .env("SELVEDGE_HOME", dir.join("home"))
        .current_dir(dir.join("work"));
    command.stdin(std::process::Stdio::null()).output().unwrap()
}

/// Waits until the only run is suspended, and returns its id.
fn wait_until_suspended(dir: &Path) -> String {
    loop {
        let id = only_run(dir);
        let shown = selvedge(dir, &["runs", "show", &id]).stdout;
        if String::from_utf8(shown).unwrap().contains("suspended") {
            return id;
        }
    }
}

#[test]
fn a_run_killed_at_its_approval_can_be_answered_later() {
    let dir = temp_dir();
    let mut terminal = Terminal::run(dir.path(), &["run", "-e", DOOM]);
    terminal.wait_for("\n> ");
    let id = wait_until_suspended(dir.path());
    drop(terminal);
    let output = selvedge(dir.path(), &["runs", "answer", &id, "--approve"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "gone\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!dir.path().join("work/doomed").exists());
}

#[test]
fn an_answer_after_another_process_answered_has_no_effect() {
    let dir = temp_dir();
    let mut terminal = Terminal::run(dir.path(), &["run", "-e", DOOM]);
    terminal.wait_for("\n> ");
    let id = wait_until_suspended(dir.path());
    let output = selvedge(dir.path(), &["runs", "answer", &id, "--approve"]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::create_dir(dir.path().join("work/doomed")).unwrap();
    terminal.type_text("y\n");
    let (status, output) = terminal.wait_for_exit();
    assert!(
        status == 1 && output.contains("answered elsewhere"),
        "{output}"
    );
    assert!(
        dir.path().join("work/doomed").exists(),
        "the command ran once"
    );
}

/// A script with two approvals: when the first is answered elsewhere, the second is open.
const TWICE: &str =
    "await tools.exec({ command: ['sh', '-c', 'rm -f nothing; echo one >> effects'] });
await tools.exec({ command: ['sh', '-c', 'rm -f nothing; echo two >> effects'] }); return 'all'";

#[test]
fn a_late_answer_does_not_affect_a_script_resumed_elsewhere() {
    for late in ["n\n", "y\n", "\u{3}"] {
        let dir = temp_dir();
        let mut terminal =
            Terminal::run(dir.path(), &["run", "--approval", "untrusted", "-e", TWICE]);
        terminal.wait_for("\n> ");
        let id = wait_until_suspended(dir.path());
        // Another process answers, and suspends the script at the second approval.
        let output = selvedge(dir.path(), &["runs", "answer", &id, "--approve"]);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        terminal.type_text(late);
        let (_, shown) = terminal.wait_for_exit();
        let output = selvedge(dir.path(), &["runs", "answer", &id, "--approve"]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{late:?}: {}{shown}",
            String::from_utf8_lossy(&output.stderr)
        );
        let effects = std::fs::read_to_string(dir.path().join("work/effects")).unwrap();
        assert_eq!(effects, "one\ntwo\n", "{late:?}");
    }
}

#[test]
fn runs_answer_asks_for_the_approval_at_its_terminal() {
    let dir = temp_dir();
    let output = selvedge(dir.path(), &["run", "--suspend", "-e", DOOM]);
    assert_eq!(output.status.code(), Some(1));
    let id = only_run(dir.path());
    let mut terminal = Terminal::run(dir.path(), &["runs", "answer", &id]);
    terminal.wait_for("\n> ");
    assert!(
        terminal.output.contains("rm -rf doomed"),
        "{}",
        terminal.output
    );
    terminal.type_text("y\n");
    let (status, output) = terminal.wait_for_exit();
    assert!(status == 0 && output.contains("gone"), "{output}");
}

#[test]
fn a_request_to_a_host_needs_approval_and_always_is_saved() {
    let dir = temp_dir();
    // The port is closed: only the approval matters here.
    let script = "try { await tools.fetchUrl('http://127.0.0.1:1/page?q=1') } \
                  catch (error) { return error.name }";
    let mut terminal = Terminal::run(dir.path(), &["run", "-e", script]);
    terminal.wait_for("\n> ");
    for text in [
        "fetches http://127.0.0.1:1/page?q=1 (a private address)",
        "a: always, for requests to 127.0.0.1:1",
    ] {
        assert!(
            terminal.output.contains(text),
            "{text:?} is not in\n{}",
            terminal.output
        );
    }
    terminal.type_text("a\n");
    let (_, output) = terminal.wait_for_exit();
    assert!(output.contains("ToolExecutionError"), "{output}");
    let rules = std::fs::read_to_string(dir.path().join("home/rules.toml")).unwrap();
    assert!(
        rules.contains("allow_hosts = [\n  \"127.0.0.1:1\",\n]"),
        "{rules}"
    );
    let (_, output) = Terminal::run(dir.path(), &["run", "-e", script]).wait_for_exit();
    assert!(
        output.contains("ToolExecutionError") && !output.contains("? approval needed"),
        "{output}"
    );
}

/// Starts a model server that lists one model and counts the requests to it.
fn start_model_server() -> (String, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let prompts = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = prompts.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut head = BufReader::new(&stream).lines().map_while(Result::ok);
            let is_prompt = head.next().is_some_and(|line| line.starts_with("POST "));
            head.find(String::is_empty);
            let (status, body) = match is_prompt {
                true => ("500 Error", "{}"),
                false => ("200 OK", r#"{"object": "list", "data": [{"id": "tiny"}]}"#),
            };
            if is_prompt {
                counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
            let length = body.len();
            let _ = write!(
                &stream,
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
    (url, prompts)
}

#[test]
fn a_model_server_on_this_machine_is_used_only_after_a_question() {
    let dir = temp_dir();
    let (url, prompts) = start_model_server();
    let prompts = || prompts.load(std::sync::atomic::Ordering::SeqCst);
    std::fs::create_dir(dir.path().join("home")).unwrap();
    let config: String = ["ollama", "lmstudio", "llamacpp"]
        .map(|name| {
            let url = if name == "lmstudio" {
                &url
            } else {
                "http://127.0.0.1:9/v1"
            };
            format!("[model_providers.{name}]\nbase_url = \"{url}\"\nrequest_max_retries = 0\n")
        })
        .concat();
    std::fs::write(dir.path().join("home/config.toml"), config).unwrap();
    let question = format!("? A model server answers at {url} (lmstudio, run by you).");
    for answer in ["\n", "n\n", "use it\n"] {
        let mut terminal = Terminal::run(dir.path(), &["models", "test"]);
        terminal.wait_for(&question);
        terminal.wait_for("Use it from now on? [y/N] ");
        terminal.type_text(answer);
        let (status, output) = terminal.wait_for_exit();
        assert!(
            status == 2 && output.contains("its use is not confirmed"),
            "{output}"
        );
    }
    assert_eq!(prompts(), 0);
    let mut terminal = Terminal::run(dir.path(), &["models", "test"]);
    terminal.wait_for("Use it from now on? [y/N] ");
    terminal.type_text("y\n");
    terminal.wait_for_exit();
    assert_eq!(prompts(), 1);
    let rules = std::fs::read_to_string(dir.path().join("home/rules.toml")).unwrap();
    assert!(rules.contains(&format!("base_url = \"{url}\"")), "{rules}");
    let (_, output) = Terminal::run(dir.path(), &["models", "test"]).wait_for_exit();
    assert!(!output.contains("Use it from now on?"), "{output}");
    assert_eq!(prompts(), 2);
}
