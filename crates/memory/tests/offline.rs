//! Distilling by project: requests are recorded, contradictions are kept, layers and topics are
//! stored and forgotten.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::Redactor;
use selvedge_memory::{
    LessonEdit, LessonKind, LessonStatus, Memory, MemoryAccess, MemoryError, MemoryQuery,
    NewLesson, NewTurn, ProjectPlace, SmallModel, SmallModelError,
};
use serde_json::json;
use support::{database, store};

fn open(dir: &tempfile::TempDir) -> Arc<Memory> {
    Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap())
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
    context_tokens: u32,
}

impl CountingModel {
    fn new(answer: serde_json::Value) -> Self {
        Self {
            answer: answer.to_string(),
            asked: AtomicUsize::new(0),
            prompts: Mutex::default(),
            context_tokens: 32_000,
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

    fn context_tokens(&self) -> u32 {
        self.context_tokens
    }
}

/// A model that cannot be reached.
struct FailingModel;

impl SmallModel for FailingModel {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        std::future::ready(Err(SmallModelError::Failed("unreachable".to_owned()))).boxed()
    }
}

/// Records a request about the first turn of the only session, as a killed process leaves it.
fn leave_request(dir: &tempfile::TempDir, attempt: u32, answer: Option<&str>) {
    let sql = "INSERT INTO memory_requests (unit, spans, attempt, answered, answer)
         SELECT 'session-' || id, id || ':1-1', ?1, ?2, ?3 FROM memory_sessions";
    let row = selvedge_database::params![attempt, answer.is_some(), answer];
    database(dir.path()).execute(sql, row).unwrap();
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

fn contents(memory: &Memory) -> Vec<String> {
    let lessons = memory.lessons(None).unwrap().into_iter();
    let mut contents: Vec<String> = lessons.map(|lesson| lesson.content).collect();
    contents.sort();
    contents
}

/// Returns the requests without an answer, and their turns.
fn unanswered(memory: &Memory) -> (u32, u32) {
    let state = memory.distill_state("s").unwrap().unwrap();
    (state.unanswered_requests, state.unanswered_turns)
}

#[tokio::test]
async fn an_interrupted_request_is_sent_again_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    say(&memory, "s", "Always lock the gate.");
    leave_request(&dir, 1, None);
    let model = CountingModel::new(json!({"lessons": [{"content": "Asked again."}]}));
    for _ in 0..2 {
        let done = memory.distill("s", Some(&model)).await.unwrap();
        assert_eq!((model.asked(), done.remaining_turns), (0, 0));
        assert_eq!(contents(&memory), ["Always lock the gate."]);
        assert_eq!(unanswered(&memory), (1, 1));
    }
    // The model fails, and the request is kept.
    let failing = FailingModel;
    let retried = memory.retry_distilling("s", &failing).await.unwrap();
    assert_eq!((retried.answered, retried.unanswered), (0, 1));
    let retried = memory.retry_distilling("s", &model).await.unwrap();
    assert_eq!((retried.answered, retried.unanswered), (1, 0));
    assert_eq!((model.asked(), retried.learned), (1, 1));
    assert_eq!(contents(&memory), ["Always lock the gate.", "Asked again."]);
    assert_eq!(unanswered(&memory), (0, 0));
    memory.retry_distilling("s", &model).await.unwrap();
    assert_eq!(model.asked(), 1);
}

#[tokio::test]
async fn a_request_that_is_sent_again_to_a_smaller_model_is_split() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    for n in 0..600 {
        let text = format!("Number {n}: the harbour master wrote {} letters.", n * 7919);
        say(&memory, "s", &text);
    }
    let sql = "INSERT INTO memory_requests (unit, spans, attempt)
         SELECT 'session-' || id, id || ':1-600', 1 FROM memory_sessions";
    database(dir.path()).execute_batch(sql).unwrap();
    let mut model = CountingModel::new(json!({"lessons": []}));
    model.context_tokens = 3_000;
    let retried = memory.retry_distilling("s", &model).await.unwrap();
    assert!(model.asked() > 1);
    assert_eq!(
        (retried.answered as usize, retried.unanswered),
        (model.asked(), 0)
    );
    let prompts = model.prompts.lock().unwrap().join("\n");
    for n in 1..=600 {
        assert!(prompts.contains(&format!("T-{n}: ")), "T-{n}");
    }
    assert_eq!(memory.distill("s", None).await.unwrap().distilled_turns, 0);
}

#[tokio::test]
async fn a_request_that_is_interrupted_again_is_neither_repeated_nor_lost() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    say(&memory, "s", "Always lock the gate.");
    memory.distill("s", None).await.unwrap();
    let model = CountingModel::new(json!({"lessons": [{"content": "Asked again."}]}));
    // Killed while it was sent again.
    leave_request(&dir, 2, None);
    memory.distill("s", Some(&model)).await.unwrap();
    assert_eq!((model.asked(), unanswered(&memory)), (0, (1, 1)));
    // Killed after it was sent again and answered.
    let recorded = json!({"lessons": [{"content": "From the record.", "turns": ["T-1"]}]});
    leave_request(&dir, 2, Some(&recorded.to_string()));
    memory.distill("s", Some(&model)).await.unwrap();
    assert_eq!(model.asked(), 0);
    assert_eq!(
        contents(&memory),
        ["Always lock the gate.", "From the record."]
    );
    // Nothing is asked about forgotten turns.
    memory.forget_turn("s", 1).unwrap();
    memory.retry_distilling("s", &model).await.unwrap();
    assert_eq!((model.asked(), unanswered(&memory)), (0, (0, 0)));
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

#[tokio::test]
async fn topics_of_many_small_requests_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    // Forty requests with a turn each, of which only the first is about the harbour.
    let topic = |name: &str| json!({"topics": [{"name": name, "weight": 0.9}]});
    for n in 0..40 {
        say(&memory, "s", &format!("Something happened, number {n}."));
        let model = CountingModel::new(topic(if n == 0 { "harbour" } else { "lantern" }));
        memory.distill("s", Some(&model)).await.unwrap();
    }
    let trends = memory.topic_trends(&MemoryAccess::new("s")).unwrap();
    let turns = |name: &str| {
        let mut found = trends.iter().filter(|trend| trend.topic.name == name);
        found.next().map(|trend| trend.topic.turns)
    };
    assert_eq!((turns("harbour"), turns("lantern")), (Some(1), Some(39)));
    assert!(trends[0].topic.name == "lantern" && trends[0].topic.weight <= 1.0);
}

#[test]
fn layers_are_stored_changed_found_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    let topics = ["oauth".to_owned()];
    let text = "The token expires at noon. ".repeat(120);
    let project = memory.open_project("/a").unwrap();
    let layer = NewLesson {
        kind: LessonKind::Layer,
        title: "Tokens",
        topics: &topics,
        content: &text,
        project: Some(&project),
    };
    let id = memory.add_lesson(&layer).unwrap();
    assert!(matches!(
        memory.add_lesson(&layer),
        Err(MemoryError::LayerExists(_))
    ));
    let short = NewLesson {
        kind: LessonKind::Layer,
        content: "short",
        title: "Short",
        ..layer
    };
    assert!(matches!(
        memory.add_lesson(&short),
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
    let change = LessonEdit {
        title: Some("Tokens of all projects".to_owned()),
        project: Some(None),
        ..LessonEdit::default()
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
