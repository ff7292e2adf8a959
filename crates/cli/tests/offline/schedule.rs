//! When runs begin.

use std::time::{Duration, Instant};

use serde_json::json;

use super::runs::full_answer;
use super::{OfflineFixture, WORK, is_small};
use crate::answer_encoding::text;

/// The time in which a process in the background must have finished.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// Moves everything that the schedule knows into the past.
pub(super) fn let_hours_pass(fixture: &OfflineFixture, hours: i64) {
    // A process that a command left behind would find what is due then.
    wait_until(|| !fixture.has_process());
    let ms = hours * 3_600_000;
    let store = fixture.store();
    let created = "UPDATE memory_sessions SET created_ms = created_ms - ?1";
    store.execute(created, [ms]).unwrap();
    let runs = "UPDATE memory_passes SET started_ms = started_ms - ?1,
         touched_ms = touched_ms - ?1, ended_ms = ended_ms - ?1";
    store.execute(runs, [ms]).unwrap();
}

pub(super) fn wait_until(condition: impl Fn() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(
            since.elapsed() < BACKGROUND_TIMEOUT,
            "it did not happen in time"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_project_is_due_twelve_hours_after_its_last_run() {
    let fixture = OfflineFixture::by_rules();
    fixture.import_project(60);
    let due = ["memory", "distill", "--due", "--json"];
    let turns = |args: &[&str]| fixture.json(WORK, args)["turns"].clone();
    // A new project waits, too, unless a person asks.
    assert_eq!(turns(&due), 0);
    let status = fixture.out(WORK, &["memory", "distill", "--status"]);
    assert!(
        status.contains("60 new turns, due in 11 h 59 min"),
        "{status}"
    );
    let_hours_pass(&fixture, 12);
    let status = fixture.json(WORK, &["memory", "distill", "--status", "--json"]);
    assert_eq!(
        (&status[0]["project"], &status[0]["new_turns"]),
        (&json!("prj_work"), &json!(60))
    );
    assert_eq!(turns(&due), 60);
    let add = |n: usize| {
        let line = json!({"session": "left", "turn": 1000 + n, "role": "user", "text": "More."});
        let file = fixture.folder(WORK).join("more.jsonl");
        std::fs::write(&file, format!("{line}\n")).unwrap();
        fixture.out(WORK, &["memory", "import", "more.jsonl"]);
    };
    add(1);
    assert_eq!(turns(&due), 0);
    assert_eq!(turns(&["memory", "distill", "--now", "--json"]), 1);
    add(2);
    let_hours_pass(&fixture, 12);
    assert_eq!(turns(&due), 1);
    let (status, _, err) = fixture.run(WORK, &["memory", "distill", "--now", "--due"]);
    assert!(status != 0 && err.contains("cannot be used with"), "{err}");
}

#[test]
fn a_command_starts_a_due_run_in_the_background() {
    let fixture = OfflineFixture::new("model = \"mock/small\"", |asked| {
        match is_small(asked) && asked.raw.contains("# New turns") {
            true => vec![text(&full_answer(asked))].into(),
            false => vec![text("Hello.")].into(),
        }
    });
    fixture.import_project(60);
    let distilled = || fixture.number("SELECT sum(distilled) FROM memory_sessions");
    fixture.out(WORK, &["exec", "Good morning"]);
    assert_eq!(distilled(), 0);
    let_hours_pass(&fixture, 13);
    fixture.out(WORK, &["exec", "Good evening"]);
    wait_until(|| distilled() >= 62);
    wait_until(|| fixture.number("SELECT count(ended_ms) FROM memory_passes") == 1);
    let lessons = fixture.out(WORK, &["memory", "lessons"]);
    assert!(lessons.contains("Redis 8"), "{lessons}");
}

#[test]
fn no_run_begins_by_itself_if_that_is_disabled() {
    let fixture = OfflineFixture::new("distill_idle_minutes = 0", |_| vec![text("Hello.")].into());
    fixture.import_project(60);
    let_hours_pass(&fixture, 13);
    fixture.out(WORK, &["exec", "Good morning"]);
    // A run in the background would be a process of the same home.
    wait_until(|| !fixture.has_process());
    assert_eq!(fixture.number("SELECT count(*) FROM memory_passes"), 0);
}

/// A process that is killed when this is dropped.
struct KilledOnDrop(std::process::Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_begins_a_due_run_when_it_starts() {
    let fixture = OfflineFixture::new("model = \"mock/small\"", |asked| {
        vec![text(&full_answer(asked))].into()
    });
    fixture.import_project(60);
    let distilled = || fixture.number("SELECT sum(distilled) FROM memory_sessions");
    fixture.out(WORK, &["serve", "token", "create", "me"]);
    let serve = ["serve", "--addr", "127.0.0.1:0"];
    let_hours_pass(&fixture, 13);
    let server = KilledOnDrop(fixture.command(WORK, &serve).spawn().unwrap());
    wait_until(|| distilled() == 60);
    wait_until(|| fixture.number("SELECT count(ended_ms) FROM memory_passes") == 1);
    drop(server);
    let lessons = fixture.out(WORK, &["memory", "lessons"]);
    assert!(lessons.contains("Redis 8"), "{lessons}");
}
