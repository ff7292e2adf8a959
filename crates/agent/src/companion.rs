//! Whoever rides along with a turn: memory that recalls before it, and learns after it.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::Entry;

use crate::Session;

/// Told of every turn. What it answers before a turn rides inside the newest message, and is never stored: everything
/// before that message stays as it was.
pub trait Companion: Send + Sync {
    /// What the system text says of it.
    fn explained(&self) -> Option<&str> {
        None
    }

    /// The session's newest turn begins with these words.
    fn before<'a>(&'a self, session: &'a Session, prompt: &'a str)
    -> BoxFuture<'a, Option<String>>;

    /// The session's newest turn put these documents into the File Cabinet, or looked them up there.
    fn kept<'a>(&'a self, session: &'a Session, documents: Vec<Entry>) -> BoxFuture<'a, ()> {
        let _ = (session, documents);
        std::future::ready(()).boxed()
    }

    /// The session's newest turn is over.
    fn after<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, ()> {
        let _ = session;
        std::future::ready(()).boxed()
    }
}
