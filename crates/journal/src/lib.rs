//! The journal: what happened, written before and after it happens, in one SQLite file.
//!
//! A run is begun before its script starts, a call is intended before its tool is entered, and settled after. So
//! after the death of a process at any moment each call is known to be done, not started, or of unknown outcome.
//! Payloads are exact, because going on and replaying need them; every view of them is redacted ([`Redactor`]).
// Standard streams belong to whoever runs this.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod blocks;
mod cabinet;
mod connection;
mod crypto;
mod error;
mod forget;
mod journal;
mod live;
mod payloads;
mod read;
mod read_only;
mod redact;
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
pub use redact::Redactor;
pub use retention::Removed;
pub use schema::Tables;
pub use seal::Seal;
pub use selvedge_protocol::{Durability, Retention};
pub use sessions::{SessionSummary, StoredItem};
pub use shelf::SessionShelf;
