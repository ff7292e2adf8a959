//! A small synchronous interface to the databases that Selvedge stores its data in.
//!
//! The callers write SQL that all databases understand: parameters are `?1`, `?2`, and so on, and
//! conflicts are handled with `ON CONFLICT`. What differs between the databases is a method of
//! [`Connection`].
// Only the program that uses this crate writes to the standard streams.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod codec;
mod columns;
mod connection;
mod encode;
mod error;
mod postgres;
mod retry;
mod shared;
mod sqlite;
mod statement;
mod transaction;
mod value;

pub use codec::{ColumnCodec, ColumnCodecError};
pub use columns::ColumnInfo;
pub use connection::Connection;
pub use encode::{ColumnContent, ColumnFunction, EncodedColumn};
pub use error::{DatabaseError, DatabaseErrorKind, OptionalRow};
pub use postgres::{NamedLockMode, NoticeListener, PostgresPool, PostgresUrl};
pub use retry::TransactionRetry;
pub use shared::{ConnectionGuard, SharedConnection};
pub use statement::{MappedRows, Params, Row, Rows, Statement};
pub use transaction::WriteTransaction;
pub use value::{DatabaseValue, FromColumn, ToParameter, ValueRef};
