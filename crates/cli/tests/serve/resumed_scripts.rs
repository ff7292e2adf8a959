//! Scripts that clients resumed in sessions, at several servers with one journal: what stops them,
//! and what waits for them.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fixture::ServeFixture;
use crate::isolation::{run_script, runs_scripts, wait_for_approval};
use crate::shared::{start_elsewhere, wait_until};
use crate::support::api::{ApiClient, ApiServer};
use crate::support::store;

/// Returns a script that runs a shell command.
fn shell(command: &str) -> String {
    let command = json!(["sh", "-c", command]);
    format!("return (await tools.exec({{ command: {command} }})).aggregatedOutput")
}

/// Returns a script that creates a file and waits until `end-FILE` exists.
fn until_ended(file: &str) -> String {
    shell(&format!(
        "touch {file}; while [ ! -e end-{file} ]; do sleep 0.02; done"
    ))
}

fn resume(client: &ApiClient, run: &str, source: &str) -> Result<String, u16> {
    let path = format!("/api/v1/runs/{run}/resume");
    let resumed = client.post(&path, json!({"source": source}));
    match resumed.status {
        202 => Ok(resumed.body["id"].as_str().unwrap().to_owned()),
        status => Err(status),
    }
}

/// Runs scripts in a session, and returns the runs.
fn runs(client: &ApiClient, session: &str, scripts: &[&str]) -> Vec<String> {
    for script in scripts {
        run_script(client, session, script);
    }
    let runs = client.get("/api/v1/runs").body["runs"].clone();
    let own = runs.as_array().unwrap().iter();
    let own = own.filter(|run| run["session"] == session);
    let own: Vec<String> = own
        .map(|run| run["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(own.len(), scripts.len(), "{runs}");
    own
}

fn state_of(client: &ApiClient, run: &str) -> Value {
    client.get(&format!("/api/v1/runs/{run}")).body["run"]["state"].clone()
}

#[test]
fn a_resumed_script_is_stopped_at_any_server() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work();
    let (_server, first) = fixture.start();
    let other = ApiServer::start(&fixture.workspace);
    let second = other.client(&fixture.secret);
    let session = first.session(json!({}));
    let run = runs(&first, &session, &["return 1"]).remove(0);
    let run = resume(&first, &run, &until_ended("begun")).unwrap();
    wait_until("the script runs", || work.join("begun").exists());
    let delete = || {
        let start = format!("DELETE /api/v1/sessions/{session}");
        second.request(&start, &[], "").status
    };
    assert_eq!(delete(), 409);
    let stopped = second.post(&format!("/api/v1/sessions/{session}/stop"), json!({}));
    assert_eq!(stopped.body["stopped"], true, "{stopped:?}");
    wait_until("the script ends", || state_of(&first, &run) == "failed");
    wait_until("the session is free", || delete() == 204);
}

#[test]
fn no_turn_runs_beside_a_resumed_script_of_another_server() {
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work();
    let (_server, first) = fixture.start();
    let other = ApiServer::start(&fixture.workspace);
    let second = other.client(&fixture.secret);
    let session = first.session(json!({}));
    let runs = runs(&first, &session, &["return 1", "return 2"]);
    let resumed = resume(&first, &runs[0], &until_ended("a")).unwrap();
    wait_until("the script runs", || work.join("a").exists());
    // The session is claimed by the first server, so only this one can resume another run.
    assert_eq!(resume(&second, &runs[1], "return 3"), Err(409));
    let beside = resume(&first, &runs[1], &until_ended("b")).unwrap();
    wait_until("the other script runs", || work.join("b").exists());
    let code = shell("[ -e end-a ] && [ -e end-b ] && echo last || echo too early");
    let number = second.message(&session, &format!("RUN:{code}"));
    std::fs::write(work.join("end-a"), "").unwrap();
    wait_until("the script ends", || {
        state_of(&first, &resumed) == "completed"
    });
    let path = format!("/api/v1/sessions/{session}/messages/{number}?wait_ms=1500");
    assert_eq!(second.get(&path).body["state"], "queued");
    std::fs::write(work.join("end-b"), "").unwrap();
    wait_until("the other script ends", || {
        state_of(&first, &beside) == "completed"
    });
    let answer = second.answer(&session, number);
    assert!(answer["answer"].to_string().contains("last"), "{answer}");
}

#[test]
fn files_stay_while_a_resumed_script_waits_for_approval() {
    let fixture = ServeFixture::new(runs_scripts);
    let (_server, client) = fixture.start();
    let other = ApiServer::start(&fixture.workspace);
    let session = client.session(json!({}));
    let run = runs(&client, &session, &[&shell("echo x > new.txt")]).remove(0);
    let source = "await tools.exec({ command: ['rm', '-rf', 'doomed'] }); return 1";
    let resumed = resume(&client, &run, source).unwrap();
    let asked = wait_for_approval(&client);
    for client in [&client, &other.client(&fixture.secret)] {
        for action in ["revert", "apply", "discard"] {
            let path = format!("/api/v1/sessions/{session}/{action}");
            let busy = client.post(&path, json!({}));
            assert_eq!(busy.status, 409, "{action}: {busy:?}");
        }
    }
    assert!(fixture.workspace.work().join("new.txt").exists());
    let path = format!("/api/v1/approvals/{}", asked["id"].as_str().unwrap());
    assert_eq!(client.post(&path, json!({"decision": "deny"})).status, 200);
    wait_until("the script ends", || {
        state_of(&client, &resumed) == "failed"
    });
    let path = format!("/api/v1/sessions/{session}/revert");
    wait_until("the turn can be reverted", || {
        client.post(&path, json!({})).status == 200
    });
}

/// A server that was stopped for a while, during which another one took over the session. Without
/// `SELVEDGE_TEST_STORE` no other server can.
#[test]
fn a_resumed_script_changes_nothing_when_another_server_has_the_session() {
    if store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work();
    let (one, first) = fixture.start();
    let (_two, second) = start_elsewhere(&fixture, "second", "");
    let session = first.session(json!({}));
    let run = runs(&first, &session, &["return 1"]).remove(0);
    let source = "for (let i = 0; i < 300; i++) { \
        try { await tools.writeFile({ path: 'step-' + i, content: 'x' }) } catch {} \
        await new Promise(f => setTimeout(f, 100)) } return 1";
    resume(&first, &run, source).unwrap();
    wait_until("the script runs", || work.join("step-0").exists());
    let steps = || {
        let files = std::fs::read_dir(&work).unwrap();
        let names = files.map(|file| file.unwrap().file_name());
        let steps = names.filter(|name| name.to_string_lossy().starts_with("step-"));
        steps.count()
    };
    let pid = Pid::from_child(&one.child);
    kill_process(pid, Signal::STOP).unwrap();
    let before = steps();
    let number = second.message(&session, &format!("RUN:{}", until_ended("begun")));
    wait_until("the turn runs", || work.join("begun").exists());
    kill_process(pid, Signal::CONT).unwrap();
    // A script that continues would write many files while another command runs. A call that had
    // begun before may end.
    let pause = "await tools.exec({ command: ['sleep', '3'] }); return 1";
    run_script(&first, &first.session(json!({})), pause);
    assert!(steps() <= before + 1, "{before}, then {}", steps());
    std::fs::write(work.join("end-begun"), "").unwrap();
    assert_eq!(second.answer(&session, number)["state"], "answered");
    assert!(steps() <= before + 1, "{before}, then {}", steps());
}

/// Scripts that make no calls, so that no refused call ends them.
#[test]
fn resumed_scripts_end_when_another_server_has_their_session() {
    if store::uses_files() {
        return;
    }
    let fixture = ServeFixture::new(runs_scripts);
    let work = fixture.workspace.work();
    let (one, first) = fixture.start();
    let (_two, second) = start_elsewhere(&fixture, "second", "");
    let session = first.session(json!({}));
    let prior = runs(&first, &session, &["return 1", "return 2"]);
    let other = runs(&first, &first.session(json!({})), &["return 3"]).remove(0);
    for run in &prior {
        resume(
            &first,
            run,
            "for (;;) await new Promise(f => setTimeout(f, 100))",
        )
        .unwrap();
    }
    // As many as a token may have.
    assert_eq!(resume(&first, &other, "return 4"), Err(409));
    let pid = Pid::from_child(&one.child);
    kill_process(pid, Signal::STOP).unwrap();
    let number = second.message(&session, &format!("RUN:{}", until_ended("begun")));
    wait_until("the turn runs", || work.join("begun").exists());
    kill_process(pid, Signal::CONT).unwrap();
    wait_until("the scripts end", || {
        resume(&first, &other, "return 4").is_ok()
    });
    std::fs::write(work.join("end-begun"), "").unwrap();
    assert_eq!(second.answer(&session, number)["state"], "answered");
}
