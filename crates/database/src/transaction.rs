//! Transactions.

use std::ops::Deref;

use crate::{Connection, DatabaseError};

/// A transaction that may write. It is rolled back when it is dropped without a commit.
#[derive(Debug)]
pub struct WriteTransaction<'c> {
    connection: &'c Connection,
    is_open: bool,
}

impl<'c> WriteTransaction<'c> {
    pub(crate) fn begin(connection: &'c Connection) -> Result<Self, DatabaseError> {
        if connection.is_in_transaction() {
            // The previous write panicked inside its transaction.
            connection.rollback_transaction()?;
        }
        connection.begin_transaction()?;
        Ok(Self {
            connection,
            is_open: true,
        })
    }

    /// Commits the transaction. If that fails, it is rolled back.
    pub fn commit(mut self) -> Result<(), DatabaseError> {
        self.connection.commit_transaction()?;
        self.is_open = false;
        Ok(())
    }

    /// Undoes everything that was written.
    pub fn rollback(mut self) -> Result<(), DatabaseError> {
        self.is_open = false;
        self.connection.rollback_transaction()
    }
}

impl Deref for WriteTransaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Drop for WriteTransaction<'_> {
    fn drop(&mut self) {
        if self.is_open && self.connection.is_in_transaction() {
            // If it fails, the next transaction of the connection tries it again.
            let _ = self.connection.rollback_transaction();
        }
    }
}
