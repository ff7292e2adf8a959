//! Decides what distilling does next: which turns a request is about, and how it is sent, or
//! fetched from a provider's batch.

use std::sync::Arc;

use crate::distill_requests::{DistillRequest, RequestState, is_recorded};
use crate::distill_unit::{DistillUnit, TurnSpan};
use crate::model::{
    BatchSmallModel, BatchSubmission, SmallModel, SmallModelAnswer, SmallModelBatchStatus,
    SmallModelError,
};
use crate::{Memory, MemoryError};

/// Turns distilled by rules in one transaction.
const TURNS_PER_TRANSACTION: u32 = 200;
/// Turns about which one request may be.
const MAX_REQUEST_TURNS: u32 = 2_000;
/// Turns submitted in one provider batch.
const MAX_BATCH_TURNS: u32 = 5_000;
/// Prompts of one provider batch.
const MAX_BATCH_PROMPTS: usize = 500;

/// What a call of [`Memory::distill`] does next.
pub(crate) enum NextStep {
    /// Learn from requests whose answers are recorded, or that failed.
    Learn(Vec<DistillRequest>),
    /// Wait for the provider's batch with so many turns.
    Wait(u32),
    /// Begin again, because a turn was forgotten meanwhile.
    BeginAgain,
    /// All turns are distilled.
    Done,
}

impl Memory {
    /// Returns what is to be done next, and asks the model for it.
    pub(crate) async fn next_step(
        self: &Arc<Self>,
        unit: &Arc<DistillUnit>,
        model: Option<&dyn SmallModel>,
    ) -> Result<NextStep, MemoryError> {
        let open = self
            .with_unit(unit, |memory, unit| memory.recorded_requests(unit))
            .await?;
        let first = open.iter().take_while(|it| it.state != RequestState::Sent);
        let ready: Vec<DistillRequest> = first.cloned().collect();
        if !ready.is_empty() {
            return Ok(NextStep::Learn(ready));
        }
        if let Some((batch, _)) = open.first().and_then(|request| request.batch.clone()) {
            let is_in_batch = |request: &DistillRequest| {
                request.batch.as_ref().is_some_and(|(id, _)| *id == batch)
            };
            let in_batch: Vec<DistillRequest> = open.into_iter().take_while(is_in_batch).collect();
            return self.continue_batch(unit, model, &batch, in_batch).await;
        }
        if !open.is_empty() {
            // A process was killed before their answers came. They may have been paid for.
            return self.give_up(unit, open).await;
        }
        if unit.remaining_turns() == 0 {
            return Ok(NextStep::Done);
        }
        match model {
            None => Ok(NextStep::Learn(vec![by_rules(unit)])),
            Some(model) => self.ask_about_new_turns(unit, model).await,
        }
    }

    /// Composes and records requests about the next turns, and sends them.
    async fn ask_about_new_turns(
        self: &Arc<Self>,
        unit: &Arc<DistillUnit>,
        model: &dyn SmallModel,
    ) -> Result<NextStep, MemoryError> {
        let (max_turns, max_prompts) = match model.batch_model() {
            Some(_) => (MAX_BATCH_TURNS, MAX_BATCH_PROMPTS),
            None => (MAX_REQUEST_TURNS, 1),
        };
        let context = model.context_tokens();
        let compose = move |memory: &Arc<Self>, unit: &DistillUnit| {
            let (mut prompts, mut taken) = (Vec::new(), Vec::new());
            while prompts.len() < max_prompts {
                let turns: u32 = taken.iter().map(TurnSpan::turns).sum();
                let spans = unit.next_spans(&taken, max_turns.saturating_sub(turns));
                let Some(folder) = unit.folder_of(&spans) else {
                    break;
                };
                let room = max_prompts - prompts.len();
                prompts.extend(memory.compose_prompts(folder, &spans, context, room)?);
                taken.extend(spans);
            }
            // One is empty if nothing is learned from its turns: rules skip them.
            prompts.retain(|(text, _)| !text.is_empty());
            let (texts, spans): (Vec<String>, Vec<_>) = prompts.into_iter().unzip();
            Ok((texts, memory.record_requests(unit, &spans)?))
        };
        let (texts, requests) = self.with_unit(unit, compose).await?;
        let Some(requests) = requests else {
            return Ok(NextStep::BeginAgain);
        };
        if requests.is_empty() {
            // Nothing is learned from these turns.
            return Ok(NextStep::Learn(vec![by_rules(unit)]));
        }
        self.send(unit, model, texts, requests).await
    }

    /// Sends recorded requests: as a batch if the model has one, else the first of them.
    async fn send(
        self: &Arc<Self>,
        unit: &Arc<DistillUnit>,
        model: &dyn SmallModel,
        texts: Vec<String>,
        requests: Vec<DistillRequest>,
    ) -> Result<NextStep, MemoryError> {
        if let Some(batch_model) = model.batch_model() {
            let submitted = batch_model.submit(&texts).await;
            match submitted.map_err(MemoryError::ProviderBatch)? {
                BatchSubmission::Accepted(batch) => {
                    let turns = requests.iter().map(span_turns).sum();
                    let record =
                        move |memory: &Arc<Self>, _: &_| memory.record_batch(&requests, &batch);
                    self.with_unit(unit, record).await?;
                    return Ok(NextStep::Wait(turns));
                }
                BatchSubmission::Rejected(error) => {
                    let discard =
                        move |memory: &Arc<Self>, _: &_| memory.discard_requests(&requests);
                    self.with_unit(unit, discard).await?;
                    return Err(MemoryError::ProviderBatch(error));
                }
                BatchSubmission::Unsupported => {}
            }
        }
        let mut requests = requests.into_iter();
        let (Some(text), Some(request)) = (texts.into_iter().next(), requests.next()) else {
            return Ok(NextStep::BeginAgain);
        };
        let others: Vec<DistillRequest> = requests.collect();
        if !others.is_empty() {
            // Composed again later, so that an interrupted process has at most one open request.
            let discard = move |memory: &Arc<Self>, _: &_| memory.discard_requests(&others);
            self.with_unit(unit, discard).await?;
        }
        let answer = match text.is_empty() || !self.is_recorded(unit, request.id).await? {
            true => None,
            false => match model.ask_counted(&text).await {
                Err(error @ SmallModelError::Unavailable(_)) => {
                    // The turns stay new: they are asked about when the model is available.
                    let discard =
                        move |memory: &Arc<Self>, _: &_| memory.discard_requests(&[request]);
                    self.with_unit(unit, discard).await?;
                    return Err(MemoryError::ModelUnavailable(error));
                }
                answer => answer.ok(),
            },
        };
        self.with_unit(unit, move |memory, unit| {
            memory.record_answer(unit, request.id, answer.as_ref())
        })
        .await?;
        self.answered_requests(unit).await
    }

    /// Returns the requests whose answers are recorded, to learn from them.
    async fn answered_requests(
        self: &Arc<Self>,
        unit: &Arc<DistillUnit>,
    ) -> Result<NextStep, MemoryError> {
        let all = self
            .with_unit(unit, |memory, unit| memory.recorded_requests(unit))
            .await?;
        let ready = all
            .into_iter()
            .take_while(|it| it.state != RequestState::Sent);
        Ok(NextStep::Learn(ready.collect()))
    }

    /// Sends requests again whose batch failed at the provider.
    async fn submit_again(
        self: &Arc<Self>,
        unit: &Arc<DistillUnit>,
        model: &dyn SmallModel,
        requests: Vec<DistillRequest>,
    ) -> Result<NextStep, MemoryError> {
        let context = model.context_tokens();
        let compose = move |memory: &Arc<Self>, unit: &DistillUnit| {
            let parts = memory.compose_again(unit, requests, context)?;
            let (texts, requests): (Vec<String>, Vec<_>) = parts.into_iter().unzip();
            memory.record_attempt(&requests)?;
            Ok((texts, requests))
        };
        let (texts, requests) = self.with_unit(unit, compose).await?;
        match requests.is_empty() {
            true => Ok(NextStep::BeginAgain),
            false => self.send(unit, model, texts, requests).await,
        }
    }

    /// Records that requests have no answer, so that rules read their turns.
    async fn give_up(
        self: &Arc<Self>,
        unit: &Arc<DistillUnit>,
        requests: Vec<DistillRequest>,
    ) -> Result<NextStep, MemoryError> {
        let record = move |memory: &Arc<Self>, unit: &DistillUnit| {
            for request in &requests {
                memory.record_answer(unit, request.id, None)?;
            }
            Ok(())
        };
        self.with_unit(unit, record).await?;
        self.answered_requests(unit).await
    }

    /// Fetches the answers of a provider's batch.
    async fn continue_batch(
        self: &Arc<Self>,
        unit: &Arc<DistillUnit>,
        model: Option<&dyn SmallModel>,
        batch: &str,
        requests: Vec<DistillRequest>,
    ) -> Result<NextStep, MemoryError> {
        let batch_model: Option<&dyn BatchSmallModel> = model.and_then(|it| it.batch_model());
        let Some(batch_model) = batch_model else {
            // Another process, with the model, can fetch answers that are paid for.
            return match requests.iter().any(DistillRequest::may_be_fetched) {
                true => Ok(NextStep::Wait(requests.iter().map(span_turns).sum())),
                false => self.give_up(unit, requests).await,
            };
        };
        let places = requests.iter().map(DistillRequest::place);
        let prompts = places.max().map_or(0, |last| last + 1);
        let status = batch_model.poll(batch, prompts).await;
        let answers = match status.map_err(MemoryError::ProviderBatch)? {
            SmallModelBatchStatus::Running => {
                return Ok(NextStep::Wait(requests.iter().map(span_turns).sum()));
            }
            SmallModelBatchStatus::Failed => {
                let may_repeat = requests.iter().all(DistillRequest::may_submit_again);
                return match model.filter(|_| may_repeat) {
                    Some(model) => self.submit_again(unit, model, requests).await,
                    None => self.give_up(unit, requests).await,
                };
            }
            SmallModelBatchStatus::Completed(answers) => answers,
        };
        let record = move |memory: &Arc<Self>, unit: &DistillUnit| {
            for request in &requests {
                let answer = answers.get(request.place()).cloned().and_then(Result::ok);
                let answer = answer.map(SmallModelAnswer::without_usage);
                memory.record_answer(unit, request.id, answer.as_ref())?;
            }
            Ok(())
        };
        self.with_unit(unit, record).await?;
        self.answered_requests(unit).await
    }

    /// Returns whether a request is still recorded, because no turn of it was forgotten.
    pub(crate) async fn is_recorded(
        self: &Arc<Self>,
        unit: &Arc<DistillUnit>,
        request: i64,
    ) -> Result<bool, MemoryError> {
        let read = move |memory: &Arc<Self>, _: &_| {
            memory.read(|reader| is_recorded(&reader.connection, request))
        };
        self.with_unit(unit, read).await
    }

    /// Runs work on the blocking thread pool.
    pub(crate) async fn with_unit<T: Send + 'static>(
        self: &Arc<Self>,
        unit: &Arc<DistillUnit>,
        work: impl FnOnce(&Arc<Self>, &DistillUnit) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let unit = unit.clone();
        self.run_blocking(move |memory| work(memory, &unit)).await
    }
}

/// Returns the next turns, for rules to read.
fn by_rules(unit: &DistillUnit) -> DistillRequest {
    DistillRequest::by_rules(unit.next_spans(&[], TURNS_PER_TRANSACTION))
}

fn span_turns(request: &DistillRequest) -> u32 {
    request.spans.iter().map(TurnSpan::turns).sum()
}
