//! Transactions and locks.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, SimpleQueryMessage};

use super::listener::{CHANNEL, process_name};
use super::{LONG_ANSWER_TIMEOUT, PostgresConnection, errors};
use crate::{DatabaseError, DatabaseErrorKind, DatabaseValue};

/// How long the client asks for the outcome of a commit whose connection was lost.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(15);
const OUTCOME_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Begins a transaction that may write, and returns its number. A standby refuses the number as it
/// refuses writes; `READ WRITE` it would refuse with an error of another kind.
const BEGIN_WRITE: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT CAST(pg_current_xact_id() AS TEXT)";
const BEGIN_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// The transaction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transaction {
    None,
    /// A transaction that only reads.
    Reading,
    /// A transaction that may write, with its number once the server has returned it.
    Writing(Option<u64>),
    /// A transaction with a statement that failed, which cannot be committed.
    Failed,
}

/// A statement of which only an error matters.
#[derive(Debug, Clone)]
pub(super) enum DeferredStatement {
    /// SQL without parameters. The first row may have the number of the transaction.
    Simple(&'static str),
    /// Locks a name until the end of the transaction.
    Lock { key: i32, mode: NamedLockMode },
    /// Sends a notice about a topic when the transaction is committed.
    Notify { topic: String },
}

/// How a name is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedLockMode {
    /// Other transactions may have a shared lock at the same time.
    Shared,
    /// No other transaction has a lock.
    Exclusive,
}

impl PostgresConnection {
    /// Begins a transaction with the next statement.
    pub(crate) fn begin_write(&self) {
        self.deferred.borrow_mut().clear();
        self.defer(DeferredStatement::Simple(BEGIN_WRITE));
        self.transaction.set(Transaction::Writing(None));
    }

    /// Begins a transaction that only reads with the next statement.
    pub(crate) fn begin_snapshot(&self) {
        self.deferred.borrow_mut().clear();
        self.defer(DeferredStatement::Simple(BEGIN_SNAPSHOT));
        self.transaction.set(Transaction::Reading);
    }

    /// Lets the statements of this transaction take as long as they need.
    pub(crate) fn allow_long_statements(&self) {
        self.defer(DeferredStatement::Simple("SET LOCAL statement_timeout = 0"));
        self.answer_timeout.set(LONG_ANSWER_TIMEOUT);
    }

    fn defer(&self, statement: DeferredStatement) {
        self.deferred.borrow_mut().push(statement);
    }

    /// Locks a name until the end of the transaction, before its next statement.
    pub(crate) fn lock_name(&self, name: &str, mode: NamedLockMode) {
        self.defer(DeferredStatement::Lock {
            key: lock_key(name),
            mode,
        });
    }

    /// Sends a notice about a topic when the transaction is committed.
    pub(crate) fn notify(&self, topic: &str) {
        let topic = topic.to_owned();
        self.defer(DeferredStatement::Notify { topic });
    }

    pub(crate) fn is_in_transaction(&self) -> bool {
        self.transaction.get() != Transaction::None
    }

    /// Commits the transaction. If the connection is lost meanwhile, asks the server whether the
    /// transaction was committed.
    pub(crate) fn commit(&self) -> Result<(), DatabaseError> {
        let transaction = self.transaction.get();
        if transaction == Transaction::Failed || !self.was_begun() {
            self.rollback()?;
            return match transaction {
                Transaction::Failed => Err(errors::failed_transaction()),
                _ => Ok(()),
            };
        }
        let committed = self.execute_simple("COMMIT");
        self.end_transaction();
        match (committed, transaction) {
            (Err(error), Transaction::Writing(Some(number)))
                if error.kind() == DatabaseErrorKind::Unavailable =>
            {
                self.commit_outcome(number, error)
            }
            (committed, _) => committed,
        }
    }

    /// Ends a transaction that only reads.
    pub(crate) fn end_snapshot(&self) -> Result<(), DatabaseError> {
        match self.transaction.get() {
            Transaction::Failed => self.rollback(),
            _ => self.commit(),
        }
    }

    /// Returns whether the server knows of the transaction.
    pub(super) fn was_begun(&self) -> bool {
        let deferred = self.deferred.borrow();
        let begins = |statement: &DeferredStatement| {
            matches!(
                statement,
                DeferredStatement::Simple(BEGIN_WRITE | BEGIN_SNAPSHOT)
            )
        };
        !deferred.iter().any(begins)
    }

    /// Returns whether the transaction with this number was committed. If the server does not tell
    /// it in time, returns that the outcome is unknown.
    fn commit_outcome(&self, number: u64, lost: DatabaseError) -> Result<(), DatabaseError> {
        let deadline = Instant::now() + OUTCOME_TIMEOUT;
        let unknown = |why: &dyn std::fmt::Display| {
            DatabaseError::new(
                DatabaseErrorKind::OutcomeUnknown,
                format!("the connection was lost while the transaction was committed: {why}"),
            )
        };
        let sql = "SELECT pg_xact_status(CAST(CAST(?1 AS TEXT) AS xid8))";
        loop {
            let asked = self
                .prepare(sql)
                .and_then(|statement| self.query(&statement, &[&number.to_string()], None));
            let status = asked.map(|answer| answer.rows.into_iter().flatten().next());
            match status {
                Ok(Some(DatabaseValue::Text(status))) if status == "committed" => return Ok(()),
                Ok(Some(DatabaseValue::Text(status))) if status == "aborted" => return Err(lost),
                // The server has not noticed yet that the connection is lost.
                Ok(Some(DatabaseValue::Text(_))) if Instant::now() < deadline => {}
                Err(error)
                    if error.kind() == DatabaseErrorKind::Unavailable
                        && Instant::now() < deadline => {}
                Ok(_) => return Err(unknown(&lost)),
                Err(error) => return Err(unknown(&error)),
            }
            std::thread::sleep(OUTCOME_RETRY_INTERVAL);
        }
    }

    /// Undoes the transaction.
    pub(crate) fn rollback(&self) -> Result<(), DatabaseError> {
        let was_begun = self.was_begun();
        self.deferred.borrow_mut().clear();
        let taken = self.taken.borrow();
        let is_connected = taken.as_ref().is_some_and(|taken| taken.client().is_some());
        drop(taken);
        if !was_begun || !is_connected {
            self.end_transaction();
            return Ok(());
        }
        let undone = self.execute_simple("ROLLBACK");
        if undone.is_err() {
            // The transaction ends with its connection.
            self.taken.take();
        }
        self.end_transaction();
        undone
    }

    /// Gives back the connection after the end of a transaction.
    fn end_transaction(&self) {
        self.transaction.set(Transaction::None);
        self.answer_timeout.set(self.usual_answer_timeout.get());
        self.release();
    }
}

/// Returns the SQL that sends a notice about a topic.
fn notify_sql(topic: &str) -> String {
    let topic = topic.replace('\'', "''").replace('\0', "");
    let process = process_name();
    format!("SELECT pg_notify('{CHANNEL}', current_schema() || '/{process}/{topic}')")
}

impl DeferredStatement {
    /// Executes the statement. Returns the number of the transaction if it began one.
    pub(super) async fn run(self, client: &Client) -> Result<Option<u64>, DatabaseError> {
        match self {
            Self::Simple(sql) => {
                let answer = client.simple_query(sql).await?;
                Ok(answer.iter().find_map(|message| match message {
                    SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
                    _ => None,
                }))
            }
            Self::Lock { key, mode } => {
                let function = match mode {
                    NamedLockMode::Shared => "pg_advisory_xact_lock_shared",
                    NamedLockMode::Exclusive => "pg_advisory_xact_lock",
                };
                // The same name in another schema is another lock.
                let sql = format!("SELECT {function}(hashtext(current_schema()), {key})");
                client.batch_execute(&sql).await?;
                Ok(None)
            }
            Self::Notify { topic } => {
                client.batch_execute(&notify_sql(&topic)).await?;
                Ok(None)
            }
        }
    }
}

/// Returns the key of a named lock: a hash that is the same in all versions.
fn lock_key(name: &str) -> i32 {
    // FNV-1a. Transactions with two names of the same key wait for each other without need.
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, step) as i32
}
