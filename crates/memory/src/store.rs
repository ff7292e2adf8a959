//! The store: sessions and their turns, in the journal's file.

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

/// Connections kept for readers that come again.
const READERS_KEPT: usize = 4;

/// What was said and done, in one SQLite file. Several processes may have it open.
#[derive(Debug)]
pub struct Memory {
    pub(crate) folder: PathBuf,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Reader>>,
    seal: Seal,
    pub(crate) redactor: Redactor,
    pub(crate) encoder: Option<Arc<dyn Encoder>>,
}

/// A connection that only reads, and what it read last of every turn.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) connection: Connection,
    pub(crate) scope: Option<Scope>,
}

/// A session, as the store knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    pub(crate) id: i64,
    pub(crate) turns: u32,
    pub(crate) written: u32,
    pub(crate) distilled: u32,
}

/// A turn as it was stored.
#[derive(Debug, Clone)]
pub struct Turn {
    /// Its number in its session: 50 for T-50.
    pub number: u32,
    /// The name it came with, as JSON.
    pub key: Option<String>,
    /// Whose turn it was: `user`, `assistant`, …
    pub role: String,
    /// The speaker's own name.
    pub speaker: Option<String>,
    /// When, as it was told.
    pub ts: Option<String>,
    /// When, in milliseconds since 1970, or when it was stored.
    pub at_ms: i64,
    /// How to read the bytes.
    pub form: Form,
    /// Every byte of it.
    pub raw: Vec<u8>,
}

impl Memory {
    /// Opens the memory in a folder's journal, making it where there is none. Whatever people or indexes see of it
    /// goes through the redactor.
    pub fn open(folder: &Path, redactor: Redactor) -> Result<Self, MemoryError> {
        Self::open_with(folder, redactor, Seal::none())
    }

    /// The same, sealed: the file has no word of what is remembered in the clear. What was there before is sealed now,
    /// and from then on the memory opens with this key only.
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
            (ours, there) if ours == there => {}
            (Some(proof), None) => memory.seal_everything(&proof)?,
            _ => return Err(JournalError::Sealed.into()),
        }
        Ok(memory)
    }

    /// Stores a turn of a session, and makes it findable. Its other levels are written later, by
    /// [`Memory::write_levels`]. Tells its number.
    pub fn append(&self, session: &str, turn: &NewTurn<'_>) -> Result<u32, MemoryError> {
        self.write(|connection| {
            let mut batch = Batch::new(connection, &self.redactor);
            let appended = batch.append(session, turn)?;
            batch.finish()?;
            Ok(appended.number())
        })
    }

    /// Stores turns in this order, all or none. One whose key its session has already is left as it is.
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

    /// A turn, byte for byte.
    pub fn turn(&self, session: &str, number: u32) -> Result<Turn, MemoryError> {
        self.read(|reader| {
            let id = find(&reader.connection, session)?.id;
            stored(&reader.connection, id, number)?
                .ok_or_else(|| MemoryError::no_turn(session, &format!("T-{number}")))
        })
    }

    /// The number of the turn that came with this key.
    pub fn number_of(&self, session: &str, key: &str) -> Result<Option<u32>, MemoryError> {
        self.read(|reader| {
            let session = find(&reader.connection, session)?.id;
            number_of(&reader.connection, session, key)
        })
    }

    /// How many turns a session has; none where there is no such session.
    pub fn turns(&self, session: &str) -> Result<u32, MemoryError> {
        self.read(|reader| Ok(find_if_any(&reader.connection, session)?.map_or(0, |it| it.turns)))
    }

    /// The names of all sessions, the newest last.
    pub fn sessions(&self) -> Result<Vec<String>, MemoryError> {
        self.read(|reader| {
            let sql = "SELECT name FROM memory_sessions ORDER BY id";
            rows(&reader.connection, sql, [], |row| row.get(0))
        })
    }

    /// A text as people may see it.
    pub fn redacted<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
        self.redactor.text(text)
    }

    /// Writes, all or nothing.
    pub(crate) fn write<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let mut connection = self.writer();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if sealed_with(&transaction)? != self.seal.proof() {
            // Somebody has sealed it meanwhile: nothing is written beside that in the clear.
            return Err(JournalError::Sealed.into());
        }
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    pub(crate) fn writer(&self) -> MutexGuard<'_, Connection> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what was there at one moment, beside whoever writes.
    pub(crate) fn read<T>(
        &self,
        work: impl FnOnce(&mut Reader) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let kept = || self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = kept().pop();
        let mut reader = match taken {
            Some(reader) => reader,
            None => Reader {
                connection: TABLES.connect(&self.folder, &self.seal)?,
                scope: None,
            },
        };
        reader.connection.execute_batch("BEGIN")?;
        let done = work(&mut reader);
        reader.connection.execute_batch("COMMIT")?;
        let mut kept = kept();
        if kept.len() < READERS_KEPT {
            kept.push(reader);
        }
        done
    }
}

/// What became of a turn that was to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// It is stored, under this number.
    New(u32),
    /// It had been stored before, under this number.
    Before(u32),
}

impl Appended {
    /// Its number.
    pub fn number(self) -> u32 {
        let (Self::New(number) | Self::Before(number)) = self;
        number
    }
}

/// What shows with which key the memory is sealed, where it is.
fn sealed_with(connection: &Connection) -> Result<Option<Vec<u8>>, MemoryError> {
    row(connection, "SELECT proof FROM memory_seal", [], |row| {
        row.get(0)
    })
}

/// The rows of a cached query.
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

/// The first row of a cached query.
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

/// The bytes in a column of a row.
pub(crate) fn blob<'r>(row: &'r Row<'_>, column: usize) -> Result<&'r [u8], MemoryError> {
    row.get_ref(column)?.as_blob().map_err(damaged)
}

fn damaged(error: impl std::fmt::Display) -> MemoryError {
    MemoryError::Damaged(error.to_string())
}

/// The number of the turn of a session that came with this key.
pub(crate) fn number_of(
    connection: &Connection,
    session: i64,
    key: &str,
) -> Result<Option<u32>, MemoryError> {
    let sql = "SELECT id FROM memory_turns WHERE session = ?1 AND key = sealed(?2)";
    let id: Option<i64> = row(connection, sql, params![session, key], |row| row.get(0))?;
    Ok(id.map(|id| id as u32))
}

/// The session of a name.
pub(crate) fn find(connection: &Connection, name: &str) -> Result<Session, MemoryError> {
    find_if_any(connection, name)?.ok_or_else(|| MemoryError::NoSession(name.to_owned()))
}

/// Makes the session of a name where there is none.
pub(crate) fn create_session(connection: &Connection, name: &str) -> Result<(), MemoryError> {
    let sql = "INSERT OR IGNORE INTO memory_sessions (name, created_ms) VALUES (?1, ?2)";
    execute(connection, sql, params![name, now_ms()])?;
    Ok(())
}

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

pub(crate) fn turn_id(session: i64, number: u32) -> i64 {
    session << 32 | i64::from(number)
}

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

/// Raw text is packed where that pays.
const PACKED_FROM: usize = 1024;
/// The fastest level is three times smaller than nothing for JSON.
const PACKING: i32 = 1;

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
        _ => Err(MemoryError::Damaged("a turn is of no known kind".into())),
    }
}
