//! The record of requests to a model about turns. A request is recorded before it is sent, and its
//! answer before anything is learned from it. A process that goes on after another one was killed
//! never sends a request again whose answer is recorded. One that was in flight is sent again.

use std::collections::BTreeMap;

use selvedge_database::{Connection, params};

use crate::distill_unit::{DistillUnit, TurnSpan, format_spans, parse_spans};
use crate::model::SmallModelAnswer;
use crate::store::{execute, now_ms, query_rows};
use crate::{Memory, MemoryError};

/// How often a request is sent if processes are killed before the answer comes. Then rules read its
/// turns.
const MAX_ATTEMPTS: u32 = 3;
/// How often a provider's batch is submitted: a failed one once more.
const MAX_BATCH_ATTEMPTS: u32 = 2;

/// A recorded request.
#[derive(Debug, Clone)]
pub(crate) struct DistillRequest {
    pub(crate) id: i64,
    /// The new turns of its prompt.
    pub(crate) spans: Vec<TurnSpan>,
    /// 1 for the first time it was sent.
    pub(crate) attempt: u32,
    /// The provider's batch, if it is part of one, and its place in it.
    pub(crate) batch: Option<(String, u32)>,
    pub(crate) state: RequestState,
}

/// What is known of the answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// It was sent, or is about to be.
    Sent,
    /// The answer is stored, and nothing was learned from it yet.
    Answered(String),
    /// There is no answer: rules read the turns.
    Failed,
}

impl DistillRequest {
    /// Returns whether it may be sent again after a process was killed.
    pub(crate) fn may_repeat(&self) -> bool {
        self.attempt < MAX_ATTEMPTS
    }

    /// Returns whether it may be sent again after the provider's batch failed.
    pub(crate) fn may_submit_again(&self) -> bool {
        self.attempt < MAX_BATCH_ATTEMPTS
    }

    /// Returns its place in the provider's batch.
    pub(crate) fn place(&self) -> usize {
        self.batch.as_ref().map_or(0, |(_, place)| *place as usize)
    }
}

impl Memory {
    /// Returns the recorded requests of a unit in the order of their turns. Those that are no
    /// longer about the next turns, because turns were distilled or forgotten meanwhile, are
    /// deleted.
    pub(crate) fn recorded_requests(
        &self,
        unit: &DistillUnit,
    ) -> Result<Vec<DistillRequest>, MemoryError> {
        let requests = self.read(|reader| read_requests(&reader.connection, &unit.key))?;
        let sessions = unit.sessions.iter();
        let mut done: BTreeMap<i64, u32> = sessions
            .map(|session| (session.id, session.distilled_to))
            .collect();
        let (open, stale): (Vec<_>, Vec<_>) = requests.into_iter().partition(|request| {
            let is_next = |span: &TurnSpan| done.get(&span.session) == Some(&(span.first - 1));
            let are_next = !request.spans.is_empty() && request.spans.iter().all(is_next);
            if are_next {
                done.extend(request.spans.iter().map(|span| (span.session, span.last)));
            }
            are_next
        });
        if !stale.is_empty() {
            self.write(|connection| {
                for request in &stale {
                    delete_request(connection, request.id)?;
                }
                Ok(())
            })?;
        }
        Ok(open)
    }

    /// Records requests about these turns before they are sent.
    pub(crate) fn record_requests(
        &self,
        unit: &DistillUnit,
        prompts: &[Vec<TurnSpan>],
    ) -> Result<Vec<DistillRequest>, MemoryError> {
        self.write(|connection| {
            for spans in prompts {
                let sql = "INSERT INTO memory_requests (unit, spans, attempt) VALUES (?1, ?2, 1)";
                execute(connection, sql, params![unit.key, format_spans(spans)])?;
            }
            read_requests(connection, &unit.key)
        })
    }

    /// Records that requests are sent again, not as part of a batch.
    pub(crate) fn record_attempt(&self, requests: &[DistillRequest]) -> Result<(), MemoryError> {
        self.write(|connection| {
            for request in requests {
                let sql = "UPDATE memory_requests SET attempt = attempt + 1, batch = NULL
                     WHERE id = ?1";
                execute(connection, sql, params![request.id])?;
            }
            Ok(())
        })
    }

    /// Records the provider's batch that requests are part of, in this order.
    pub(crate) fn record_batch(
        &self,
        requests: &[DistillRequest],
        batch: &str,
    ) -> Result<(), MemoryError> {
        self.write(|connection| {
            for (place, request) in requests.iter().enumerate() {
                let sql = "UPDATE memory_requests SET batch = ?2, place = ?3 WHERE id = ?1";
                execute(connection, sql, params![request.id, batch, place as u32])?;
            }
            Ok(())
        })
    }

    /// Records the answer to a request, `None` if it failed, and what it cost.
    pub(crate) fn record_answer(
        &self,
        unit: &DistillUnit,
        request: i64,
        answer: Option<&SmallModelAnswer>,
    ) -> Result<(), MemoryError> {
        self.write(|connection| {
            let text = answer.map(|answer| answer.text.as_str());
            let sql = "UPDATE memory_requests SET answered = 1, answer = encrypt(?2)
                 WHERE id = ?1";
            execute(connection, sql, params![request, text])?;
            let Some(answer) = answer else {
                return Ok(());
            };
            let sql = "UPDATE memory_runs SET requests = requests + 1, touched_ms = ?2,
                 input_tokens = input_tokens + ?3, output_tokens = output_tokens + ?4,
                 cost = CASE WHEN ?5 IS NULL THEN cost ELSE coalesce(cost, 0.0) + ?5 END
                 WHERE unit = ?1";
            let (input, output) = (answer.usage.input_tokens, answer.usage.output_tokens);
            let row = params![unit.key, now_ms(), input as i64, output as i64, answer.cost];
            execute(connection, sql, row)?;
            Ok(())
        })
    }
}

fn read_requests(connection: &Connection, unit: &str) -> Result<Vec<DistillRequest>, MemoryError> {
    let sql = "SELECT id, spans, attempt, batch, place, answered, decrypt(answer)
         FROM memory_requests WHERE unit = ?1 ORDER BY id";
    query_rows(connection, sql, params![unit], |row| {
        let (batch, place): (Option<String>, u32) = (row.get(3)?, row.get(4)?);
        let (answered, answer): (i64, Option<String>) = (row.get(5)?, row.get(6)?);
        Ok(DistillRequest {
            id: row.get(0)?,
            spans: parse_spans(&row.get::<String>(1)?),
            attempt: row.get(2)?,
            batch: batch.map(|batch| (batch, place)),
            state: match (answered, answer) {
                (0, _) => RequestState::Sent,
                (_, Some(answer)) => RequestState::Answered(answer),
                (_, None) => RequestState::Failed,
            },
        })
    })
}

/// Deletes a request, because its answer was learned from.
pub(crate) fn delete_request(connection: &Connection, request: i64) -> Result<(), MemoryError> {
    let sql = "DELETE FROM memory_requests WHERE id = ?1";
    execute(connection, sql, params![request])?;
    Ok(())
}

/// Deletes the requests whose prompts contain turns of a session, because one of them is forgotten.
pub(crate) fn forget_requests(connection: &Connection, session: i64) -> Result<(), MemoryError> {
    let sql = "SELECT id, spans FROM memory_requests";
    let all: Vec<(i64, String)> = query_rows(connection, sql, params![], |row| row.try_into())?;
    for (id, spans) in all {
        if parse_spans(&spans)
            .iter()
            .any(|span| span.session == session)
        {
            delete_request(connection, id)?;
        }
    }
    Ok(())
}
