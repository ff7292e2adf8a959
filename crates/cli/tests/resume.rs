//! The three rules of `run --resume`, through the binary.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

#[path = "resume/chain.rs"]
mod chain;
#[path = "resume/servers.rs"]
mod servers;
mod support;
#[path = "resume/tasks.rs"]
mod tasks;

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::TestWorkspace;

fn run(workspace: &TestWorkspace, args: &[&str]) -> Output {
    let mut command = workspace.command(&["run", "-q"]);
    command.args(args).stdin(Stdio::null()).output().unwrap()
}

/// Returns the exit status and standard error.
fn status_and_stderr(output: &Output) -> (i32, String) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap(), text)
}

/// Resumes a run with this script, and returns the printed item.
fn resume(workspace: &TestWorkspace, id: &str, script: &str) -> Value {
    let output = run(workspace, &["--json", "--resume", id, "-e", script]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Runs a script that fails after these calls, and returns its run.
fn failed(workspace: &TestWorkspace, calls: &str) -> String {
    let (status, stderr) =
        status_and_stderr(&run(workspace, &["-e", &format!("{calls}; throw 'later'")]));
    assert!(status == 1 && stderr.contains("later"), "{stderr}");
    last(workspace)
}

/// Returns the id of the last run of a script.
fn last(workspace: &TestWorkspace) -> String {
    newest(workspace, "scr_")
}

/// Returns the id of the last run whose id begins with `kind`.
fn newest(workspace: &TestWorkspace, kind: &str) -> String {
    let listed = workspace
        .command(&["runs", "list", "--json"])
        .output()
        .unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let mut ids = listed.as_array().unwrap().iter();
    let found = ids.find_map(|run| run["id"].as_str().filter(|id| id.starts_with(kind)));
    found.unwrap().to_owned()
}

/// Returns the number of lines that commands wrote to the file `effects`.
fn effect_count(workspace: &TestWorkspace) -> usize {
    let effects = std::fs::read_to_string(workspace.work().join("effects"));
    effects.unwrap_or_default().lines().count()
}

/// Creates a workspace with a program `pay` that writes a line to `effects`, then runs `then`.
fn workspace_with(config: &str, then: &str) -> TestWorkspace {
    let workspace = TestWorkspace::new();
    workspace.config(config);
    let pay = workspace.work().join("pay");
    std::fs::write(&pay, format!("#!/bin/sh\necho one >> effects\n{then}\n")).unwrap();
    std::fs::set_permissions(pay, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    workspace
}

/// Creates a workspace with a run that was killed during a call of `pay`, after the line was
/// written. A further `pay` would end at once.
fn interrupted(config: &str, call: &str) -> (TestWorkspace, String) {
    let workspace = workspace_with(config, "test -e quick || sleep 60");
    let id = kill_after_effect(&workspace, &["-e", &format!("await {call}")]);
    (workspace, id)
}

/// Starts a run, and kills it as soon as its command has written a line. Returns the run's id.
fn kill_after_effect(workspace: &TestWorkspace, args: &[&str]) -> String {
    let before = effect_count(workspace);
    let mut child = workspace
        .command(&[&["run", "-q"], args].concat())
        .spawn()
        .unwrap();
    until(|| effect_count(workspace) > before || child.try_wait().unwrap().is_some());
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    let id = last(workspace);
    let shown = || {
        workspace
            .command(&["runs", "show", &id])
            .output()
            .unwrap()
            .stdout
    };
    until(|| !String::from_utf8(shown()).unwrap().contains("running"));
    std::fs::write(workspace.work().join("quick"), "").unwrap();
    id
}

fn until(mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < support::TEST_TIMEOUT);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn code(output: &Value) -> &str {
    output["error"]["code"].as_str().unwrap_or_default()
}

const PAY: &str = "tools.exec({command: ['./pay', '5']})";
const SPAWN: &str = "[script_harness.expose]\nenable_spawn = true\n";

#[test]
fn completed_changes_are_reused_and_failed_calls_run_again() {
    // A call, what `pay` does after its line, and the number of lines after resuming.
    let table = [
        // Succeeded and changed something: reused.
        (PAY, "", 1),
        ("tools.exec({command: ['bash', '-c', './pay 5']})", "", 1),
        ("tools.execCommand({cmd: './pay 5'})", "", 1),
        (
            "tools.spawn.exec('exec', {command: ['./pay', '5']}).done",
            "",
            1,
        ),
        // Failed, also with a non-zero exit or at its time limit: runs.
        (PAY, "exit 3", 2),
        (
            "tools.exec({command: ['./pay', '5'], timeoutMs: 300})",
            "sleep 60",
            2,
        ),
        ("tools.execCommand({cmd: './pay 5'})", "exit 3", 2),
        (
            "tools.spawn.exec('exec', {command: ['./pay', '5']}).done",
            "exit 3",
            2,
        ),
    ];
    for (call, then, effects) in table {
        let workspace = workspace_with(SPAWN, then);
        let id = failed(&workspace, &format!("await {call}"));
        let output = resume(&workspace, &id, &format!("await {call}"));
        assert_eq!(output["error"], Value::Null, "{call}");
        assert_eq!(effect_count(&workspace), effects, "{call}, then {then:?}");
        let warnings = output["warnings"].to_string();
        assert_eq!(warnings.contains("reused"), effects == 1, "{warnings}");
    }
    // Denied, so never run.
    let workspace = workspace_with("approval_policy = 'untrusted'\n", "");
    let (_, stderr) = status_and_stderr(&run(&workspace, &["-e", &format!("await {PAY}")]));
    assert!(stderr.contains("ApprovalDeniedError"), "{stderr}");
    let args = [
        "--approval",
        "on-request",
        "--resume",
        &last(&workspace),
        "-e",
    ];
    run(
        &workspace,
        &[&args[..], &[&format!("await {PAY}")]].concat(),
    );
    assert_eq!(effect_count(&workspace), 1);
}

#[test]
fn reads_always_run_again() {
    let workspace = TestWorkspace::new();
    std::fs::write(workspace.work().join("data"), "old").unwrap();
    let reads = "const see = async () => [
        (await tools.readFile({path: 'data'})).text, (await tools.exec({command: ['cat', 'data']})).stdout];";
    let id = failed(&workspace, &format!("{reads} await see()"));
    std::fs::write(workspace.work().join("data"), "new").unwrap();
    let output = resume(
        &workspace,
        &id,
        &format!("{reads} return (await see()).join()"),
    );
    assert_eq!(output["output_json"], "\"new,new\"");
}

#[test]
fn the_warning_names_each_reused_call_and_how_to_repeat_it() {
    let workspace = workspace_with("", "");
    let write = "await tools.writeFile({path: 'a', content: 'x'})";
    let id = failed(&workspace, &format!("await {PAY}; {write}"));
    let output = resume(
        &workspace,
        &id,
        &format!("await {PAY}; {write}; throw 'again'"),
    );
    let warning = output["warnings"][0].as_str().unwrap();
    for part in [
        format!("{id}/tool_1 exec {{\"command\":[\"./pay\",\"5\"]}}"),
        format!("{id}/tool_2 writeFile"),
        format!("resume.repeat(\"{id}/tool_1\")"),
    ] {
        assert!(warning.contains(&part), "{warning}");
    }
    let reused = output["calls"].as_array().unwrap().iter();
    assert!(
        reused
            .map(|call| &call["reused"])
            .all(|reused| *reused == true)
    );
    // The line that the warning shows runs the call again, also two runs later.
    let repeat = format!("resume.repeat(\"{id}/tool_1\"); await {PAY}; {write}");
    resume(&workspace, &last(&workspace), &repeat);
    assert_eq!(effect_count(&workspace), 2);
}

#[test]
fn identical_means_the_same_tool_and_arguments() {
    let workspace = workspace_with("", "");
    let id = failed(&workspace, &format!("await {PAY}"));
    // The justification and the order of fields are not compared.
    let same = "await tools.exec({justification: 'because', command: ['./pay', '5']}); throw 1";
    resume(&workspace, &id, same);
    assert_eq!(effect_count(&workspace), 1);
    // Everything else is.
    for other in [
        "{command: ['./pay', '6']}",
        "{command: ['./pay', '5'], timeoutMs: 9000}",
    ] {
        let before = effect_count(&workspace);
        resume(
            &workspace,
            &last(&workspace),
            &format!("await tools.exec({other}); throw 1"),
        );
        assert_eq!(effect_count(&workspace), before + 1, "{other}");
    }
}

#[test]
fn no_change_runs_before_each_unknown_outcome_is_decided() {
    let (workspace, id) = interrupted(SPAWN, PAY);
    for change in [
        PAY,
        "tools.exec({command: ['bash', '-c', './pay 5']})",
        "tools.exec({command: ['timeout', '50', './pay', '5'], timeoutMs: 7000})",
        "tools.execCommand({cmd: './pay 5'})",
        "tools.spawn.exec('exec', {command: ['./pay', '5']}).done",
        "tools.writeFile({path: 'effects', content: 'one\\none\\n'})",
        "tools.exec({command: ['./pay', '5'], withEscalatedPermissions: true, justification: 'x'})",
    ] {
        let retry = format!(
            "for (let i = 0; i < 3; i++) try {{ return await {change} }} catch (e) {{ if (i == 2) throw e }}"
        );
        let output = resume(&workspace, &id, &retry);
        assert_eq!(code(&output), "OutcomeUnknownError", "{change}");
        assert_eq!(effect_count(&workspace), 1, "{change}");
    }
    // Reads work, so that a script can check the state.
    let look =
        "await tools.readFile({path: 'effects'}); await tools.exec({command: ['cat', 'effects']});
        return (await tools.listDir({})).entries.length > 0";
    assert_eq!(resume(&workspace, &id, look)["output_json"], "true");
}

#[test]
fn the_error_is_enough_to_correct_the_script() {
    let (workspace, id) = interrupted("", PAY);
    let error = resume(&workspace, &id, &format!("await {PAY}"))["error"].clone();
    let message = error["message"].as_str().unwrap();
    let call = format!("{id}/tool_1 exec {{\"command\":[\"./pay\",\"5\"]}}");
    assert!(
        message.contains(&id) && message.contains(&call),
        "{message}"
    );
    let undecided = json!([{"callId": format!("{id}/tool_1"), "tool": "exec", "args": {"command": ["./pay", "5"]}}]);
    assert_eq!(error["metadata"]["undecided"], undecided);
    // Each of the two suggested lines works when pasted, with a value inserted.
    let hints = error["suggestions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str);
    let lines: Vec<&str> = hints.filter(|hint| hint.starts_with("resume.")).collect();
    let [repeat, skip] = lines[..] else {
        panic!("{error:#}")
    };
    let skip = skip.replace("value", "{ exitCode: 0 }");
    let skipped = format!("{skip}\nreturn (await {PAY}).exitCode");
    let output = resume(&workspace, &id, &skipped);
    assert_eq!(
        (&output["output_json"], effect_count(&workspace)),
        (&json!("0"), 1)
    );
    let repeated = format!("{repeat}\nreturn (await {PAY}).exitCode");
    let output = resume(&workspace, &id, &repeated);
    assert_eq!(
        (&output["output_json"], effect_count(&workspace)),
        (&json!("0"), 2)
    );
}

#[test]
fn a_script_can_check_and_decide_in_one_run() {
    let (workspace, id) = interrupted("", PAY);
    let careful = format!(
        "try {{ await {PAY} }} catch (e) {{
            if (!(e instanceof OutcomeUnknownError)) throw e;
            for (const call of e.metadata.undecided) {{
                const {{ text }} = await tools.readFile({{path: 'effects'}});
                if (text.includes('one')) resume.skip(call.callId, 'paid'); else resume.repeat(call.callId);
            }}
            return await {PAY};
        }}"
    );
    let output = resume(&workspace, &id, &careful);
    assert_eq!(
        (&output["output_json"], effect_count(&workspace)),
        (&json!("\"paid\""), 1)
    );
}

#[test]
fn a_command_left_in_its_terminal_is_undecided() {
    let workspace = workspace_with("", "cat >> typed");
    let open = "await tools.execCommand({cmd: './pay 5', yieldTimeMs: 300})";
    let id = failed(&workspace, open);
    let shown = workspace.command(&["runs", "show", &id]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains(&format!(
            "the outcome of {id}/tool_1 (exec_command) is unknown"
        )),
        "{shown}"
    );
    assert_eq!(code(&resume(&workspace, &id, open)), "OutcomeUnknownError");
    // A repeated command gets its input again.
    let again = format!(
        "resume.repeat('{id}/tool_1'); const {{ sessionId }} = {open};
         await tools.writeStdin({{sessionId, chars: 'hello\\n'}}); await tools.writeStdin({{sessionId, chars: '\\u0004'}})"
    );
    let output = resume(&workspace, &id, &again);
    assert_eq!(
        (&output["error"], effect_count(&workspace)),
        (&Value::Null, 2)
    );
    assert_eq!(
        std::fs::read_to_string(workspace.work().join("typed")).unwrap(),
        "hello\n"
    );
}

#[test]
fn invalid_decisions_are_explained() {
    let (workspace, id) = interrupted("", PAY);
    for (decision, words) in [
        (
            "resume.repeat('tool_1')",
            format!(
                "`tool_1` cannot be decided: only calls to reuse or of unknown outcome can, which are \
                 {id}/tool_1"
            ),
        ),
        (
            "resume.skip()",
            "resume needs the id of a recorded call".to_owned(),
        ),
    ] {
        let message = resume(&workspace, &id, decision)["error"]["message"].to_string();
        assert!(message.contains(&words), "{message}");
    }
    let (_, stderr) = status_and_stderr(&run(&workspace, &["-e", "resume.repeat('scr_x/tool_1')"]));
    assert!(
        stderr.contains("this script does not resume a run"),
        "{stderr}"
    );
}

#[test]
fn the_first_line_of_a_script_can_name_the_run() {
    let workspace = workspace_with("", "");
    let id = failed(&workspace, &format!("await {PAY}"));
    let script = format!("// @exec: {{\"resume\": \"{id}\"}}\nawait {PAY}");
    let (status, stderr) = status_and_stderr(&run(&workspace, &["-e", &script]));
    assert_eq!((status, effect_count(&workspace)), (0, 1), "{stderr}");
}

#[test]
fn a_resumed_run_starts_with_the_recorded_seed() {
    let workspace = workspace_with("", "");
    let draw = "const n = Math.random(); await tools.writeFile({path: 'n', content: String(n)});";
    let id = failed(&workspace, draw);
    let output = resume(&workspace, &id, &format!("{draw} return n"));
    let recorded = std::fs::read_to_string(workspace.work().join("n")).unwrap();
    assert_eq!(output["output_json"], json!(recorded));
    assert_eq!(output["calls"][0]["reused"], true);
}
