//! Prepared statements and the rows that they return.

use std::fmt;

use rusqlite::types::ToSqlOutput;

use crate::{DatabaseError, DatabaseErrorKind, FromColumn, ToParameter, ValueRef};

/// The parameters of a statement, which [`params!`](crate::params) makes.
pub type Params<'a> = &'a [&'a dyn ToParameter];

/// A prepared statement. The connection keeps it for the next use.
pub struct Statement<'c>(pub(crate) StatementKind<'c>);

pub(crate) enum StatementKind<'c> {
    Sqlite(rusqlite::CachedStatement<'c>),
}

/// The rows that a query returns.
pub struct Rows<'s>(RowsKind<'s>);

enum RowsKind<'s> {
    Sqlite(rusqlite::Rows<'s>),
}

/// A row of a query.
#[derive(Clone, Copy)]
pub struct Row<'r>(RowKind<'r>);

#[derive(Clone, Copy)]
enum RowKind<'r> {
    Sqlite(&'r rusqlite::Row<'r>),
}

impl Statement<'_> {
    /// Executes a statement that returns no rows, and returns the number of changed rows.
    pub fn execute(&mut self, params: Params<'_>) -> Result<usize, DatabaseError> {
        match &mut self.0 {
            StatementKind::Sqlite(statement) => {
                bind(statement, params)?;
                Ok(statement.raw_execute()?)
            }
        }
    }

    /// Executes a query.
    pub fn query(&mut self, params: Params<'_>) -> Result<Rows<'_>, DatabaseError> {
        match &mut self.0 {
            StatementKind::Sqlite(statement) => {
                bind(statement, params)?;
                Ok(Rows(RowsKind::Sqlite(statement.raw_query())))
            }
        }
    }

    /// Executes a query and converts each row.
    pub fn query_map<T, F>(
        &mut self,
        params: Params<'_>,
        map: F,
    ) -> Result<MappedRows<'_, F>, DatabaseError>
    where
        F: FnMut(Row<'_>) -> Result<T, DatabaseError>,
    {
        let rows = self.query(params)?;
        Ok(MappedRows { rows, map })
    }

    /// Executes a query and converts its first row. Fails with [`DatabaseErrorKind::NoRows`].
    pub fn query_row<T>(
        &mut self,
        params: Params<'_>,
        map: impl FnOnce(Row<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let mut rows = self.query(params)?;
        match rows.next()? {
            Some(row) => map(row),
            None => Err(DatabaseError::new(
                DatabaseErrorKind::NoRows,
                "query returned no rows",
            )),
        }
    }

    /// Returns whether a query returns a row.
    pub fn exists(&mut self, params: Params<'_>) -> Result<bool, DatabaseError> {
        Ok(self.query(params)?.next()?.is_some())
    }
}

/// Binds the parameters of a statement of SQLite.
fn bind(
    statement: &mut rusqlite::CachedStatement<'_>,
    params: Params<'_>,
) -> Result<(), DatabaseError> {
    if statement.parameter_count() != params.len() {
        return Err(DatabaseError::new(
            DatabaseErrorKind::Other,
            format!(
                "the statement has {} parameters and got {}",
                statement.parameter_count(),
                params.len()
            ),
        ));
    }
    for (number, parameter) in (1..).zip(params) {
        let value = to_sqlite(parameter.to_parameter());
        statement.raw_bind_parameter(number, ToSqlOutput::Borrowed(value))?;
    }
    Ok(())
}

pub(crate) fn to_sqlite(value: ValueRef<'_>) -> rusqlite::types::ValueRef<'_> {
    use rusqlite::types::ValueRef as SqliteValueRef;
    match value {
        ValueRef::Null => SqliteValueRef::Null,
        ValueRef::Integer(number) => SqliteValueRef::Integer(number),
        ValueRef::Real(number) => SqliteValueRef::Real(number),
        ValueRef::Text(text) => SqliteValueRef::Text(text),
        ValueRef::Blob(bytes) => SqliteValueRef::Blob(bytes),
    }
}

pub(crate) fn from_sqlite(value: rusqlite::types::ValueRef<'_>) -> ValueRef<'_> {
    use rusqlite::types::ValueRef as SqliteValueRef;
    match value {
        SqliteValueRef::Null => ValueRef::Null,
        SqliteValueRef::Integer(number) => ValueRef::Integer(number),
        SqliteValueRef::Real(number) => ValueRef::Real(number),
        SqliteValueRef::Text(text) => ValueRef::Text(text),
        SqliteValueRef::Blob(bytes) => ValueRef::Blob(bytes),
    }
}

impl Rows<'_> {
    /// Returns the next row; `None` after the last one.
    #[allow(clippy::should_implement_trait)] // The row borrows the rows.
    pub fn next(&mut self) -> Result<Option<Row<'_>>, DatabaseError> {
        match &mut self.0 {
            RowsKind::Sqlite(rows) => Ok(rows.next()?.map(|row| Row(RowKind::Sqlite(row)))),
        }
    }
}

impl<'r> Row<'r> {
    /// Returns the value of a column, counted from 0.
    pub fn get<T: FromColumn>(self, column: usize) -> Result<T, DatabaseError> {
        let value = self.get_ref(column)?;
        T::from_column(value).ok_or_else(|| {
            DatabaseError::new(
                DatabaseErrorKind::WrongType,
                format!(
                    "column {column} has the unexpected type {} or an invalid value",
                    value.type_name()
                ),
            )
        })
    }

    /// Borrows the value of a column, counted from 0.
    pub fn get_ref(self, column: usize) -> Result<ValueRef<'r>, DatabaseError> {
        match self.0 {
            RowKind::Sqlite(row) => Ok(from_sqlite(row.get_ref(column)?)),
        }
    }
}

macro_rules! rows_as_tuples {
    ($($column:ident $number:literal),+) => {
        impl<$($column: FromColumn),+> TryFrom<Row<'_>> for ($($column,)+) {
            type Error = DatabaseError;

            fn try_from(row: Row<'_>) -> Result<Self, DatabaseError> {
                Ok(($(row.get::<$column>($number)?,)+))
            }
        }
    };
}

rows_as_tuples!(A 0, B 1);
rows_as_tuples!(A 0, B 1, C 2);
rows_as_tuples!(A 0, B 1, C 2, D 3);

/// The converted rows of a query.
pub struct MappedRows<'s, F> {
    rows: Rows<'s>,
    map: F,
}

impl<T, F> Iterator for MappedRows<'_, F>
where
    F: FnMut(Row<'_>) -> Result<T, DatabaseError>,
{
    type Item = Result<T, DatabaseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.rows.next().transpose()?;
        Some(row.and_then(&mut self.map))
    }
}

impl fmt::Debug for Statement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Statement")
    }
}

impl fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rows")
    }
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Row")
    }
}

impl<F> fmt::Debug for MappedRows<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MappedRows")
    }
}
