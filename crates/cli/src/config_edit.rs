//! Changes the user's `config.toml`, and keeps its comments and layout.

use std::path::{Path, PathBuf};

use anyhow::Result;
use selvedge_config::{Severity, UserFile};
use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, Value};

use crate::private_file::{create_private, replace_file};
use crate::problem::Problem;

/// Largest file that is changed, in bytes.
const MAX_FILE_BYTES: usize = 1 << 20;

/// The user's `config.toml` while it is changed.
pub(crate) struct ConfigEdit {
    path: PathBuf,
    /// The text of the file before it was changed.
    before: String,
    document: DocumentMut,
}

impl ConfigEdit {
    /// Reads the file. A missing file is empty.
    pub(crate) fn open() -> Result<Self> {
        let home = selvedge_config::home()
            .ok_or_else(|| Problem::new("cannot find the home folder").hint("set SELVEDGE_HOME"))?;
        let path = home.join("config.toml");
        let text = selvedge_files::read_user_text(&path, MAX_FILE_BYTES)
            .map_err(|refusal| Problem::new(refusal.to_string()).hint("make the file readable"))?
            .unwrap_or_default();
        let document = text.parse().map_err(|error: toml_edit::TomlError| {
            Problem::new(format!(
                "cannot parse {}: {}",
                path.display(),
                error.message()
            ))
            .hint("run `selvedge doctor` to find the line")
        })?;
        Ok(Self {
            path,
            before: text,
            document,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Sets a key, such as `["memory", "recall"]`. Creates the tables above it.
    pub(crate) fn set(&mut self, key: &[&str], value: Value) -> Result<()> {
        set_value(&mut self.document, key, value)
    }

    /// Removes a key. Returns whether there was one.
    pub(crate) fn remove(&mut self, key: &[&str]) -> bool {
        let Some((last, tables)) = key.split_last() else {
            return false;
        };
        let mut table: &mut dyn TableLike = self.document.as_table_mut();
        for name in tables {
            match table.get_mut(name).and_then(Item::as_table_like_mut) {
                Some(below) => table = below,
                None => return false,
            }
        }
        table.remove(last).is_some()
    }

    /// Writes the file, unless it would have an error that it did not have before, or a new
    /// warning, such as one of an unknown key.
    pub(crate) fn save(&self) -> Result<()> {
        let text = self.document.to_string();
        let known = self.problems(&self.before);
        let mut problems = self.problems(&text).into_iter();
        if let Some(problem) = problems.find(|problem| !known.contains(problem)) {
            return Err(Problem::new(problem)
                .hint("run `selvedge config schema` for the keys and their values")
                .into());
        }
        self.write(&text).map_err(|error| {
            Problem::new(format!("cannot write {}: {error}", self.path.display()))
                .hint("set SELVEDGE_HOME to a writable folder")
        })?;
        Ok(())
    }

    /// Replaces the file. A new one can be read by its owner only, because it may contain keys.
    fn write(&self, text: &str) -> std::io::Result<()> {
        if let Some(folder) = self.path.parent() {
            selvedge_files::create_private_folder(folder)?;
        }
        if !self.path.exists() {
            create_private(&self.path)?;
        }
        // The file may be a link to a file in another folder; the link stays.
        replace_file(&self.path.canonicalize()?, text)
    }

    /// Returns the messages about a file with this text, without their lines.
    fn problems(&self, text: &str) -> Vec<String> {
        let user = UserFile::with_text(&self.path, text);
        let (_, diagnostics) = selvedge_config::load_with(&user, None);
        let messages = diagnostics.iter().map(|one| match one.severity {
            Severity::Error | Severity::Warning => without_line(&one.to_string()),
        });
        messages.collect()
    }
}

/// Sets a key of a file. Creates the tables above it, and keeps the comments of the value before.
pub(crate) fn set_value(document: &mut DocumentMut, key: &[&str], value: Value) -> Result<()> {
    let Some((last, tables)) = key.split_last() else {
        return Ok(());
    };
    let mut table: &mut dyn TableLike = document.as_table_mut();
    let mut is_inline = false;
    for name in tables {
        let empty = match is_inline {
            // An inline table holds values only.
            true => Item::Value(InlineTable::new().into()),
            false => {
                let mut empty = Table::new();
                empty.set_implicit(true);
                Item::Table(empty)
            }
        };
        let item = table.entry(name).or_insert(empty);
        is_inline = item.is_inline_table();
        table = item.as_table_like_mut().ok_or_else(|| {
            Problem::new(format!("`{name}` is not a table"))
                .hint("run `selvedge config schema` for the keys")
        })?;
    }
    match table.get_mut(last) {
        // The comments before and after a value stay.
        Some(Item::Value(before)) => {
            let decor = before.decor().clone();
            *before = value;
            *before.decor_mut() = decor;
        }
        _ => _ = table.insert(last, Item::Value(value)),
    }
    Ok(())
}

/// Removes the line number of a message: the lines of a file move when it is changed.
fn without_line(message: &str) -> String {
    let is_line = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let parts: Vec<&str> = message.split(':').collect();
    let parts = parts.into_iter().filter(|part| !is_line(part.trim()));
    parts.collect::<Vec<_>>().join(":")
}

/// Parses a value as TOML. A text that is not TOML, such as a name, is a string.
pub(crate) fn parse_value(text: &str) -> Value {
    text.parse().unwrap_or_else(|_| Value::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_set_and_comments_stay() {
        let mut edit = ConfigEdit {
            path: PathBuf::from("config.toml"),
            before: String::new(),
            document: "# mine\nmodel = \"a\" # fast\n".parse().unwrap(),
        };
        edit.set(&["memory", "recall"], parse_value("false"))
            .unwrap();
        edit.set(&["model"], parse_value("gpt-5")).unwrap();
        assert_eq!(
            edit.document.to_string(),
            "# mine\nmodel = \"gpt-5\" # fast\n\n[memory]\nrecall = false\n"
        );
        assert!(edit.remove(&["memory", "recall"]) && !edit.remove(&["no", "such"]));
        assert!(edit.set(&["model", "below"], parse_value("1")).is_err());
    }

    #[test]
    fn a_key_of_an_inline_table_is_set() {
        let mut document: DocumentMut = "a = { b = 1 }\n".parse().unwrap();
        set_value(&mut document, &["a", "c", "d"], parse_value("2")).unwrap();
        let written: DocumentMut = document.to_string().parse().unwrap();
        let integer = |item: &Item| item.as_integer();
        assert_eq!(integer(&written["a"]["b"]), Some(1));
        assert_eq!(integer(&written["a"]["c"]["d"]), Some(2));
    }
}
