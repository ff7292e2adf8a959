//! [`RequestGate`]: what decides about each request of a turn to a model, besides the limits of the
//! turn itself.

use async_trait::async_trait;

/// Decides about each request of a turn to a model, and receives its cost. The requests of the
/// turn's sub-agents count as well; those of turns of other sessions have gates of their own.
#[async_trait]
pub trait RequestGate: Send + Sync + std::fmt::Debug {
    /// Waits until the turn may send its next request, and returns whether it may.
    async fn before_request(&self) -> RequestDecision;
    /// Returns whether there is money left for a request, without waiting until the turn may send
    /// one: it is one of the memory, during the turn or after it.
    async fn money_left(&self) -> RequestDecision;
    /// Returns whether it limits what this turn and those that it leads to cost together.
    fn limits_cost_of_all(&self) -> bool {
        false
    }
    /// Adds the cost of a request, in US dollars. It is stored by
    /// [`RequestGate::settle`], or before the next request.
    fn add_cost(&self, cost: f64);
    /// Stores the costs that were added, so that other turns see them.
    async fn settle(&self);
}

/// Whether a turn may send a request to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestDecision {
    /// The request may be sent.
    Allowed,
    /// Nothing is left of the money that pays for the turn.
    NothingLeft,
}
