//! Values of parameters and columns in the binary format of PostgreSQL.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::{DatabaseError, DatabaseErrorKind, DatabaseValue};

/// Begins an escape sequence in a text: PostgreSQL does not store the character with the number 0.
/// The character is the last one of Unicode, which no text contains for another reason.
const ESCAPE: char = char::MAX;
/// The first byte of [`ESCAPE`] in UTF-8.
const ESCAPE_LEAD: u8 = 0xf4;

/// Replaces the characters that PostgreSQL does not store. Different texts stay different, and the
/// beginning of a text is replaced by the beginning of the result.
fn escape_text(text: &str) -> Option<String> {
    let needs_escape = |byte: u8| byte == 0 || byte == ESCAPE_LEAD;
    if !text.bytes().any(needs_escape) {
        return None;
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\0' => escaped.extend([ESCAPE, '0']),
            ESCAPE => escaped.extend([ESCAPE, '1']),
            c => escaped.push(c),
        }
    }
    Some(escaped)
}

/// Returns the text that [`escape_text`] replaced.
fn unescape_text(stored: &str) -> String {
    if !stored.contains(ESCAPE) {
        return stored.to_owned();
    }
    let mut text = String::with_capacity(stored.len());
    let mut chars = stored.chars();
    while let Some(c) = chars.next() {
        match c {
            ESCAPE => match chars.next() {
                Some('0') => text.push('\0'),
                // The end of a range of texts ends with a single escape character.
                _ => text.push(ESCAPE),
            },
            c => text.push(c),
        }
    }
    text
}

/// A parameter, which is sent as the type that the statement expects.
#[derive(Debug, Clone)]
pub(crate) struct PostgresParameter(pub(crate) DatabaseValue);

impl ToSql for PostgresParameter {
    fn to_sql(
        &self,
        expected: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match (&self.0, expected) {
            (DatabaseValue::Null, _) => Ok(IsNull::Yes),
            (DatabaseValue::Integer(number), &Type::INT8) => number.to_sql(expected, out),
            (DatabaseValue::Integer(number), &Type::INT4) => {
                i32::try_from(*number)?.to_sql(expected, out)
            }
            (DatabaseValue::Integer(number), &Type::BOOL) => (*number != 0).to_sql(expected, out),
            (DatabaseValue::Integer(number), &Type::FLOAT8) => {
                (*number as f64).to_sql(expected, out)
            }
            (DatabaseValue::Real(number), &Type::FLOAT8) => number.to_sql(expected, out),
            (DatabaseValue::Text(text), &Type::TEXT | &Type::VARCHAR | &Type::NAME) => {
                match escape_text(text) {
                    Some(escaped) => escaped.to_sql(expected, out),
                    None => text.to_sql(expected, out),
                }
            }
            (DatabaseValue::Text(text), &Type::BYTEA) => text.as_bytes().to_sql(expected, out),
            (DatabaseValue::Blob(bytes), &Type::BYTEA) => bytes.to_sql(expected, out),
            (value, _) => Err(format!(
                "a parameter has the type {} instead of {expected}",
                crate::ValueRef::from(value).type_name()
            )
            .into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// The value of a column.
pub(crate) struct PostgresColumn(pub(crate) DatabaseValue);

impl<'a> FromSql<'a> for PostgresColumn {
    fn from_sql(stored: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(match *stored {
            Type::INT8 => DatabaseValue::Integer(i64::from_sql(stored, raw)?),
            Type::INT4 => DatabaseValue::Integer(i32::from_sql(stored, raw)?.into()),
            Type::INT2 => DatabaseValue::Integer(i16::from_sql(stored, raw)?.into()),
            Type::BOOL => DatabaseValue::Integer(bool::from_sql(stored, raw)?.into()),
            Type::FLOAT8 => DatabaseValue::Real(f64::from_sql(stored, raw)?),
            Type::FLOAT4 => DatabaseValue::Real(f32::from_sql(stored, raw)?.into()),
            Type::TEXT | Type::VARCHAR | Type::NAME => {
                DatabaseValue::Text(unescape_text(std::str::from_utf8(raw)?))
            }
            Type::BYTEA => DatabaseValue::Blob(raw.to_vec()),
            _ => return Err(format!("a column has the unexpected type {stored}").into()),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(DatabaseValue::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Reads all columns of a row.
pub(crate) fn read_row(row: &tokio_postgres::Row) -> Result<Vec<DatabaseValue>, DatabaseError> {
    let read = |index| {
        let column: Result<PostgresColumn, _> = row.try_get(index);
        column.map(|column| column.0).map_err(|error| {
            let why = error.source().map(ToString::to_string);
            let why = why.unwrap_or_else(|| error.to_string());
            DatabaseError::new(
                DatabaseErrorKind::WrongType,
                format!("column {index}: {why}"),
            )
        })
    };
    (0..row.len()).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_characters_that_postgres_refuses_are_escaped() {
        for text in [
            "",
            "plain",
            "\0",
            "a\0b",
            "\u{10ffff}",
            "\u{10ffff}0\0",
            "\0\0",
        ] {
            let stored = escape_text(text).unwrap_or_else(|| text.to_owned());
            assert!(!stored.contains('\0'));
            assert_eq!(unescape_text(&stored), text);
        }
        assert_ne!(escape_text("\0"), escape_text("\u{10ffff}"));
    }
}
