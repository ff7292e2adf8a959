//! The approval policy: decides from a call's risk whether it runs, needs approval or is denied.

use selvedge_protocol::ApprovalPolicy;

/// Risk of a call, which its tool determines from the arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Risk {
    /// The call needs no approval under any policy.
    Harmless,
    /// The call may change something. It needs approval under `untrusted` only.
    Moderate {
        /// Why, in a few words for the approver.
        reason: String,
    },
    /// What the call changes is unknown, and nothing confines it. It needs approval under
    /// `untrusted` and `on-request`. It runs under `on-failure` and `never`, because the user
    /// trusted the folder.
    UnknownEffect {
        /// Why, in a few words for the approver.
        reason: String,
    },
    /// The call needs approval under every policy.
    NeedsApproval {
        /// Why, in a few words for the approver.
        reason: String,
    },
}

/// Decision of the policy about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// Run the call.
    Run,
    /// Request approval before it runs.
    Ask {
        /// Why approval is needed.
        reason: String,
    },
    /// Deny the call.
    Deny {
        /// Why the call is denied.
        reason: String,
    },
}

/// Applies a policy to the risk of a call.
pub fn apply_policy(policy: ApprovalPolicy, risk: Risk) -> PolicyVerdict {
    match (risk, policy) {
        (Risk::Harmless, _) => PolicyVerdict::Run,
        (Risk::Moderate { reason }, ApprovalPolicy::Untrusted) => PolicyVerdict::Ask { reason },
        (Risk::Moderate { .. }, _) => PolicyVerdict::Run,
        (Risk::UnknownEffect { reason }, ApprovalPolicy::Untrusted | ApprovalPolicy::OnRequest) => {
            PolicyVerdict::Ask { reason }
        }
        (Risk::UnknownEffect { .. }, ApprovalPolicy::OnFailure | ApprovalPolicy::Never) => {
            PolicyVerdict::Run
        }
        (Risk::NeedsApproval { reason }, ApprovalPolicy::Never) => PolicyVerdict::Deny {
            reason: format!("{reason}; the approval policy is `never`"),
        },
        (Risk::NeedsApproval { reason }, _) => PolicyVerdict::Ask { reason },
    }
}
