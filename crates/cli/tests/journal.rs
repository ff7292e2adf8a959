//! Nothing lost, nothing done twice: real processes, killed and started again.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::create_dir_all(dir.path().join("work/.git")).unwrap();
        std::fs::create_dir_all(dir.path().join("work/.selvedge")).unwrap();
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
            .current_dir(self.path("work"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.command(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    fn json(&self, args: &[&str]) -> Value {
        let (_, out, err) = self.run(args);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
    }

    fn runs(&self) -> Vec<Value> {
        self.json(&["runs", "list", "--json", "--limit", "1000000"])
            .as_array()
            .unwrap()
            .clone()
    }

    fn last(&self) -> String {
        self.runs()[0]["id"].as_str().unwrap().to_owned()
    }

    fn effects(&self) -> BTreeMap<String, usize> {
        let mut effects = BTreeMap::new();
        for line in std::fs::read_to_string(self.path("work/effects"))
            .unwrap_or_default()
            .lines()
        {
            *effects.entry(line.to_owned()).or_default() += 1;
        }
        effects
    }
}

/// Ten calls, each of which leaves a line.
const TEN: &str = "for (let n = 1; n <= 10; n++) await tools.exec({command: ['sh', '-c', `echo ${n} >> effects`]}); return 'all'";

/// The same, by an author who knows what to do when nobody knows what happened.
const TEN_AGAIN: &str = "for (let n = 1; n <= 10; n++) {
  try { await tools.exec({command: ['sh', '-c', `echo ${n} >> effects`]}) }
  catch (e) {
    if (e.name !== 'OutcomeUnknownError') throw e;
    const there = await tools.exec({command: ['grep', '-cx', String(n), 'effects']});
    if (there.exitCode !== 0) await tools.exec({command: ['sh', '-c', `echo ${n} >> effects`]});
  }
}
return 'all'";

#[test]
fn killed_at_any_moment_nothing_is_lost_and_nothing_repeated() {
    let mut died = 0;
    let mut unknown = 0;
    let mut random: u64 = 0x5e1f_ed9e;
    let mut draw = move || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as f64 / f64::from(1u32 << 31)
    };
    for round in 0..200 {
        let place = Place::new();
        let mut child = place
            .command(&["run", "-q", "--json", "-e", TEN])
            .spawn()
            .unwrap();
        // After so many effects, and somewhere within the time one call took here: a machine that is
        // slow or fast moves both alike.
        let after = round % 10;
        let mut one_call = Duration::from_millis(10);
        let mut last = Instant::now();
        for seen in 1..=after {
            while place.effects().len() < seen && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_micros(100));
            }
            one_call = last.elapsed();
            last = Instant::now();
        }
        std::thread::sleep(one_call.mul_f64(draw()));
        child.kill().unwrap();
        child.wait().unwrap();
        let runs = place.runs();
        let runs = match runs.first() {
            // Its last command is being ended: that takes a moment.
            Some(run) if run["state"] == json!("running") => {
                let end = Instant::now() + Duration::from_secs(20);
                loop {
                    let runs = place.runs();
                    if runs[0]["state"] != json!("running") {
                        break runs;
                    }
                    assert!(Instant::now() < end, "round {round}: it still runs");
                }
            }
            _ => runs,
        };
        let Some(run) = runs.first() else {
            assert!(
                place.effects().is_empty(),
                "round {round}: something was done before the run was written down"
            );
            continue;
        };
        let id = run["id"].as_str().unwrap().to_owned();
        let shown = place.json(&["runs", "show", &id, "--json"]);
        let effects = place.effects();
        let calls = shown["calls"].as_array().unwrap();
        for n in 1..=10 {
            let count = effects.get(&n.to_string()).copied().unwrap_or(0);
            let state = calls
                .iter()
                .find(|call| call["id"] == json!(format!("tool_{n}")))
                .map(|call| call["state"].clone());
            match state.as_ref().and_then(Value::as_str) {
                Some("done") => assert_eq!(count, 1, "round {round}: call {n} is done"),
                None | Some("not started") => {
                    assert_eq!(count, 0, "round {round}: call {n} never began")
                }
                Some("outcome unknown") => {
                    unknown += 1;
                    assert!(count <= 1, "round {round}: call {n}");
                }
                other => panic!("round {round}: call {n} is {other:?}: {shown:#}"),
            }
        }
        match run["state"].as_str() {
            Some("died") => died += 1,
            Some("completed") => {}
            other => panic!("round {round}: the run is {other:?}"),
        }
        let (status, _, err) = place.run(&["run", "-q", "--resume", &id, "-e", TEN_AGAIN]);
        assert_eq!(status, 0, "round {round}: {err}");
        let wanted: BTreeMap<String, usize> = (1..=10).map(|n: i32| (n.to_string(), 1)).collect();
        assert_eq!(place.effects(), wanted, "round {round}: {shown:#}");
    }
    // A test that never hits the moments it is about would prove nothing.
    assert!(
        died >= 100 && unknown >= 20,
        "{died} runs died, {unknown} calls were of unknown outcome"
    );
}

#[test]
fn a_corrected_script_reuses_what_is_done_and_reads_what_is_there_now() {
    let place = Place::new();
    let first = "await tools.exec({command: ['sh', '-c', 'echo once >> effects']});
        const before = await tools.readFile({path: 'data'}); throw new Error(before.text)";
    std::fs::write(place.path("work/data"), "old").unwrap();
    let (status, _, err) = place.run(&["run", "-q", "-e", first]);
    assert_eq!(status, 1);
    let id = place.runs()[0]["id"].as_str().unwrap().to_owned();
    assert!(
        err.contains(&format!("`selvedge run FILE --resume {id}`")),
        "{err}"
    );
    // Somebody else changes the file meanwhile; only a change of the script's own makes its reads stale.
    std::fs::write(place.path("work/data"), "changed meanwhile").unwrap();
    let corrected = "await tools.exec({command: ['sh', '-c', 'echo once >> effects']});
        const before = await tools.readFile({path: 'data'});
        await tools.writeFile({path: 'data', content: 'new'});
        const after = await tools.readFile({path: 'data'});
        await tools.exec({command: ['sh', '-c', 'echo once >> effects']});
        return [before.text, after.text]";
    let output = place.json(&["run", "--json", "--resume", &id, "-e", corrected]);
    assert_eq!(
        output["output_json"],
        json!("[\"old\",\"new\"]"),
        "{output:#}"
    );
    let reused: Vec<bool> = output["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["reused"].as_bool().unwrap())
        .collect();
    assert_eq!(
        reused,
        [true, true, false, false, false],
        "each recorded call answers once"
    );
    assert_eq!(place.effects()["once"], 2);
}

#[test]
fn what_was_done_two_runs_ago_is_not_done_again() {
    let place = Place::new();
    let say = |word: &str| {
        format!("await tools.exec({{command: ['sh', '-c', 'echo {word} >> effects']}});")
    };
    let last = || place.runs()[0]["id"].as_str().unwrap().to_owned();
    place.run(&[
        "run",
        "-q",
        "-e",
        &format!("{}{} throw new Error('first')", say("one"), say("two")),
    ]);
    let first = last();
    place.run(&[
        "run",
        "-q",
        "--resume",
        &first,
        "-e",
        &format!("{} throw new Error('second')", say("one")),
    ]);
    let second = last();
    assert_ne!(first, second);
    let (status, _, err) = place.run(&[
        "run",
        "-q",
        "--resume",
        &second,
        "-e",
        &format!("{}{}{}", say("one"), say("two"), say("three")),
    ]);
    assert_eq!(status, 0, "{err}");
    assert_eq!(
        std::fs::read_to_string(place.path("work/effects")).unwrap(),
        "one\ntwo\nthree\n"
    );
}

#[test]
fn a_change_that_was_stopped_on_its_way_is_of_unknown_outcome() {
    let place = Place::new();
    let script = "await tools.exec({command: ['sh', '-c', 'echo one >> effects; sleep 60']})";
    place.run(&["run", "-q", "--timeout", "1s", "-e", script]);
    let id = place.runs()[0]["id"].as_str().unwrap().to_owned();
    let (status, _, err) = place.run(&["run", "-q", "--resume", &id, "-e", script]);
    assert!(status == 1 && err.contains("OutcomeUnknownError"), "{err}");
    // And it stays so, however often somebody goes on.
    let again = place.runs()[0]["id"].as_str().unwrap().to_owned();
    let (status, _, err) = place.run(&["run", "-q", "--resume", &again, "-e", script]);
    assert!(
        again != id && status == 1 && err.contains("OutcomeUnknownError"),
        "{err}"
    );
    assert_eq!(place.effects()["one"], 1);
}

#[test]
fn whoever_checks_a_change_of_unknown_outcome_sees_what_is_there_now() {
    let place = Place::new();
    std::fs::write(place.path("work/effects"), "").unwrap();
    let pay = "const pay = (n) => tools.exec({command: ['sh', '-c', `echo paid >> effects; sleep ${n}`]});";
    let first = format!("{pay} await tools.readFile({{path: 'effects'}}); await pay(60)");
    place.run(&["run", "-q", "--timeout", "1s", "-e", &first]);
    let id = place.last();
    let careful = format!(
        "{pay} try {{ await pay(60) }} catch (e) {{
            if (e.name !== 'OutcomeUnknownError') throw e;
            const now = await tools.readFile({{path: 'effects'}});
            if (!now.text.includes('paid')) await pay(0);
        }}"
    );
    let (status, _, err) = place.run(&["run", "-q", "--resume", &id, "-e", &careful]);
    assert_eq!((status, place.effects()["paid"]), (0, 1), "{err}");
}

#[test]
fn a_change_of_unknown_outcome_is_not_repeated_by_trying_again() {
    let place = Place::new();
    let script = |tries: &str| {
        format!(
            "const change = () => tools.exec({{command: ['sh', '-c', 'echo one >> effects; test -e quick || sleep 60']}});
             {tries}"
        )
    };
    place.run(&[
        "run",
        "-q",
        "--timeout",
        "1s",
        "-e",
        &script("await change()"),
    ]);
    let id = place.last();
    std::fs::write(place.path("work/quick"), "").unwrap();
    let blindly = "for (let i = 0; i < 3; i++) { try { return await change() } catch (e) { if (i == 2) throw e } }";
    let (status, _, err) = place.run(&["run", "-q", "--resume", &id, "-e", &script(blindly)]);
    assert!(status == 1 && err.contains("OutcomeUnknownError"), "{err}");
    assert_eq!(place.effects()["one"], 1);
    // Whoever has looked knows what it does; and then it is done.
    let knowingly = "try { await change() } catch { await tools.listDir({}); await change() }";
    let (status, _, err) = place.run(&[
        "run",
        "-q",
        "--resume",
        &id,
        "-e",
        &script(&format!("{knowingly} throw 1")),
    ]);
    assert_eq!((status, place.effects()["one"]), (1, 2), "{err}");
    let (status, _, err) = place.run(&[
        "run",
        "-q",
        "--resume",
        &place.last(),
        "-e",
        &script("await change()"),
    ]);
    assert_eq!((status, place.effects()["one"]), (0, 2), "{err}");
}

#[test]
fn what_was_read_answers_only_behind_the_changes_it_was_read_behind() {
    let place = Place::new();
    let write = |text: &str| format!("await tools.writeFile({{path: 'x', content: '{text}'}});");
    let read = "const read = async () => (await tools.readFile({path: 'x'})).text;";
    let fails = format!("{read} {} await read(); {} throw 1", write("1"), write("2"));
    place.run(&["run", "-q", "-e", &fails]);
    let corrected = format!("{read} {} {} return await read()", write("1"), write("2"));
    let output = place.json(&["run", "--json", "--resume", &place.last(), "-e", &corrected]);
    assert_eq!(output["output_json"], json!("\"2\""), "{output:#}");

    let fails = format!(
        "{read} const old = await read(); {} await read(); throw old",
        write("3")
    );
    place.run(&["run", "-q", "-e", &fails]);
    let corrected = format!("{read} {} return await read()", write("3"));
    let output = place.json(&["run", "--json", "--resume", &place.last(), "-e", &corrected]);
    assert_eq!(output["output_json"], json!("\"3\""), "{output:#}");
}

#[test]
fn what_was_read_beside_a_change_is_read_anew() {
    let place = Place::new();
    std::fs::write(place.path("work/h"), "old").unwrap();
    let change = "tools.exec({command: ['sh', '-c', 'sleep 0.5; printf new > h']})";
    let read = "tools.readFile({path: 'h'})";
    place.run(&[
        "run",
        "-q",
        "-e",
        &format!("await Promise.all([{change}, {read}]); throw 1"),
    ]);
    let corrected = format!("await {change}; return (await {read}).text");
    let output = place.json(&["run", "--json", "--resume", &place.last(), "-e", &corrected]);
    assert_eq!(
        (&output["calls"][0]["reused"], &output["output_json"]),
        (&json!(true), &json!("\"new\"")),
        "{output:#}"
    );
}

#[test]
fn after_a_change_of_unknown_outcome_nothing_is_told_that_was_read_before() {
    let place = Place::new();
    std::fs::write(place.path("work/effects"), "").unwrap();
    let read = "(await tools.readFile({path: 'effects'})).text";
    let first = format!(
        "{read}; await tools.exec({{command: ['sh', '-c', 'echo paid >> effects; sleep 60']}})"
    );
    place.run(&["run", "-q", "--timeout", "1s", "-e", &first]);
    let output = place.json(&[
        "run",
        "--json",
        "--resume",
        &place.last(),
        "-e",
        &format!("return {read}"),
    ]);
    assert_eq!(output["output_json"], json!("\"paid\\n\""), "{output:#}");
}

#[test]
fn what_was_read_and_changed_in_a_chain_of_runs_is_fresh() {
    let place = Place::new();
    std::fs::write(place.path("work/z"), "old").unwrap();
    let go_on = |script: &str| place.run(&["run", "-q", "--resume", &place.last(), "-e", script]);
    let read = "(await tools.readFile({path: 'z'})).text";
    place.run(&["run", "-q", "-e", &format!("{read}; throw 1")]);
    go_on(&format!(
        "{read}; await tools.writeFile({{path: 'z', content: 'new'}}); throw 2"
    ));
    go_on(
        "await tools.writeFile({path: 'z', content: 'new'}); await tools.writeFile({path: 'zz', content: ''}); throw 3",
    );
    let shown = place.json(&["runs", "show", "--json", &place.last()]);
    let reused = &shown["calls"][0];
    assert_eq!(
        (&reused["reused"], &reused["args"]["path"]),
        (&json!(true), &json!("z")),
        "{shown:#}"
    );
    let output = place.json(&[
        "run",
        "--json",
        "--resume",
        &place.last(),
        "-e",
        &format!("return {read}"),
    ]);
    assert_eq!(output["output_json"], json!("\"new\""), "{output:#}");
}

#[test]
fn a_run_of_another_folder_is_not_gone_on_from() {
    let place = Place::new();
    std::fs::create_dir(place.path("other")).unwrap();
    place.run(&[
        "run",
        "-q",
        "-e",
        "await tools.writeFile({path: 'f', content: '1'}); throw 1",
    ]);
    let other = place.path("other").display().to_string();
    let script = "await tools.writeFile({path: 'f', content: '1'})";
    let (status, _, err) = place.run(&[
        "run",
        "-q",
        "-C",
        &other,
        "--resume",
        &place.last(),
        "-e",
        script,
    ]);
    assert!(
        status == 2 && err.contains("ran in another folder") && err.contains("hint: "),
        "{status} {err}"
    );
}

#[test]
fn words_for_people_do_not_make_it_another_call() {
    let place = Place::new();
    let script = |why: &str| {
        format!(
            "await tools.exec({{command: ['sh', '-c', 'echo one >> effects'], approvalContext: '{why}'}}); throw new Error('x')"
        )
    };
    place.run(&["run", "-q", "-e", &script("because")]);
    let id = place.runs()[0]["id"].as_str().unwrap().to_owned();
    place.run(&[
        "run",
        "-q",
        "--resume",
        &id,
        "-e",
        &script("for another reason"),
    ]);
    assert_eq!(place.effects()["one"], 1);
}

#[test]
fn a_command_that_only_reads_is_fresh_after_a_change() {
    let place = Place::new();
    std::fs::write(place.path("work/data"), "old").unwrap();
    let read = "await tools.exec({command: ['cat', 'data']})";
    let (status, ..) = place.run(&[
        "run",
        "-q",
        "-e",
        &format!("throw new Error(({read}).stdout)"),
    ]);
    assert_eq!(status, 1);
    let id = place.runs()[0]["id"].as_str().unwrap().to_owned();
    let corrected = format!(
        "await tools.writeFile({{path: 'data', content: 'new'}}); const after = {read}; return after.stdout"
    );
    let output = place.json(&["run", "--json", "--resume", &id, "-e", &corrected]);
    assert_eq!(output["output_json"], json!("\"new\""), "{output:#}");
}

#[test]
fn runs_that_died_are_told_from_those_that_go_on() {
    let place = Place::new();
    let script = "await tools.writeFile({path: 'ready', content: ''}); await tools.exec({command: ['sleep', '600']})";
    let mut child = place.command(&["run", "-q", "-e", script]).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    let state = |place: &Place| {
        let runs = place.runs();
        let id = runs
            .first()
            .map(|run| run["id"].as_str().unwrap().to_owned())?;
        let shown = place.json(&["runs", "show", &id, "--json"]);
        let last = shown["calls"]
            .as_array()
            .unwrap()
            .last()
            .map(|call| call["state"].clone());
        Some((runs[0]["state"].clone(), last?, shown["advice"].clone()))
    };
    while state(&place).is_none_or(|(_, last, _)| last != json!("running")) {
        assert!(Instant::now() < end, "{:?}", state(&place));
    }
    let id = place.runs()[0]["id"].as_str().unwrap().to_owned();
    let (status, _, err) = place.run(&["run", "--resume", &id, "-e", "return 1"]);
    assert!(status == 2 && err.contains("still runs"), "{err}");
    child.kill().unwrap();
    child.wait().unwrap();
    // Its command ends with it, which takes a moment.
    while place.runs()[0]["state"] == json!("running") {
        assert!(Instant::now() < end, "it still runs");
    }
    let (run, last, advice) = state(&place).unwrap();
    assert_eq!((run, last), (json!("died"), json!("outcome unknown")));
    assert!(
        advice[0]
            .as_str()
            .unwrap()
            .contains("tool_2 (exec) was started and nobody knows how it ended"),
        "{advice}"
    );
}

#[test]
fn eight_processes_write_one_journal_at_once() {
    let place = Place::new();
    let script = "for (let n = 0; n < 25; n++) await tools.updatePlan({plan: [{step: String(n), status: 'pending'}]})";
    let until = Instant::now() + Duration::from_secs(10);
    let made: usize = std::thread::scope(|threads| {
        let workers: Vec<_> = (0..8)
            .map(|_| {
                threads.spawn(|| {
                    let mut runs = 0;
                    while Instant::now() < until {
                        let (status, _, err) = place.run(&["run", "-q", "-e", script]);
                        assert_eq!(status, 0, "{err}");
                        runs += 1;
                    }
                    runs
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    let runs = place.runs();
    assert_eq!(runs.len(), made);
    assert!(
        runs.iter()
            .all(|run| run["state"] == json!("completed") && run["calls"] == json!(25))
    );
}

#[test]
fn views_show_no_secrets_and_nothing_is_kept_where_nobody_wants_it() {
    let place = Place::new();
    let key = "sk-proj-abcdefghijklmnopqrstuvwxyz123456";
    let script = format!(
        "await tools.exec({{command: ['echo', '{key}'], env: {{API_TOKEN: 'plain-but-named'}}}}); throw new Error('{key}')"
    );
    place.run(&["run", "-q", "-e", &script]);
    let id = place.runs()[0]["id"].as_str().unwrap().to_owned();
    for args in [&["runs", "show", &id][..], &["runs", "show", &id, "--json"]] {
        let (_, out, _) = place.run(args);
        assert!(
            !out.contains(key) && !out.contains("plain-but-named") && out.contains("[redacted]"),
            "{out}"
        );
    }
    // The payload itself is exact.
    let bytes = std::fs::read(place.path("home/journal.sqlite")).unwrap();
    let wal = std::fs::read(place.path("home/journal.sqlite-wal")).unwrap_or_default();
    assert!(
        [bytes, wal]
            .concat()
            .windows(key.len())
            .any(|window| window == key.as_bytes())
    );
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(place.path("home/journal.sqlite"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(
        place.path("home/config.toml"),
        "[journal]\nsecret_names = [\"command\"]\ndays = 90\n",
    )
    .unwrap();
    let (_, out, _) = place.run(&["runs", "show", &id, "--json"]);
    assert!(!out.contains("\"echo\""), "{out}");
    let before = place.runs().len();
    place.run(&["run", "-q", "--ephemeral", "-e", "return 1"]);
    assert_eq!(place.runs().len(), before);
    let (status, _, err) = place.run(&["runs", "show", "scr_none"]);
    assert!(
        status == 2 && err.contains("there is no run `scr_none`") && err.contains("hint: "),
        "{err}"
    );
}
