//! Distilling through a provider's batch API: submitted once, fetched by a later process, and done
//! by rules where answers are missing.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::Redactor;
use selvedge_memory::{
    BatchSmallModel, BatchSubmission, Memory, MemoryError, NewTurn, SmallModel,
    SmallModelBatchStatus, SmallModelError,
};
use serde_json::json;
use support::store;

/// A provider whose batch status is set by the test. Requests fail while there is none.
#[derive(Default)]
struct BatchModel {
    submitted: Mutex<Vec<Vec<String>>>,
    state: Mutex<Option<SmallModelBatchStatus>>,
}

impl BatchModel {
    fn set_state(&self, state: SmallModelBatchStatus) {
        *self.state.lock().unwrap() = Some(state);
    }

    fn submitted(&self) -> usize {
        self.submitted.lock().unwrap().len()
    }
}

impl SmallModel for BatchModel {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async {
            Err(SmallModelError::Failed(
                "only batches are answered".to_owned(),
            ))
        }
        .boxed()
    }

    fn batch_model(&self) -> Option<&dyn BatchSmallModel> {
        Some(self)
    }
}

impl BatchSmallModel for BatchModel {
    fn submit<'a>(
        &'a self,
        prompts: &'a [String],
    ) -> BoxFuture<'a, Result<BatchSubmission, SmallModelError>> {
        let mut submitted = self.submitted.lock().unwrap();
        submitted.push(prompts.to_vec());
        let name = format!("batch_{}", submitted.len());
        async { Ok(BatchSubmission::Accepted(name)) }.boxed()
    }

    fn poll<'a>(
        &'a self,
        batch: &'a str,
        prompts: usize,
    ) -> BoxFuture<'a, Result<SmallModelBatchStatus, SmallModelError>> {
        let submitted = self.submitted.lock().unwrap();
        assert_eq!(batch, format!("batch_{}", submitted.len()));
        assert_eq!(prompts, submitted.last().unwrap().len());
        let state = self.state.lock().unwrap().clone();
        async { state.ok_or_else(|| SmallModelError::Failed("unreachable".to_owned())) }.boxed()
    }
}

fn open(dir: &tempfile::TempDir) -> Arc<Memory> {
    Arc::new(Memory::open(store(dir.path()), Redactor::new([])).unwrap())
}

fn lesson(title: &str, turns: &[u32]) -> Result<String, SmallModelError> {
    let lesson = json!({
        "title": title,
        "content": format!("{title}: do it so."),
        "topics": ["x"],
        "turns": turns,
    });
    Ok(json!({"lessons": [lesson]}).to_string())
}

fn titles(memory: &Memory) -> Vec<String> {
    let mut titles: Vec<String> = memory
        .lessons(None)
        .unwrap()
        .into_iter()
        .map(|lesson| lesson.title)
        .collect();
    titles.sort();
    titles
}

#[tokio::test]
async fn a_batch_is_submitted_once_and_fetched_by_a_later_process() {
    let (dir, provider) = (tempfile::tempdir().unwrap(), BatchModel::default());
    let memory = open(&dir);
    for n in 0..700 {
        memory
            .append(
                "s",
                &NewTurn::text("user", &format!("We talked about the harbour, number {n}.")),
            )
            .unwrap();
    }
    let done = memory.distill("s", Some(&provider)).await.unwrap();
    assert_eq!(
        (
            done.distilled_turns,
            done.remaining_turns,
            done.submitted_turns
        ),
        (0, 0, 700),
        "all turns are in one batch"
    );
    drop(memory);
    // Another process, while the provider works on the batch and after another turn.
    let memory = open(&dir);
    memory
        .append("s", &NewTurn::text("user", "Always lock the gate."))
        .unwrap();
    provider.set_state(SmallModelBatchStatus::Running);
    assert_eq!(
        memory
            .distill("s", Some(&provider))
            .await
            .unwrap()
            .submitted_turns,
        700
    );
    *provider.state.lock().unwrap() = None;
    assert!(
        matches!(
            memory.distill("s", Some(&provider)).await,
            Err(MemoryError::ProviderBatch(_))
        ),
        "the provider is unreachable"
    );
    // A process without the model leaves the answers to one that can fetch them.
    let waiting = memory.distill("s", None).await.unwrap();
    assert_eq!((waiting.submitted_turns, waiting.distilled_turns), (700, 0));
    drop(memory);
    let memory = open(&dir);
    provider.set_state(SmallModelBatchStatus::Completed(vec![lesson(
        "Harbours",
        &[3],
    )]));
    let done = memory.distill("s", Some(&provider)).await.unwrap();
    assert_eq!(
        (
            done.distilled_turns,
            done.learned,
            done.remaining_turns,
            done.submitted_turns
        ),
        (700, 1, 1, 0)
    );
    assert_eq!(
        (provider.submitted(), titles(&memory)),
        (1, vec!["Harbours".to_owned()])
    );
    // The next batch has only the turn that was appended meanwhile.
    assert_eq!(
        memory
            .distill("s", Some(&provider))
            .await
            .unwrap()
            .submitted_turns,
        1
    );
    let prompt = provider.submitted.lock().unwrap()[1].concat();
    let (before, prompt) = prompt.split_once("# New turns").unwrap();
    assert!(before.contains("T-700"), "the latest turns are context");
    assert!(
        prompt.contains("T-701") && !prompt.contains("T-700"),
        "{prompt}"
    );
    // A turn that was forgotten meanwhile is not learned from.
    memory.forget_turn("s", 701).unwrap();
    provider.set_state(SmallModelBatchStatus::Completed(vec![lesson(
        "Gates",
        &[701],
    )]));
    memory.distill("s", Some(&provider)).await.unwrap();
    assert_eq!(titles(&memory), ["Harbours"]);
    assert_eq!(memory.distill("s", None).await.unwrap().distilled_turns, 0);
}

#[tokio::test]
async fn rules_replace_failed_lines_and_failed_batches() {
    let (dir, provider) = (tempfile::tempdir().unwrap(), BatchModel::default());
    let memory = open(&dir);
    let words = [
        "harbour", "violin", "concrete", "orchard", "lantern", "passport", "granite", "saffron",
    ];
    // A unique name for each turn.
    let ferry = |n: usize| format!("{}{}{}", words[n % 8], words[n / 8 % 8], words[n / 64]);
    for n in 0..200_usize {
        let sentences: Vec<String> = (0..60)
            .map(|at| {
                format!(
                    "The {} of {} number {} is {}.",
                    words[(n + at) % 8],
                    words[at % 8],
                    n * 60 + at,
                    at * 7919 % 1000
                )
            })
            .collect();
        memory
            .append(
                "s",
                &NewTurn::text(
                    "user",
                    &format!("{} I prefer the {}.", sentences.join(" "), ferry(n)),
                ),
            )
            .unwrap();
    }
    memory.distill("s", Some(&provider)).await.unwrap();
    let prompts = provider.submitted.lock().unwrap()[0].len();
    assert!(prompts > 1, "{prompts}");
    let mut answers = vec![Err(SmallModelError::Failed("overloaded".to_owned())); prompts];
    answers[0] = lesson("From the model", &[1]);
    provider.set_state(SmallModelBatchStatus::Completed(answers));
    let done = memory.distill("s", Some(&provider)).await.unwrap();
    assert_eq!((done.distilled_turns, done.submitted_turns), (200, 0));
    let found = titles(&memory);
    assert!(found.contains(&"From the model".to_owned()), "{found:?}");
    assert!(
        found.contains(&format!("I prefer the {}.", ferry(199))),
        "the last turns are distilled by rules: {found:?}"
    );
    assert!(
        !found.contains(&format!("I prefer the {}.", ferry(0))),
        "the first turn is distilled by the model alone: {found:?}"
    );

    // A batch that expires is submitted once more, then rules are used.
    memory
        .append("s", &NewTurn::text("user", "I prefer the slow ferry."))
        .unwrap();
    memory.distill("s", Some(&provider)).await.unwrap();
    provider.set_state(SmallModelBatchStatus::Failed);
    assert_eq!(
        memory
            .distill("s", Some(&provider))
            .await
            .unwrap()
            .submitted_turns,
        1
    );
    assert_eq!(provider.submitted(), 3);
    assert_eq!(
        memory
            .distill("s", Some(&provider))
            .await
            .unwrap()
            .distilled_turns,
        1
    );
    assert_eq!(provider.submitted(), 3);
    assert!(titles(&memory).contains(&"I prefer the slow ferry.".to_owned()));
}

/// A provider that rejects a batch, or whose answer to the submission is lost.
struct RejectingModel {
    is_known: bool,
}

impl SmallModel for RejectingModel {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async {
            Err(SmallModelError::Failed(
                "only batches are answered".to_owned(),
            ))
        }
        .boxed()
    }

    fn batch_model(&self) -> Option<&dyn BatchSmallModel> {
        Some(self)
    }
}

impl BatchSmallModel for RejectingModel {
    fn submit<'a>(
        &'a self,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<BatchSubmission, SmallModelError>> {
        let error = SmallModelError::Failed("not now".to_owned());
        let submitted = match self.is_known {
            true => Ok(BatchSubmission::Rejected(error)),
            false => Err(error),
        };
        std::future::ready(submitted).boxed()
    }

    fn poll<'a>(
        &'a self,
        _: &'a str,
        _: usize,
    ) -> BoxFuture<'a, Result<SmallModelBatchStatus, SmallModelError>> {
        async { Err(SmallModelError::Failed("no such batch".to_owned())) }.boxed()
    }
}

#[tokio::test]
async fn a_rejected_batch_is_submitted_again_and_one_that_may_have_been_accepted_is_not() {
    for (is_known, submitted) in [(true, 1), (false, 0)] {
        let (dir, provider) = (tempfile::tempdir().unwrap(), BatchModel::default());
        let memory = open(&dir);
        let turn = NewTurn::text("user", "I prefer the slow ferry.");
        memory.append("s", &turn).unwrap();
        let rejecting = RejectingModel { is_known };
        let failed = memory.distill("s", Some(&rejecting)).await;
        assert!(
            matches!(failed, Err(MemoryError::ProviderBatch(_))),
            "{failed:?}"
        );
        memory.distill("s", Some(&provider)).await.unwrap();
        assert_eq!(provider.submitted(), submitted);
        let state = memory.distill_state("s").unwrap().unwrap();
        assert_eq!(state.unanswered_requests, u32::from(!is_known));
        assert_eq!(titles(&memory).is_empty(), is_known);
    }
}

/// A model whose provider rejects batches.
#[derive(Default)]
struct NoBatches {
    /// The memory, and how many requests about its session were open at each prompt.
    observed: Option<(Arc<Memory>, Mutex<Vec<u32>>)>,
}

impl SmallModel for NoBatches {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        if let Some((memory, open)) = &self.observed {
            let state = memory.distill_state("s").unwrap().unwrap();
            open.lock().unwrap().push(state.open_requests);
        }
        async { lesson("Asked at once", &[1]) }.boxed()
    }

    fn batch_model(&self) -> Option<&dyn BatchSmallModel> {
        Some(self)
    }
}

impl BatchSmallModel for NoBatches {
    fn submit<'a>(
        &'a self,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<BatchSubmission, SmallModelError>> {
        async { Ok(BatchSubmission::Unsupported) }.boxed()
    }

    fn poll<'a>(
        &'a self,
        _: &'a str,
        _: usize,
    ) -> BoxFuture<'a, Result<SmallModelBatchStatus, SmallModelError>> {
        async { Err(SmallModelError::Failed("no such batch".to_owned())) }.boxed()
    }
}

#[tokio::test]
async fn a_model_without_batches_is_asked_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    memory
        .append("s", &NewTurn::text("user", "Always lock the gate."))
        .unwrap();
    let done = memory
        .distill("s", Some(&NoBatches::default()))
        .await
        .unwrap();
    assert_eq!(
        (done.distilled_turns, done.submitted_turns, titles(&memory)),
        (1, 0, vec!["Asked at once".to_owned()])
    );
}

#[tokio::test]
async fn a_model_without_batches_has_one_open_request_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    for n in 0..200 {
        let sentences = (0..60).map(|at| format!("Crate {at} of ferry {n} has {} bolts. ", n * at));
        let text: String = sentences.collect();
        let turn = NewTurn::text("user", &text);
        memory.append("s", &turn).unwrap();
    }
    let model = NoBatches {
        observed: Some((memory.clone(), Mutex::default())),
    };
    while memory
        .distill("s", Some(&model))
        .await
        .unwrap()
        .remaining_turns
        > 0
    {}
    let (_, observed) = model.observed.unwrap();
    let observed = observed.into_inner().unwrap();
    assert!(observed.len() > 1, "{observed:?}");
    assert!(observed.iter().all(|open| *open == 1), "{observed:?}");
}
