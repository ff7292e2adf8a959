//! Lessons drawn later: turns are handed over to a provider, and its answers are fetched when there are any.
//!
//! The batch's name is written down as soon as the provider has told it. A process that dies leaves it to the next one,
//! which asks for the same batch instead of paying for another.

use rusqlite::params;

use crate::model::{Batch, Later};
use crate::observe::Observed;
use crate::store::{Session, find, now_ms, row};
use crate::{Memory, MemoryError};

/// A batch that comes to nothing is handed over once more; then rules have to do.
const ATTEMPTS: u32 = 2;

/// The first and last turn of a prompt.
pub(crate) type Span = (u32, u32);

/// What a provider works on.
pub(crate) struct HandedOver {
    batch: String,
    /// The turns of each prompt, in order.
    spans: Vec<Span>,
    attempt: u32,
}

/// What came of turns that a model is asked about.
pub(crate) enum Answers {
    /// By the turns they are about; nothing where it gave none.
    There(Vec<(Span, Option<String>)>),
    /// It works on them.
    Later,
    /// It takes no batches.
    Never,
}

impl HandedOver {
    /// The last turn it is about.
    pub(crate) fn last(&self) -> u32 {
        self.spans.last().map_or(0, |(_, last)| *last)
    }
}

impl Memory {
    /// What of a session is with a provider; nothing where its turns were read meanwhile by other means.
    pub(crate) fn handed_over(&self, session: &str) -> Result<Option<HandedOver>, MemoryError> {
        self.read(|reader| {
            let found = find(&reader.connection, session)?;
            let sql = "SELECT batch, spans, attempt FROM memory_batches WHERE session = ?1";
            let there = row(&reader.connection, sql, params![found.id], |row| {
                Ok(HandedOver {
                    batch: row.get(0)?,
                    spans: unfold(&row.get::<_, String>(1)?),
                    attempt: row.get(2)?,
                })
            })?;
            Ok(there.filter(|there| there.last() > found.distilled))
        })
    }

    /// The answers about turns, where there are any yet.
    pub(crate) async fn answered_later(
        &self,
        found: &Session,
        session: &str,
        turns: &[Observed],
        handed_over: Option<HandedOver>,
        later: &dyn Later,
    ) -> Result<Answers, MemoryError> {
        let mut attempt = 1;
        if let Some(there) = handed_over {
            let looked = later.look(&there.batch, there.spans.len()).await;
            let answers = match looked.map_err(MemoryError::Batch)? {
                Batch::Working => return Ok(Answers::Later),
                Batch::Answered(answers) => Some(answers),
                Batch::Lost if there.attempt >= ATTEMPTS => Some(Vec::new()),
                Batch::Lost => None,
            };
            if let Some(answers) = answers {
                let answers = answers.into_iter().map(Result::ok);
                let answers = answers.chain(std::iter::repeat(None));
                return Ok(Answers::There(
                    there.spans.into_iter().zip(answers).collect(),
                ));
            }
            attempt = there.attempt + 1;
        }
        let prompts = self.prompts(session, turns)?;
        if prompts.is_empty() {
            // Everything that waited was forgotten.
            return Ok(Answers::There(Vec::new()));
        }
        let (texts, spans): (Vec<String>, Vec<Span>) = prompts.into_iter().unzip();
        let Some(batch) = later.submit(&texts).await.map_err(MemoryError::Batch)? else {
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

fn fold(spans: &[Span]) -> String {
    let spans = spans.iter().map(|(first, last)| format!("{first}-{last}"));
    spans.collect::<Vec<_>>().join(" ")
}

fn unfold(spans: &str) -> Vec<Span> {
    let span = |text: &str| {
        let (first, last) = text.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    spans.split(' ').filter_map(span).collect()
}
