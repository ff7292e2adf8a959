//! The documents of a workspace: Markdown files with YAML front matter, selected by globs.
//!
//! [`DocumentIndex`] keeps them in memory, notices changed files before each query, and answers
//! queries by field and by text. The caller decides which files exist for it ([`DocumentAccess`]).
//! Files may come from a stranger's repository: all that is read is bounded, a malformed file is
//! reported as its own problem, and links are never followed.
// Standard streams belong to the program that uses this crate.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod access;
mod document;
mod front_matter;
mod globs;
mod index;
mod query;
mod scan;
mod text_index;
mod watch;

pub use access::{DocumentAccess, ScanFilter};
pub use document::{MAX_DOCUMENT_BYTES, WorkspaceDocument};
pub use front_matter::FrontMatterError;
pub use globs::{DocumentGlobs, GlobError};
pub use index::DocumentIndex;
pub use query::{DocumentQuery, FoundDocuments, SortKey};
