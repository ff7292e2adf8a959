//! What forgetting removes while a process distills, which areas it resets, and what happens if the
//! model is not available.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::Redactor;
use selvedge_memory::{
    LessonsToForget, Memory, MemoryError, NewTurn, ProjectPlace, SmallModel, SmallModelError,
};
use serde_json::{Value, json};
use support::store;

fn open() -> (tempfile::TempDir, Arc<Memory>) {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap());
    (dir, memory)
}

fn say(memory: &Memory, session: &str, text: &str) {
    memory
        .append(session, &NewTurn::text("user", text))
        .unwrap();
}

fn join(memory: &Memory, session: &str, directory: &str) -> String {
    let place = ProjectPlace {
        directory: directory.to_owned(),
        root: directory.to_owned(),
    };
    memory.join_project(session, &place).unwrap()
}

/// A model with one answer that does something before it answers, and keeps the prompts.
struct BusyModel<F> {
    answer: Result<Value, SmallModelError>,
    while_asked: F,
    prompts: Mutex<Vec<String>>,
}

impl<F: Fn() + Send + Sync> BusyModel<F> {
    fn new(answer: Result<Value, SmallModelError>, while_asked: F) -> Self {
        Self {
            answer,
            while_asked,
            prompts: Mutex::default(),
        }
    }
}

impl<F: Fn() + Send + Sync> SmallModel for BusyModel<F> {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        self.prompts.lock().unwrap().push(prompt.to_owned());
        (self.while_asked)();
        let answer = self.answer.clone().map(|answer| answer.to_string());
        std::future::ready(answer).boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_forgotten_while_the_model_reads_it() {
    for whole_session in [false, true] {
        let (_dir, memory) = open();
        join(&memory, "one", "/a");
        join(&memory, "two", "/a");
        say(&memory, "one", "The code of the vault is heron.");
        say(&memory, "one", "The gate is green.");
        say(&memory, "two", "The lantern of the harbour is lit.");
        let forget = || match whole_session {
            true => _ = memory.forget_session("one", LessonsToForget::All).unwrap(),
            false => _ = memory.forget_turn("one", 1).unwrap(),
        };
        let lesson = json!({"lessons": [{"content": "The code is heron.", "turns": ["two/T-1"]}]});
        let model = BusyModel::new(Ok(lesson), forget);
        let done = memory.distill("two", Some(&model)).await.unwrap();
        assert!(
            done.distilled_turns == 0 && done.remaining_turns > 0,
            "{done:?}"
        );
        assert_eq!(memory.lessons(None).unwrap(), []);
        // The other turns are asked about again, without the forgotten one.
        let model = BusyModel::new(Ok(json!({"lessons": []})), || {});
        let done = memory.distill("two", Some(&model)).await.unwrap();
        assert_eq!(done.remaining_turns, 0);
        let prompt = model.prompts.lock().unwrap()[0].clone();
        assert!(
            !prompt.contains("heron") && prompt.contains("lantern"),
            "{prompt}"
        );
    }
}

#[tokio::test]
async fn forgetting_resets_only_areas_of_the_project_with_its_words() {
    let (_dir, memory) = open();
    let (project, other) = (join(&memory, "one", "/a"), join(&memory, "two", "/b"));
    for session in ["one", "two"] {
        say(
            &memory,
            session,
            "The walrus sleeps, and the tokens expire.",
        );
        say(
            &memory,
            session,
            "The tokens are renewed, and the gate is green.",
        );
    }
    for session in ["one", "two"] {
        let topic = |name: &str, area: &str, turn: u32| {
            let turn = format!("T-{turn}");
            json!({"name": name, "area": area, "turns": [turn]})
        };
        let model = BusyModel::new(
            Ok(json!({
                "topics": [topic("gate", "walrus", 2), topic("renewal", "tokens", 2),
                    topic("colour", "frontend", 2)],
                "areas": [{"name": "frontend", "evolution": "It was painted."}],
            })),
            || {},
        );
        memory.distill(session, Some(&model)).await.unwrap();
    }
    let areas = |session: &str| {
        let topics = memory.topics(session).unwrap().into_iter();
        let mut areas: Vec<(String, String)> =
            topics.map(|topic| (topic.name, topic.category)).collect();
        areas.sort();
        areas
    };
    let pair = |name: &str, area: &str| (name.to_owned(), area.to_owned());
    let all = [
        pair("colour", "frontend"),
        pair("gate", "walrus"),
        pair("renewal", "tokens"),
    ];
    assert_eq!((areas("one"), areas("two")), (all.to_vec(), all.to_vec()));
    memory.forget_turn("one", 1).unwrap();
    // Another turn mentions tokens, and none ever mentioned a frontend.
    assert_eq!(
        areas("one"),
        [
            pair("colour", "frontend"),
            pair("gate", "other"),
            pair("renewal", "tokens")
        ]
    );
    assert_eq!(memory.topic_areas(&project).unwrap(), []);
    assert_eq!(areas("two"), all);
    assert_eq!(memory.topic_areas(&other).unwrap().len(), 1);
    // A session that is forgotten takes the names of areas with it that only it has said.
    join(&memory, "three", "/b");
    say(&memory, "three", "The tokens are fine.");
    let topics =
        json!([{"name": "health", "area": "walrus"}, {"name": "tokens", "area": "tokens"}]);
    let model = BusyModel::new(Ok(json!({"topics": topics})), || {});
    memory.distill("three", Some(&model)).await.unwrap();
    memory.forget_session("two", LessonsToForget::All).unwrap();
    assert_eq!(
        areas("three"),
        [pair("health", "other"), pair("tokens", "tokens")]
    );
}

#[tokio::test]
async fn a_model_that_is_not_available_leaves_the_turns_new() {
    let (_dir, memory) = open();
    say(&memory, "s", "Always lock the gate.");
    let unavailable = SmallModelError::Unavailable("no network".to_owned());
    let model = BusyModel::new(Err(unavailable), || {});
    for _ in 0..2 {
        let error = memory.distill("s", Some(&model)).await.unwrap_err();
        assert!(matches!(error, MemoryError::ModelUnavailable(_)), "{error}");
    }
    assert_eq!(model.prompts.lock().unwrap().len(), 2);
    let state = memory.distill_state("s").unwrap().unwrap();
    assert_eq!(
        (
            state.new_turns,
            state.open_requests,
            state.unanswered_requests
        ),
        (1, 0, 0)
    );
    // It is due again soon, not at once.
    let in_ms = state.due_ms.unwrap() - selvedge_protocol::now_ms();
    assert!((1..=15 * 60_000).contains(&in_ms), "{in_ms}");
    let lesson = json!({"lessons": [{"content": "Lock it.", "turns": ["T-1"]}]});
    let model = BusyModel::new(Ok(lesson), || {});
    memory.distill("s", Some(&model)).await.unwrap();
    assert_eq!(memory.lessons(None).unwrap()[0].content, "Lock it.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_about_the_schedule_does_not_stop_distilling() {
    let (dir, memory) = open();
    say(&memory, "s", "Always lock the gate.");
    assert!(!memory.distill_state("s").unwrap().unwrap().running);
    memory.distill("s", None).await.unwrap();
    say(&memory, "s", "Always open the gate.");
    let mut files = std::fs::read_dir(dir.path().join("live")).unwrap();
    let lock = files.find_map(|file| {
        let path = file.unwrap().path();
        path.to_string_lossy().contains("distill").then_some(path)
    });
    let lock = std::fs::File::open(lock.unwrap()).unwrap();
    // Another process asks at this moment: it is not one that distills.
    lock.lock_shared().unwrap();
    assert!(!memory.distill_state("s").unwrap().unwrap().running);
    let released = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(lock);
    });
    assert_eq!(memory.distill("s", None).await.unwrap().distilled_turns, 1);
    released.join().unwrap();
    // While the model is asked, the project is being distilled.
    say(&memory, "s", "Always paint the gate.");
    let model = BusyModel::new(Ok(json!({"lessons": []})), || {
        assert!(memory.distill_state("s").unwrap().unwrap().running);
    });
    memory.distill("s", Some(&model)).await.unwrap();
    assert!(!memory.distill_state("s").unwrap().unwrap().running);
}
