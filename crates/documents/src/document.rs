//! One document: its fields, its text, and what is wrong with it.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::front_matter::{self, FrontMatterError};

/// Largest document, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// Maximum number of lines in which a heading is looked for.
const MAX_LINES_BEFORE_HEADING: usize = 40;
/// Longest title taken from a heading, in characters.
const MAX_TITLE_CHARS: usize = 200;

/// Fields of a document that the index provides, whatever the front matter says about them.
const PROVIDED_FIELDS: [&str; 3] = ["path", "markdownContent", "problem"];

/// A Markdown file of the workspace.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkspaceDocument {
    /// Path relative to the workspace, with `/`.
    pub path: String,
    /// The field `kind`.
    pub kind: Option<String>,
    /// The field `status`.
    pub status: Option<String>,
    /// The field `title`, else the first heading, else the name of the file.
    pub title: String,
    /// The other fields of the front matter. Documents of an index share the names.
    pub fields: Vec<(Arc<str>, Value)>,
    /// The text after the front matter; the whole text if the front matter is malformed.
    pub markdown: String,
    /// Why the document or its front matter could not be read.
    pub problem: Option<String>,
}

impl WorkspaceDocument {
    /// Reads a document from its text. Malformed front matter becomes the document's problem.
    pub fn from_text(path: &str, text: &str) -> Self {
        match Self::parse(path, text) {
            Ok(document) => document,
            Err(error) => Self {
                problem: Some(error.to_string()),
                ..Self::without_fields(path, text)
            },
        }
    }

    /// Reads a document from its text, or says why its front matter cannot be used.
    pub fn parse(path: &str, text: &str) -> Result<Self, FrontMatterError> {
        let split = front_matter::split(text)?;
        let mut document = Self::without_fields(path, split.body);
        let mut fields = split.fields;
        document.kind = take_text(&mut fields, "kind")?;
        document.status = take_text(&mut fields, "status")?;
        if let Some(title) = take_text(&mut fields, "title")? {
            document.title = title;
        }
        fields.retain(|name, _| !PROVIDED_FIELDS.contains(&name.as_str()));
        let fields = fields.into_iter().map(|(name, value)| (name.into(), value));
        document.fields = fields.collect();
        Ok(document)
    }

    /// Returns a document that could not be read.
    pub(crate) fn unreadable(path: &str, problem: String) -> Self {
        Self {
            problem: Some(problem),
            ..Self::without_fields(path, "")
        }
    }

    fn without_fields(path: &str, markdown: &str) -> Self {
        Self {
            path: path.to_owned(),
            kind: None,
            status: None,
            title: heading(markdown).unwrap_or_else(|| file_stem(path)),
            fields: Vec::new(),
            markdown: markdown.trim_start_matches(['\r', '\n']).to_owned(),
            problem: None,
        }
    }

    /// Returns the value of a field without a fixed meaning.
    pub(crate) fn field(&self, name: &str) -> Option<&Value> {
        let mut fields = self.fields.iter();
        fields
            .find(|(own, _)| **own == *name)
            .map(|(_, value)| value)
    }

    /// Returns the text of a field with a fixed meaning.
    pub(crate) fn text_field(&self, name: &str) -> Option<&str> {
        match name {
            "path" => Some(&self.path),
            "kind" => self.kind.as_deref(),
            "status" => self.status.as_deref(),
            "title" => Some(&self.title),
            _ => None,
        }
    }
}

/// Removes a field and returns its text. A number or boolean is written out.
fn take_text(
    fields: &mut Map<String, Value>,
    name: &'static str,
) -> Result<Option<String>, FrontMatterError> {
    match fields.shift_remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match scalar_text(&value) {
            Some(text) => Ok(Some(text.into_owned())),
            None => Err(FrontMatterError::NotText(name)),
        },
    }
}

/// Returns the text of a value that is neither a list nor a mapping nor null.
pub(crate) fn scalar_text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(value) => Some(Cow::Borrowed(if *value { "true" } else { "false" })),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the first heading `# …` near the start of a text.
fn heading(markdown: &str) -> Option<String> {
    let lines = markdown.lines().take(MAX_LINES_BEFORE_HEADING);
    let title = lines.filter_map(|line| line.strip_prefix("# ")).next()?;
    let title = title.trim().trim_end_matches('#').trim_end();
    (!title.is_empty()).then(|| selvedge_text::one_line(title, MAX_TITLE_CHARS))
}

fn file_stem(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    stem.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_and_text_are_separated() {
        let text = "---\nkind: issue\nstatus: open\ntitle: \"Login: crash\"\npriority: critical\n\
                    tags: [auth, web]\ncreated: 2026-01-02\nestimate: 3\n---\n\n# Heading\n\nBody.\n";
        let document = WorkspaceDocument::parse("issues/1.md", text).unwrap();
        assert_eq!(document.kind.as_deref(), Some("issue"));
        assert_eq!(document.status.as_deref(), Some("open"));
        assert_eq!(document.title, "Login: crash");
        let fields = [
            ("priority", json!("critical")),
            ("tags", json!(["auth", "web"])),
            ("created", json!("2026-01-02")),
            ("estimate", json!(3)),
        ];
        assert_eq!(
            document.fields,
            fields.map(|(name, value)| (name.into(), value))
        );
        assert_eq!(document.markdown, "# Heading\n\nBody.\n");
    }

    #[test]
    fn a_text_without_front_matter_is_a_document() {
        for (text, title) in [
            ("# Guide #\n\ntext", "Guide"),
            ("text\n---\nmore\n", "a"),
            ("", "a"),
            ("---\n---\n", "a"),
            (
                "\u{feff}---\r\n# only a comment\r\n---\r\n# Windows\r\n",
                "Windows",
            ),
        ] {
            let document = WorkspaceDocument::parse("docs/a.md", text).unwrap();
            assert_eq!(document.title, title, "{text:?}");
            assert!(document.fields.is_empty() && document.kind.is_none());
        }
    }

    #[test]
    fn provided_fields_are_not_taken_from_the_front_matter() {
        let text = "---\npath: /etc/passwd\nproblem: none\nmarkdownContent: x\nkind: 3\n---\nbody";
        let document = WorkspaceDocument::parse("a.md", text).unwrap();
        assert!(document.fields.is_empty(), "{:?}", document.fields);
        assert_eq!(
            (document.path.as_str(), document.kind.as_deref()),
            ("a.md", Some("3"))
        );
    }

    #[test]
    fn malformed_front_matter_is_the_problem_of_its_document() {
        let laughs: String = (1..12)
            .map(|at| {
                format!(
                    "a{at}: &a{at} [{}]\n",
                    vec![format!("*a{}", at - 1); 10].join(",")
                )
            })
            .collect();
        let laughs = format!("---\na0: &a0 [x, x, x]\n{laughs}---\n");
        let deep = format!("---\na: {}\n---\n", "[".repeat(5000));
        let nested: String = (0..64)
            .map(|at| format!("{}k:\n", " ".repeat(at)))
            .collect();
        let nested = format!("---\n{nested}---\n");
        let large = format!("---\na: {}\n---\n", "x".repeat(70_000));
        let complex = "nested deeper than 16 or has more than 2000 values";
        for (text, problem) in [
            (
                "---\nkind: issue\ntitle: Fix: this\n---\n",
                "line 3: mapping values are not allowed",
            ),
            ("---\nkind: issue\n", "the front matter has no end"),
            ("---\n- a\n- b\n---\n", "not a list of fields"),
            (
                "---\na: 1\na: 2\n---\n",
                "line 3: the field `a` is given twice",
            ),
            ("---\nkind: [a, b]\n---\n", "`kind` must be a text"),
            ("---\na: .nan\n---\n", "line 2: `.nan` is not a number"),
            ("---\na: &a [*a]\n---\n", complex),
            ("---\na: \"x\n---\n", "line "),
            ("---\na: \u{0}\n---\n", "line 2: "),
            (&laughs, complex),
            (&deep, "line 2: "),
            (&nested, complex),
            (&large, "larger than 64 KiB"),
        ] {
            let document = WorkspaceDocument::from_text("a.md", text);
            let found = document.problem.unwrap_or_default();
            let shown: String = text.chars().take(60).collect();
            assert!(found.contains(problem), "{shown:?}: {found}");
            assert_eq!(document.markdown.len(), text.len(), "{shown:?}");
        }
    }
}
