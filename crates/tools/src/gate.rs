//! The port through which a person is asked.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{ApprovalDecision, ApprovalRequest};

/// Asks a person. One request carries every call that waits at the same await.
pub trait Approver: Send + Sync {
    /// Resolves when the person has answered. Dropped when the call is cancelled or times out.
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision>;
}

/// An approver for places where a person answers later: the script is put away until then.
#[derive(Debug, Clone, Copy, Default)]
pub struct AskLater;

impl Approver for AskLater {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        std::future::ready(ApprovalDecision::Later).boxed()
    }
}

/// An approver for places without a person: every question is answered with why nobody was asked.
#[derive(Debug, Clone)]
pub struct NobodyToAsk {
    /// Such as `there is no terminal`.
    pub because: String,
}

impl Approver for NobodyToAsk {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        std::future::ready(ApprovalDecision::Unavailable(self.because.clone())).boxed()
    }
}
