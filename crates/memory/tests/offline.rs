//! Distilling by project: requests are recorded, contradictions are kept, layers and topics are
//! stored and forgotten.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::Redactor;
use selvedge_memory::{
    LayerChange, LessonStatus, Memory, MemoryAccess, MemoryError, MemoryQuery, NewLayer, NewTurn,
    ProjectPlace, SmallModel, SmallModelError,
};
use serde_json::json;

fn open(dir: &tempfile::TempDir) -> Arc<Memory> {
    Arc::new(Memory::open(dir.path(), Redactor::new([])).unwrap())
}

fn say(memory: &Memory, session: &str, text: &str) {
    memory
        .append(session, &NewTurn::text("user", text))
        .unwrap();
}

fn place(folder: &str) -> ProjectPlace {
    ProjectPlace {
        directory: folder.to_owned(),
        root: folder.to_owned(),
    }
}

/// A model that gives one answer, and keeps the prompts.
struct CountingModel {
    answer: String,
    asked: AtomicUsize,
    prompts: Mutex<Vec<String>>,
}

impl CountingModel {
    fn new(answer: serde_json::Value) -> Self {
        Self {
            answer: answer.to_string(),
            asked: AtomicUsize::new(0),
            prompts: Mutex::default(),
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl SmallModel for CountingModel {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.prompts.lock().unwrap().push(prompt.to_owned());
        std::future::ready(Ok(self.answer.clone())).boxed()
    }
}

/// Records a request about the first turn of the only session, as a killed process leaves it.
fn leave_request(dir: &tempfile::TempDir, attempt: u32, answer: Option<&str>) {
    let store = rusqlite::Connection::open(dir.path().join("journal.sqlite")).unwrap();
    let sql = "INSERT INTO memory_requests (unit, spans, attempt, answered, answer)
         SELECT 'session-' || id, id || ':1-1', ?1, ?2, ?3 FROM memory_sessions";
    let row = rusqlite::params![attempt, answer.is_some(), answer];
    store.execute(sql, row).unwrap();
}

#[tokio::test]
async fn a_recorded_answer_is_not_asked_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    say(&memory, "s", "Always lock the gate.");
    let recorded = json!({"lessons": [{"content": "From the record.", "turns": ["T-1"]}]});
    leave_request(&dir, 1, Some(&recorded.to_string()));
    let model = CountingModel::new(json!({"lessons": [{"content": "Asked again."}]}));
    let done = memory.distill("s", Some(&model)).await.unwrap();
    assert_eq!((done.distilled_turns, done.remaining_turns), (1, 0));
    assert_eq!(model.asked(), 0);
    let lessons = memory.lessons(None).unwrap();
    assert_eq!(lessons.len(), 1);
    assert_eq!(lessons[0].content, "From the record.");
    assert_eq!(lessons[0].source_turns, ["s/T-1"]);
    memory.distill("s", Some(&model)).await.unwrap();
    assert_eq!(model.asked(), 0);
}

#[tokio::test]
async fn an_interrupted_request_is_sent_again_but_not_for_ever() {
    for (attempt, asked, content) in [
        (1, 1, "Asked again."),
        (2, 1, "Asked again."),
        (3, 0, "Always lock the gate."),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let memory = open(&dir);
        say(&memory, "s", "Always lock the gate.");
        leave_request(&dir, attempt, None);
        let model = CountingModel::new(json!({"lessons": [{"content": "Asked again."}]}));
        memory.distill("s", Some(&model)).await.unwrap();
        assert_eq!(model.asked(), asked, "{attempt}");
        assert_eq!(memory.lessons(None).unwrap()[0].content, content);
    }
}

#[tokio::test]
async fn the_sessions_of_a_project_are_distilled_together() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    for (session, folder) in [("one", "/a"), ("two", "/a"), ("other", "/b")] {
        memory.join_project(session, &place(folder)).unwrap();
    }
    say(&memory, "one", "Always indent with tabs.");
    say(&memory, "two", "The harbour is closed.");
    say(&memory, "other", "Something else.");
    let layer = "The harbour has two gates. ".repeat(120);
    let model = CountingModel::new(json!({
        "preferences": [{"content": "Always indent with tabs.", "turns": ["one/T-1"]}],
        "topics": [{"name": "harbour", "area": "port", "weight": 1.0, "turns": ["two/T-1"]}],
        "areas": [{"name": "port", "evolution": "It was closed."}],
        "layers": [{"title": "Gates", "content": layer, "turns": ["two/T-1"]}],
    }));
    let done = memory.distill("two", Some(&model)).await.unwrap();
    assert_eq!((done.distilled_turns, model.asked()), (2, 1));
    let prompt = model.prompts.lock().unwrap()[0].clone();
    assert!(
        prompt.contains("## session one") && prompt.contains("T-1: harbour closed"),
        "{prompt}"
    );
    assert!(!prompt.contains("Something else"), "{prompt}");
    let project = memory.project_of("one").unwrap();
    assert_eq!(memory.proposals(project.as_deref()).unwrap().len(), 1);
    let other = memory.project_of("other").unwrap();
    assert_eq!(memory.proposals(other.as_deref()).unwrap().len(), 0);
    let trends = memory.topic_trends(&MemoryAccess::new("one")).unwrap();
    assert_eq!(trends[0].topic.category, "port");
    assert_eq!(trends[0].weeks.len(), 1);
    // The next request contains what is known, and what it contradicts is kept.
    say(&memory, "one", "Indent with spaces.");
    let known = memory.lessons(None).unwrap().into_iter();
    let mut known = known.filter(|lesson| lesson.content.contains("tabs"));
    let id = known.next().unwrap().lesson_id;
    let model = CountingModel::new(json!({
        "contradictions": [{"lesson": id, "statement": "Indent with spaces.",
            "turns": ["one/T-2"]}, {"lesson": "les_x", "statement": "?", "turns": ["one/T-2"]}],
    }));
    memory.distill("one", Some(&model)).await.unwrap();
    let prompt = model.prompts.lock().unwrap()[0].clone();
    assert!(
        prompt.contains(&id) && prompt.contains("harbour (port, weight"),
        "{prompt}"
    );
    let lesson = |memory: &Memory| {
        let lessons = memory.lessons(None).unwrap().into_iter();
        let mut lessons = lessons.filter(|lesson| lesson.lesson_id == id);
        lessons.next().unwrap()
    };
    let contradicted = lesson(&memory);
    assert_eq!(contradicted.status, LessonStatus::Contradicted);
    assert_eq!(
        contradicted.note.as_deref(),
        Some("Indent with spaces. (one/T-2)")
    );
    assert_eq!(contradicted.source_turns, ["one/T-1"]);
    // It is right again if the turn that contradicts it is forgotten.
    memory.forget_turn("one", 2).unwrap();
    assert_eq!(
        (lesson(&memory).status, lesson(&memory).note),
        (LessonStatus::Used, None)
    );
    assert!(
        memory
            .topic_areas(project.as_deref().unwrap())
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_later_statement_contradicts_an_earlier_one_without_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    say(&memory, "s", "Always run the linter.");
    memory.distill("s", None).await.unwrap();
    let status = |memory: &Memory, content: &str| {
        let lessons = memory.lessons(None).unwrap().into_iter();
        let mut lessons = lessons.filter(|lesson| lesson.content == content);
        lessons.next().map(|lesson| lesson.status)
    };
    say(&memory, "s", "Never run the linter.");
    memory.distill("s", None).await.unwrap();
    assert_eq!(
        status(&memory, "Always run the linter."),
        Some(LessonStatus::Contradicted)
    );
    // And back.
    say(&memory, "s", "Always run the linter.");
    memory.distill("s", None).await.unwrap();
    assert_eq!(
        status(&memory, "Always run the linter."),
        Some(LessonStatus::Used)
    );
    assert_eq!(
        status(&memory, "Never run the linter."),
        Some(LessonStatus::Contradicted)
    );
}

#[test]
fn layers_are_stored_changed_found_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    let topics = ["oauth".to_owned()];
    let text = "The token expires at noon. ".repeat(120);
    let project = memory.open_project("/a").unwrap();
    let layer = NewLayer {
        title: "Tokens",
        topics: &topics,
        content: &text,
        project: Some(&project),
    };
    let id = memory.add_layer(&layer).unwrap();
    assert!(matches!(
        memory.add_layer(&layer),
        Err(MemoryError::LayerExists(_))
    ));
    let short = NewLayer {
        content: "short",
        title: "Short",
        ..layer
    };
    assert!(matches!(
        memory.add_layer(&short),
        Err(MemoryError::LayerSize { .. })
    ));
    let access = MemoryAccess {
        project: Some(project.clone()),
        ..MemoryAccess::new("")
    };
    let found = |access: &MemoryAccess| {
        let found = memory.find_lessons(Some(access), "oauth token", 3);
        found.unwrap().len()
    };
    let elsewhere = MemoryAccess {
        project: Some(memory.open_project("/b").unwrap()),
        ..MemoryAccess::new("")
    };
    assert_eq!((found(&access), found(&elsewhere)), (1, 0));
    let change = LayerChange {
        title: Some("Tokens of all projects"),
        project: Some(None),
        ..LayerChange::default()
    };
    memory.edit_layer(&id, &change).unwrap();
    assert_eq!((found(&access), found(&elsewhere)), (1, 1));
    assert_eq!(
        memory.layers(None).unwrap()[0].title,
        "Tokens of all projects"
    );
    memory.remove_layer(&id).unwrap();
    assert_eq!(found(&access), 0);
    assert!(matches!(
        memory.remove_layer(&id),
        Err(MemoryError::LayerNotFound(_))
    ));
}

#[test]
fn an_index_is_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    for n in 0..30 {
        say(
            &memory,
            "s",
            &format!("The harbour number {n} has a lantern."),
        );
    }
    let hits = |memory: &Memory| {
        let found = memory
            .search(&MemoryQuery::new("lantern number 7"))
            .unwrap();
        let found = found
            .into_iter()
            .map(|hit| (hit.number, hit.score.to_bits()));
        found.collect::<Vec<_>>()
    };
    let before = hits(&memory);
    memory.forget_turn("s", 3).unwrap();
    assert_eq!(memory.reindex("s").unwrap(), 29);
    let after = hits(&open(&dir));
    assert_eq!(after.len(), before.len());
    assert!(after.iter().all(|(number, _)| *number != 3));
}
