//! Prepared statements and the rows that they return.

use std::fmt;
use std::sync::Arc;

use rusqlite::types::ToSqlOutput;

use crate::postgres::{PostgresConnection, PreparedStatement};
use crate::{
    Connection, DatabaseError, DatabaseErrorKind, DatabaseValue, FromColumn, ToParameter, ValueRef,
};

/// The parameters of a statement, which [`params!`](crate::params) makes.
pub type Params<'a> = &'a [&'a dyn ToParameter];

/// A prepared statement. The connection keeps it for the next use.
pub struct Statement<'c>(pub(crate) StatementKind<'c>);

pub(crate) enum StatementKind<'c> {
    Sqlite(rusqlite::CachedStatement<'c>),
    Postgres(
        &'c Connection,
        &'c PostgresConnection,
        Arc<PreparedStatement>,
    ),
}

/// The rows that a query returns.
pub struct Rows<'s>(RowsKind<'s>);

enum RowsKind<'s> {
    Sqlite(rusqlite::Rows<'s>),
    Postgres {
        rows: std::vec::IntoIter<Vec<DatabaseValue>>,
        current: Vec<DatabaseValue>,
    },
}

/// A row of a query.
#[derive(Clone, Copy)]
pub struct Row<'r>(RowKind<'r>);

#[derive(Clone, Copy)]
enum RowKind<'r> {
    Sqlite(&'r rusqlite::Row<'r>),
    Postgres(&'r [DatabaseValue]),
}

impl Statement<'_> {
    /// Executes a statement that returns no rows, and returns the number of changed rows.
    pub fn execute(&mut self, params: Params<'_>) -> Result<usize, DatabaseError> {
        match &mut self.0 {
            StatementKind::Sqlite(statement) => {
                bind(statement, params)?;
                Ok(statement.raw_execute()?)
            }
            StatementKind::Postgres(connection, postgres, statement) => {
                let answer = postgres.query(statement, params, connection.codec())?;
                Ok(answer.changed as usize)
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
            StatementKind::Postgres(connection, postgres, statement) => {
                let answer = postgres.query(statement, params, connection.codec())?;
                Ok(Rows(RowsKind::Postgres {
                    rows: answer.rows.into_iter(),
                    current: Vec::new(),
                }))
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

    /// Executes a query with each of these lists of parameters, and converts the rows of each. A
    /// database on another machine gets all of them before it answers the first.
    pub fn query_many<T>(
        &mut self,
        lists: &[Vec<DatabaseValue>],
        mut map: impl FnMut(Row<'_>) -> Result<T, DatabaseError>,
    ) -> Result<Vec<Vec<T>>, DatabaseError> {
        if let StatementKind::Postgres(connection, postgres, statement) = &self.0 {
            let answers = postgres.query_many(statement, lists, connection.codec())?;
            let rows = answers.into_iter().map(|answer| {
                let rows = answer.rows.iter();
                rows.map(|row| map(Row(RowKind::Postgres(row)))).collect()
            });
            return rows.collect();
        }
        let mut results = Vec::with_capacity(lists.len());
        for list in lists {
            let rows = self.query_map(&as_params(list), &mut map)?;
            results.push(rows.collect::<Result<_, _>>()?);
        }
        Ok(results)
    }

    /// Executes a statement with each of these lists of parameters. A database on another machine
    /// gets all of them before it answers the first.
    pub fn execute_many(&mut self, lists: &[Vec<DatabaseValue>]) -> Result<(), DatabaseError> {
        if let StatementKind::Postgres(connection, postgres, statement) = &self.0 {
            return postgres
                .query_many(statement, lists, connection.codec())
                .map(drop);
        }
        for list in lists {
            self.execute(&as_params(list))?;
        }
        Ok(())
    }

    /// Returns whether a query returns a row.
    pub fn exists(&mut self, params: Params<'_>) -> Result<bool, DatabaseError> {
        Ok(self.query(params)?.next()?.is_some())
    }
}

/// Returns a list of values as parameters.
pub(crate) fn as_params(list: &[DatabaseValue]) -> Vec<&dyn ToParameter> {
    list.iter().map(|value| value as &dyn ToParameter).collect()
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
            RowsKind::Postgres { rows, current } => Ok(rows.next().map(|row| {
                *current = row;
                Row(RowKind::Postgres(current))
            })),
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
            RowKind::Postgres(row) => match row.get(column) {
                Some(value) => Ok(value.into()),
                None => Err(DatabaseError::new(
                    DatabaseErrorKind::WrongType,
                    format!("the result has no column {column}"),
                )),
            },
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
