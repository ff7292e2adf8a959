//! Connections to PostgreSQL.
//!
//! The client is `tokio-postgres`: it is small, sends several statements before the first has
//! answered, and leaves SQL, types and reconnecting to this module. `sqlx` would add a second
//! driver for SQLite and its own pool, which the synchronous interface of this crate cannot use.

mod connect;
mod errors;
mod listener;
mod maintenance;
mod runtime;
mod tls;
mod transactions;
mod translate;
mod url;
mod values;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use futures_util::future::join_all;
use tokio_postgres::Client;

pub use listener::NoticeListener;
pub use transactions::NamedLockMode;
pub use url::PostgresUrl;

use crate::connection::Backend;
use crate::statement::as_params;
use crate::{
    ColumnCodec, Connection, DatabaseError, DatabaseErrorKind, DatabaseValue, Params, ValueRef,
};
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
/// How long a lost connection is tried to be made again. After that, attempts fail at once until
/// one succeeds.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MIN_RECONNECT_PAUSE: Duration = Duration::from_millis(20);
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// The number of statements that are sent before the first is answered.
const MAX_PIPELINED_STATEMENTS: usize = 256;
/// The number of prepared statements that a connection keeps.
const MAX_CACHED_STATEMENTS: usize = 512;

impl Connection {
    /// Connects to a PostgreSQL database. A connection that is lost is made again by the next
    /// statement outside of a transaction.
    pub fn open_postgres(url: &PostgresUrl) -> Result<Self, DatabaseError> {
        let connection = PostgresConnection {
            url: url.clone(),
            client: RefCell::default(),
            statements: RefCell::default(),
            deferred: RefCell::default(),
            transaction: Cell::new(Transaction::None),
            was_connected: Cell::new(false),
        };
        connection.client()?;
        Ok(Self::new(Backend::Postgres(Box::new(connection))))
    }
}

/// A connection to PostgreSQL.
pub(crate) struct PostgresConnection {
    url: PostgresUrl,
    /// `None` after the connection was lost.
    client: RefCell<Option<Arc<Client>>>,
    statements: RefCell<HashMap<String, Arc<PreparedStatement>>>,
    /// Statements that are sent together with the next one.
    deferred: RefCell<Vec<DeferredStatement>>,
    transaction: Cell<Transaction>,
    /// Whether the last attempt to connect succeeded.
    was_connected: Cell<bool>,
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

/// The answer to a statement.
#[derive(Debug, Default)]
pub(crate) struct StatementAnswer {
    pub(crate) rows: Vec<Vec<DatabaseValue>>,
    pub(crate) changed: u64,
}

impl PostgresConnection {
    pub(crate) fn url(&self) -> &PostgresUrl {
        &self.url
    }

    /// Returns the client, and connects again if the connection was lost outside of a transaction.
    fn client(&self) -> Result<Arc<Client>, DatabaseError> {
        if let Some(client) = &*self.client.borrow()
            && !client.is_closed()
        {
            return Ok(client.clone());
        }
        self.forget_client();
        if self.is_in_transaction() && self.was_begun() {
            return Err(errors::lost_in_transaction());
        }
        let client = Arc::new(self.connect()?);
        *self.client.borrow_mut() = Some(client.clone());
        Ok(client)
    }

    /// Connects. If it had a connection before, it tries again for some time, because the database
    /// may be starting again.
    fn connect(&self) -> Result<Client, DatabaseError> {
        let deadline = Instant::now() + RECONNECT_TIMEOUT;
        let mut pause = MIN_RECONNECT_PAUSE;
        loop {
            let url = self.url.clone();
            match wait_for(async move { connect::connect(&url).await }) {
                Err(error)
                    if self.was_connected.get()
                        && error.kind() == DatabaseErrorKind::Unavailable
                        && Instant::now() < deadline =>
                {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(MAX_RECONNECT_PAUSE);
                }
                connected => {
                    self.was_connected.set(connected.is_ok());
                    return connected;
                }
            }
        }
    }

    fn forget_client(&self) {
        self.client.take();
        self.statements.borrow_mut().clear();
    }

    /// Runs a future with the client after the deferred statements, and waits for both.
    fn run<T, F>(
        &self,
        work: impl FnOnce(Arc<Client>) -> F + Send + 'static,
    ) -> Result<T, DatabaseError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, tokio_postgres::Error>> + Send + 'static,
    {
        let client = self.client()?;
        let deferred = self.deferred.take();
        let answered = wait_for(async move {
            let before = deferred.into_iter().map(|statement| statement.run(&client));
            // A future sends its statement when it is polled first, so the order is kept.
            let both = futures_util::future::join(join_all(before), work(client.clone()));
            let (before, done) = tokio::time::timeout(ANSWER_TIMEOUT, both)
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
            DatabaseErrorKind::Unavailable => self.forget_client(),
            // A statement may have been prepared for a table that was changed since.
            DatabaseErrorKind::Conflict => self.statements.borrow_mut().clear(),
            _ => {}
        }
    }

    /// Prepares a statement, or returns the prepared one.
    pub(crate) fn prepare(&self, sql: &str) -> Result<Arc<PreparedStatement>, DatabaseError> {
        // Statements belong to a connection, which may have to be made first.
        let client = self.client()?;
        if let Some(statement) = self.statements.borrow().get(sql) {
            return Ok(statement.clone());
        }
        let translated = translate(sql)?;
        drop(client);
        let statement = self.repeat_once(true, || {
            let text = translated.sql.clone();
            self.run(move |client| async move { client.prepare(&text).await })
        })?;
        let numbers = translated.parameters.iter().map(|source| source.number);
        let prepared = Arc::new(PreparedStatement {
            parameter_count: numbers.max().unwrap_or(0),
            sql: sql.to_owned(),
            statement,
            translated,
        });
        let mut statements = self.statements.borrow_mut();
        if statements.len() >= MAX_CACHED_STATEMENTS {
            statements.clear();
        }
        statements.insert(sql.to_owned(), prepared.clone());
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
        let is_first = transaction == Transaction::None || !self.was_begun();
        match attempt() {
            Err(error) if can_repeat && is_first && error.is_transient() => {
                if transaction != Transaction::None {
                    // After a conflict, the server still has the transaction of the first attempt.
                    self.rollback()?;
                }
                self.transaction.set(transaction);
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
            // A new connection has no prepared statements.
            let prepared = self.prepare(&prepared.sql)?;
            let parameters = prepared.parameters(params, codec)?;
            self.query_once(prepared.statement.clone(), vec![parameters])
        })?;
        let mut answer = answers.into_iter().next().unwrap_or_default();
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
        for answer in &mut answers {
            prepared.decrypt_columns(answer, codec)?;
        }
        Ok(answers)
    }

    fn query_once(
        &self,
        statement: tokio_postgres::Statement,
        lists: Vec<Vec<PostgresParameter>>,
    ) -> Result<Vec<StatementAnswer>, DatabaseError> {
        let answers = self.run(move |client| async move {
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
