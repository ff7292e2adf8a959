//! The store: sessions and their turns in the journal's file, and helpers for queries.

use std::sync::{Arc, Mutex, PoisonError};

use selvedge_database::{
    Connection, ConnectionGuard, DatabaseError, NamedLockMode, OptionalRow, Params, Row,
    SharedConnection, TransactionRetry, ValueRef, params,
};
use selvedge_journal::{ColumnEncryption, JournalError, JournalLocation, Redactor};
pub(crate) use selvedge_protocol::now_ms;

use crate::append::AppendBatch;
use crate::encryption::ENCRYPTION_LOCK;
use crate::schema::MEMORY_TABLES;
use crate::search::SearchScope;
use crate::vectors::Encoder;
use crate::{MemoryError, NewTurn, TurnFormat};

/// Read connections that stay open for reuse.
const MAX_POOLED_READERS: usize = 4;

/// The memory store: every turn of every session, in the journal that several processes may have
/// open. Writes to a file go through one connection, reads through a few that stay open.
#[derive(Debug)]
pub struct Memory {
    pub(crate) location: JournalLocation,
    writer: SharedConnection,
    readers: Mutex<Vec<PooledReader>>,
    encryption: ColumnEncryption,
    pub(crate) redactor: Redactor,
    pub(crate) encoder: Option<Arc<dyn Encoder>>,
}

/// A pooled read connection with the search scope it loaded last.
#[derive(Debug)]
pub(crate) struct PooledReader {
    pub(crate) connection: Connection,
    pub(crate) scope: Option<SearchScope>,
}

/// A row of `memory_sessions`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemorySessionRow {
    pub(crate) id: i64,
    /// How many turns the session has, forgotten ones included.
    pub(crate) turn_count: u32,
    /// The last turn whose lower levels are written.
    pub(crate) levels_written_to: u32,
}

/// A turn as it was stored.
#[derive(Debug, Clone)]
pub struct StoredTurn {
    /// The number of the turn in its session, from 1: 50 for T-50.
    pub number: u32,
    /// The turn's key in the source it was imported from, as JSON. `None` for turns without one.
    pub key: Option<String>,
    /// The role of the speaker: `user`, `assistant`, …
    pub role: String,
    /// The name of the speaker, if the speaker has one besides the role.
    pub speaker: Option<String>,
    /// The time as the source wrote it.
    pub ts: Option<String>,
    /// Milliseconds since 1970: the parsed `ts`, or the time at which the turn was stored.
    pub at_ms: i64,
    /// How to interpret `raw`.
    pub format: TurnFormat,
    /// The exact bytes of the turn.
    pub raw: Vec<u8>,
}

impl Memory {
    /// Opens the memory in the journal of `folder`, and creates it if there is none. The redactor
    /// is applied to everything that is indexed, rendered or exported.
    pub fn open(
        location: impl Into<JournalLocation>,
        redactor: Redactor,
    ) -> Result<Self, MemoryError> {
        Self::open_with(location.into(), redactor, ColumnEncryption::disabled())
    }

    /// Opens the memory with encryption: texts are stored encrypted, indexed words as keyed
    /// digests. Existing plain data is encrypted now. From then on the memory opens with this key
    /// only.
    pub fn open_encrypted(
        location: impl Into<JournalLocation>,
        redactor: Redactor,
        key: &[u8; 32],
    ) -> Result<Self, MemoryError> {
        Self::open_with(location.into(), redactor, ColumnEncryption::new(key))
    }

    fn open_with(
        location: JournalLocation,
        redactor: Redactor,
        encryption: ColumnEncryption,
    ) -> Result<Self, MemoryError> {
        let connection = MEMORY_TABLES.open(&location, &encryption)?;
        connection.overwrite_deleted_rows()?;
        let stored_fingerprint = stored_key_fingerprint(&connection)?;
        let memory = Self {
            location,
            writer: SharedConnection::new(connection),
            readers: Mutex::default(),
            encryption,
            redactor,
            encoder: None,
        };
        match (memory.encryption.key_fingerprint(), stored_fingerprint) {
            (ours, stored) if ours == stored => {}
            (Some(fingerprint), None) => memory.encrypt_existing_data(&fingerprint)?,
            _ => return Err(JournalError::WrongKey.into()),
        }
        Ok(memory)
    }

    /// Stores and indexes a turn, and returns its number. Its lower levels are written later, by
    /// [`Memory::write_levels`].
    pub fn append(&self, session: &str, turn: &NewTurn<'_>) -> Result<u32, MemoryError> {
        self.write(|connection| {
            let mut batch = AppendBatch::new(connection, &self.redactor);
            let appended = batch.append(session, turn)?;
            batch.finish()?;
            Ok(appended.number())
        })
    }

    /// Stores turns in this order, in one transaction. A turn whose key exists in its session is
    /// not changed.
    pub fn append_all<'a>(
        &self,
        turns: impl IntoIterator<Item = (&'a str, NewTurn<'a>)>,
    ) -> Result<Vec<AppendedTurn>, MemoryError> {
        let turns: Vec<(&str, NewTurn<'a>)> = turns.into_iter().collect();
        self.write(|connection| {
            let mut batch = AppendBatch::new(connection, &self.redactor);
            let appended = turns
                .iter()
                .map(|(session, turn)| batch.append(session, turn))
                .collect::<Result<_, _>>()?;
            batch.finish()?;
            Ok(appended)
        })
    }

    /// Stores turns of a session in one transaction. The first has this number. Those that were
    /// stored meanwhile are skipped.
    pub fn append_missing(
        &self,
        session: &str,
        first: u32,
        turns: &[NewTurn<'_>],
    ) -> Result<(), MemoryError> {
        self.write(|connection| {
            let mut batch = AppendBatch::new(connection, &self.redactor);
            let stored = batch.turn_count(session)?;
            for (number, turn) in (first..).zip(turns) {
                if number > stored {
                    batch.append(session, turn)?;
                }
            }
            batch.finish()
        })
    }

    /// Returns a turn as it was stored.
    pub fn turn(&self, session: &str, number: u32) -> Result<StoredTurn, MemoryError> {
        self.read(|reader| {
            let id = require_session(&reader.connection, session)?.id;
            load_turn(&reader.connection, id, number)?
                .ok_or_else(|| MemoryError::turn_not_found(session, &format!("T-{number}")))
        })
    }

    /// Returns the number of the turn with this key (see [`StoredTurn::key`]).
    pub fn find_turn_by_key(&self, session: &str, key: &str) -> Result<Option<u32>, MemoryError> {
        self.read(|reader| {
            let session = require_session(&reader.connection, session)?.id;
            find_turn_by_key(&reader.connection, session, key)
        })
    }

    /// Returns how many turns a session has; 0 if there is no such session.
    pub fn turn_count(&self, session: &str) -> Result<u32, MemoryError> {
        self.read(|reader| {
            let found = find_session(&reader.connection, session)?;
            Ok(found.map_or(0, |session| session.turn_count))
        })
    }

    /// Returns the names of all sessions, the newest last.
    pub fn session_names(&self) -> Result<Vec<String>, MemoryError> {
        self.read(|reader| {
            let sql = "SELECT name FROM memory_sessions ORDER BY id";
            query_rows(&reader.connection, sql, params![], |row| row.get(0))
        })
    }

    /// Returns the text with secrets redacted.
    pub fn redact<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
        self.redactor.redact_text(text)
    }

    /// Runs work, which may wait for a lock, on the blocking thread pool.
    pub async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let memory = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&memory)).await;
        done.unwrap_or_else(|_| {
            Err(MemoryError::Damaged(
                "the task that reads the memory panicked or was cancelled".to_owned(),
            ))
        })
    }

    /// Runs `work` in a write transaction and commits it if `work` succeeds. Fails if another
    /// process has encrypted the memory since it was opened. `work` runs again if another
    /// transaction was in the way, or the connection was lost before the commit.
    ///
    /// If `work` changes what it read of a session, it must lock the session ([`lock_session`]).
    pub(crate) fn write<T>(
        &self,
        mut work: impl FnMut(&Connection) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let connection = self.writer();
        let mut retry = TransactionRetry::new(&connection);
        loop {
            match self.try_write(&connection, &mut work) {
                Err(error) if error.database().is_some_and(|e| retry.should_repeat(e)) => {}
                done => return done,
            }
        }
    }

    fn try_write<T>(
        &self,
        connection: &Connection,
        work: &mut impl FnMut(&Connection) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let transaction = connection.begin_write()?;
        // Encrypting waits for this transaction, which may write plain text.
        transaction.lock_name(ENCRYPTION_LOCK, NamedLockMode::Shared);
        MEMORY_TABLES.refuse_too_old(&transaction)?;
        if stored_key_fingerprint(&transaction)? != self.encryption.key_fingerprint() {
            // Another process encrypted the memory: plain text must not be written to it.
            return Err(JournalError::WrongKey.into());
        }
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    pub(crate) fn writer(&self) -> ConnectionGuard<'_> {
        self.writer.lock()
    }

    /// Runs `work` in a read transaction, which does not block writers.
    pub(crate) fn read<T>(
        &self,
        work: impl FnOnce(&mut PooledReader) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let pool = || self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let pooled = pool().pop();
        let mut reader = match pooled {
            Some(reader) => reader,
            None => PooledReader {
                connection: MEMORY_TABLES.connect(&self.location, &self.encryption)?,
                scope: None,
            },
        };
        reader.connection.begin_snapshot()?;
        let done = work(&mut reader);
        reader.connection.end_snapshot()?;
        let mut pool = pool();
        if pool.len() < MAX_POOLED_READERS {
            pool.push(reader);
        }
        done
    }
}

/// The result of appending a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendedTurn {
    /// The turn was stored under this number.
    New(u32),
    /// A turn with the same key was stored earlier, under this number.
    Existing(u32),
}

impl AppendedTurn {
    /// Returns the number of the turn in its session.
    pub fn number(self) -> u32 {
        let (Self::New(number) | Self::Existing(number)) = self;
        number
    }
}

/// Returns the stored fingerprint of the encryption key; `None` if the memory is not encrypted.
fn stored_key_fingerprint(connection: &Connection) -> Result<Option<Vec<u8>>, MemoryError> {
    query_first(
        connection,
        "SELECT key_fingerprint FROM memory_encryption",
        params![],
        |row| row.get(0),
    )
}

/// Runs a cached query and collects its rows.
pub(crate) fn query_rows<T, C: FromIterator<T>>(
    connection: &Connection,
    sql: &str,
    params: Params<'_>,
    read: impl FnMut(Row<'_>) -> Result<T, DatabaseError>,
) -> Result<C, MemoryError> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params, read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Runs a cached query and returns its first row.
pub(crate) fn query_first<T>(
    connection: &Connection,
    sql: &str,
    params: Params<'_>,
    read: impl FnOnce(Row<'_>) -> Result<T, DatabaseError>,
) -> Result<Option<T>, MemoryError> {
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row(params, read).optional()?)
}

/// Executes a cached statement and returns the number of changed rows.
pub(crate) fn execute(
    connection: &Connection,
    sql: &str,
    params: Params<'_>,
) -> Result<usize, MemoryError> {
    Ok(connection.prepare_cached(sql)?.execute(params)?)
}

/// Borrows the bytes of a BLOB column.
pub(crate) fn blob_column(row: Row<'_>, column: usize) -> Result<&[u8], MemoryError> {
    match row.get_ref(column)? {
        ValueRef::Blob(bytes) => Ok(bytes),
        other => Err(damaged_error(format!(
            "column {column} has the type {}",
            other.type_name()
        ))),
    }
}

fn damaged_error(error: impl std::fmt::Display) -> MemoryError {
    MemoryError::Damaged(error.to_string())
}

/// Returns the number of the turn with this key in a session.
pub(crate) fn find_turn_by_key(
    connection: &Connection,
    session: i64,
    key: &str,
) -> Result<Option<u32>, MemoryError> {
    let sql = "SELECT id FROM memory_turns WHERE session = ?1 AND key = encrypt(?2)";
    let id: Option<i64> = query_first(connection, sql, params![session, key], |row| row.get(0))?;
    Ok(id.map(|id| id as u32))
}

/// Looks a session up by name, and fails if there is none.
pub(crate) fn require_session(
    connection: &Connection,
    name: &str,
) -> Result<MemorySessionRow, MemoryError> {
    find_session(connection, name)?.ok_or_else(|| MemoryError::SessionNotFound(name.to_owned()))
}

/// Like [`require_session`], in a transaction that changes what it reads of the session. Other such
/// transactions wait until this one ends.
pub(crate) fn lock_session(
    connection: &Connection,
    name: &str,
) -> Result<MemorySessionRow, MemoryError> {
    let found = find_session_with(connection, name, connection.row_lock())?;
    found.ok_or_else(|| MemoryError::SessionNotFound(name.to_owned()))
}

/// Inserts a session, if there is none of this name.
pub(crate) fn create_session(connection: &Connection, name: &str) -> Result<(), MemoryError> {
    // An insertion that finds a row would take a number of PostgreSQL.
    let sql = "INSERT INTO memory_sessions (name, created_ms)
        SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM memory_sessions WHERE name = ?1)
        ON CONFLICT DO NOTHING";
    execute(connection, sql, params![name, now_ms()])?;
    Ok(())
}

/// Looks a session up by name.
pub(crate) fn find_session(
    connection: &Connection,
    name: &str,
) -> Result<Option<MemorySessionRow>, MemoryError> {
    find_session_with(connection, name, "")
}

fn find_session_with(
    connection: &Connection,
    name: &str,
    lock: &str,
) -> Result<Option<MemorySessionRow>, MemoryError> {
    let sql = format!("SELECT id, turns, written FROM memory_sessions WHERE name = ?1{lock}");
    query_first(connection, &sql, params![name], |row| {
        Ok(MemorySessionRow {
            id: row.get(0)?,
            turn_count: row.get(1)?,
            levels_written_to: row.get(2)?,
        })
    })
}

/// Returns the row id of a turn: the session in the upper 32 bits, the number in the lower.
pub(crate) fn turn_id(session: i64, number: u32) -> i64 {
    session << 32 | i64::from(number)
}

/// Loads a turn with its raw bytes decompressed; `None` if it was forgotten or never existed.
pub(crate) fn load_turn(
    connection: &Connection,
    session: i64,
    number: u32,
) -> Result<Option<StoredTurn>, MemoryError> {
    let sql = "SELECT decrypt(key), role, decrypt(speaker), ts, at_ms, form, decrypt(raw)
         FROM memory_turns WHERE id = ?1";
    let found = query_first(connection, sql, params![turn_id(session, number)], |row| {
        Ok(StoredTurn {
            number,
            key: row.get(0)?,
            role: row.get(1)?,
            speaker: row.get(2)?,
            ts: row.get(3)?,
            at_ms: row.get(4)?,
            format: TurnFormat::from_stored(&row.get::<String>(5)?),
            raw: row.get(6)?,
        })
    })?;
    let unpacked = |turn: StoredTurn| {
        let raw = decompress_raw(turn.raw)?;
        Ok(StoredTurn { raw, ..turn })
    };
    found.map(unpacked).transpose()
}

/// Shorter raw text is stored uncompressed.
const MIN_COMPRESSED_BYTES: usize = 1024;
/// The fastest zstd level already reduces JSON to a third.
const ZSTD_LEVEL: i32 = 1;

/// Compresses raw bytes if that makes them smaller. The first byte of the result is 1 if they are
/// compressed, else 0.
pub(crate) fn compress_raw(raw: &[u8]) -> Result<Vec<u8>, MemoryError> {
    if raw.len() >= MIN_COMPRESSED_BYTES {
        let packed = zstd::bulk::compress(raw, ZSTD_LEVEL).map_err(damaged_error)?;
        if packed.len() < raw.len() {
            return Ok([&[1], &packed[..]].concat());
        }
    }
    Ok([&[0], raw].concat())
}

fn decompress_raw(mut packed: Vec<u8>) -> Result<Vec<u8>, MemoryError> {
    match packed.first() {
        Some(0) => {
            packed.remove(0);
            Ok(packed)
        }
        Some(1) => zstd::stream::decode_all(&packed[1..]).map_err(damaged_error),
        _ => Err(MemoryError::Damaged(
            "a turn has an unknown encoding".into(),
        )),
    }
}
