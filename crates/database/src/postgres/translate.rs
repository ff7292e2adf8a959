//! Translates the SQL of the callers into that of PostgreSQL.
//!
//! | SQL of the callers | PostgreSQL |
//! |---|---|
//! | `?1` | `$1` |
//! | `encrypt(?1)`, `keyed_digest(?1)` | `$2`: the client encrypts the parameter |
//! | `decrypt(x)` as a column of the result | `x`: the client decrypts the column |
//! | `json_each(x)` | `json_array_elements_text(x)`, with the same column `value` |
//! | `json_group_array(x)` | `json_agg(x)`, as text, and `[]` without rows |
//! | `x'02'` | `'\x02'` as `BYTEA` |
//! | `INTEGER`, `REAL`, `BLOB` in `CREATE` and `ALTER` | `BIGINT`, `DOUBLE PRECISION`, `BYTEA` |
//! | `CODED TEXT` in `CREATE` and `ALTER` | `BYTEA`, because encrypted texts are no texts |
//! | `TEXT` in `CREATE` and `ALTER` | `TEXT` that is ordered by its bytes, as in SQLite |
//! | `INTEGER PRIMARY KEY` | a number that PostgreSQL assigns if it is missing |
//! | a statement after the comment `-- sqlite-only` | left out |
//! | the comment `-- postgres: …` | the statement in it |

use crate::{DatabaseError, DatabaseErrorKind};

/// The comment before a statement that PostgreSQL does not get.
const SQLITE_ONLY: &str = "-- sqlite-only\n";
/// The beginning of a comment with a statement that only PostgreSQL gets.
const POSTGRES_ONLY: &str = "-- postgres: ";

/// A translated statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TranslatedSql {
    pub(crate) sql: String,
    /// Where the parameter `$n` comes from, in order.
    pub(crate) parameters: Vec<ParameterSource>,
    /// The columns of the result that are decrypted, counted from 0.
    pub(crate) decrypted_columns: Vec<usize>,
}

/// A parameter of the caller, and what the client does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ParameterSource {
    /// The number of the caller's parameter, counted from 1.
    pub(crate) number: usize,
    pub(crate) codec: Option<ParameterCodec>,
}

/// A function of the codec that the client applies to a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterCodec {
    Encrypt,
    KeyedDigest,
}

/// Translates a statement with parameters.
pub(crate) fn translate(sql: &str) -> Result<TranslatedSql, DatabaseError> {
    let mut translator = Translator {
        rest: sql,
        out: String::with_capacity(sql.len() + 32),
        parameters: Vec::new(),
        decrypted_columns: Vec::new(),
        list: ResultList::Before,
        depth: 0,
        is_definition: is_definition(sql),
    };
    translator.run()?;
    Ok(TranslatedSql {
        sql: translator.out,
        parameters: translator.parameters,
        decrypted_columns: translator.decrypted_columns,
    })
}

/// Translates several statements without parameters.
pub(crate) fn translate_batch(sql: &str) -> Result<String, DatabaseError> {
    let mut out = String::with_capacity(sql.len());
    let sql = sql.replace(POSTGRES_ONLY, "");
    let statements = split_statements(&sql);
    for statement in statements
        .into_iter()
        .filter(|sql| !sql.contains(SQLITE_ONLY))
    {
        let translated = translate(statement)?;
        if !translated.parameters.is_empty() {
            return Err(unsupported("a parameter in a batch of statements"));
        }
        out += &translated.sql;
    }
    Ok(out)
}

/// The position in a statement relative to the columns of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultList {
    /// Before the list, or in a statement without one.
    Before,
    /// In the column with this index.
    Column(usize),
    /// After the list.
    After,
}

struct Translator<'a> {
    rest: &'a str,
    out: String,
    parameters: Vec<ParameterSource>,
    decrypted_columns: Vec<usize>,
    list: ResultList,
    /// The number of open parentheses.
    depth: usize,
    is_definition: bool,
}

impl<'a> Translator<'a> {
    fn run(&mut self) -> Result<(), DatabaseError> {
        while let Some(c) = self.rest.chars().next() {
            match c {
                '\'' | '"' => {
                    let literal = self.take_quoted(c);
                    self.out += literal;
                }
                '-' if self.rest.starts_with("--") => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                '?' => {
                    let number = self.take_parameter()?;
                    let is_first = !self.parameters.iter().any(|known| known.number == number);
                    if is_first && follows(self.rest, "IS ") {
                        return Err(unsupported(
                            "`IS NULL` of a parameter before the expression that has its type",
                        ));
                    }
                    self.push_parameter(number, None);
                }
                c if c.is_ascii_alphabetic() || c == '_' => self.translate_word()?,
                c => {
                    match c {
                        '(' => self.depth += 1,
                        ')' => self.depth = self.depth.saturating_sub(1),
                        ',' if self.depth == 0 => self.begin_next_column(),
                        _ => {}
                    }
                    self.out.push(c);
                    self.rest = &self.rest[c.len_utf8()..];
                }
            }
        }
        Ok(())
    }

    fn begin_next_column(&mut self) {
        if let ResultList::Column(index) = self.list {
            self.list = ResultList::Column(index + 1);
        }
    }

    /// Takes a literal or a quoted name, with its quotes.
    fn take_quoted(&mut self, quote: char) -> &'a str {
        let end = self.rest[1..].find(quote).map(|end| end + 2);
        let (literal, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        literal
    }

    /// Takes `?n` and returns the number.
    fn take_parameter(&mut self) -> Result<usize, DatabaseError> {
        let digits = self.rest.strip_prefix('?').unwrap_or_default();
        let length = digits.bytes().take_while(u8::is_ascii_digit).count();
        let number = digits[..length].parse();
        self.rest = &digits[length..];
        number.map_err(|_| unsupported("a parameter without a number"))
    }

    fn push_parameter(&mut self, number: usize, codec: Option<ParameterCodec>) {
        let source = ParameterSource { number, codec };
        let known = self.parameters.iter().position(|known| *known == source);
        let index = known.unwrap_or_else(|| {
            self.parameters.push(source);
            self.parameters.len() - 1
        });
        self.out += &format!("${}", index + 1);
    }

    fn translate_word(&mut self) -> Result<(), DatabaseError> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        if self.out.ends_with('.') {
            // A column after the name of its table.
            self.out += word;
            return Ok(());
        }
        match word {
            "encrypt" if rest.starts_with('(') => self.translate_codec(ParameterCodec::Encrypt)?,
            "keyed_digest" if rest.starts_with('(') => {
                self.translate_codec(ParameterCodec::KeyedDigest)?;
            }
            "decrypt" if rest.starts_with('(') => self.translate_decrypt()?,
            "json_each" if rest.starts_with('(') => {
                let argument = self.translate_argument()?;
                self.out += &format!(
                    "json_array_elements_text(CAST(CAST({argument} AS TEXT) AS json))
                     AS json_each(value)"
                );
            }
            "json_group_array" if rest.starts_with('(') => {
                let argument = self.translate_argument()?;
                self.out += &format!("coalesce(CAST(json_agg({argument}) AS TEXT), '[]')");
            }
            "x" if rest.starts_with('\'') => {
                let hex = self.take_quoted('\'').trim_matches('\'');
                self.out += &format!("CAST('\\x{hex}' AS BYTEA)");
            }
            _ if self.is_definition => self.translate_type(word),
            _ => {
                self.follow_list(word);
                self.out += word;
            }
        }
        Ok(())
    }

    /// Follows the beginning and the end of the list of result columns.
    fn follow_list(&mut self, word: &str) {
        if self.depth > 0 {
            return;
        }
        self.list = match (word.to_ascii_uppercase().as_str(), self.list) {
            ("SELECT", ResultList::Before) | ("RETURNING", _) => ResultList::Column(0),
            ("FROM", ResultList::Column(_)) => ResultList::After,
            (_, list) => list,
        };
    }

    /// Translates `(?n)` after the name of a function of the codec.
    fn translate_codec(&mut self, codec: ParameterCodec) -> Result<(), DatabaseError> {
        let error = || unsupported("encrypt or keyed_digest of something else than a parameter");
        self.rest = self.rest.strip_prefix('(').ok_or_else(error)?;
        if !self.rest.starts_with('?') {
            return Err(error());
        }
        let number = self.take_parameter()?;
        self.rest = self.rest.strip_prefix(')').ok_or_else(error)?;
        self.push_parameter(number, Some(codec));
        Ok(())
    }

    /// Translates `(x)` after `decrypt`, which must be a column of the result.
    fn translate_decrypt(&mut self) -> Result<(), DatabaseError> {
        let ResultList::Column(index) = self.list else {
            return Err(unsupported("decrypt outside of the columns of a result"));
        };
        if self.depth > 0 {
            return Err(unsupported("decrypt inside of another expression"));
        }
        self.decrypted_columns.push(index);
        let argument = self.translate_argument()?;
        self.out += &argument;
        Ok(())
    }

    /// Takes `(…)` and returns the translation of what is between the parentheses.
    fn translate_argument(&mut self) -> Result<String, DatabaseError> {
        let (mut depth, mut end) = (0, None);
        for (at, c) in self.rest.char_indices() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                end = Some(at);
                break;
            }
        }
        let end = end.ok_or_else(|| unsupported("an open parenthesis"))?;
        let (argument, after) = (&self.rest[1..end], &self.rest[end + 1..]);
        let out = std::mem::take(&mut self.out);
        self.rest = argument;
        self.depth += 1;
        self.run()?;
        self.depth -= 1;
        self.rest = after;
        Ok(std::mem::replace(&mut self.out, out))
    }

    /// Translates a word of `CREATE` or `ALTER`.
    fn translate_type(&mut self, word: &str) {
        match word {
            "INTEGER" if follows(self.rest, "PRIMARY KEY") => {
                self.out += "BIGINT GENERATED BY DEFAULT AS IDENTITY";
            }
            "INTEGER" => self.out += "BIGINT",
            "REAL" => self.out += "DOUBLE PRECISION",
            "BLOB" => self.out += "BYTEA",
            // Text or an encrypted value.
            "CODED" if follows(self.rest, "TEXT") => {
                let rest = self.rest.trim_start();
                self.rest = &rest["TEXT".len()..];
                self.out += "BYTEA";
            }
            "TEXT" => self.out += "TEXT COLLATE \"C\"",
            "WITHOUT" if follows(self.rest, "ROWID") => {
                let rest = self.rest.trim_start();
                self.rest = &rest["ROWID".len()..];
            }
            word => self.out += word,
        }
    }
}

fn follows(rest: &str, words: &str) -> bool {
    rest.trim_start().starts_with(words)
}

/// Returns whether a statement defines a table or index.
fn is_definition(sql: &str) -> bool {
    let lines = sql.lines().map(str::trim);
    let first = lines
        .clone()
        .find(|line| !line.is_empty() && !line.starts_with("--"));
    first.is_some_and(|line| line.starts_with("CREATE ") || line.starts_with("ALTER "))
}

/// Splits a text after each `;` that is neither in a literal nor in a comment.
fn split_statements(sql: &str) -> Vec<&str> {
    let (mut statements, mut start, mut quote, mut in_comment) = (Vec::new(), 0, None, false);
    for (at, c) in sql.char_indices() {
        match (c, quote) {
            ('\n', _) => in_comment = false,
            _ if in_comment => {}
            ('-', None) if sql[at..].starts_with("--") => in_comment = true,
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (';', None) => {
                statements.push(&sql[start..=at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    statements.push(&sql[start..]);
    statements
}

fn unsupported(what: &str) -> DatabaseError {
    DatabaseError::new(
        DatabaseErrorKind::Other,
        format!("PostgreSQL does not support {what}"),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sql(text: &str) -> String {
        translate(text).unwrap().sql
    }

    #[test]
    fn parameters_are_numbered_in_the_order_of_their_first_use() {
        let translated = translate("UPDATE t SET a = ?2, b = encrypt(?2) WHERE c = ?1 OR a = ?2");
        let translated = translated.unwrap();
        assert_eq!(
            translated.sql,
            "UPDATE t SET a = $1, b = $2 WHERE c = $3 OR a = $1"
        );
        let sources = translated.parameters.iter();
        let sources: Vec<_> = sources
            .map(|source| (source.number, source.codec))
            .collect();
        let encrypt = Some(ParameterCodec::Encrypt);
        assert_eq!(sources, [(2, None), (2, encrypt), (1, None)]);
    }

    #[test]
    fn columns_are_decrypted_by_their_position() {
        let text = "SELECT a, decrypt(b), (SELECT count(*), 1 FROM u), decrypt(t.c) FROM t";
        let translated = translate(text).unwrap();
        assert_eq!(
            translated.sql,
            "SELECT a, b, (SELECT count(*), 1 FROM u), t.c FROM t"
        );
        assert_eq!(translated.decrypted_columns, [1, 3]);
        for unsupported in [
            "SELECT a FROM t WHERE decrypt(a) = ?1",
            "SELECT max(decrypt(a)) FROM t",
            "SELECT a FROM t ORDER BY decrypt(a)",
            "UPDATE t SET a = encrypt(a)",
            "SELECT a FROM t WHERE ?1 IS NULL OR a = ?1",
        ] {
            translate(unsupported).unwrap_err();
        }
    }

    #[test]
    fn literals_and_comments_are_not_translated() {
        assert_eq!(
            sql("SELECT '?1, decrypt(a)' -- ?2"),
            "SELECT '?1, decrypt(a)' "
        );
        assert_eq!(
            sql("SELECT x'02', x.y"),
            "SELECT CAST('\\x02' AS BYTEA), x.y"
        );
    }

    #[test]
    fn functions_for_json_have_other_names() {
        assert_eq!(
            sql("SELECT 1 FROM json_each(?1) WHERE value = ?2"),
            "SELECT 1 FROM json_array_elements_text(CAST(CAST($1 AS TEXT) AS json))
                     AS json_each(value) WHERE value = $2"
        );
        assert_eq!(
            sql("SELECT json_group_array(DISTINCT tool) FROM calls"),
            "SELECT coalesce(CAST(json_agg(DISTINCT tool) AS TEXT), '[]') FROM calls"
        );
    }

    #[test]
    fn statements_can_be_for_one_database_only() {
        let schema = "CREATE TABLE t (a TEXT);
            -- An index.
            -- postgres: CREATE INDEX short ON t (a);
            -- sqlite-only
            CREATE INDEX long ON t (a, b);
            CREATE INDEX last ON t (a);";
        let translated = translate_batch(schema).unwrap();
        assert!(translated.contains("CREATE INDEX short ON t (a);"));
        assert!(translated.contains("CREATE INDEX last"));
        assert!(!translated.contains("long"));
    }

    #[test]
    fn types_have_other_names_in_definitions() {
        let schema = "-- INTEGER; it's a comment\nCREATE TABLE t (
            id INTEGER PRIMARY KEY, -- REAL
            name TEXT NOT NULL DEFAULT ';', title CODED TEXT NOT NULL, data BLOB, x REAL, n INTEGER) WITHOUT ROWID;
            INSERT INTO t VALUES ('INTEGER');";
        let translated = translate_batch(schema).unwrap();
        for part in [
            "id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
            "name TEXT COLLATE \"C\" NOT NULL DEFAULT ';'",
            "title BYTEA NOT NULL, data BYTEA, x DOUBLE PRECISION, n BIGINT)",
            "VALUES ('INTEGER')",
        ] {
            assert!(translated.contains(part), "{translated}");
        }
        for part in ["ROWID", "--", "REAL"] {
            assert!(!translated.contains(part), "{translated}");
        }
    }
}
