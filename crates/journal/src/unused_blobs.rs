//! Removes the payloads in `blobs` that no row refers to.
//!
//! Finding them reads every row with a payload, which takes long in a large database, and no other
//! transaction waits for it. A transaction that is about to refer to a blob that exists locks it.
//! So a blob that could be locked here, and to which no row refers afterwards, is unused.

use std::collections::HashSet;

use selvedge_database::{Connection, params};

use crate::connection::{query_column, query_first};
use crate::retention::select_all_blob_hashes;
use crate::{Journal, JournalError};

/// Most blobs that one transaction removes. Each transaction reads all rows with payloads again.
const MAX_BLOBS_PER_WRITE: usize = 10_000;

impl Journal {
    /// Removes the blobs that no row refers to, and returns how many there were. Those that other
    /// transactions are about to use stay.
    pub(crate) fn remove_unused_blobs(&self) -> Result<usize, JournalError> {
        let mut removed = 0;
        for hashes in self.read_unused_blobs()?.chunks(MAX_BLOBS_PER_WRITE) {
            removed += self.write(|connection| remove_if_unused(connection, hashes))?;
        }
        Ok(removed)
    }

    fn read_unused_blobs(&self) -> Result<Vec<Vec<u8>>, JournalError> {
        let connection = self.flushed_connection();
        connection.begin_snapshot()?;
        connection.allow_long_statements();
        let unused = find_unused(&connection);
        connection.end_snapshot()?;
        unused
    }
}

/// Returns the hashes of the blobs that no row refers to.
fn find_unused(connection: &Connection) -> Result<Vec<Vec<u8>>, JournalError> {
    let sql = format!(
        "SELECT hash FROM blobs EXCEPT SELECT hash FROM ({}) AS used",
        select_all_blob_hashes()
    );
    query_column(connection, &sql, params![])
}

/// Removes those of some blobs that no row refers to.
fn remove_if_unused(connection: &Connection, hashes: &[Vec<u8>]) -> Result<usize, JournalError> {
    connection.allow_long_statements();
    let lock = connection.free_row_lock();
    let sql = format!("SELECT hash FROM blobs WHERE hash = ?1{lock}");
    let mut locked: Vec<Vec<u8>> = Vec::new();
    for hash in hashes {
        locked.extend(query_first::<Vec<u8>>(connection, &sql, params![hash])?);
    }
    // Read after the locks were taken, so that it sees the rows of the transactions before.
    let unused: HashSet<Vec<u8>> = find_unused(connection)?.into_iter().collect();
    let mut removed = 0;
    for hash in locked.iter().filter(|hash| unused.contains(*hash)) {
        removed += connection.execute("DELETE FROM blobs WHERE hash = ?1", params![hash])?;
    }
    Ok(removed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::test_store::{database, store, uses_files};

    #[test]
    fn unused_payloads_are_removed_while_another_transaction_stores_some() {
        if uses_files() {
            // A file has one writer at a time.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(store(dir.path())).unwrap();
        let (unused, reused) = (vec![b'u'; 5000], vec![b'r'; 5000]);
        let put = |connection: &Connection, bytes: &[u8]| journal.payloads.put(connection, bytes);
        journal
            .write(|connection| {
                put(connection, &unused)?;
                put(connection, &reused)
            })
            .unwrap();
        let other = database(dir.path());
        let storing = other.begin_write().unwrap();
        let column = put(&storing, &reused).unwrap();
        put(&storing, &[b'n'; 5000]).unwrap();
        assert_eq!(journal.remove_unused_blobs().unwrap(), 1);
        let sql = "INSERT INTO stored (session, key, value, bytes, stored_ms)
            VALUES ('s', 'k', ?1, 1, 1)";
        storing.execute(sql, params![column]).unwrap();
        storing.commit().unwrap();
        // The payload to which the other transaction did not refer is left.
        assert_eq!(journal.remove_unused_blobs().unwrap(), 1);
        let connection = journal.flushed_connection();
        let mut read = connection
            .prepare_cached("SELECT value FROM stored")
            .unwrap();
        let mut rows = read.query(params![]).unwrap();
        let value = rows.next().unwrap().unwrap().get_ref(0).unwrap();
        let payload = journal.payloads.get(&connection, value).unwrap();
        assert_eq!(payload, Some(reused));
    }
}
