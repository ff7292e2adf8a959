//! SQL functions that encrypt columns in the tables of other crates.
//!
//! `encrypt(x)` encrypts a text or bytes, `decrypt(x)` decrypts them, and `keyed_digest(x)` returns
//! a hash by which a value can be looked up. Without a key each of them returns `x`.
//!
//! Encryption is deterministic, so that stored values can be compared: the nonce is a keyed hash of
//! the value. A reader of the file without the key learns which values are equal and how long they
//! are.

use std::sync::Arc;

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSql, ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Error};

use crate::JournalError;
use crate::crypto::{Cipher, KeyedHash};

/// The first byte of an encrypted value tells whether the value was bytes or text.
const TAG_BYTES: u8 = 2;
const TAG_TEXT: u8 = 3;
/// The size of a mark in bytes, which makes a collision practically impossible.
const MARK_BYTES: usize = 16;

/// The keys of the SQL functions, or no key if columns are stored in plain text.
#[derive(Clone)]
pub struct ColumnEncryption(Option<Arc<ColumnKeys>>);

struct ColumnKeys {
    cipher: Cipher,
    nonce_hash: KeyedHash,
    digest_hash: KeyedHash,
}

impl ColumnEncryption {
    /// Stores columns in plain text.
    pub const fn disabled() -> Self {
        Self(None)
    }

    /// Encrypts columns with keys that are derived from `key`.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Some(Arc::new(ColumnKeys {
            cipher: Cipher::new(key, "sealed values: cipher"),
            nonce_hash: KeyedHash::new(key, "sealed values: nonces"),
            digest_hash: KeyedHash::new(key, "sealed values: marks"),
        })))
    }

    /// Returns a value that identifies the key, or `None` if there is no key.
    pub fn key_fingerprint(&self) -> Option<Vec<u8>> {
        self.0
            .as_ref()
            .map(|keys| keys.lookup_mark(b"this key").to_vec())
    }

    /// Registers the SQL functions on a connection.
    pub(crate) fn register_functions(&self, connection: &Connection) -> rusqlite::Result<()> {
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
        let keys = self.0.clone();
        connection.create_scalar_function("encrypt", 1, flags, move |context| {
            match (&keys, context.get_raw(0)) {
                (Some(keys), ValueRef::Text(bytes)) => keys.encrypt(TAG_TEXT, bytes),
                (Some(keys), ValueRef::Blob(bytes)) => keys.encrypt(TAG_BYTES, bytes),
                _ => Ok(SqlFunctionResult::Argument),
            }
        })?;
        let keys = self.0.clone();
        connection.create_scalar_function("decrypt", 1, flags, move |context| {
            decrypt_argument(keys.as_deref(), context)
        })?;
        let keys = self.0.clone();
        connection.create_scalar_function("keyed_digest", 1, flags, move |context| {
            match (&keys, context.get_raw(0)) {
                (Some(keys), ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => Ok(
                    SqlFunctionResult::Computed(Value::Blob(keys.lookup_mark(bytes).to_vec())),
                ),
                _ => Ok(SqlFunctionResult::Argument),
            }
        })
    }
}

/// The result of an SQL function.
enum SqlFunctionResult {
    /// The argument, which is not copied.
    Argument,
    /// A computed value.
    Computed(Value),
}

impl ToSql for SqlFunctionResult {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Argument => Ok(ToSqlOutput::Arg(0)),
            Self::Computed(value) => value.to_sql(),
        }
    }
}

fn decrypt_argument(
    keys: Option<&ColumnKeys>,
    context: &Context<'_>,
) -> rusqlite::Result<SqlFunctionResult> {
    let (keys, kind, encrypted) = match (keys, context.get_raw(0)) {
        (Some(keys), ValueRef::Blob([kind @ (TAG_BYTES | TAG_TEXT), encrypted @ ..])) => {
            (keys, *kind, encrypted)
        }
        _ => return Ok(SqlFunctionResult::Argument),
    };
    let failed = |error| Error::UserFunctionError(Box::new(error));
    let bytes = keys.cipher.decrypt(encrypted).map_err(failed)?;
    let value = match kind {
        TAG_BYTES => Value::Blob(bytes),
        _ => Value::Text(String::from_utf8(bytes).map_err(|_| failed(JournalError::WrongKey))?),
    };
    Ok(SqlFunctionResult::Computed(value))
}

impl ColumnKeys {
    fn encrypt(&self, kind: u8, bytes: &[u8]) -> rusqlite::Result<SqlFunctionResult> {
        let nonce = truncate_hash(self.nonce_hash.hash(&[&[kind], bytes]));
        let encrypted = self
            .cipher
            .encrypt(&nonce, bytes)
            .map_err(|error| Error::UserFunctionError(Box::new(error)))?;
        Ok(SqlFunctionResult::Computed(Value::Blob(
            [&[kind], &encrypted[..]].concat(),
        )))
    }

    fn lookup_mark(&self, bytes: &[u8]) -> [u8; MARK_BYTES] {
        truncate_hash(self.digest_hash.hash(&[bytes]))
    }
}

/// Returns the first `N` bytes of a hash.
fn truncate_hash<const N: usize>(hash: [u8; 32]) -> [u8; N] {
    const { assert!(N <= 32) }
    std::array::from_fn(|index| hash[index])
}

impl std::fmt::Debug for ColumnEncryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "ColumnEncryption(key)"
        } else {
            "ColumnEncryption(none)"
        })
    }
}
