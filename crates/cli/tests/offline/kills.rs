//! Runs that are killed: nothing is lost, and no request is repeated, unless a person asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::runs::full_answer;
use super::{OfflineFixture, SESSIONS, WORK, new_turns, prompt_of};
use crate::answer_encoding::text;
use crate::server::Reply;

/// Pause between two queries, which leaves the processor to the watched process.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The turns of the project. Each interrupted request takes its part of them.
const TURNS: usize = 2_400;

/// A project, whose model answers requests, except those with a number in `hanging`.
fn fixture(hanging: Arc<AtomicUsize>) -> OfflineFixture {
    let fixture = OfflineFixture::new("model = \"mock/small\"", move |asked| {
        let hangs = hanging.load(Ordering::SeqCst) > 0;
        if hangs {
            hanging.fetch_sub(1, Ordering::SeqCst);
            return Reply::Hang(vec![text("{\"lessons\": [")]);
        }
        vec![text(&full_answer(asked))].into()
    });
    fixture.import_project(TURNS);
    fixture
}

/// Waits until a condition holds, and kills the process, which must not have ended before.
fn kill_when(mut child: Child, condition: impl Fn() -> bool) {
    while !condition() {
        let ended = child.try_wait().unwrap();
        assert_eq!(ended, None, "it ended before it could be killed");
        std::thread::sleep(POLL_INTERVAL);
    }
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "it ended before it was killed");
}

/// Returns the turns of the requests that have no answer.
fn unanswered_turns(fixture: &OfflineFixture) -> BTreeSet<(String, u32)> {
    let store = fixture.store();
    let mut read = store
        .prepare("SELECT spans FROM memory_requests WHERE answered = 2")
        .unwrap();
    let spans = read.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let mut turns = BTreeSet::new();
    for spans in spans {
        for span in spans.unwrap().split(' ') {
            let (session, numbers) = span.split_once(':').unwrap();
            let (first, last) = numbers.split_once('-').unwrap();
            let sql = "SELECT name FROM memory_sessions WHERE id = ?1";
            let name = store
                .query_row(sql, [session], |row| row.get::<_, String>(0))
                .unwrap();
            let (first, last): (u32, u32) = (first.parse().unwrap(), last.parse().unwrap());
            turns.extend((first..=last).map(|n| (name.clone(), n)));
        }
    }
    turns
}

/// What was learned, without times and without ids, which depend on the folder.
fn learned(fixture: &OfflineFixture) -> Vec<String> {
    let store = fixture.store();
    let mut all = Vec::new();
    for sql in [
        "SELECT kind || ' ' || status || ' ' || content || ' ' || round(weight, 6) \
         FROM memory_lessons ORDER BY 1",
        "SELECT content || ' ' || name || ' ' || turn FROM memory_sources \
         JOIN memory_sessions s ON s.id = session \
         JOIN memory_lessons l ON l.id = lesson ORDER BY 1",
        "SELECT s.name || ' ' || t.name || ' ' || category || ' ' || round(weight, 6) || ' ' \
         || t.turns FROM memory_topics t JOIN memory_sessions s ON s.id = session ORDER BY 1",
        "SELECT name || ' ' || note FROM memory_areas ORDER BY 1",
    ] {
        let mut read = store.prepare(sql).unwrap();
        let rows = read.query_map([], |row| row.get::<_, String>(0)).unwrap();
        all.extend(rows.map(Result::unwrap));
    }
    all
}

#[test]
fn a_killed_run_goes_on_and_repeats_no_request() {
    let hanging = Arc::new(AtomicUsize::new(0));
    let fixture = fixture(hanging.clone());
    let start = || {
        fixture
            .command(WORK, &["memory", "distill"])
            .spawn()
            .unwrap()
    };
    let asked = || fixture.server.asked().len();
    // Killed before the first request, after it was recorded, after it was answered, after each
    // transaction, and while an answer is awaited.
    let recorded = "SELECT count(*) FROM memory_requests WHERE answered < 2";
    let answered = "SELECT count(*) FROM memory_requests WHERE answered = 1";
    let distilled = "SELECT sum(distilled) FROM memory_sessions";
    let points: [(&str, i64, usize); 9] = [
        ("SELECT count(*) FROM memory_passes", 1, 0),
        (recorded, 1, 0),
        ("", 0, 1),
        (answered, 1, 0),
        (distilled, 1, 0),
        ("", 0, 1),
        (answered, 1, 0),
        (distilled, 200, 0),
        (recorded, 1, 0),
    ];
    for (sql, minimum, hangs) in points {
        hanging.store(hangs, Ordering::SeqCst);
        let before = asked();
        kill_when(start(), || match sql {
            // The server has received a request that it does not answer.
            "" => asked() > before && hanging.load(Ordering::SeqCst) == 0,
            sql => fixture.number(sql) >= minimum,
        });
        hanging.store(0, Ordering::SeqCst);
        let now = fixture.number(distilled);
        // The next process goes on.
        kill_when(start(), || fixture.number(distilled) > now);
    }
    fixture.out(WORK, &["memory", "distill"]);
    for session in SESSIONS {
        let sql = format!("SELECT distilled FROM memory_sessions WHERE name = '{session}'");
        assert_eq!(fixture.number(&sql), TURNS as i64 / 2);
    }
    // Each request was sent once, and each turn was in one request at most.
    let (mut requests, mut turns) = (BTreeMap::new(), BTreeMap::new());
    for request in fixture.server.asked() {
        *requests.entry(prompt_of(&request)).or_insert(0) += 1;
        for turn in new_turns(&request) {
            *turns.entry(turn).or_insert(0) += 1;
        }
    }
    assert!(requests.values().all(|count| *count == 1));
    let again: Vec<_> = turns.iter().filter(|(_, count)| **count > 1).collect();
    assert!(again.is_empty(), "asked again about {again:?}");
    // All other turns are those of requests that were recorded, and never sent.
    let unanswered = unanswered_turns(&fixture);
    for session in SESSIONS {
        for turn in (1..=TURNS as u32 / 2).map(|n| (session.to_owned(), n)) {
            assert!(
                turns.contains_key(&turn) || unanswered.contains(&turn),
                "{turn:?} was in no request"
            );
        }
    }
    let open = fixture.number("SELECT count(*) FROM memory_requests");
    assert!(open >= 2, "two requests were killed while they hung");
    let status = fixture.out(WORK, &["memory", "distill", "--status"]);
    let line = format!(
        "{open} requests without an answer: {} turns read without a model; \
         `selvedge memory distill --now --retry` asks again",
        unanswered.len()
    );
    assert!(status.contains(&line), "{status}");
    // A person asks for them again.
    let before = asked();
    let retry = ["memory", "distill", "--now", "--retry", "--json"];
    let done = fixture.json(WORK, &retry);
    assert_eq!(done["unanswered"], 0, "{done}");
    let sent = fixture.server.asked();
    assert_eq!(done["retried"], sent.len() - before, "{done}");
    // More is known by now, so that some of them are sent in parts.
    assert!(sent.len() - before >= open as usize, "{done}");
    let retried: BTreeSet<(String, u32)> = sent[before..].iter().flat_map(new_turns).collect();
    assert_eq!(retried, unanswered);
    assert_eq!(fixture.number("SELECT count(*) FROM memory_requests"), 0);
    fixture.json(WORK, &retry);
    assert_eq!(asked(), sent.len());
    let lessons = learned(&fixture).join("\n");
    for lesson in ["Redis 8", "Renew tokens", "indent with tabs"] {
        assert!(lessons.contains(lesson), "{lesson}: {lessons}");
    }
    let check = fixture
        .store()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0));
    assert_eq!(check, Ok("ok".to_owned()));
}

#[test]
fn a_killed_run_without_a_model_loses_and_repeats_nothing() {
    const RULE_TURNS: usize = 1_200;
    let uninterrupted = OfflineFixture::by_rules();
    uninterrupted.import_project(RULE_TURNS);
    uninterrupted.out(WORK, &["memory", "distill"]);
    let fixture = OfflineFixture::by_rules();
    fixture.import_project(RULE_TURNS);
    let distilled = || fixture.number("SELECT sum(distilled) FROM memory_sessions");
    // Killed before the first transaction, and after each of the next ones.
    let runs = || fixture.number("SELECT count(*) FROM memory_passes");
    let start = || {
        let args = ["memory", "distill"];
        fixture.command(WORK, &args).spawn().unwrap()
    };
    kill_when(start(), || runs() > 0);
    for _ in 0..3 {
        let before = distilled();
        kill_when(start(), || distilled() > before);
    }
    assert!(distilled() < RULE_TURNS as i64);
    fixture.out(WORK, &["memory", "distill"]);
    assert_eq!(distilled(), RULE_TURNS as i64);
    assert_eq!(learned(&fixture), learned(&uninterrupted));
}
