//! Going on from an earlier run: the same work is the same, however and by whomever it is asked for.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

mod support;

use std::process::{Output, Stdio};

use serde_json::Value;
use support::Place;

fn run(place: &Place, args: &[&str]) -> Output {
    place.command(&["run", "-q"]).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Its status and what it said of errors.
fn told(output: &Output) -> (i32, String) {
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The last script's run.
fn last(place: &Place) -> String {
    let listed = place.command(&["runs", "list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let mut ids = listed.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap());
    ids.find(|id| id.starts_with("scr_")).unwrap().to_owned()
}

/// Lines that were left by what was done.
fn done(place: &Place) -> usize {
    std::fs::read_to_string(place.work().join("effects")).unwrap_or_default().lines().count()
}

/// A place where a command was stopped on its way, after it had left its line, and the run it belonged to.
fn stopped_on_its_way() -> (Place, String) {
    let place = Place::new();
    run(&place, &["--timeout", "1s", "-e", &format!("{CHANGE} await change()")]);
    assert_eq!(done(&place), 1);
    // The next one would be quick.
    std::fs::write(place.work().join("quick"), "").unwrap();
    let id = last(&place);
    (place, id)
}

const CHANGE: &str = "const change = (more) => tools.exec(
    {command: ['sh', '-c', 'echo one >> effects; test -e quick || sleep 60'], ...more});";

#[test]
fn the_same_command_in_another_manner_is_the_same() {
    let (place, id) = stopped_on_its_way();
    let here = place.work().canonicalize().unwrap().display().to_string();
    for more in ["{timeoutMs: 5000}", "{cwd: '.'}", "{cwd: './', env: {}}", &format!("{{cwd: '{here}'}}")] {
        let (status, said) = told(&run(&place, &["--resume", &id, "-e", &format!("{CHANGE} await change({more})")]));
        assert!(status == 1 && said.contains("OutcomeUnknownError"), "{more}: {said}");
    }
    assert_eq!(done(&place), 1);
    // In another folder it is another command.
    std::fs::create_dir(place.work().join("below")).unwrap();
    std::fs::write(place.work().join("below/quick"), "").unwrap();
    let (status, said) =
        told(&run(&place, &["--resume", &id, "-e", &format!("{CHANGE} await change({{cwd: 'below'}})")]));
    assert_eq!((status, place.work().join("below/effects").exists()), (0, true), "{said}");
}

#[test]
fn a_command_that_is_done_answers_whoever_is_more_patient() {
    let place = Place::new();
    let echo = |more: &str| format!("await tools.exec({{command: ['sh', '-c', 'echo one >> effects']{more}}});");
    run(&place, &["-e", &format!("{} throw 1", echo(""))]);
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &echo(", timeoutMs: 5000")]));
    assert_eq!((status, done(&place)), (0, 1), "{said}");
}

#[test]
fn a_command_whose_time_was_up_is_done_where_it_is_given_more() {
    let place = Place::new();
    let slow = |ms: u32| {
        format!(
            "const ran = await tools.exec({{command: ['sh', '-c', 'echo one >> effects; sleep 1'], timeoutMs: {ms}}});
             if (ran.timedOut) throw new Error('too slow');"
        )
    };
    let (status, said) = told(&run(&place, &["-e", &slow(200)]));
    assert!(status == 1 && said.contains("too slow"), "{said}");
    // With as little time it would be the same again.
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &slow(200)]));
    assert!(status == 1 && said.contains("too slow") && done(&place) == 1, "{said}");
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &slow(60_000)]));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
}

#[test]
fn only_what_tells_of_the_world_is_a_look() {
    let (place, id) = stopped_on_its_way();
    let after = |look: &str| format!("{CHANGE} try {{ await change() }} catch {{ {look}; await change() }}");
    for no_look in [
        "await tools.updatePlan({plan: [{step: 'pay', status: 'pending'}]})",
        "await tools.search({query: 'file'})",
        "await tools.writeFile({path: 'other', content: ''})",
        "await tools.readFile({path: JSON.parse('7')}).catch(() => {})",
    ] {
        let (status, said) = told(&run(&place, &["--resume", &id, "-e", &after(no_look)]));
        assert!(status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1, "{no_look}: {said}");
    }
    // That there is nothing is an answer as well.
    let missing = "await tools.readFile({path: 'receipt'}).catch(() => {})";
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", &after(missing)]));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
}

#[test]
fn what_was_looked_at_beside_the_call_is_no_look() {
    let (place, id) = stopped_on_its_way();
    let beside = format!(
        "{CHANGE} const [said] = await Promise.allSettled([change(), tools.listDir({{}})]);
         if (said.status === 'rejected') await change()"
    );
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", &beside]));
    assert!(status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1, "{said}");
}

#[test]
fn a_servers_tool_is_the_same_however_it_is_called() {
    let place = Place::new();
    let effects = place.work().join("effects");
    let server = Place::odd("odd", "good").replace("\"good\"]", &format!("\"good\", {effects:?}]"));
    place.config(&server);
    run(&place, &["-e", "await tools.mcp.odd.die({x: 1})"]);
    assert_eq!(done(&place), 1);
    let id = last(&place);
    for same in [
        "tools.mcp.odd.die({x: 1})",
        "odd.die({x: 1})",
        "tools.mcp.odd.die.raw({x: 1})",
        "tools.mcpCallTool({server: 'odd', tool: 'die', arguments: {x: 1}})",
    ] {
        let (status, said) = told(&run(&place, &["--resume", &id, "-e", &format!("await {same}")]));
        assert!(status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1, "{same}: {said}");
    }
    // What is done is done, whoever wants to hear of it in another form.
    run(&place, &["-e", "await tools.mcp.odd.count({}); throw 1"]);
    let id = last(&place);
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", "await tools.mcp.odd.count.raw({})"]));
    assert!(status == 1 && said.contains("ask without `.raw`"), "{said}");
    let named = "return await tools.mcpCallTool({server: 'odd', tool: 'count', arguments: {}})";
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", named]));
    assert_eq!(status, 0, "{said}");
    assert_eq!(std::fs::read_to_string(&effects).unwrap(), "died\nx");
}

#[test]
fn a_server_that_says_it_only_reads_lets_one_look() {
    let place = Place::new();
    place.config(&Place::odd("odd", "annotated"));
    run(&place, &["--timeout", "1s", "-e", &format!("{CHANGE} await change()")]);
    std::fs::write(place.work().join("quick"), "").unwrap();
    let id = last(&place);
    let after = |look: &str| format!("{CHANGE} try {{ await change() }} catch {{ await {look}; await change() }}");
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", &after("odd.plain({})")]));
    assert!(status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1, "{said}");
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", &after("odd.look({})")]));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
}

#[test]
fn whoever_goes_on_from_the_first_run_again_goes_on_from_the_last() {
    let place = Place::new();
    let say = |word: &str| format!("await tools.exec({{command: ['sh', '-c', 'echo {word} >> effects']}});");
    run(&place, &["-e", &format!("{} throw 1", say("one"))]);
    let first = last(&place);
    run(&place, &["--resume", &first, "-e", &format!("{}{} throw 2", say("one"), say("two"))]);
    let (status, said) =
        told(&run(&place, &["--resume", &first, "-e", &format!("{}{}{}", say("one"), say("two"), say("three"))]));
    assert_eq!(status, 0, "{said}");
    assert_eq!(std::fs::read_to_string(place.work().join("effects")).unwrap(), "one\ntwo\nthree\n");
}

#[test]
fn of_several_that_go_on_at_once_one_does_the_rest() {
    let place = Place::new();
    run(&place, &["-e", "await tools.exec({command: ['sh', '-c', 'echo one >> effects']}); throw 1"]);
    let id = last(&place);
    let rest = "await tools.exec({command: ['sh', '-c', 'echo two >> effects; sleep 1']})";
    let begun: Vec<_> = (0..4)
        .map(|_| {
            let mut command = place.command(&["run", "-q", "--resume", &id, "-e", rest]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let ended: Vec<_> = begun.into_iter().map(|child| told(&child.wait_with_output().unwrap())).collect();
    assert_eq!(done(&place), 2, "{ended:?}");
    for (status, said) in ended.iter().filter(|(status, _)| *status != 0) {
        assert!(said.contains("still runs") || said.contains("has gone on from"), "{status} {said}");
    }
    assert!(ended.iter().any(|(status, _)| *status == 0), "{ended:?}");
}

#[test]
fn a_task_in_the_background_is_not_started_again() {
    let place = Place::new();
    place.config("[script_harness.expose]\nenable_spawn = true\n");
    let task = "const task = tools.spawn.exec('exec', {command: ['sh', '-c', 'echo one >> effects']});";
    let (status, said) = told(&run(&place, &["-e", &format!("{task} await task.done; throw 1")]));
    assert_eq!((status, done(&place)), (1, 1), "{said}");
    let first = last(&place);
    // What it came to is known; to wait for it is no change either.
    let more = format!(
        "{task} const other = tools.spawn.exec('exec', {{command: ['sh', '-c', 'echo two >> effects']}});
         await other.done; return (await task.done).exitCode"
    );
    let output = run(&place, &["--resume", &first, "-e", &more]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{:?}", told(&output));
    assert_eq!(std::fs::read_to_string(place.work().join("effects")).unwrap(), "one\ntwo\n");
    let shown = place.command(&["runs", "show", &last(&place)]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("spawn.exec"), "{shown}");
}
