//! Sessions that scripts create, and their queues: messages are claimed once, survive a killed
//! process, and stay within the limits.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;

use selvedge_journal::{Journal, JournalOptions};
use selvedge_protocol::{
    ApprovalPolicy, AuthorKind, InboxState, MAX_CREATED_SESSIONS, MAX_SESSION_DEPTH, MessageAuthor,
    NewInboxMessage, NewSession, SandboxPolicy, SessionError, SessionFilter, SessionFolder,
    SessionInfo, SessionStore, SessionWait, TurnPermissions, WorkspaceReach,
};
use serde_json::json;
use support::{WaitForResult, database, store};

fn session_author(id: &str) -> MessageAuthor {
    MessageAuthor {
        kind: AuthorKind::Session,
        id: id.to_owned(),
    }
}

fn permissions(workspace: &str) -> TurnPermissions {
    TurnPermissions {
        sandbox: SandboxPolicy::WorkspaceWrite,
        approval: ApprovalPolicy::OnRequest,
        network: false,
        tool_packs: Vec::new(),
        tools: None,
        workspace: workspace.to_owned(),
        reach: WorkspaceReach::WithSubfolders,
        max_tokens: None,
        max_cost: None,
    }
}

fn new_session(creator: &str, directory: &str, prompt: Option<&str>) -> NewSession {
    NewSession {
        folder: SessionFolder::Shared,
        title: Some("Fix\n login".to_owned()),
        environment: Some("frontend".to_owned()),
        directory: directory.to_owned(),
        creator: session_author(creator),
        permissions: Some(permissions(directory)),
        prompt: prompt.map(str::to_owned),
        idempotency_key: None,
        max_open_messages: None,
        max_client_sessions: None,
    }
}

fn message(from: &str, to: &SessionInfo, text: &str) -> NewInboxMessage {
    NewInboxMessage {
        session: to.id.clone(),
        author: session_author(from),
        text: text.to_owned(),
        permissions: Some(permissions("/w")),
        idempotency_key: None,
        max_open_messages: None,
    }
}

/// Adds an item to a turn of a session, as an agent does when the turn begins.
fn begin_turn(journal: &Journal, session: &str, turn: u32) {
    let after = journal.items(session).unwrap().len() as u32;
    let row = json!({"type": "message"});
    let appended = journal.append_rows(session, after, turn, vec![row]);
    appended.wait().unwrap();
}

#[test]
fn a_created_session_has_its_origin_and_its_first_message() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let parent = journal.begin_session("/w", None).unwrap();
    let mut new = new_session(&parent, "/w/sub", Some("begin"));
    new.idempotency_key = Some("key".to_owned());
    let session = journal.create(new.clone()).wait().unwrap();
    assert_eq!(session.title.as_deref(), Some("Fix login"));
    assert_eq!(session.environment.as_deref(), Some("frontend"));
    assert_eq!(session.creator.as_ref(), Some(&parent));
    assert_eq!(session.queued, 1);
    // The same call again creates nothing.
    assert_eq!(journal.create(new).wait().unwrap().id, session.id);
    let list = |filter: SessionFilter| {
        let filter = SessionFilter { limit: 9, ..filter };
        let found = journal.list(filter).wait().unwrap();
        found
            .into_iter()
            .map(|session| session.id)
            .collect::<Vec<_>>()
    };
    let in_workspace = SessionFilter {
        workspaces: vec!["/w".to_owned()],
        ..SessionFilter::default()
    };
    assert_eq!(list(in_workspace.clone()), std::slice::from_ref(&parent));
    let with_subfolders = SessionFilter {
        include_subfolders: true,
        ..in_workspace
    };
    assert_eq!(list(with_subfolders), [session.id.clone(), parent.clone()]);
    let elsewhere = SessionFilter {
        workspaces: vec!["/w/s".to_owned(), "/x".to_owned()],
        include_subfolders: true,
        ..SessionFilter::default()
    };
    assert_eq!(list(elsewhere), [""; 0]);
    let everywhere = SessionFilter {
        workspaces: vec!["/x".to_owned(), "/".to_owned()],
        include_subfolders: true,
        ..SessionFilter::default()
    };
    assert_eq!(list(everywhere), [session.id.clone(), parent.clone()]);
    let next_page = SessionFilter {
        touched_before_ms: Some(session.touched_ms),
        ..SessionFilter::default()
    };
    assert_eq!(list(next_page), std::slice::from_ref(&parent));
    let by_title = SessionFilter {
        title: Some("LOGIN".to_owned()),
        creator: Some(parent),
        ..SessionFilter::default()
    };
    assert_eq!(list(by_title), [session.id]);
}

#[test]
fn large_items_are_read_as_they_were_written() {
    for encryption_key in [None, Some([9; 32])] {
        let dir = tempfile::tempdir().unwrap();
        let options = JournalOptions {
            encryption_key,
            ..JournalOptions::default()
        };
        let journal = Journal::open_with(store(dir.path()), &options).unwrap();
        let session = journal.begin_session("/w", None).unwrap();
        let large = json!({"text": "large ".repeat(10_000)});
        let items = vec![json!("small"), large.clone(), json!({"cost": 0.1}), large];
        let append = journal.append_rows(&session, 0, 1, items.clone());
        append.wait().unwrap();
        let read = journal.items(&session).unwrap().into_iter();
        assert_eq!(read.map(|row| row.item).collect::<Vec<_>>(), items);
    }
}

#[test]
fn a_long_list_has_each_session_once_also_if_few_match() {
    const COUNT: usize = 60;
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let mut created = Vec::new();
    for number in 0..COUNT {
        let mut new = new_session("", "/w", Some(&format!("task <{number}>\nmore")));
        new.creator.kind = AuthorKind::Person;
        // Every second one has a title of its own.
        new.title = new.title.filter(|_| number % 2 == 1);
        created.push(journal.create(new).wait().unwrap().id);
    }
    let (mut listed, mut titles) = (Vec::new(), Vec::new());
    let mut filter = SessionFilter {
        limit: 7,
        ..SessionFilter::default()
    };
    loop {
        let page = journal.list(filter.clone()).wait().unwrap();
        let Some(last) = page.last() else { break };
        filter.touched_before_ms = Some(last.touched_ms);
        titles.extend(page.iter().map(|session| session.title.clone().unwrap()));
        listed.extend(page.into_iter().map(|session| session.id));
    }
    created.reverse();
    assert_eq!(listed, created);
    assert_eq!(titles[..3], ["Fix login", "task <58>", "Fix login"]);
    let oldest = SessionFilter {
        title: Some("<0>".to_owned()),
        touched_before_ms: None,
        ..filter
    };
    let found = journal.list(oldest).wait().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, created[COUNT - 1]);
}

#[test]
fn a_page_of_the_list_does_not_end_between_sessions_with_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    for _ in 0..3 {
        journal.begin_session("/w", None).unwrap();
    }
    // Several servers touched two of them in the same millisecond.
    let sql = "UPDATE sessions SET touched_ms = 7 WHERE touched_ms <>
        (SELECT max(touched_ms) FROM sessions)";
    database(dir.path()).execute_batch(sql).unwrap();
    let list = |limit| {
        let filter = SessionFilter {
            limit,
            ..SessionFilter::default()
        };
        SessionStore::list(&*journal, filter).wait().unwrap().len()
    };
    assert_eq!([1, 2, 3].map(list), [1, 3, 3]);
}

#[test]
fn messages_are_answered_in_order_by_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let other = Journal::open(store(dir.path())).unwrap();
    let parent = journal.begin_session("/w", None).unwrap();
    let session = journal.create(new_session(&parent, "/w", Some("one")));
    let session = session.wait().unwrap();
    let second = journal.send(message(&parent, &session, "two"));
    assert_eq!(second.wait().unwrap().number, 2);
    let claimed = journal.claim_next(&session.id).wait().unwrap().unwrap();
    assert_eq!((claimed.message.text.as_str(), claimed.turn), ("one", 1));
    assert_eq!(other.claim_next(&session.id).wait(), Ok(None));
    let finish = journal.finish(&claimed.message, InboxState::Answered, "done".into());
    finish.wait().unwrap();
    let first = other.message(&session.id, 1).wait().unwrap();
    assert_eq!(first.answer.as_deref(), Some("done"));
    let claimed = other.claim_next(&session.id).wait().unwrap().unwrap();
    let text = format!("Message from session {parent}:\n\ntwo");
    assert_eq!(claimed.message.text, text);
}

#[test]
fn the_message_of_a_dead_process_is_claimed_again() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let parent = journal.begin_session("/w", None).unwrap();
    let session = journal.create(new_session(&parent, "/w", Some("one")));
    let session = session.wait().unwrap();
    let claim = |journal: &Arc<Journal>| journal.claim_next(&session.id).wait().unwrap().unwrap();
    // Killed before the turn began.
    let first = Journal::open(store(dir.path())).unwrap();
    assert!(!claim(&first).begun);
    drop(first);
    // Killed while the turn ran.
    let second = Journal::open(store(dir.path())).unwrap();
    let claimed = claim(&second);
    assert_eq!((claimed.begun, claimed.turn), (false, 1));
    begin_turn(&second, &session.id, 1);
    drop(second);
    let third = Journal::open(store(dir.path())).unwrap();
    let claimed = claim(&third);
    assert_eq!((claimed.begun, claimed.turn), (true, 1));
    // A person began another turn meanwhile, so the turn of the message is over.
    begin_turn(&third, &session.id, 2);
    drop(third);
    assert_eq!(journal.claim_next(&session.id).wait(), Ok(None));
    let message = journal.message(&session.id, 1).wait().unwrap();
    assert_eq!(message.state, InboxState::Failed);
}

#[test]
fn limits_of_created_sessions_and_messages_are_enforced() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let parent = journal.begin_session("/w", None).unwrap();
    let mut creator = parent.clone();
    for _ in 0..MAX_SESSION_DEPTH {
        let created = journal.create(new_session(&creator, "/w", None));
        creator = created.wait().unwrap().id;
    }
    let too_deep = journal.create(new_session(&creator, "/w", None));
    assert_eq!(too_deep.wait(), Err(SessionError::TooDeep));
    for _ in 1..MAX_CREATED_SESSIONS {
        let created = journal.create(new_session(&parent, "/w", None));
        created.wait().unwrap();
    }
    let too_many = journal.create(new_session(&parent, "/w", None));
    assert_eq!(too_many.wait(), Err(SessionError::TooManyCreated));

    let outside = journal.begin_session("/other", None).unwrap();
    let outside = journal.get(&outside).wait().unwrap();
    let refused = journal.send(message(&parent, &outside, "x")).wait();
    assert_eq!(refused, Err(SessionError::OtherWorkspace(outside.id)));
    let here = journal.get(&parent).wait().unwrap();
    for _ in 0..100 {
        let sent = journal.send(message(&creator, &here, "x"));
        sent.wait().unwrap();
    }
    let full = journal.send(message(&creator, &here, "x")).wait();
    assert_eq!(full, Err(SessionError::QueueFull(parent)));
    let empty = journal.send(message(&creator, &here, " ")).wait();
    assert_eq!(empty, Err(SessionError::EmptyMessage));
}

#[test]
fn waiting_in_a_circle_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let other = Journal::open(store(dir.path())).unwrap();
    let wait = |id: &str, waiter: &str, target: &str| SessionWait {
        id: id.to_owned(),
        waiter: waiter.to_owned(),
        target: target.to_owned(),
    };
    journal
        .begin_wait(wait("one", "ses_a", "ses_b"))
        .wait()
        .unwrap();
    other
        .begin_wait(wait("two", "ses_b", "ses_c"))
        .wait()
        .unwrap();
    let next = std::cell::Cell::new(0_u32);
    let circle = |waiter: &str, target: &str| {
        next.set(next.get() + 1);
        let wait = wait(&next.get().to_string(), waiter, target);
        journal.begin_wait(wait).wait()
    };
    let error = Err(SessionError::Circular("ses_a".to_owned()));
    assert_eq!(circle("ses_c", "ses_a"), error);
    assert_eq!(circle("ses_a", "ses_a"), error);
    // A process that is gone waits for nothing.
    drop(other);
    assert_eq!(circle("ses_c", "ses_a"), Ok(()));
    let first = next.get().to_string();
    // Of two waits for the same session, one ends.
    assert_eq!(circle("ses_c", "ses_a"), Ok(()));
    journal.end_wait(&first).wait().unwrap();
    assert_eq!(
        circle("ses_b", "ses_c"),
        Err(SessionError::Circular("ses_c".to_owned()))
    );
    journal
        .end_wait(&next.get().saturating_sub(1).to_string())
        .wait()
        .unwrap();
    assert_eq!(circle("ses_b", "ses_c"), Ok(()));
}
