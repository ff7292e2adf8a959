//! Distilling through a provider's batch API: submits prompts about turns as a batch, and fetches
//! the answers in a later call.
//!
//! The batch's id is stored as soon as the provider has returned it. If the process dies, the next
//! one asks for the same batch instead of paying for another.

use std::sync::Arc;

use selvedge_database::{Connection, params};

use crate::distill::DistillGroup;
use crate::model::{BatchSmallModel, SmallModelBatchStatus};
use crate::store::{now_ms, query_first, require_session};
use crate::{Memory, MemoryError};

/// How often turns are submitted before rules are used instead: a failed batch is retried once.
const MAX_BATCH_ATTEMPTS: u32 = 2;

/// The first and last turn that a prompt contains.
pub(crate) type PromptTurnRange = (u32, u32);

/// A submitted batch, as stored in `memory_batches`.
pub(crate) struct PendingBatch {
    /// The provider's id of the batch.
    batch_id: String,
    /// The turns of each prompt, in the order of the prompts.
    ranges: Vec<PromptTurnRange>,
    /// 1 for the first submission.
    attempt: u32,
}

/// The state of a model's answers about turns.
pub(crate) enum DistillAnswers {
    /// The answers with the turns they are about; `None` where a prompt was not answered.
    Ready(Vec<(PromptTurnRange, Option<String>)>),
    /// The provider has not finished the batch.
    Pending,
    /// The provider does not support batches.
    Unsupported,
}

impl PendingBatch {
    /// Returns the last turn of the batch.
    pub(crate) fn last_turn(&self) -> u32 {
        self.ranges.last().map_or(0, |(_, last)| *last)
    }
}

impl Memory {
    /// Returns the pending batch of a session; `None` if its turns were distilled in another way
    /// meanwhile.
    pub(crate) fn pending_batch(&self, session: &str) -> Result<Option<PendingBatch>, MemoryError> {
        self.read(|reader| {
            let found = require_session(&reader.connection, session)?;
            let sql = "SELECT batch, spans, attempt FROM memory_batches WHERE session = ?1";
            let pending = query_first(&reader.connection, sql, params![found.id], |row| {
                Ok(PendingBatch {
                    batch_id: row.get(0)?,
                    ranges: parse_ranges(&row.get::<String>(1)?),
                    attempt: row.get(2)?,
                })
            })?;
            Ok(pending.filter(|batch| batch.last_turn() > found.distilled_to))
        })
    }

    /// Fetches the answers of the pending batch. Submits a new batch if there is none, or if the
    /// pending one failed and may be retried.
    pub(crate) async fn poll_or_submit_batch(
        self: &Arc<Self>,
        group: &Arc<DistillGroup>,
        pending_batch: Option<PendingBatch>,
        batch_model: &dyn BatchSmallModel,
    ) -> Result<DistillAnswers, MemoryError> {
        let mut attempt = 1;
        if let Some(pending) = pending_batch {
            let status = batch_model
                .poll(&pending.batch_id, pending.ranges.len())
                .await;
            let answers = match status.map_err(MemoryError::ProviderBatch)? {
                SmallModelBatchStatus::Running => return Ok(DistillAnswers::Pending),
                SmallModelBatchStatus::Completed(answers) => Some(answers),
                SmallModelBatchStatus::Failed if pending.attempt >= MAX_BATCH_ATTEMPTS => {
                    Some(Vec::new())
                }
                SmallModelBatchStatus::Failed => None,
            };
            if let Some(answers) = answers {
                let answers = answers.into_iter().map(Result::ok);
                let answers = answers.chain(std::iter::repeat(None));
                return Ok(DistillAnswers::Ready(
                    pending.ranges.into_iter().zip(answers).collect(),
                ));
            }
            attempt = pending.attempt + 1;
        }
        let (texts, spans) = self.distill_prompts(group).await?;
        if texts.is_empty() {
            // All turns that were to be submitted have been forgotten.
            return Ok(DistillAnswers::Ready(Vec::new()));
        }
        let Some(batch) = batch_model
            .submit(&texts)
            .await
            .map_err(MemoryError::ProviderBatch)?
        else {
            return Ok(DistillAnswers::Unsupported);
        };
        let id = group.found.id;
        let store = move |connection: &Connection| {
            connection.execute(
                "INSERT INTO memory_batches (session, batch, spans, attempt, submitted_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (session) DO UPDATE SET batch = excluded.batch,
                    spans = excluded.spans, attempt = excluded.attempt,
                    submitted_ms = excluded.submitted_ms",
                params![id, batch, format_ranges(&spans), attempt, now_ms()],
            )?;
            Ok(DistillAnswers::Pending)
        };
        self.run_blocking(move |memory| memory.write(store)).await
    }
}

/// Formats turn ranges for the database: `1-40 41-80`.
fn format_ranges(spans: &[PromptTurnRange]) -> String {
    let spans = spans.iter().map(|(first, last)| format!("{first}-{last}"));
    spans.collect::<Vec<_>>().join(" ")
}

/// Parses what `format_ranges` wrote.
fn parse_ranges(spans: &str) -> Vec<PromptTurnRange> {
    let span = |text: &str| {
        let (first, last) = text.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    spans.split(' ').filter_map(span).collect()
}
