//! Tasks of a run that is resumed or suspended.

use serde_json::{Value, json};

use crate::support::Client;
use crate::{SPAWN, code, effect_count, failed, interrupted, resume, until, workspace_with};

const TASK: &str = "tools.spawn.exec('exec', {command: ['./pay', '5']})";

#[test]
fn a_finished_task_is_not_started_again() {
    let workspace = workspace_with(SPAWN, "");
    let id = failed(&workspace, &format!("await {TASK}.done"));
    let both = format!(
        "const task = {TASK};
         const other = tools.spawn.exec('exec', {{command: ['sh', '-c', 'echo two >> effects']}});
         await other.done; return (await task.done).exitCode"
    );
    let output = resume(&workspace, &id, &both);
    assert_eq!(
        (&output["output_json"], effect_count(&workspace)),
        (&json!("0"), 2)
    );
}

#[test]
fn an_interrupted_task_is_undecided() {
    let (workspace, id) = interrupted(SPAWN, &format!("{TASK}.done"));
    let again = format!("return (await {TASK}.done).exitCode");
    let error = resume(&workspace, &id, &again);
    assert_eq!(
        (code(&error), effect_count(&workspace)),
        ("OutcomeUnknownError", 1)
    );
    let task = error["error"]["metadata"]["undecided"][0]["callId"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(task.starts_with("tsk_"), "{error:#}");
    let shown = workspace.command(&["runs", "show", &id]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for line in [
        format!("the outcome of {task} (spawn.exec) is unknown: check what it changed"),
        format!(
            "run `selvedge run FILE --resume {id}` with a script that decides the calls of \
             unknown outcome"
        ),
    ] {
        assert!(shown.contains(&line), "{shown}");
    }
    // The run of the task cannot be resumed by itself.
    let shown = workspace
        .command(&["runs", "show", &task])
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains(&format!("the outcome of {task}/tool_1 (exec) is unknown"))
            && !shown.contains("--resume"),
        "{shown}"
    );
    // Also if the task's own run was deleted.
    let file = crate::support::store::database(&workspace.home());
    let forget = "DELETE FROM calls WHERE run LIKE 'tsk_%'; DELETE FROM runs WHERE id LIKE 'tsk_%'";
    file.execute_batch(forget).unwrap();
    drop(file);
    assert_eq!(
        code(&resume(&workspace, &id, &again)),
        "OutcomeUnknownError"
    );
    let skipped = resume(
        &workspace,
        &id,
        &format!("resume.skip('{task}', {{exitCode: 7}}); {again}"),
    );
    assert_eq!(
        (&skipped["output_json"], effect_count(&workspace)),
        (&json!("7"), 1)
    );
    let repeated = resume(
        &workspace,
        &id,
        &format!("resume.repeat('{task}'); {again}"),
    );
    assert_eq!(
        (&repeated["output_json"], effect_count(&workspace)),
        (&json!("0"), 2)
    );
}

#[test]
fn a_running_task_is_awaited() {
    let workspace = workspace_with(SPAWN, "until test -e quick; do sleep 0.05; done; exit 3");
    let mut client = Client::start(&workspace, &[], json!({}));
    let first = client.call("script", json!({"code": format!("{TASK}; throw 1")}));
    until(|| effect_count(&workspace) > 0);
    let again = format!(
        "const task = {TASK}; await tools.writeFile({{path: 'quick', content: ''}});
         return (await task.done).exitCode"
    );
    let resume = json!({"code": again, "resume": first["structuredContent"]["id"]});
    let waited = client.call("script", resume);
    let value = &waited["structuredContent"]["output_json"];
    assert_eq!(
        (value, effect_count(&workspace)),
        (&json!("3"), 1),
        "{waited}"
    );
}

#[test]
fn a_task_that_runs_in_another_process_is_awaited() {
    let workspace = workspace_with(SPAWN, "until test -e quick; do sleep 0.05; done; exit 3");
    let mut client = Client::start(&workspace, &[], json!({}));
    let first = client.call("script", json!({"code": format!("{TASK}; throw 1")}));
    until(|| effect_count(&workspace) > 0);
    let again = format!(
        "const task = {TASK}; const error = await task.cancel().catch(String);
         await tools.writeFile({{path: 'quick', content: ''}});
         return [error.includes('runs in another session'), (await task.done).exitCode]"
    );
    let id = first["structuredContent"]["id"].as_str().unwrap();
    let waited = resume(&workspace, id, &again);
    let value = &waited["output_json"];
    assert_eq!(
        (value, effect_count(&workspace)),
        (&json!("[true,3]"), 1),
        "{waited}"
    );
}

#[test]
fn a_restored_script_gets_the_outcome_of_its_tasks() {
    for (pay, then, expected) in [
        ("", "await k.done;", "\"0\""),
        ("sleep 60", "", "\"OutcomeUnknownError\""),
    ] {
        let workspace = workspace_with(&format!("approval_policy = \"on-request\"\n{SPAWN}"), pay);
        let source = format!(
            "const k = {TASK}; {then}
             await tools.exec({{command: ['bash', '-c', 'until test -s effects; do sleep 0.01; done']}});
             await tools.exec({{command: ['true', 'x'], withEscalatedPermissions: true, justification: 'to ask'}});
             try {{ return String((await k.done).exitCode) }} catch (error) {{ return error.metadata.code }}"
        );
        let first = workspace
            .command(&["run", "--suspend", "--json", "-e", &source])
            .output()
            .unwrap();
        let first: Value = serde_json::from_slice(&first.stdout).unwrap();
        assert_eq!(first["status"], "suspended", "{first}");
        let id = first["id"].as_str().unwrap();
        let again = workspace
            .command(&["runs", "answer", id, "--approve", "--json"])
            .output()
            .unwrap();
        let again: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!(
            (&again["output_json"], effect_count(&workspace)),
            (&json!(expected), 1),
            "{again}"
        );
    }
}

#[test]
fn the_justification_of_a_task_does_not_count() {
    let workspace = workspace_with(SPAWN, "");
    let task = |why: &str| {
        format!(
            "await tools.spawn.exec('exec', {{command: ['./pay', '5'], justification: '{why}'}}).done"
        )
    };
    let id = failed(&workspace, &task("rent"));
    let output = resume(&workspace, &id, &task("the rent of May"));
    assert_eq!(
        (&output["error"], effect_count(&workspace)),
        (&Value::Null, 1)
    );
}

#[test]
fn a_task_whose_tool_is_not_offered_any_more_fails() {
    let workspace = workspace_with(SPAWN, "");
    let task = "tools.spawn.exec('write_file', {path: 'note', content: 'x'}).done";
    let id = failed(&workspace, &format!("await {task}"));
    workspace.config(&format!(
        "tool_pack = 'mine'\n[tool_packs.mine]\nextends = ['all']\nwithout = ['write_file']\n{SPAWN}"
    ));
    let error = resume(&workspace, &id, &format!("return await {task}"));
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("there is no tool `write_file`"),
        "{error:#}"
    );
    assert_eq!(error["calls"][0]["reused"], false, "{error:#}");
}
