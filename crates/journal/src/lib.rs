//! The journal: one SQLite file that records runs, calls, approvals and sessions before and after
//! they happen.
//!
//! A run is recorded before its script starts, a call before its tool is called and again after it
//! returned. If the process dies, each call is therefore known to be completed, not started, or of
//! unknown outcome. Payloads are stored unredacted, because resume and replay need the exact
//! values. A program that displays them redacts them first ([`Redactor`]).
// Only the program that uses this crate writes to the standard streams.
#![deny(clippy::print_stderr, clippy::print_stdout)]

// The helpers that unit tests share with the other tests name this crate.
#[cfg(test)]
extern crate self as selvedge_journal;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "../tests/support/store.rs"]
mod test_store;

mod cancel_requests;
mod channels;
mod claims;
mod column_encryption;
mod connection;
mod crypto;
mod document_store;
mod error;
mod forget;
mod inbox;
mod jobs;
mod journal;
mod lease;
mod ledger;
mod liveness;
mod location;
mod notices;
mod payloads;
mod read_only;
mod retention;
mod run_call_counts;
mod run_outline;
mod runs;
mod schema;
mod script_values;
mod server_leases;
mod server_store;
mod session_events;
mod session_store;
mod session_title;
mod sessions;
mod shared_approvals;
mod spending;
mod store_check;
mod store_copy;
mod time;
mod tool_counts;
mod turn_changes;
mod write_behind;

pub use column_encryption::ColumnEncryption;
pub use error::JournalError;
pub use forget::{RewriteItemsFn, SessionForgetReport};
pub use journal::{Journal, JournalOptions};
pub use lease::LeaseTimes;
pub use liveness::machine_name;
pub use location::JournalLocation;
pub use retention::RetentionReport;
pub use run_outline::{CallOverview, GatedCallDecision, RunOutline, StoredApproval};
pub use runs::{RunFilter, RunSummary, StoredCall, StoredCallState, StoredRun, StoredRunState};
pub use schema::{ComponentSchema, MEMORY_SCHEMA_VERSION, SchemaMigration};
pub use script_values::SessionValueStore;
pub use selvedge_database::PostgresUrl;
pub use selvedge_protocol::{Durability, Retention};
pub use selvedge_text::Redactor;
pub use sessions::{SessionSummary, StoredRow};
pub use spending::TokenAccount;
pub use store_check::{StoreReport, check_store};
pub use store_copy::{CopiedTable, copy_store};
