//! Approval requests of running turns that wait for a decision over the API.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{
    ApprovalRequest, ApprovalResponse, ApprovalWithdrawal, CallDecision, since_epoch,
};
use selvedge_tools::Approver;
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio::sync::oneshot;

use crate::metrics::{GaugeGuard, ServerMetrics};
use crate::shared_approvals::SharedApprovals;

/// Most changes that wait for one client. A slower client gets the whole list again.
const MAX_WAITING_CHANGES: usize = 64;

/// The approval requests that wait, by id.
pub(crate) struct PendingApprovals {
    pending: Mutex<BTreeMap<String, PendingApproval>>,
    metrics: Arc<ServerMetrics>,
    changes: Sender<ApprovalChange>,
    /// The requests of all servers, if several share the database.
    pub(crate) shared: Option<SharedApprovals>,
}

/// A change of the requests that wait.
#[derive(Debug, Clone)]
pub(crate) enum ApprovalChange {
    /// A request waits.
    Asked(Box<WaitingApproval>),
    /// A request of a session no longer waits.
    Closed { id: String, session: String },
}

struct PendingApproval {
    session: String,
    request: ApprovalRequest,
    asked_ms: i64,
    reply: oneshot::Sender<ApprovalResponse>,
    /// Whether a decision is being stored.
    is_deciding: bool,
    _counted: GaugeGuard,
}

/// The right to decide about a request. Without a decision, another client may decide.
pub(crate) struct ApprovalDecision {
    approvals: Arc<PendingApprovals>,
    id: String,
}

impl ApprovalDecision {
    /// Passes decisions to the turn that waits. Returns whether it still waited.
    pub(crate) fn deliver(self, decisions: Vec<CallDecision>) -> bool {
        let pending = self.approvals.remove(&self.id);
        pending.is_some_and(|pending| {
            let response = ApprovalResponse::Decided(decisions);
            pending.reply.send(response).is_ok()
        })
    }
}

impl Drop for ApprovalDecision {
    fn drop(&mut self) {
        if let Some(pending) = self.approvals.lock().get_mut(&self.id) {
            pending.is_deciding = false;
        }
    }
}

/// An approval request that waits.
#[derive(Debug, Clone)]
pub(crate) struct WaitingApproval {
    pub(crate) session: String,
    pub(crate) request: ApprovalRequest,
    pub(crate) asked_ms: i64,
}

impl PendingApprovals {
    pub(crate) fn new(metrics: Arc<ServerMetrics>, shared: Option<SharedApprovals>) -> Arc<Self> {
        Arc::new(Self {
            pending: Mutex::default(),
            metrics,
            changes: broadcast::channel(MAX_WAITING_CHANGES).0,
            shared,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PendingApproval>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all requests that wait, the oldest first.
    pub(crate) fn list(&self) -> Vec<WaitingApproval> {
        let pending = self.lock();
        let mut all: Vec<WaitingApproval> =
            pending.values().map(PendingApproval::describe).collect();
        all.sort_by_key(|approval| approval.asked_ms);
        all
    }

    /// Returns the request with this id if it waits.
    pub(crate) fn get(&self, id: &str) -> Option<WaitingApproval> {
        self.lock().get(id).map(PendingApproval::describe)
    }

    /// Returns the requests that wait, and a receiver for all later changes.
    pub(crate) fn follow(&self) -> (Vec<WaitingApproval>, Receiver<ApprovalChange>) {
        let pending = self.lock();
        let all = pending.values().map(PendingApproval::describe).collect();
        (all, self.changes.subscribe())
    }

    /// Adds a request.
    fn add(&self, approval: PendingApproval) {
        let mut pending = self.lock();
        let asked = ApprovalChange::Asked(Box::new(approval.describe()));
        pending.insert(approval.request.id.clone(), approval);
        // Without a client there is nothing to send to.
        let _ = self.changes.send(asked);
    }

    /// Removes a request if it waits.
    fn remove(&self, id: &str) -> Option<PendingApproval> {
        let mut pending = self.lock();
        let removed = pending.remove(id)?;
        let _ = self.changes.send(ApprovalChange::Closed {
            id: id.to_owned(),
            session: removed.session.clone(),
        });
        Some(removed)
    }

    /// Begins to decide about a request. `None` if it does not wait, or another client decides.
    pub(crate) fn begin_decision(self: &Arc<Self>, id: &str) -> Option<ApprovalDecision> {
        let mut pending = self.lock();
        let approval = pending.get_mut(id).filter(|one| !one.is_deciding)?;
        approval.is_deciding = true;
        Some(ApprovalDecision {
            approvals: self.clone(),
            id: id.to_owned(),
        })
    }

    /// Returns the approver of a session's turns.
    pub(crate) fn approver(self: &Arc<Self>, session: &str) -> Arc<dyn Approver> {
        Arc::new(ApiApprover {
            approvals: self.clone(),
            session: session.to_owned(),
        })
    }
}

impl PendingApproval {
    fn describe(&self) -> WaitingApproval {
        WaitingApproval {
            session: self.session.clone(),
            request: self.request.clone(),
            asked_ms: self.asked_ms,
        }
    }
}

/// Asks the clients of the API. A request that is not decided within the time limit of the scope is
/// denied.
struct ApiApprover {
    approvals: Arc<PendingApprovals>,
    session: String,
}

/// Removes a request when its turn no longer waits.
struct WithdrawApproval<'a>(&'a PendingApprovals, &'a str);

impl Drop for WithdrawApproval<'_> {
    fn drop(&mut self) {
        self.0.remove(self.1);
    }
}

impl Approver for ApiApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        async move {
            let (reply, answer) = oneshot::channel();
            let pending = PendingApproval {
                session: self.session.clone(),
                request: request.clone(),
                asked_ms: since_epoch().as_millis() as i64,
                reply,
                is_deciding: false,
                _counted: self.approvals.metrics.pending_approvals.enter(),
            };
            let mut announced = None;
            if let Some(shared) = &self.approvals.shared {
                announced = Some(shared.announce(pending.describe()).await);
            }
            self.approvals.add(pending);
            let _withdraw = WithdrawApproval(&self.approvals, &request.id);
            let closed = || ApprovalResponse::Unavailable("the server stops".to_owned());
            let decided_elsewhere = async {
                match &self.approvals.shared {
                    Some(shared) => shared.deliver_decision(&self.approvals, request).await,
                    None => std::future::pending().await,
                }
            };
            let answer = tokio::select! {
                answer = answer => answer.unwrap_or_else(|_| closed()),
                () = decided_elsewhere => closed(),
            };
            if let Some(announced) = &mut announced {
                announced.withdrawal = ApprovalWithdrawal::Decided;
            }
            answer
        }
        .boxed()
    }
}
