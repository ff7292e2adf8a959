//! Encrypts existing columns.

use crate::connection::Backend;
use crate::{Connection, DatabaseError, DatabaseErrorKind, DatabaseValue, params};

/// A column that is encrypted.
#[derive(Debug, Clone, Copy)]
pub struct EncodedColumn<'a> {
    /// The name of the column.
    pub name: &'a str,
    /// The function of the codec.
    pub function: ColumnFunction,
    /// Whether its values are texts or bytes.
    pub content: ColumnContent,
}

/// A function of a codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnFunction {
    /// The function `encrypt` of SQL.
    Encrypt,
    /// The function `keyed_digest` of SQL.
    KeyedDigest,
}

/// What a column has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnContent {
    /// Texts in UTF-8.
    Text,
    /// Bytes of any content.
    Bytes,
}

impl EncodedColumn<'_> {
    /// Returns the SQL that encodes a value.
    fn encode(&self, value: &str) -> String {
        let function = match self.function {
            ColumnFunction::Encrypt => "encrypt",
            ColumnFunction::KeyedDigest => "keyed_digest",
        };
        format!("{function}({value})")
    }
}

impl Connection {
    /// Replaces the values of some columns by encoded ones, in a transaction of the caller.
    pub fn encode_columns(
        &self,
        table: &str,
        columns: &[EncodedColumn<'_>],
    ) -> Result<(), DatabaseError> {
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        if matches!(self.backend, Backend::Sqlite(_)) {
            let set = columns
                .iter()
                .map(|column| format!("{} = {}", column.name, column.encode(column.name)));
            let set: Vec<String> = set.collect();
            let sql = format!("UPDATE {table} SET {}", set.join(", "));
            return self.execute_batch(&sql);
        }
        // The client has the key, so it reads and writes all rows. No row may change meanwhile.
        self.execute_batch(&format!("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))?;
        let sql = format!(
            "SELECT CAST(ctid AS TEXT), {} FROM {table}",
            names.join(", ")
        );
        let mut rows = Vec::new();
        let mut read = self.prepare_cached(&sql)?;
        let mut found = read.query(params![])?;
        while let Some(row) = found.next()? {
            let mut list = vec![row.get(0)?];
            for (index, column) in columns.iter().enumerate() {
                list.push(column.typed(row.get(index + 1)?)?);
            }
            rows.push(list);
        }
        let set = columns.iter().zip(2..).map(|(column, number)| {
            let value = column.encode(&format!("?{number}"));
            format!("{} = {value}", column.name)
        });
        let set: Vec<String> = set.collect();
        let sql = format!(
            "UPDATE {table} SET {} WHERE ctid = CAST(CAST(?1 AS TEXT) AS tid)",
            set.join(", ")
        );
        self.prepare_cached(&sql)?.execute_many(&rows)
    }
}

impl EncodedColumn<'_> {
    /// Returns a value with the type of the column: a database may store texts as bytes.
    fn typed(&self, value: DatabaseValue) -> Result<DatabaseValue, DatabaseError> {
        match (self.content, value) {
            (ColumnContent::Text, DatabaseValue::Blob(bytes)) => {
                let text = String::from_utf8(bytes).map_err(|_| {
                    let message = format!("the column {} has no text", self.name);
                    DatabaseError::new(DatabaseErrorKind::WrongType, message)
                })?;
                Ok(DatabaseValue::Text(text))
            }
            (_, value) => Ok(value),
        }
    }
}
