//! The File Cabinet: documents are stored exactly, found by key and source, and expire.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::path::Path;
use std::time::Duration;

use selvedge_database::params;
use selvedge_journal::{Journal, JournalOptions, Retention};
use selvedge_protocol::{DOCUMENT_RETENTION, DocumentKind, DocumentStore, NewDocument};
use support::{database, store, stores_text};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn page<'a>(source: &'a str, content: &'a [u8]) -> NewDocument<'a> {
    NewDocument {
        kind: DocumentKind::Page,
        title: "A page",
        source,
        media_type: "text/markdown",
        content,
    }
}

fn saved<'a>(title: &'a str, content: &'a [u8]) -> NewDocument<'a> {
    NewDocument {
        kind: DocumentKind::Saved,
        title,
        source: "",
        media_type: "text/plain",
        content,
    }
}

/// Executes SQL on the journal's file, for example to make documents older.
fn execute_sql(folder: &Path, sql: &str) {
    database(folder).execute_batch(sql).unwrap();
}

fn retention() -> Retention {
    Retention {
        days: 90,
        megabytes: 1024,
    }
}

#[test]
fn another_process_reads_documents_exactly_as_saved() {
    let dir = tempfile::tempdir().unwrap();
    let large: Vec<u8> = (0..300_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let keys: Vec<String> = {
        let journal = Journal::open(store(dir.path())).unwrap();
        let keep = |content: &[u8]| journal.save(&saved("bytes", content)).unwrap().key;
        [&b""[..], b"\0\xff\r\n", &large].map(keep).into()
    };
    let journal = Journal::open(store(dir.path())).unwrap();
    for (key, content) in keys.iter().zip([&b""[..], b"\0\xff\r\n", &large]) {
        let document = journal
            .get(&format!(" {} ", key.to_lowercase()))
            .unwrap()
            .unwrap();
        assert_eq!(
            (document.content.as_slice(), document.info.bytes),
            (content, content.len() as u64)
        );
        assert_eq!(
            (
                document.info.title.as_str(),
                document.info.media_type.as_str()
            ),
            ("bytes", "text/plain")
        );
    }
    assert!(
        keys.iter()
            .all(|key| key.len() == 8 && key.starts_with('F')),
        "{keys:?}"
    );
    assert_eq!(journal.get("FNOTHERE").unwrap(), None);
    assert!(
        journal
            .save(&saved("too much", &vec![0; (64 << 20) + 1]))
            .unwrap_err()
            .to_string()
            .contains("64 MB")
    );
}

#[test]
fn pages_are_found_by_url_until_they_are_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    journal.save(&page("https://a/", b"old")).unwrap();
    execute_sql(
        dir.path(),
        "UPDATE cabinet SET saved_ms = saved_ms - 3600000",
    );
    let new = journal.save(&page("https://a/", b"new")).unwrap();
    journal.save(&page("https://b/", b"other")).unwrap();
    let found = |kind, source| journal.find_latest(kind, source, DAY).unwrap();
    assert_eq!(found(DocumentKind::Page, "https://a/").unwrap().info, new);
    assert_eq!(found(DocumentKind::Page, "https://c/"), None);
    assert_eq!(found(DocumentKind::Saved, "https://a/"), None);
    execute_sql(
        dir.path(),
        "UPDATE cabinet SET saved_ms = saved_ms - 24 * 3600 * 1000",
    );
    assert_eq!(found(DocumentKind::Page, "https://a/"), None);
    assert_eq!(
        journal.get(&new.key).unwrap().unwrap().content,
        b"new",
        "too old to be found by URL, but still stored"
    );
}

#[test]
fn documents_and_their_payloads_are_removed_after_thirty_days() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let blobs = || {
        let connection = database(dir.path());
        let count = "SELECT count(*) FROM blobs";
        let count = connection.query_row(count, params![], |row| row.get::<i64>(0));
        count.unwrap()
    };
    let old = journal.save(&saved("old", &[1; 5000])).unwrap().key;
    let too_old = DOCUMENT_RETENTION.as_millis() + 1000;
    execute_sql(
        dir.path(),
        &format!("UPDATE cabinet SET saved_ms = saved_ms - {too_old}"),
    );
    let young = journal.save(&saved("young", &[2; 5000])).unwrap().key;
    assert_eq!(
        journal.get(&old).unwrap(),
        None,
        "expired documents are not returned even before retention removes them"
    );
    assert_eq!(
        journal.list_recent(DocumentKind::Saved, 9).unwrap().len(),
        1
    );
    assert_eq!(blobs(), 2);
    assert_eq!(journal.apply_retention(&retention()).unwrap().documents, 1);
    assert_eq!(blobs(), 1);
    assert_eq!(journal.get(&young).unwrap().unwrap().content, [2; 5000]);
}

#[test]
fn a_full_cabinet_removes_the_oldest_pages_but_never_saved_documents() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let mine = journal.save(&saved("mine", b"mine")).unwrap().key;
    let first = journal.save(&page("https://first/", b"1")).unwrap().key;
    let second = journal.save(&page("https://second/", b"2")).unwrap().key;
    let old = format!(
        "UPDATE cabinet SET saved_ms = saved_ms - 1000, bytes = {} WHERE key = '{first}'",
        400 << 20
    );
    execute_sql(
        dir.path(),
        &format!(
            "UPDATE cabinet SET bytes = {} WHERE key = '{mine}'; {old}",
            112 << 20
        ),
    );
    journal.save(&page("https://third/", b"3")).unwrap();
    assert!(journal.get(&first).unwrap().is_none());
    assert!(journal.get(&mine).unwrap().is_some() && journal.get(&second).unwrap().is_some());
    execute_sql(
        dir.path(),
        &format!(
            "UPDATE cabinet SET bytes = {} WHERE key = '{mine}'",
            512 << 20
        ),
    );
    let full = journal.save(&saved("one more", b"x")).unwrap_err();
    assert_eq!(full.to_string(), "the File Cabinet is full (512 MB)");
    assert!(
        journal.get(&second).unwrap().is_some(),
        "no page is removed if that would not make enough room"
    );
}

#[test]
fn an_encrypted_cabinet_contains_no_plain_text() {
    let dir = tempfile::tempdir().unwrap();
    let encrypted = JournalOptions {
        encryption_key: Some([7; 32]),
        ..JournalOptions::default()
    };
    {
        let journal = Journal::open_with(store(dir.path()), &encrypted).unwrap();
        journal
            .save(&page(
                "https://secret.example/path",
                b"the secret content of the page",
            ))
            .unwrap();
        let found = journal
            .find_latest(DocumentKind::Page, "https://secret.example/path", DAY)
            .unwrap()
            .unwrap();
        assert_eq!(found.content, b"the secret content of the page");
    }
    for word in ["secret.example", "secret content", "A page"] {
        assert!(!stores_text(dir.path(), word), "{word}");
    }
}

#[test]
fn documents_of_an_owner_are_found_by_that_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let (one, other) = (journal.documents_of("one"), journal.documents_of("other"));
    let stores: [&dyn DocumentStore; 3] = [&*journal, &*one, &*other];
    let source = "https://example.com/";
    let keys = stores.map(|store| store.save(&page(source, b"x")).unwrap().key);
    for (at, store) in stores.iter().enumerate() {
        for (owner, key) in keys.iter().enumerate() {
            let found = store.get(key).unwrap();
            assert_eq!(found.is_some(), at == owner, "{at} reads {owner}");
        }
        let latest = store.find_latest(DocumentKind::Page, source, DAY).unwrap();
        assert_eq!(latest.unwrap().info.key, keys[at]);
        let listed = store.list_recent(DocumentKind::Page, 9).unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].key, keys[at]);
    }
    // The stored key of another owner is no key.
    let stored: Vec<String> = {
        let file = database(dir.path());
        let mut read = file.prepare_cached("SELECT key FROM cabinet").unwrap();
        let rows = read.query_map(params![], |row| row.get(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    for key in stored.iter().filter(|key| key.contains('@')) {
        assert!(stores.iter().all(|store| store.get(key).unwrap().is_none()));
    }
}

#[test]
fn a_full_cabinet_of_one_owner_neither_blocks_nor_removes_documents_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let (one, other) = (journal.documents_of("one"), journal.documents_of("other"));
    let stores: [&dyn DocumentStore; 3] = [&*journal, &*one, &*other];
    let pages = stores.map(|store| store.save(&page("https://a/", b"x")).unwrap().key);
    let filler = one.save(&saved("large", b"x")).unwrap().key;
    let bytes = 512 << 20;
    execute_sql(
        dir.path(),
        &format!("UPDATE cabinet SET bytes = {bytes} - 1 WHERE key LIKE '{filler}%'"),
    );
    // The owner makes room with its own page, and is full then.
    one.save(&saved("small", b"x")).unwrap();
    assert!(one.get(&pages[1]).unwrap().is_none());
    let full = one.save(&saved("one more", b"x")).unwrap_err();
    assert_eq!(full.to_string(), "the File Cabinet is full (512 MB)");
    for (store, page) in [(stores[0], &pages[0]), (stores[2], &pages[2])] {
        store.save(&saved("mine", b"y")).unwrap();
        assert!(store.get(page).unwrap().is_some());
    }
}
