//! Payloads: small ones where they belong, large ones once by their content.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, params};
use sha2::{Digest, Sha256};

use crate::JournalError;

/// Payloads up to this many bytes stand in their row.
const INLINE: usize = 2048;
/// The first byte of a payload's column: what follows is the payload, or its hash.
const HERE: u8 = 0;
const ELSEWHERE: u8 = 1;
/// The fastest level is three times smaller than nothing for JSON.
const LEVEL: i32 = 1;

/// What to put in a payload's column. A large payload is stored beside it, once.
pub(crate) fn put(connection: &Connection, bytes: &[u8]) -> Result<Vec<u8>, JournalError> {
    if bytes.len() <= INLINE {
        return Ok([&[HERE], bytes].concat());
    }
    let hash: [u8; 32] = Sha256::digest(bytes).into();
    let there = connection.prepare_cached("SELECT 1 FROM blobs WHERE hash = ?1")?.exists(params![hash])?;
    if !there {
        let packed = zstd::bulk::compress(bytes, LEVEL).map_err(|error| JournalError::Damaged(error.to_string()))?;
        connection.prepare_cached("INSERT OR IGNORE INTO blobs VALUES (?1, ?2)")?.execute(params![hash, packed])?;
    }
    Ok([&[ELSEWHERE], &hash[..]].concat())
}

/// The payload of a column.
pub(crate) fn get(connection: &Connection, column: ValueRef<'_>) -> Result<Option<Vec<u8>>, JournalError> {
    let column = column.as_blob_or_null().map_err(|error| JournalError::Damaged(error.to_string()))?;
    match column {
        None => Ok(None),
        Some([HERE, bytes @ ..]) => Ok(Some(bytes.to_vec())),
        Some([ELSEWHERE, hash @ ..]) => {
            let mut read = connection.prepare_cached("SELECT packed FROM blobs WHERE hash = ?1")?;
            let packed: Option<Vec<u8>> = read.query_row(params![hash], |row| row.get(0)).optional()?;
            let packed = packed.ok_or_else(|| JournalError::Damaged("a payload is missing".into()))?;
            let bytes =
                zstd::stream::decode_all(&packed[..]).map_err(|error| JournalError::Damaged(error.to_string()))?;
            Ok(Some(bytes))
        }
        Some(_) => Err(JournalError::Damaged("a payload is of no known kind".into())),
    }
}
