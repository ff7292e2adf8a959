//! What an agent server stores: events, tokens, answers to repeated requests, and decisions.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use selvedge_database::params;
use selvedge_journal::{Journal, StoredRow, TokenAccount};
use selvedge_protocol::{
    ApiTokenStore, ApprovalDecider, ApprovalDeciderStore, AuthorKind, ChannelStore, DecisionRace,
    IdempotencyStore, Ledger, MAX_EVENT_READ_BYTES, MessageAuthor, NewApiToken, NewChannelMessage,
    NewInboxMessage, NewSession, ReadFrom, RemovedMessage, RepeatedRequest, RunStart,
    ScriptStoreBackend, ScriptToolCallOutput, ServerStoreError, SessionError, SessionEventStore,
    SessionFolder, SessionQueueStore, SessionStore, StoredReply, TokenScope,
};
use serde_json::{Value, json};
use support::{WaitForResult, database, store};

fn journal() -> (tempfile::TempDir, Arc<Journal>) {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    (dir, journal)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    future.wait()
}

fn token(name: &str, hash: u8) -> NewApiToken {
    NewApiToken {
        name: name.to_owned(),
        secret_hash: [hash; 32],
        scopes: vec![TokenScope::Channels],
        workspaces: vec!["/w".to_owned()],
        expires_ms: None,
        max_cost: None,
    }
}

fn event(kind: &str, text: &str) -> Value {
    json!({"type": kind, "text": text})
}

#[test]
fn events_have_numbers_without_gaps_also_if_two_processes_append() {
    let (dir, journal) = journal();
    let other = Journal::open(store(dir.path())).unwrap();
    std::thread::scope(|scope| {
        for journal in [&journal, &other] {
            scope.spawn(move || {
                block_on(async {
                    for number in 0..50 {
                        let events = vec![event("a", "x"), event("b", &number.to_string())];
                        journal.append_events("ses_1", events).await.unwrap();
                    }
                });
            });
        }
    });
    block_on(async {
        let first = journal.append_events("ses_2", vec![event("a", "y")]).await;
        assert_eq!(first, Ok(1));
        let all = journal.events_after("ses_1", 0, 1000).await.unwrap();
        let numbers: Vec<u64> = all.iter().map(|event| event.number).collect();
        assert_eq!(numbers, (1..=200).collect::<Vec<_>>());
        let some = journal.events_after("ses_1", 198, 1).await.unwrap();
        assert_eq!(some, [all[198].clone()]);
        assert_eq!(
            journal.events_after("ses_1", u64::MAX, 9).await.unwrap(),
            []
        );
        let latest = journal.latest_event("ses_1", "a").await.unwrap().unwrap();
        assert_eq!(latest.number, 199);
        assert_eq!(journal.latest_event("ses_2", "b").await.unwrap(), None);
    });
}

#[test]
fn events_of_some_types_are_read_in_order_and_in_pages() {
    let (_dir, journal) = journal();
    block_on(async {
        let kinds = ["a", "b", "c", "a", "b", "b"];
        let events = kinds.map(|kind| event(kind, "x")).to_vec();
        journal.append_events("ses_1", events).await.unwrap();
        let numbers = async |kinds: &[&str], after, limit| {
            let read = journal.events_of_kinds("ses_1", kinds, after, limit);
            let events = read.await.unwrap().into_iter();
            events.map(|event| event.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&["a", "c"], 0, 9).await, [1, 3, 4]);
        assert_eq!(numbers(&["b", "a"], 1, 3).await, [2, 4, 5]);
        assert_eq!(numbers(&["b"], u64::MAX, 9).await, [0; 0]);
        // Large events end a page for all types.
        let large = "x".repeat(MAX_EVENT_READ_BYTES);
        let events = [("a", ""), ("b", large.as_str()), ("b", "y"), ("a", "")];
        let events = events.map(|(kind, text)| event(kind, text)).to_vec();
        journal.append_events("ses_1", events).await.unwrap();
        assert_eq!(numbers(&["a", "b"], 6, 9).await, [7, 8]);
        assert_eq!(numbers(&["a", "b"], 8, 9).await, [9, 10]);
    });
}

#[test]
fn tokens_are_found_by_hash_and_stay_listed_when_revoked() {
    let (_dir, journal) = journal();
    block_on(async {
        let new = |name: &str, hash| NewApiToken {
            expires_ms: Some(5),
            ..token(name, hash)
        };
        let token = journal.create_token(new("ci", 1)).await.unwrap();
        let taken = journal.create_token(new("ci", 2)).await;
        assert_eq!(
            taken,
            Err(ServerStoreError::TokenNameTaken("ci".to_owned()))
        );
        assert_eq!(
            journal.token_by_hash([1; 32]).await,
            Ok(Some(token.clone()))
        );
        assert_eq!(journal.token_by_hash([2; 32]).await, Ok(None));
        assert!(token.is_valid_at(4) && !token.is_valid_at(5));
        assert!(token.allows_directory("/w/a") && !token.allows_directory("/wx"));
        let revoked = journal.revoke_token("ci").await.unwrap();
        assert!(!revoked.is_valid_at(4));
        assert_eq!(journal.tokens().await.unwrap(), [revoked]);
        let missing = journal.revoke_token("cd").await;
        assert_eq!(
            missing,
            Err(ServerStoreError::TokenNotFound("cd".to_owned()))
        );
    });
}

#[test]
fn of_nested_workspaces_created_at_once_only_one_exists() {
    let (dir, journal) = journal();
    for round in 0..20_u8 {
        let create = |hash, folder: &str| {
            let journal = Journal::open(store(dir.path())).unwrap();
            let token = NewApiToken {
                workspaces: vec![format!("/{round}{folder}")],
                ..token(&format!("{round}-{hash}"), hash)
            };
            move || block_on(journal.create_token(token)).is_ok()
        };
        let [outer, inner] = [create(2 * round, "/a"), create(2 * round + 1, "/a/b")];
        let created = std::thread::scope(|scope| {
            let [outer, inner] = [scope.spawn(outer), scope.spawn(inner)];
            [outer.join().unwrap(), inner.join().unwrap()]
        });
        assert_ne!(created[0], created[1], "round {round}: {created:?}");
    }
    let same = token("same", 100);
    let same = NewApiToken {
        workspaces: journal_workspaces(&journal),
        ..same
    };
    assert!(block_on(journal.create_token(same)).is_ok());
}

fn journal_workspaces(journal: &Journal) -> Vec<String> {
    let tokens = block_on(journal.tokens()).unwrap();
    let workspaces = tokens.into_iter().flat_map(|token| token.workspaces);
    workspaces.collect()
}

#[test]
fn a_key_belongs_to_one_request_and_is_free_after_a_crash() {
    let (dir, journal) = journal();
    block_on(async {
        let begin = |journal: &Arc<Journal>, key: &str, digest| {
            let (journal, key) = (journal.clone(), key.to_owned());
            async move {
                journal
                    .begin_request("tok", &key, [digest; 32])
                    .await
                    .unwrap()
            }
        };
        assert_eq!(begin(&journal, "k", 1).await, RepeatedRequest::New);
        assert_eq!(begin(&journal, "k", 1).await, RepeatedRequest::InProgress);
        assert_eq!(begin(&journal, "k", 2).await, RepeatedRequest::OtherRequest);
        let reply = StoredReply {
            status: 202,
            content_type: "text/event-stream".to_owned(),
            body: "{}".to_owned(),
        };
        let ended = journal.end_request("tok", "k", Some(reply.clone())).await;
        assert_eq!(ended, Ok(()));
        assert_eq!(
            begin(&journal, "k", 1).await,
            RepeatedRequest::Answered(reply)
        );
        assert_eq!(begin(&journal, "failed", 1).await, RepeatedRequest::New);
        journal.end_request("tok", "failed", None).await.unwrap();
        assert_eq!(begin(&journal, "failed", 2).await, RepeatedRequest::New);
        // A process that ended before it answered.
        let killed = Journal::open(store(dir.path())).unwrap();
        assert_eq!(begin(&killed, "crash", 1).await, RepeatedRequest::New);
        assert_eq!(
            begin(&journal, "crash", 1).await,
            RepeatedRequest::InProgress
        );
        drop(killed);
        assert_eq!(begin(&journal, "crash", 1).await, RepeatedRequest::New);
        // The oldest answers go first.
        for number in 0..1100 {
            let key = format!("n{number}");
            assert_eq!(begin(&journal, &key, 1).await, RepeatedRequest::New);
            let reply = StoredReply {
                status: 200,
                content_type: String::new(),
                body: String::new(),
            };
            journal.end_request("tok", &key, Some(reply)).await.unwrap();
        }
        assert_eq!(begin(&journal, "k", 9).await, RepeatedRequest::New);
        assert_eq!(
            begin(&journal, "n1099", 9).await,
            RepeatedRequest::OtherRequest
        );
    });
}

#[test]
fn the_oldest_answers_go_first_whatever_the_clock_says() {
    let (dir, journal) = journal();
    block_on(async {
        let answer = async |key: &str| {
            let begun = journal.begin_request("tok", key, [1; 32]).await;
            assert_eq!(begun, Ok(RepeatedRequest::New), "{key}");
            let reply = StoredReply {
                content_type: "application/json".into(),
                status: 200,
                body: String::new(),
            };
            journal.end_request("tok", key, Some(reply)).await.unwrap();
        };
        for number in 0..1000 {
            answer(&format!("old{number}")).await;
        }
        // As if the clock had been an hour ahead.
        let other = database(dir.path());
        let ahead = "UPDATE api_replies SET at_ms = at_ms + 3600000";
        other.execute(ahead, params![]).unwrap();
        for key in ["a", "b", "c"] {
            answer(key).await;
        }
        for key in ["a", "b", "c", "old999"] {
            let repeated = journal.begin_request("tok", key, [1; 32]).await;
            let is_kept = matches!(repeated, Ok(RepeatedRequest::Answered(_)));
            assert!(is_kept, "{key}: {repeated:?}");
        }
    });
}

#[test]
fn answers_that_name_a_session_are_deleted_with_it() {
    let (_dir, journal) = journal();
    let sessions = ["/w", "/w"].map(|folder| journal.begin_session(folder, None).unwrap());
    let rows = vec![json!({"type": "message"})];
    block_on(journal.append_rows(&sessions[0], 0, 1, rows)).unwrap();
    let answer = |key: &str, session: &str| {
        let begun = block_on(journal.begin_request("tok", key, [1; 32]));
        let is_kept = matches!(begun, Ok(RepeatedRequest::Answered(_)));
        let reply = StoredReply {
            status: 200,
            content_type: String::new(),
            body: format!("{{\"session\": \"{session}\", \"text\": \"zebra\"}}"),
        };
        block_on(journal.end_request("tok", key, Some(reply))).unwrap();
        is_kept
    };
    let answer_both = || [("a", 0), ("b", 1)].map(|(key, at)| answer(key, &sessions[at]));
    assert_eq!(answer_both(), [false, false]);
    assert_eq!(answer_both(), [true, true]);
    for turn in [Some(1), None] {
        journal.forget(&sessions[0], turn, &|rows, _| rows).unwrap();
        assert_eq!(answer_both(), [false, true], "{turn:?}");
    }
}

/// One token may store many long answers, and each deletion blocks all writers.
#[test]
fn a_deletion_reads_no_stored_answers() {
    let (dir, journal) = journal();
    let answers = |body: &str| {
        let begun = journal.begin_request("tok", "k", [1; 32]);
        if matches!(block_on(begun), Ok(RepeatedRequest::Answered(_))) {
            return true;
        }
        let reply = StoredReply {
            content_type: "text/plain".into(),
            status: 200,
            body: body.to_owned(),
        };
        block_on(journal.end_request("tok", "k", Some(reply))).unwrap();
        false
    };
    let delete = || {
        let session = journal.begin_session("/w", None).unwrap();
        journal.forget(&session, None, &|rows, _| rows).unwrap();
    };
    let unreadable: &[u8] = b"";
    assert!(!answers("hello"));
    let file = database(dir.path());
    let damage = "UPDATE api_replies SET body = ?1";
    file.execute(damage, params![unreadable]).unwrap();
    delete();
    file.execute("DELETE FROM api_replies", params![]).unwrap();
    let many: String = (0..100).map(|number| format!("ses_{number} ")).collect();
    assert!(!answers(&many));
    assert!(answers(&many));
    // An answer that names many sessions is deleted with any session.
    delete();
    assert!(!answers(&many));
}

#[test]
fn the_first_decision_about_an_approval_counts() {
    let (_dir, journal) = journal();
    block_on(async {
        let decision = |token: &str| ApprovalDecider {
            approval: "apr_1".to_owned(),
            session: "ses_1".to_owned(),
            token: token.to_owned(),
            decision: "once".to_owned(),
            reason: None,
        };
        assert_eq!(
            journal.record_decider(decision("a")).await,
            Ok(DecisionRace::Won)
        );
        assert_eq!(
            journal.record_decider(decision("b")).await,
            Ok(DecisionRace::Lost)
        );
        assert_eq!(journal.decider("apr_1").await, Ok(Some(decision("a"))));
        assert_eq!(journal.decider("apr_2").await, Ok(None));
    });
}

#[test]
fn waiting_sessions_are_found_and_queued_messages_removed() {
    let (_dir, journal) = journal();
    block_on(async {
        let person = client("ci");
        journal.create_token(token("ci", 7)).await.unwrap();
        let session = NewSession {
            prompt: Some("one".to_owned()),
            idempotency_key: Some("k".to_owned()),
            ..session_of("ci")
        };
        let id = journal.create(session.clone()).await.unwrap().id;
        assert_eq!(journal.create(session).await.unwrap().id, id);
        let message = NewInboxMessage {
            session: id.clone(),
            author: person.clone(),
            text: "two".to_owned(),
            permissions: None,
            idempotency_key: None,
            max_open_messages: None,
        };
        journal.send(message).await.unwrap();
        assert_eq!(journal.open_message_count("ci").await, Ok(2));
        let waiting = journal.waiting_sessions().await.unwrap();
        assert_eq!(
            (waiting.len(), &waiting[0].id, &waiting[0].author),
            (1, &id, &person)
        );
        let claimed = journal.claim_next(&id).await.unwrap().unwrap();
        assert_eq!(claimed.message.text, "one");
        assert_eq!(claimed.message.permissions, None);
        for (number, outcome) in [
            (1, RemovedMessage::AlreadyStarted),
            (2, RemovedMessage::Removed),
            (2, RemovedMessage::AlreadyStarted),
            (3, RemovedMessage::NotFound),
        ] {
            assert_eq!(
                journal.remove_message(&id, number).await,
                Ok(outcome),
                "{number}"
            );
        }
        assert_eq!(journal.open_message_count("ci").await, Ok(1));
    });
}

#[test]
fn failures_below_a_folder_do_not_hide_those_in_it() {
    let (_dir, journal) = journal();
    let limit = 3;
    block_on(async {
        journal.create_token(token("ci", 7)).await.unwrap();
        let below = std::iter::repeat_n("/w/sub", limit as usize);
        let mut sessions = Vec::new();
        for directory in std::iter::once("/w").chain(below) {
            let session = NewSession {
                directory: directory.to_owned(),
                prompt: Some("one".to_owned()),
                ..session_of("ci")
            };
            sessions.push(journal.create(session).await.unwrap().id);
        }
        journal.revoke_token("ci").await.unwrap();
        for id in &sessions {
            // The message of a revoked token fails.
            assert_eq!(journal.claim_next(id).await, Ok(None));
        }
        let folders = ["/w".to_owned()];
        let failed = journal.failed_messages(&folders, limit).await.unwrap();
        let failed: Vec<_> = failed.into_iter().map(|failed| failed.session).collect();
        assert_eq!(failed, sessions[..1]);
    });
}

fn client(token: &str) -> MessageAuthor {
    MessageAuthor {
        kind: AuthorKind::Client,
        id: token.to_owned(),
    }
}

fn session_of(token: &str) -> NewSession {
    NewSession {
        title: None,
        environment: None,
        directory: "/w".to_owned(),
        folder: SessionFolder::Shared,
        creator: client(token),
        permissions: None,
        prompt: None,
        idempotency_key: None,
        max_open_messages: None,
        max_client_sessions: None,
    }
}

#[test]
fn two_servers_do_not_exceed_the_limits_of_a_token_together() {
    let (dir, first) = journal();
    block_on(first.create_token(token("ci", 7))).unwrap();
    let second = Journal::open(store(dir.path())).unwrap();
    let id = block_on(first.create(session_of("ci"))).unwrap().id;
    let sent = std::thread::scope(|scope| {
        let send = |journal: &Arc<Journal>| {
            let (journal, id) = (journal.clone(), id.clone());
            move || {
                let mut sent = (0, 0);
                for _ in 0..20 {
                    let message = NewInboxMessage {
                        session: id.clone(),
                        author: client("ci"),
                        text: "hi".to_owned(),
                        permissions: None,
                        idempotency_key: None,
                        max_open_messages: Some(12),
                    };
                    match block_on(journal.send(message)) {
                        Ok(_) => sent.0 += 1,
                        Err(error) => assert_eq!(error, SessionError::TooManyOpen(12)),
                    }
                    let session = NewSession {
                        max_client_sessions: Some(8),
                        ..session_of("ci")
                    };
                    match block_on(journal.create(session)) {
                        Ok(_) => sent.1 += 1,
                        Err(error) => assert_eq!(error, SessionError::TooManySessions(8)),
                    }
                }
                sent
            }
        };
        let threads = [scope.spawn(send(&first)), scope.spawn(send(&second))];
        threads.map(|thread| thread.join().unwrap())
    });
    // One session was created before.
    assert_eq!((sent[0].0 + sent[1].0, sent[0].1 + sent[1].1), (12, 7));
    // The first message of a session counts as well.
    let session = NewSession {
        prompt: Some("hi".to_owned()),
        max_open_messages: Some(12),
        ..session_of("ci")
    };
    let refused = block_on(second.create(session));
    assert_eq!(refused, Err(SessionError::TooManyOpen(12)));
}

#[test]
fn turns_at_the_same_time_see_each_others_costs() {
    let (dir, first) = journal();
    let rich = NewApiToken {
        max_cost: Some(1.0),
        ..token("ci", 7)
    };
    block_on(first.create_token(rich)).unwrap();
    let second = Journal::open(store(dir.path())).unwrap();
    let accounts = [&first, &second].map(|one| TokenAccount::new(one.clone(), "ci".to_owned()));
    let settle = |account: &TokenAccount| block_on(account.settle()).unwrap();
    accounts[0].add(0.4);
    assert!(settle(&accounts[0]) && settle(&accounts[1]));
    accounts[1].add(0.6);
    assert!(!settle(&accounts[1]));
    assert!(!settle(&accounts[0]));
    // What was not settled is stored with the end of the turn.
    accounts[0].add(0.5);
    drop(accounts);
    first.flush().unwrap();
    let spent = block_on(first.tokens()).unwrap()[0].spent;
    assert!((spent - 1.5).abs() < 1e-9, "{spent}");
}

#[test]
fn a_turn_is_forgotten_by_its_number_if_clocks_differ() {
    let (dir, journal) = journal();
    let session = journal.begin_session("/w", None).unwrap();
    let mut children = Vec::new();
    for turn in 1..=3 {
        let row = vec![json!({"turn": turn})];
        block_on(journal.append_rows(&session, turn - 1, turn, row)).unwrap();
        let events = vec![event("item", &turn.to_string())];
        block_on(journal.append_events(&session, events)).unwrap();
        let value = BTreeMap::from([(turn.to_string(), "1".to_owned())]);
        block_on(journal.script_values(&session).put(value)).unwrap();
        let post = NewChannelMessage {
            channel: "engineering".to_owned(),
            author: MessageAuthor {
                kind: AuthorKind::Session,
                id: session.clone(),
            },
            text: format!("post {turn}"),
            permissions: None,
            idempotency_key: None,
            max_open_messages: None,
        };
        block_on(journal.post(post)).unwrap();
        let id = format!("scr_{turn}");
        let run = RunStart {
            id: &id,
            source: "return 1",
            directory: "/w",
            session: &session,
            seed: "1",
            resumes: None,
            saved_config: "",
        };
        let output = ScriptToolCallOutput::new(&id, "");
        block_on(journal.record_run_start_and_end(run, &output, None)).unwrap();
        children.push(journal.begin_session("/w", Some(&session)).unwrap());
    }
    // The clock of the server of the second turn is 30 s behind, that of the third one 60 s.
    let shift = "UPDATE items SET at_ms = at_ms - 30000 * (turn - 1)";
    database(dir.path()).execute(shift, params![]).unwrap();
    let keep = |rows: Vec<StoredRow>, turns: &BTreeSet<u32>| {
        let kept = rows.into_iter().filter(|row| !turns.contains(&row.turn));
        kept.collect()
    };
    let report = journal.forget(&session, Some(2), &keep).unwrap();
    assert_eq!(report.runs, 1);
    assert_eq!(report.sessions, BTreeSet::from([children[1].clone()]));
    assert_eq!(journal.claim_number(&children[1]), None);
    block_on(async {
        let events = journal.events_after(&session, 0, 9).await.unwrap();
        let kinds = events.iter().map(|event| event.body["type"].as_str());
        let expected = ["item", "event.forgotten", "item"].map(Some);
        assert_eq!(kinds.collect::<Vec<_>>(), expected);
        let values = journal.script_values(&session);
        for (key, is_kept) in [("1", true), ("2", false), ("3", true)] {
            assert_eq!(values.get(key).await.unwrap().is_some(), is_kept, "{key}");
            assert_eq!(journal.run(&format!("scr_{key}")).is_ok(), is_kept, "{key}");
        }
        let posts = journal.read("engineering", ReadFrom::After(0), 9).await;
        let texts = posts.unwrap().into_iter().map(|post| post.text);
        let expected = ["post 1", "(forgotten)", "post 3"];
        assert_eq!(texts.collect::<Vec<_>>(), expected);
    });
}
