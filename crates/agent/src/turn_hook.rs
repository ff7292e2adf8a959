//! [`TurnHook`]: code that runs before and after each turn, such as memory.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::DocumentInfo;

use crate::Session;

/// Called before and after every turn. The text it returns before a turn is appended to the user's
/// message of this turn in each request and is never stored, so that everything before that message
/// stays unchanged and prompt caches remain valid.
pub trait TurnHook: Send + Sync {
    /// Returns the text of the section "Memory" of the system prompt; `None` leaves the section
    /// out.
    fn memory_section(&self) -> Option<&str> {
        None
    }

    /// Called when the newest turn of a session begins, with the user's message. Returns the text
    /// to append to that message.
    fn before_turn<'a>(
        &'a self,
        session: &'a Session,
        user_message: &'a str,
    ) -> BoxFuture<'a, Option<String>>;

    /// Called with the documents that the newest turn of a session stored in the File Cabinet or
    /// looked up there.
    fn documents_used<'a>(
        &'a self,
        session: &'a Session,
        documents: Vec<DocumentInfo>,
    ) -> BoxFuture<'a, ()> {
        let _ = (session, documents);
        std::future::ready(()).boxed()
    }

    /// Called when the newest turn of a session has ended.
    fn after_turn<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, ()> {
        let _ = session;
        std::future::ready(()).boxed()
    }
}
