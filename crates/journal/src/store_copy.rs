//! Copies everything that is stored in one database into another one, and checks that both have the
//! same.
//!
//! A copy that was interrupted continues: tables that are equal on both sides are not copied again.
//! Two tables are equal if they have as many rows, and the sums of the digests of their rows are
//! equal. Only an empty target, or one that an interrupted copy of the same source has marked, is
//! changed: a target that was used since is refused. All other programs refuse a marked target.

use selvedge_database::{Connection, DatabaseValue, params};
use sha2::{Digest, Sha256};

use crate::connection::query_first;
use crate::schema::JOURNAL_SCHEMA;
use crate::{ComponentSchema, JournalError, JournalLocation, SchemaMigration, connection};

/// Rows that one transaction copies, and their bytes.
const MAX_ROWS_PER_WRITE: usize = 500;
const MAX_BYTES_PER_WRITE: usize = 8 << 20;
/// Marks a target in `schema_versions` until its copy is complete. Only a copy knows this
/// component, so all other programs refuse the target.
pub(crate) const COPY_MARK: &str = "store copy";
/// The schema with which a copy opens a target.
const COPY_SCHEMA: ComponentSchema = ComponentSchema {
    component: COPY_MARK,
    migrations: &[SchemaMigration::Expand("")],
};
/// Tables that have rows as soon as a store was opened.
const OPENED_TABLES: [&str; 3] = ["schema_versions", "secrets", "owners"];

/// Whether a copy may change the tables of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetTables {
    /// They are empty, or an interrupted copy of the same source wrote them.
    Replaceable,
    /// A copy of the same source was completed, and the target may have been used since.
    Completed,
}

/// A table that is the same in both databases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedTable {
    /// The name of the table.
    pub table: String,
    /// How many rows it has.
    pub rows: u64,
    /// The sum of the digests of its rows.
    pub digest: String,
    /// Whether an earlier copy had written it.
    pub was_equal: bool,
}

/// What a table has: how many rows, and the sum of their digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct TableSum {
    rows: u64,
    digest: [u64; 4],
}

impl TableSum {
    fn add(&mut self, row: &[DatabaseValue]) {
        let mut hash = Sha256::new();
        for value in row {
            // Databases differ in whether they store a text as text or as bytes.
            let (tag, bytes) = match value {
                DatabaseValue::Null => (b'n', Vec::new()),
                DatabaseValue::Integer(number) => (b'i', number.to_le_bytes().to_vec()),
                DatabaseValue::Real(number) => (b'r', number.to_bits().to_le_bytes().to_vec()),
                DatabaseValue::Text(text) => (b'b', text.clone().into_bytes()),
                DatabaseValue::Blob(bytes) => (b'b', bytes.clone()),
            };
            hash.update([tag]);
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        }
        let hash: [u8; 32] = hash.finalize().into();
        let (words, _) = hash.as_chunks::<8>();
        for (sum, word) in self.digest.iter_mut().zip(words) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
        self.rows += 1;
    }

    fn hex(&self) -> String {
        self.digest
            .iter()
            .map(|word| format!("{word:016x}"))
            .collect()
    }
}

/// Copies a store. No process can write to the source meanwhile. `components` are the tables of
/// other crates, and `copied` is called after each table.
pub fn copy_store(
    from: &JournalLocation,
    to: &JournalLocation,
    components: &[ComponentSchema],
    copied: &mut dyn FnMut(&CopiedTable),
) -> Result<Vec<CopiedTable>, JournalError> {
    if from == to {
        return Err(JournalError::StoreCopy(
            "the source and the target are the same".to_owned(),
        ));
    }
    let schemas: Vec<ComponentSchema> =
        [JOURNAL_SCHEMA].iter().chain(components).copied().collect();
    let open = |location, opened_with| -> Result<Connection, JournalError> {
        let connection = connection::open_read_write(location, opened_with)?;
        for schema in &schemas {
            schema.migrate(&connection)?;
        }
        JOURNAL_SCHEMA.refuse_unknown(&connection)?;
        Ok(connection)
    };
    if let (None, file) = (from.database(), from.name())
        && !file.exists()
    {
        let message = format!("there is no journal {}", file.display());
        return Err(JournalError::StoreCopy(message));
    }
    let (source, target) = (open(from, &JOURNAL_SCHEMA)?, open(to, &COPY_SCHEMA)?);
    source.begin_exclusive_read()?;
    let state = check_target(&source, &target)?;
    if state == TargetTables::Replaceable {
        let sql = "INSERT INTO schema_versions (component, version, compatible_since)
            VALUES (?1, 0, 1) ON CONFLICT (component) DO UPDATE SET compatible_since = 1";
        target.execute(sql, params![COPY_MARK])?;
    }
    let has_codec =
        query_first::<i64>(&source, "SELECT count(*) FROM memory_encryption", params![])?;
    let is_encrypted = has_codec.is_some_and(|rows| rows > 0);
    let mut tables = source.tables()?;
    // The leases of processes belong to the database in which they are.
    tables.retain(|table| {
        !["schema_versions", "owners"].contains(&table.as_str()) && !table.starts_with("sqlite_")
    });
    tables.sort();
    // The key of the source identifies the target of an interrupted copy.
    tables.sort_by_key(|table| table != "secrets");
    let mut done = Vec::new();
    for name in tables {
        let table = TableCopy::new(&source, &target, &name, is_encrypted)?;
        let copy = table.copy(state)?;
        copied(&copy);
        done.push(copy);
    }
    target.continue_numbers()?;
    let sql = "DELETE FROM schema_versions WHERE component = ?1";
    target.execute(sql, params![COPY_MARK])?;
    source.end_snapshot()?;
    Ok(done)
}

/// Returns whether the target may be changed. Fails if it has the data of another store.
fn check_target(source: &Connection, target: &Connection) -> Result<TargetTables, JournalError> {
    let key = "SELECT value FROM secrets WHERE name = 'digest'";
    let ours: Option<Vec<u8>> = query_first(source, key, params![])?;
    let theirs: Option<Vec<u8>> = query_first(target, key, params![])?;
    let mark = "SELECT 1 FROM schema_versions WHERE component = ?1";
    let is_marked = query_first::<i64>(target, mark, params![COPY_MARK])?.is_some();
    let is_same = theirs.is_none() || theirs == ours;
    match (is_marked && is_same) || is_empty(target)? {
        true => Ok(TargetTables::Replaceable),
        // A store without a key was never copied.
        false if theirs == ours => Ok(TargetTables::Completed),
        false => {
            let path = target.path().unwrap_or_default();
            let message = format!("{path} has other sessions or runs, or other memory");
            Err(JournalError::StoreCopy(message))
        }
    }
}

/// Returns whether a store was never used: it has at most what opening it writes.
fn is_empty(target: &Connection) -> Result<bool, JournalError> {
    let mut tables = target.tables()?;
    tables
        .retain(|table| !OPENED_TABLES.contains(&table.as_str()) && !table.starts_with("sqlite_"));
    for table in tables {
        let sql = format!("SELECT 1 FROM {table} LIMIT 1");
        if query_first::<i64>(target, &sql, params![])?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A table that is copied.
struct TableCopy<'a> {
    source: &'a Connection,
    target: &'a Connection,
    table: &'a str,
    columns: Vec<String>,
    /// Whether each column has texts that the source may store as bytes.
    is_text: Vec<bool>,
}

impl<'a> TableCopy<'a> {
    fn new(
        source: &'a Connection,
        target: &'a Connection,
        table: &'a str,
        is_encrypted: bool,
    ) -> Result<Self, JournalError> {
        let (ours, theirs) = (source.columns(table)?, target.columns(table)?);
        let names = |columns: &[selvedge_database::ColumnInfo]| -> Vec<String> {
            columns.iter().map(|column| column.name.clone()).collect()
        };
        if names(&ours) != names(&theirs) {
            return Err(JournalError::StoreCopy(format!(
                "the table {table} has other columns in the target"
            )));
        }
        Ok(Self {
            source,
            target,
            table,
            columns: names(&ours),
            is_text: theirs
                .iter()
                .map(|column| column.is_coded_text && !is_encrypted)
                .collect(),
        })
    }

    /// Copies the table, unless it is equal in both databases. Fails if it differs in a target that
    /// was completed.
    fn copy(&self, target: TargetTables) -> Result<CopiedTable, JournalError> {
        let ours = self.sum(self.source)?;
        let was_equal = self.sum(self.target)? == ours;
        if !was_equal && target == TargetTables::Completed {
            return Err(JournalError::StoreCopy(format!(
                "the table {} was changed in the source or the target since the store was copied",
                self.table
            )));
        }
        if !was_equal {
            self.insert_rows()?;
            if self.sum(self.target)? != ours {
                // The source was changed after an interrupted copy.
                let delete = format!("DELETE FROM {}", self.table);
                self.target.execute(&delete, params![])?;
                self.insert_rows()?;
            }
            if self.sum(self.target)? != ours {
                return Err(JournalError::StoreCopy(format!(
                    "the table {} differs after it was copied",
                    self.table
                )));
            }
        }
        Ok(CopiedTable {
            table: self.table.to_owned(),
            rows: ours.rows,
            digest: ours.hex(),
            was_equal,
        })
    }

    fn sum(&self, connection: &Connection) -> Result<TableSum, JournalError> {
        let mut sum = TableSum::default();
        connection.for_each_row(self.table, &self.columns, |row| {
            sum.add(&row);
            Ok::<(), JournalError>(())
        })?;
        Ok(sum)
    }

    /// Inserts the rows of the source that the target does not have.
    fn insert_rows(&self) -> Result<(), JournalError> {
        let numbers: Vec<String> = (1..=self.columns.len()).map(|n| format!("?{n}")).collect();
        let sql = format!(
            "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING",
            self.table,
            self.columns.join(", "),
            numbers.join(", ")
        );
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let write = |rows: &mut Vec<Vec<DatabaseValue>>| -> Result<(), JournalError> {
            let transaction = self.target.begin_write()?;
            transaction.prepare_cached(&sql)?.execute_many(rows)?;
            transaction.commit()?;
            rows.clear();
            Ok(())
        };
        self.source
            .for_each_row(self.table, &self.columns, |mut row| {
                for (value, is_text) in row.iter_mut().zip(&self.is_text) {
                    bytes += 8;
                    if let DatabaseValue::Text(text) = value {
                        bytes += text.len();
                    }
                    if let DatabaseValue::Blob(blob) = value {
                        bytes += blob.len();
                        if *is_text && let Ok(text) = std::str::from_utf8(blob) {
                            *value = DatabaseValue::Text(text.to_owned());
                        }
                    }
                }
                rows.push(row);
                if rows.len() >= MAX_ROWS_PER_WRITE || bytes >= MAX_BYTES_PER_WRITE {
                    bytes = 0;
                    write(&mut rows)?;
                }
                Ok::<(), JournalError>(())
            })?;
        if rows.is_empty() {
            return Ok(());
        }
        write(&mut rows)
    }
}
