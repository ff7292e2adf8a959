//! What the small model used for a session after its last turn had ended. It is stored with the
//! session, because the next turn, which counts it, may run in another process.

use std::iter::Sum;
use std::ops::Sub;

use selvedge_database::{Connection, params};
use selvedge_protocol::Usage;

use crate::model::{SmallModel, SmallModelAnswer};
use crate::store::{execute, lock_session, query_first};
use crate::{Memory, MemoryError, tokens};

/// Tokens and cost. Negative as the correction of an estimate.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct LateUsage {
    input_tokens: i64,
    output_tokens: i64,
    cost: f64,
}

impl LateUsage {
    /// Estimates a request whose usage is not reported.
    pub(crate) fn estimate(model: &dyn SmallModel, prompt: &str) -> Self {
        let usage = Usage {
            input_tokens: tokens::count(prompt).into(),
            ..Usage::default()
        };
        Self::new(&usage, model.cost_of(&usage))
    }

    pub(crate) fn of_answer(answer: &SmallModelAnswer) -> Self {
        Self::new(&answer.usage, answer.cost)
    }

    fn new(usage: &Usage, cost: Option<f64>) -> Self {
        Self {
            input_tokens: usage.input_tokens as i64,
            output_tokens: usage.output_tokens as i64,
            cost: cost.unwrap_or_default(),
        }
    }
}

impl Sum for LateUsage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            input_tokens: sum.input_tokens + one.input_tokens,
            output_tokens: sum.output_tokens + one.output_tokens,
            cost: sum.cost + one.cost,
        })
    }
}

impl Sub for LateUsage {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens - other.input_tokens,
            output_tokens: self.output_tokens - other.output_tokens,
            cost: self.cost - other.cost,
        }
    }
}

/// Adds to what the next turn of a session counts.
pub(crate) fn add_late_usage(
    connection: &Connection,
    session: i64,
    usage: LateUsage,
) -> Result<(), MemoryError> {
    let sql = "UPDATE memory_sessions SET late_input_tokens = late_input_tokens + ?2,
             late_output_tokens = late_output_tokens + ?3, late_cost = late_cost + ?4
         WHERE id = ?1";
    let row = params![session, usage.input_tokens, usage.output_tokens, usage.cost];
    execute(connection, sql, row)?;
    Ok(())
}

impl Memory {
    /// Returns the tokens and the cost of what a small model wrote for a session since the last
    /// call. An estimate that turned out too high is corrected by later usage.
    pub fn take_late_usage(&self, session: &str) -> Result<(Usage, f64), MemoryError> {
        let read = |connection: &Connection| -> Result<LateUsage, MemoryError> {
            let sql = "SELECT late_input_tokens, late_output_tokens, late_cost
                 FROM memory_sessions WHERE name = ?1";
            let late: Option<(i64, i64, f64)> =
                query_first(connection, sql, params![session], |row| row.try_into())?;
            let (input, output, cost) = late.unwrap_or_default();
            Ok(LateUsage {
                input_tokens: input.max(0),
                output_tokens: output.max(0),
                cost: cost.max(0.0),
            })
        };
        // Most turns have none, and wait for no lock.
        if self.read(|reader| read(&reader.connection))? == LateUsage::default() {
            return Ok((Usage::default(), 0.0));
        }
        self.write(|connection| {
            let id = lock_session(connection, session)?.id;
            let late = read(connection)?;
            add_late_usage(connection, id, LateUsage::default() - late)?;
            let usage = Usage {
                input_tokens: late.input_tokens as u64,
                output_tokens: late.output_tokens as u64,
                ..Usage::default()
            };
            Ok((usage, late.cost))
        })
    }
}
