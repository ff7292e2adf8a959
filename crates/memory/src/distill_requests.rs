//! The record of requests to a model about turns. A request is recorded before it is sent, and its
//! answer before anything is learned from it. A process that goes on after another one was killed
//! sends no recorded request again: it may have been paid for. Rules read the turns of a request
//! without an answer. The request stays recorded, so that a person can have it sent again.

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge_database::{Connection, NamedLockMode, params};

use crate::distill_unit::{DistillUnit, TurnSpan, format_spans, parse_spans};
use crate::model::SmallModelAnswer;
use crate::store::{execute, now_ms, query_first, query_rows};
use crate::{Memory, MemoryError};

/// The value of the column `answered` of a request without an answer, whose turns rules read.
pub(crate) const UNANSWERED: i64 = 2;
/// The id of a request that is not recorded, because rules read its turns.
pub(crate) const UNRECORDED: i64 = 0;
/// How often a provider's batch is submitted: a failed one once more.
const MAX_BATCH_ATTEMPTS: u32 = 2;
/// The time within which a provider answers a batch, or lets it expire, and a day more.
const BATCH_LIFETIME: Duration = Duration::from_secs(48 * 3600);

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
    /// When the batch was submitted, in milliseconds since 1970.
    pub(crate) submitted_ms: i64,
    pub(crate) state: RequestState,
}

/// What is known of the answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// It was sent, or is about to be.
    Sent,
    /// The answer is stored, and nothing was learned from it yet.
    Answered(String),
    /// There is no answer: rules read the turns next.
    Failed,
    /// There is no answer, and rules read the turns. It is sent again only on request.
    Unanswered,
}

impl DistillRequest {
    /// Returns whether it may be sent again after the provider's batch failed.
    pub(crate) fn may_submit_again(&self) -> bool {
        self.attempt < MAX_BATCH_ATTEMPTS
    }

    /// Returns a request that was never sent: rules read these turns.
    pub(crate) fn by_rules(spans: Vec<TurnSpan>) -> Self {
        Self {
            id: UNRECORDED,
            spans,
            attempt: 0,
            batch: None,
            submitted_ms: 0,
            state: RequestState::Failed,
        }
    }

    /// Returns whether the provider may still have the answers of its batch.
    pub(crate) fn may_be_fetched(&self) -> bool {
        now_ms() - self.submitted_ms < BATCH_LIFETIME.as_millis() as i64
    }

    /// Returns its place in the provider's batch.
    pub(crate) fn place(&self) -> usize {
        self.batch.as_ref().map_or(0, |(_, place)| *place as usize)
    }
}

impl Memory {
    /// Returns the recorded requests of a unit from which something is to be learned, or whose
    /// answer is awaited, in the order of their turns: first those that were sent again and are
    /// answered. Those that are no longer about the next turns, because turns were forgotten
    /// meanwhile, are deleted.
    pub(crate) fn recorded_requests(
        &self,
        unit: &DistillUnit,
    ) -> Result<Vec<DistillRequest>, MemoryError> {
        let requests = self.read(|reader| read_requests(&reader.connection, &unit.key))?;
        let sessions = unit.sessions.iter();
        let mut done: BTreeMap<i64, u32> = sessions
            .map(|session| (session.id, session.distilled_to))
            .collect();
        let (mut answered_again, mut open) = (Vec::new(), Vec::new());
        let (mut interrupted_again, mut stale) = (Vec::new(), Vec::new());
        for request in requests {
            let is_next = |span: &TurnSpan| done.get(&span.session) == Some(&(span.first - 1));
            match &request.state {
                // About a session that was deleted, or recorded before requests ended at folders.
                _ if unit.folder_of(&request.spans).is_none() => stale.push(request),
                RequestState::Unanswered => {}
                RequestState::Answered(_) if unit.has_distilled(&request.spans) => {
                    answered_again.push(request);
                }
                _ if unit.has_distilled(&request.spans) => interrupted_again.push(request),
                _ if request.spans.iter().all(is_next) => {
                    done.extend(request.spans.iter().map(|span| (span.session, span.last)));
                    open.push(request);
                }
                _ => stale.push(request),
            }
        }
        if !stale.is_empty() || !interrupted_again.is_empty() {
            self.write(|connection| {
                for request in &stale {
                    delete_request(connection, request.id)?;
                }
                for request in &interrupted_again {
                    keep_unanswered(connection, request.id)?;
                }
                Ok(())
            })?;
        }
        answered_again.append(&mut open);
        Ok(answered_again)
    }

    /// Returns the requests of a unit that have no answer and are in no batch, the oldest first.
    pub(crate) fn requests_to_retry(
        &self,
        unit: &DistillUnit,
    ) -> Result<Vec<DistillRequest>, MemoryError> {
        let mut requests = self.read(|reader| read_requests(&reader.connection, &unit.key))?;
        requests.retain(|request| {
            matches!(request.state, RequestState::Sent | RequestState::Unanswered)
                && request.batch.is_none()
        });
        Ok(requests)
    }

    /// Records requests about these turns before they are sent, and returns them; `None` if a turn
    /// was forgotten since the unit was loaded, which the prompts may contain. Fails with
    /// [`MemoryError::DistillLocked`] if another process, which took over the lock when its lease
    /// ended, has recorded a request about one of them meanwhile.
    pub(crate) fn record_requests(
        &self,
        unit: &DistillUnit,
        prompts: &[Vec<TurnSpan>],
    ) -> Result<Option<Vec<DistillRequest>>, MemoryError> {
        self.write(|connection| {
            let lock = format!("memory_requests {}", unit.key);
            connection.lock_name(&lock, NamedLockMode::Exclusive);
            let spans = prompts.concat();
            if !unit.is_current(connection, &spans)? {
                return Ok(None);
            }
            let recorded = read_requests(connection, &unit.key)?;
            let is_taken = |span: &TurnSpan| {
                let mut others = recorded.iter().flat_map(|request| &request.spans);
                others.any(|other| other.overlaps(span))
            };
            if let Some(span) = spans.iter().find(|span| is_taken(span)) {
                let session = unit.session(span.session);
                let name = session.map(|session| session.name.clone());
                return Err(MemoryError::DistillLocked(name.unwrap_or_default()));
            }
            let sql = "SELECT coalesce(max(id), 0) FROM memory_requests";
            let last: Option<i64> = query_first(connection, sql, params![], |row| row.get(0))?;
            for spans in prompts {
                let sql = "INSERT INTO memory_requests (unit, spans, attempt) VALUES (?1, ?2, 1)";
                execute(connection, sql, params![unit.key, format_spans(spans)])?;
            }
            let mut requests = read_requests(connection, &unit.key)?;
            requests.retain(|request| Some(request.id) > last);
            Ok(Some(requests))
        })
    }

    /// Composes the prompts of recorded requests again, in their order. If the turns of a request
    /// no longer fit into one prompt, because the context of the model is smaller or more is known,
    /// its record is replaced by one for each prompt. A prompt about forgotten turns is empty.
    /// There are no prompts if a turn was forgotten since the unit was loaded.
    pub(crate) fn compose_again(
        &self,
        unit: &DistillUnit,
        requests: Vec<DistillRequest>,
        context_tokens: u32,
    ) -> Result<Vec<(String, DistillRequest)>, MemoryError> {
        let mut composed = Vec::new();
        for request in &requests {
            let prompts = match unit.folder_of(&request.spans) {
                Some(folder) => {
                    self.compose_prompts(folder, &request.spans, context_tokens, usize::MAX)?
                }
                None => vec![(String::new(), request.spans.clone())],
            };
            composed.push(prompts);
        }
        if composed.iter().all(|prompts| prompts.len() == 1) {
            let texts = composed.into_iter().flatten().map(|(text, _)| text);
            return Ok(texts.zip(requests).collect());
        }
        self.write(|connection| {
            let mut parts = Vec::new();
            let spans: Vec<TurnSpan> = requests.iter().flat_map(|it| it.spans.clone()).collect();
            if !unit.is_current(connection, &spans)? {
                return Ok(parts);
            }
            for (request, prompts) in requests.iter().zip(&composed) {
                delete_request(connection, request.id)?;
                for (text, spans) in prompts {
                    let sql = "INSERT INTO memory_requests (unit, spans, attempt, answered)
                         VALUES (?1, ?2, ?3, ?4) RETURNING id";
                    let answered = match request.state {
                        RequestState::Unanswered => UNANSWERED,
                        _ => 0,
                    };
                    let row = params![unit.key, format_spans(spans), request.attempt, answered];
                    let id = query_first(connection, sql, row, |row| row.get(0))?;
                    let part = DistillRequest {
                        id: id.unwrap_or_default(),
                        spans: spans.clone(),
                        batch: None,
                        ..request.clone()
                    };
                    parts.push((text.clone(), part));
                }
            }
            Ok(parts)
        })
    }

    /// Deletes requests that were never accepted, so that they are composed again.
    pub(crate) fn discard_requests(&self, requests: &[DistillRequest]) -> Result<(), MemoryError> {
        self.write(|connection| {
            for request in requests {
                delete_request(connection, request.id)?;
            }
            Ok(())
        })
    }

    /// Records that requests are sent again, not as part of a batch.
    pub(crate) fn record_attempt(&self, requests: &[DistillRequest]) -> Result<(), MemoryError> {
        self.write(|connection| {
            for request in requests {
                let sql = "UPDATE memory_requests SET attempt = attempt + 1, batch = NULL,
                     answered = 0, answer = NULL WHERE id = ?1";
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
                let sql = "UPDATE memory_requests SET batch = ?2, place = ?3, submitted_ms = ?4
                     WHERE id = ?1";
                let row = params![request.id, batch, place as u32, now_ms()];
                execute(connection, sql, row)?;
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
            let sql = "UPDATE memory_passes SET requests = requests + 1, touched_ms = ?2,
                 input_tokens = input_tokens + ?3, output_tokens = output_tokens + ?4,
                 cost = coalesce(coalesce(cost, 0.0) + ?5, cost)
                 WHERE unit = ?1";
            let (input, output) = (answer.usage.input_tokens, answer.usage.output_tokens);
            let row = params![unit.key, now_ms(), input as i64, output as i64, answer.cost];
            execute(connection, sql, row)?;
            Ok(())
        })
    }
}

fn read_requests(connection: &Connection, unit: &str) -> Result<Vec<DistillRequest>, MemoryError> {
    let sql = "SELECT id, spans, attempt, batch, place, answered, decrypt(answer), submitted_ms
         FROM memory_requests WHERE unit = ?1 ORDER BY id";
    query_rows(connection, sql, params![unit], |row| {
        let (batch, place): (Option<String>, u32) = (row.get(3)?, row.get(4)?);
        let (answered, answer): (i64, Option<String>) = (row.get(5)?, row.get(6)?);
        Ok(DistillRequest {
            id: row.get(0)?,
            spans: parse_spans(&row.get::<String>(1)?),
            attempt: row.get(2)?,
            batch: batch.map(|batch| (batch, place)),
            submitted_ms: row.get(7)?,
            state: match (answered, answer) {
                (0, _) => RequestState::Sent,
                (UNANSWERED, _) => RequestState::Unanswered,
                (_, Some(answer)) => RequestState::Answered(answer),
                (_, None) => RequestState::Failed,
            },
        })
    })
}

/// Returns whether a request is recorded. One about a forgotten turn is deleted, also while it is
/// sent.
pub(crate) fn is_recorded(connection: &Connection, request: i64) -> Result<bool, MemoryError> {
    let mut found = connection.prepare_cached("SELECT 1 FROM memory_requests WHERE id = ?1")?;
    Ok(found.exists(params![request])?)
}

/// Keeps a request without an answer, whose turns rules read, so that it can be sent again.
pub(crate) fn keep_unanswered(connection: &Connection, request: i64) -> Result<(), MemoryError> {
    let sql = "UPDATE memory_requests SET answered = ?2, answer = NULL, batch = NULL WHERE id = ?1";
    execute(connection, sql, params![request, UNANSWERED])?;
    Ok(())
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

#[cfg(test)]
mod tests {
    use selvedge_journal::Redactor;

    use super::*;
    use crate::NewTurn;

    #[test]
    fn turns_are_in_one_request_also_without_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::open(dir.path(), Redactor::new([])).unwrap();
        for _ in 0..6 {
            let turn = NewTurn::text("user", "Hello.");
            memory.append("s", &turn).unwrap();
        }
        let unit = memory.read(|reader| DistillUnit::load(&reader.connection, "s"));
        let unit = unit.unwrap();
        let spans = unit.next_spans(&[], 4);
        let record = |spans: &[TurnSpan]| memory.record_requests(&unit, &[spans.to_vec()]);
        assert_eq!(record(&spans).unwrap().map(|it| it.len()), Some(1));
        // Another process has loaded the same turns.
        let again = record(&spans);
        assert!(matches!(again, Err(MemoryError::DistillLocked(name)) if name == "s"));
        let others = unit.next_spans(&spans, 4);
        assert!(record(&others).unwrap().is_some());
    }
}
