//! A connection that several threads use.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::connection::Backend;
use crate::{ColumnCodec, Connection, PostgresPool};

/// A connection that several threads use: one after the other if it is one to a file, and at the
/// same time if it is one to a database, with a connection of the pool for each.
#[derive(Debug)]
pub struct SharedConnection(SharedKind);

enum SharedKind {
    File(Mutex<Connection>),
    Database(PostgresPool, Option<Arc<dyn ColumnCodec>>),
}

/// The connection of a thread, until it is dropped.
#[derive(Debug)]
pub struct ConnectionGuard<'a>(GuardKind<'a>);

#[derive(Debug)]
enum GuardKind<'a> {
    File(MutexGuard<'a, Connection>),
    Database(Connection),
}

impl SharedConnection {
    /// Shares a connection.
    pub fn new(connection: Connection) -> Self {
        Self(match &connection.backend {
            Backend::Sqlite(_) => SharedKind::File(Mutex::new(connection)),
            Backend::Postgres(postgres) => {
                SharedKind::Database(postgres.pool().clone(), connection.codec().cloned())
            }
        })
    }

    /// Returns a connection, when no other thread uses the file.
    pub fn lock(&self) -> ConnectionGuard<'_> {
        ConnectionGuard(match &self.0 {
            SharedKind::File(connection) => {
                GuardKind::File(connection.lock().unwrap_or_else(PoisonError::into_inner))
            }
            SharedKind::Database(pool, codec) => GuardKind::Database(pooled(pool, codec)),
        })
    }

    /// Like [`Self::lock`], and returns `None` if another thread uses the file.
    pub fn try_lock(&self) -> Option<ConnectionGuard<'_>> {
        let SharedKind::File(connection) = &self.0 else {
            return Some(self.lock());
        };
        match connection.try_lock() {
            Ok(guard) => Some(ConnectionGuard(GuardKind::File(guard))),
            Err(TryLockError::Poisoned(guard)) => {
                Some(ConnectionGuard(GuardKind::File(guard.into_inner())))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns how many threads can use it at the same time.
    pub fn max_users(&self) -> usize {
        match &self.0 {
            SharedKind::File(_) => 1,
            SharedKind::Database(pool, _) => pool.max_connections(),
        }
    }
}

fn pooled(pool: &PostgresPool, codec: &Option<Arc<dyn ColumnCodec>>) -> Connection {
    let mut connection = Connection::from_pool(pool);
    connection.codec.clone_from(codec);
    connection
}

impl Deref for ConnectionGuard<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match &self.0 {
            GuardKind::File(guard) => guard,
            GuardKind::Database(connection) => connection,
        }
    }
}

impl std::fmt::Debug for SharedKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(connection) => connection.fmt(f),
            Self::Database(pool, _) => pool.fmt(f),
        }
    }
}
