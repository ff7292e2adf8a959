//! Distilling through a provider's batch API: submits prompts about turns as a batch, and fetches
//! the answers in a later call.
//!
//! The batch's id is stored as soon as the provider has returned it. If the process dies, the next
//! one asks for the same batch instead of paying for another.

use rusqlite::params;

use crate::model::{Batch, Later};
use crate::observe::Observed;
use crate::store::{Session, find, now_ms, row};
use crate::{Memory, MemoryError};

/// How often turns are submitted before rules are used instead: a failed batch is retried once.
const ATTEMPTS: u32 = 2;

/// The first and last turn that a prompt contains.
pub(crate) type Span = (u32, u32);

/// A submitted batch, as stored in `memory_batches`.
pub(crate) struct HandedOver {
    /// The provider's id of the batch.
    batch: String,
    /// The turns of each prompt, in the order of the prompts.
    spans: Vec<Span>,
    /// 1 for the first submission.
    attempt: u32,
}

/// The state of a model's answers about turns.
pub(crate) enum Answers {
    /// The answers with the turns they are about; `None` where a prompt was not answered.
    There(Vec<(Span, Option<String>)>),
    /// The provider has not finished the batch.
    Later,
    /// The provider does not support batches.
    Never,
}

impl HandedOver {
    /// Returns the last turn of the batch.
    pub(crate) fn last(&self) -> u32 {
        self.spans.last().map_or(0, |(_, last)| *last)
    }
}

impl Memory {
    /// Returns the pending batch of a session; `None` if its turns were distilled in another way
    /// meanwhile.
    pub(crate) fn handed_over(&self, session: &str) -> Result<Option<HandedOver>, MemoryError> {
        self.read(|reader| {
            let found = find(&reader.connection, session)?;
            let sql = "SELECT batch, spans, attempt FROM memory_batches WHERE session = ?1";
            let pending = row(&reader.connection, sql, params![found.id], |row| {
                Ok(HandedOver {
                    batch: row.get(0)?,
                    spans: unfold(&row.get::<_, String>(1)?),
                    attempt: row.get(2)?,
                })
            })?;
            Ok(pending.filter(|batch| batch.last() > found.distilled))
        })
    }

    /// Fetches the answers of the pending batch. Submits a new batch if there is none, or if the
    /// pending one failed and may be retried.
    pub(crate) async fn answered_later(
        &self,
        found: &Session,
        session: &str,
        turns: &[Observed],
        pending_batch: Option<HandedOver>,
        batch_model: &dyn Later,
    ) -> Result<Answers, MemoryError> {
        let mut attempt = 1;
        if let Some(pending) = pending_batch {
            let status = batch_model.look(&pending.batch, pending.spans.len()).await;
            let answers = match status.map_err(MemoryError::Batch)? {
                Batch::Working => return Ok(Answers::Later),
                Batch::Answered(answers) => Some(answers),
                Batch::Lost if pending.attempt >= ATTEMPTS => Some(Vec::new()),
                Batch::Lost => None,
            };
            if let Some(answers) = answers {
                let answers = answers.into_iter().map(Result::ok);
                let answers = answers.chain(std::iter::repeat(None));
                return Ok(Answers::There(
                    pending.spans.into_iter().zip(answers).collect(),
                ));
            }
            attempt = pending.attempt + 1;
        }
        let prompts = self.prompts(session, turns)?;
        if prompts.is_empty() {
            // All turns that were to be submitted have been forgotten.
            return Ok(Answers::There(Vec::new()));
        }
        let (texts, spans): (Vec<String>, Vec<Span>) = prompts.into_iter().unzip();
        let Some(batch) = batch_model
            .submit(&texts)
            .await
            .map_err(MemoryError::Batch)?
        else {
            return Ok(Answers::Never);
        };
        self.write(|connection| {
            connection.execute(
                "INSERT OR REPLACE INTO memory_batches VALUES (?1, ?2, ?3, ?4, ?5)",
                params![found.id, batch, fold(&spans), attempt, now_ms()],
            )?;
            Ok(Answers::Later)
        })
    }
}

/// Formats turn ranges for the database: `1-40 41-80`.
fn fold(spans: &[Span]) -> String {
    let spans = spans.iter().map(|(first, last)| format!("{first}-{last}"));
    spans.collect::<Vec<_>>().join(" ")
}

/// Parses what `format_ranges` wrote.
fn unfold(spans: &str) -> Vec<Span> {
    let span = |text: &str| {
        let (first, last) = text.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    spans.split(' ').filter_map(span).collect()
}
