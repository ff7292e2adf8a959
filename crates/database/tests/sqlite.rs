//! Statements, transactions and errors of a file of SQLite.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Duration;

use selvedge_database::{Connection, DatabaseErrorKind, DatabaseValue, OptionalRow, params};

fn open() -> (tempfile::TempDir, Connection) {
    let dir = tempfile::tempdir().unwrap();
    let connection = Connection::open_file(&dir.path().join("file"), Duration::ZERO).unwrap();
    connection.use_log(Duration::ZERO).unwrap();
    let create = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT, data BLOB, size REAL)";
    connection.execute_batch(create).unwrap();
    (dir, connection)
}

#[test]
fn values_are_read_as_they_were_written() {
    let (_dir, connection) = open();
    let sql = "INSERT INTO notes (id, text, data, size) VALUES (?1, ?2, ?3, ?4)";
    let row = params![7_u32, "grüße", [1_u8, 2], 0.5];
    assert_eq!(connection.execute(sql, row).unwrap(), 1);
    let nothing = (None::<String>, None::<Vec<u8>>);
    let row = params![i64::MAX, nothing.0, nothing.1, 2.0];
    connection.execute(sql, row).unwrap();
    let mut read = connection
        .prepare_cached("SELECT id, text, data, size FROM notes ORDER BY id")
        .unwrap();
    type NoteRow = (i64, Option<String>, Option<Vec<u8>>, f64);
    let rows: Vec<NoteRow> = read
        .query_map(params![], |row| row.try_into())
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let first = (7, Some("grüße".to_owned()), Some(vec![1, 2]), 0.5);
    assert_eq!(rows, [first, (i64::MAX, None, None, 2.0)]);
    let too_large = read.query_row(params![], |row| row.get::<u8>(3));
    assert_eq!(too_large.unwrap_err().kind(), DatabaseErrorKind::WrongType);
}

#[test]
fn errors_have_kinds() {
    let (dir, connection) = open();
    let insert = "INSERT INTO notes (id) VALUES (?1)";
    connection.execute(insert, params![1]).unwrap();
    let kind = |sql: &str| {
        let done = connection.execute(sql, params![]);
        done.unwrap_err().kind()
    };
    assert_eq!(
        kind("INSERT INTO notes (id) VALUES (1)"),
        DatabaseErrorKind::UniqueViolation
    );
    assert_eq!(
        kind("UPDATE notes SET missing = 1"),
        DatabaseErrorKind::UnknownColumn
    );
    assert_eq!(kind(insert), DatabaseErrorKind::Other);
    let missing = connection.query_row("SELECT text FROM notes WHERE id = 2", params![], |row| {
        row.get::<DatabaseValue>(0)
    });
    assert_eq!(missing.optional().unwrap(), None);
    let other = Connection::open_file(&dir.path().join("file"), Duration::ZERO).unwrap();
    let _writing = connection.begin_write().unwrap();
    let busy = other.begin_write().unwrap_err();
    assert_eq!(busy.kind(), DatabaseErrorKind::Busy);
}

#[test]
fn a_transaction_without_a_commit_is_rolled_back() {
    let (_dir, connection) = open();
    let insert = "INSERT INTO notes (id) VALUES (?1)";
    let transaction = connection.begin_write().unwrap();
    transaction.execute(insert, params![1]).unwrap();
    drop(transaction);
    assert!(!connection.is_in_transaction());
    let transaction = connection.begin_write().unwrap();
    transaction.execute(insert, params![2]).unwrap();
    transaction.commit().unwrap();
    let ids: Vec<i64> = connection
        .prepare_cached("SELECT id FROM notes")
        .unwrap()
        .query_map(params![], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(ids, [2]);
}
