//! Lessons drawn later: handed over once, fetched by whoever comes, and by rules where nothing comes.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Mutex;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::Redactor;
use selvedge_memory::{Batch, Later, Memory, MemoryError, NewTurn, SmallModel, SmallModelError};
use serde_json::json;

/// A provider that answers when it is told to.
#[derive(Default)]
struct Provider {
    submitted: Mutex<Vec<Vec<String>>>,
    state: Mutex<Option<Batch>>,
}

impl Provider {
    fn says(&self, state: Batch) {
        *self.state.lock().unwrap() = Some(state);
    }

    fn submitted(&self) -> usize {
        self.submitted.lock().unwrap().len()
    }
}

impl SmallModel for Provider {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async { Err(SmallModelError("nobody asks at once".to_owned())) }.boxed()
    }

    fn later(&self) -> Option<&dyn Later> {
        Some(self)
    }
}

impl Later for Provider {
    fn submit<'a>(
        &'a self,
        prompts: &'a [String],
    ) -> BoxFuture<'a, Result<Option<String>, SmallModelError>> {
        let mut submitted = self.submitted.lock().unwrap();
        submitted.push(prompts.to_vec());
        let name = format!("batch_{}", submitted.len());
        async { Ok(Some(name)) }.boxed()
    }

    fn look<'a>(
        &'a self,
        batch: &'a str,
        prompts: usize,
    ) -> BoxFuture<'a, Result<Batch, SmallModelError>> {
        let submitted = self.submitted.lock().unwrap();
        assert_eq!(batch, format!("batch_{}", submitted.len()));
        assert_eq!(prompts, submitted.last().unwrap().len());
        let state = self.state.lock().unwrap().clone();
        async { state.ok_or_else(|| SmallModelError("unreachable".to_owned())) }.boxed()
    }
}

fn open(dir: &tempfile::TempDir) -> Memory {
    Memory::open(dir.path(), Redactor::new([])).unwrap()
}

fn lesson(title: &str, turns: &[u32]) -> Result<String, SmallModelError> {
    Ok(json!({"lessons": [{"title": title, "content": format!("{title}: do it so."), "topics": ["x"], "turns": turns}]}).to_string())
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
async fn a_batch_is_handed_over_once_and_fetched_by_whoever_comes() {
    let (dir, provider) = (tempfile::tempdir().unwrap(), Provider::default());
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
        (done.turns, done.waiting, done.handed_over),
        (0, 0, 700),
        "all of them at once"
    );
    drop(memory);
    // Another process, while it is worked on, and more turns have come.
    let memory = open(&dir);
    memory
        .append("s", &NewTurn::text("user", "Always lock the gate."))
        .unwrap();
    provider.says(Batch::Working);
    assert_eq!(
        memory
            .distill("s", Some(&provider))
            .await
            .unwrap()
            .handed_over,
        700
    );
    *provider.state.lock().unwrap() = None;
    assert!(
        matches!(
            memory.distill("s", Some(&provider)).await,
            Err(MemoryError::Batch(_))
        ),
        "trouble on the way"
    );
    drop(memory);
    let memory = open(&dir);
    provider.says(Batch::Answered(vec![lesson("Harbours", &[3])]));
    let done = memory.distill("s", Some(&provider)).await.unwrap();
    assert_eq!(
        (done.turns, done.learned, done.waiting, done.handed_over),
        (700, 1, 1, 0)
    );
    assert_eq!(
        (provider.submitted(), titles(&memory)),
        (1, vec!["Harbours".to_owned()])
    );
    // The rest is another batch, with what came meanwhile alone.
    assert_eq!(
        memory
            .distill("s", Some(&provider))
            .await
            .unwrap()
            .handed_over,
        1
    );
    let prompt = provider.submitted.lock().unwrap()[1].concat();
    assert!(
        prompt.contains("T-701") && !prompt.contains("T-700"),
        "{prompt}"
    );
    // What is forgotten meanwhile is not learned from.
    memory.forget_turn("s", 701).unwrap();
    provider.says(Batch::Answered(vec![lesson("Gates", &[701])]));
    memory.distill("s", Some(&provider)).await.unwrap();
    assert_eq!(titles(&memory), ["Harbours"]);
    assert_eq!(memory.distill("s", None).await.unwrap().turns, 0);
}

#[tokio::test]
async fn rules_do_for_lines_that_failed_and_batches_that_are_lost() {
    let (dir, provider) = (tempfile::tempdir().unwrap(), Provider::default());
    let memory = open(&dir);
    let words = [
        "harbour", "violin", "concrete", "orchard", "lantern", "passport", "granite", "saffron",
    ];
    // A name of its own for each.
    let ferry = |n: usize| format!("{}{}{}", words[n % 8], words[n / 8 % 8], words[n / 64]);
    for n in 0..200_usize {
        let many: Vec<String> = (0..60)
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
                    &format!("{} I prefer the {}.", many.join(" "), ferry(n)),
                ),
            )
            .unwrap();
    }
    memory.distill("s", Some(&provider)).await.unwrap();
    let prompts = provider.submitted.lock().unwrap()[0].len();
    assert!(prompts > 1, "{prompts}");
    let mut answers = vec![Err(SmallModelError("overloaded".to_owned())); prompts];
    answers[0] = lesson("From the model", &[1]);
    provider.says(Batch::Answered(answers));
    let done = memory.distill("s", Some(&provider)).await.unwrap();
    assert_eq!((done.turns, done.handed_over), (200, 0));
    let found = titles(&memory);
    assert!(found.contains(&"From the model".to_owned()), "{found:?}");
    assert!(
        found.contains(&format!("I prefer the {}.", ferry(199))),
        "the last ones by rules: {found:?}"
    );
    assert!(
        !found.contains(&format!("I prefer the {}.", ferry(0))),
        "the first by the model alone: {found:?}"
    );

    // One that expires is handed over once more, then rules have to do.
    memory
        .append("s", &NewTurn::text("user", "I prefer the slow ferry."))
        .unwrap();
    memory.distill("s", Some(&provider)).await.unwrap();
    provider.says(Batch::Lost);
    assert_eq!(
        memory
            .distill("s", Some(&provider))
            .await
            .unwrap()
            .handed_over,
        1
    );
    assert_eq!(provider.submitted(), 3);
    assert_eq!(memory.distill("s", Some(&provider)).await.unwrap().turns, 1);
    assert_eq!(provider.submitted(), 3);
    assert!(titles(&memory).contains(&"I prefer the slow ferry.".to_owned()));
}

/// Has no batches after all.
struct AtOnce;

impl SmallModel for AtOnce {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async { lesson("Asked at once", &[1]) }.boxed()
    }

    fn later(&self) -> Option<&dyn Later> {
        Some(self)
    }
}

impl Later for AtOnce {
    fn submit<'a>(
        &'a self,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<Option<String>, SmallModelError>> {
        async { Ok(None) }.boxed()
    }

    fn look<'a>(&'a self, _: &'a str, _: usize) -> BoxFuture<'a, Result<Batch, SmallModelError>> {
        async { Err(SmallModelError("there is nothing to look at".to_owned())) }.boxed()
    }
}

#[tokio::test]
async fn a_model_without_batches_is_asked_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(&dir);
    memory
        .append("s", &NewTurn::text("user", "Always lock the gate."))
        .unwrap();
    let done = memory.distill("s", Some(&AtOnce)).await.unwrap();
    assert_eq!(
        (done.turns, done.handed_over, titles(&memory)),
        (1, 0, vec!["Asked at once".to_owned()])
    );
}
