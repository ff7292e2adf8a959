//! Copies a store into another database and back, and compares what both return. With
//! `SELVEDGE_TEST_STORE`, the other database is PostgreSQL, else a second file.
#![allow(missing_docs, clippy::unwrap_used)]

mod chats;
#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;

use selvedge_database::params;
use selvedge_journal::{Journal, JournalError, JournalLocation, Redactor, check_store, copy_store};
use selvedge_memory::{Level, Memory, MemoryQuery, NewTurn, memory_schema};
use selvedge_protocol::{
    ChannelStore, DocumentKind, DocumentStore, Ledger, NewChannelMessage, NewDocument, RunStart,
};
use serde_json::json;
use support::{WaitForResult, database, store};

const QUESTIONS: [&str; 4] = [
    "zyzzyvaplex in Qaanaaq",
    "the stairs of the north wing",
    "telescope and pottery",
    "what did Bartholomewina say",
];

fn fill_memory(memory: &Arc<Memory>) {
    for line in chats::chat(5, 12).lines {
        let turn = NewTurn {
            speaker: Some(&line.speaker),
            ts: Some(&line.ts),
            ..NewTurn::text("user", &line.text)
        };
        memory.append("s", &turn).unwrap();
    }
    let marked = NewTurn {
        key: Some("\"turnkey77\""),
        speaker: Some("Bartholomewina"),
        ts: Some("2026-01-01T00:00:00Z"),
        ..NewTurn::text(
            "user",
            "I always keep the zyzzyvaplex in Qa\0anaaq, never elsewhere.",
        )
    };
    memory.append("s", &marked).unwrap();
    while memory.write_levels(None).unwrap().remaining_turns > 0 {}
}

/// What a memory returns.
fn recalled(memory: &Memory) -> Vec<String> {
    let mut found = Vec::new();
    for question in QUESTIONS {
        let query = MemoryQuery {
            max_turns: 20,
            ..MemoryQuery::new(question)
        };
        found.push(format!("{:?}", memory.search(&query).unwrap()));
    }
    for number in 1..=memory.turn_count("s").unwrap() {
        for level in [Level::Raw, Level::Tiny] {
            let text = memory.turn_at_level("s", number, level).unwrap();
            found.push(String::from_utf8(text).unwrap());
        }
    }
    let by_key = memory.find_turn_by_key("s", "\"turnkey77\"").unwrap();
    found.push(format!("{by_key:?}"));
    found
}

fn open_memory(location: &JournalLocation) -> Arc<Memory> {
    Arc::new(Memory::open(location, Redactor::new([])).unwrap())
}

/// Fills a journal, and returns its session.
fn fill_journal(location: &JournalLocation) -> String {
    let journal = Journal::open(location).unwrap();
    let session = journal.begin_session("/work", None).unwrap();
    let items = vec![json!({"text": "hi\0"}), json!({"text": "x".repeat(9000)})];
    journal.append_rows(&session, 0, 1, items).wait().unwrap();
    let start = RunStart {
        id: "scr_a",
        source: "return 1",
        directory: "/work",
        session: &session,
        seed: "7",
        resumes: None,
        saved_config: "{}",
    };
    journal.record_run_start(start).wait().unwrap();
    let document = NewDocument {
        kind: DocumentKind::Saved,
        title: "title",
        source: "",
        media_type: "text/plain",
        content: &[7; 5000],
    };
    journal.save(&document).unwrap();
    let message = NewChannelMessage {
        channel: "engineering".into(),
        author: selvedge_protocol::MessageAuthor {
            kind: selvedge_protocol::AuthorKind::Person,
            id: "ann".into(),
        },
        text: "hello".into(),
        permissions: None,
        idempotency_key: Some("key".into()),
        max_open_messages: None,
    };
    journal.post(message).wait().unwrap();
    session
}

/// What a journal returns.
fn recorded(location: &JournalLocation, session: &str) -> String {
    let journal = Journal::open(location).unwrap();
    let documents = journal.list_recent(DocumentKind::Saved, 9).unwrap();
    let content = journal.get(&documents[0].key).unwrap().unwrap().content;
    format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
        journal.items(session).unwrap(),
        journal.session(session).unwrap(),
        journal.run("scr_a").unwrap().source,
        documents,
        content,
    )
}

fn copy(from: &JournalLocation, to: &JournalLocation) -> Vec<(String, u64, bool)> {
    let copied = copy_store(from, to, &[memory_schema()], &mut |_| {}).unwrap();
    let tables = copied.into_iter();
    tables
        .map(|table| (table.table, table.rows, table.was_equal))
        .collect()
}

fn execute(folder: &Path, sql: &str) {
    database(folder).execute(sql, params![]).unwrap();
}

/// Marks a target as one whose copy is not complete.
const MARK_AS_INTERRUPTED: &str =
    "INSERT INTO schema_versions (component, version, compatible_since)
     VALUES ('store copy', 0, 1)";

#[test]
fn a_store_is_copied_into_another_database_and_back() {
    let [first, other, last] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [file, second, back] = [
        JournalLocation::file_in(first.path()),
        store(other.path()),
        JournalLocation::file_in(last.path()),
    ];
    let session = fill_journal(&file);
    fill_memory(&open_memory(&file));
    let before = (recorded(&file, &session), recalled(&open_memory(&file)));
    copy(&file, &second);
    assert_eq!(recorded(&second, &session), before.0);
    assert_eq!(recalled(&open_memory(&second)), before.1);
    copy(&second, &back);
    assert_eq!(recorded(&back, &session), before.0);
    assert_eq!(recalled(&open_memory(&back)), before.1);
    for place in [&file, &second, &back] {
        let report = check_store(place, &[memory_schema()]).unwrap();
        assert_eq!(report.problems, [""; 0], "{}", report.place);
        assert!(
            report.tables.iter().any(|(table, rows, bytes)| {
                table == "memory_turns" && *rows > 10 && *bytes > 0
            })
        );
    }
    // The numbers of sessions and turns go on.
    for place in [&second, &back] {
        let memory = open_memory(place);
        let turns = memory.turn_count("s").unwrap();
        let turn = NewTurn::text("user", "one more");
        assert_eq!(memory.append("s", &turn).unwrap(), turns + 1);
        assert_eq!(memory.append("t", &turn).unwrap(), 1);
        let marked = NewTurn {
            key: Some("\"turnkey77\""),
            ..turn.clone()
        };
        assert_eq!(memory.append("s", &marked).unwrap(), turns);
    }
}

#[test]
fn an_interrupted_copy_continues_and_a_changed_source_is_copied_again() {
    let [first, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (file, target) = (JournalLocation::file_in(first.path()), store(other.path()));
    let session = fill_journal(&file);
    fill_memory(&open_memory(&file));
    let rows = |tables: &[(String, u64, bool)]| -> u64 { tables.iter().map(|t| t.1).sum() };
    let copied = copy(&file, &target);
    assert!(rows(&copied) > 100, "{copied:?}");
    assert!(copied.iter().all(|(_, rows, equal)| *equal == (*rows == 0)));
    let again = copy(&file, &target);
    assert!(again.iter().all(|(.., equal)| *equal), "{again:?}");
    let used = Journal::open(&target).unwrap();
    // As if the process had been killed while it copied the turns.
    execute(other.path(), MARK_AS_INTERRUPTED);
    execute(other.path(), "DELETE FROM memory_turns WHERE at_ms > 0");
    // What other programs would write to it could be deleted.
    let refused = Journal::open(&target).unwrap_err();
    assert!(
        matches!(refused, JournalError::UnfinishedCopy { .. }),
        "{refused}"
    );
    let refused = used.begin_session("/work", None).unwrap_err();
    assert!(
        matches!(refused, JournalError::UnfinishedCopy { .. }),
        "{refused}"
    );
    drop(used);
    let back = store(&other.path().join("back"));
    let refused = copy_store(&target, &back, &[memory_schema()], &mut |_| {}).unwrap_err();
    assert!(
        matches!(refused, JournalError::UnfinishedCopy { .. }),
        "{refused}"
    );
    let continued = copy(&file, &target);
    let copied: Vec<&str> = continued
        .iter()
        .filter(|(.., equal)| !equal)
        .map(|(table, ..)| table.as_str())
        .collect();
    assert_eq!(copied, ["memory_turns"]);
    // The source was used between two attempts.
    let raw = selvedge_database::Connection::open_file(
        &first.path().join("journal.sqlite"),
        std::time::Duration::from_secs(20),
    );
    let rename = "UPDATE sessions SET title = 'renamed'";
    raw.unwrap().execute(rename, params![]).unwrap();
    execute(other.path(), MARK_AS_INTERRUPTED);
    copy(&file, &target);
    let title = Journal::open(&target).unwrap().session(&session).unwrap();
    assert_eq!(title.title.as_deref(), Some("renamed"));
}

#[test]
fn another_store_is_not_overwritten() {
    let [first, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (file, target) = (JournalLocation::file_in(first.path()), store(other.path()));
    fill_journal(&file);
    let theirs = fill_journal(&target);
    open_memory(&file);
    let refused = |from: &JournalLocation, to: &JournalLocation| {
        let error = copy_store(from, to, &[memory_schema()], &mut |_| {}).unwrap_err();
        assert!(matches!(error, JournalError::StoreCopy(_)), "{error}");
        error.to_string()
    };
    assert!(refused(&file, &target).contains("has other sessions or runs"));
    assert!(refused(&file, &file).contains("are the same"));
    let missing = JournalLocation::file_in(&first.path().join("missing"));
    assert!(refused(&missing, &target).contains("there is no journal"));
    Journal::open(&target).unwrap().session(&theirs).unwrap();
}

#[test]
fn a_target_that_was_used_is_not_overwritten() {
    let [first, other, third] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let (file, target) = (JournalLocation::file_in(first.path()), store(other.path()));
    fill_journal(&file);
    open_memory(&file);
    let refused = |to: &JournalLocation| {
        let error = copy_store(&file, to, &[memory_schema()], &mut |_| {}).unwrap_err();
        error.to_string()
    };
    copy(&file, &target);
    // The same store, in which work went on.
    let later = Journal::open(&target)
        .unwrap()
        .begin_session("/work", None)
        .unwrap();
    assert!(refused(&target).contains("the table sessions was changed"));
    Journal::open(&target).unwrap().session(&later).unwrap();
    // Another store that has memory only.
    let remembering = store(third.path());
    fill_memory(&open_memory(&remembering));
    let turns = open_memory(&remembering).turn_count("s").unwrap();
    assert!(refused(&remembering).contains("or other memory"));
    assert_eq!(open_memory(&remembering).turn_count("s").unwrap(), turns);
}

#[test]
fn both_databases_rank_the_same_turns_in_the_same_order() {
    let [first, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let memories = [
        open_memory(&JournalLocation::file_in(first.path())),
        open_memory(&store(other.path())),
    ];
    memories.iter().for_each(fill_memory);
    assert_eq!(recalled(&memories[0]), recalled(&memories[1]));
}
