//! The journal: what happened, written before and after it happens, in one SQLite file.
//!
//! A run is begun before its script starts, a call is intended before its tool is entered, and settled after. So
//! after the death of a process at any moment each call is known to be done, not started, or of unknown outcome.
//! Payloads are exact, because going on and replaying need them; every view of them is redacted ([`Redactor`]).

mod blobs;
mod error;
mod journal;
mod live;
mod read;
mod redact;
mod retention;
mod schema;
mod tables;
mod time;

pub use error::JournalError;
pub use journal::Journal;
pub use read::{Call, CallState, Filter, Run, RunState, RunSummary};
pub use redact::Redactor;
pub use retention::{Removed, Retention};
pub use tables::Tables;
