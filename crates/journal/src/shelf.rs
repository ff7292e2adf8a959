//! The values that scripts of a session save with `store` and read with `load`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::params;
use selvedge_protocol::{LedgerError, Shelf};

use crate::time::now_ms;
use crate::{Journal, JournalError};

/// The stored script values of one session.
#[derive(Debug)]
pub struct SessionShelf {
    journal: Arc<Journal>,
    session: String,
}

impl Journal {
    /// Returns the stored script values of a session.
    pub fn shelf(self: &Arc<Self>, session: &str) -> SessionShelf {
        SessionShelf {
            journal: self.clone(),
            session: session.to_owned(),
        }
    }
}

impl Shelf for SessionShelf {
    fn get(&self, key: &str) -> Result<Option<String>, LedgerError> {
        Ok(self.read(key)?)
    }

    fn put(&self, values: &BTreeMap<String, String>) -> Result<(), LedgerError> {
        Ok(self.journal.write(|connection| {
            let sql =
                "INSERT OR REPLACE INTO stored (session, key, value, bytes, stored_ms) VALUES (?1, ?2, ?3, ?4, ?5)";
            let mut insert = connection.prepare_cached(sql)?;
            for (key, value) in values {
                let stored = self.journal.payloads.put(connection, value.as_bytes())?;
                let bytes = (key.len() + value.len()) as i64;
                insert.execute(params![self.session, key, stored, bytes, now_ms()])?;
            }
            Ok(())
        })?)
    }

    fn bytes(&self) -> Result<usize, LedgerError> {
        Ok(self.size()?)
    }
}

impl SessionShelf {
    fn read(&self, key: &str) -> Result<Option<String>, JournalError> {
        let connection = self.journal.lock();
        let sql = "SELECT value FROM stored WHERE session = ?1 AND key = ?2";
        let mut read = connection.prepare_cached(sql)?;
        let mut rows = read.query(params![self.session, key])?;
        let row = rows.next()?;
        row.map(|row| self.journal.payloads.text(&connection, row.get_ref(0)?))
            .transpose()
    }

    fn size(&self) -> Result<usize, JournalError> {
        let connection = self.journal.lock();
        let mut read = connection
            .prepare_cached("SELECT ifnull(sum(bytes), 0) FROM stored WHERE session = ?1")?;
        let bytes: i64 = read.query_row(params![self.session], |row| row.get(0))?;
        Ok(bytes.max(0) as usize)
    }
}
