//! Suspended runs: answers in other processes, concurrent answers, replay and recall.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

mod support;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

struct SuspensionWorkspace {
    dir: TempDir,
}

/// A script with two calls that need approval, each of which writes a line.
const TWICE: &str = "const seen = new Map([['start', context.args]]);
const one = await tools.exec({command: ['sh', '-c', 'echo one >> effects; echo 1']});
seen.set('one', Number(one.stdout));
const [two, there] = await Promise.all([tools.exec({command: ['sh', '-c', 'echo two >> effects; echo 2']}), tools.listDir({path: '.'})]);
return [Object.fromEntries(seen), Number(two.stdout), there.entries.some(entry => entry.path === 'effects')]";

impl SuspensionWorkspace {
    fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::create_dir_all(dir.path().join("work")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .env("SELVEDGE_HOME", self.path("home"))
            .envs(support::store_variable(&self.path("home")))
            .current_dir(self.path("work"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(args).output().unwrap();
        (
            status.code().unwrap(),
            String::from_utf8(stdout).unwrap(),
            String::from_utf8(stderr).unwrap(),
        )
    }

    fn json(&self, args: &[&str]) -> Value {
        let (_, out, err) = self.run(args);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
    }

    /// Starts a run that is suspended at its first approval, and returns its id.
    fn suspended(&self, source: &str) -> String {
        let (status, out, err) = self.run(&[
            "run",
            "--suspend",
            "--approval",
            "untrusted",
            "--json",
            "-e",
            source,
            "--",
            "word",
        ]);
        assert_eq!(status, 3, "{out}{err}");
        let output: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(output["status"], json!("suspended"), "{output:#}");
        output["id"].as_str().unwrap().to_owned()
    }

    fn effects(&self) -> String {
        std::fs::read_to_string(self.path("work/effects")).unwrap_or_default()
    }
}

fn final_value() -> Value {
    json!([{"start": ["word"], "one": 1}, 2, true])
}

#[test]
fn a_script_is_finished_by_answers_in_other_processes() {
    let workspace = SuspensionWorkspace::new();
    let id = workspace.suspended(TWICE);
    assert_eq!(workspace.effects(), "");
    let shown = workspace.json(&["runs", "show", &id, "--json"]);
    assert_eq!(shown["run"]["state"], json!("suspended"));
    assert_eq!(
        shown["questions"][0]["calls"][0]["tool"],
        json!("exec"),
        "{shown:#}"
    );
    let output = workspace.json(&["runs", "answer", &id, "--approve", "--json"]);
    assert_eq!(
        (&output["status"], workspace.effects()),
        (&json!("suspended"), "one\n".to_owned()),
        "{output:#}"
    );
    let output = workspace.json(&["runs", "answer", &id, "--approve", "--json"]);
    let value: Value = serde_json::from_str(output["output_json"].as_str().unwrap()).unwrap();
    assert_eq!(
        (value, workspace.effects()),
        (final_value(), "one\ntwo\n".to_owned())
    );
    assert_eq!(
        workspace.json(&["runs", "list", "--json"])[0]["state"],
        json!("completed")
    );
    let (status, _, err) = workspace.run(&["runs", "answer", &id, "--approve"]);
    assert!(
        status == 2 && err.contains("is not suspended: it has completed") && err.contains("hint:"),
        "{err}"
    );
}

#[test]
fn approval_requests_of_several_calls_are_answered_together() {
    let workspace = SuspensionWorkspace::new();
    // One call needs approval at once, the other after another call.
    let source =
        "const say = word => tools.exec({command: ['sh', '-c', `echo ${word} >> effects`]});
        const later = tools.listDir({path: '.'}).then(() => say('b'));
        await Promise.all([say('a'), later]); return 'both'";
    let id = workspace.suspended(source);
    let shown = workspace.json(&["runs", "show", &id, "--json"]);
    assert_eq!(shown["questions"].as_array().unwrap().len(), 2, "{shown:#}");
    let (status, out, err) = workspace.run(&["runs", "answer", &id, "--approve"]);
    assert_eq!((status, out.as_str()), (0, "both\n"), "{err}");
    let mut effects: Vec<String> = workspace.effects().lines().map(str::to_owned).collect();
    effects.sort();
    assert_eq!(effects, ["a", "b"]);
}

#[test]
fn a_suspended_run_cannot_be_resumed_by_another_script() {
    let workspace = SuspensionWorkspace::new();
    let id = workspace.suspended(TWICE);
    let (status, _, err) = workspace.run(&["run", "--resume", &id, "-e", TWICE]);
    assert!(
        status == 2
            && err.contains("is suspended")
            && err.contains("hint: run `selvedge runs answer"),
        "{err}"
    );
    assert_eq!(workspace.effects(), "");
}

#[test]
fn the_error_about_a_chain_names_both_runs() {
    let workspace = SuspensionWorkspace::new();
    let first = workspace.json(&["run", "--json", "-e", "throw 1"]);
    let first = first["id"].as_str().unwrap();
    let resumed = format!("// @exec: {{\"resume\": \"{first}\"}}\n{TWICE}");
    let newest = workspace.suspended(&resumed);
    let (status, _, err) = workspace.run(&["run", "--resume", first, "-e", TWICE]);
    let expected = format!("error: {newest}, the newest run that resumed {first}, is suspended\n");
    assert!(status == 2 && err.contains(&expected), "{err}");
    assert!(
        err.contains(&format!(
            "hint: run `selvedge runs answer {newest} --approve`"
        )),
        "{err}"
    );
}

#[test]
fn the_approval_policy_of_the_first_process_applies_to_later_ones() {
    let workspace = SuspensionWorkspace::new();
    // The second call needs approval only under `untrusted`.
    let id =
        workspace.suspended("await tools.exec({command: ['rm', '-rf', 'x']}); await tools.exec({command: ['touch', 'y']})");
    let output = workspace.json(&["runs", "answer", &id, "--approve", "--json"]);
    assert_eq!(output["status"], json!("suspended"), "{output:#}");
    assert!(!workspace.path("work/y").exists());
    let (status, _, err) =
        workspace.run(&["runs", "answer", &id, "--deny", "--because", "not that"]);
    assert!(
        status == 1 && err.contains("exec was denied: not that") && !err.contains("another way"),
        "{err}"
    );
    assert!(!workspace.path("work/y").exists());
}

#[test]
fn only_one_of_several_concurrent_answers_continues_the_run() {
    for _ in 0..10 {
        let workspace = SuspensionWorkspace::new();
        let id = workspace.suspended(
            "await tools.exec({command: ['sh', '-c', 'echo one >> effects']}); return 'all'",
        );
        let racing: Vec<_> = (0..4)
            .map(|_| {
                workspace
                    .command(&["runs", "answer", &id, "--approve"])
                    .spawn()
                    .unwrap()
            })
            .collect();
        let ended: Vec<Output> = racing
            .into_iter()
            .map(|child| child.wait_with_output().unwrap())
            .collect();
        let done = ended
            .iter()
            .filter(|output| output.status.code() == Some(0))
            .count();
        let words: Vec<_> = ended
            .iter()
            .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
            .collect();
        assert_eq!(
            (done, workspace.effects()),
            (1, "one\n".to_owned()),
            "{words:#?}"
        );
    }
}

#[test]
fn sigterm_suspends_the_script() {
    let workspace = SuspensionWorkspace::new();
    let source = "const first = await tools.exec({command: ['sh', '-c', 'echo begun >> effects; until [ -e go ]; do sleep 0.01; done; echo 1']});
        await tools.exec({command: ['sh', '-c', 'echo second >> effects']}); return Number(first.stdout)";
    let mut child = workspace
        .command(&["run", "--suspend", "--json", "-e", source])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while workspace.effects().is_empty() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status()
        .unwrap();
    // The command ends only after the process has handled the signal.
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(stderr.any(|line| line.unwrap().contains("note: stopping")));
    std::fs::write(workspace.path("work/go"), "").unwrap();
    let output: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(
        (&output["status"], workspace.effects()),
        (&json!("suspended"), "begun\n".to_owned()),
        "{output:#}"
    );
    let output = workspace.json(&[
        "runs",
        "resume",
        output["id"].as_str().unwrap(),
        "--approve",
        "--json",
    ]);
    assert_eq!(
        (&output["output_json"], workspace.effects()),
        (&json!("1"), "begun\nsecond\n".to_owned()),
        "{output:#}"
    );
}

#[test]
fn a_restored_run_knows_what_it_has_read_and_warned_about() {
    let workspace = SuspensionWorkspace::new();
    let lines = "a line\n".repeat(4306);
    std::fs::write(workspace.path("work/long.txt"), &lines).unwrap();
    let id = workspace.suspended(
        "const { text } = await tools.readFile({ path: 'long.txt', limit: 2000 });
         await tools.grepFiles({ pattern: 'line', limit: 7 });
         await tools.writeFile({ path: 'long.txt', content: text })",
    );
    let output = workspace.json(&["runs", "answer", &id, "--approve", "--json"]);
    let message = output["error"]["message"].as_str().unwrap();
    let expected = "long.txt was not written: tool_1 read only 2,000 of its 4,306 lines";
    assert!(message.contains(expected), "{output:#}");
    let warning = json!("grepFiles: returned 7 of 4,306 matches; set a higher limit for more");
    assert!(output["warnings"].as_array().unwrap().contains(&warning));
    let left = std::fs::read_to_string(workspace.path("work/long.txt")).unwrap();
    assert_eq!(left, lines);
}

#[test]
fn a_recorded_run_can_be_replayed_and_exported() {
    let workspace = SuspensionWorkspace::new();
    std::fs::write(workspace.path("work/data"), "first\nsecond\n").unwrap();
    let key = "sk-proj-abcdefghijklmnop1234567890";
    let source = format!(
        "const key = '{key}'; const files = await tools.listDir({{path: '.'}});
        const data = await tools.readFile({{path: 'data'}});
        await tools.exec({{command: ['sh', '-c', 'echo ran >> effects']}});
        console.log(key.slice(0, 3), Date.now()); return [data.totalLines, Math.random(), files.entries.length]"
    );
    let output = workspace.json(&["run", "--json", "-e", &source]);
    let id = output["id"].as_str().unwrap();
    std::fs::remove_file(workspace.path("work/data")).unwrap();
    let again = workspace.json(&["runs", "replay", id, "--json"]);
    for part in ["status", "output_json", "logs", "calls", "error"] {
        assert_eq!(again[part], output[part], "{part}");
    }
    let (_, _, steps) = workspace.run(&["runs", "replay", id, "--step"]);
    assert!(
        steps.contains("tool_2  readFile({\"path\":\"data\"})") && steps.contains("first"),
        "{steps}"
    );
    let (status, _, err) = workspace.run(&["runs", "replay", id, "--fail", "tool_2"]);
    assert!(
        status == 1 && err.contains("forced to fail by --fail tool_2"),
        "{err}"
    );
    let (status, _, err) = workspace.run(&["runs", "replay", id, "--fail", "tool_9"]);
    assert!(
        status == 2 && err.contains("hint: use one of tool_1, tool_2, tool_3"),
        "{err}"
    );
    assert_eq!(workspace.effects(), "ran\n", "the replay runs no call");
    // In another workspace, with only the exported file.
    workspace.run(&["runs", "export", id, "cassette.json"]);
    let text = std::fs::read_to_string(workspace.path("work/cassette.json")).unwrap();
    assert!(!text.contains(key) && text.contains("[redacted]"));
    let elsewhere = SuspensionWorkspace::new();
    std::fs::copy(
        workspace.path("work/cassette.json"),
        elsewhere.path("work/cassette.json"),
    )
    .unwrap();
    let (status, out, err) = elsewhere.run(&["runs", "replay", "cassette.json", "--json"]);
    assert_eq!(
        status, 1,
        "the log contains a part of the redacted secret: {out}{err}"
    );
    assert!(out.contains("ReplayDivergenceError"), "{out}");
    let (_, out, _) = workspace.run(&[
        "run",
        "--json",
        "-e",
        "return (await tools.listDir({path: '.'})).entries.length",
    ]);
    let plain: Value = serde_json::from_str(&out).unwrap();
    let (_, cassette, _) = workspace.run(&["runs", "export", plain["id"].as_str().unwrap()]);
    std::fs::write(elsewhere.path("work/plain.json"), cassette).unwrap();
    let (status, out, err) = elsewhere.run(&["runs", "replay", "plain.json"]);
    assert_eq!(
        (status, out.trim(), err.trim()),
        (
            0,
            plain["output_json"].as_str().unwrap(),
            "note: the replay matches the recording"
        )
    );
    std::fs::write(elsewhere.path("work/other.json"), "{}").unwrap();
    let (status, _, err) = elsewhere.run(&["runs", "replay", "other.json"]);
    assert!(
        status == 2 && err.contains("is not a recorded run") && err.contains("hint:"),
        "{err}"
    );
}

#[test]
fn a_restored_run_uses_the_configuration_of_its_start() {
    let workspace = SuspensionWorkspace::new();
    let config = workspace.path("home/config.toml");
    std::fs::create_dir_all(workspace.path("home")).unwrap();
    std::fs::write(
        &config,
        "[script_harness.limits]\nmax_tool_calls = 2\n[script_harness.expose]\ntools = ['exec']\n",
    )
    .unwrap();
    let id = workspace.suspended(
        "await tools.exec({command: ['rm', '-rf', 'x']}); const more = JSON.parse('[\"writeFile\"]');
        return [more[0] in tools, context.sandbox.remainingToolBudget]",
    );
    std::fs::write(&config, "[script_harness.limits]\nmax_tool_calls = 200\n").unwrap();
    let output = workspace.json(&["runs", "answer", &id, "--approve", "--json"]);
    assert_eq!(output["output_json"], json!("[false,1]"), "{output:#}");
}

#[test]
fn calls_to_approve_are_shown_without_redaction() {
    let workspace = SuspensionWorkspace::new();
    let id =
        workspace.suspended("await tools.exec({command: ['sh', '-c', 'export API_TOKEN=x$(echo${IFS}hidden>>effects)']})");
    let (_, shown, _) = workspace.run(&["runs", "show", &id]);
    assert!(
        shown.contains("API_TOKEN=x$(echo${IFS}hidden>>effects)"),
        "{shown}"
    );
}

#[test]
fn a_call_that_lost_a_race_does_not_run_later() {
    let workspace = SuspensionWorkspace::new();
    let source = "const say = word => tools.exec({command: ['sh', '-c', `echo ${word} >> effects`]});
        const first = await Promise.race([tools.exec({command: ['sh', '-c', 'echo loser >> effects']}), tools.listDir({path: '.'})]);
        await say('after'); return 'all'";
    let id = workspace.suspended(source);
    let (status, out, err) = workspace.run(&["runs", "answer", &id, "--approve"]);
    assert_eq!(
        (status, out.as_str(), workspace.effects().as_str()),
        (0, "all\n", "after\n"),
        "{err}"
    );
}

#[test]
fn a_suspended_run_can_be_cancelled() {
    let workspace = SuspensionWorkspace::new();
    let id = workspace.suspended(TWICE);
    assert_eq!(workspace.run(&["runs", "cancel", &id]).0, 0);
    assert_eq!(
        workspace.json(&["runs", "list", "--json"])[0]["state"],
        json!("failed")
    );
    let shown = workspace.json(&["runs", "show", &id, "--json"]);
    assert_eq!(shown["error"]["code"], "ScriptCancelledError", "{shown:#}");
    let (status, _, err) = workspace.run(&["runs", "answer", &id, "--approve"]);
    assert!(status == 2 && err.contains("has ended"), "{err}");
    assert_eq!(workspace.effects(), "");
}

#[test]
fn runs_of_other_folders_cannot_be_recalled() {
    let workspace = SuspensionWorkspace::new();
    std::fs::create_dir_all(workspace.path("elsewhere")).unwrap();
    let secret = workspace.json(&["run", "--json", "-e", "return 'hush'"]);
    let id = secret["id"].as_str().unwrap();
    let elsewhere = workspace.path("elsewhere");
    let ask = |handle: &str| {
        let script = format!("return await recall('{handle}').then(r => r.value, e => e.message)");
        workspace.json(&[
            "run",
            "--json",
            "-C",
            elsewhere.to_str().unwrap(),
            "-e",
            &script,
        ])["output_json"]
            .clone()
    };
    assert_eq!(ask(id), json!(format!("\"there is no run `{id}`\"")));
    assert!(!ask("scr_").to_string().contains("hush"));
}

#[test]
fn recall_reads_earlier_results_in_slices() {
    let workspace = SuspensionWorkspace::new();
    std::fs::write(workspace.path("work/data"), "line\n".repeat(3000)).unwrap();
    let first = workspace.json(&[
        "run",
        "--json",
        "-e",
        "await tools.readFile({path: 'data', limit: 3000}); return {list: [1, 2, 3, 4]}",
    ]);
    let id = first["id"].as_str().unwrap();
    let script = format!(
        "const list = await recall('{id}', {{pointer: '/list', offset: 1, limit: 2}});
        const text = await recall('{id}/tool_1', {{pointer: '/text', offset: 5, limit: 4}});
        const none = await recall('scr_none').catch(e => e.message);
        return [list.value, list.total, list.truncated, text.value, text.total, none]"
    );
    let output = workspace.json(&["run", "--json", "-e", &script]);
    let value: Value = serde_json::from_str(output["output_json"].as_str().unwrap_or_default())
        .unwrap_or_default();
    assert_eq!(
        value,
        json!([[2, 3], 4, true, "line", 15000, "there is no run `scr_none`"]),
        "{output:#}"
    );
    let (_, _, err) = workspace.run(&["run", "--ephemeral", "-e", "return await recall('scr_x')"]);
    assert!(err.contains("no tool `recall`"), "{err}");
}

#[test]
fn nothing_runs_if_the_journal_cannot_be_encrypted() {
    let workspace = SuspensionWorkspace::new();
    std::fs::create_dir_all(workspace.path("home")).unwrap();
    std::fs::write(
        workspace.path("home/config.toml"),
        "[journal]\nencrypt = true\n",
    )
    .unwrap();
    let mut command = workspace.command(&[
        "run",
        "-e",
        "await tools.exec({command: ['touch', 'made']})",
    ]);
    // Without a session bus there is no keyring.
    let output = command
        .env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && err.contains("no system keyring is running"),
        "{err}"
    );
    assert!(
        err.contains("hint: unlock the keyring, or set `journal.encrypt = false` in config.toml"),
        "{err}"
    );
    assert!(!workspace.path("work/made").exists());
}

#[test]
fn scripts_of_a_session_share_stored_values() {
    let workspace = SuspensionWorkspace::new();
    let run =
        |args: &[&str]| workspace.json(&[&["run", "--json"], args].concat())["output_json"].clone();
    run(&[
        "--session",
        "a",
        "-e",
        "store('big', 'x'.repeat(10000)); store('n', 1)",
    ]);
    assert_eq!(
        run(&[
            "--session",
            "a",
            "-e",
            "return [load('big').length, load('n')]"
        ]),
        json!("[10000,1]")
    );
    assert_eq!(
        run(&["--session", "b", "-e", "return load('n') ?? null"]),
        json!("null")
    );
    assert_eq!(run(&["-e", "return load('n') ?? null"]), json!("null"));
}
