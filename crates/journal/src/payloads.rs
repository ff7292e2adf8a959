//! Payloads: the contents of rows, such as sources, arguments and results. A small payload is
//! stored in its row. A large payload is stored once in the table `blobs` under its hash. With a
//! key, payloads are encrypted.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::JournalError;
use crate::connection::{execute, first};
use crate::crypto::{Cipher, KeyedHash, NONCE};

/// Payloads up to this size are stored in their row.
const MAX_INLINE: usize = 2048;
/// The same limit for a payload that many rows share. It is lower, because repeating the payload in
/// each row would make rows too large for a page.
const MAX_SHARED_INLINE: usize = 64;
/// The first byte of a payload's column tells what follows: the payload, the hash of its blob, or
/// the compressed payload.
const INLINE: u8 = 0;
const BLOB: u8 = 2;
const PACKED: u8 = 4;
/// Added to the first byte if the payload is encrypted.
const ENCRYPTED: u8 = 1;
/// The compression level of zstd: the fastest one, which makes JSON about three times smaller.
const LEVEL: i32 = 1;

/// Encodes payloads into columns and decodes them.
pub(crate) struct Payloads {
    key: Option<Key>,
}

struct Key {
    cipher: Cipher,
    /// Computes the hashes of blobs. A plain hash would confirm a guess of the content.
    names: KeyedHash,
}

impl Payloads {
    /// Encrypts payloads if `key` is given.
    pub(crate) fn new(key: Option<[u8; 32]>) -> Self {
        let key = key.map(|key| Key {
            cipher: Cipher::new(&key, "payloads: cipher"),
            names: KeyedHash::new(&key, "payloads: names"),
        });
        Self { key }
    }

    /// Returns the value of a payload's column. Stores a large payload in `blobs` if it is not
    /// there.
    pub(crate) fn put(
        &self,
        connection: &Connection,
        bytes: &[u8],
    ) -> Result<Vec<u8>, JournalError> {
        self.put_above(MAX_INLINE, connection, bytes)
    }

    /// Like [`Payloads::put`], for a payload that many rows share.
    pub(crate) fn put_shared(
        &self,
        connection: &Connection,
        bytes: &[u8],
    ) -> Result<Vec<u8>, JournalError> {
        self.put_above(MAX_SHARED_INLINE, connection, bytes)
    }

    fn put_above(
        &self,
        max_inline: usize,
        connection: &Connection,
        bytes: &[u8],
    ) -> Result<Vec<u8>, JournalError> {
        if bytes.len() <= max_inline {
            return self.column(INLINE, bytes);
        }
        let hash: [u8; 32] = match &self.key {
            None => Sha256::digest(bytes).into(),
            Some(key) => key.names.hash(&[bytes]),
        };
        let exists = connection
            .prepare_cached("SELECT 1 FROM blobs WHERE hash = ?1")?
            .exists(params![hash])?;
        if !exists {
            let packed = self.seal(pack(bytes)?)?;
            let sql = "INSERT OR IGNORE INTO blobs VALUES (?1, ?2)";
            execute(connection, sql, params![hash, packed])?;
        }
        Ok([&[BLOB | self.flag()], &hash[..]].concat())
    }

    /// Returns the value of a payload's column without using `blobs`, for a large payload that is
    /// soon replaced.
    pub(crate) fn put_here(&self, bytes: &[u8]) -> Result<Vec<u8>, JournalError> {
        self.column(PACKED, &pack(bytes)?)
    }

    fn column(&self, kind: u8, bytes: &[u8]) -> Result<Vec<u8>, JournalError> {
        Ok([&[kind | self.flag()], &self.seal(bytes.to_vec())?[..]].concat())
    }

    fn flag(&self) -> u8 {
        if self.key.is_some() { ENCRYPTED } else { 0 }
    }

    /// Encrypts the bytes if there is a key.
    fn seal(&self, bytes: Vec<u8>) -> Result<Vec<u8>, JournalError> {
        let Some(key) = &self.key else {
            return Ok(bytes);
        };
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce)
            .map_err(|error| JournalError::Damaged(format!("cannot get random bytes: {error}")))?;
        key.cipher.encrypt(&nonce, &bytes)
    }

    /// Like [`Payloads::put`], for a value that is stored as JSON.
    pub(crate) fn put_json(
        &self,
        connection: &Connection,
        value: &(impl Serialize + ?Sized),
    ) -> Result<Vec<u8>, JournalError> {
        self.put(connection, &serde_json::to_vec(value)?)
    }

    /// Returns the payload of a column. Fails if the column is null.
    pub(crate) fn bytes(
        &self,
        connection: &Connection,
        column: ValueRef<'_>,
    ) -> Result<Vec<u8>, JournalError> {
        self.get(connection, column)?
            .ok_or_else(|| JournalError::Damaged("a payload is missing".into()))
    }

    /// Like [`Payloads::bytes`], decoded as UTF-8.
    pub(crate) fn text(
        &self,
        connection: &Connection,
        column: ValueRef<'_>,
    ) -> Result<String, JournalError> {
        Ok(String::from_utf8(self.bytes(connection, column)?)?)
    }

    /// Like [`Payloads::bytes`], decoded from JSON.
    pub(crate) fn json<T: DeserializeOwned>(
        &self,
        connection: &Connection,
        column: ValueRef<'_>,
    ) -> Result<T, JournalError> {
        Ok(serde_json::from_slice(&self.bytes(connection, column)?)?)
    }

    /// Like [`Payloads::get`], decoded from JSON.
    pub(crate) fn get_json<T: DeserializeOwned>(
        &self,
        connection: &Connection,
        column: ValueRef<'_>,
    ) -> Result<Option<T>, JournalError> {
        let bytes = self.get(connection, column)?;
        Ok(bytes
            .map(|bytes| serde_json::from_slice(&bytes))
            .transpose()?)
    }

    /// Returns the payload of a column, or `None` if the column is null.
    pub(crate) fn get(
        &self,
        connection: &Connection,
        column: ValueRef<'_>,
    ) -> Result<Option<Vec<u8>>, JournalError> {
        let column = column
            .as_bytes_or_null()
            .map_err(|error| JournalError::Damaged(error.to_string()))?;
        let Some(column) = column else {
            return Ok(None);
        };
        let damaged = |what: &str| JournalError::Damaged(what.to_owned());
        let (kind, rest) = column
            .split_first()
            .ok_or_else(|| damaged("a payload is empty"))?;
        let open = |bytes: Vec<u8>| match (kind & ENCRYPTED, &self.key) {
            (0, _) => Ok(bytes),
            (_, Some(key)) => key.cipher.decrypt(&bytes),
            (_, None) => Err(JournalError::Sealed),
        };
        match kind & !ENCRYPTED {
            INLINE => open(rest.to_vec()).map(Some),
            PACKED => unpack(&open(rest.to_vec())?).map(Some),
            BLOB => {
                let sql = "SELECT packed FROM blobs WHERE hash = ?1";
                let packed = first(connection, sql, params![rest])?
                    .ok_or_else(|| damaged("a payload is missing"))?;
                unpack(&open(packed)?).map(Some)
            }
            _ => Err(damaged("a payload has an unknown kind")),
        }
    }
}

/// Returns the SQL that selects the hashes of the blobs that a column refers to.
pub(crate) fn select_blobs(table: &str, column: &str) -> String {
    let encrypted = BLOB | ENCRYPTED;
    format!(
        "SELECT substr({column}, 2) FROM {table}
         WHERE substr({column}, 1, 1) IN (x'{BLOB:02x}', x'{encrypted:02x}')"
    )
}

/// Compresses the bytes, with a checksum that detects corruption.
fn pack(bytes: &[u8]) -> Result<Vec<u8>, JournalError> {
    let packed = || -> std::io::Result<Vec<u8>> {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), LEVEL)?;
        encoder.include_checksum(true)?;
        encoder.set_pledged_src_size(Some(bytes.len() as u64))?;
        std::io::Write::write_all(&mut encoder, bytes)?;
        encoder.finish()
    };
    packed().map_err(|error| JournalError::Damaged(error.to_string()))
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>, JournalError> {
    zstd::stream::decode_all(packed).map_err(|error| JournalError::Damaged(error.to_string()))
}

impl std::fmt::Debug for Payloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.key.is_some() {
            "Payloads(sealed)"
        } else {
            "Payloads(plain)"
        })
    }
}
