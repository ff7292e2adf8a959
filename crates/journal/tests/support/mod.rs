//! Helpers for the tests of the journal, on files of SQLite or a PostgreSQL database.
#![allow(dead_code)] // Each test binary uses some of them.

use std::path::Path;

use selvedge_database::params;

mod store;

#[allow(unused_imports)] // Each test binary uses some of them.
pub use store::{database, store, uses_files};

/// Blocks the thread until a future is done.
pub trait WaitForResult: Future + Sized {
    fn wait(self) -> Self::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(self)
    }
}

impl<F: Future> WaitForResult for F {}

/// Returns whether the database of a folder's journal has a text in plain form, in small or large
/// letters.
pub fn stores_text(folder: &Path, text: &str) -> bool {
    let text = text.to_ascii_lowercase().into_bytes();
    let has_text = |bytes: &[u8]| {
        let bytes = bytes.to_ascii_lowercase();
        bytes.windows(text.len()).any(|part| part == text)
    };
    if uses_files() {
        let files = std::fs::read_dir(folder).unwrap().flatten();
        return files
            .filter(|file| file.path().is_file())
            .any(|file| has_text(&std::fs::read(file.path()).unwrap()));
    }
    let connection = database(folder);
    connection.tables().unwrap().iter().any(|table| {
        let sql = format!("SELECT * FROM {table}");
        let mut read = connection.prepare_cached(&sql).unwrap();
        let has_text = |row: selvedge_database::Row<'_>| {
            let mut columns = (0..).map_while(|index| row.get_ref(index).ok());
            Ok(columns.any(|column| column.as_bytes().is_some_and(has_text)))
        };
        let mut rows = read.query_map(params![], has_text).unwrap();
        rows.any(|row| row.unwrap())
    })
}
