//! Whether a call runs, is asked for, or is refused.

use selvedge_protocol::ApprovalPolicy;

/// What could go wrong if a call ran, as its tool judges from the arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Risk {
    /// Nothing worth a question.
    Harmless,
    /// Something is changed, within what the sandbox policy allows.
    Guarded {
        /// Why, in a few words.
        reason: String,
    },
    /// A person has to agree, whatever the policy.
    Ask {
        /// Why, in a few words.
        reason: String,
    },
}

/// What the policy makes of a risk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Run it.
    Run,
    /// Ask a person.
    Ask {
        /// Why.
        reason: String,
    },
    /// Do not run it.
    Refuse {
        /// Why.
        reason: String,
    },
}

/// Judges a risk under a policy.
pub fn judge(policy: ApprovalPolicy, risk: Risk) -> Verdict {
    match (risk, policy) {
        (Risk::Harmless, _) => Verdict::Run,
        (Risk::Guarded { reason }, ApprovalPolicy::Untrusted) => Verdict::Ask { reason },
        (Risk::Guarded { .. }, _) => Verdict::Run,
        (Risk::Ask { reason }, ApprovalPolicy::Never) => Verdict::Refuse {
            reason: format!("{reason}; the approval policy is `never`, so nobody is asked"),
        },
        (Risk::Ask { reason }, _) => Verdict::Ask { reason },
    }
}
