//! The budgets of turns that posts in channels start: the sessions that get a post share half of
//! what is left.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{Arc, Mutex};

use selvedge_journal::Journal;
use selvedge_protocol::{
    ApprovalPolicy, AuthorKind, BudgetAmounts, ChannelStore, Following, MessageAuthor, NewSession,
    SandboxPolicy, SessionFolder, SessionStore, TurnBudgets, TurnPermissions, WorkspaceReach,
};
use selvedge_script::{Harness, RunOptions};
use selvedge_toolbox::{ChannelAccess, Toolbox, Workspace};
use selvedge_tools::{Orchestrator, Registry};

/// Half of the tokens and of the money that are left.
const HALF: (u64, f64) = (900, 3.0);

/// Budgets that record what is released.
#[derive(Default)]
struct RecordedBudgets {
    released: Mutex<Vec<BudgetAmounts>>,
}

impl TurnBudgets for RecordedBudgets {
    fn remaining_budget(&self, _: &str) -> BudgetAmounts {
        (Some(2 * HALF.0), Some(2.0 * HALF.1))
    }

    fn reserve_half(&self, _: &str) -> BudgetAmounts {
        (Some(HALF.0), Some(HALF.1))
    }

    fn release(&self, _: &str, amounts: BudgetAmounts) {
        self.released.lock().unwrap().push(amounts);
    }

    fn sub_agent_tools(&self, _: &str) -> Option<Vec<String>> {
        None
    }
}

fn permissions(workspace: &str) -> TurnPermissions {
    TurnPermissions {
        sandbox: SandboxPolicy::WorkspaceWrite,
        approval: ApprovalPolicy::Never,
        network: false,
        tool_packs: Vec::new(),
        tools: None,
        workspace: workspace.to_owned(),
        reach: WorkspaceReach::WithSubfolders,
        max_tokens: None,
        max_cost: None,
    }
}

/// Creates a session that follows the channel, and returns its id.
async fn follower(journal: &Journal, title: &str, directory: &str) -> String {
    let session = NewSession {
        folder: SessionFolder::Shared,
        title: Some(title.to_owned()),
        environment: None,
        directory: directory.to_owned(),
        creator: MessageAuthor {
            kind: AuthorKind::Person,
            id: "ada".to_owned(),
        },
        permissions: None,
        prompt: None,
        idempotency_key: None,
        max_open_messages: None,
        max_client_sessions: None,
    };
    let created = SessionStore::create(journal, session).await.unwrap();
    let following = journal.follow("eng", &created.id, Following::On);
    following.await.unwrap();
    created.id
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sessions_that_get_a_post_share_half_of_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let work = work.canonicalize().unwrap();
    let folder = work.to_str().unwrap();
    let journal = Journal::open(dir.path().join("home").as_path()).unwrap();
    let budgets = Arc::new(RecordedBudgets::default());
    let workspace = Workspace::open(&work, SandboxPolicy::WorkspaceWrite, &[]).unwrap();
    let mut toolbox = Toolbox::new(workspace);
    toolbox.channels = Some(ChannelAccess {
        store: journal.clone(),
        author: None,
        permissions: permissions(folder),
        budgets: Some(budgets.clone()),
        max_open_messages: 100,
    });
    let mut registry = Registry::new();
    toolbox.register(&mut registry).unwrap();
    let harness = Harness::new(Orchestrator::new(registry)).unwrap();
    // Posts a message, and returns what is released.
    let post = async |message: &str| {
        let source = format!("return await tools.channels.post('eng', '{message}')");
        let output = harness.run_with(source.as_bytes(), RunOptions::default());
        let output = output.await;
        assert!(output.error.is_none(), "{output:?}");
        budgets.released.lock().unwrap().pop().unwrap()
    };
    let budget_of = async |session: &str, number: u32| {
        let message = SessionStore::message(&*journal, session, number).await;
        message.unwrap().permissions.unwrap().budget()
    };
    let none = (Some(0), Some(0.0));
    // Three sessions have the same title.
    let mut team = Vec::new();
    for _ in 0..3 {
        team.push(follower(&journal, "Team", folder).await);
    }
    assert_eq!(post("@team look").await, none);
    for session in &team {
        assert_eq!(budget_of(session, 1).await, (Some(300), Some(1.0)));
    }
    // Other words with `@` get no part.
    let others = " a@b @unknown".repeat(25);
    let one = &team[0];
    assert_eq!(post(&format!("@{one}{others}")).await, none);
    assert_eq!(budget_of(one, 2).await, (Some(900), Some(3.0)));
    // The part of a session that cannot get the post is released.
    let far = follower(&journal, "Far", "/another").await;
    let released = post(&format!("@{one} @{far}")).await;
    assert_eq!(released, (Some(450), Some(1.5)));
    assert_eq!(budget_of(one, 3).await, (Some(450), Some(1.5)));
    assert_eq!(post("@unknown").await, (Some(900), Some(3.0)));
}
