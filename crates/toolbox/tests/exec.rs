//! Running commands and terminals: output, exit codes, timeouts, cancellation and cleanup.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use selvedge_protocol::{
    ApprovalPolicy, CallDecision, CallStatus, ErrorCode, EventSink, OutputStream, PreviewContent,
    RunStatus, RuntimeEvent,
};
use serde_json::{Value, json};
use support::{BOTH, TestToolbox, both_ways};

fn exec(fixture: &TestToolbox, script: &str) -> Value {
    let ran = fixture.call(
        support::Way::Structured,
        "exec",
        &json!({"command": ["sh", "-c", script]}),
    );
    ran.value.unwrap_or_else(|| panic!("{:?}", ran.error))
}

#[test]
fn a_nonzero_exit_code_is_returned_and_does_not_throw() {
    both_ways(
        TestToolbox::new,
        "exec",
        |_| json!({"command": ["sh", "-c", "echo out; echo err >&2; exit 3"]}),
        |_, ran| {
            let value = ran.value.as_ref().unwrap();
            assert_eq!(
                (&value["exitCode"], &value["stdout"], &value["stderr"]),
                (&json!(3), &json!("out\n"), &json!("err\n"))
            );
            assert_eq!(
                (
                    &value["timedOut"],
                    &value["truncated"],
                    &value["sandboxDenied"]
                ),
                (&json!(false), &json!(false), &json!(false))
            );
            assert!(value["durationMs"].is_u64());
            assert_eq!(ran.ledger.len(), 1);
            assert_eq!(ran.ledger[0].status, CallStatus::Done);
        },
    );
}

#[test]
fn the_working_folder_and_the_environment_of_a_command_can_be_set() {
    let fixture = TestToolbox::new();
    std::fs::create_dir(fixture.path("work/sub")).unwrap();
    let args = json!({
        "argv": ["sh", "-c", "pwd; echo $GREETING; cat; tty"],
        "workdir": "sub",
        "env": {"GREETING": "hello"},
    });
    let ran = fixture.call(support::Way::Structured, "shell", &args);
    let value = ran.value.unwrap();
    let sub = fixture.path("work/sub").canonicalize().unwrap();
    assert_eq!(
        value["stdout"],
        json!(format!("{}\nhello\nnot a tty\n", sub.display()))
    );
}

#[test]
fn output_is_aggregated_in_order_and_emitted_as_it_arrives() {
    let mut fixture = TestToolbox::new();
    let seen: Arc<Mutex<Vec<(OutputStream, String)>>> = Arc::default();
    let record = seen.clone();
    fixture.events = EventSink::new(move |event| {
        if let RuntimeEvent::CallOutput { stream, text, .. } = event {
            record.lock().unwrap().push((stream, text));
        }
    });
    // The pauses fix the order: output written at the same moment may arrive in any order.
    let value = exec(&fixture, "echo 1; sleep 0.2; echo 2 >&2; sleep 0.2; echo 3");
    assert_eq!(value["aggregatedOutput"], json!("1\n2\n3\n"));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(seen[1], (OutputStream::Stderr, "2\n".to_owned()));
}

#[test]
fn long_output_keeps_its_beginning_and_end() {
    let fixture = TestToolbox::new();
    let value = exec(
        &fixture,
        "echo first; yes filler | head -c 3000000; echo last; yes err | head -c 1000000 >&2",
    );
    let (stdout, stderr) = (
        value["stdout"].as_str().unwrap(),
        value["stderr"].as_str().unwrap(),
    );
    assert!(
        stdout.starts_with("first\n")
            && stdout.ends_with("last\n")
            && stdout.contains("bytes omitted")
    );
    assert!(
        stdout.len() < 257 * 1024 && stderr.len() < 257 * 1024,
        "{} {}",
        stdout.len(),
        stderr.len()
    );
    assert_eq!(value["truncated"], json!(true));
}

#[test]
fn a_timeout_kills_every_process_of_the_command() {
    // The grandchild leaves its process group and session. It holds the lock while it lives.
    let script = "(setsid flock alive sleep 600 &) ; sleep 600";
    both_ways(
        TestToolbox::new,
        "exec",
        |_| json!({"command": ["sh", "-c", script], "timeoutMs": 300}),
        |fixture, ran| {
            let value = ran.value.as_ref().unwrap();
            assert_eq!(
                (&value["timedOut"], &value["exitCode"]),
                (&json!(true), &json!(124))
            );
            assert_unlocked(fixture);
        },
    );
}

/// Checks that the grandchild has started and that no process holds the lock on `work/alive`.
fn assert_unlocked(fixture: &TestToolbox) {
    let file =
        std::fs::File::open(fixture.path("work/alive")).expect("the grandchild never started");
    file.try_lock().expect("a process still runs");
}

#[test]
fn cancelling_a_command_kills_all_its_processes() {
    for way in BOTH {
        let fixture = TestToolbox::new();
        let cancel = fixture.cancel.clone();
        let alive = fixture.path("work/alive");
        let watcher = std::thread::spawn(move || {
            let started = Instant::now();
            // Wait until the grandchild runs.
            while !alive.exists() {
                assert!(
                    started.elapsed() < Duration::from_secs(20),
                    "the grandchild never started"
                );
                std::thread::yield_now();
            }
            cancel.cancel();
            Instant::now()
        });
        let args = json!({"command": ["sh", "-c", "(setsid flock alive sleep 600 &) ; sleep 600"]});
        let ran = fixture.call(way, "exec", &args);
        let cancelled = watcher.join().unwrap();
        assert!(
            cancelled.elapsed() < Duration::from_secs(3),
            "{way:?} took {:?}",
            cancelled.elapsed()
        );
        assert_eq!(ran.ledger[0].status, CallStatus::Aborted, "{way:?}");
        assert_eq!(
            ran.ledger[0].error.as_ref().unwrap().code,
            ErrorCode::ToolAbortedError
        );
        assert_unlocked(&fixture);
    }
}

#[test]
fn background_processes_run_until_the_script_ends() {
    let fixture = TestToolbox::new();
    let output = fixture.script(
        "const script = 'flock alive sleep 600 & while [ ! -e alive ]; do :; done; echo left';
         const first = await tools.exec({command: ['sh', '-c', script]});
         const held = await tools.exec({command: ['flock', '-n', 'alive', 'true']});
         return [first.stdout, held.exitCode]",
    );
    assert_eq!(
        output.value(),
        Some(json!(["left\n", 1])),
        "{:?}",
        output.error
    );
    assert_unlocked(&fixture);
}

#[test]
fn the_time_limit_of_a_run_kills_its_commands() {
    let mut fixture = TestToolbox::new();
    fixture.limits.max_timeout_ms = 600;
    let output = fixture
        .script("await tools.exec({command: ['sh', '-c', 'setsid flock alive sleep 600 & wait']})");
    assert_eq!(output.status, RunStatus::Error);
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptTimeoutError);
    assert_unlocked(&fixture);
}

#[test]
fn errors_say_why_a_command_cannot_start() {
    for (args, words) in [
        (
            json!({"command": ["no-such-program-here"]}),
            "program not found: `no-such-program-here`",
        ),
        (
            json!({"command": ["ls -la"]}),
            "program not found: `ls -la`",
        ),
        (json!({"command": []}), "the command is empty"),
        (
            json!({"command": ["ls"], "cwd": "nowhere"}),
            "cannot start in",
        ),
        (json!({"command": ["ls", "a\u{0}b"]}), "NUL"),
    ] {
        both_ways(
            TestToolbox::new,
            "exec",
            |_| args.clone(),
            |_, ran| {
                let (code, message) = ran.error.as_ref().unwrap();
                assert!(message.contains(words), "{message}");
                assert_eq!(*code, ErrorCode::ToolExecutionError);
            },
        );
    }
}

#[test]
fn a_string_is_a_command_line_for_a_shell() {
    for call in [
        "exec('echo a b | wc -w > out; cat out')",
        "exec({command: 'echo a b | wc -w > out; cat out'})",
        "exec({cmd: 'echo a b | wc -w > out; cat out'})",
        "exec({cmd: ['bash', '-c', 'echo a b | wc -w > out; cat out']})",
        "exec(['bash', '-c', 'echo a b | wc -w > out; cat out'])",
        "exec('cat', {cwd: '.'}) && await tools.exec('echo $N', {env: {N: '2'}})",
        "shell({command: 'expr 1 + 1'})",
    ] {
        let output =
            TestToolbox::new().script(&format!("return (await tools.{call}).stdout.trim()"));
        assert_eq!(
            output.value(),
            Some(json!("2")),
            "{call}: {:?}",
            output.error
        );
    }
    for call in [
        r#"execCommand("printf '%s,' 'a b' c")"#,
        r#"execCommand({command: "printf '%s,' 'a b' c"})"#,
        "execCommand({cmd: ['printf', '%s,', 'a b', 'c']})",
        "execCommand(['printf', '%s,', 'a b', 'c'])",
    ] {
        let output = TestToolbox::new().script(&format!("return (await tools.{call}).output"));
        assert_eq!(
            output.value(),
            Some(json!("a b,c,")),
            "{call}: {:?}",
            output.error
        );
    }
    let output = TestToolbox::new().script("await tools.exec({command: ['ls -l']})");
    let hint = r#"write the command as one string: "ls -l""#;
    assert_eq!(output.error.unwrap().suggestions, [hint]);
}

#[test]
fn concurrent_commands_keep_their_output_apart() {
    let mut fixture = TestToolbox::new();
    fixture.limits.max_concurrent_tool_calls = 16;
    fixture.limits.max_tool_calls = 64;
    let output = fixture.script(
        "const script = i => `echo ${i}; cat /dev/null; echo ${i} >&2`;
         const run = (_, i) => tools.exec({command: ['sh', '-c', script(i)]});
         const all = await Promise.all(Array.from({length: 40}, run));
         const matches = (r, i) => r.stdout === `${i}\\n` && r.stderr === `${i}\\n`;
         return all.every((r, i) => matches(r, i) && r.exitCode === 0)",
    );
    assert_eq!(output.value(), Some(json!(true)), "{:?}", output.error);
}

#[test]
fn a_terminal_keeps_running_between_calls() {
    let fixture = TestToolbox::new();
    let output = fixture.script(
        "const first = 'echo ready; test -t 0 && echo a terminal; read line; echo got $line';
         const cmd = `${first}; read line; exit 4`;
         const opened = await tools.execCommand({cmd, yieldTimeMs: 400});
         const {sessionId} = opened;
         const typed = await tools.writeStdin({sessionId, chars: 'hello\\n', yieldTimeMs: 400});
         const ended = await tools.writeStdin({sessionId, chars: '\\n', yieldTimeMs: 5000});
         let gone;
         try { await tools.writeStdin({sessionId, chars: 'x'}) } catch (e) { gone = e.message }
         return {opened, typed, ended, gone}",
    );
    let value = output
        .value()
        .unwrap_or_else(|| panic!("{:?}", output.error));
    let id = &value["opened"]["sessionId"];
    assert_eq!(
        value["opened"],
        json!({"output": "ready\r\na terminal\r\n", "sessionId": id})
    );
    assert_eq!(
        value["typed"],
        json!({"output": "hello\r\ngot hello\r\n", "sessionId": id})
    );
    assert_eq!(value["ended"]["exitCode"], json!(4), "{value}");
    assert!(
        value["gone"]
            .as_str()
            .unwrap()
            .contains(&format!("terminal {id} is not open")),
        "{value}"
    );
}

#[test]
fn a_terminal_command_that_exits_in_time_returns_no_session_id() {
    both_ways(
        TestToolbox::new,
        "execCommand",
        |_| json!({"cmd": "stty size; exit 2"}),
        |_, ran| {
            assert_eq!(
                ran.value,
                Some(json!({"output": "40 120\r\n", "exitCode": 2}))
            );
        },
    );
}

#[test]
fn terminals_are_limited_and_closed_when_the_script_ends() {
    let mut fixture = TestToolbox::new();
    fixture.limits.max_tool_calls = 64;
    fixture.limits.max_concurrent_tool_calls = 32;
    let output = fixture.script(
        "const cmd = 'flock alive sleep 600'; let opened = 0, refused;
         for (let i = 0; i < 17; i++) {
           const args = {cmd: i ? 'sleep 600' : cmd, yieldTimeMs: 50};
           try { await tools.execCommand(args); opened++ } catch (e) { refused = e.message }
         }
         return [opened, refused]",
    );
    assert_eq!(
        output.value(),
        Some(json!([16, "cannot open more than 16 terminals"])),
        "{:?}",
        output.error
    );
    assert_unlocked(&fixture);
}

#[test]
fn terminals_opened_concurrently_are_limited_and_exited_ones_are_replaced() {
    let mut fixture = TestToolbox::new();
    fixture.limits.max_tool_calls = 100;
    fixture.limits.max_concurrent_tool_calls = 64;
    let output = fixture.script(
        "const open = () => tools.execCommand({cmd: 'sleep 600', yieldTimeMs: 50});
         const all = await Promise.allSettled(Array.from({length: 30}, open));
         return all.filter(r => r.status === 'fulfilled').length",
    );
    assert_eq!(output.value(), Some(json!(16)), "{:?}", output.error);
    // Sixteen terminals whose commands have exited, with unread output, do not block a new one.
    let output = fixture.script(
        "const wait = 'while [ ! -e go ]; do sleep 0.05; done';
         for (let i = 0; i < 16; i++)
           await tools.execCommand({cmd: `${wait}; echo > ended${i}`, yieldTimeMs: 1});
         await tools.writeFile({path: 'go', content: ''});
         const ended = async () => (await tools.fileSearch({pattern: 'ended*'})).length;
         while (await ended() < 16) await new Promise(r => setTimeout(r, 100));
         let late;
         while (late === undefined) {
           try { late = await tools.execCommand({cmd: 'echo late'}) }
           catch (e) { if (!e.message.includes('16 terminals')) throw e }
         }
         return late.output",
    );
    assert_eq!(
        output.value(),
        Some(json!("late\r\n")),
        "{:?}",
        output.error
    );
}

#[test]
fn a_patch_in_a_command_is_applied_as_a_patch() {
    let patch = |body: &str| format!("*** Begin Patch\n{body}\n*** End Patch\n");
    let add = patch("*** Add File: made\n+x");
    let heredoc = |patch: &str| format!("apply_patch <<'EOF'\n{patch}EOF\n");
    let made = |fixture: &TestToolbox, name: &str| fixture.read(name) == "x\n";
    for (tool, args, name) in [
        (
            "exec",
            json!({"command": ["apply_patch", add]}),
            "work/made",
        ),
        (
            "exec",
            json!({"command": ["bash", "-lc", heredoc(&add)]}),
            "work/made",
        ),
        (
            "exec",
            json!({"command": ["/bin/sh", "-c", format!("cd sub && {}", heredoc(&add))]}),
            "work/sub/made",
        ),
        (
            "exec",
            json!({"command": ["applypatch", add], "cwd": "sub"}),
            "work/sub/made",
        ),
        ("exec_command", json!({"cmd": heredoc(&add)}), "work/made"),
    ] {
        both_ways(
            TestToolbox::new,
            tool,
            |_| args.clone(),
            |fixture, ran| {
                let value = ran
                    .value
                    .as_ref()
                    .unwrap_or_else(|| panic!("{args}: {ran:?}"));
                assert_eq!(value["exitCode"], json!(0), "{args}: {value}");
                assert!(
                    made(fixture, name) && ran.ledger.len() == 1,
                    "{args}: {ran:?}"
                );
            },
        );
        // The approval request is the same as for the tool itself.
        let asking = || {
            let mut fixture = TestToolbox::new();
            fixture.policy = ApprovalPolicy::Untrusted;
            fixture
        };
        both_ways(
            asking,
            tool,
            |_| args.clone(),
            |fixture, ran| {
                let call = &ran.asked[0].calls[0];
                assert_eq!(
                    call.reason,
                    format!("changes {}", name.trim_start_matches("work/")),
                    "{args}"
                );
                assert!(
                    matches!(&call.preview.view, Some(PreviewContent::Diff(diff)) if diff.contains("+x")),
                    "{call:?}"
                );
                assert!(!made(fixture, name));
            },
        );
    }
    // A patch that cannot be applied, or a script with more than a patch, changes nothing and
    // prints the reason as a program would.
    for (command, why) in [
        (
            json!(["apply_patch", patch("*** Delete File: missing")]),
            "missing does not exist",
        ),
        (
            json!(["apply_patch", patch("*** Add File: .git/hooks/a\n+x")]),
            ".git is protected",
        ),
        (
            json!(["bash", "-c", heredoc(&add) + "touch more"]),
            "a command must end after its patch",
        ),
    ] {
        both_ways(
            TestToolbox::new,
            "exec",
            |_| json!({"command": command}),
            |fixture, ran| {
                let value = ran.value.as_ref().unwrap();
                assert_eq!(
                    (&value["exitCode"], &value["sandboxDenied"]),
                    (&json!(1), &json!(false))
                );
                assert!(value["stderr"].as_str().unwrap().contains(why), "{value}");
                assert!(!fixture.path("work/made").exists() && !fixture.path("work/more").exists());
            },
        );
    }
    // Both tools print the hints of an error.
    let replace = patch("*** Update File: a.txt\n@@\n-no such line\n+x");
    let with_file = || {
        let fixture = TestToolbox::new();
        fixture.write("work/a.txt", "one\n");
        fixture
    };
    for (tool, args, field) in [
        (
            "exec",
            json!({"command": ["apply_patch", replace]}),
            "stderr",
        ),
        ("exec_command", json!({"cmd": heredoc(&replace)}), "output"),
    ] {
        both_ways(
            with_file,
            tool,
            |_| args.clone(),
            |_, ran| {
                let value = ran.value.as_ref().unwrap();
                assert!(
                    value[field].as_str().unwrap().contains("\nhint: "),
                    "{value}"
                );
            },
        );
    }
}

#[test]
fn an_empty_command_is_an_error() {
    for command in [json!([]), json!([""])] {
        both_ways(
            TestToolbox::new,
            "exec",
            |_| json!({"command": command}),
            |_, ran| {
                assert_eq!(ran.error.as_ref().unwrap().1, "the command is empty");
            },
        );
    }
}

#[test]
fn the_sandbox_says_what_it_denied() {
    let mut fixture = TestToolbox::new();
    fixture.person = support::Person::who_says(CallDecision::Once);
    let outside = fixture.path("outside/new").display().to_string();
    let touch = format!("touch {outside}");
    let refused = format!("the sandbox does not allow access to {outside}");
    let secret = fixture.path("private/journal").display().to_string();
    let read_secret = format!("head {secret}");
    let hidden = format!("{secret} is hidden from commands, because it may hold secrets");
    for (script, reason) in [
        (
            "bash -c 'echo > /dev/tcp/192.0.2.1/80'",
            json!("it tried to reach another host, without network access"),
        ),
        // Only the output speaks of the network.
        (
            "echo 'curl: (6) Could not resolve host: x' >&2; exit 6",
            json!(null),
        ),
        // A closed port of the own network namespace.
        ("bash -c 'echo > /dev/tcp/127.0.0.1/9'", json!(null)),
        (&touch, json!(refused)),
        (&read_secret, json!(hidden)),
        (
            "touch .git/hooks/x",
            json!("the sandbox does not allow access to .git/hooks/x"),
        ),
        ("echo 'assertion failed' >&2; exit 1", json!(null)),
        (
            "echo 'ptrace: Operation not permitted' >&2; exit 1",
            json!("a guess, because its output says \"operation not permitted\""),
        ),
        ("bash -c 'echo > /dev/tcp/192.0.2.1/80'; true", json!(null)),
    ] {
        let value = exec(&fixture, script);
        assert_eq!(value["sandboxReason"], reason, "{script}: {value}");
        assert_eq!(value["sandboxDenied"], json!(!reason.is_null()), "{script}");
    }
}
