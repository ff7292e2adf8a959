//! Payloads: the contents of rows, such as sources, arguments and results. A small payload is
//! stored in its row. A large payload is stored once in the table `blobs` under its hash. With a
//! key, payloads are encrypted.

use selvedge_database::{Connection, ValueRef, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::JournalError;
use crate::connection::query_first;
use crate::crypto::{Cipher, KeyedHash, NONCE_BYTES};

/// Payloads up to this size are stored in their row.
const MAX_INLINE_BYTES: usize = 2048;
/// The same limit for a payload that many rows share. It is lower, because repeating the payload in
/// each row would make rows too large for a page.
const MAX_SHARED_INLINE_BYTES: usize = 64;
/// The first byte of a payload's column tells what follows: the payload, the hash of its blob, or
/// the compressed payload.
const KIND_INLINE: u8 = 0;
const KIND_BLOB: u8 = 2;
const KIND_COMPRESSED: u8 = 4;
/// Added to the first byte if the payload is encrypted.
const ENCRYPTED_FLAG: u8 = 1;
/// The compression level of zstd: the fastest one, which makes JSON about three times smaller.
const ZSTD_LEVEL: i32 = 1;

/// Encodes payloads into columns and decodes them.
pub(crate) struct Payloads {
    key: Option<PayloadKeys>,
}

struct PayloadKeys {
    cipher: Cipher,
    /// Computes the hashes of blobs. A plain hash would confirm a guess of the content.
    blob_hash: KeyedHash,
}

impl Payloads {
    /// Encrypts payloads if `key` is given.
    pub(crate) fn new(key: Option<[u8; 32]>) -> Self {
        let key = key.map(|key| PayloadKeys {
            cipher: Cipher::new(&key, "payloads: cipher"),
            blob_hash: KeyedHash::new(&key, "payloads: names"),
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
        self.put_with_limit(MAX_INLINE_BYTES, connection, bytes)
    }

    /// Like [`Payloads::put`], for a payload that many rows share.
    pub(crate) fn put_shared(
        &self,
        connection: &Connection,
        bytes: &[u8],
    ) -> Result<Vec<u8>, JournalError> {
        self.put_with_limit(MAX_SHARED_INLINE_BYTES, connection, bytes)
    }

    fn put_with_limit(
        &self,
        max_inline: usize,
        connection: &Connection,
        bytes: &[u8],
    ) -> Result<Vec<u8>, JournalError> {
        if bytes.len() <= max_inline {
            return self.encode_column(KIND_INLINE, bytes);
        }
        let hash: [u8; 32] = match &self.key {
            None => Sha256::digest(bytes).into(),
            Some(key) => key.blob_hash.hash(&[bytes]),
        };
        // A blob that exists must not be removed before the row that refers to it is stored.
        let lock = connection.shared_row_lock();
        let exists = format!("SELECT 1 FROM blobs WHERE hash = ?1{lock}");
        while !connection.prepare_cached(&exists)?.exists(params![hash])? {
            let packed = self.encrypt(compress(bytes)?)?;
            let sql = "INSERT INTO blobs (hash, packed) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
            if connection.execute(sql, params![hash, packed])? > 0 {
                break;
            }
            // Another transaction has stored it meanwhile.
        }
        Ok([&[KIND_BLOB | self.encryption_flag()], &hash[..]].concat())
    }

    /// Returns the value of a payload's column without using `blobs`, for a large payload that is
    /// soon replaced.
    pub(crate) fn put_in_row(&self, bytes: &[u8]) -> Result<Vec<u8>, JournalError> {
        self.encode_column(KIND_COMPRESSED, &compress(bytes)?)
    }

    fn encode_column(&self, kind: u8, bytes: &[u8]) -> Result<Vec<u8>, JournalError> {
        Ok([
            &[kind | self.encryption_flag()],
            &self.encrypt(bytes.to_vec())?[..],
        ]
        .concat())
    }

    fn encryption_flag(&self) -> u8 {
        if self.key.is_some() {
            ENCRYPTED_FLAG
        } else {
            0
        }
    }

    /// Encrypts the bytes if there is a key.
    fn encrypt(&self, bytes: Vec<u8>) -> Result<Vec<u8>, JournalError> {
        let Some(key) = &self.key else {
            return Ok(bytes);
        };
        let mut nonce = [0; NONCE_BYTES];
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
    pub(crate) fn require_bytes(
        &self,
        connection: &Connection,
        column: ValueRef<'_>,
    ) -> Result<Vec<u8>, JournalError> {
        self.get(connection, column)?
            .ok_or_else(|| JournalError::Damaged("a payload is missing".into()))
    }

    /// Like [`Payloads::require_bytes`], decoded as UTF-8.
    pub(crate) fn require_text(
        &self,
        connection: &Connection,
        column: ValueRef<'_>,
    ) -> Result<String, JournalError> {
        Ok(String::from_utf8(self.require_bytes(connection, column)?)?)
    }

    /// Like [`Payloads::require_bytes`], decoded from JSON.
    pub(crate) fn require_json<T: DeserializeOwned>(
        &self,
        connection: &Connection,
        column: ValueRef<'_>,
    ) -> Result<T, JournalError> {
        Ok(serde_json::from_slice(
            &self.require_bytes(connection, column)?,
        )?)
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

    /// Like [`Payloads::require_json`], for a column whose blob is in the same row
    /// ([`select_blob_of`]).
    pub(crate) fn require_joined_json<T: DeserializeOwned>(
        &self,
        column: ValueRef<'_>,
        blob: ValueRef<'_>,
    ) -> Result<T, JournalError> {
        let packed = blob.as_bytes().map(<[u8]>::to_vec);
        let bytes = self.decode(column, |_| Ok(packed))?;
        let bytes = bytes.ok_or_else(|| JournalError::Damaged("a payload is missing".into()))?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Returns the payload of a column, or `None` if the column is null.
    pub(crate) fn get(
        &self,
        connection: &Connection,
        column: ValueRef<'_>,
    ) -> Result<Option<Vec<u8>>, JournalError> {
        self.decode(column, |hash| {
            let sql = "SELECT packed FROM blobs WHERE hash = ?1";
            query_first(connection, sql, params![hash])
        })
    }

    /// Returns the payload of a column, or `None` if the column is null. `read_blob` returns the
    /// blob with a hash.
    fn decode(
        &self,
        column: ValueRef<'_>,
        read_blob: impl FnOnce(&[u8]) -> Result<Option<Vec<u8>>, JournalError>,
    ) -> Result<Option<Vec<u8>>, JournalError> {
        if column == ValueRef::Null {
            return Ok(None);
        }
        let damaged = |what: &str| JournalError::Damaged(what.to_owned());
        let column = column
            .as_bytes()
            .ok_or_else(|| damaged("a payload has another type than bytes"))?;
        let (kind, rest) = column
            .split_first()
            .ok_or_else(|| damaged("a payload is empty"))?;
        let open = |bytes: Vec<u8>| match (kind & ENCRYPTED_FLAG, &self.key) {
            (0, _) => Ok(bytes),
            (_, Some(key)) => key.cipher.decrypt(&bytes),
            (_, None) => Err(JournalError::WrongKey),
        };
        match kind & !ENCRYPTED_FLAG {
            KIND_INLINE => open(rest.to_vec()).map(Some),
            KIND_COMPRESSED => decompress(&open(rest.to_vec())?).map(Some),
            KIND_BLOB => {
                let packed = read_blob(rest)?.ok_or_else(|| damaged("a payload is missing"))?;
                decompress(&open(packed)?).map(Some)
            }
            _ => Err(damaged("a payload has an unknown kind")),
        }
    }
}

/// Returns the SQL that selects the hashes of the blobs that a column refers to.
pub(crate) fn select_blob_hashes(table: &str, column: &str) -> String {
    let is_blob = is_blob(column);
    format!("SELECT substr({column}, 2) AS hash FROM {table} WHERE {is_blob}")
}

/// Returns the SQL of the blob that a column of the same row refers to; null if it refers to none.
/// With it, reading many rows takes one query.
pub(crate) fn select_blob_of(column: &str) -> String {
    let is_blob = is_blob(column);
    format!(
        "CASE WHEN {is_blob} THEN (SELECT packed FROM blobs WHERE hash = substr({column}, 2)) END"
    )
}

/// Returns the SQL condition that a column refers to a blob.
fn is_blob(column: &str) -> String {
    let encrypted = KIND_BLOB | ENCRYPTED_FLAG;
    format!("substr({column}, 1, 1) IN (x'{KIND_BLOB:02x}', x'{encrypted:02x}')")
}

/// Compresses the bytes, with a checksum that detects corruption.
fn compress(bytes: &[u8]) -> Result<Vec<u8>, JournalError> {
    let packed = || -> std::io::Result<Vec<u8>> {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
        encoder.include_checksum(true)?;
        encoder.set_pledged_src_size(Some(bytes.len() as u64))?;
        std::io::Write::write_all(&mut encoder, bytes)?;
        encoder.finish()
    };
    packed().map_err(|error| JournalError::Damaged(error.to_string()))
}

fn decompress(packed: &[u8]) -> Result<Vec<u8>, JournalError> {
    zstd::stream::decode_all(packed).map_err(|error| JournalError::Damaged(error.to_string()))
}

impl std::fmt::Debug for Payloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.key.is_some() {
            "Payloads(encrypted)"
        } else {
            "Payloads(plain)"
        })
    }
}
