//! Connections to PostgreSQL.
//!
//! The client is `tokio-postgres`: it is small, sends several statements before the first has
//! answered, and leaves SQL, types and reconnecting to this module. `sqlx` would add a second
//! driver for SQLite and its own pool, which the synchronous interface of this crate cannot use.

mod connect;
mod errors;
mod listener;
mod maintenance;
mod pool;
mod runtime;
mod tls;
mod transactions;
mod translate;
mod url;
mod values;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::future::join_all;
use tokio_postgres::Client;

pub use listener::NoticeListener;
pub use pool::PostgresPool;
pub use transactions::NamedLockMode;
pub use url::PostgresUrl;

use crate::connection::Backend;
use crate::statement::as_params;
use crate::{
    ColumnCodec, Connection, DatabaseError, DatabaseErrorKind, DatabaseValue, Params, ValueRef,
};
use pool::TakenConnection;
use runtime::wait_for;
use transactions::{DeferredStatement, Transaction};
use translate::{ParameterCodec, TranslatedSql, translate, translate_batch};
use values::{PostgresParameter, read_row};

/// How long a statement may run at the server, and how long it may wait for a lock.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an open transaction may be idle. It belongs to a process that is stopped or gone, and
/// must not hold its locks longer than its lease.
const IDLE_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the client waits for an answer. The server gives up before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(75);
/// The same for statements that may take long, such as migrations.
const LONG_ANSWER_TIMEOUT: Duration = Duration::from_secs(6 * 3600);
/// The number of statements that are sent before the first is answered.
const MAX_PIPELINED_STATEMENTS: usize = 256;
/// The number of prepared statements that a connection keeps.
const MAX_CACHED_STATEMENTS: usize = 512;

impl Connection {
    /// Connects to a PostgreSQL database with a connection of its own. A connection that is lost is
    /// made again by the next statement outside of a transaction.
    pub fn open_postgres(url: &PostgresUrl) -> Result<Self, DatabaseError> {
        let connection = PostgresConnection::new(PostgresPool::new(url, 1));
        connection.client()?;
        connection.release();
        Ok(Self::new(Backend::Postgres(Box::new(connection))))
    }

    /// Returns a connection that takes one of a pool when it needs one.
    pub fn from_pool(pool: &PostgresPool) -> Self {
        let connection = PostgresConnection::new(pool.clone());
        Self::new(Backend::Postgres(Box::new(connection)))
    }
}

/// A connection to PostgreSQL. It has one of the pool only while it needs it.
pub(crate) struct PostgresConnection {
    pool: PostgresPool,
    /// `None` between transactions, and after the connection was lost.
    taken: RefCell<Option<TakenConnection>>,
    /// Statements that are sent together with the next one.
    deferred: RefCell<Vec<DeferredStatement>>,
    transaction: Cell<Transaction>,
    /// The time-out of the next answer, and that of statements that do not take long.
    answer_timeout: Cell<Duration>,
    usual_answer_timeout: Cell<Duration>,
}

/// Fails if a statement cannot be translated.
#[cfg(debug_assertions)]
pub(crate) fn check_translation(sql: &str) -> Result<(), DatabaseError> {
    translate(sql).map(drop)
}

/// A statement that the server has prepared.
pub(crate) struct PreparedStatement {
    sql: String,
    statement: tokio_postgres::Statement,
    translated: TranslatedSql,
    /// The number of parameters of the caller.
    parameter_count: usize,
}

/// The prepared statements of a connection by their SQL.
type Statements = HashMap<String, Arc<PreparedStatement>>;

/// The answer to a statement.
#[derive(Debug, Default)]
pub(crate) struct StatementAnswer {
    pub(crate) rows: Vec<Vec<DatabaseValue>>,
    pub(crate) changed: u64,
}

impl PostgresConnection {
    fn new(pool: PostgresPool) -> Self {
        Self {
            pool,
            taken: RefCell::default(),
            deferred: RefCell::default(),
            transaction: Cell::new(Transaction::None),
            answer_timeout: Cell::new(ANSWER_TIMEOUT),
            usual_answer_timeout: Cell::new(ANSWER_TIMEOUT),
        }
    }

    /// Sets how long the client waits for an answer.
    pub(crate) fn set_answer_timeout(&self, timeout: Duration) {
        self.answer_timeout.set(timeout);
        self.usual_answer_timeout.set(timeout);
    }

    pub(crate) fn pool(&self) -> &PostgresPool {
        &self.pool
    }

    /// Returns the client. Takes a connection of the pool if there is none, or if it was lost
    /// outside of a transaction.
    fn client(&self) -> Result<Arc<Client>, DatabaseError> {
        let taken = self.taken.take();
        if let Some(client) = taken.as_ref().and_then(TakenConnection::client) {
            let client = client.clone();
            *self.taken.borrow_mut() = taken;
            return Ok(client);
        }
        drop(taken);
        if self.is_in_transaction() && self.was_begun() {
            return Err(errors::lost_in_transaction());
        }
        let taken = self.pool.take()?;
        let client = taken.client().cloned().ok_or_else(errors::lost)?;
        *self.taken.borrow_mut() = Some(taken);
        Ok(client)
    }

    /// Gives the connection back to the pool, unless a transaction needs it.
    fn release(&self) {
        if !self.is_in_transaction()
            && let Some(taken) = self.taken.take()
        {
            taken.give_back();
        }
    }

    /// Runs a future with the client after the deferred statements, and waits for both. Then gives
    /// the connection back if it can.
    fn run<T, F>(
        &self,
        work: impl FnOnce(Arc<Client>) -> F + Send + 'static,
    ) -> Result<T, DatabaseError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, tokio_postgres::Error>> + Send + 'static,
    {
        let done = self.send(work);
        self.release();
        done
    }

    /// Runs a future with the client after the deferred statements, and waits for both.
    fn send<T, F>(
        &self,
        work: impl FnOnce(Arc<Client>) -> F + Send + 'static,
    ) -> Result<T, DatabaseError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, tokio_postgres::Error>> + Send + 'static,
    {
        let client = self.client()?;
        let mut deferred = self.deferred.take();
        if !self
            .taken
            .borrow()
            .as_ref()
            .is_some_and(TakenConnection::has_notices)
        {
            deferred.retain(|statement| !matches!(statement, DeferredStatement::Notify { .. }));
        }
        let timeout = self.answer_timeout.get();
        let answered = wait_for(async move {
            let before = deferred.into_iter().map(|statement| statement.run(&client));
            // A future sends its statement when it is polled first, so the order is kept.
            let both = futures_util::future::join(join_all(before), work(client.clone()));
            let (before, done) = tokio::time::timeout(timeout, both)
                .await
                .map_err(|_| errors::no_answer())?;
            let numbers: Result<Vec<Option<u64>>, DatabaseError> = before.into_iter().collect();
            let number = numbers?.into_iter().flatten().next();
            Ok((number, done?))
        });
        if let Err(error) = &answered {
            self.handle_error(error);
        }
        let (number, done) = answered?;
        if number.is_some() {
            self.transaction.set(Transaction::Writing(number));
        }
        Ok(done)
    }

    fn handle_error(&self, error: &DatabaseError) {
        if self.is_in_transaction() {
            self.transaction.set(Transaction::Failed);
        }
        match error.kind() {
            DatabaseErrorKind::Unavailable => {
                if let Some(taken) = self.taken.take() {
                    taken.close_with_idle();
                }
            }
            // A statement may have been prepared for a table that was changed since.
            DatabaseErrorKind::Conflict => self.with_statements(|statements| statements.clear()),
            _ => {}
        }
    }

    /// Calls `work` with the prepared statements of the connection, if there is one.
    fn with_statements<T: Default>(&self, work: impl FnOnce(&mut Statements) -> T) -> T {
        let mut taken = self.taken.borrow_mut();
        let statements = taken.as_mut().and_then(TakenConnection::statements);
        statements.map(work).unwrap_or_default()
    }

    /// Prepares a statement, or returns the prepared one.
    pub(crate) fn prepare(&self, sql: &str) -> Result<Arc<PreparedStatement>, DatabaseError> {
        let prepared = self.prepare_here(sql);
        self.release();
        prepared
    }

    /// Like [`Self::prepare`], and keeps the connection, to which the statement belongs.
    fn prepare_here(&self, sql: &str) -> Result<Arc<PreparedStatement>, DatabaseError> {
        self.client()?;
        if let Some(statement) = self.with_statements(|statements| statements.get(sql).cloned()) {
            return Ok(statement);
        }
        let translated = translate(sql)?;
        let statement = self.repeat_once(true, || {
            let text = translated.sql.clone();
            self.send(move |client| async move { client.prepare(&text).await })
        })?;
        let numbers = translated.parameters.iter().map(|source| source.number);
        let prepared = Arc::new(PreparedStatement {
            parameter_count: numbers.max().unwrap_or(0),
            sql: sql.to_owned(),
            statement,
            translated,
        });
        self.with_statements(|statements| {
            if statements.len() >= MAX_CACHED_STATEMENTS {
                statements.clear();
            }
            statements.insert(sql.to_owned(), prepared.clone());
        });
        Ok(prepared)
    }

    /// Makes an attempt, and a second one if the first lost the connection and nothing that was
    /// sent before depends on it: the attempt is outside of a transaction, or begins it.
    fn repeat_once<T>(
        &self,
        can_repeat: bool,
        attempt: impl Fn() -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let (transaction, deferred) = (self.transaction.get(), self.deferred.borrow().clone());
        let timeout = self.answer_timeout.get();
        let is_first = transaction == Transaction::None || !self.was_begun();
        match attempt() {
            Err(error) if can_repeat && is_first && error.is_transient() => {
                if transaction != Transaction::None {
                    // After a conflict, the server still has the transaction of the first attempt.
                    self.rollback()?;
                }
                self.transaction.set(transaction);
                self.answer_timeout.set(timeout);
                *self.deferred.borrow_mut() = deferred;
                attempt()
            }
            done => done,
        }
    }

    /// Executes a prepared statement.
    pub(crate) fn query(
        &self,
        prepared: &PreparedStatement,
        params: Params<'_>,
        codec: Option<&Arc<dyn ColumnCodec>>,
    ) -> Result<StatementAnswer, DatabaseError> {
        prepared.check_parameter_count(params)?;
        let can_repeat = self.is_in_transaction() || prepared.is_read();
        let answers = self.repeat_once(can_repeat, || {
            // The statement may have been prepared on another connection.
            let prepared = self.prepare_here(&prepared.sql)?;
            let parameters = prepared.parameters(params, codec)?;
            self.query_once(prepared.statement.clone(), vec![parameters])
        });
        self.release();
        let mut answer = answers?.into_iter().next().unwrap_or_default();
        prepared.decrypt_columns(&mut answer, codec)?;
        Ok(answer)
    }

    /// Executes a prepared statement with each of these lists of parameters, and sends many of them
    /// before the first is answered.
    pub(crate) fn query_many(
        &self,
        prepared: &PreparedStatement,
        lists: &[Vec<DatabaseValue>],
        codec: Option<&Arc<dyn ColumnCodec>>,
    ) -> Result<Vec<StatementAnswer>, DatabaseError> {
        let answers = self.query_parts(&prepared.sql, lists, codec);
        self.release();
        let mut answers = answers?;
        for answer in &mut answers {
            prepared.decrypt_columns(answer, codec)?;
        }
        Ok(answers)
    }

    fn query_parts(
        &self,
        sql: &str,
        lists: &[Vec<DatabaseValue>],
        codec: Option<&Arc<dyn ColumnCodec>>,
    ) -> Result<Vec<StatementAnswer>, DatabaseError> {
        let prepared = self.prepare_here(sql)?;
        let mut answers = Vec::with_capacity(lists.len());
        for part in lists.chunks(MAX_PIPELINED_STATEMENTS) {
            let parameters = part.iter().map(|list| {
                let params = as_params(list);
                prepared.check_parameter_count(&params)?;
                prepared.parameters(&params, codec)
            });
            let parameters = parameters.collect::<Result<_, _>>()?;
            answers.extend(self.query_once(prepared.statement.clone(), parameters)?);
        }
        Ok(answers)
    }

    fn query_once(
        &self,
        statement: tokio_postgres::Statement,
        lists: Vec<Vec<PostgresParameter>>,
    ) -> Result<Vec<StatementAnswer>, DatabaseError> {
        let answers = self.send(move |client| async move {
            let lists = lists.into_iter();
            let queries = lists.map(|list| read_answer(&client, &statement, list));
            join_all(queries)
                .await
                .into_iter()
                .collect::<Result<Vec<_>, _>>()
        })?;
        let read = |(rows, changed): (Vec<tokio_postgres::Row>, u64)| {
            let rows = rows.iter().map(read_row).collect::<Result<_, _>>()?;
            Ok(StatementAnswer { rows, changed })
        };
        answers.into_iter().map(read).collect()
    }

    /// Executes several statements without parameters.
    pub(crate) fn execute_batch(&self, sql: &str) -> Result<(), DatabaseError> {
        self.execute_simple(translate_batch(sql)?)
    }

    /// Executes statements of PostgreSQL.
    pub(crate) fn execute_simple(&self, sql: impl Into<String>) -> Result<(), DatabaseError> {
        let sql = sql.into();
        self.run(move |client| async move { client.batch_execute(&sql).await })
    }
}

/// Executes a statement, and returns its rows and the number of changed ones.
async fn read_answer(
    client: &Client,
    statement: &tokio_postgres::Statement,
    parameters: Vec<PostgresParameter>,
) -> Result<(Vec<tokio_postgres::Row>, u64), tokio_postgres::Error> {
    let stream = client.query_raw(statement, parameters).await?;
    let mut stream = std::pin::pin!(stream);
    let mut rows = Vec::new();
    while let Some(row) = stream.try_next().await? {
        rows.push(row);
    }
    Ok((rows, stream.rows_affected().unwrap_or(0)))
}

impl PreparedStatement {
    fn check_parameter_count(&self, params: Params<'_>) -> Result<(), DatabaseError> {
        if self.parameter_count == params.len() {
            return Ok(());
        }
        Err(DatabaseError::new(
            DatabaseErrorKind::Other,
            format!(
                "the statement has {} parameters and got {}",
                self.parameter_count,
                params.len()
            ),
        ))
    }

    /// Decrypts the columns of an answer that `decrypt` names.
    fn decrypt_columns(
        &self,
        answer: &mut StatementAnswer,
        codec: Option<&Arc<dyn ColumnCodec>>,
    ) -> Result<(), DatabaseError> {
        let Some(codec) = codec else {
            return Ok(());
        };
        for row in &mut answer.rows {
            for column in &self.translated.decrypted_columns {
                let Some(value) = row.get_mut(*column) else {
                    continue;
                };
                let decrypted = codec.decrypt(ValueRef::from(&*value));
                if let Some(plain) = decrypted.map_err(codec_error)? {
                    *value = plain;
                }
            }
        }
        Ok(())
    }

    /// Returns whether the statement only reads, and no lock depends on it.
    fn is_read(&self) -> bool {
        self.sql.starts_with("SELECT") && !self.sql.contains("FOR UPDATE")
    }

    /// Returns the parameters in the order of the translated statement.
    fn parameters(
        &self,
        params: Params<'_>,
        codec: Option<&Arc<dyn ColumnCodec>>,
    ) -> Result<Vec<PostgresParameter>, DatabaseError> {
        let sources = self.translated.parameters.iter();
        let parameter = |source: &translate::ParameterSource| {
            let value = params[source.number - 1].to_parameter();
            let encoded = match (codec, source.codec) {
                (Some(codec), Some(ParameterCodec::Encrypt)) => {
                    codec.encrypt(value).map_err(codec_error)?
                }
                (Some(codec), Some(ParameterCodec::KeyedDigest)) => codec.keyed_digest(value),
                _ => None,
            };
            Ok(PostgresParameter(match encoded {
                Some(encoded) => encoded,
                None => owned(value)?,
            }))
        };
        sources.map(parameter).collect()
    }
}

fn owned(value: ValueRef<'_>) -> Result<DatabaseValue, DatabaseError> {
    Ok(match value {
        ValueRef::Null => DatabaseValue::Null,
        ValueRef::Integer(number) => DatabaseValue::Integer(number),
        ValueRef::Real(number) => DatabaseValue::Real(number),
        ValueRef::Text(_) => {
            DatabaseValue::Text(value.as_str().map(str::to_owned).ok_or_else(|| {
                DatabaseError::new(DatabaseErrorKind::WrongType, "a text is not valid UTF-8")
            })?)
        }
        ValueRef::Blob(bytes) => DatabaseValue::Blob(bytes.to_vec()),
    })
}

fn codec_error(error: crate::ColumnCodecError) -> DatabaseError {
    DatabaseError::new(DatabaseErrorKind::Other, error.to_string())
}
