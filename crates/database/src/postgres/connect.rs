//! Connects to a server.

use std::time::Duration;

use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::tls::PostgresTls;
use super::{IDLE_TRANSACTION_TIMEOUT, LOCK_TIMEOUT, PostgresUrl, STATEMENT_TIMEOUT, errors};
use crate::DatabaseError;

/// How long connecting to all hosts and logging in may take. A host that accepts the connection and
/// then is silent has no other limit.
pub(super) const LOGIN_TIMEOUT: Duration = Duration::from_secs(15);

/// A client that has logged in.
pub(super) struct LoggedInClient {
    pub(super) client: Client,
    /// Whether the server can send notices.
    pub(super) has_notices: bool,
}

/// Connects, and sets the time-outs of the connection.
pub(super) async fn connect(url: &PostgresUrl) -> Result<LoggedInClient, DatabaseError> {
    let connected = tokio::time::timeout(LOGIN_TIMEOUT, log_in(url)).await;
    connected.unwrap_or_else(|_| Err(errors::no_answer().while_connecting(url)))
}

async fn log_in(url: &PostgresUrl) -> Result<LoggedInClient, DatabaseError> {
    let failed = |error: tokio_postgres::Error| DatabaseError::from(error).while_connecting(url);
    let client = if url.config.get_ssl_mode() == SslMode::Disable {
        let (client, connection) = url.config.connect(NoTls).await.map_err(failed)?;
        // The task ends when the client is dropped or the connection is lost. The client reports
        // the error.
        tokio::spawn(connection);
        client
    } else {
        let tls = PostgresTls::new(url)?;
        let (client, connection) = url.config.connect(tls).await.map_err(failed)?;
        tokio::spawn(connection);
        client
    };
    let settings = format!(
        "SET statement_timeout = {}; SET lock_timeout = {};
         SET idle_in_transaction_session_timeout = {}; SET client_min_messages = warning;
         SET standard_conforming_strings = on; SET bytea_output = hex;
         SET default_transaction_read_only = off;
         SELECT to_regproc('pg_notify') IS NOT NULL",
        STATEMENT_TIMEOUT.as_millis(),
        LOCK_TIMEOUT.as_millis(),
        IDLE_TRANSACTION_TIMEOUT.as_millis(),
    );
    let answer = client.simple_query(&settings).await.map_err(failed)?;
    let has_notices = answer.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
        _ => false,
    });
    Ok(LoggedInClient {
        client,
        has_notices,
    })
}
