//! Statements, transactions, locks and errors of a PostgreSQL database, which `SELVEDGE_TEST_STORE`
//! names. Without it, these tests do nothing.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use selvedge_database::{
    ColumnCodec, ColumnCodecError, Connection, DatabaseErrorKind, DatabaseValue, NamedLockMode,
    NoticeListener, OptionalRow, PostgresPool, PostgresUrl, ValueRef, params,
};

/// Returns a database with an empty schema; `None` if there is none to test with.
fn database() -> Option<PostgresUrl> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let url: PostgresUrl = std::env::var("SELVEDGE_TEST_STORE").ok()?.parse().unwrap();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let schema = format!("d_{}_{count}", std::process::id());
    let url = url.with_schema(&schema);
    let connection = Connection::open_postgres(&url).unwrap();
    let drop = format!("DROP SCHEMA IF EXISTS {schema} CASCADE");
    connection.execute_batch(&drop).unwrap();
    connection.create_schema().unwrap();
    let create = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT, data BLOB, size REAL)";
    connection.execute_batch(create).unwrap();
    Some(url)
}

/// Reverses bytes, as an example of a codec.
struct Reverse;

impl ColumnCodec for Reverse {
    fn encrypt(&self, value: ValueRef<'_>) -> Result<Option<DatabaseValue>, ColumnCodecError> {
        let reversed = value.as_bytes().map(|bytes| bytes.iter().rev().copied());
        Ok(reversed.map(|bytes| DatabaseValue::Blob(bytes.collect())))
    }

    fn decrypt(&self, value: ValueRef<'_>) -> Result<Option<DatabaseValue>, ColumnCodecError> {
        self.encrypt(value)
    }

    fn keyed_digest(&self, value: ValueRef<'_>) -> Option<DatabaseValue> {
        let bytes = value.as_bytes()?;
        Some(DatabaseValue::Blob(vec![bytes.len() as u8]))
    }
}

#[test]
fn values_are_read_as_they_were_written() {
    let Some(url) = database() else { return };
    let connection = Connection::open_postgres(&url).unwrap();
    let sql = "INSERT INTO notes (id, text, data, size) VALUES (?1, ?2, ?3, ?4)";
    for (id, text) in [(7, "grüße"), (8, ""), (9, "a\0b"), (10, "\u{10ffff}0")] {
        let row = params![id, text, text.as_bytes(), 0.5];
        assert_eq!(connection.execute(sql, row).unwrap(), 1);
        let read = "SELECT text, data, size FROM notes WHERE id = ?1 AND text = ?2";
        type NoteRow = (String, Vec<u8>, f64);
        let found: NoteRow = connection
            .query_row(read, params![id, text], |row| row.try_into())
            .unwrap();
        assert_eq!(found, (text.to_owned(), text.as_bytes().to_vec(), 0.5));
    }
    let nothing = (None::<String>, None::<Vec<u8>>, None::<f64>);
    let row = params![i64::MAX, nothing.0, nothing.1, nothing.2];
    connection.execute(sql, row).unwrap();
    let read = "SELECT text, data, size FROM notes WHERE id = ?1";
    let found: (Option<String>, Option<Vec<u8>>, Option<f64>) = connection
        .query_row(read, params![i64::MAX], |row| row.try_into())
        .unwrap();
    assert_eq!(found, nothing);
}

#[test]
fn the_client_encrypts_parameters_and_decrypts_columns() {
    let Some(url) = database() else { return };
    let mut connection = Connection::open_postgres(&url).unwrap();
    connection.set_codec(Arc::new(Reverse)).unwrap();
    let sql = "INSERT INTO notes (id, text, data) VALUES (?1, ?2, encrypt(?2))";
    connection.execute(sql, params![1, "abc"]).unwrap();
    let read = "SELECT data, decrypt(data), text FROM notes WHERE data = encrypt(?1)";
    let found: (Vec<u8>, String, String) = connection
        .query_row(read, params!["abc"], |row| row.try_into())
        .unwrap();
    assert_eq!(found, (b"cba".to_vec(), "abc".into(), "abc".into()));
    let digest = "UPDATE notes SET data = keyed_digest(?1)";
    connection.execute(digest, params!["abcd"]).unwrap();
    let stored: Vec<u8> = connection
        .query_row("SELECT data FROM notes", params![], |row| row.get(0))
        .unwrap();
    assert_eq!(stored, [4]);
}

#[test]
fn errors_have_kinds() {
    let Some(url) = database() else { return };
    let connection = Connection::open_postgres(&url).unwrap();
    let insert = "INSERT INTO notes (id) VALUES (?1)";
    connection.execute(insert, params![1]).unwrap();
    let kind = |sql: &str| connection.execute(sql, params![]).unwrap_err().kind();
    let again = "INSERT INTO notes (id) VALUES (1)";
    assert_eq!(kind(again), DatabaseErrorKind::UniqueViolation);
    let unknown = "UPDATE notes SET missing = 1";
    assert_eq!(kind(unknown), DatabaseErrorKind::UnknownColumn);
    assert_eq!(
        kind("SELECT x FROM nothing"),
        DatabaseErrorKind::UnknownColumn
    );
    assert_eq!(kind(insert), DatabaseErrorKind::Other);
    let wrong: PostgresUrl = "postgres://stranger@127.0.0.1:1/x".parse().unwrap();
    let error = Connection::open_postgres(&wrong).unwrap_err();
    assert_eq!(error.kind(), DatabaseErrorKind::Unavailable);
    let shown = error.to_string();
    assert!(
        shown.starts_with("cannot connect to postgres://127.0.0.1:1/x: "),
        "{shown}"
    );
    let missing = connection.query_row("SELECT text FROM notes WHERE id = 2", params![], |row| {
        row.get::<DatabaseValue>(0)
    });
    assert_eq!(missing.optional().unwrap(), None);
}

#[test]
fn a_transaction_is_committed_or_rolled_back_as_a_whole() {
    let Some(url) = database() else { return };
    let connection = Connection::open_postgres(&url).unwrap();
    let count = |connection: &Connection| {
        let count = "SELECT count(*) FROM notes";
        let count: i64 = connection
            .query_row(count, params![], |row| row.get(0))
            .unwrap();
        count
    };
    let insert = |connection: &Connection, id: i64| {
        connection.execute("INSERT INTO notes (id) VALUES (?1)", params![id])
    };
    let other = Connection::open_postgres(&url).unwrap();
    let transaction = connection.begin_write().unwrap();
    insert(&transaction, 1).unwrap();
    assert_eq!((count(&transaction), count(&other)), (1, 0));
    transaction.commit().unwrap();
    assert_eq!(count(&other), 1);
    let transaction = connection.begin_write().unwrap();
    insert(&transaction, 2).unwrap();
    drop(transaction);
    assert!(!connection.is_in_transaction());
    assert_eq!(count(&connection), 1);
    // A transaction in which a statement failed cannot be committed by mistake.
    let transaction = connection.begin_write().unwrap();
    insert(&transaction, 3).unwrap();
    insert(&transaction, 3).unwrap_err();
    transaction.commit().unwrap_err();
    assert_eq!(count(&connection), 1);
    insert(&connection, 4).unwrap();
    // A snapshot does not see later commits.
    connection.begin_snapshot().unwrap();
    assert_eq!(count(&connection), 2);
    insert(&other, 5).unwrap();
    assert_eq!(count(&connection), 2);
    connection.end_snapshot().unwrap();
    assert_eq!(count(&connection), 3);
}

#[test]
fn locks_of_rows_and_names_last_until_the_end_of_the_transaction() {
    let Some(url) = database() else { return };
    let setup = Connection::open_postgres(&url).unwrap();
    let insert = "INSERT INTO notes (id, size) VALUES (1, 0)";
    setup.execute(insert, params![]).unwrap();
    let add = |by_name: bool| {
        let connection = Connection::open_postgres(&url).unwrap();
        for _ in 0..50 {
            let transaction = connection.begin_write().unwrap();
            let lock = match by_name {
                true => {
                    transaction.lock_name("the note", NamedLockMode::Exclusive);
                    ""
                }
                false => transaction.row_lock(),
            };
            let sql = format!("SELECT size FROM notes WHERE id = 1{lock}");
            let size: f64 = transaction
                .query_row(&sql, params![], |row| row.get(0))
                .unwrap();
            let update = "UPDATE notes SET size = ?1";
            transaction.execute(update, params![size + 1.0]).unwrap();
            transaction.commit().unwrap();
        }
    };
    for (by_name, expected) in [(false, 200.0), (true, 400.0)] {
        std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(|| add(by_name))));
        let size: f64 = setup
            .query_row("SELECT size FROM notes", params![], |row| row.get(0))
            .unwrap();
        assert_eq!(size, expected);
    }
}

/// Ends the process of the server that serves a connection.
fn terminate(url: &PostgresUrl, connection: &Connection) {
    let process: i64 = connection
        .query_row("SELECT pg_backend_pid()", params![], |row| row.get(0))
        .unwrap();
    let other = Connection::open_postgres(url).unwrap();
    let sql = "SELECT pg_terminate_backend(CAST(CAST(?1 AS BIGINT) AS INT))";
    let ended: bool = other
        .query_row(sql, params![process], |row| row.get(0))
        .unwrap();
    assert!(ended);
}

#[test]
fn a_lost_connection_is_made_again_except_in_a_transaction() {
    let Some(url) = database() else { return };
    let connection = Connection::open_postgres(&url).unwrap();
    let insert = "INSERT INTO notes (id) VALUES (?1)";
    let count = |connection: &Connection| {
        let sql = "SELECT count(*) FROM notes";
        connection.query_row(sql, params![], |row| row.get::<i64>(0))
    };
    terminate(&url, &connection);
    assert_eq!(count(&connection), Ok(0));
    terminate(&url, &connection);
    connection.begin_snapshot().unwrap();
    assert_eq!(count(&connection), Ok(0));
    connection.end_snapshot().unwrap();
    // Nothing of a lost transaction is written, and none of its statements runs without it.
    let transaction = connection.begin_write().unwrap();
    transaction.execute(insert, params![1]).unwrap();
    terminate(&url, &transaction);
    for id in 2..4 {
        let lost = transaction.execute(insert, params![id]).unwrap_err();
        assert_eq!(lost.kind(), DatabaseErrorKind::Unavailable, "{lost}");
    }
    transaction.commit().unwrap_err();
    assert_eq!(count(&connection), Ok(0));
    connection.execute(insert, params![4]).unwrap();
    assert_eq!(count(&connection), Ok(1));
}

#[test]
fn notices_of_other_processes_arrive_after_their_commit() {
    let Some(url) = database() else { return };
    let connection = Connection::open_postgres(&url).unwrap();
    let listener = NoticeListener::start(&url).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    // As another process sends it.
    let send = |topic: &str| {
        let sql = format!("SELECT pg_notify('selvedge', current_schema() || '/other/{topic}')");
        connection.execute_batch(&sql).unwrap();
    };
    let wait = |topic: &str, seen: &mut u64, timeout: u64| {
        let changed = listener.changed(topic, seen);
        let timeout = std::time::Duration::from_secs(timeout);
        let done = runtime.block_on(async { tokio::time::timeout(timeout, changed).await });
        done.is_ok()
    };
    let mut seen = 0;
    assert!(wait("a", &mut seen, 30), "anything may have changed before");
    send("a");
    assert!(wait("a", &mut seen, 30));
    // The notice of this process has no effect, and one of a transaction that was rolled back is
    // not sent.
    let transaction = connection.begin_write().unwrap();
    transaction.notify("a");
    transaction.commit().unwrap();
    send("b");
    let mut other = seen;
    assert!(wait("b", &mut other, 30));
    assert!(!wait("a", &mut seen, 0));
}

#[test]
fn the_connections_of_a_pool_work_at_the_same_time_and_are_limited() {
    let Some(url) = database() else { return };
    let pool = PostgresPool::of_process(&url, 2);
    let pid = |connection: &Connection| -> i64 {
        let sql = "SELECT CAST(pg_backend_pid() AS BIGINT)";
        connection
            .query_row(sql, params![], |row| row.get(0))
            .unwrap()
    };
    let (one, two) = (Connection::from_pool(&pool), Connection::from_pool(&pool));
    let (first, second) = (one.begin_write().unwrap(), two.begin_write().unwrap());
    let pids = [pid(&first), pid(&second)];
    assert_ne!(pids[0], pids[1]);
    // Others wait until a transaction ends, and then have its connection one after the other.
    let same_pool = PostgresPool::of_process(&url, 100);
    assert_eq!(same_pool.max_connections(), 2);
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    let connection = Connection::from_pool(&same_pool);
                    let transaction = connection.begin_write().unwrap();
                    let other = pid(&transaction);
                    transaction.commit().unwrap();
                    other
                })
            })
            .collect();
        first.commit().unwrap();
        for other in others {
            assert_eq!(other.join().unwrap(), pids[0]);
        }
    });
    // A connection that is dropped in a transaction is not used again.
    let sql = "INSERT INTO notes (id) VALUES (77)";
    second.execute(sql, params![]).unwrap();
    std::mem::forget(second);
    drop(two);
    let later = Connection::from_pool(&pool);
    let notes = "SELECT count(*) FROM notes WHERE id = 77";
    let count = later.query_row(notes, params![], |row| row.get::<i64>(0));
    assert_eq!(count.unwrap(), 0);
    assert_ne!(pid(&later), pids[1]);
}

#[test]
fn a_pool_recovers_when_all_its_connections_were_cut() {
    let Some(url) = database() else { return };
    let pool = PostgresPool::of_process(&url, 4);
    let connections: Vec<Connection> = (0..4).map(|_| Connection::from_pool(&pool)).collect();
    let pid = "SELECT CAST(pg_backend_pid() AS BIGINT)";
    let mut pids = Vec::new();
    for connection in &connections {
        connection.begin_snapshot().unwrap();
        pids.push(
            connection
                .query_row(pid, params![], |row| row.get::<i64>(0))
                .unwrap(),
        );
    }
    connections
        .iter()
        .for_each(|connection| connection.end_snapshot().unwrap());
    let other = Connection::open_postgres(&url).unwrap();
    for pid in pids {
        let cut = format!("SELECT pg_terminate_backend({pid})");
        other.query_row(&cut, params![], |_| Ok(())).unwrap();
    }
    for connection in &connections {
        let one = connection.query_row("SELECT 1", params![], |row| row.get::<i32>(0));
        assert_eq!(one.unwrap(), 1);
    }
}

#[test]
fn a_connection_is_given_up_if_it_does_not_answer_in_time() {
    let Some(url) = database() else { return };
    let connection = Connection::open_postgres(&url).unwrap();
    connection.set_answer_timeout(std::time::Duration::from_millis(500));
    let pid = "SELECT CAST(pg_backend_pid() AS BIGINT)";
    let pid = || connection.query_row(pid, params![], |row| row.get::<i64>(0));
    let first = pid().unwrap();
    // Also after a transaction.
    connection.begin_write().unwrap().commit().unwrap();
    connection
        .execute("INSERT INTO notes (id) VALUES (1)", params![])
        .unwrap();
    let hung = connection.execute(
        "UPDATE notes SET text = (SELECT CAST(pg_sleep(60) AS TEXT))",
        params![],
    );
    assert_eq!(hung.unwrap_err().kind(), DatabaseErrorKind::Unavailable);
    assert_ne!(pid().unwrap(), first);
}
