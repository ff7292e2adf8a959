//! Checks a store: that it can be read and written, and that it has everything its rows refer to.

use std::time::{Duration, Instant};

use selvedge_database::{Connection, params};

use crate::connection::query_first;
use crate::retention::select_all_blob_hashes;
use crate::schema::JOURNAL_SCHEMA;
use crate::time::now_ms;
use crate::{ComponentSchema, JournalError, JournalLocation, connection};

/// How often the time of an answer is measured.
const MEASURED_ANSWERS: u32 = 20;

/// The state of a store.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreReport {
    /// The file, or the address without the password.
    pub place: String,
    /// Name and version of the database.
    pub database: String,
    /// Tables with the number of their rows and their bytes, ordered by name.
    pub tables: Vec<(String, u64, u64)>,
    /// How long a small statement takes, on average.
    pub answer_time: Duration,
    /// How far the clock of the database is ahead of this machine's; `None` for a file.
    pub clock_ahead_ms: Option<i64>,
    /// What is damaged or missing. Empty if all is well.
    pub problems: Vec<String>,
}

/// Checks a store. `components` are the tables of other crates.
pub fn check_store(
    location: &JournalLocation,
    components: &[ComponentSchema],
) -> Result<StoreReport, JournalError> {
    let connection = connection::open_read_write(location, &JOURNAL_SCHEMA)?;
    for schema in [JOURNAL_SCHEMA].iter().chain(components) {
        schema.migrate(&connection)?;
    }
    let mut problems = connection.find_damage()?;
    let missing = format!(
        "SELECT count(*) FROM ({}) AS referenced
         WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE blobs.hash = referenced.hash)",
        select_all_blob_hashes()
    );
    match query_first::<i64>(&connection, &missing, params![])? {
        None | Some(0) => {}
        Some(missing) => problems.push(format!("{missing} large payloads are missing")),
    }
    check_write(&connection)?;
    let started = Instant::now();
    for _ in 0..MEASURED_ANSWERS {
        query_first::<i64>(&connection, "SELECT 1", params![])?;
    }
    let answer_time = started.elapsed() / MEASURED_ANSWERS;
    let clock_ahead_ms = connection.clock_ms()?.map(|clock| clock - now_ms());
    let mut names = connection.tables()?;
    names.retain(|name| !name.starts_with("sqlite_"));
    names.sort();
    let mut tables = Vec::new();
    for name in names {
        let count = format!("SELECT count(*) FROM {name}");
        let rows: Option<i64> = query_first(&connection, &count, params![])?;
        let bytes = connection.table_bytes(&[&name])?;
        tables.push((name, rows.unwrap_or(0).unsigned_abs(), bytes));
    }
    Ok(StoreReport {
        place: location.name().display().to_string(),
        database: connection.version()?,
        tables,
        answer_time,
        clock_ahead_ms,
        problems,
    })
}

/// Writes a row in a transaction, and undoes it.
fn check_write(connection: &Connection) -> Result<(), JournalError> {
    let transaction = connection.begin_write()?;
    let sql = "INSERT INTO secrets (name, value) VALUES ('check', ?1) ON CONFLICT DO NOTHING";
    transaction.execute(sql, params![[0_u8]])?;
    Ok(transaction.rollback()?)
}
