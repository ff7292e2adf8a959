//! Going on from an earlier run: the same work is the same, however and by whomever it is asked for.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

#[path = "resuming/otherwise.rs"]
mod otherwise;
#[path = "resuming/servers.rs"]
mod servers;
mod support;

use std::process::{Output, Stdio};

use serde_json::Value;
use support::Place;

fn run(place: &Place, args: &[&str]) -> Output {
    place
        .command(&["run", "-q"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Its status and what it said of errors.
fn told(output: &Output) -> (i32, String) {
    (
        output.status.code().unwrap(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// The last script's run.
fn last(place: &Place) -> String {
    let listed = place.command(&["runs", "list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let mut ids = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["id"].as_str().unwrap());
    ids.find(|id| id.starts_with("scr_")).unwrap().to_owned()
}

/// Lines that were left by what was done.
fn done(place: &Place) -> usize {
    std::fs::read_to_string(place.work().join("effects"))
        .unwrap_or_default()
        .lines()
        .count()
}

/// A place where a command was stopped on its way, after it had left its line, and the run it belonged to.
fn stopped_on_its_way() -> (Place, String) {
    let place = Place::new();
    run(
        &place,
        &["--timeout", "1s", "-e", &format!("{CHANGE} await change()")],
    );
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
    for more in [
        "{timeoutMs: 5000}",
        "{cwd: '.'}",
        "{cwd: './x/..', env: {}}",
        &format!("{{cwd: '{here}'}}"),
    ] {
        let (status, said) = told(&run(
            &place,
            &[
                "--resume",
                &id,
                "-e",
                &format!("{CHANGE} await change({more})"),
            ],
        ));
        assert!(
            status == 1 && said.contains("OutcomeUnknownError"),
            "{more}: {said}"
        );
    }
    assert_eq!(done(&place), 1);
    // In another folder it is another command.
    std::fs::create_dir(place.work().join("below")).unwrap();
    std::fs::write(place.work().join("below/quick"), "").unwrap();
    let (status, said) = told(&run(
        &place,
        &[
            "--resume",
            &id,
            "-e",
            &format!("{CHANGE} await change({{cwd: 'below'}})"),
        ],
    ));
    assert_eq!(
        (status, place.work().join("below/effects").exists()),
        (0, true),
        "{said}"
    );
}

#[test]
fn a_command_that_is_done_answers_whoever_is_more_patient() {
    let place = Place::new();
    let echo = |more: &str| {
        format!("await tools.exec({{command: ['sh', '-c', 'echo one >> effects']{more}}});")
    };
    run(&place, &["-e", &format!("{} throw 1", echo(""))]);
    let (status, said) = told(&run(
        &place,
        &["--resume", &last(&place), "-e", &echo(", timeoutMs: 5000")],
    ));
    assert_eq!((status, done(&place)), (0, 1), "{said}");
}

#[test]
fn a_command_whose_time_was_up_is_of_unknown_outcome_until_it_was_done() {
    let place = Place::new();
    let slow = |how: &str| {
        format!(
            "const slow = (how) => tools.exec({{command: ['sh', '-c', 'echo one >> effects; sleep 1'], ...how}});
             {how}"
        )
    };
    let go_on = |how: &str| told(&run(&place, &["--resume", &last(&place), "-e", &slow(how)]));
    run(
        &place,
        &["-e", &slow("throw (await slow({timeoutMs: 200})).timedOut")],
    );
    assert_eq!(done(&place), 1);
    // In the same manner it came to what it came to; in another, nobody knows how far it came.
    let (status, said) = go_on("if ((await slow({timeoutMs: 200})).timedOut) throw 'too slow'");
    assert!(
        status == 1 && said.contains("too slow") && done(&place) == 1,
        "{said}"
    );
    let (status, said) = go_on("await slow({timeoutMs: 60000})");
    assert!(
        status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
        "{said}"
    );
    let (status, said) = go_on(
        "try { await slow({timeoutMs: 60000}) } catch { await tools.listDir({}); await slow({timeoutMs: 60000}) } throw 1",
    );
    assert!(status == 1 && done(&place) == 2, "{said}");
    for how in ["{timeoutMs: 60000}", "{timeoutMs: 50000}", "{}"] {
        let (_, said) = go_on(&format!("await slow({how}); throw 1"));
        assert!(
            !said.contains("OutcomeUnknownError") && done(&place) == 2,
            "{how}: {said}"
        );
    }
}

#[test]
fn a_command_in_a_terminal_is_the_same_however_long_it_is_waited_for() {
    let place = Place::new();
    let change = "const change = (how) => tools.execCommand({cmd: 'echo one >> effects; test -e quick || sleep 60', ...how});";
    run(
        &place,
        &["--timeout", "1s", "-e", &format!("{change} await change()")],
    );
    assert_eq!(done(&place), 1);
    std::fs::write(place.work().join("quick"), "").unwrap();
    for how in ["{}", "{yieldTimeMs: 5000}", "{workdir: '.'}"] {
        let again = format!("{change} await change({how})");
        let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &again]));
        assert!(
            status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
            "{how}: {said}"
        );
    }
    // One that is done answers.
    let echo = |how: &str| {
        format!("await tools.execCommand({{cmd: 'echo two >> effects'{how}}}); throw 1")
    };
    run(&place, &["-e", &echo("")]);
    run(
        &place,
        &[
            "--resume",
            &last(&place),
            "-e",
            &echo(", yieldTimeMs: 5000"),
        ],
    );
    assert_eq!(done(&place), 2);
}

#[test]
fn a_terminal_that_ended_with_its_script_is_nobodys() {
    let place = Place::new();
    let cat =
        |file: &str| format!("await tools.execCommand({{cmd: 'cat >> {file}', yieldTimeMs: 300}})");
    run(&place, &["-e", &format!("{}; throw 1", cat("a"))]);
    let shown = place
        .command(&["runs", "show", &last(&place)])
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("left at work in its terminal and nobody knows how it ended"),
        "{shown}"
    );
    let (status, said) = told(&run(
        &place,
        &[
            "--resume",
            &last(&place),
            "-e",
            &format!(
                "const b = {}; const a = {}; await tools.writeStdin({{sessionId: a.sessionId, chars: 'for a\\n'}})",
                cat("b"),
                cat("a")
            ),
        ],
    ));
    assert!(
        status == 1 && said.contains("OutcomeUnknownError"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(place.work().join("b")).unwrap(), "");
}

#[test]
fn only_what_tells_of_the_world_is_a_look() {
    let (place, id) = stopped_on_its_way();
    let after = |look: &str| {
        format!("{CHANGE} try {{ await change() }} catch {{ {look}; await change() }}")
    };
    assert!(
        std::process::Command::new("mkfifo")
            .arg(place.work().join("pipe"))
            .status()
            .unwrap()
            .success()
    );
    for no_look in [
        "await tools.updatePlan({plan: [{step: 'pay', status: 'pending'}]})",
        "await tools.search({query: 'file'})",
        "await tools.writeFile({path: 'other', content: ''})",
        "await tools.readFile({path: JSON.parse('7')}).catch(() => {})",
        "await tools.exec({command: ['cat', 'pipe'], timeoutMs: 200})",
        "await tools.exec({command: ['ls'], cwd: 'nowhere'}).catch(() => {})",
        "await tools.exec({command: ['true']})",
        "await tools.execCommand({cmd: 'cat pipe', yieldTimeMs: 200})",
        "await tools.execCommand({cmd: 'cd . && echo looked; date'})",
        "await recall('scr_none').catch(() => {})",
        "await tools.fetchFromFC({fileKey: 'none'}).catch(() => {})",
    ] {
        let (status, said) = told(&run(&place, &["--resume", &id, "-e", &after(no_look)]));
        assert!(
            status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
            "{no_look}: {said}"
        );
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
    assert!(
        status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
        "{said}"
    );
}

#[test]
fn two_calls_for_the_same_are_two_whatever_became_of_the_first() {
    let (place, id) = stopped_on_its_way();
    let twice = format!(
        "{CHANGE} const once = async () => {{ try {{ await change() }} catch (e) {{
             if (e.name !== 'OutcomeUnknownError') throw e;
             await tools.readFile({{path: 'effects'}});
         }} }};
         await once(); await once();"
    );
    // The first was done, as a look shows; the second is.
    let (status, said) = told(&run(
        &place,
        &["--resume", &id, "-e", &format!("{twice} throw 1")],
    ));
    assert_eq!((status, done(&place)), (1, 2), "{said}");
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &twice]));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
    // Of two at once the one that is known to be done answers.
    let place = Place::new();
    let both = "const one = (go) => tools.exec({command: ['sh', '-c', 'echo one >> effects; mkdir first || exit 0; sleep 60']});";
    run(
        &place,
        &[
            "--timeout",
            "2s",
            "-e",
            &format!("{both} await Promise.all([one(), one()])"),
        ],
    );
    assert_eq!(done(&place), 2);
    let again = format!(
        "{both} for (const n of [1, 2]) try {{ await one() }} catch {{ await tools.listDir({{}}) }}"
    );
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &again]));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
}

#[test]
fn of_several_that_nobody_knows_the_end_of_each_is_told_before_one_is_repeated() {
    let place = Place::new();
    let both =
        "const pay = () => tools.exec({command: ['sh', '-c', 'echo one >> effects; sleep 60']});";
    run(
        &place,
        &[
            "--timeout",
            "2s",
            "-e",
            &format!("{both} await Promise.all([pay(), pay()])"),
        ],
    );
    assert_eq!(done(&place), 2);
    let once = "const once = async (wanted) => { for (;;) try { return await pay() } catch (e) {
            if (e.name !== 'OutcomeUnknownError') throw e;
            if ((await tools.readFile({path: 'effects'})).text.split('one').length > wanted) return;
        } };";
    let careful = format!("{both} {once} await once(1); await once(2)");
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &careful]));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
    // Where they took no effect, the loop comes to its end.
    let third = format!(
        "{both} {once} await Promise.race([once(3), new Promise(r => setTimeout(r, 2000))])"
    );
    let (_, said) = told(&run(&place, &["--resume", &last(&place), "-e", &third]));
    assert_eq!(done(&place), 3, "{said}");
}

#[test]
fn whoever_was_stopped_on_the_way_is_told_how_to_go_on() {
    let place = Place::new();
    let (_, said) = told(&run(
        &place,
        &["--timeout", "1s", "-e", &format!("{CHANGE} await change()")],
    ));
    assert!(
        said.contains(&format!("--resume {}", last(&place))),
        "{said}"
    );
}

#[test]
fn what_a_forgotten_run_did_is_known_from_those_that_went_on_from_it() {
    let (place, first) = stopped_on_its_way();
    let other = "await tools.exec({command: ['sh', '-c', 'echo two >> effects']});";
    run(&place, &["-e", &format!("{other} throw 1")]);
    let done_there = last(&place);
    let forget = |run: &str| {
        let file = rusqlite::Connection::open(place.home().join("journal.sqlite")).unwrap();
        file.execute("DELETE FROM calls WHERE run = ?1", [run])
            .unwrap();
        assert_eq!(
            file.execute("DELETE FROM runs WHERE id = ?1", [run])
                .unwrap(),
            1
        );
    };
    run(
        &place,
        &[
            "--resume",
            &first,
            "-e",
            &format!("{CHANGE} await change()"),
        ],
    );
    let unknown_here = last(&place);
    run(
        &place,
        &["--resume", &done_there, "-e", &format!("{other} throw 2")],
    );
    let reused_here = last(&place);
    forget(&first);
    forget(&done_there);
    let (status, said) = told(&run(
        &place,
        &[
            "--resume",
            &unknown_here,
            "-e",
            &format!("{CHANGE} await change()"),
        ],
    ));
    assert!(
        status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 2,
        "{said}"
    );
    let (status, said) = told(&run(&place, &["--resume", &reused_here, "-e", other]));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
}

#[test]
fn what_is_read_in_the_same_moment_as_a_change_is_never_told_again() {
    let place = Place::new();
    let files = 100;
    for n in 0..files {
        std::fs::write(place.work().join(format!("f{n}")), "old").unwrap();
    }
    let both = |how: &str| {
        format!(
            "const seen = []; for (let n = 0; n < {files}; n++) {{ {how} }} return seen.filter(text => text === 'old').length"
        )
    };
    let beside = "await Promise.all([tools.writeFile({path: `f${n}`, content: 'new'}), tools.readFile({path: `f${n}`})]);";
    run(
        &place,
        &[
            "--max-calls",
            "1000",
            "-e",
            &format!("{} throw 1", both(beside).split(" return").next().unwrap()),
        ],
    );
    let after = "await tools.writeFile({path: `f${n}`, content: 'new'}); seen.push((await tools.readFile({path: `f${n}`})).text);";
    let output = run(
        &place,
        &[
            "--max-calls",
            "1000",
            "--resume",
            &last(&place),
            "-e",
            &both(after),
        ],
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "0",
        "{:?}",
        told(&output)
    );
}

#[test]
fn whoever_goes_on_from_the_first_run_again_goes_on_from_the_last() {
    let place = Place::new();
    let say = |word: &str| {
        format!("await tools.exec({{command: ['sh', '-c', 'echo {word} >> effects']}});")
    };
    run(&place, &["-e", &format!("{} throw 1", say("one"))]);
    let first = last(&place);
    run(
        &place,
        &[
            "--resume",
            &first,
            "-e",
            &format!("{}{} throw 2", say("one"), say("two")),
        ],
    );
    let (status, said) = told(&run(
        &place,
        &[
            "--resume",
            &first,
            "-e",
            &format!("{}{}{}", say("one"), say("two"), say("three")),
        ],
    ));
    assert_eq!(status, 0, "{said}");
    assert_eq!(
        std::fs::read_to_string(place.work().join("effects")).unwrap(),
        "one\ntwo\nthree\n"
    );
}

#[test]
fn of_several_that_go_on_at_once_one_does_the_rest() {
    let place = Place::new();
    run(
        &place,
        &[
            "-e",
            "await tools.exec({command: ['sh', '-c', 'echo one >> effects']}); throw 1",
        ],
    );
    let id = last(&place);
    let rest = "await tools.exec({command: ['sh', '-c', 'echo two >> effects; sleep 1']})";
    let begun: Vec<_> = (0..4)
        .map(|_| {
            let mut command = place.command(&["run", "-q", "--resume", &id, "-e", rest]);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let ended: Vec<_> = begun
        .into_iter()
        .map(|child| told(&child.wait_with_output().unwrap()))
        .collect();
    assert_eq!(done(&place), 2, "{ended:?}");
    for (status, said) in ended.iter().filter(|(status, _)| *status != 0) {
        assert!(
            said.contains("still runs") || said.contains("has gone on from"),
            "{status} {said}"
        );
    }
    assert!(ended.iter().any(|(status, _)| *status == 0), "{ended:?}");
}

#[test]
fn a_task_in_the_background_is_not_started_again() {
    let place = Place::new();
    place.config("[script_harness.expose]\nenable_spawn = true\n");
    let task =
        "const task = tools.spawn.exec('exec', {command: ['sh', '-c', 'echo one >> effects']});";
    let (status, said) = told(&run(
        &place,
        &["-e", &format!("{task} await task.done; throw 1")],
    ));
    assert_eq!((status, done(&place)), (1, 1), "{said}");
    let first = last(&place);
    // What it came to is known; to wait for it is no change either.
    let more = format!(
        "{task} const other = tools.spawn.exec('exec', {{command: ['sh', '-c', 'echo two >> effects']}});
         await other.done; return (await task.done).exitCode"
    );
    let output = run(&place, &["--resume", &first, "-e", &more]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "0",
        "{:?}",
        told(&output)
    );
    assert_eq!(
        std::fs::read_to_string(place.work().join("effects")).unwrap(),
        "one\ntwo\n"
    );
    let shown = place
        .command(&["runs", "show", &last(&place)])
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("spawn.exec"), "{shown}");
}
