//! Runs that are killed: nothing is lost, and no request is repeated whose answer was recorded.

use std::collections::BTreeSet;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::runs::full_answer;
use super::{OfflineFixture, SESSIONS, WORK, new_turns};
use crate::answer_encoding::text;
use crate::server::Reply;

/// Pause between two queries, which leaves the processor to the watched process.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A project of 500 turns, whose model answers requests, except those with a number in `hanging`.
fn fixture(hanging: Arc<AtomicUsize>) -> OfflineFixture {
    let fixture = OfflineFixture::new("model = \"mock/small\"", move |asked| {
        let hangs = hanging.load(Ordering::SeqCst) > 0;
        if hangs {
            hanging.fetch_sub(1, Ordering::SeqCst);
            return Reply::Hang(vec![text("{\"lessons\": [")]);
        }
        vec![text(&full_answer(asked))].into()
    });
    fixture.import_project(500);
    fixture
}

/// Waits until a condition holds or the process has ended, and kills it.
fn kill_when(mut child: Child, condition: impl Fn() -> bool) {
    while !condition() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(POLL_INTERVAL);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Returns the turns that are distilled, or whose answer is recorded.
fn answered_turns(fixture: &OfflineFixture) -> BTreeSet<(String, u32)> {
    let store = fixture.store();
    let mut turns = BTreeSet::new();
    let mut read = store
        .prepare("SELECT id, name, distilled FROM memory_sessions")
        .unwrap();
    let sessions = read.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let sessions: Vec<(i64, String, u32)> = sessions.unwrap().map(Result::unwrap).collect();
    for (_, name, distilled) in &sessions {
        turns.extend((1..=*distilled).map(|n| (name.clone(), n)));
    }
    let mut read = store
        .prepare("SELECT spans FROM memory_requests WHERE answered = 1")
        .unwrap();
    let spans = read.query_map([], |row| row.get::<_, String>(0)).unwrap();
    for spans in spans {
        for span in spans.unwrap().split(' ') {
            let (session, numbers) = span.split_once(':').unwrap();
            let (first, last) = numbers.split_once('-').unwrap();
            let id: i64 = session.parse().unwrap();
            let name = &sessions.iter().find(|(it, ..)| *it == id).unwrap().1;
            let (first, last): (u32, u32) = (first.parse().unwrap(), last.parse().unwrap());
            turns.extend((first..=last).map(|n| (name.clone(), n)));
        }
    }
    turns
}

/// What was learned, without times.
fn learned(fixture: &OfflineFixture) -> Vec<String> {
    let store = fixture.store();
    let mut all = Vec::new();
    for sql in [
        "SELECT id || ' ' || status || ' ' || content || ' ' || round(weight, 6) \
         FROM memory_lessons ORDER BY id",
        "SELECT lesson || ' ' || name || ' ' || turn FROM memory_sources \
         JOIN memory_sessions s ON s.id = session ORDER BY 1",
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
fn a_killed_run_goes_on_and_repeats_no_request_whose_answer_is_recorded() {
    let uninterrupted = fixture(Arc::default());
    uninterrupted.out(WORK, &["memory", "distill"]);
    let requests = uninterrupted.server.asked().len();
    let expected = learned(&uninterrupted);

    let hanging = Arc::new(AtomicUsize::new(0));
    let fixture = fixture(hanging.clone());
    let start = || {
        fixture
            .command(WORK, &["memory", "distill"])
            .spawn()
            .unwrap()
    };
    let asked = || fixture.server.asked().len();
    let mut interrupted = 0;
    // Killed before the first request, after it was recorded, after it was answered, after each
    // transaction, and while an answer is awaited.
    let recorded = "SELECT count(*) FROM memory_requests";
    let answered = "SELECT count(*) FROM memory_requests WHERE answered = 1";
    let distilled = "SELECT sum(distilled) FROM memory_sessions";
    let points: [(&str, i64, usize); 9] = [
        ("SELECT count(*) FROM memory_runs", 1, 0),
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
        interrupted += 1;
        let covered = answered_turns(&fixture);
        let (sent, now) = (asked(), fixture.number(distilled));
        // The next process goes on, and does not ask about these turns again.
        kill_when(start(), || fixture.number(distilled) > now);
        interrupted += 1;
        for request in &fixture.server.asked()[sent..] {
            let again: Vec<_> = new_turns(request)
                .into_iter()
                .filter(|turn| covered.contains(turn))
                .collect();
            assert!(again.is_empty(), "asked again about {again:?}");
        }
    }
    fixture.out(WORK, &["memory", "distill"]);
    let turns: BTreeSet<(String, u32)> =
        fixture.server.asked().iter().flat_map(new_turns).collect();
    assert_eq!(turns.len(), 500, "every turn was in a request");
    assert!(
        asked() <= requests + interrupted,
        "{} of {requests}",
        asked()
    );
    for session in SESSIONS {
        let sql = format!("SELECT distilled FROM memory_sessions WHERE name = '{session}'");
        assert_eq!(fixture.number(&sql), 250);
    }
    assert_eq!(fixture.number(recorded), 0);
    assert_eq!(fixture.number("SELECT count(*) FROM memory_lessons"), {
        uninterrupted.number("SELECT count(*) FROM memory_lessons")
    });
    assert_eq!(learned(&fixture), expected);
    let check = fixture
        .store()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0));
    assert_eq!(check, Ok("ok".to_owned()));
}

#[test]
fn a_killed_run_without_a_model_loses_and_repeats_nothing() {
    let uninterrupted = OfflineFixture::by_rules();
    uninterrupted.import_project(500);
    uninterrupted.out(WORK, &["memory", "distill"]);
    let fixture = OfflineFixture::by_rules();
    fixture.import_project(500);
    for delay in 0..12 {
        let child = fixture
            .command(WORK, &["memory", "distill"])
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(8 * delay));
        kill_when(child, || true);
    }
    fixture.out(WORK, &["memory", "distill"]);
    assert_eq!(learned(&fixture), learned(&uninterrupted));
}
