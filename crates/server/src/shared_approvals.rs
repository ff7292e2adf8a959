//! Approval requests of several servers with one database: each can be seen and decided at all of
//! them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::{
    ApprovalDeciderStore, ApprovalRequest, ApprovalWithdrawal, SharedApproval, SharedApprovalStore,
};

use crate::api_error::ApiError;
use crate::approval_routes::{ApprovalChoice, call_decision, no_longer_waits};
use crate::approvals::{ApprovalChange, PendingApprovals, WaitingApproval};

/// How often a request looks for a decision that another server stored.
const DECISION_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How often a server that stored a decision looks whether the turn received it.
const DELIVERY_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a decision may take to reach the turn on another server.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(15);

/// The approval requests of all servers.
#[derive(Clone)]
pub(crate) struct SharedApprovals {
    pub(crate) store: Arc<dyn SharedApprovalStore>,
    pub(crate) deciders: Arc<dyn ApprovalDeciderStore>,
}

/// A request that is announced until this value is dropped.
pub(crate) struct AnnouncedApproval {
    shared: SharedApprovals,
    id: String,
    pub(crate) withdrawal: ApprovalWithdrawal,
}

impl Drop for AnnouncedApproval {
    fn drop(&mut self) {
        let (shared, id, withdrawal) = (self.shared.clone(), self.id.clone(), self.withdrawal);
        tokio::spawn(async move {
            if let Err(error) = shared.store.withdraw_approval(&id, withdrawal).await {
                tracing::error!(%error, approval = id, "cannot withdraw the approval request");
            }
        });
    }
}

impl SharedApprovals {
    /// Announces a request of a turn of this server.
    pub(crate) async fn announce(&self, approval: WaitingApproval) -> AnnouncedApproval {
        let announced = AnnouncedApproval {
            shared: self.clone(),
            id: approval.request.id.clone(),
            withdrawal: ApprovalWithdrawal::Abandoned,
        };
        let approval = SharedApproval {
            session: approval.session,
            request: approval.request,
            asked_ms: approval.asked_ms,
        };
        // The clients of this server can still decide.
        if let Err(error) = self.store.announce_approval(approval).await {
            tracing::error!(%error, "cannot announce the approval request");
        }
        announced
    }

    /// Passes the decision of another server to the turn that waits. Never returns: the turn ends
    /// the wait.
    pub(crate) async fn deliver_decision(
        &self,
        approvals: &Arc<PendingApprovals>,
        request: &ApprovalRequest,
    ) {
        loop {
            tokio::time::sleep(DECISION_POLL_INTERVAL).await;
            // A failure is repeated.
            let Ok(Some(_)) = self.deciders.decider(&request.id).await else {
                continue;
            };
            // A client of this server may be deciding. If its decision is not the first one, this
            // one is delivered next.
            if let Some(right) = approvals.begin_decision(&request.id)
                && let Ok(Some(decider)) = self.store.take_decision(&request.id).await
                && let Some(choice) = ApprovalChoice::parse(&decider.decision)
            {
                let decision = call_decision(choice, decider.reason);
                right.deliver(vec![decision; request.calls.len()]);
            }
        }
    }

    /// Returns the requests of all servers that wait, by id.
    pub(crate) async fn announced(&self) -> Result<HashMap<String, WaitingApproval>, ApiError> {
        let announced = self.store.announced_approvals().await?.into_iter();
        let announced = announced.map(|approval| {
            let waiting = WaitingApproval {
                session: approval.session,
                request: approval.request,
                asked_ms: approval.asked_ms,
            };
            (waiting.request.id.clone(), waiting)
        });
        Ok(announced.collect())
    }

    /// Waits until the server of a request has taken a decision that is stored. Takes the decision
    /// back if that server is dead or does not take it in time.
    pub(crate) async fn wait_for_delivery(&self, id: &str) -> Result<(), ApiError> {
        let wait = async {
            while self.announced().await?.contains_key(id) {
                tokio::time::sleep(DELIVERY_POLL_INTERVAL).await;
            }
            Ok::<_, ApiError>(())
        };
        if let Ok(closed) = tokio::time::timeout(DELIVERY_TIMEOUT, wait).await {
            closed?;
        }
        match self.store.take_back_decision(id).await? {
            true => Ok(()),
            false => Err(no_longer_waits()),
        }
    }
}

/// The requests of other servers that a client has received, by id, with their sessions.
#[derive(Default)]
pub(crate) struct KnownApprovals(HashMap<String, String>);

impl KnownApprovals {
    /// Returns the changes since the last call, without the requests of this server.
    pub(crate) async fn changes(
        &mut self,
        shared: &SharedApprovals,
        own: &PendingApprovals,
    ) -> Result<Vec<ApprovalChange>, ApiError> {
        let mut announced = shared.announced().await?;
        for approval in own.list() {
            announced.remove(&approval.request.id);
        }
        let mut changes = Vec::new();
        self.0.retain(|id, session| {
            let is_open = announced.contains_key(id);
            if !is_open {
                changes.push(ApprovalChange::Closed {
                    id: id.clone(),
                    session: session.clone(),
                });
            }
            is_open
        });
        for (id, approval) in announced {
            if self.0.insert(id, approval.session.clone()).is_none() {
                changes.push(ApprovalChange::Asked(Box::new(approval)));
            }
        }
        Ok(changes)
    }
}
