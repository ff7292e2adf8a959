//! The approval policy: decides from a call's risk whether it runs, needs approval or is denied.

use selvedge_protocol::ApprovalPolicy;

/// Risk of a call, as its tool judges from the arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Risk {
    /// The call needs no approval under any policy.
    Harmless,
    /// The call changes something, within what the sandbox policy allows.
    Guarded {
        /// Why, in a few words for the approver.
        reason: String,
    },
    /// The call needs approval under every policy.
    Ask {
        /// Why, in a few words for the approver.
        reason: String,
    },
}

/// Decision of the policy about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Run the call.
    Run,
    /// Request approval.
    Ask {
        /// Why approval is needed.
        reason: String,
    },
    /// Deny the call.
    Refuse {
        /// Why the call is denied.
        reason: String,
    },
}

/// Applies a policy to the risk of a call.
pub fn judge(policy: ApprovalPolicy, risk: Risk) -> Verdict {
    match (risk, policy) {
        (Risk::Harmless, _) => Verdict::Run,
        (Risk::Guarded { reason }, ApprovalPolicy::Untrusted) => Verdict::Ask { reason },
        (Risk::Guarded { .. }, _) => Verdict::Run,
        (Risk::Ask { reason }, ApprovalPolicy::Never) => Verdict::Refuse {
            reason: format!("{reason}; the approval policy is `never`"),
        },
        (Risk::Ask { reason }, _) => Verdict::Ask { reason },
    }
}
