//! [`TokenAccount`]: charges a token of the agent server with the costs of a turn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_database::{Connection, params};

use crate::api_tokens::token_by_name;
use crate::connection::execute;
use crate::{Journal, JournalError};

/// The account of the token that pays for a turn. What all turns of the token have spent is in the
/// journal, so that turns at the same time, also of several servers, see each other's costs.
#[derive(Debug)]
pub struct TokenAccount {
    journal: Arc<Journal>,
    token: String,
    /// Costs that are not stored yet.
    pending: Mutex<f64>,
}

impl TokenAccount {
    /// Returns the account of the token with this name.
    pub fn new(journal: Arc<Journal>, token: String) -> Self {
        Self {
            journal,
            token,
            pending: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, f64> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a cost, which [`TokenAccount::settle`] stores.
    pub fn add(&self, cost: f64) {
        *self.lock() += cost;
    }

    /// Stores the costs that were added. Returns whether the token has something left to spend.
    pub async fn settle(&self) -> Result<bool, JournalError> {
        let cost = std::mem::take(&mut *self.lock());
        let token = self.token.clone();
        let settled = if cost > 0.0 {
            let write = move |_: &Journal, connection: &Connection| {
                charge(connection, &token, cost)?;
                has_money_left(connection, &token)
            };
            self.journal.write_async(write).await
        } else {
            let read =
                move |_: &Journal, connection: &Connection| has_money_left(connection, &token);
            self.journal.run_now_or_queue(read).await
        };
        if settled.is_err() {
            self.add(cost);
        }
        settled
    }
}

impl Drop for TokenAccount {
    fn drop(&mut self) {
        let cost = std::mem::take(&mut *self.lock());
        if cost > 0.0 {
            let token = self.token.clone();
            let write = move |journal: &Journal| {
                journal.write(|connection| charge(connection, &token, cost))
            };
            // The journal runs the queued work without this future.
            drop(self.journal.spawn_blocking::<_, JournalError, _>(write));
        }
    }
}

fn charge(connection: &Connection, token: &str, cost: f64) -> Result<(), JournalError> {
    let sql = "UPDATE api_tokens SET spent = spent + ?2 WHERE name = ?1";
    execute(connection, sql, params![token, cost])
}

fn has_money_left(connection: &Connection, token: &str) -> Result<bool, JournalError> {
    Ok(!token_by_name(connection, token)?.has_spent_all())
}
