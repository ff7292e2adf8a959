//! Runs that resume one another.

use serde_json::{Value, json};

use crate::support::Place;
use crate::{PAY, code, done, failed, interrupted, last, place_with, resume, run, told};

fn say(word: &str) -> String {
    format!("await tools.exec({{command: ['sh', '-c', 'echo {word} >> effects']}});")
}

fn effects(place: &Place) -> String {
    std::fs::read_to_string(place.work().join("effects")).unwrap()
}

#[test]
fn what_was_done_two_runs_ago_is_not_done_again() {
    let place = Place::new();
    let first = failed(&place, &format!("{}{}", say("one"), say("two")));
    resume(&place, &first, &format!("{} throw 1", say("one")));
    let all = format!("{}{}{}", say("one"), say("two"), say("three"));
    let output = resume(&place, &last(&place), &all);
    assert_eq!(output["error"], Value::Null);
    assert_eq!(effects(&place), "one\ntwo\nthree\n");
}

#[test]
fn naming_the_first_run_again_continues_from_the_newest() {
    let place = Place::new();
    let first = failed(&place, &say("one"));
    resume(
        &place,
        &first,
        &format!("{}{} throw 2", say("one"), say("two")),
    );
    let all = format!("{}{}{}", say("one"), say("two"), say("three"));
    let output = resume(&place, &first, &all);
    assert_eq!(output["error"], Value::Null);
    assert_eq!(effects(&place), "one\ntwo\nthree\n");
}

#[test]
fn identical_calls_are_answered_in_recorded_order_through_a_chain() {
    let place = Place::new();
    let count = "const count = async () => Number((await tools.exec({command: ['sh', '-c', 'echo x >> effects; wc -l < effects']})).stdout);";
    let first = failed(
        &place,
        &format!("{count} await count(); await count(); await count()"),
    );
    // This one uses one of the three.
    resume(&place, &first, &format!("{count} await count(); throw 1"));
    let all =
        format!("{count} return [await count(), await count(), await count(), await count()]");
    let output = resume(&place, &first, &all);
    assert_eq!(output["output_json"], "[1,2,3,4]");
}

#[test]
fn a_repeated_call_takes_the_place_of_the_recorded_one() {
    let (place, first) = interrupted("", PAY);
    let repeat = format!("resume.repeat('{first}/tool_1'); await {PAY};");
    let failed = resume(&place, &first, &format!("{repeat} throw 'later'"));
    assert_eq!((code(&failed), done(&place)), ("ScriptRuntimeError", 2));
    // The decision is carried out: the same script neither repeats it nor stumbles over the line.
    let output = resume(&place, &first, &repeat);
    assert_eq!((&output["error"], done(&place)), (&Value::Null, 2));
}

#[test]
fn a_skipped_call_has_to_be_decided_again() {
    let (place, first) = interrupted("", PAY);
    let skip = format!("resume.skip('{first}/tool_1', 'paid'); const paid = await {PAY};");
    let failed = resume(&place, &first, &format!("{skip} throw 'later'"));
    assert_eq!(code(&failed), "ScriptRuntimeError");
    let forgot = resume(&place, &first, &format!("await {PAY}"));
    assert_eq!(code(&forgot), "OutcomeUnknownError");
    let output = resume(&place, &first, &format!("{skip} return paid"));
    assert_eq!(
        (&output["output_json"], done(&place)),
        (&json!("\"paid\""), 1)
    );
}

#[test]
fn a_repetition_that_is_interrupted_has_to_be_decided_under_its_own_id() {
    let (place, first) = interrupted("", PAY);
    std::fs::remove_file(place.work().join("quick")).unwrap();
    let repeat = format!("resume.repeat('{first}/tool_1'); await {PAY}");
    let output = run(
        &place,
        &["--timeout", "1s", "--resume", &first, "-e", &repeat],
    );
    assert_eq!((told(&output).0, done(&place)), (1, 2));
    let second = last(&place);
    let error = resume(&place, &first, &repeat);
    assert_eq!(code(&error), "OutcomeUnknownError");
    let undecided = &error["error"]["metadata"]["undecided"];
    assert_eq!(undecided[0]["callId"], json!(format!("{second}/tool_1")));
    assert_eq!((undecided.as_array().unwrap().len(), done(&place)), (1, 2));
}

#[test]
fn reused_results_outlive_the_run_that_recorded_them() {
    let place = place_with("", "");
    let first = failed(&place, &format!("await {PAY}"));
    resume(&place, &first, &format!("await {PAY}; throw 1"));
    let second = last(&place);
    let file = rusqlite::Connection::open(place.home().join("journal.sqlite")).unwrap();
    file.execute("DELETE FROM calls WHERE run = ?1", [&first])
        .unwrap();
    file.execute("DELETE FROM runs WHERE id = ?1", [&first])
        .unwrap();
    drop(file);
    let output = resume(&place, &second, &format!("await {PAY}"));
    assert_eq!(
        (&output["calls"][0]["reused"], done(&place)),
        (&json!(true), 1)
    );
}

#[test]
fn of_several_that_resume_at_once_one_does() {
    let place = Place::new();
    let id = failed(&place, &say("one"));
    let rest = "await tools.exec({command: ['sh', '-c', 'echo two >> effects; sleep 1']})";
    let children: Vec<_> = (0..4)
        .map(|_| {
            let mut command = place.command(&["run", "-q", "--resume", &id, "-e", rest]);
            command.stdin(std::process::Stdio::null());
            command
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let ended = children
        .into_iter()
        .map(|child| told(&child.wait_with_output().unwrap()));
    let ended: Vec<(i32, String)> = ended.collect();
    assert_eq!(done(&place), 2, "{ended:?}");
    assert!(ended.iter().any(|(status, _)| *status == 0), "{ended:?}");
    for (_, said) in ended.iter().filter(|(status, _)| *status != 0) {
        let refused = said.contains("is still running") || said.contains("was resumed by");
        assert!(refused, "{said}");
    }
}

#[test]
fn a_run_is_resumed_in_its_own_folder() {
    let place = Place::new();
    let id = failed(&place, "await tools.writeFile({path: 'f', content: '1'})");
    let other = place.home().display().to_string();
    let (status, said) = told(&run(
        &place,
        &["-C", &other, "--resume", &id, "-e", "return 1"],
    ));
    assert!(
        status == 2 && said.contains("ran in another folder"),
        "{said}"
    );
    let hint = format!(
        "hint: resume it there: pass -C {}",
        place.work().canonicalize().unwrap().display()
    );
    assert!(said.contains(&hint), "{said}");
}
