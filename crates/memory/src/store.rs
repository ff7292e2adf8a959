//! The store: sessions and their turns in the journal's file, and helpers for queries.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, Params, Row, TransactionBehavior, params};
use selvedge_journal::{JournalError, Redactor, Seal};
pub(crate) use selvedge_protocol::now_ms;

use crate::append::Batch;
use crate::schema::TABLES;
use crate::search::Scope;
use crate::vectors::Encoder;
use crate::{Form, MemoryError, NewTurn};

/// Read connections that stay open for reuse.
const READERS_KEPT: usize = 4;

/// The memory store: every turn of every session, in one SQLite file that several processes may
/// have open. Writes go through one connection, reads through a small pool.
#[derive(Debug)]
pub struct Memory {
    pub(crate) folder: PathBuf,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Reader>>,
    seal: Seal,
    pub(crate) redactor: Redactor,
    pub(crate) encoder: Option<Arc<dyn Encoder>>,
}

/// A pooled read connection with the search scope it loaded last.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) connection: Connection,
    pub(crate) scope: Option<Scope>,
}

/// A row of `memory_sessions`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    pub(crate) id: i64,
    /// How many turns the session has, forgotten ones included.
    pub(crate) turns: u32,
    /// The last turn whose lower levels are written.
    pub(crate) written: u32,
    /// The last turn that was distilled.
    pub(crate) distilled: u32,
}

/// A turn as it was stored.
#[derive(Debug, Clone)]
pub struct Turn {
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
    pub form: Form,
    /// The exact bytes of the turn.
    pub raw: Vec<u8>,
}

impl Memory {
    /// Opens the memory in the journal of `folder`, and creates it if there is none. The redactor
    /// is applied to everything that is indexed, rendered or exported.
    pub fn open(folder: &Path, redactor: Redactor) -> Result<Self, MemoryError> {
        Self::open_with(folder, redactor, Seal::none())
    }

    /// Opens the memory with encryption: texts are stored encrypted, indexed words as keyed
    /// digests. Existing plain data is encrypted now. From then on the memory opens with this key
    /// only.
    pub fn open_sealed(
        folder: &Path,
        redactor: Redactor,
        key: &[u8; 32],
    ) -> Result<Self, MemoryError> {
        Self::open_with(folder, redactor, Seal::new(key))
    }

    fn open_with(folder: &Path, redactor: Redactor, seal: Seal) -> Result<Self, MemoryError> {
        let connection = TABLES.open(folder, &seal)?;
        connection.pragma_update(None, "secure_delete", "on")?;
        let sealed_with = sealed_with(&connection)?;
        let memory = Self {
            folder: folder.to_owned(),
            writer: Mutex::new(connection),
            readers: Mutex::default(),
            seal,
            redactor,
            encoder: None,
        };
        match (memory.seal.proof(), sealed_with) {
            (ours, stored) if ours == stored => {}
            (Some(proof), None) => memory.seal_everything(&proof)?,
            _ => return Err(JournalError::Sealed.into()),
        }
        Ok(memory)
    }

    /// Stores and indexes a turn, and returns its number. Its lower levels are written later, by
    /// [`Memory::write_levels`].
    pub fn append(&self, session: &str, turn: &NewTurn<'_>) -> Result<u32, MemoryError> {
        self.write(|connection| {
            let mut batch = Batch::new(connection, &self.redactor);
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
    ) -> Result<Vec<Appended>, MemoryError> {
        self.write(|connection| {
            let mut batch = Batch::new(connection, &self.redactor);
            let appended = turns
                .into_iter()
                .map(|(session, turn)| batch.append(session, &turn))
                .collect();
            batch.finish()?;
            appended
        })
    }

    /// Returns a turn as it was stored.
    pub fn turn(&self, session: &str, number: u32) -> Result<Turn, MemoryError> {
        self.read(|reader| {
            let id = find(&reader.connection, session)?.id;
            stored(&reader.connection, id, number)?
                .ok_or_else(|| MemoryError::no_turn(session, &format!("T-{number}")))
        })
    }

    /// Returns the number of the turn with this key (see [`Turn::key`]).
    pub fn number_of(&self, session: &str, key: &str) -> Result<Option<u32>, MemoryError> {
        self.read(|reader| {
            let session = find(&reader.connection, session)?.id;
            number_of(&reader.connection, session, key)
        })
    }

    /// Returns how many turns a session has; 0 if there is no such session.
    pub fn turns(&self, session: &str) -> Result<u32, MemoryError> {
        self.read(|reader| {
            let found = find_if_any(&reader.connection, session)?;
            Ok(found.map_or(0, |session| session.turns))
        })
    }

    /// Returns the names of all sessions, the newest last.
    pub fn sessions(&self) -> Result<Vec<String>, MemoryError> {
        self.read(|reader| {
            let sql = "SELECT name FROM memory_sessions ORDER BY id";
            rows(&reader.connection, sql, [], |row| row.get(0))
        })
    }

    /// Returns the text with secrets redacted.
    pub fn redacted<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
        self.redactor.text(text)
    }

    /// Runs `work` in a write transaction and commits it if `work` succeeds. Fails if another
    /// process has encrypted the memory since it was opened.
    pub(crate) fn write<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let mut connection = self.writer();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if sealed_with(&transaction)? != self.seal.proof() {
            // Another process encrypted the memory: plain text must not be written to it.
            return Err(JournalError::Sealed.into());
        }
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    pub(crate) fn writer(&self) -> MutexGuard<'_, Connection> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` in a read transaction, which does not block writers.
    pub(crate) fn read<T>(
        &self,
        work: impl FnOnce(&mut Reader) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let pool = || self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let pooled = pool().pop();
        let mut reader = match pooled {
            Some(reader) => reader,
            None => Reader {
                connection: TABLES.connect(&self.folder, &self.seal)?,
                scope: None,
            },
        };
        reader.connection.execute_batch("BEGIN")?;
        let done = work(&mut reader);
        reader.connection.execute_batch("COMMIT")?;
        let mut pool = pool();
        if pool.len() < READERS_KEPT {
            pool.push(reader);
        }
        done
    }
}

/// The result of appending a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// The turn was stored under this number.
    New(u32),
    /// A turn with the same key was stored earlier, under this number.
    Before(u32),
}

impl Appended {
    /// Returns the number of the turn in its session.
    pub fn number(self) -> u32 {
        let (Self::New(number) | Self::Before(number)) = self;
        number
    }
}

/// Returns the stored proof of the encryption key; `None` if the memory is not encrypted.
fn sealed_with(connection: &Connection) -> Result<Option<Vec<u8>>, MemoryError> {
    row(connection, "SELECT proof FROM memory_seal", [], |row| {
        row.get(0)
    })
}

/// Runs a cached query and collects its rows.
pub(crate) fn rows<T, C: FromIterator<T>>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<C, MemoryError> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params, read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Runs a cached query and returns its first row.
pub(crate) fn row<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, MemoryError> {
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row(params, read).optional()?)
}

/// Executes a cached statement and returns the number of changed rows.
pub(crate) fn execute(
    connection: &Connection,
    sql: &str,
    params: impl Params,
) -> Result<usize, MemoryError> {
    Ok(connection.prepare_cached(sql)?.execute(params)?)
}

/// Borrows the bytes of a BLOB column.
pub(crate) fn blob<'r>(row: &'r Row<'_>, column: usize) -> Result<&'r [u8], MemoryError> {
    row.get_ref(column)?.as_blob().map_err(damaged)
}

fn damaged(error: impl std::fmt::Display) -> MemoryError {
    MemoryError::Damaged(error.to_string())
}

/// Returns the number of the turn with this key in a session.
pub(crate) fn number_of(
    connection: &Connection,
    session: i64,
    key: &str,
) -> Result<Option<u32>, MemoryError> {
    let sql = "SELECT id FROM memory_turns WHERE session = ?1 AND key = sealed(?2)";
    let id: Option<i64> = row(connection, sql, params![session, key], |row| row.get(0))?;
    Ok(id.map(|id| id as u32))
}

/// Looks a session up by name, and fails if there is none.
pub(crate) fn find(connection: &Connection, name: &str) -> Result<Session, MemoryError> {
    find_if_any(connection, name)?.ok_or_else(|| MemoryError::NoSession(name.to_owned()))
}

/// Inserts a session, if there is none of this name.
pub(crate) fn create_session(connection: &Connection, name: &str) -> Result<(), MemoryError> {
    let sql = "INSERT OR IGNORE INTO memory_sessions (name, created_ms) VALUES (?1, ?2)";
    execute(connection, sql, params![name, now_ms()])?;
    Ok(())
}

/// Looks a session up by name.
pub(crate) fn find_if_any(
    connection: &Connection,
    name: &str,
) -> Result<Option<Session>, MemoryError> {
    let sql = "SELECT id, turns, written, distilled FROM memory_sessions WHERE name = ?1";
    row(connection, sql, params![name], |row| {
        Ok(Session {
            id: row.get(0)?,
            turns: row.get(1)?,
            written: row.get(2)?,
            distilled: row.get(3)?,
        })
    })
}

/// Returns the row id of a turn: the session in the upper 32 bits, the number in the lower.
pub(crate) fn turn_id(session: i64, number: u32) -> i64 {
    session << 32 | i64::from(number)
}

/// Loads a turn with its raw bytes decompressed; `None` if it was forgotten or never existed.
pub(crate) fn stored(
    connection: &Connection,
    session: i64,
    number: u32,
) -> Result<Option<Turn>, MemoryError> {
    let sql = "SELECT opened(key), role, opened(speaker), ts, at_ms, form, opened(raw)
         FROM memory_turns WHERE id = ?1";
    let found = row(connection, sql, params![turn_id(session, number)], |row| {
        Ok(Turn {
            number,
            key: row.get(0)?,
            role: row.get(1)?,
            speaker: row.get(2)?,
            ts: row.get(3)?,
            at_ms: row.get(4)?,
            form: Form::stored(&row.get::<_, String>(5)?),
            raw: row.get(6)?,
        })
    })?;
    let unpacked = |turn: Turn| {
        let raw = unpack(turn.raw)?;
        Ok(Turn { raw, ..turn })
    };
    found.map(unpacked).transpose()
}

/// Shorter raw text is stored uncompressed.
const PACKED_FROM: usize = 1024;
/// The fastest zstd level already reduces JSON to a third.
const PACKING: i32 = 1;

/// Compresses raw bytes if that makes them smaller. The first byte of the result is 1 if they are
/// compressed, else 0.
pub(crate) fn pack(raw: &[u8]) -> Result<Vec<u8>, MemoryError> {
    if raw.len() >= PACKED_FROM {
        let packed = zstd::bulk::compress(raw, PACKING).map_err(damaged)?;
        if packed.len() < raw.len() {
            return Ok([&[1], &packed[..]].concat());
        }
    }
    Ok([&[0], raw].concat())
}

fn unpack(mut packed: Vec<u8>) -> Result<Vec<u8>, MemoryError> {
    match packed.first() {
        Some(0) => {
            packed.remove(0);
            Ok(packed)
        }
        Some(1) => zstd::stream::decode_all(&packed[1..]).map_err(damaged),
        _ => Err(MemoryError::Damaged(
            "a turn has an unknown encoding".into(),
        )),
    }
}
