//! Migrations, and programs of several versions that use one database.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use selvedge_protocol::{DocumentKind, DocumentStore, NewDocument};

use super::*;
use crate::test_store::{database, store, uses_files};
use crate::{Journal, JournalOptions, LeaseTimes};

const FIRST: ComponentSchema = ComponentSchema {
    component: "test",
    migrations: &[SchemaMigration::Expand(
        "CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('first')",
    )],
};
const SECOND: ComponentSchema = ComponentSchema {
    component: "test",
    migrations: &[
        FIRST.migrations[0],
        SchemaMigration::Expand(
            "ALTER TABLE notes ADD COLUMN length INTEGER; UPDATE notes SET length = length(text)",
        ),
    ],
};
const BROKEN: ComponentSchema = ComponentSchema {
    component: "test",
    migrations: &[
        SECOND.migrations[0],
        SECOND.migrations[1],
        SchemaMigration::Expand("DELETE FROM notes"),
        SchemaMigration::Expand("UPDATE nothing SET x = 1"),
    ],
};

/// The next version of the journal, which adds a column.
const EXPANDED_JOURNAL: ComponentSchema = ComponentSchema {
    component: "journal",
    migrations: &[
        JOURNAL_SCHEMA.migrations[0],
        SchemaMigration::Expand("ALTER TABLE cabinet ADD COLUMN colour TEXT DEFAULT 'red'"),
    ],
};
/// The version after it, which removes what only the first version needs.
const CONTRACTED_JOURNAL: ComponentSchema = ComponentSchema {
    component: "journal",
    migrations: &[
        EXPANDED_JOURNAL.migrations[0],
        EXPANDED_JOURNAL.migrations[1],
        SchemaMigration::Contract {
            sql: "ALTER TABLE cabinet DROP COLUMN bytes",
            compatible_since: 2,
        },
    ],
};
// The tests name the migrations one by one.
const _: () = assert!(JOURNAL_SCHEMA.migrations.len() == 1);

const TIMES: LeaseTimes = LeaseTimes {
    duration: Duration::from_millis(1000),
    renewal: Duration::from_millis(200),
};
/// How long a test waits for what must happen.
const TIMEOUT: Duration = Duration::from_secs(30);

fn open(folder: &Path, schema: ComponentSchema) -> Result<Connection, JournalError> {
    schema.open(store(folder), &ColumnEncryption::disabled())
}

fn lengths(connection: &Connection) -> Vec<i64> {
    let mut read = connection
        .prepare_cached("SELECT length FROM notes")
        .unwrap();
    let rows = read.query_map(params![], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

/// Opens the journal as a process of this version with a lease.
fn open_journal(folder: &Path, times: LeaseTimes) -> Arc<Journal> {
    let options = JournalOptions {
        leases: Some(times),
        ..JournalOptions::default()
    };
    Journal::open_with(store(folder), &options).unwrap()
}

fn document(content: &[u8]) -> NewDocument<'_> {
    NewDocument {
        kind: DocumentKind::Saved,
        title: "t",
        source: "",
        media_type: "text/plain",
        content,
    }
}

#[test]
fn missing_migrations_are_applied_in_order_and_once() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), FIRST).unwrap());
    assert_eq!(lengths(&open(dir.path(), SECOND).unwrap()), [5]);
    assert_eq!(lengths(&open(dir.path(), SECOND).unwrap()), [5]);
    // A new file gets all migrations.
    let other = tempfile::tempdir().unwrap();
    assert_eq!(lengths(&open(other.path(), SECOND).unwrap()), [5]);
}

#[test]
fn a_failed_migration_is_rolled_back() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), FIRST).unwrap());
    let failed = open(dir.path(), BROKEN);
    assert!(matches!(failed, Err(JournalError::Database(_))));
    assert_eq!(lengths(&open(dir.path(), SECOND).unwrap()), [5]);
}

#[test]
fn each_component_has_its_own_version() {
    let dir = tempfile::tempdir().unwrap();
    let memory = ComponentSchema {
        component: "memory",
        ..FIRST
    };
    drop(Journal::open(store(dir.path())).unwrap());
    drop(open(dir.path(), memory).unwrap());
    drop(Journal::open(store(dir.path())).unwrap());
}

#[test]
fn an_older_process_continues_after_a_migration_that_adds_something() {
    let dir = tempfile::tempdir().unwrap();
    let old = open_journal(dir.path(), TIMES);
    let before = old.save(&document(b"before")).unwrap().key;
    drop(open(dir.path(), EXPANDED_JOURNAL).unwrap());

    let after = old.save(&document(b"after")).unwrap().key;
    for (key, content) in [(&before, &b"before"[..]), (&after, b"after")] {
        assert_eq!(old.get(key).unwrap().unwrap().content, content);
    }
    // An older program may also be started again. It leaves the version as it is.
    let again = open_journal(dir.path(), TIMES);
    let key = again.save(&document(b"again")).unwrap().key;
    assert_eq!(old.get(&key).unwrap().unwrap().content, b"again");
    let new = open(dir.path(), EXPANDED_JOURNAL).unwrap();
    let stored = EXPANDED_JOURNAL.stored_version(&new).unwrap();
    assert_eq!((stored.version, stored.compatible_since), (2, 0));
    let colours = "SELECT count(*) FROM cabinet WHERE colour = 'red'";
    let coloured = new.query_row(colours, params![], |row| row.get::<i64>(0));
    assert_eq!(coloured.unwrap(), 3);
}

#[test]
fn a_migration_that_removes_something_waits_for_the_end_of_older_processes() {
    let dir = tempfile::tempdir().unwrap();
    // The lease of the second one ends because it is not renewed, as if its process were killed.
    let killed = LeaseTimes {
        renewal: Duration::from_secs(3600),
        ..TIMES
    };
    let (old, dead) = (
        open_journal(dir.path(), TIMES),
        open_journal(dir.path(), killed),
    );
    old.save(&document(b"old")).unwrap();
    dead.save(&document(b"dead")).unwrap();
    drop(open(dir.path(), EXPANDED_JOURNAL).unwrap());

    let refused = open(dir.path(), CONTRACTED_JOURNAL).unwrap_err();
    let JournalError::OlderProcesses { processes, .. } = &refused else {
        panic!("{refused}");
    };
    assert_eq!(*processes, [crate::liveness::process_name()]);
    // Nothing has changed for the older process.
    let key = old.save(&document(b"still")).unwrap().key;
    drop(old);

    let started = Instant::now();
    let new = loop {
        match open(dir.path(), CONTRACTED_JOURNAL) {
            Ok(new) => break new,
            Err(JournalError::OlderProcesses { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(started.elapsed() < TIMEOUT, "the lease does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    let stored = CONTRACTED_JOURNAL.stored_version(&new).unwrap();
    assert_eq!((stored.version, stored.compatible_since), (3, 2));

    // The killed process wakes up too late, and cannot write.
    let late = dead.save(&document(b"late")).unwrap_err().to_string();
    assert!(
        late.contains("schema version 2 of journal, this version knows 1"),
        "{late}"
    );
    let count = "SELECT count(*) FROM cabinet WHERE key = ?1";
    let kept = new.query_row(count, params![key], |row| row.get::<i64>(0));
    assert_eq!(kept.unwrap(), 1);
    let reopened = Journal::open(store(dir.path()));
    assert!(matches!(
        reopened,
        Err(JournalError::NewerSchema {
            required: 2,
            known: 1,
            ..
        })
    ));
    // A program of the version between both still works.
    drop(open(dir.path(), EXPANDED_JOURNAL).unwrap());
}

#[test]
fn a_migration_that_removes_something_waits_for_writes_that_have_begun() {
    if uses_files() {
        // A file has one writer at a time.
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), EXPANDED_JOURNAL).unwrap());
    let (writer, observer) = (database(dir.path()), database(dir.path()));
    let no_timeout = "SET idle_in_transaction_session_timeout = 0";
    writer.execute_batch(no_timeout).unwrap();
    let transaction = writer.begin_write().unwrap();
    EXPANDED_JOURNAL.refuse_too_old(&transaction).unwrap();
    std::thread::scope(|scope| {
        let migrating = scope.spawn(|| open(dir.path(), CONTRACTED_JOURNAL).map(drop));
        let waiting = "SELECT count(*) FROM pg_locks
            WHERE NOT granted AND relation = to_regclass('schema_versions')";
        let is_waiting = || {
            let count = observer.query_row(waiting, params![], |row| row.get::<i64>(0));
            count.unwrap() > 0
        };
        let started = Instant::now();
        while !is_waiting() {
            assert!(!migrating.is_finished(), "the migration did not wait");
            assert!(started.elapsed() < TIMEOUT, "no migration waits");
        }
        let sql = "INSERT INTO cabinet (key, kind, origin, about, content, bytes, saved_ms)
            VALUES ('k', 'saved', ?1, ?1, ?1, 0, 0)";
        transaction.execute(sql, params![b"x"]).unwrap();
        transaction.commit().unwrap();
        migrating.join().unwrap().unwrap();
    });
}

#[test]
fn tables_of_an_unknown_component_are_no_obstacle_until_they_require_it() {
    let dir = tempfile::tempdir().unwrap();
    drop(Journal::open(store(dir.path())).unwrap());
    drop(open(dir.path(), SECOND).unwrap());
    let journal = Journal::open(store(dir.path())).unwrap();
    journal.save(&document(b"x")).unwrap();
    let raise = "UPDATE schema_versions SET compatible_since = 2 WHERE component = 'test'";
    database(dir.path()).execute(raise, params![]).unwrap();
    let error = journal.save(&document(b"y")).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "requires a newer version of Selvedge (schema version 2 of test, this version \
             knows 0)"
        ),
        "{error}"
    );
}
