//! What a person changes: texts and titles of lessons and layers, and decisions about proposals.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::Redactor;
use selvedge_memory::{
    Encoder, LessonEdit, LessonKind, LessonStatus, Memory, MemoryError, NewLesson, NewTurn,
    ProjectPlace, ProposalDecision, SmallModel, SmallModelError,
};
use serde_json::{Value, json};
use support::store;

fn open(secrets: &[&str]) -> (tempfile::TempDir, Arc<Memory>) {
    let dir = tempfile::tempdir().unwrap();
    let redactor = Redactor::new(secrets.iter().map(|secret| (*secret).to_owned()));
    let memory = Arc::new(Memory::open(store(dir.path()), redactor).unwrap());
    (dir, memory)
}

fn say(memory: &Memory, text: &str) {
    memory.append("s", &NewTurn::text("user", text)).unwrap();
}

fn title(title: &str) -> LessonEdit {
    LessonEdit {
        title: Some(title.to_owned()),
        ..LessonEdit::default()
    }
}

fn content(content: &str) -> LessonEdit {
    LessonEdit {
        content: Some(content.to_owned()),
        ..LessonEdit::default()
    }
}

/// A text that is long enough for a layer.
fn long_text(sentence: &str) -> String {
    format!("{sentence} ").repeat(150)
}

fn layer(memory: &Memory, title: &str) -> Result<String, MemoryError> {
    memory.add_lesson(&NewLesson {
        kind: LessonKind::Layer,
        title,
        topics: &[],
        content: &long_text("The token expires at noon."),
        project: None,
    })
}

struct FixedModel(Value);

impl SmallModel for FixedModel {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        std::future::ready(Ok(self.0.to_string())).boxed()
    }
}

#[tokio::test]
async fn the_earlier_text_of_a_lesson_is_removed_from_every_file() {
    let (dir, memory) = open(&[]);
    say(&memory, "Always lock the gate.");
    memory.distill("s", None).await.unwrap();
    let lesson = memory.lessons(None).unwrap().remove(0).lesson_id;
    let layer = layer(&memory, "Tokens").unwrap();
    let texts = [
        (
            &lesson,
            "The vault opens with osprey.".to_owned(),
            "Locked.".to_owned(),
        ),
        (
            &layer,
            long_text("It opens with osprey."),
            long_text("It is locked."),
        ),
    ];
    for (id, before, after) in texts {
        memory.edit_lesson(id, &content(&before)).unwrap();
        let found = memory.find_lessons(None, "osprey", 3).unwrap();
        assert!(
            found[0].keywords.contains(&"osprey".to_owned()),
            "{found:?}"
        );
        memory.store_brief("s", "It opens with osprey.").unwrap();
        memory.edit_lesson(id, &content(&after)).unwrap();
        assert_eq!(memory.brief("s").unwrap(), None);
        assert_eq!(memory.find_lessons(None, "osprey", 3).unwrap(), []);
        for file in std::fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap().path();
            if let Ok(bytes) = std::fs::read(&file) {
                let is_left = bytes.windows(6).any(|part| part == b"osprey");
                assert!(!is_left, "{}", file.display());
            }
        }
    }
}

#[test]
fn a_layer_keeps_its_size_and_a_title_of_its_own() {
    let (_dir, memory) = open(&[]);
    let first = layer(&memory, "Tokens").unwrap();
    let short = memory.edit_lesson(&first, &content("Six words are far too few."));
    assert!(
        matches!(short, Err(MemoryError::LayerSize { .. })),
        "{short:?}"
    );
    let second = layer(&memory, "Gates").unwrap();
    let is_taken =
        |result: Result<(), MemoryError>| matches!(result, Err(MemoryError::LayerExists(_)));
    assert!(is_taken(memory.edit_lesson(&second, &title("tokens"))));
    assert!(is_taken(layer(&memory, " TOKENS ").map(drop)));
    // A title can be used again after it was changed.
    memory.edit_layer(&first, &title("Keys")).unwrap();
    let third = layer(&memory, "Tokens").unwrap();
    assert!(first != third);
    assert!(is_taken(memory.edit_layer(&third, &title("Keys"))));
    memory.edit_layer(&third, &title("TOKENS")).unwrap();
    for wrong in ["", " ", "two\nlines"] {
        let added = layer(&memory, wrong);
        assert!(
            matches!(added, Err(MemoryError::InvalidLesson(_))),
            "{added:?}"
        );
        let edited = memory.edit_layer(&third, &title(wrong));
        assert!(
            matches!(edited, Err(MemoryError::InvalidLesson(_))),
            "{edited:?}"
        );
    }
    let secret = layer(
        &memory,
        "Key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH",
    )
    .unwrap();
    let layers = memory.layers(None).unwrap();
    let stored = layers
        .iter()
        .find(|layer| layer.lesson_id == secret)
        .unwrap();
    assert!(!stored.title.contains("abcdefghij"), "{}", stored.title);
}

#[tokio::test]
async fn a_gap_cannot_be_accepted_and_an_accepted_lesson_is_not_contradicted() {
    let (_dir, memory) = open(&[]);
    say(&memory, "Always run the slow linter.");
    memory.distill("s", None).await.unwrap();
    let preference = memory.lessons(None).unwrap().remove(0).lesson_id;
    say(&memory, "Never run the slow linter.");
    let model = FixedModel(json!({
        "gaps": [{"content": "How is it deployed?", "turns": ["T-2"]}],
        "contradictions": [{"lesson": preference, "statement": "Never.", "turns": ["T-2"]}],
    }));
    memory.distill("s", Some(&model)).await.unwrap();
    let lesson = |id: &str| {
        let lessons = memory.lessons(None).unwrap().into_iter();
        lessons
            .into_iter()
            .find(|lesson| lesson.lesson_id == id)
            .unwrap()
    };
    let lessons = memory.lessons(None).unwrap();
    let gap = lessons
        .iter()
        .find(|it| it.kind == LessonKind::Gap)
        .unwrap();
    let accepted = memory.review_lesson(&gap.lesson_id, ProposalDecision::Accept);
    assert!(
        matches!(accepted, Err(MemoryError::GapAccepted(_))),
        "{accepted:?}"
    );
    assert_eq!(lesson(&gap.lesson_id).status, LessonStatus::Proposed);
    memory
        .review_lesson(&gap.lesson_id, ProposalDecision::Decline)
        .unwrap();
    assert_eq!(lesson(&gap.lesson_id).status, LessonStatus::Declined);
    assert_eq!(lesson(&preference).status, LessonStatus::Contradicted);
    assert!(lesson(&preference).note.is_some());
    memory
        .review_lesson(&preference, ProposalDecision::Accept)
        .unwrap();
    let accepted = lesson(&preference);
    assert_eq!((accepted.status, accepted.note), (LessonStatus::Used, None));
    let unknown = memory.review_lesson("les_x", ProposalDecision::Accept);
    assert!(
        matches!(unknown, Err(MemoryError::LessonNotFound(_))),
        "{unknown:?}"
    );
}

/// Records the texts that it encodes.
#[derive(Debug, Default)]
struct TextRecorder(Mutex<Vec<String>>);

impl Encoder for TextRecorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError> {
        let mut seen = self.0.lock().unwrap();
        seen.extend(texts.iter().map(|text| (*text).to_owned()));
        Ok(texts.iter().map(|_| vec![1.0, 0.0]).collect())
    }
}

#[tokio::test]
async fn the_encoder_of_a_project_reads_no_lesson_of_another() {
    let (dir, memory) = open(&[]);
    for (session, text) in [
        ("one", "Always lock the heron gate."),
        ("two", "Always lock the falcon gate."),
    ] {
        let place = ProjectPlace {
            directory: format!("/{session}"),
            root: format!("/{session}"),
        };
        memory.join_project(session, &place).unwrap();
        memory
            .append(session, &NewTurn::text("user", text))
            .unwrap();
    }
    memory.distill("one", None).await.unwrap();
    assert_eq!(memory.lessons(None).unwrap().len(), 1);
    drop(memory);
    let encoder = Arc::new(TextRecorder::default());
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    let memory = Arc::new(memory.with_encoder(encoder.clone()));
    memory.distill("two", None).await.unwrap();
    let layer = layer(&memory, "Tokens").unwrap();
    memory.edit_lesson(&layer, &title("Keys")).unwrap();
    let seen = encoder.0.lock().unwrap().join("\n");
    assert!(seen.contains("falcon") && seen.contains("Keys"), "{seen}");
    assert!(!seen.contains("heron"), "{seen}");
}
