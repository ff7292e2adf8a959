//! SQL functions that encrypt columns in the tables of other crates.
//!
//! `sealed(x)` encrypts a text or bytes, `opened(x)` decrypts them, and `marked(x)` returns a keyed
//! hash by which a value can be looked up. Without a key each of them returns `x`.
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
const BYTES: u8 = 2;
const TEXT: u8 = 3;
/// The size of a mark in bytes, which makes a collision practically impossible.
const MARK: usize = 16;

/// The keys of the SQL functions, or no key if columns are stored in plain text.
#[derive(Clone)]
pub struct Seal(Option<Arc<Keys>>);

struct Keys {
    cipher: Cipher,
    nonces: KeyedHash,
    marks: KeyedHash,
}

impl Seal {
    /// Stores columns in plain text.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Encrypts columns with keys that are derived from `key`.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Some(Arc::new(Keys {
            cipher: Cipher::new(key, "sealed values: cipher"),
            nonces: KeyedHash::new(key, "sealed values: nonces"),
            marks: KeyedHash::new(key, "sealed values: marks"),
        })))
    }

    /// Returns a value that identifies the key, or `None` if there is no key.
    pub fn proof(&self) -> Option<Vec<u8>> {
        self.0.as_ref().map(|keys| keys.mark(b"this key").to_vec())
    }

    /// Registers the SQL functions on a connection.
    pub(crate) fn attach(&self, connection: &Connection) -> rusqlite::Result<()> {
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
        let keys = self.0.clone();
        connection.create_scalar_function("sealed", 1, flags, move |context| {
            match (&keys, context.get_raw(0)) {
                (Some(keys), ValueRef::Text(bytes)) => keys.seal(TEXT, bytes),
                (Some(keys), ValueRef::Blob(bytes)) => keys.seal(BYTES, bytes),
                _ => Ok(Outcome::Itself),
            }
        })?;
        let keys = self.0.clone();
        connection.create_scalar_function("opened", 1, flags, move |context| {
            opened(keys.as_deref(), context)
        })?;
        let keys = self.0.clone();
        connection.create_scalar_function("marked", 1, flags, move |context| {
            match (&keys, context.get_raw(0)) {
                (Some(keys), ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => {
                    Ok(Outcome::Other(Value::Blob(keys.mark(bytes).to_vec())))
                }
                _ => Ok(Outcome::Itself),
            }
        })
    }
}

/// The result of an SQL function.
enum Outcome {
    /// The argument, which is not copied.
    Itself,
    /// A computed value.
    Other(Value),
}

impl ToSql for Outcome {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Itself => Ok(ToSqlOutput::Arg(0)),
            Self::Other(value) => value.to_sql(),
        }
    }
}

fn opened(keys: Option<&Keys>, context: &Context<'_>) -> rusqlite::Result<Outcome> {
    let (keys, kind, sealed) = match (keys, context.get_raw(0)) {
        (Some(keys), ValueRef::Blob([kind @ (BYTES | TEXT), sealed @ ..])) => (keys, *kind, sealed),
        _ => return Ok(Outcome::Itself),
    };
    let failed = |error| Error::UserFunctionError(Box::new(error));
    let bytes = keys.cipher.decrypt(sealed).map_err(failed)?;
    let value = match kind {
        BYTES => Value::Blob(bytes),
        _ => Value::Text(String::from_utf8(bytes).map_err(|_| failed(JournalError::Sealed))?),
    };
    Ok(Outcome::Other(value))
}

impl Keys {
    fn seal(&self, kind: u8, bytes: &[u8]) -> rusqlite::Result<Outcome> {
        let nonce = leading(self.nonces.hash(&[&[kind], bytes]));
        let sealed = self
            .cipher
            .encrypt(&nonce, bytes)
            .map_err(|error| Error::UserFunctionError(Box::new(error)))?;
        Ok(Outcome::Other(Value::Blob([&[kind], &sealed[..]].concat())))
    }

    fn mark(&self, bytes: &[u8]) -> [u8; MARK] {
        leading(self.marks.hash(&[bytes]))
    }
}

/// Returns the first `N` bytes of a hash.
fn leading<const N: usize>(hash: [u8; 32]) -> [u8; N] {
    const { assert!(N <= 32) }
    std::array::from_fn(|index| hash[index])
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "Seal(key)"
        } else {
            "Seal(none)"
        })
    }
}
