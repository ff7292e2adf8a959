//! The same work by another tool, another shell, another wall, as a task, in a terminal, or by another build.

use support::Place;

use crate::{done, last, run, support, told};

/// A place where `pay` was stopped on its way, after it had left its line, by this call.
fn stopped(config: &str, call: &str) -> (Place, String) {
    let place = Place::new();
    place.config(config);
    let pay = "#!/bin/sh\necho one >> effects\ntest -e quick || sleep 60\n";
    std::fs::write(place.work().join("pay"), pay).unwrap();
    std::process::Command::new("chmod").arg("+x").arg(place.work().join("pay")).status().unwrap();
    let (_, said) = told(&run(&place, &["--timeout", "1s", "-e", &format!("await {call}")]));
    assert_eq!(done(&place), 1, "{said}");
    // The next one would be quick.
    std::fs::write(place.work().join("quick"), "").unwrap();
    let id = last(&place);
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
            let (status, said) = told(&run(&place, &["--resume", &id, "-e", &format!("await {way}")]));
            assert!(status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1, "{first}, {way}: {said}");
            id = last(&place);
        }
        // Whoever has looked may.
        let look = format!("try {{ await {} }} catch {{ await tools.listDir({{}}); await {} }}", WAYS[5], WAYS[1]);
        let (status, said) = told(&run(&place, &["--resume", &id, "-e", &look]));
        assert_eq!((status, done(&place)), (0, 2), "{first}: {said}");
    }
}

#[test]
fn what_is_done_is_not_repeated_by_another_way() {
    for first in [WAYS[0], WAYS[4], WAYS[7]] {
        let place = Place::new();
        place.config(SPAWN);
        std::fs::write(place.work().join("pay"), "#!/bin/sh\necho one >> effects\n").unwrap();
        std::process::Command::new("chmod").arg("+x").arg(place.work().join("pay")).status().unwrap();
        run(&place, &["-e", &format!("await {first}; throw 1")]);
        assert_eq!(done(&place), 1);
        let id = last(&place);
        for way in WAYS {
            // It answers, or it says that its answer has another form.
            let again = format!(
                "try {{ const {{ exitCode }} = await {way}; if (exitCode !== 0) return 'failed' }}
                 catch (error) {{ if (!error.message.includes('is not done again')) throw error }}
                 throw new Error('as it should')"
            );
            let (_, said) = told(&run(&place, &["--resume", &id, "-e", &again]));
            assert!(said.contains("as it should") && done(&place) == 1, "{first}, {way}: {said}");
        }
    }
}

#[test]
fn what_failed_may_be_tried_by_another_way() {
    let place = Place::new();
    let array = "echo one >> effects; a=(1 2); test ${#a[@]} = 2";
    run(&place, &["-e", &format!("await tools.exec({{command: ['dash', '-c', '{array}']}}); throw 1")]);
    let again = format!("return (await tools.exec({{command: ['bash', '-c', '{array}']}})).exitCode");
    let output = run(&place, &["--resume", &last(&place), "-e", &again]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{:?}", told(&output));
}

#[test]
fn without_the_wall_it_is_the_same_command() {
    let (place, id) = stopped("approval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n", WAYS[0]);
    let escalated = "tools.exec({command: ['./pay', '5'], withEscalatedPermissions: true})";
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", &format!("await {escalated}")]));
    assert!(status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1, "{said}");
}

#[test]
fn a_patch_is_the_same_as_a_command() {
    let place = Place::new();
    let patch = "*** Begin Patch\\n*** Add File: made\\n+x\\n*** End Patch\\n";
    run(&place, &["-e", &format!("await tools.exec({{command: ['apply_patch', '{patch}']}}); throw 1")]);
    assert!(place.work().join("made").exists());
    std::fs::remove_file(place.work().join("made")).unwrap();
    let again = format!("await tools.applyPatch({{patch: '{patch}', cwd: './'}})");
    let (status, said) = told(&run(&place, &["--resume", &last(&place), "-e", &again]));
    assert!(status == 1 && said.contains("is not done again") && !place.work().join("made").exists(), "{said}");
}

#[test]
fn a_terminal_that_was_followed_to_its_end_is_told_again() {
    let place = Place::new();
    let follow = "let seen = await tools.execCommand({cmd: 'read a; echo $a >> effects; sleep 0.5', yieldTimeMs: 100});
        const terminal = seen.sessionId;
        seen = await tools.writeStdin({sessionId: terminal, chars: 'hello\\n', yieldTimeMs: 1});
        while (seen.exitCode === undefined) seen = await tools.writeStdin({sessionId: terminal, yieldTimeMs: 100});";
    let (_, said) = told(&run(&place, &["-e", &format!("{follow} throw new Error('first')")]));
    assert!(said.contains("first") && done(&place) == 1, "{said}");
    let output = run(&place, &["--resume", &last(&place), "-e", &format!("{follow} return seen.exitCode")]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{:?}", told(&output));
    assert_eq!(done(&place), 1);
}

#[test]
fn a_task_that_was_killed_is_of_unknown_outcome() {
    let place = Place::new();
    place.config(SPAWN);
    let task = "const task = tools.spawn.exec('exec', {command: ['sh', '-c', 'echo one >> effects; sleep 60']});";
    let mut child = place.command(&["run", "-q", "-e", &format!("{task} await task.done")]).spawn().unwrap();
    while done(&place) == 0 {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let id = last(&place);
    // Its last command is being ended: that takes a moment.
    let shown = || String::from_utf8(place.command(&["runs", "show", &id]).output().unwrap().stdout).unwrap();
    while shown().contains("running") {}
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", &format!("{task} await task.done")]));
    assert!(status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1, "{said}");
}

#[test]
fn what_was_passed_over_is_named() {
    let (place, id) = stopped("", WAYS[0]);
    let by_hand = "await tools.writeFile({path: 'effects', content: 'one\\none\\n'})";
    let (status, said) = told(&run(&place, &["--resume", &id, "-e", by_hand]));
    assert!(status == 0 && said.contains(&format!("nobody knows how {id}/tool_1 ended")), "{said}");
    let (_, said) = told(&run(&place, &["--resume", &last(&place), "-e", "return await tools.listDir({})"]));
    assert!(!said.contains("nobody knows"), "{said}");
}

#[test]
fn runs_that_another_build_wrote_are_known_again() {
    let (place, id) = stopped("", WAYS[0]);
    let file = rusqlite::Connection::open(place.home().join("journal.sqlite")).unwrap();
    file.execute("UPDATE calls SET digest = 'ff00'", []).unwrap();
    drop(file);
    for way in [WAYS[0], WAYS[5]] {
        let (status, said) = told(&run(&place, &["--resume", &id, "-e", &format!("await {way}")]));
        assert!(status == 1 && said.contains("OutcomeUnknownError") && done(&place) == 1, "{way}: {said}");
    }
    let place = Place::new();
    run(&place, &["-e", "await tools.exec({command: ['sh', '-c', 'echo one >> effects']}); throw 1"]);
    let file = rusqlite::Connection::open(place.home().join("journal.sqlite")).unwrap();
    file.execute("UPDATE calls SET digest = 'ff00'", []).unwrap();
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
