//! Reads files that no command names: instructions, configuration, ignore rules, caches.
//!
//! Such a file may come from a stranger's repository and is read before the user decides anything.
//! Every read is therefore bounded and never blocks, and only regular files are read. A file of a
//! project ([`ProjectFiles`]) must also lie in the project, whatever links its path has, and must
//! not be a credential. The user's own files ([`read_user_file`]) may be links to any place.
//!
//! [`lock_file`] lets processes take turns.
// Standard streams belong to the program that uses this crate.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod credentials;
mod lock_file;
mod open;
mod project;
mod refusal;
mod user;

pub use credentials::CredentialFiles;
pub use lock_file::{lock_file, try_lock_file};
pub use project::{ProjectFiles, TextStart, has_repository};
pub use refusal::{FileRefusal, RefusalReason};
pub use user::{create_private_folder, read_user_file, read_user_text};
