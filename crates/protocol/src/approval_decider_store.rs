//! The interface to who decided about approval requests.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::ServerStoreError;

/// A decision about an approval request, and who made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDecider {
    /// Id of the approval request.
    pub approval: String,
    /// Id of the session whose turn asked.
    pub session: String,
    /// Id of the token that decided.
    pub token: String,
    /// The decision, as it was sent.
    pub decision: String,
    /// Why the calls are denied, for the model.
    pub reason: Option<String>,
}

/// Whether a decision counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionRace {
    /// This decision was the first one.
    Won,
    /// Another decision was stored before.
    Lost,
    /// The request does not wait any more.
    Closed,
}

/// Records who decided about approval requests. It promises:
///
/// - Of several decisions about a request, the first one wins, at whichever servers they arrive;
///   the others get [`DecisionRace::Lost`].
/// - A decision is recorded before the turn receives it.
#[async_trait]
pub trait ApprovalDeciderStore: Send + Sync {
    /// Stores a decision, unless there is one for the request.
    async fn record_decider(
        &self,
        decision: ApprovalDecider,
    ) -> Result<DecisionRace, ServerStoreError>;
    /// Removes the decision about a request, because the turn did not receive it.
    async fn remove_decider(&self, approval: &str) -> Result<(), ServerStoreError>;
    /// Returns the decision about a request.
    async fn decider(&self, approval: &str) -> Result<Option<ApprovalDecider>, ServerStoreError>;
}
