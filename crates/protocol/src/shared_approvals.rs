//! Approval requests that wait on several servers with one database.

use async_trait::async_trait;

use crate::{ApprovalDecider, ApprovalRequest, DecisionRace, ServerStoreError};

/// An approval request of a turn that some server runs.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedApproval {
    /// Id of the session whose turn asks.
    pub session: String,
    /// The calls that wait for a decision.
    pub request: ApprovalRequest,
    /// When it was asked, in milliseconds since 1970.
    pub asked_ms: i64,
}

/// Why a request is withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalWithdrawal {
    /// The turn received a decision.
    Decided,
    /// The turn no longer waits. A decision that was stored meanwhile is removed.
    Abandoned,
}

/// The approval requests of all servers. It promises that a request can be decided at any server:
///
/// - A request is listed from its announcement until it is withdrawn or its server is dead.
/// - A decision of another server is stored only while the request is listed. The server of the
///   request takes it, which removes the request from the list, or it is removed.
#[async_trait]
pub trait SharedApprovalStore: Send + Sync {
    /// Lists a request of this server.
    async fn announce_approval(&self, approval: SharedApproval) -> Result<(), ServerStoreError>;
    /// Removes a request of this server from the list.
    async fn withdraw_approval(
        &self,
        id: &str,
        withdrawal: ApprovalWithdrawal,
    ) -> Result<(), ServerStoreError>;
    /// Returns the requests of all other servers, the oldest first.
    async fn announced_approvals(&self) -> Result<Vec<SharedApproval>, ServerStoreError>;
    /// Stores a decision about a listed request of another server, unless there is one.
    async fn decide_announced(
        &self,
        decision: ApprovalDecider,
    ) -> Result<DecisionRace, ServerStoreError>;
    /// Returns the stored decision about a request of this server, and removes the request from the
    /// list: from now on the decision counts. `None` if there is no decision.
    async fn take_decision(&self, id: &str) -> Result<Option<ApprovalDecider>, ServerStoreError>;
    /// Removes a decision that the server of the request has not taken. Returns whether there is
    /// still a decision: one that was taken.
    async fn take_back_decision(&self, id: &str) -> Result<bool, ServerStoreError>;
}
