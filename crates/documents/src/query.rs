//! Queries: which documents match, and in which order.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::WorkspaceDocument;
use crate::document::scalar_text;
use crate::globs::{DocumentGlobs, GlobError};

/// A query for documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DocumentQuery {
    /// Values that fields must have. A list means any of its values, and null a missing field. If
    /// a document has a list, one of its elements must match. `path` is a glob or several.
    pub fields: Map<String, Value>,
    /// Words that the document must contain.
    pub text: Option<String>,
    /// Order of the documents. Without it, the best match is first, else they are sorted by path.
    pub sort: Vec<SortKey>,
    /// Maximum number of documents to return.
    pub limit: usize,
}

/// A field to sort by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortKey {
    /// Name of the field.
    pub field: String,
    /// Whether the largest value is first. Documents without the field are last either way.
    pub is_descending: bool,
}

/// The result of a query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FoundDocuments {
    /// The documents, in the order of the query.
    pub documents: Vec<Arc<WorkspaceDocument>>,
    /// Number of documents that match, before the limit.
    pub total: usize,
    /// Documents that could not be read or have malformed front matter: path and problem. Only
    /// those that `path` of the query selects.
    pub problems: Vec<(String, String)>,
    /// Why documents may be missing, if a limit of the index was reached.
    pub is_incomplete: bool,
}

impl SortKey {
    /// Reads `updated` or, for the largest value first, `-updated`.
    pub fn parse(text: &str) -> Self {
        let field = text.strip_prefix('-');
        Self {
            field: field.unwrap_or(text).to_owned(),
            is_descending: field.is_some(),
        }
    }
}

/// A query that was prepared for many documents.
pub(crate) struct PreparedQuery<'a> {
    query: &'a DocumentQuery,
    paths: Option<DocumentGlobs>,
}

impl<'a> PreparedQuery<'a> {
    pub(crate) fn new(query: &'a DocumentQuery) -> Result<Self, GlobError> {
        let wanted = query.fields.get("path");
        let globs: Vec<&str> = match wanted {
            Some(Value::String(glob)) => vec![glob],
            Some(Value::Array(globs)) => globs.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let paths = DocumentGlobs::with_contents(&globs)?;
        let paths = wanted.is_some().then_some(paths);
        Ok(Self { query, paths })
    }

    /// Whether the query is about documents at this path.
    pub(crate) fn selects_path(&self, path: &str) -> bool {
        self.paths.as_ref().is_none_or(|globs| globs.is_match(path))
    }

    /// Whether the fields of a document match.
    pub(crate) fn matches(&self, document: &WorkspaceDocument) -> bool {
        let mut fields = self.query.fields.iter();
        fields.all(|(name, wanted)| match (name.as_str(), wanted) {
            ("path", _) => self.selects_path(&document.path),
            (name, wanted) => match (document.text_field(name), wanted) {
                (Some(text), Value::String(wanted)) => text == wanted,
                (Some(text), wanted) => field_matches(Some(&Value::from(text)), wanted),
                (None, wanted) => field_matches(document.field(name), wanted),
            },
        })
    }

    /// Sorts documents, which come with their scores in the order of their paths, and applies the
    /// limit.
    pub(crate) fn order(
        &self,
        found: &[(f64, &Arc<WorkspaceDocument>)],
    ) -> Vec<Arc<WorkspaceDocument>> {
        let mut order: Vec<usize> = (0..found.len()).collect();
        if !self.query.sort.is_empty() {
            let count = self.query.sort.len();
            let keys = found.iter().flat_map(|(_, document)| {
                let keys = self.query.sort.iter();
                keys.map(|key| SortValue::of(document, &key.field))
            });
            let keys: Vec<SortValue<'_>> = keys.collect();
            let keys_of = |at: usize| &keys[at * count..(at + 1) * count];
            self.sort(&mut order, |a, b| self.compare(keys_of(a), keys_of(b)));
        } else if self.query.text.is_some() {
            self.sort(&mut order, |a, b| found[b].0.total_cmp(&found[a].0));
        }
        order.truncate(self.query.limit);
        let documents = order.into_iter().map(|at| found[at].1.clone());
        documents.collect()
    }

    /// Sorts positions so that the first ones, up to the limit, are in order. Of equal ones, the
    /// smaller position is first.
    fn sort(&self, order: &mut Vec<usize>, compare: impl Fn(usize, usize) -> Ordering) {
        let compare = |a: &usize, b: &usize| compare(*a, *b).then(a.cmp(b));
        if order.len() > self.query.limit {
            order.select_nth_unstable_by(self.query.limit, compare);
            order.truncate(self.query.limit);
        }
        order.sort_unstable_by(compare);
    }

    fn compare(&self, a: &[SortValue<'_>], b: &[SortValue<'_>]) -> Ordering {
        let keys = self.query.sort.iter().zip(a.iter().zip(b));
        let mut orders = keys.map(|(key, (a, b))| match a.compare(b) {
            order if key.is_descending && !a.is_missing() && !b.is_missing() => order.reverse(),
            order => order,
        });
        orders
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

/// A value to sort by: numbers by size, everything else by its text.
#[derive(Debug, PartialEq)]
enum SortValue<'a> {
    Number(f64),
    Text(Cow<'a, str>),
    Missing,
}

impl<'a> SortValue<'a> {
    fn of(document: &'a WorkspaceDocument, field: &str) -> Self {
        if let Some(text) = document.text_field(field) {
            return Self::Text(Cow::Borrowed(text));
        }
        match document.field(field) {
            None | Some(Value::Null) => Self::Missing,
            Some(value) => match (value.as_f64(), scalar_text(value)) {
                (Some(number), _) => Self::Number(number),
                (None, Some(text)) => Self::Text(text),
                (None, None) => Self::Text(Cow::Owned(value.to_string())),
            },
        }
    }

    fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }

    fn compare(&self, other: &Self) -> Ordering {
        let rank = |value: &Self| match value {
            Self::Number(_) => 0,
            Self::Text(_) => 1,
            Self::Missing => 2,
        };
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (a, b) => rank(a).cmp(&rank(b)),
        }
    }
}

/// Whether a field has the value that a query asks for.
fn field_matches(field: Option<&Value>, wanted: &Value) -> bool {
    match (field.unwrap_or(&Value::Null), wanted) {
        (Value::Null, Value::Null) => true,
        (Value::Array(own), Value::Array(all)) if own == all => true,
        (field, Value::Array(any)) => any.iter().any(|wanted| field_matches(Some(field), wanted)),
        (Value::Array(own), wanted) => own.iter().any(|own| is_equal(own, wanted)),
        (field, wanted) => is_equal(field, wanted),
    }
}

/// Whether two values are equal. `3` equals `"3"`: front matter does not tell them apart well.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (a, b) if a == b => true,
        (a, b) => scalar_text(a).is_some_and(|a| Some(a) == scalar_text(b)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn fields_match_values_lists_and_missing_fields() {
        let text = "---\nkind: issue\npriority: 1\ntags: [auth, web]\ndone: false\n---\n";
        let document = WorkspaceDocument::parse("issues/a/1.md", text).unwrap();
        for (filter, expected) in [
            (json!({}), true),
            (json!({"kind": "issue", "priority": 1}), true),
            (json!({"kind": ["note", "issue"]}), true),
            (json!({"kind": "Issue"}), false),
            (json!({"priority": "1", "done": false}), true),
            (json!({"priority": 1.0}), true),
            (json!({"tags": "auth"}), true),
            (json!({"tags": ["x", "web"]}), true),
            (json!({"tags": ["auth", "web"]}), true),
            (json!({"tags": "other"}), false),
            (json!({"assignee": null, "status": null}), true),
            (json!({"kind": null}), false),
            (json!({"assignee": ["me", null]}), true),
            (json!({"path": "issues/**"}), true),
            (json!({"path": "issues"}), true),
            (json!({"path": "issues/*.md"}), false),
            (json!({"path": ["issues/a/1.md", "x"]}), true),
            (json!({"path": ["docs", "x/*.md"]}), false),
            (json!({"path": 3}), false),
        ] {
            let query = DocumentQuery {
                fields: fields(filter.clone()),
                ..DocumentQuery::default()
            };
            let prepared = PreparedQuery::new(&query).unwrap();
            assert_eq!(prepared.matches(&document), expected, "{filter}");
        }
    }

    #[test]
    fn documents_are_sorted_by_several_fields() {
        let texts = [
            "---\npriority: 2\ntitle: b\n---\n",
            "---\ntitle: none\n---\n",
            "---\npriority: 10\ntitle: c\n---\n",
            "---\npriority: 2\ntitle: a\n---\n",
        ];
        let documents = texts.map(|text| {
            let document = WorkspaceDocument::parse("a.md", text).unwrap();
            (0.0, Arc::new(document))
        });
        for (sort, expected) in [
            (vec!["priority", "title"], "a b c none"),
            (vec!["-priority", "title"], "c a b none"),
            (vec!["-title"], "none c b a"),
        ] {
            let query = DocumentQuery {
                sort: sort.iter().map(|key| SortKey::parse(key)).collect(),
                limit: 10,
                ..DocumentQuery::default()
            };
            let prepared = PreparedQuery::new(&query).unwrap();
            let found: Vec<_> = documents.iter().map(|(score, it)| (*score, it)).collect();
            let sorted = prepared.order(&found);
            let titles: Vec<&str> = sorted.iter().map(|it| it.title.as_str()).collect();
            assert_eq!(titles.join(" "), expected);
        }
    }
}
