//! A journal that requires a newer version of Selvedge is refused, and its bytes stay as they are.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use rusqlite::Connection;
use selvedge_journal::{Journal, JournalError, JournalOptions, MEMORY_SCHEMA_VERSION};
use selvedge_protocol::{DocumentKind, DocumentStore, NewDocument};

const FILE: &str = "journal.sqlite";

/// How the newer version left the file.
#[derive(Debug, Clone, Copy)]
enum FileState {
    /// In WAL mode, closed.
    Closed,
    /// In WAL mode, with its latest writes in the log: the process was killed.
    WithLog,
    /// In the mode with a rollback journal.
    RollbackMode,
}

/// Creates a journal in which `component` requires this schema version.
fn write_journal(folder: &Path, component: &str, version: u32, state: FileState) {
    let other = tempfile::tempdir().unwrap();
    drop(Journal::open(other.path()).unwrap());
    let connection = Connection::open(other.path().join(FILE)).unwrap();
    connection
        .pragma_update(None, "wal_autocheckpoint", 0)
        .unwrap();
    let sql = "INSERT OR REPLACE INTO schema_versions VALUES (?1, ?2, ?2)";
    connection
        .execute(sql, rusqlite::params![component, version])
        .unwrap();
    match state {
        FileState::Closed => {
            drop(connection);
            std::fs::copy(other.path().join(FILE), folder.join(FILE)).unwrap();
        }
        FileState::WithLog => {
            for name in [FILE, "journal.sqlite-wal"] {
                std::fs::copy(other.path().join(name), folder.join(name)).unwrap();
            }
            assert!(folder.join("journal.sqlite-wal").metadata().unwrap().len() > 0);
        }
        FileState::RollbackMode => {
            connection
                .pragma_update(None, "journal_mode", "delete")
                .unwrap();
            drop(connection);
            std::fs::copy(other.path().join(FILE), folder.join(FILE)).unwrap();
        }
    }
}

/// Returns the bytes of the file and of its log.
fn bytes(folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap_or_default();
    (read(FILE), read("journal.sqlite-wal"))
}

#[test]
fn a_newer_journal_is_refused_and_not_written() {
    let memory = MEMORY_SCHEMA_VERSION;
    for (component, version, known) in [
        ("journal", 99, 1),
        ("memory", memory + 1, memory),
        ("channels", 1, 0),
    ] {
        for state in [
            FileState::Closed,
            FileState::WithLog,
            FileState::RollbackMode,
        ] {
            let dir = tempfile::tempdir().unwrap();
            write_journal(dir.path(), component, version, state);
            let before = bytes(dir.path());
            for opened in [
                Journal::open(dir.path()),
                Journal::open_for_reading(dir.path(), &JournalOptions::default()),
            ] {
                let error = opened.unwrap_err();
                assert!(
                    matches!(error, JournalError::NewerSchema { .. }),
                    "{error:?}"
                );
                assert_eq!(
                    error.to_string(),
                    format!(
                        "{} requires a newer version of Selvedge (schema version {version} of \
                         {component}, this version knows {known})",
                        dir.path().join(FILE).display()
                    )
                );
            }
            assert!(bytes(dir.path()) == before, "{component}, {state:?}");
            assert!(!dir.path().join("live").exists());
        }
    }
}

#[test]
fn a_journal_that_becomes_newer_is_not_written_by_an_open_process() {
    for component in ["journal", "memory", "channels"] {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let document = NewDocument {
            kind: DocumentKind::Saved,
            title: "t",
            source: "",
            media_type: "text/plain",
            content: b"x",
        };
        let key = journal.save(&document).unwrap().key;
        let other = Connection::open(dir.path().join(FILE)).unwrap();
        let sql = "INSERT OR REPLACE INTO schema_versions VALUES (?1, 99, 99)";
        other.execute(sql, [component]).unwrap();
        let before = bytes(dir.path());
        let error = journal.save(&document).unwrap_err().to_string();
        assert!(
            error.contains("requires a newer version of Selvedge"),
            "{error}"
        );
        assert!(journal.scrub().is_err());
        assert!(journal.get(&key).unwrap().is_some(), "reading still works");
        drop(other);
        drop(journal);
        assert!(bytes(dir.path()) == before, "{component}");
    }
}

#[test]
fn a_file_of_another_program_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = Connection::open(dir.path().join(FILE)).unwrap();
    file.execute_batch("CREATE TABLE notes (text TEXT)")
        .unwrap();
    drop(file);
    let before = bytes(dir.path());
    assert!(matches!(
        Journal::open(dir.path()),
        Err(JournalError::UnknownSchema { .. })
    ));
    assert!(bytes(dir.path()) == before);
}

#[test]
fn a_file_with_other_columns_is_refused_when_it_is_opened() {
    for change in [
        "ALTER TABLE runs DROP COLUMN recording",
        "ALTER TABLE calls DROP COLUMN shown",
        "ALTER TABLE items RENAME COLUMN item TO content",
    ] {
        let dir = tempfile::tempdir().unwrap();
        drop(Journal::open(dir.path()).unwrap());
        let file = Connection::open(dir.path().join(FILE)).unwrap();
        file.execute_batch(change).unwrap();
        drop(file);
        for opened in [
            Journal::open(dir.path()),
            Journal::open_for_reading(dir.path(), &JournalOptions::default()),
        ] {
            let error = opened.unwrap_err().to_string();
            let file = dir.path().join(FILE);
            let expected = format!(
                "{} has the tables of another, unreleased version of Selvedge",
                file.display()
            );
            assert_eq!(error, expected, "{change}");
        }
    }
}
