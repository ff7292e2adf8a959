//! The stages of a recall with a small model that answers well, slowly, wrongly, never, or with an
//! error.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::Redactor;
use selvedge_memory::{
    CandidateFate, Encoder, LessonEdit, LessonKind, Memory, MemoryError, NewLesson, NewTurn,
    RecallDeadlines, RecallRequest, RecalledMemory, SmallModel, SmallModelError, StageName,
    StageOutcome,
};
use support::store;

const QUESTION: &str = "which database does the staging server use?";

/// How the model behaves.
#[derive(Debug, Clone, Copy)]
enum Behaviour {
    /// Keeps the first candidate of the filter, and mentions it.
    Mentions,
    /// Answers the filter; the judgement takes longer than its deadline.
    SlowJudgement,
    /// Answers after the deadline.
    Slow,
    /// Answers with numbers that do not exist.
    Wrong,
    /// Names other words for the message, and quotes what is found.
    NamesWords,
    /// Answers with text instead of JSON.
    Chatty,
    Silent,
    Failing,
}

struct PipelineModel {
    behaviour: Behaviour,
    asked: AtomicUsize,
}

impl SmallModel for PipelineModel {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let judges = prompt.contains("\"mention\"");
        async move {
            let pause = |time| tokio::time::sleep(time);
            match self.behaviour {
                Behaviour::Mentions if judges => Ok("{\"quote\": [], \"mention\": [1]}".into()),
                Behaviour::Mentions => Ok("[1]".into()),
                Behaviour::SlowJudgement if judges => {
                    pause(Duration::from_secs(600)).await;
                    Ok("{\"quote\": []}".into())
                }
                Behaviour::SlowJudgement => Ok("The first two: [1, 2]".into()),
                Behaviour::Slow => {
                    pause(Duration::from_secs(600)).await;
                    Ok("[]".into())
                }
                Behaviour::NamesWords if prompt.contains("other words") => {
                    Ok("[\"staging\", \"database\", \"host\"]".into())
                }
                Behaviour::NamesWords if judges => Ok("{\"quote\": [1]}".into()),
                Behaviour::NamesWords => Ok("[1]".into()),
                Behaviour::Wrong => Ok("[999, -1, \"x\"]".into()),
                Behaviour::Chatty => Ok("I would rather talk about the weather.".into()),
                Behaviour::Silent => std::future::pending().await,
                Behaviour::Failing => Err(SmallModelError::Failed("quota exceeded".into())),
            }
        }
        .boxed()
    }
}

fn memory() -> (tempfile::TempDir, Arc<Memory>) {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap());
    let text = "The staging server uses the database heron-7 in Oslo.";
    memory.append("s", &NewTurn::text("user", text)).unwrap();
    for number in 0..24 {
        let text = format!("Server {number} was restarted; its database is backed up in Bergen.");
        memory
            .append("s", &NewTurn::text("assistant", &text))
            .unwrap();
    }
    while memory.write_levels(None).unwrap().remaining_turns > 0 {}
    // Loads the vocabulary, so that the deadlines below measure the stages.
    selvedge_tokens::count("a");
    (dir, memory)
}

async fn recall(memory: &Arc<Memory>, behaviour: Option<Behaviour>, total: u64) -> RecalledMemory {
    let model = behaviour.map(|behaviour| {
        Arc::new(PipelineModel {
            behaviour,
            asked: AtomicUsize::new(0),
        }) as Arc<dyn SmallModel>
    });
    let request = RecallRequest {
        model,
        deadlines: RecallDeadlines::within(Duration::from_millis(total)),
        ..RecallRequest::new("s", QUESTION)
    };
    memory.recall(&request).await
}

fn outcome(recalled: &RecalledMemory, name: StageName) -> &StageOutcome {
    let stage = recalled.stages.iter().find(|stage| stage.name == name);
    &stage.unwrap().outcome
}

/// Time for a busy machine, in milliseconds.
const PATIENT: u64 = 60_000;

#[tokio::test(flavor = "multi_thread")]
async fn the_model_removes_candidates_and_decides_what_is_mentioned() {
    let (_dir, memory) = memory();
    let without = recall(&memory, None, PATIENT).await;
    let skipped = StageOutcome::Skipped("there is no memory.model".into());
    assert_eq!(*outcome(&without, StageName::Filter), skipped);
    assert!(without.hits.len() > 5 && without.text.contains("heron-7"));
    let stages: Vec<&str> = without
        .stages
        .iter()
        .map(|stage| stage.name.as_str())
        .collect();
    assert_eq!(
        stages,
        ["keywords", "vectors", "model filter", "judgement", "text"]
    );

    let mentioned = recall(&memory, Some(Behaviour::Mentions), PATIENT).await;
    assert_eq!(
        *outcome(&mentioned, StageName::Judgement),
        StageOutcome::Done
    );
    assert!(mentioned.hits.is_empty(), "{:?}", mentioned.hits);
    assert_eq!(mentioned.mentioned, without.hits[..1]);
    assert!(
        mentioned.text.contains("Related; not quoted:\n- T-1 ("),
        "{}",
        mentioned.text
    );
    let fates: Vec<CandidateFate> = mentioned
        .candidates
        .iter()
        .map(|found| found.fate)
        .collect();
    assert_eq!(fates[0], CandidateFate::Mentioned);
    // Its answer is not about the candidates of the other prompts, so they are kept until the
    // judgement.
    assert_eq!(fates[1], CandidateFate::RemovedByFilter);
    assert_eq!(fates[10], CandidateFate::RemovedByJudgement);
    assert!(mentioned.missing.is_empty(), "{:?}", mentioned.missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_fails_falls_back_to_the_one_before() {
    let (_dir, memory) = memory();
    let without = recall(&memory, None, PATIENT).await;
    for (behaviour, message) in [
        (Behaviour::Slow, "model filter: deadline exceeded"),
        (Behaviour::Wrong, "model filter: invalid answer"),
        (Behaviour::Chatty, "model filter: invalid answer"),
        (Behaviour::Silent, "model filter: deadline exceeded"),
        (Behaviour::Failing, "model filter: quota exceeded"),
    ] {
        let total = match behaviour {
            Behaviour::Slow | Behaviour::Silent => 3_000,
            _ => PATIENT,
        };
        let recalled = recall(&memory, Some(behaviour), total).await;
        assert_eq!(recalled.hits, without.hits, "{behaviour:?}");
        assert!(recalled.text.contains("heron-7"), "{behaviour:?}");
        let missing = recalled.missing.join("\n");
        assert!(missing.contains(message), "{behaviour:?}: {missing}");
        assert!(missing.contains("judgement: "), "{behaviour:?}: {missing}");
    }
    // Only the judgement is late: the result of the filter counts.
    let recalled = recall(&memory, Some(Behaviour::SlowJudgement), 3_000).await;
    let numbers: Vec<u32> = recalled.hits.iter().map(|hit| hit.number).collect();
    let best: Vec<u32> = without.hits[..2].iter().map(|hit| hit.number).collect();
    assert_eq!(numbers[..2], best[..]);
    assert_eq!(
        recalled.missing,
        ["judgement: deadline exceeded"],
        "{:?}",
        recalled.stages
    );
}

/// A question that shares no word with any turn.
const OTHER_QUESTION: &str = "Where do we keep persistent data of preproduction?";

async fn recall_other(
    memory: &Arc<Memory>,
    session: &str,
    behaviour: Behaviour,
    total: u64,
) -> (RecalledMemory, usize) {
    let model = Arc::new(PipelineModel {
        behaviour,
        asked: AtomicUsize::new(0),
    });
    let request = RecallRequest {
        model: Some(model.clone()),
        deadlines: RecallDeadlines::within(Duration::from_millis(total)),
        ..RecallRequest::new(session, OTHER_QUESTION)
    };
    let recalled = memory.recall(&request).await;
    (recalled, model.asked.load(Ordering::Relaxed))
}

#[tokio::test(flavor = "multi_thread")]
async fn other_words_of_the_model_find_what_the_message_does_not_name() {
    let (_dir, memory) = memory();
    let (found, asked) = recall_other(&memory, "s", Behaviour::NamesWords, PATIENT).await;
    assert_eq!(*outcome(&found, StageName::OtherWords), StageOutcome::Done);
    assert!(found.text.contains("heron-7"), "{}", found.text);
    assert_eq!(found.hits.len(), 1, "{:?}", found.hits);
    assert!(asked > 2, "{asked}");
    // A wrong or missing answer finds nothing, and delays nothing.
    for (behaviour, total) in [(Behaviour::Chatty, PATIENT), (Behaviour::Silent, 1_200)] {
        let (found, asked) = recall_other(&memory, "s", behaviour, total).await;
        assert!(
            found.hits.is_empty() && asked == 1,
            "{behaviour:?}: {asked}"
        );
        assert!(
            found.missing[0].starts_with("other words: "),
            "{:?}",
            found.missing
        );
        assert!(found.elapsed < Duration::from_millis(PATIENT.min(total) + 600));
    }
    // Without a turn to find, and if the searches found something, the model is not asked.
    let (found, asked) = recall_other(&memory, "new", Behaviour::NamesWords, PATIENT).await;
    assert!(found.candidates.is_empty() && asked == 0, "{asked}");
    let found = recall(&memory, Some(Behaviour::NamesWords), PATIENT).await;
    let stages = found.stages.iter().map(|stage| stage.name);
    assert!(!stages.into_iter().any(|name| name == StageName::OtherWords));
}

/// Knows that two words mean the same, and nothing else.
#[derive(Debug)]
struct TwoWords;

impl Encoder for TwoWords {
    fn name(&self) -> &str {
        "two words"
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError> {
        let vector = |text: &&str| match text.contains("staging") || text.contains("preproduction")
        {
            true => vec![1.0, 0.0],
            false => vec![0.0, 1.0],
        };
        Ok(texts.iter().map(vector).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_find_the_lessons_of_turns_without_a_common_word() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    let memory = Arc::new(memory.with_encoder(Arc::new(TwoWords)));
    let lesson = "Never restart staging before noon.";
    for text in [
        lesson,
        "Lunch was late.",
        "The lantern is green.",
        "It rained.",
    ] {
        memory.append("s", &NewTurn::text("user", text)).unwrap();
    }
    while memory.distill("s", None).await.unwrap().remaining_turns > 0 {}
    while memory.write_vectors("s").unwrap() > 0 {}
    let request = RecallRequest {
        deadlines: RecallDeadlines::within(Duration::from_millis(PATIENT)),
        ..RecallRequest::new("s", OTHER_QUESTION)
    };
    let recalled = memory.recall(&request).await;
    let contents: Vec<&str> = recalled
        .lessons
        .iter()
        .map(|it| it.content.as_str())
        .collect();
    assert_eq!(contents, [lesson], "{:?}", recalled.stages);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_is_quoted_or_mentioned_as_the_model_decides() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap());
    let content = "The staging server uses a database in Oslo. ".repeat(60);
    let layer = NewLesson {
        kind: LessonKind::Layer,
        title: "Databases of staging",
        topics: &["staging".to_owned()],
        content: &content,
        project: None,
    };
    memory.add_lesson(&layer).unwrap();
    let quoted = recall(&memory, None, PATIENT).await;
    assert_eq!(quoted.lessons.len(), 1);
    assert!(
        quoted
            .text
            .contains("References:\n- Databases of staging\nThe staging")
    );
    let mentioned = recall(&memory, Some(Behaviour::Mentions), PATIENT).await;
    assert!(mentioned.lessons.is_empty() && mentioned.mentioned_layers.len() == 1);
    assert_eq!(mentioned.candidates[0].fate, CandidateFate::Mentioned);
    assert!(
        mentioned
            .text
            .contains("- reference \"Databases of staging\" (")
            && !mentioned.text.contains("uses a database"),
        "{}",
        mentioned.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_never_waits_longer_than_the_total() {
    let (_dir, memory) = memory();
    for behaviour in [Behaviour::Slow, Behaviour::Silent, Behaviour::SlowJudgement] {
        let begun = Instant::now();
        let recalled = recall(&memory, Some(behaviour), 1_200).await;
        // The margin is for a busy machine.
        let elapsed = begun.elapsed();
        assert!(
            elapsed < Duration::from_millis(1_200 + 600),
            "{behaviour:?}: {elapsed:?}, {:?}",
            recalled.stages
        );
        assert!(recalled.elapsed <= elapsed);
        for stage in &recalled.stages {
            let limit = match stage.name {
                StageName::Filter => 500,
                StageName::Judgement => 200,
                _ => continue,
            };
            assert_eq!(stage.limit, Duration::from_millis(limit));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_does_not_fit_is_quoted_where_it_matches() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap());
    let filler = "The lobby of the building is described in another place. ".repeat(200);
    let content = format!("{filler}The staging database is in Oslo. {filler}");
    let layer = NewLesson {
        kind: LessonKind::Layer,
        title: "All buildings",
        topics: &["staging".to_owned()],
        content: &content,
        project: None,
    };
    memory.add_lesson(&layer).unwrap();
    let request = RecallRequest {
        deadlines: RecallDeadlines::within(Duration::from_millis(PATIENT)),
        ..RecallRequest::new("s", "Where is the staging database?")
    };
    let recalled = memory.recall(&request).await;
    let text = &recalled.text;
    assert!(
        text.contains("References:\n- All buildings, in part:\n… "),
        "{text}"
    );
    assert!(text.contains("The staging database is in Oslo."), "{text}");
    assert!(
        text.contains("reference \"All buildings\" (") && text.contains("tools.memory.search"),
        "{text}"
    );
    assert!(recalled.tokens <= request.max_tokens, "{}", recalled.tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_have_vectors_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    let memory = Arc::new(memory.with_encoder(Arc::new(TwoWords)));
    memory
        .append("s", &NewTurn::text("user", "Lunch was late."))
        .unwrap();
    let filler = "The lobby of the building is described in another place. ".repeat(60);
    let content = format!("The staging server is in Oslo. {filler}");
    let layer = NewLesson {
        kind: LessonKind::Layer,
        title: "Servers",
        topics: &[],
        content: &content,
        project: None,
    };
    let id = memory.add_lesson(&layer).unwrap();
    let found = async || {
        let request = RecallRequest {
            deadlines: RecallDeadlines::within(Duration::from_millis(PATIENT)),
            ..RecallRequest::new("s", OTHER_QUESTION)
        };
        let recalled = memory.recall(&request).await;
        recalled.lessons.iter().any(|lesson| lesson.lesson_id == id)
    };
    // No word of the question is in the layer.
    assert!(found().await, "its vector was written when it was added");
    let edit = |content: String| LessonEdit {
        content: Some(content),
        ..LessonEdit::default()
    };
    memory.edit_layer(&id, &edit(filler.clone())).unwrap();
    assert!(!found().await, "its vector is that of its new text");
    memory.edit_layer(&id, &edit(content.clone())).unwrap();
    assert!(found().await);
    assert_eq!(memory.reindex_lessons().unwrap(), 1);
    assert!(found().await);
}

/// Encodes nothing until its channel is closed.
#[derive(Debug)]
struct HangingEncoder(Mutex<Receiver<()>>);

impl Encoder for HangingEncoder {
    fn name(&self) -> &str {
        "hanging"
    }

    fn encode(&self, _: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError> {
        let _ = self.0.lock().unwrap().recv();
        Err(MemoryError::Encoder("released".to_owned()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_search_exceeds_the_total() {
    let (release, held) = channel();
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(store(dir.path()), Redactor::new([])).unwrap();
    let memory = Arc::new(memory.with_encoder(Arc::new(HangingEncoder(Mutex::new(held)))));
    memory
        .append(
            "s",
            &NewTurn::text("user", "The staging server is in Oslo."),
        )
        .unwrap();
    let request = RecallRequest {
        deadlines: RecallDeadlines {
            total: Duration::from_secs(2),
            ..RecallDeadlines::within(Duration::from_secs(600))
        },
        ..RecallRequest::new("new", "Where is the staging server?")
    };
    let recalled = tokio::time::timeout(Duration::from_secs(60), memory.recall(&request)).await;
    drop(release);
    assert!(recalled.is_ok(), "the search waited for its own deadline");
}
