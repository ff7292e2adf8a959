//! Codecs of columns, which encrypt what a database stores.

use crate::{DatabaseValue, ValueRef};

/// Why a codec failed.
pub type ColumnCodecError = Box<dyn std::error::Error + Send + Sync>;

/// Encrypts and decrypts columns. In SQL, `encrypt(?1)` is the encrypted value of a parameter,
/// `keyed_digest(?1)` its digest, and `decrypt(column)` the decrypted value of a column.
///
/// Each method returns `None` if the value is stored as it is.
pub trait ColumnCodec: Send + Sync {
    /// Encrypts a value. Equal values have equal results.
    fn encrypt(&self, value: ValueRef<'_>) -> Result<Option<DatabaseValue>, ColumnCodecError>;
    /// Decrypts a value that [`ColumnCodec::encrypt`] returned.
    fn decrypt(&self, value: ValueRef<'_>) -> Result<Option<DatabaseValue>, ColumnCodecError>;
    /// Returns a digest by which a value can be looked up.
    fn keyed_digest(&self, value: ValueRef<'_>) -> Option<DatabaseValue>;
}
