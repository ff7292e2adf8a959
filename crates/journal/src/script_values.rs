//! The values that scripts of a session save with `store` and read with `load`.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use selvedge_database::{Connection, params};
use selvedge_protocol::{LedgerError, ScriptStoreBackend};

use crate::Journal;
use crate::connection::query_first;
use crate::time::now_ms;

/// The stored script values of one session.
#[derive(Debug)]
pub struct SessionValueStore {
    journal: Arc<Journal>,
    session: String,
}

impl Journal {
    /// Returns the stored script values of a session.
    pub fn script_values(self: &Arc<Self>, session: &str) -> SessionValueStore {
        SessionValueStore {
            journal: self.clone(),
            session: session.to_owned(),
        }
    }
}

#[async_trait]
impl ScriptStoreBackend for SessionValueStore {
    async fn get(&self, key: &str) -> Result<Option<String>, LedgerError> {
        let (session, key) = (self.session.clone(), key.to_owned());
        let read = move |journal: &Journal, connection: &Connection| {
            let sql = "SELECT value FROM stored WHERE session = ?1 AND key = ?2";
            let mut read = connection.prepare_cached(sql)?;
            let mut rows = read.query(params![session, key])?;
            let row = rows.next()?;
            row.map(|row| journal.payloads.require_text(connection, row.get_ref(0)?))
                .transpose()
        };
        Ok(self.journal.run_now_or_queue(read).await?)
    }

    async fn put(&self, values: BTreeMap<String, String>) -> Result<(), LedgerError> {
        let (session, stored_ms) = (self.session.clone(), now_ms());
        let claim = self.journal.claim_of(&session);
        let write = move |journal: &Journal, connection: &Connection| {
            journal.check_claim(connection, claim.as_ref())?;
            let sql = "INSERT INTO stored (session, key, value, bytes, stored_ms, turn)
                VALUES (?1, ?2, ?3, ?4, ?5,
                    (SELECT turn FROM items WHERE session = ?1 ORDER BY number DESC LIMIT 1))
                ON CONFLICT (session, key) DO UPDATE SET value = excluded.value,
                    bytes = excluded.bytes, stored_ms = excluded.stored_ms, turn = excluded.turn";
            let mut insert = connection.prepare_cached(sql)?;
            for (key, value) in &values {
                let stored = journal.payloads.put(connection, value.as_bytes())?;
                let bytes = (key.len() + value.len()) as i64;
                insert.execute(params![session, key, stored, bytes, stored_ms])?;
            }
            Ok(())
        };
        Ok(self.journal.write_async(write).await?)
    }

    async fn total_bytes(&self) -> Result<usize, LedgerError> {
        let session = self.session.clone();
        let read = move |_: &Journal, connection: &Connection| {
            let sql =
                "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM stored WHERE session = ?1";
            let bytes: Option<i64> = query_first(connection, sql, params![session])?;
            Ok(bytes.unwrap_or_default().max(0) as usize)
        };
        Ok(self.journal.run_now_or_queue(read).await?)
    }
}
