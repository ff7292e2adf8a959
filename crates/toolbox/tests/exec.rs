//! Commands: how they run, end, and are made to end.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use selvedge_protocol::{
    ApprovalPolicy, CallStatus, ErrorCode, Event, EventSink, OutputStream, RunStatus, View,
};
use serde_json::{Value, json};
use support::{BOTH, Desk, both_ways};

fn exec(desk: &Desk, script: &str) -> Value {
    let ran = desk.call(
        support::Way::Structured,
        "exec",
        &json!({"command": ["sh", "-c", script]}),
    );
    ran.value.unwrap_or_else(|| panic!("{:?}", ran.error))
}

#[test]
fn a_command_runs_to_its_end_whatever_its_status() {
    both_ways(
        Desk::new,
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
fn where_and_with_what_it_runs() {
    let desk = Desk::new();
    std::fs::create_dir(desk.path("work/sub")).unwrap();
    let args = json!({"argv": ["sh", "-c", "pwd; echo $GREETING; cat; tty"], "workdir": "sub", "env": {"GREETING": "hello"}});
    let ran = desk.call(support::Way::Structured, "shell", &args);
    let value = ran.value.unwrap();
    let sub = desk.path("work/sub").canonicalize().unwrap();
    assert_eq!(
        value["stdout"],
        json!(format!("{}\nhello\nnot a tty\n", sub.display()))
    );
}

#[test]
fn output_comes_in_order_and_is_told_as_it_comes() {
    let mut desk = Desk::new();
    let seen: Arc<Mutex<Vec<(OutputStream, String)>>> = Arc::default();
    let keep = seen.clone();
    desk.events = EventSink::new(move |event| {
        if let Event::CallOutput { stream, text, .. } = event {
            keep.lock().unwrap().push((stream, text));
        }
    });
    // What is written at the same moment may arrive in another order; what is not, may not.
    let value = exec(&desk, "echo 1; sleep 0.2; echo 2 >&2; sleep 0.2; echo 3");
    assert_eq!(value["aggregatedOutput"], json!("1\n2\n3\n"));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(seen[1], (OutputStream::Stderr, "2\n".to_owned()));
}

#[test]
fn too_much_output_keeps_its_ends() {
    let desk = Desk::new();
    let value = exec(
        &desk,
        "echo first; yes filler | head -c 3000000; echo last; yes err | head -c 1000000 >&2",
    );
    let (stdout, stderr) = (
        value["stdout"].as_str().unwrap(),
        value["stderr"].as_str().unwrap(),
    );
    assert!(
        stdout.starts_with("first\n")
            && stdout.ends_with("last\n")
            && stdout.contains("bytes left out")
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
fn a_time_out_ends_everything() {
    // The grandchild leaves its group and its session; while it lives it holds the lock.
    let script = "(setsid flock alive sleep 600 &) ; sleep 600";
    both_ways(
        Desk::new,
        "exec",
        |_| json!({"command": ["sh", "-c", script], "timeoutMs": 300}),
        |desk, ran| {
            let value = ran.value.as_ref().unwrap();
            assert_eq!(
                (&value["timedOut"], &value["exitCode"]),
                (&json!(true), &json!(124))
            );
            assert_unlocked(desk);
        },
    );
}

/// Nobody holds the lock on `work/alive`, although somebody did.
fn assert_unlocked(desk: &Desk) {
    let file = std::fs::File::open(desk.path("work/alive")).expect("the grandchild never started");
    file.try_lock().expect("a process is still there");
}

#[test]
fn an_aborted_command_leaves_no_process_behind() {
    for way in BOTH {
        let desk = Desk::new();
        let cancel = desk.cancel.clone();
        let alive = desk.path("work/alive");
        let watcher = std::thread::spawn(move || {
            let started = Instant::now();
            // Until the grandchild runs.
            while !alive.exists() {
                assert!(
                    started.elapsed() < Duration::from_secs(20),
                    "it never started"
                );
                std::thread::yield_now();
            }
            cancel.cancel();
            Instant::now()
        });
        let args = json!({"command": ["sh", "-c", "(setsid flock alive sleep 600 &) ; sleep 600"]});
        let ran = desk.call(way, "exec", &args);
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
        assert_unlocked(&desk);
    }
}

#[test]
fn background_processes_live_as_long_as_the_script() {
    let desk = Desk::new();
    let output = desk.script(
        "const first = await tools.exec({command: ['sh', '-c', 'flock alive sleep 600 & while [ ! -e alive ]; do :; done; echo left']});
         const held = await tools.exec({command: ['flock', '-n', 'alive', 'true']});
         return [first.stdout, held.exitCode]",
    );
    assert_eq!(
        output.value(),
        Some(json!(["left\n", 1])),
        "{:?}",
        output.error
    );
    assert_unlocked(&desk);
}

#[test]
fn a_script_that_runs_out_of_time_takes_its_commands_along() {
    let mut desk = Desk::new();
    desk.limits.timeout_ms = 600;
    let output = desk
        .script("await tools.exec({command: ['sh', '-c', 'setsid flock alive sleep 600 & wait']})");
    assert_eq!(output.status, RunStatus::Error);
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptTimeoutError);
    assert_unlocked(&desk);
}

#[test]
fn what_cannot_run_says_why() {
    for (args, words) in [
        (
            json!({"command": ["no-such-program-here"]}),
            "there is no program `no-such-program-here`",
        ),
        (
            json!({"command": ["ls -la"]}),
            "there is no program `ls -la`",
        ),
        (json!({"command": []}), "there is no program to run"),
        (
            json!({"command": ["ls"], "cwd": "nowhere"}),
            "cannot start in",
        ),
        (json!({"command": ["ls", "a\u{0}b"]}), "NUL"),
    ] {
        both_ways(
            Desk::new,
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
fn many_commands_at_once_do_not_mix() {
    let mut desk = Desk::new();
    desk.limits.max_concurrent_tool_calls = 16;
    desk.limits.max_tool_calls = 64;
    let output = desk.script(
        "const all = await Promise.all(Array.from({length: 40}, (_, i) => tools.exec({command: ['sh', '-c', `echo ${i}; cat /dev/null; echo ${i} >&2`]})));
         return all.every((r, i) => r.stdout === `${i}\\n` && r.stderr === `${i}\\n` && r.exitCode === 0)",
    );
    assert_eq!(output.value(), Some(json!(true)), "{:?}", output.error);
}

#[test]
fn a_terminal_goes_on_between_calls() {
    let desk = Desk::new();
    let output = desk.script(
        "const opened = await tools.execCommand({cmd: 'echo ready; test -t 0 && echo a terminal; read line; echo got $line; read line; exit 4', yieldTimeMs: 400});
         const typed = await tools.writeStdin({sessionId: opened.sessionId, chars: 'hello\\n', yieldTimeMs: 400});
         const ended = await tools.writeStdin({sessionId: opened.sessionId, chars: '\\n', yieldTimeMs: 5000});
         let gone; try { await tools.writeStdin({sessionId: opened.sessionId, chars: 'x'}) } catch (e) { gone = e.message }
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
            .contains(&format!("there is no terminal {id}")),
        "{value}"
    );
}

#[test]
fn a_terminal_that_ends_in_time_needs_no_session() {
    both_ways(
        Desk::new,
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
fn terminals_are_bounded_and_end_with_the_script() {
    let mut desk = Desk::new();
    desk.limits.max_tool_calls = 64;
    desk.limits.max_concurrent_tool_calls = 32;
    let output = desk.script(
        "const cmd = 'flock alive sleep 600'; let opened = 0, refused;
         for (let i = 0; i < 17; i++) {
           try { await tools.execCommand({cmd: i ? 'sleep 600' : cmd, yieldTimeMs: 50}); opened++ } catch (e) { refused = e.message }
         }
         return [opened, refused]",
    );
    assert_eq!(
        output.value(),
        Some(json!([
            16,
            "16 terminals are open, and no more are allowed"
        ])),
        "{:?}",
        output.error
    );
    assert_unlocked(&desk);
}

#[test]
fn terminals_opened_at_once_are_bounded_and_ended_ones_make_room() {
    let mut desk = Desk::new();
    desk.limits.max_tool_calls = 100;
    desk.limits.max_concurrent_tool_calls = 64;
    let output = desk.script(
        "const all = await Promise.allSettled(Array.from({length: 30}, () => tools.execCommand({cmd: 'sleep 600', yieldTimeMs: 50})));
         return all.filter(r => r.status === 'fulfilled').length",
    );
    assert_eq!(output.value(), Some(json!(16)), "{:?}", output.error);
    // Sixteen that ended by themselves, unread, do not stand in the way of another.
    let output = desk.script(
        "for (let i = 0; i < 16; i++) await tools.execCommand({cmd: `while [ ! -e go ]; do sleep 0.05; done; echo > ended${i}`, yieldTimeMs: 1});
         await tools.writeFile({path: 'go', content: ''});
         const ended = async () => (await tools.fileSearch({pattern: 'ended*'})).length;
         while (await ended() < 16) await new Promise(r => setTimeout(r, 100));
         let late; while (late === undefined) { try { late = await tools.execCommand({cmd: 'echo late'}) } catch (e) { if (!e.message.includes('16 terminals')) throw e } }
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
    let made = |desk: &Desk, name: &str| desk.read(name) == "x\n";
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
            Desk::new,
            tool,
            |_| args.clone(),
            |desk, ran| {
                let value = ran
                    .value
                    .as_ref()
                    .unwrap_or_else(|| panic!("{args}: {ran:?}"));
                assert_eq!(value["exitCode"], json!(0), "{args}: {value}");
                assert!(made(desk, name) && ran.ledger.len() == 1, "{args}: {ran:?}");
            },
        );
        // The same question as for the tool itself.
        let asked = || {
            let mut desk = Desk::new();
            desk.policy = ApprovalPolicy::Untrusted;
            desk
        };
        both_ways(
            asked,
            tool,
            |_| args.clone(),
            |desk, ran| {
                let call = &ran.asked[0].calls[0];
                assert_eq!(
                    call.reason,
                    format!("changes {}", name.trim_start_matches("work/")),
                    "{args}"
                );
                assert!(
                    matches!(&call.preview.view, Some(View::Diff(diff)) if diff.contains("+x")),
                    "{call:?}"
                );
                assert!(!made(desk, name));
            },
        );
    }
    // What cannot be applied, or is more than a patch, changes nothing and says why, as a program would.
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
            Desk::new,
            "exec",
            |_| json!({"command": command}),
            |desk, ran| {
                let value = ran.value.as_ref().unwrap();
                assert_eq!(
                    (&value["exitCode"], &value["sandboxDenied"]),
                    (&json!(1), &json!(false))
                );
                assert!(value["stderr"].as_str().unwrap().contains(why), "{value}");
                assert!(!desk.path("work/made").exists() && !desk.path("work/more").exists());
            },
        );
    }
}

#[test]
fn a_command_of_no_words_says_what_is_missing() {
    for command in [json!([]), json!([""])] {
        both_ways(
            Desk::new,
            "exec",
            |_| json!({"command": command}),
            |_, ran| {
                assert_eq!(ran.error.as_ref().unwrap().1, "there is no program to run");
            },
        );
    }
}

#[test]
fn what_the_wall_stopped_is_guessed_from_what_was_said() {
    let desk = Desk::new();
    for (said, denied) in [
        (
            "curl: (7) Failed to connect to example.org port 443 after 0 ms: Couldn't connect to server",
            true,
        ),
        ("curl: (6) Could not resolve host: example.org", true),
        ("touch: cannot touch '/etc/x': Read-only file system", true),
        ("assertion failed: left == right", false),
    ] {
        let value = exec(&desk, &format!("echo {:?} >&2; exit 7", said));
        assert_eq!(value["sandboxDenied"], json!(denied), "{said}");
    }
}
