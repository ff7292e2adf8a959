//! [`TurnHook`]: code that runs before and after each turn, such as memory.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{DocumentInfo, RuntimeEvent};

use crate::{Session, TurnCharge};

/// What a hook adds to the requests of a turn.
#[derive(Debug, Clone, Default)]
pub struct TurnAdditions {
    /// Text that is appended to the user's message of the turn. It is never stored, so that
    /// everything before that message stays unchanged and prompt caches remain valid.
    pub message_text: Option<String>,
    /// Text that is appended to the system prompt. It must be the same in all turns of a session.
    pub system_text: Option<String>,
    /// Tells observers what was added.
    pub event: Option<RuntimeEvent>,
}

/// Called before and after every turn.
pub trait TurnHook: Send + Sync {
    /// Returns the text of the section "Memory" of the system prompt; `None` leaves the section
    /// out.
    fn memory_section(&self) -> Option<&str> {
        None
    }

    /// Called when the newest turn of a session begins, with the user's message. What the hook
    /// spends counts in the budget of the turn.
    fn before_turn<'a>(
        &'a self,
        session: &'a Session,
        user_message: &'a str,
        charge: &'a TurnCharge,
    ) -> BoxFuture<'a, TurnAdditions>;

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

    /// Called when the newest turn of a session has ended, with its budget.
    fn after_turn<'a>(&'a self, session: &'a Session, charge: &'a TurnCharge) -> BoxFuture<'a, ()> {
        let _ = (session, charge);
        std::future::ready(()).boxed()
    }
}
