//! The same work by another tool, another shell, another wall, as a task, in a terminal, or by another build.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Client, Place};

use crate::{done, last, run, support, told};

/// A place with a program `pay`, that leaves a line and then does this.
fn place_with(config: &str, then: &str) -> Place {
    let place = Place::new();
    place.config(config);
    let pay = place.work().join("pay");
    std::fs::write(&pay, format!("#!/bin/sh\necho one >> effects\n{then}\n")).unwrap();
    std::fs::set_permissions(pay, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    place
}

/// Kills a script once it has left a line, and waits until all of it is gone.
fn killed(place: &Place, source: &str) -> String {
    let mut child = place
        .command(&["run", "-q", "-e", source])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until(|| done(place) > 0 || child.try_wait().unwrap().is_some());
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    let id = last(place);
    let shown = || {
        String::from_utf8(
            place
                .command(&["runs", "show", &id])
                .output()
                .unwrap()
                .stdout,
        )
        .unwrap()
    };
    until(|| !shown().contains("running"));
    id
}

/// Looks until it is so.
fn until(mut it_is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !it_is_so() {
        assert!(began.elapsed() < support::PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A place where `pay` was stopped on its way, after it had left its line, by this call.
fn stopped(config: &str, call: &str) -> (Place, String) {
    let place = place_with(config, "test -e quick || sleep 60");
    let id = killed(&place, &format!("await {call}"));
    // The next one would be quick.
    std::fs::write(place.work().join("quick"), "").unwrap();
    (place, id)
}

const SPAWN: &str = "[script_harness.expose]\nenable_spawn = true\n";

const WAYS: [&str; 10] = [
    "tools.exec({command: ['./pay', '5']})",
    "tools.exec({command: ['bash', '-c', './pay 5']})",
    "tools.exec({command: ['/bin/sh', '-c', \"./pay  '5'\"], timeoutMs: 9000})",
    "tools.exec({command: ['timeout', '50', './pay', '5'], cwd: '.'})",
    "tools.execCommand({cmd: './pay 5'})",
    "tools.execCommand({cmd: './pay 5', shell: '/bin/bash', login: true})",
    "tools.execCommand({cmd: './pay \"5\"', shell: 'sh', yieldTimeMs: 5000})",
    "tools.spawn.exec('exec', {command: ['./pay', '5']}).done",
    "tools.spawn.exec('exec', {command: ['./pay', '5'], timeoutMs: 7000}).done",
    "tools.spawn.exec('exec_command', {cmd: './pay 5'}).done",
];

#[test]
fn what_nobody_knows_the_end_of_is_not_repeated_by_another_way() {
    for first in [WAYS[0], WAYS[4], WAYS[7]] {
        let (place, mut id) = stopped(SPAWN, first);
        for way in WAYS {
            let (status, said) = told(&run(
                &place,
                &["--resume", &id, "-e", &format!("await {way}")],
            ));
            assert!(
                status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
                "{first}, {way}: {said}"
            );
            id = last(&place);
        }
        // Whoever has looked may.
        let look = format!(
            "try {{ await {} }} catch {{ await tools.listDir({{}}); await {} }}",
            WAYS[5], WAYS[1]
        );
        let (status, said) = told(&run(&place, &["--resume", &id, "-e", &look]));
        assert_eq!((status, done(&place)), (0, 2), "{first}: {said}");
    }
}

#[test]
fn what_is_done_is_not_repeated_by_another_way() {
    // What was asked in the same words answers, as a call and as a task; any other way is told that it was done.
    for (first, answered) in [(0, [0, 7, 8].as_slice()), (4, &[4, 9]), (7, &[0, 7, 8])] {
        let place = place_with(SPAWN, "");
        run(&place, &["-e", &format!("await {}; throw 1", WAYS[first])]);
        assert_eq!(done(&place), 1);
        let id = last(&place);
        for (number, way) in WAYS.iter().enumerate() {
            let again = format!(
                "let told; try {{ told = `answered ${{(await {way}).exitCode}}` }}
                 catch (error) {{ told = error.message.includes('it is not made again') ? 'refused' : error.message }}
                 throw new Error(`so it was ${{told}}`)"
            );
            let (_, said) = told(&run(&place, &["--resume", &id, "-e", &again]));
            let wanted = if answered.contains(&number) {
                "so it was answered 0"
            } else {
                "so it was refused"
            };
            assert!(
                said.contains(wanted) && done(&place) == 1,
                "{}, {way}: {said}",
                WAYS[first]
            );
        }
    }
}

#[test]
fn what_was_killed_or_out_of_time_is_of_unknown_outcome_by_another_way() {
    for first in [
        "['timeout', '0.3', './pay', '5']",
        "['bash', '-c', './pay 5 & wait; kill -9 $$']",
    ] {
        let place = place_with("", "sleep 0.6");
        run(
            &place,
            &[
                "-e",
                &format!("await tools.exec({{command: {first}}}); throw 1"),
            ],
        );
        assert_eq!(done(&place), 1);
        let other = first
            .replace("'timeout', '0.3', ", "")
            .replace("'bash'", "'sh'");
        let again = format!("await tools.exec({{command: {other}}})");
        let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &again]));
        assert!(
            status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
            "{first}: {said}"
        );
    }
}

#[test]
fn what_failed_may_be_tried_by_another_way() {
    let place = Place::new();
    let array = "echo one >> effects; a=(1 2); test ${#a[@]} = 2";
    run(
        &place,
        &[
            "-e",
            &format!("await tools.exec({{command: ['dash', '-c', '{array}']}}); throw 1"),
        ],
    );
    let again =
        format!("return (await tools.exec({{command: ['bash', '-c', '{array}']}})).exitCode");
    let output = run(&place, &["--resume", &last(&place), "-e", &again]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "0",
        "{:?}",
        told(&output)
    );
}

#[test]
fn without_the_wall_it_is_the_same_command() {
    let (place, id) = stopped(
        "approval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n",
        WAYS[0],
    );
    let escalated = "tools.exec({command: ['./pay', '5'], withEscalatedPermissions: true})";
    let (status, said) = told(&run(
        &place,
        &["--resume", &id, "-e", &format!("await {escalated}")],
    ));
    assert!(
        status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
        "{said}"
    );
}

#[test]
fn a_patch_is_the_same_as_a_command() {
    let place = Place::new();
    let patch = "*** Begin Patch\\n*** Add File: made\\n+x\\n*** End Patch\\n";
    run(
        &place,
        &[
            "-e",
            &format!("await tools.exec({{command: ['apply_patch', '{patch}']}}); throw 1"),
        ],
    );
    assert!(place.work().join("made").exists());
    std::fs::remove_file(place.work().join("made")).unwrap();
    let again = format!("await tools.applyPatch({{patch: '{patch}', cwd: './'}})");
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &again]));
    assert!(
        status == 1 && said.contains("it is not made again") && !place.work().join("made").exists(),
        "{said}"
    );
    let again = format!(
        "await tools.exec({{command: ['bash', '-lc', `apply_patch <<'EOF'\n{patch}EOF`]}})"
    );
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &again]));
    // The same tool, with the patch in a here-document: it answers.
    assert!(status == 0 && !place.work().join("made").exists(), "{said}");
}

#[test]
fn a_link_is_what_it_is_called() {
    let place = place_with("", "");
    for folder in ["v1", "v2"] {
        std::fs::create_dir(place.work().join(folder)).unwrap();
    }
    let release =
        |to: &str| format!("await tools.exec({{command: ['ln', '-sfn', '{to}', 'current']}});");
    let pay =
        "await tools.exec({command: ['sh', '-c', 'echo one >> ../effects'], cwd: 'current'});";
    let all = format!("{} {pay} {} {pay}", release("v1"), release("v2"));
    run(&place, &["-e", &format!("{all} throw 1")]);
    assert_eq!(done(&place), 2);
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &all]));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
}

#[test]
fn the_same_call_made_twice_hears_twice_what_it_heard() {
    let place = place_with("", "wc -l < effects");
    let twice =
        "const one = (await tools.exec({command: ['./pay']})).stdout.trim(); if (stop()) throw new Error('early');
        const two = (await tools.exec({command: ['./pay']})).stdout.trim();";
    let whole = format!("const stop = () => false; {twice}");
    run(&place, &["-e", &format!("{whole} throw new Error('late')")]);
    run(
        &place,
        &[
            "--resume",
            &last(&place),
            "-e",
            &format!("const stop = () => true; {twice}"),
        ],
    );
    let output = run(
        &place,
        &[
            "--resume",
            &last(&place),
            "-e",
            &format!("{whole} return `${{one}} and ${{two}}`"),
        ],
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "1 and 2",
        "{:?}",
        told(&output)
    );
    assert_eq!(done(&place), 2);
}

#[test]
fn a_file_is_the_same_however_its_path_is_said() {
    let place = Place::new();
    let write =
        |path: &str| format!("await tools.writeFile({{path: '{path}', content: 'one\\n'}});");
    let append = "await tools.exec({command: ['sh', '-c', 'echo two >> effects']});";
    run(
        &place,
        &["-e", &format!("{} {append} throw 1", write("effects"))],
    );
    let (status, said) = told(&run(
        &place,
        &[
            "--resume",
            &last(&place),
            "-e",
            &format!("{} {append}", write("./effects")),
        ],
    ));
    assert_eq!((status, done(&place)), (0, 2), "{said}");
}

#[test]
fn a_terminal_that_was_followed_to_its_end_is_told_again() {
    let place = Place::new();
    let follow = "let seen = await tools.execCommand({cmd: 'read a; echo $a >> effects; sleep 0.5', yieldTimeMs: 100});
        const terminal = seen.sessionId;
        seen = await tools.writeStdin({sessionId: terminal, chars: 'hello\\n', yieldTimeMs: 1});
        while (seen.exitCode === undefined) seen = await tools.writeStdin({sessionId: terminal, yieldTimeMs: 100});";
    let (_, said) = told(&run(
        &place,
        &["-e", &format!("{follow} throw new Error('first')")],
    ));
    assert!(said.contains("first") && done(&place) == 1, "{said}");
    // By another tool it is neither done again nor of unknown outcome, and what it came to is still there to be told.
    let other =
        "await tools.exec({command: ['bash', '-c', 'read a; echo $a >> effects; sleep 0.5']})";
    let (_, said) = told(&run(&place, &["--resume", &last(&place), "-e", other]));
    assert!(
        said.contains("it is not made again") && done(&place) == 1,
        "{said}"
    );
    let output = run(
        &place,
        &[
            "--resume",
            &last(&place),
            "-e",
            &format!("{follow} return seen.exitCode"),
        ],
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "0",
        "{:?}",
        told(&output)
    );
    assert_eq!(done(&place), 1);
}

#[test]
fn a_task_that_was_killed_is_of_unknown_outcome() {
    let (place, id) = stopped(SPAWN, WAYS[7]);
    let call = format!("await {}", WAYS[0]);
    let task = format!("await {}", WAYS[7]);
    // Whoever was told of it before, and where its run is forgotten.
    for (number, again) in [&task, &call, &task, &call].into_iter().enumerate() {
        if number == 2 {
            let file = rusqlite::Connection::open(place.home().join("journal.sqlite")).unwrap();
            file.execute_batch(
                "DELETE FROM calls WHERE run LIKE 'tsk_%'; DELETE FROM runs WHERE id LIKE 'tsk_%'",
            )
            .unwrap();
        }
        let (status, said) = told(&run(&place, &["--resume", &id, "-e", again]));
        assert!(
            status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
            "{again}: {said}"
        );
    }
}

#[test]
fn a_task_that_goes_on_is_waited_for() {
    let place = place_with(SPAWN, "until test -e quick; do sleep 0.05; done; exit 3");
    let mut client = Client::start(&place, &[], json!({}));
    let id = |answer: &Value| {
        answer["structuredContent"]["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let failed = client.call(
        "script",
        json!({"code": "tools.spawn.exec('exec', {command: ['./pay', '5']}); throw 1"}),
    );
    until(|| done(&place) > 0);
    let refused = client.call(
        "script",
        json!({"code": format!("await {}", WAYS[0]), "resume": id(&failed)}),
    );
    assert!(
        refused.to_string().contains("it goes on as a task") && done(&place) == 1,
        "{refused}"
    );
    std::fs::write(place.work().join("quick"), "").unwrap();
    let again =
        json!({"code": format!("return (await {}).exitCode", WAYS[7]), "resume": id(&refused)});
    let waited = client.call("script", again);
    assert!(
        waited["structuredContent"]["output_json"] == "3" && done(&place) == 1,
        "{waited}"
    );
}

#[test]
fn a_script_that_was_put_away_knows_its_tasks() {
    for (pay, then, told_of_it) in [
        ("", "await k.done;", "\"0\""),
        ("sleep 60", "", "\"OutcomeUnknownError\""),
    ] {
        let place = place_with(&format!("approval_policy = \"on-request\"\n{SPAWN}"), pay);
        let source = format!(
            "const k = tools.spawn.exec('exec', {{command: ['./pay', '5']}}); {then}
             while (!(await tools.fileSearch({{pattern: 'effects'}})).length);
             await tools.exec({{command: ['true', 'x'], withEscalatedPermissions: true, justification: 'to ask'}});
             try {{ return String((await k.done).exitCode) }} catch (error) {{ return error.metadata.code }}"
        );
        let first = place
            .command(&["run", "--suspend", "--json", "-e", &source])
            .output()
            .unwrap();
        let first: Value = serde_json::from_slice(&first.stdout).unwrap();
        assert_eq!(first["status"], "suspended", "{first}");
        let again = [
            "runs",
            "resume",
            first["id"].as_str().unwrap(),
            "--approve",
            "--json",
        ];
        let again: Value =
            serde_json::from_slice(&place.command(&again).output().unwrap().stdout).unwrap();
        assert_eq!(
            (&again["output_json"], done(&place)),
            (&json!(told_of_it), 1),
            "{again}"
        );
    }
}

#[test]
fn what_was_passed_over_is_named() {
    let (place, id) = stopped("", WAYS[0]);
    let by_hand = "await tools.writeFile({path: 'effects', content: 'one\\none\\n'})";
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", by_hand]));
    assert!(
        status == 0 && said.contains(&format!("nobody knows how {id}/tool_1 ended")),
        "{said}"
    );
    let (_, said) = told(&run(
        &place,
        &[
            "--resume",
            &last(&place),
            "-e",
            "return await tools.listDir({})",
        ],
    ));
    assert!(!said.contains("nobody knows"), "{said}");
    // Whoever is told of one of two and ends has changed nothing.
    let (place, id) = stopped(
        "",
        "Promise.all([tools.exec({command: ['./pay', '5']}), tools.exec({command: ['sleep', '60']})])",
    );
    let (_, said) = told(&run(
        &place,
        &["--resume", &id, "-e", &format!("await {}", WAYS[0])],
    ));
    assert!(
        said.contains("OutcomeUnknownError") && !said.contains("without asking"),
        "{said}"
    );
}

#[test]
fn runs_that_another_build_wrote_are_known_again() {
    let (place, id) = stopped("", WAYS[0]);
    let file = rusqlite::Connection::open(place.home().join("journal.sqlite")).unwrap();
    file.execute("UPDATE calls SET digest = 'ff00'", [])
        .unwrap();
    drop(file);
    for way in [WAYS[0], WAYS[5]] {
        let (status, said) = told(&run(
            &place,
            &["--resume", &id, "-e", &format!("await {way}")],
        ));
        assert!(
            status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1,
            "{way}: {said}"
        );
    }
    let place = Place::new();
    run(
        &place,
        &[
            "-e",
            "await tools.exec({command: ['sh', '-c', 'echo one >> effects']}); throw 1",
        ],
    );
    let file = rusqlite::Connection::open(place.home().join("journal.sqlite")).unwrap();
    file.execute("UPDATE calls SET digest = 'ff00'", [])
        .unwrap();
    for _ in 0..2 {
        run(
            &place,
            &[
                "--resume",
                &last(&place),
                "-e",
                "await tools.exec({command: ['sh', '-c', 'echo one >> effects']}); throw 1",
            ],
        );
        assert_eq!(done(&place), 1);
    }
}
