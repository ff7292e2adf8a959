//! Runs in real processes that are killed and resumed: no call is lost or repeated.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(unix)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

struct JournalWorkspace {
    dir: TempDir,
}

impl JournalWorkspace {
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

    /// Resumes `TEN` as an author would: reads the error, checks the effects, decides each
    /// undecided call, and resumes again. Returns the number of decided calls.
    fn resume_and_decide(&self, id: &str) -> usize {
        let output = self.json(&["run", "--json", "--resume", id, "-e", TEN]);
        if output["error"].is_null() {
            return 0;
        }
        assert_eq!(output["error"]["code"], "OutcomeUnknownError", "{output:#}");
        let undecided = output["error"]["metadata"]["undecided"]
            .as_array()
            .unwrap()
            .clone();
        let decisions: String = undecided
            .iter()
            .map(|call| {
                let script = call["args"]["command"][2].as_str().unwrap();
                let number = script.split(' ').nth(1).unwrap();
                match self.effects().contains_key(number) {
                    true => format!("resume.skip({}, null);", call["callId"]),
                    false => format!("resume.repeat({});", call["callId"]),
                }
            })
            .collect();
        let corrected = format!("{decisions}\n{TEN}");
        let (status, _, err) = self.run(&["run", "-q", "--resume", id, "-e", &corrected]);
        assert_eq!(status, 0, "{err}");
        undecided.len()
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

/// A script with ten calls, each of which writes a line.
const TEN: &str = "for (let n = 1; n <= 10; n++) await tools.exec({command: ['sh', '-c', `echo ${n} >> effects`]}); return 'all'";

#[test]
fn a_run_killed_at_any_moment_loses_nothing_and_repeats_nothing() {
    let mut died = 0;
    let mut unknown = 0;
    let mut decided = 0;
    let mut random: u64 = 0x5e1f_ed9e;
    let mut draw = move || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as f64 / f64::from(1u32 << 31)
    };
    for round in 0..200 {
        let workspace = JournalWorkspace::new();
        let mut child = workspace
            .command(&["run", "-q", "--json", "-e", TEN])
            .spawn()
            .unwrap();
        // Killed after a number of effects, at a random moment within the measured time of one
        // call, so that the speed of the machine does not matter.
        let after = round % 10;
        let mut one_call = Duration::from_millis(10);
        let mut last = Instant::now();
        for seen in 1..=after {
            while workspace.effects().len() < seen && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_micros(100));
            }
            one_call = last.elapsed();
            last = Instant::now();
        }
        std::thread::sleep(one_call.mul_f64(draw()));
        child.kill().unwrap();
        child.wait().unwrap();
        let runs = workspace.runs();
        let runs = match runs.first() {
            // Its last command takes a little time to end.
            Some(run) if run["state"] == json!("running") => {
                let end = Instant::now() + Duration::from_secs(20);
                loop {
                    let runs = workspace.runs();
                    if runs[0]["state"] != json!("running") {
                        break runs;
                    }
                    assert!(
                        Instant::now() < end,
                        "round {round}: the run is still running"
                    );
                }
            }
            _ => runs,
        };
        let Some(run) = runs.first() else {
            assert!(
                workspace.effects().is_empty(),
                "round {round}: a call ran before the run was recorded"
            );
            continue;
        };
        let id = run["id"].as_str().unwrap().to_owned();
        let shown = workspace.json(&["runs", "show", &id, "--json"]);
        let effects = workspace.effects();
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
                    assert_eq!(count, 0, "round {round}: call {n} never started")
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
        decided += workspace.resume_and_decide(&id);
        let wanted: BTreeMap<String, usize> = (1..=10).map(|n: i32| (n.to_string(), 1)).collect();
        assert_eq!(workspace.effects(), wanted, "round {round}: {shown:#}");
    }
    // The test must have hit the critical moments often enough.
    assert!(
        died >= 100 && unknown >= 20,
        "{died} runs died, {unknown} calls have an unknown outcome"
    );
    assert_eq!(
        decided, unknown,
        "exactly the calls with an unknown outcome were decided"
    );
}

#[test]
fn dead_runs_are_distinguished_from_running_ones() {
    let workspace = JournalWorkspace::new();
    let script = "await tools.writeFile({path: 'ready', content: ''}); await tools.exec({command: ['sleep', '600']})";
    let mut child = workspace
        .command(&["run", "-q", "-e", script])
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    let state = |workspace: &JournalWorkspace| {
        let runs = workspace.runs();
        let id = runs
            .first()
            .map(|run| run["id"].as_str().unwrap().to_owned())?;
        let shown = workspace.json(&["runs", "show", &id, "--json"]);
        let last = shown["calls"]
            .as_array()
            .unwrap()
            .last()
            .map(|call| call["state"].clone());
        Some((runs[0]["state"].clone(), last?, shown["advice"].clone()))
    };
    while state(&workspace).is_none_or(|(_, last, _)| last != json!("running")) {
        assert!(Instant::now() < end, "{:?}", state(&workspace));
    }
    let id = workspace.runs()[0]["id"].as_str().unwrap().to_owned();
    let (status, _, err) = workspace.run(&["run", "--resume", &id, "-e", "return 1"]);
    assert!(status == 2 && err.contains("is still running"), "{err}");
    child.kill().unwrap();
    child.wait().unwrap();
    // Its command takes a little time to end.
    while workspace.runs()[0]["state"] == json!("running") {
        assert!(Instant::now() < end, "the run is still running");
    }
    let (run, last, advice) = state(&workspace).unwrap();
    assert_eq!((run, last), (json!("died"), json!("outcome unknown")));
    assert!(
        advice[0]
            .as_str()
            .unwrap()
            .contains(&format!("the outcome of {id}/tool_2 (exec) is unknown")),
        "{advice}"
    );
}

#[test]
fn eight_processes_write_one_journal_at_once() {
    let workspace = JournalWorkspace::new();
    let script = "for (let n = 0; n < 25; n++) await tools.updatePlan({plan: [{step: String(n), status: 'pending'}]})";
    let until = Instant::now() + Duration::from_secs(10);
    let made: usize = std::thread::scope(|threads| {
        let workers: Vec<_> = (0..8)
            .map(|_| {
                threads.spawn(|| {
                    let mut runs = 0;
                    while Instant::now() < until {
                        let (status, _, err) = workspace.run(&["run", "-q", "-e", script]);
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
    let runs = workspace.runs();
    assert_eq!(runs.len(), made);
    assert!(
        runs.iter()
            .all(|run| run["state"] == json!("completed") && run["calls"] == json!(25))
    );
}

#[test]
fn secrets_are_redacted_and_ephemeral_runs_are_not_recorded() {
    let workspace = JournalWorkspace::new();
    let key = "sk-proj-abcdefghijklmnopqrstuvwxyz123456";
    let script = format!(
        "await tools.exec({{command: ['echo', '{key}'], env: {{API_TOKEN: 'hunter22'}}}}); throw new Error('{key}')"
    );
    workspace.run(&["run", "-q", "-e", &script]);
    let id = workspace.runs()[0]["id"].as_str().unwrap().to_owned();
    for args in [&["runs", "show", &id][..], &["runs", "show", &id, "--json"]] {
        let (_, out, _) = workspace.run(args);
        assert!(
            !out.contains(key) && !out.contains("hunter22") && out.contains("[redacted]"),
            "{out}"
        );
    }
    // The stored payload is not redacted.
    let bytes = std::fs::read(workspace.path("home/journal.sqlite")).unwrap();
    let wal = std::fs::read(workspace.path("home/journal.sqlite-wal")).unwrap_or_default();
    assert!(
        [bytes, wal]
            .concat()
            .windows(key.len())
            .any(|window| window == key.as_bytes())
    );
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(workspace.path("home/journal.sqlite"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(
        workspace.path("home/config.toml"),
        "[journal]\nsecret_names = [\"command\"]\ndays = 90\n",
    )
    .unwrap();
    let (_, out, _) = workspace.run(&["runs", "show", &id, "--json"]);
    assert!(!out.contains("\"echo\""), "{out}");
    let before = workspace.runs().len();
    workspace.run(&["run", "-q", "--ephemeral", "-e", "return 1"]);
    assert_eq!(workspace.runs().len(), before);
    let (status, _, err) = workspace.run(&["runs", "show", "scr_none"]);
    assert!(
        status == 2 && err.contains("there is no run `scr_none`") && err.contains("hint: "),
        "{err}"
    );
}
