//! Runs that resume one another.

use serde_json::{Value, json};

use crate::support::TestWorkspace;
use crate::{
    PAY, SPAWN, code, effect_count, failed, interrupted, kill_after_effect, last, newest, resume,
    run, status_and_stderr, workspace_with,
};

fn echo(word: &str) -> String {
    format!("await tools.exec({{command: ['sh', '-c', 'echo {word} >> effects']}});")
}

fn effects(workspace: &TestWorkspace) -> String {
    std::fs::read_to_string(workspace.work().join("effects")).unwrap()
}

#[test]
fn calls_completed_two_runs_ago_are_not_repeated() {
    let workspace = TestWorkspace::new();
    let first = failed(&workspace, &format!("{}{}", echo("one"), echo("two")));
    resume(&workspace, &first, &format!("{} throw 1", echo("one")));
    let all = format!("{}{}{}", echo("one"), echo("two"), echo("three"));
    let output = resume(&workspace, &last(&workspace), &all);
    assert_eq!(output["error"], Value::Null);
    assert_eq!(effects(&workspace), "one\ntwo\nthree\n");
}

#[test]
fn naming_the_first_run_again_continues_from_the_newest() {
    let workspace = TestWorkspace::new();
    let first = failed(&workspace, &echo("one"));
    resume(
        &workspace,
        &first,
        &format!("{}{} throw 2", echo("one"), echo("two")),
    );
    let all = format!("{}{}{}", echo("one"), echo("two"), echo("three"));
    let output = resume(&workspace, &first, &all);
    assert_eq!(output["error"], Value::Null);
    assert_eq!(effects(&workspace), "one\ntwo\nthree\n");
}

#[test]
fn identical_calls_are_answered_in_recorded_order_through_a_chain() {
    let workspace = TestWorkspace::new();
    let count = "const count = async () => Number((await tools.exec({command: ['sh', '-c', 'echo x >> effects; wc -l < effects']})).stdout);";
    let first = failed(
        &workspace,
        &format!("{count} await count(); await count(); await count()"),
    );
    // This run uses one of the three results.
    resume(
        &workspace,
        &first,
        &format!("{count} await count(); throw 1"),
    );
    let all =
        format!("{count} return [await count(), await count(), await count(), await count()]");
    let output = resume(&workspace, &first, &all);
    assert_eq!(output["output_json"], "[1,2,3,4]");
}

#[test]
fn a_repeated_call_replaces_the_recorded_one() {
    let (workspace, first) = interrupted("", PAY);
    let repeat = format!("resume.repeat('{first}/tool_1'); await {PAY};");
    let failed = resume(&workspace, &first, &format!("{repeat} throw 'later'"));
    assert_eq!(
        (code(&failed), effect_count(&workspace)),
        ("ScriptRuntimeError", 2)
    );
    // The decision was carried out, so the same script neither repeats the call nor fails.
    let output = resume(&workspace, &first, &repeat);
    assert_eq!(
        (&output["error"], effect_count(&workspace)),
        (&Value::Null, 2)
    );
}

#[test]
fn a_skipped_call_must_be_decided_again() {
    let (workspace, first) = interrupted("", PAY);
    let skip = format!("resume.skip('{first}/tool_1', 'paid'); const paid = await {PAY};");
    let failed = resume(&workspace, &first, &format!("{skip} throw 'later'"));
    assert_eq!(code(&failed), "ScriptRuntimeError");
    let forgot = resume(&workspace, &first, &format!("await {PAY}"));
    assert_eq!(code(&forgot), "OutcomeUnknownError");
    let output = resume(&workspace, &first, &format!("{skip} return paid"));
    assert_eq!(
        (&output["output_json"], effect_count(&workspace)),
        (&json!("\"paid\""), 1)
    );
}

#[test]
fn an_interrupted_repetition_must_be_decided_under_its_own_id() {
    let (workspace, first) = interrupted("", PAY);
    std::fs::remove_file(workspace.work().join("quick")).unwrap();
    let repeat = format!("resume.repeat('{first}/tool_1'); await {PAY}");
    let second = kill_after_effect(&workspace, &["--resume", &first, "-e", &repeat]);
    assert_eq!(effect_count(&workspace), 2);
    let error = resume(&workspace, &first, &repeat);
    assert_eq!(code(&error), "OutcomeUnknownError");
    let undecided = &error["error"]["metadata"]["undecided"];
    assert_eq!(undecided[0]["callId"], json!(format!("{second}/tool_1")));
    assert_eq!(
        (
            undecided.as_array().unwrap().len(),
            effect_count(&workspace)
        ),
        (1, 2)
    );
}

#[test]
fn only_runs_of_scripts_are_resumed() {
    let workspace = workspace_with(SPAWN, "");
    failed(
        &workspace,
        "await tools.spawn.exec('exec', {command: ['./pay', '5']}).done",
    );
    let task = newest(&workspace, "tsk_");
    let (status, stderr) =
        status_and_stderr(&run(&workspace, &["--resume", &task, "-e", "return 1"]));
    assert_eq!(status, 2, "{stderr}");
    for line in [
        format!("error: {task} is not the run of a script: only runs `scr_…` can be resumed"),
        "hint: run `selvedge runs list` to find the run of the script".to_owned(),
    ] {
        assert!(stderr.contains(&line), "{stderr}");
    }
}

#[test]
fn a_completed_run_is_resumed_like_any_other() {
    let workspace = workspace_with("", "");
    let (status, stderr) = status_and_stderr(&run(&workspace, &["-e", &format!("await {PAY}")]));
    assert_eq!(status, 0, "{stderr}");
    let more = format!("await {PAY}; {}", echo("two"));
    let output = resume(&workspace, &last(&workspace), &more);
    assert_eq!(output["error"], Value::Null);
    assert_eq!(effects(&workspace), "one\ntwo\n");
}

#[test]
fn a_command_line_and_the_same_call_of_bash_are_identical() {
    let workspace = workspace_with("", "");
    let line = "await tools.exec('./pay 5')";
    let id = failed(&workspace, line);
    let argv = "await tools.exec({command: ['bash', '-c', './pay 5']})";
    let output = resume(&workspace, &id, &format!("{argv}; throw 'later'"));
    assert_eq!(
        (
            output["error"]["message"].as_str(),
            effect_count(&workspace)
        ),
        (Some("the script threw later"), 1)
    );
    let field = "await tools.exec({cmd: './pay 5'})";
    let output = resume(&workspace, &last(&workspace), field);
    assert_eq!(
        (&output["error"], effect_count(&workspace)),
        (&Value::Null, 1)
    );
    // The journal has the canonical form.
    let shown = workspace
        .command(&["runs", "show", &id, "--json"])
        .output()
        .unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert!(
        shown
            .to_string()
            .contains(r#""command":["bash","-c","./pay 5"]"#),
        "{shown}"
    );
}

#[test]
fn only_one_of_several_concurrent_resumes_succeeds() {
    let workspace = TestWorkspace::new();
    let id = failed(&workspace, &echo("one"));
    let rest = "await tools.exec({command: ['sh', '-c', 'echo two >> effects; sleep 1']})";
    let children: Vec<_> = (0..4)
        .map(|_| {
            let mut command = workspace.command(&["run", "-q", "--resume", &id, "-e", rest]);
            command.stdin(std::process::Stdio::null());
            command
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let ended = children
        .into_iter()
        .map(|child| status_and_stderr(&child.wait_with_output().unwrap()));
    let ended: Vec<(i32, String)> = ended.collect();
    assert_eq!(effect_count(&workspace), 2, "{ended:?}");
    assert!(ended.iter().any(|(status, _)| *status == 0), "{ended:?}");
    for (_, stderr) in ended.iter().filter(|(status, _)| *status != 0) {
        let is_refused = stderr.contains("is still running") || stderr.contains("was resumed by");
        assert!(is_refused, "{stderr}");
    }
}

#[test]
fn a_run_is_resumed_in_its_own_folder() {
    let workspace = TestWorkspace::new();
    let id = failed(
        &workspace,
        "await tools.writeFile({path: 'f', content: '1'})",
    );
    let other = workspace.home().display().to_string();
    let (status, stderr) = status_and_stderr(&run(
        &workspace,
        &["-C", &other, "--resume", &id, "-e", "return 1"],
    ));
    assert!(
        status == 2 && stderr.contains("ran in another folder"),
        "{stderr}"
    );
    let hint = format!(
        "hint: pass -C {}",
        workspace.work().canonicalize().unwrap().display()
    );
    assert!(stderr.contains(&hint), "{stderr}");
}
