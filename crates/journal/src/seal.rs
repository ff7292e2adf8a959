//! Sealing for other crates' tables: SQL functions of a connection, so that every statement says what it seals.
//!
//! `sealed(x)` is what to store of a text or bytes, `opened(x)` what it was, and `marked(x)` a name for it that tells
//! nothing and can be looked up. Without a key each of them is `x` itself.
//!
//! The same value is sealed alike each time, so that it can be compared where it is stored: its nonce is a keyed
//! digest of it. Whoever has only the file sees which values are equal, and about how long they are.

use std::sync::Arc;

use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSql, ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Error};
use sha2::{Digest, Sha256};

use crate::JournalError;

/// The first byte of what was sealed: bytes, or text.
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const NONCE: usize = 24;
/// Bytes of a name: none is ever guessed, and no two are alike.
const MARK: usize = 16;

/// Seals with a key, or not at all.
#[derive(Clone)]
pub struct Seal(Option<Arc<Keys>>);

struct Keys {
    cipher: XChaCha20Poly1305,
    nonces: [u8; 32],
    marks: [u8; 32],
}

impl Seal {
    /// Everything stays as it is.
    pub const fn none() -> Self {
        Self(None)
    }

    /// With this key, from which those in use are derived.
    pub fn new(key: &[u8; 32]) -> Self {
        let derived = |what: &str| -> [u8; 32] {
            Sha256::new()
                .chain_update(what)
                .chain_update(key)
                .finalize()
                .into()
        };
        let cipher = XChaCha20Poly1305::new(&derived("tables of others: cipher").into());
        let (nonces, marks) = (
            derived("tables of others: nonces"),
            derived("tables of others: marks"),
        );
        Self(Some(Arc::new(Keys {
            cipher,
            nonces,
            marks,
        })))
    }

    /// What shows that a file was sealed with this key; `None` where there is none.
    pub fn proof(&self) -> Option<Vec<u8>> {
        self.0.as_ref().map(|keys| keys.mark(b"this key").to_vec())
    }

    /// Gives a connection the functions.
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

/// What a function comes to.
enum Outcome {
    /// What it was given, uncopied.
    Itself,
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
    let closed = || Error::UserFunctionError(Box::new(JournalError::Sealed));
    let (nonce, sealed) = sealed.split_at_checked(NONCE).ok_or_else(closed)?;
    let bytes = keys
        .cipher
        .decrypt(XNonce::from_slice(nonce), sealed)
        .map_err(|_| closed())?;
    let value = match kind {
        BYTES => Value::Blob(bytes),
        _ => Value::Text(String::from_utf8(bytes).map_err(|_| closed())?),
    };
    Ok(Outcome::Other(value))
}

impl Keys {
    fn seal(&self, kind: u8, bytes: &[u8]) -> rusqlite::Result<Outcome> {
        let digest = Sha256::new()
            .chain_update(self.nonces)
            .chain_update([kind])
            .chain_update(bytes)
            .finalize();
        let nonce = XNonce::from_slice(&digest[..NONCE]);
        let failed = |_| Error::UserFunctionError("a value cannot be sealed".into());
        let sealed = self.cipher.encrypt(nonce, bytes).map_err(failed)?;
        Ok(Outcome::Other(Value::Blob(
            [&[kind], &nonce[..], &sealed].concat(),
        )))
    }

    fn mark(&self, bytes: &[u8]) -> [u8; MARK] {
        let digest = Sha256::new()
            .chain_update(self.marks)
            .chain_update(bytes)
            .finalize();
        let mut mark = [0; MARK];
        mark.copy_from_slice(&digest[..MARK]);
        mark
    }
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
