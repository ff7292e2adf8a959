//! The codec that encrypts columns in the tables of other crates.
//!
//! In SQL, `encrypt(x)` encrypts a text or bytes, `decrypt(x)` decrypts them, and `keyed_digest(x)`
//! returns a hash by which a value can be looked up. Without a key each of them returns `x`.
//!
//! Encryption is deterministic, so that stored values can be compared: the nonce is a keyed hash of
//! the value. A reader of the file without the key learns which values are equal and how long they
//! are.

use std::sync::Arc;

use selvedge_database::{ColumnCodec, ColumnCodecError, DatabaseValue, ValueRef};

use crate::JournalError;
use crate::crypto::{Cipher, KeyedHash};

/// The first byte of an encrypted value tells whether the value was bytes or text.
const TAG_BYTES: u8 = 2;
const TAG_TEXT: u8 = 3;
/// The size of a mark in bytes, which makes a collision practically impossible.
const MARK_BYTES: usize = 16;

/// The keys of encrypted columns, or no key if columns are stored in plain text.
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
}

impl ColumnCodec for ColumnEncryption {
    fn encrypt(&self, value: ValueRef<'_>) -> Result<Option<DatabaseValue>, ColumnCodecError> {
        let encrypted = match (&self.0, value) {
            (Some(keys), ValueRef::Text(bytes)) => keys.encrypt(TAG_TEXT, bytes)?,
            (Some(keys), ValueRef::Blob(bytes)) => keys.encrypt(TAG_BYTES, bytes)?,
            _ => return Ok(None),
        };
        Ok(Some(DatabaseValue::Blob(encrypted)))
    }

    fn decrypt(&self, value: ValueRef<'_>) -> Result<Option<DatabaseValue>, ColumnCodecError> {
        let (keys, tag, encrypted) = match (&self.0, value) {
            (Some(keys), ValueRef::Blob([tag @ (TAG_BYTES | TAG_TEXT), encrypted @ ..])) => {
                (keys, *tag, encrypted)
            }
            _ => return Ok(None),
        };
        let bytes = keys.cipher.decrypt(encrypted)?;
        Ok(Some(match tag {
            TAG_BYTES => DatabaseValue::Blob(bytes),
            _ => {
                let text = String::from_utf8(bytes).map_err(|_| JournalError::WrongKey)?;
                DatabaseValue::Text(text)
            }
        }))
    }

    fn keyed_digest(&self, value: ValueRef<'_>) -> Option<DatabaseValue> {
        let mark = self.0.as_ref()?.lookup_mark(value.as_bytes()?);
        Some(DatabaseValue::Blob(mark.to_vec()))
    }
}

impl ColumnKeys {
    fn encrypt(&self, tag: u8, bytes: &[u8]) -> Result<Vec<u8>, JournalError> {
        let nonce = truncate_hash(self.nonce_hash.hash(&[&[tag], bytes]));
        let encrypted = self.cipher.encrypt(&nonce, bytes)?;
        Ok([&[tag], &encrypted[..]].concat())
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
