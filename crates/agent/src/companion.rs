//! Whoever rides along with a turn: memory that recalls before it, and learns after it.

use futures_util::future::BoxFuture;
use selvedge_protocol::TurnItem;

/// Told of every turn. What it answers before a turn rides inside the newest message, and is never stored: everything
/// before that message stays as it was.
pub trait Companion: Send + Sync {
    /// A turn begins with these words.
    fn before<'a>(&'a self, session: &'a str, turn: u32, prompt: &'a str) -> BoxFuture<'a, Option<String>>;

    /// A turn is over; these are its items, in order.
    fn after(&self, session: &str, turn: u32, items: &[TurnItem]) {
        let _ = (session, turn, items);
    }
}
