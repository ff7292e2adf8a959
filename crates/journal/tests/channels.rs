//! Channels: messages are numbered without gaps, survive the process, reach the sessions that they
//! mention, and stop after a number of hops.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;

use selvedge_journal::{Journal, JournalOptions, Retention};
use selvedge_protocol::{
    ApprovalPolicy, AuthorKind, ChannelError, ChannelStore, Following, InboxMessage, InboxState,
    MAX_HOPS, MessageAuthor, NewChannelMessage, ReadFrom, SandboxPolicy, SessionStore,
    TurnPermissions, WorkspaceReach,
};
use support::{WaitForResult, store, stores_text};

fn person() -> MessageAuthor {
    MessageAuthor {
        kind: AuthorKind::Person,
        id: "anna".to_owned(),
    }
}

fn session_author(id: &str) -> MessageAuthor {
    MessageAuthor {
        kind: AuthorKind::Session,
        id: id.to_owned(),
    }
}

fn message(author: MessageAuthor, text: &str) -> NewChannelMessage {
    NewChannelMessage {
        channel: "engineering".to_owned(),
        author,
        text: text.to_owned(),
        idempotency_key: None,
        permissions: None,
        max_open_messages: None,
    }
}

fn texts(journal: &Journal, from: ReadFrom, limit: u32) -> Vec<String> {
    let messages = journal.read("engineering", from, limit).wait().unwrap();
    messages.into_iter().map(|message| message.text).collect()
}

#[test]
fn messages_are_ordered_and_survive_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(10_000);
    {
        let journal = Journal::open(store(dir.path())).unwrap();
        for (number, text) in (1..).zip(["one", "two", &long]) {
            let receipt = journal.post(message(person(), text)).wait().unwrap();
            assert_eq!(receipt.message.number, number);
            assert_eq!(receipt.message.hops, 0);
        }
    }
    let journal = Journal::open(store(dir.path())).unwrap();
    journal
        .apply_retention(&Retention {
            days: 0,
            megabytes: 0,
        })
        .unwrap();
    assert_eq!(
        texts(&journal, ReadFrom::After(0), 10),
        ["one", "two", &long]
    );
    assert_eq!(texts(&journal, ReadFrom::After(1), 1), ["two"]);
    assert_eq!(texts(&journal, ReadFrom::Newest, 2), ["two", &long]);
    assert_eq!(texts(&journal, ReadFrom::After(3), 10), [""; 0]);
    let all = ChannelStore::list(&*journal).wait().unwrap();
    assert_eq!((all[0].name.as_str(), all[0].messages), ("engineering", 3));
}

#[test]
fn messages_of_concurrent_writers_have_no_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let folder = dir.path().to_owned();
            std::thread::spawn(move || {
                let journal = Journal::open(store(&folder)).unwrap();
                for n in 0..25 {
                    let text = format!("{writer} {n}");
                    journal.post(message(person(), &text)).wait().unwrap();
                }
            })
        })
        .collect();
    writers
        .into_iter()
        .for_each(|writer| writer.join().unwrap());
    let journal = Journal::open(store(dir.path())).unwrap();
    let messages = journal.read("engineering", ReadFrom::After(0), 500);
    let messages = messages.wait().unwrap();
    let numbers: Vec<u64> = messages.iter().map(|message| message.number).collect();
    assert_eq!(numbers, (1..=100).collect::<Vec<u64>>());
    for writer in 0..4 {
        let of_writer = messages.iter().filter_map(|message| {
            let (who, n) = message.text.split_once(' ')?;
            (who == writer.to_string()).then(|| n.parse::<u32>().unwrap())
        });
        assert_eq!(of_writer.collect::<Vec<_>>(), (0..25).collect::<Vec<_>>());
    }
}

#[test]
fn invalid_names_messages_and_channels_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let post = |channel: &str, text: &str| {
        let new = NewChannelMessage {
            channel: channel.to_owned(),
            ..message(person(), text)
        };
        journal
            .post(new)
            .wait()
            .map(|receipt| receipt.message.number)
    };
    assert_eq!(post("A", "x"), Err(ChannelError::InvalidName("A".into())));
    assert_eq!(post("a", " \n"), Err(ChannelError::EmptyMessage));
    let long = "x".repeat((64 << 10) + 1);
    assert_eq!(post("a", &long), Err(ChannelError::MessageTooLong(65_537)));
    let missing = Err(ChannelError::NotFound("a".into()));
    assert_eq!(journal.read("a", ReadFrom::Newest, 1).wait(), missing);
    assert_eq!(post("a", "x"), Ok(1));
}

#[test]
fn an_idempotency_key_posts_once() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let new = NewChannelMessage {
        idempotency_key: Some("key".to_owned()),
        ..message(person(), "once")
    };
    let first = journal.post(new.clone()).wait().unwrap();
    assert_eq!(journal.post(new).wait().unwrap().message, first.message);
    assert_eq!(texts(&journal, ReadFrom::After(0), 10), ["once"]);
}

#[test]
fn a_mention_is_queued_for_followers_only() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let [named, by_id, other] =
        ["/w/a", "/w/b", "/w/c"].map(|directory| journal.begin_session(directory, None).unwrap());
    journal.rename_session(&named, "Fix Login").unwrap();
    for session in [&named, &by_id] {
        let follow = journal.follow("engineering", session, Following::On);
        follow.wait().unwrap();
    }
    let unknown = journal.follow("engineering", "ses_none", Following::On);
    assert_eq!(
        unknown.wait(),
        Err(ChannelError::SessionNotFound("ses_none".into()))
    );
    let text = format!("@fix-login and @{by_id} and @{other}: look");
    let receipt = journal.post(message(person(), &text)).wait().unwrap();
    let mut expected = [named.clone(), by_id.clone()];
    expected.sort();
    assert_eq!(receipt.queued, expected);
    assert_eq!(receipt.message.mentions.len(), 3);
    // A session does not get its own messages.
    let own = message(session_author(&named), "@fix-login");
    assert_eq!(journal.post(own).wait().unwrap().queued, [""; 0]);
    // A script of another workspace cannot make the session work, nor a client in a folder above.
    let permissions = |workspace: &str, reach| TurnPermissions {
        sandbox: SandboxPolicy::WorkspaceWrite,
        approval: ApprovalPolicy::Never,
        network: false,
        tool_packs: Vec::new(),
        tools: None,
        workspace: workspace.to_owned(),
        reach,
        max_tokens: None,
        max_cost: None,
    };
    for (workspace, reach, queued) in [
        ("/w/other", WorkspaceReach::WithSubfolders, 0),
        ("/w", WorkspaceReach::WithSubfolders, 1),
        ("/w", WorkspaceReach::FolderOnly, 0),
        ("/w/a", WorkspaceReach::FolderOnly, 1),
    ] {
        let post = NewChannelMessage {
            permissions: Some(permissions(workspace, reach)),
            ..message(session_author(&other), "@fix-login")
        };
        let receipt = journal.post(post).wait().unwrap();
        assert_eq!(receipt.queued.len(), queued, "{workspace} {reach:?}");
        assert_eq!(receipt.refused.len(), 1 - queued, "{:?}", receipt.refused);
    }
    let off = journal.follow("engineering", &named, Following::Off);
    off.wait().unwrap();
    let receipt = journal
        .post(message(person(), "@fix-login"))
        .wait()
        .unwrap();
    assert_eq!(receipt.queued, [""; 0]);
    assert_eq!(
        ChannelStore::list(&*journal).wait().unwrap()[0].followers,
        [by_id]
    );
}

#[test]
fn sessions_that_answer_each_other_reach_the_hop_limit() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let sessions = ["/w", "/w"].map(|folder| journal.begin_session(folder, None).unwrap());
    for session in &sessions {
        let follow = journal.follow("engineering", session, Following::On);
        follow.wait().unwrap();
    }
    let post_as = |from: &str, to: &str| {
        let new = message(session_author(from), &format!("@{to} your turn"));
        journal.post(new).wait()
    };
    let start = message(person(), &format!("@{} begin", sessions[0]));
    journal.post(start.clone()).wait().unwrap();
    let mut turn = 0;
    let error = loop {
        let [mine, other] = match turn % 2 {
            0 => [&sessions[0], &sessions[1]],
            _ => [&sessions[1], &sessions[0]],
        };
        let message = begin_next_turn(&journal, mine);
        turn += 1;
        let posted = post_as(mine, other);
        let finished = journal.finish(&message, InboxState::Answered, "done".into());
        finished.wait().unwrap();
        match posted {
            Ok(receipt) => {
                assert_eq!(receipt.message.hops, turn);
                let cause = format!("engineering#{turn}");
                assert_eq!(receipt.message.cause, Some(cause));
            }
            Err(error) => break error,
        }
    };
    assert_eq!((turn, error), (MAX_HOPS + 1, ChannelError::TooManyHops));
    // A person starts a new chain.
    journal.post(start).wait().unwrap();
    begin_next_turn(&journal, &sessions[0]);
    let receipt = post_as(&sessions[0], &sessions[1]).unwrap();
    assert_eq!(receipt.message.hops, 1);
    // So does a turn that a person started in the session itself.
    let row = serde_json::json!({"type": "message"});
    let rows = journal.items(&sessions[0]).unwrap();
    let last = rows.last().unwrap();
    let next = journal.append_rows(&sessions[0], last.number, last.turn + 1, vec![row]);
    next.wait().unwrap();
    let receipt = post_as(&sessions[0], &sessions[1]).unwrap();
    assert_eq!(receipt.message.hops, 1);
    let cause = format!("{}/T-{}", sessions[0], last.turn + 1);
    assert_eq!(receipt.message.cause, Some(cause));
}

#[test]
fn a_program_with_a_token_is_a_hop_and_a_person_on_the_page_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    for (kind, id, hops) in [
        (AuthorKind::Person, "anna", 0),
        (AuthorKind::Client, "page_a1b2", 0),
        (AuthorKind::Client, "ci", 1),
        (AuthorKind::Client, "page", 1),
        (AuthorKind::Client, "pages_bot", 1),
        (AuthorKind::Run, "run_1", 1),
    ] {
        let author = MessageAuthor {
            kind,
            id: id.to_owned(),
        };
        let receipt = journal.post(message(author, "hello")).wait().unwrap();
        assert_eq!(receipt.message.hops, hops, "{id}");
    }
}

/// Claims the next message of a session, and starts the turn that answers it.
fn begin_next_turn(journal: &Arc<Journal>, session: &str) -> InboxMessage {
    let claimed = journal.claim_next(session).wait().unwrap().unwrap();
    let last = journal.items(session).unwrap();
    let after = last.last().map_or(0, |row| row.number);
    let row = serde_json::json!({"type": "message"});
    let appended = journal.append_rows(session, after, claimed.turn, vec![row]);
    appended.wait().unwrap();
    claimed.message
}

#[test]
fn clients_with_a_token_have_channels_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let options = JournalOptions {
        encryption_key: Some([7; 32]),
        ..JournalOptions::default()
    };
    let journal = Journal::open_with(store(dir.path()), &options).unwrap();
    let owned = journal.channels_of("client one");
    owned.post(message(person(), "mine")).wait().unwrap();
    let missing = Err(ChannelError::NotFound("engineering".into()));
    assert_eq!(
        journal.read("engineering", ReadFrom::Newest, 1).wait(),
        missing
    );
    assert_eq!(ChannelStore::list(&*journal).wait(), Ok(Vec::new()));
    journal.post(message(person(), "theirs")).wait().unwrap();
    let read = owned.read("engineering", ReadFrom::Newest, 9).wait();
    let read = read.unwrap();
    assert_eq!((read.len(), read[0].text.as_str()), (1, "mine"));
    assert_eq!(read[0].channel, "engineering");
    assert_eq!(owned.list().wait().unwrap()[0].name, "engineering");
    // Texts are encrypted.
    assert!(!stores_text(dir.path(), "theirs"));
}
