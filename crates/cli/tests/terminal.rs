//! Approvals in plain lines at a real terminal, and without a terminal.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(target_os = "linux")]

#[path = "terminal/outcomes.rs"]
mod outcomes;
#[path = "terminal/pty.rs"]
mod pty;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;

use pty::PtyTerminal;

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
    let mut terminal = PtyTerminal::run(dir.path(), &["run", "-e", DOOM]);
    terminal.wait_for("\n> ");
    for text in [
        "? approval needed:",
        "rm -rf doomed",
        "deletes files by force",
        ">   2 | await tools.exec",
        "    │ rm -rf doomed\r\n",
        "reason given by the model: old build",
        "1. Approve this call, once",
        "2. Approve this call and every later call of this script",
        "4. Deny, with a reason for the model",
        "without an answer, the request times out after 60 s",
    ] {
        assert!(
            terminal.output.contains(text),
            "{text:?} is not in\n{}",
            terminal.output
        );
    }
    assert!(dir.path().join("work/doomed").exists());
    terminal.answer("what");
    terminal.answer("1");
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
    let mut terminal = PtyTerminal::run(dir.path(), &["run", "-e", DOOM]);
    terminal.wait_for("\n> ");
    terminal.answer("4");
    terminal.wait_for("reason for the model:\r\n> ");
    terminal.type_text("use the trash\n");
    let (status, output) = terminal.wait_for_exit();
    assert_eq!(status, 1, "{output}");
    assert!(
        output.contains("ApprovalDeniedError: exec was denied: use the trash"),
        "{output}"
    );
    // The hint of a denial is for models.
    assert!(!output.contains("another way"), "{output}");
    assert!(dir.path().join("work/doomed").exists());
}

#[test]
fn always_is_saved_and_not_asked_again() {
    let dir = temp_dir();
    let script = "return (await tools.exec({ command: ['touch', 'made'] })).exitCode";
    let args = ["run", "--approval", "untrusted", "-e", script];
    let mut terminal = PtyTerminal::run(dir.path(), &args);
    terminal.wait_for("\n> ");
    assert!(
        terminal
            .output
            .contains("4. Approve `touch made …` always, in every folder"),
        "{}",
        terminal.output
    );
    terminal.answer("4");
    assert_eq!(terminal.wait_for_exit().0, 0);
    let rules = std::fs::read_to_string(dir.path().join("home/rules.toml")).unwrap();
    assert!(rules.contains("[\"touch\", \"made\"]"), "{rules}");
    let (status, output) = PtyTerminal::run(dir.path(), &args).wait_for_exit();
    assert!(status == 0 && !output.contains("\n> "), "{output}");
}

#[test]
fn several_calls_can_be_answered_one_by_one() {
    let dir = temp_dir();
    let script = "const all = await Promise.allSettled(\
                  ['a', 'b'].map(f => tools.exec({ command: ['touch', f] }))); \
                  return all.map(r => r.status)";
    let mut terminal = PtyTerminal::run(
        dir.path(),
        &["run", "--approval", "untrusted", "-e", script],
    );
    terminal.wait_for("? approval needed for 2 calls:");
    terminal.wait_for("\n> ");
    for answer in ["7", "1", "5"] {
        terminal.answer(answer);
    }
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
    let mut terminal = PtyTerminal::run(dir.path(), &["run", "-e", DOOM]);
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
    let mut terminal = PtyTerminal::run(dir.path(), &["run", "-e", DOOM]);
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
    terminal.answer("1");
    let (status, output) = terminal.wait_for_exit();
    assert!(
        status == 3 && output.contains("another process has claimed the run"),
        "{output}"
    );
    assert!(
        dir.path().join("work/doomed").exists(),
        "the command ran once"
    );
}

/// A script with two approvals: when another process answers the first, the second is open.
const TWICE: &str =
    "await tools.exec({ command: ['sh', '-c', 'rm -f nothing; echo one >> effects'] });
await tools.exec({ command: ['sh', '-c', 'rm -f nothing; echo two >> effects'] }); return 'all'";

#[test]
fn a_late_answer_does_not_affect_a_script_resumed_elsewhere() {
    for late in ["3\n", "1\n", "\u{3}"] {
        let dir = temp_dir();
        let mut terminal =
            PtyTerminal::run(dir.path(), &["run", "--approval", "untrusted", "-e", TWICE]);
        terminal.wait_for("\n> ");
        let id = wait_until_suspended(dir.path());
        // Another process answers, and suspends the script at the second approval.
        let output = selvedge(dir.path(), &["runs", "answer", &id, "--approve"]);
        assert_eq!(
            output.status.code(),
            Some(3),
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
    assert_eq!(output.status.code(), Some(3));
    let id = only_run(dir.path());
    let mut terminal = PtyTerminal::run(dir.path(), &["runs", "answer", &id]);
    terminal.wait_for("\n> ");
    assert!(
        terminal.output.contains("rm -rf doomed"),
        "{}",
        terminal.output
    );
    terminal.answer("1");
    let (status, output) = terminal.wait_for_exit();
    assert!(status == 0 && output.contains("gone"), "{output}");
}

#[test]
fn a_request_to_a_host_needs_approval_and_always_is_saved() {
    let dir = temp_dir();
    // The port is closed: only the approval matters here.
    let script = "try { await tools.fetchUrl('http://127.0.0.1:1/page?q=1') } \
                  catch (error) { return error.name }";
    let mut terminal = PtyTerminal::run(dir.path(), &["run", "-e", script]);
    terminal.wait_for("\n> ");
    for text in [
        "fetches http://127.0.0.1:1/page?q=1 (a private address)",
        "    │ http://127.0.0.1:1/page?q=1\r\n",
        "4. Approve requests to 127.0.0.1:1 always, in every folder",
    ] {
        assert!(
            terminal.output.contains(text),
            "{text:?} is not in\n{}",
            terminal.output
        );
    }
    terminal.answer("4");
    let (_, output) = terminal.wait_for_exit();
    assert!(output.contains("ToolExecutionError"), "{output}");
    let rules = std::fs::read_to_string(dir.path().join("home/rules.toml")).unwrap();
    assert!(
        rules.contains("allow_hosts = [\n  \"127.0.0.1:1\",\n]"),
        "{rules}"
    );
    let (_, output) = PtyTerminal::run(dir.path(), &["run", "-e", script]).wait_for_exit();
    assert!(
        output.contains("ToolExecutionError") && !output.contains("? approval needed"),
        "{output}"
    );
}

/// Sentences that are no answer. Some begin or end with a digit.
const SENTENCES: [&str; 40] = [
    "stop it",
    "yes",
    "y",
    "s",
    "a",
    "always",
    "yes please",
    "ok",
    "okay 1",
    "approve",
    "use option 1",
    "use option 2",
    "1 more thing",
    "2 files are wrong",
    "3rd time",
    "1. do it",
    "1) do it",
    "1, 2",
    "1 2 3 4",
    "run it in folder 1",
    "delete version 2",
    "what is rm -rf 1",
    "please stop after 3",
    "no, 2",
    "not now, at 10:21",
    "0",
    "00 1",
    "9",
    "12",
    "x1",
    "1x",
    "-1",
    "+2",
    "#1",
    "1.0",
    "0x1",
    "01x",
    "",
    " ",
    "１",
];

#[test]
fn words_at_the_plain_prompt_approve_nothing() {
    let dir = temp_dir();
    let mut terminal = PtyTerminal::run(dir.path(), &["run", "-e", DOOM]);
    for sentence in SENTENCES {
        terminal.answer(sentence);
        terminal.wait_for("type a number from 1 to 4, then Enter");
        assert!(dir.path().join("work/doomed").exists(), "{sentence:?}");
    }
    terminal.answer("3");
    let (status, output) = terminal.wait_for_exit();
    assert!(
        status == 1 && output.contains("ApprovalDeniedError: exec was denied"),
        "{output}"
    );
    assert!(dir.path().join("work/doomed").exists());
}

#[test]
fn text_typed_before_or_pasted_at_the_plain_prompt_approves_nothing() {
    let dir = temp_dir();
    let mut terminal = PtyTerminal::run_with_term(dir.path(), &["run", "-e", DOOM], "xterm");
    // Before the prompt, and while the question is shown.
    terminal.type_text("1\n1\n1");
    terminal.wait_for("approval needed");
    terminal.type_text("1\n1\n");
    terminal.wait_for("\n> ");
    assert!(
        terminal.output.contains("\x1b[?2004h"),
        "{:?}",
        terminal.output
    );
    for paste in ["1", "1\n", "words\n1\n", "1\n1\n1\n"] {
        terminal.wait_for("\n> ");
        terminal.output.clear();
        terminal.type_text(&format!("\x1b[200~{paste}\x1b[201~\n"));
        terminal.wait_for("type a number from 1 to 4, then Enter");
        assert!(dir.path().join("work/doomed").exists(), "{paste:?}");
    }
    // Several lines at once, in a terminal that does not mark pastes.
    terminal.wait_for("\n> ");
    terminal.output.clear();
    terminal.type_text("stop it\n1\n2\n1\n");
    terminal.answer("3");
    let (status, output) = terminal.wait_for_exit();
    assert_eq!(status, 1, "{output}");
    assert!(output.contains("\x1b[?2004l"), "{output:?}");
    assert!(dir.path().join("work/doomed").exists());
}

#[test]
fn a_paste_cannot_erase_its_mark_and_a_reason_can_be_edited() {
    let dir = temp_dir();
    let mut terminal = PtyTerminal::run_with_term(dir.path(), &["run", "-e", DOOM], "xterm");
    let deletes = "\x7f".repeat(12);
    for paste in [
        "some text\x151\n",
        &format!("{deletes}1\n"),
        " \x17\x17\x171\n",
        "words\nmore\n\x151\n",
        "a\x16\x151\n",
        "a\x12\x151\n",
        "a\x041\n",
    ] {
        terminal.wait_for("\n> ");
        terminal.output.clear();
        terminal.type_text(&format!("\x1b[200~{paste}\x1b[201~\n"));
        terminal.wait_for("type a number from 1 to 4, then Enter");
        assert!(dir.path().join("work/doomed").exists(), "{paste:?}");
    }
    terminal.answer("4");
    terminal.wait_for("reason for the model:\r\n> ");
    terminal.type_text("wrong\x15use the trasx\x7fh\n");
    let (status, output) = terminal.wait_for_exit();
    assert!(
        status == 1 && output.contains("exec was denied: use the trash"),
        "{output}"
    );
}

#[test]
fn a_paste_that_interrupts_approves_nothing() {
    for _ in 0..5 {
        let dir = temp_dir();
        let mut terminal = PtyTerminal::run_with_term(dir.path(), &["run", "-e", DOOM], "xterm");
        terminal.wait_for("\n> ");
        terminal.type_text("\x1b[200~a\x031\n1\n\x1b[201~\n");
        let (_, output) = terminal.wait_for_exit();
        assert!(dir.path().join("work/doomed").exists(), "{output}");
    }
}

#[test]
fn the_question_about_trust_names_what_a_folder_starts_changes_and_follows() {
    let dir = temp_dir();
    let work = dir.path().join("work");
    std::fs::create_dir(work.join(".selvedge")).unwrap();
    std::fs::write(work.join("AGENTS.md"), "Be brief.").unwrap();
    let servers = r#"{"mcpServers": {
        "docs": {"command": "npx", "args": ["-y", "a b\u202e"], "env": {"LD_PRELOAD": "./x.so"}},
        "web": {"url": "https://example.com/mcp", "headers": {"X-Key": "${OPENAI_API_KEY}"}}
    }}"#;
    std::fs::write(work.join(".mcp.json"), servers).unwrap();
    let config = "sandbox_mode = \"danger-full-access\"\n[script_harness.limits]\nmemory_mb = 12\n";
    std::fs::write(work.join(".selvedge/config.toml"), config).unwrap();
    let args = ["run", "-q", "-e", "return context.sandbox.memoryMb"];
    let mut terminal = PtyTerminal::run(dir.path(), &args);
    terminal.wait_for("\n> ");
    let work = work.canonicalize().unwrap();
    for text in [
        &format!("? {work:?} has its own .selvedge/config.toml and .mcp.json."),
        "start    docs: npx -y \"a b\\u{202e}\" (environment LD_PRELOAD=./x.so)  [.mcp.json]",
        "connect  web: https://example.com/mcp (headers X-Key:${OPENAI_API_KEY})  [.mcp.json]",
        "set      sandbox_mode = \"danger-full-access\"  [.selvedge/config.toml]",
        "set      script_harness.limits.memory_mb = 12  [.selvedge/config.toml]",
        "AGENTS.md\", instructions for the model",
        "In all: programs 1, connections 1, settings 2, instructions ",
        "Trust this folder from now on?\r\n  1. Trust this folder\r\n  2. Do not trust it",
    ] {
        assert!(
            terminal.output.contains(text),
            "{text:?} is not in\n{}",
            terminal.output
        );
    }
    for no_answer in ["", "y", "yes", "no", "3"] {
        terminal.answer(no_answer);
    }
    terminal.answer("2");
    let (status, output) = terminal.wait_for_exit();
    assert!(status == 0 && output.contains("\n96"), "{output}");
    assert!(
        output.contains("AGENTS.md is ignored: this folder is not trusted"),
        "{output}"
    );
    // The answer holds until a file changes.
    std::fs::write(work.join(".mcp.json"), "{}").unwrap();
    // Ctrl-D decides nothing, so the question comes again.
    let mut terminal = PtyTerminal::run(dir.path(), &args);
    terminal.wait_for("\n> ");
    terminal.type_text("\x04");
    let (status, output) = terminal.wait_for_exit();
    assert!(status == 0 && output.contains("\n96"), "{output}");
    let mut terminal = PtyTerminal::run(dir.path(), &args);
    terminal.answer("1");
    let (status, output) = terminal.wait_for_exit();
    assert!(status == 0 && output.contains("\n12"), "{output}");
}

#[test]
fn a_paste_does_not_trust_a_folder() {
    let dir = temp_dir();
    let servers = r#"{"mcpServers": {"mark": {"command": "touch", "args": ["marked"]}}}"#;
    std::fs::write(dir.path().join("work/.mcp.json"), servers).unwrap();
    for pasted in ["1", "1\n", "y\n", "a\n1\n1\n", "\x7f\x7f1\n"] {
        let mut terminal = PtyTerminal::run_with_term(dir.path(), &["mcp", "list"], "xterm");
        terminal.wait_for("\n> ");
        terminal.output.clear();
        terminal.type_text(&format!("\x1b[200~{pasted}\x1b[201~\n"));
        terminal.wait_for("\n> ");
        terminal.type_text("\x04");
        let (_, output) = terminal.wait_for_exit();
        assert!(
            !dir.path().join("work/marked").exists(),
            "{pasted:?}: {output}"
        );
        assert!(
            output.contains("this folder is not trusted"),
            "{pasted:?}: {output}"
        );
    }
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
    for answer in ["", "y", "use it"] {
        let mut terminal = PtyTerminal::run(dir.path(), &["models", "test"]);
        terminal.wait_for(&question);
        terminal.wait_for("Use it from now on?");
        terminal.answer(answer);
        terminal.answer("2");
        let (status, output) = terminal.wait_for_exit();
        assert!(
            status == 2 && output.contains("its use is not confirmed"),
            "{output}"
        );
    }
    assert_eq!(prompts(), 0);
    let mut terminal = PtyTerminal::run(dir.path(), &["models", "test"]);
    terminal.answer("1");
    terminal.wait_for_exit();
    assert_eq!(prompts(), 1);
    let rules = std::fs::read_to_string(dir.path().join("home/rules.toml")).unwrap();
    assert!(rules.contains(&format!("base_url = \"{url}\"")), "{rules}");
    let (_, output) = PtyTerminal::run(dir.path(), &["models", "test"]).wait_for_exit();
    assert!(!output.contains("Use it from now on?"), "{output}");
    assert_eq!(prompts(), 2);
}
