//! [`TurnGate`]: the token that pays for a turn, and the permit of the agent server, before each
//! request of the turn to a model.

use std::sync::Arc;

use async_trait::async_trait;
use selvedge_journal::{Journal, TokenAccount};
use selvedge_protocol::{ApiToken, RequestDecision, RequestGate};
use selvedge_server::TurnPermit;

use crate::session_runner::TurnPlace;

/// The gate of a turn of a queued message.
#[derive(Debug)]
pub(crate) struct TurnGate {
    /// `None` if no token pays.
    account: Option<TokenAccount>,
    /// Whether that token has a spending limit.
    is_limited: bool,
    /// `None` outside of the agent server.
    permit: Option<TurnPermit>,
}

impl TurnGate {
    pub(crate) fn new(journal: &Arc<Journal>, payer: Option<&ApiToken>, place: &TurnPlace) -> Self {
        Self {
            account: payer.map(|payer| TokenAccount::new(journal.clone(), payer.name.clone())),
            is_limited: payer.is_some_and(|payer| payer.max_cost.is_some()),
            permit: match place {
                TurnPlace::Server(served) => Some(served.permit.clone()),
                TurnPlace::Thread => None,
            },
        }
    }
}

#[async_trait]
impl RequestGate for TurnGate {
    async fn before_request(&self) -> RequestDecision {
        if let Some(permit) = &self.permit {
            permit.hold().await;
        }
        self.money_left().await
    }

    async fn money_left(&self) -> RequestDecision {
        let Some(account) = &self.account else {
            return RequestDecision::Allowed;
        };
        match account.settle().await {
            Ok(true) => RequestDecision::Allowed,
            Ok(false) => RequestDecision::NothingLeft,
            Err(error) => {
                // Without the account, the remaining budget is not known.
                tracing::error!(%error, "cannot read what the token has spent");
                RequestDecision::NothingLeft
            }
        }
    }

    fn limits_cost_of_all(&self) -> bool {
        self.is_limited
    }

    fn add_cost(&self, cost: f64) {
        if let Some(account) = &self.account {
            account.add(cost);
        }
    }

    async fn settle(&self) {
        if let Some(account) = &self.account
            && let Err(error) = account.settle().await
        {
            tracing::error!(%error, "cannot store what the turn cost");
        }
    }
}
