//! Decisions about approval requests of another server: each counts exactly if the turn gets it.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;

use selvedge_journal::Journal;
use selvedge_protocol::{
    ApprovalDecider, ApprovalDeciderStore, ApprovalRequest, ApprovalWithdrawal, DecisionRace,
    SharedApproval, SharedApprovalStore,
};
use support::{WaitForResult, store};

/// The handles of the server whose turn asks and of another one, with a request of the first.
fn two_servers() -> (tempfile::TempDir, Arc<Journal>, Arc<Journal>) {
    let dir = tempfile::tempdir().unwrap();
    let [asking, other] = [(), ()].map(|()| Journal::open(store(dir.path())).unwrap());
    let approval = SharedApproval {
        session: "ses_1".to_owned(),
        request: ApprovalRequest {
            expires_ms: None,
            id: "apr_1".to_owned(),
            scope_id: None,
            calls: Vec::new(),
        },
        asked_ms: 1,
    };
    asking.announce_approval(approval).wait().unwrap();
    (dir, asking, other)
}

fn decision() -> ApprovalDecider {
    ApprovalDecider {
        approval: "apr_1".to_owned(),
        session: "ses_1".to_owned(),
        token: "tok".to_owned(),
        decision: "once".to_owned(),
        reason: None,
    }
}

#[test]
fn a_decision_that_was_taken_is_not_taken_back() {
    let (_dir, asking, other) = two_servers();
    assert_eq!(asking.take_decision("apr_1").wait(), Ok(None));
    let decided = other.decide_announced(decision()).wait();
    assert_eq!(decided, Ok(DecisionRace::Won));
    let decided = other.decide_announced(decision()).wait();
    assert_eq!(decided, Ok(DecisionRace::Lost));
    assert_eq!(asking.take_decision("apr_1").wait(), Ok(Some(decision())));
    assert_eq!(other.announced_approvals().wait(), Ok(Vec::new()));
    assert_eq!(other.take_back_decision("apr_1").wait(), Ok(true));
    assert_eq!(other.decider("apr_1").wait(), Ok(Some(decision())));
}

#[test]
fn a_decision_that_was_taken_back_is_not_taken() {
    let (_dir, asking, other) = two_servers();
    let decided = other.decide_announced(decision()).wait();
    assert_eq!(decided, Ok(DecisionRace::Won));
    assert_eq!(other.take_back_decision("apr_1").wait(), Ok(false));
    assert_eq!(asking.take_decision("apr_1").wait(), Ok(None));
    assert_eq!(other.decider("apr_1").wait(), Ok(None));
}

#[test]
fn a_request_that_was_withdrawn_gets_no_decision() {
    for withdrawal in [ApprovalWithdrawal::Abandoned, ApprovalWithdrawal::Decided] {
        let (_dir, asking, other) = two_servers();
        asking
            .withdraw_approval("apr_1", withdrawal)
            .wait()
            .unwrap();
        let decided = other.decide_announced(decision()).wait();
        assert_eq!(decided, Ok(DecisionRace::Closed), "{withdrawal:?}");
        assert_eq!(other.decider("apr_1").wait(), Ok(None), "{withdrawal:?}");
    }
}

#[test]
fn a_decision_for_a_dead_server_does_not_count_for_the_next_one() {
    let (_dir, asking, other) = two_servers();
    let decided = other.decide_announced(decision()).wait();
    assert_eq!(decided, Ok(DecisionRace::Won));
    drop(asking);
    let approval = SharedApproval {
        session: "ses_1".to_owned(),
        request: ApprovalRequest {
            expires_ms: None,
            id: "apr_1".to_owned(),
            scope_id: None,
            calls: Vec::new(),
        },
        asked_ms: 2,
    };
    // The turn continues here, and asks again with the same id.
    other.announce_approval(approval).wait().unwrap();
    assert_eq!(other.take_decision("apr_1").wait(), Ok(None));
}
