//! The journal: one SQLite file that records runs, calls, approvals and sessions before and after
//! they happen.
//!
//! A run is recorded before its script starts, a call before its tool is called and again after it
//! returned. If the process dies, each call is therefore known to be completed, not started, or of
//! unknown outcome. Payloads are stored unredacted, because resume and replay need the exact
//! values. A program that displays them redacts them first ([`Redactor`]).
// Only the program that uses this crate writes to the standard streams.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod cabinet;
mod connection;
mod crypto;
mod error;
mod forget;
mod jobs;
mod journal;
mod ledger;
mod live;
mod payloads;
mod read;
mod read_only;
mod retention;
mod schema;
mod seal;
mod sessions;
mod shelf;
mod stops;
mod sum;
mod time;
mod uses;
mod write_behind;

pub use error::JournalError;
pub use forget::{Forgotten, Rewrite};
pub use journal::{Journal, Keeping};
pub use read::{Call, CallState, Filter, Run, RunState, RunSummary};
pub use retention::Removed;
pub use schema::Tables;
pub use seal::Seal;
pub use selvedge_protocol::{Durability, Retention};
pub use selvedge_text::Redactor;
pub use sessions::{SessionSummary, StoredItem};
pub use shelf::SessionShelf;
