//! Checks a configuration file against the schema, key by key, so that every message names a line.

use std::path::{Path, PathBuf};

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::Config;
use crate::schema::{enum_values, leaf_keys, range_text, schema};

/// A problem in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether the file is used despite the problem.
    pub severity: Severity,
    /// Path of the file.
    pub path: PathBuf,
    /// Line of the problem, 1-based. `None` if it concerns the whole file.
    pub line: Option<usize>,
    /// One line that says what is wrong.
    pub message: String,
    /// What has the problem: the file, its syntax or a key.
    pub subject: DiagnosticSubject,
}

/// What has a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiagnosticSubject {
    /// The file: it cannot be read or written.
    File,
    /// The text, which is not TOML.
    Syntax,
    /// A key or its value.
    Key,
}

/// Whether a file with a problem is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The file is used; the key has no effect.
    Warning,
    /// The file is not used.
    Error,
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.message)
    }
}

/// Returns all problems in the text of a file.
pub(crate) fn check(path: &Path, text: &str) -> Vec<Diagnostic> {
    let schema = schema();
    let mut check = FileCheck {
        path,
        text,
        schema: &schema,
        diagnostics: Vec::new(),
    };
    match DeTable::parse(text) {
        Ok(table) => check.table(&schema, "", table.get_ref()),
        Err(error) => check.parse_error(&error, DiagnosticSubject::Syntax),
    }
    // Finds what the schema does not express, such as the range of an integer type.
    if check
        .diagnostics
        .iter()
        .all(|problem| problem.severity == Severity::Warning)
        && let Err(error) = toml::from_str::<Config>(text)
    {
        check.parse_error(&error, DiagnosticSubject::Key);
    }
    check.diagnostics
}

struct FileCheck<'a> {
    path: &'a Path,
    text: &'a str,
    schema: &'a Value,
    diagnostics: Vec<Diagnostic>,
}

impl FileCheck<'_> {
    fn table(&mut self, schema: &Value, path: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let key = match path {
                "" => quote_key(name.get_ref()),
                path => format!("{path}.{}", quote_key(name.get_ref())),
            };
            let known = &schema["properties"][name.get_ref().as_ref()];
            match (known, &schema["additionalProperties"]) {
                (Value::Null, entry @ Value::Object(_)) => self.value(entry, &key, value),
                (Value::Null, _) => self.unknown(schema, &key, name),
                (known, _) => self.value(known, &key, value),
            }
        }
    }

    fn value(&mut self, schema: &Value, key: &str, value: &Spanned<DeValue<'_>>) {
        let is_table = matches!(value.get_ref(), DeValue::Table(_));
        let mut alternatives = schema["anyOf"].as_array().into_iter().flatten();
        if let Some(chosen) = alternatives.find(|form| has_type(form, "object") == is_table) {
            return self.value(chosen, key, value);
        }
        let (at, got) = (value.span().start, value.get_ref());
        let is_valid = match got {
            DeValue::Table(table) if has_type(schema, "object") => {
                self.table(schema, key, table);
                let required = schema["required"].as_array().into_iter().flatten();
                for name in required
                    .filter_map(Value::as_str)
                    .filter(|name| !table.contains_key(*name))
                {
                    self.error(at, format!("{key} must have the key `{name}`"));
                }
                true
            }
            DeValue::Array(items) if has_type(schema, "array") => {
                for (index, item) in items.iter().enumerate() {
                    self.value(&schema["items"], &format!("{key}[{index}]"), item);
                }
                let length = |name: &str, default: u64| schema[name].as_u64().unwrap_or(default);
                (length("minItems", 0)..=length("maxItems", u64::MAX))
                    .contains(&(items.len() as u64))
            }
            DeValue::String(text) if schema["format"] == "glob" => {
                if let Err(error) = globset::Glob::new(text) {
                    let message = format!("invalid glob {text:?} in {key}: {}", error.kind());
                    self.error(at, message);
                }
                true
            }
            DeValue::String(text) if schema.get("oneOf").is_some() => {
                enum_values(schema).any(|value| value["const"] == text.as_ref())
            }
            DeValue::String(_) => has_type(schema, "string"),
            DeValue::Boolean(_) => has_type(schema, "boolean"),
            DeValue::Integer(number)
                if has_type(schema, "integer") || has_type(schema, "number") =>
            {
                let number = i128::from_str_radix(number.as_str(), number.radix());
                number.is_ok_and(|number| is_in_range(schema, number as f64))
            }
            DeValue::Float(number) if has_type(schema, "number") => {
                let number: Result<f64, _> = number.as_str().parse();
                number.is_ok_and(|number| number.is_finite() && is_in_range(schema, number))
            }
            _ => false,
        };
        if !is_valid {
            let shown = self.text.get(value.span()).unwrap_or_default();
            let shown = match got {
                DeValue::Table(_) => "a table",
                DeValue::Array(_) => "a list",
                _ if shown.contains('\n') || shown.len() > 60 => got.type_str(),
                _ => shown,
            };
            let bounds = match got {
                DeValue::Integer(_) | DeValue::Float(_) => range_text(schema),
                _ => None,
            };
            let bounds = bounds
                .map(|bounds| format!(" {bounds}"))
                .unwrap_or_default();
            let mut expected = describe_expected(schema, key) + &bounds;
            if let DeValue::String(text) = got
                && has_type(schema, "array")
                && has_type(&schema["items"], "string")
            {
                let words: Vec<&str> = text.split_whitespace().collect();
                expected += &format!(" such as {words:?}");
            }
            self.error(at, format!("{key} must be {expected}, got {shown}"));
        }
    }

    fn unknown(&mut self, schema: &Value, key: &str, name: &Spanned<std::borrow::Cow<'_, str>>) {
        let wrong = name.get_ref().as_ref();
        let siblings = schema["properties"].as_object().into_iter().flatten();
        let near = siblings
            .map(|(sibling, _)| (strsim::jaro_winkler(wrong, sibling), sibling.clone()))
            .filter(|(similarity, _)| *similarity > 0.8)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, sibling)| sibling);
        // The name may be a key of another table.
        let in_other_table = || {
            let all = leaf_keys(self.schema).into_iter().map(|(key, _)| key);
            all.into_iter()
                .find(|key| key.rsplit('.').next() == Some(wrong))
        };
        // A misspelled security setting must not leave the default in place.
        let is_security_setting =
            |near: &String| ["sandbox_mode", "approval_policy"].contains(&near.as_str());
        let severity = match near.as_ref().is_some_and(is_security_setting) {
            true => Severity::Error,
            false => Severity::Warning,
        };
        // A key of the top level that was appended to the last table of the file.
        let is_top_level = key != wrong && self.schema["properties"].get(wrong).is_some();
        let hint = match near {
            None if is_top_level => "; move this line above the first [section]".to_owned(),
            near => near
                .or_else(in_other_table)
                .map(|near| format!("; did you mean `{near}`?"))
                .unwrap_or_default(),
        };
        self.report(
            severity,
            DiagnosticSubject::Key,
            name.span().start,
            format!("unknown key `{key}`{hint}"),
        );
    }

    fn parse_error(&mut self, error: &toml::de::Error, subject: DiagnosticSubject) {
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        let at = error.span().map_or(0, |span| span.start);
        let line = self.text.lines().nth(line_of(self.text, at) - 1);
        let (key, value) = line.and_then(|line| line.split_once('=')).unzip();
        let message = match (message.as_str(), key.map(str::trim), value.map(str::trim)) {
            ("duplicate key", Some(key), _) => format!("`{key}` is set twice"),
            (_, Some(_), Some("")) if subject == DiagnosticSubject::Syntax => {
                "the value after `=` is missing".to_owned()
            }
            _ => message,
        };
        self.report(Severity::Error, subject, at, message);
    }

    fn error(&mut self, at: usize, message: String) {
        self.report(Severity::Error, DiagnosticSubject::Key, at, message);
    }

    fn report(
        &mut self,
        severity: Severity,
        subject: DiagnosticSubject,
        at: usize,
        message: String,
    ) {
        self.diagnostics.push(Diagnostic {
            severity,
            path: self.path.to_owned(),
            line: Some(line_of(self.text, at)),
            message,
            subject,
        });
    }
}

/// Returns the line in which a text sets a key, 1-based. `path` has the names of the tables above
/// the key and its own name. `None` if the text does not set it or is not TOML.
pub(crate) fn line_of_key(text: &str, path: &[&str]) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let mut table = root.get_ref();
    let (last, above) = path.split_last()?;
    for name in above {
        let (_, value) = table.iter().find(|(key, _)| key.get_ref() == name)?;
        let DeValue::Table(inner) = value.get_ref() else {
            return None;
        };
        table = inner;
    }
    let (key, _) = table.iter().find(|(key, _)| key.get_ref() == last)?;
    Some(line_of(text, key.span().start))
}

/// Returns the line of a byte offset, 1-based.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    let before = &text.as_bytes()[..at.min(text.len())];
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Describes the values that a key accepts, for a message.
fn describe_expected(schema: &Value, key: &str) -> String {
    let values: Vec<&str> = enum_values(schema)
        .filter_map(|value| value["const"].as_str())
        .collect();
    if let [others @ .., last] = values.as_slice() {
        let others: Vec<String> = others.iter().map(|value| format!("{value:?}")).collect();
        return format!("{} or {last:?}", others.join(", "));
    }
    let unit = match key.rsplit('_').next() {
        Some("ms") => " of milliseconds",
        Some("sec") => " of seconds",
        Some("mb") => " of megabytes",
        Some("bytes") => " of bytes",
        _ => "",
    };
    if has_type(schema, "integer") {
        format!("a whole number{unit}")
    } else if has_type(schema, "number") {
        format!("a number{unit}")
    } else if has_type(schema, "boolean") {
        "true or false".to_owned()
    } else if has_type(schema, "string") {
        "a string".to_owned()
    } else if has_type(schema, "array") {
        let count = schema["maxItems"].as_u64();
        let count = count.map(|count| format!("{count} ")).unwrap_or_default();
        let item = describe_expected(&schema["items"], key);
        format!("a list of {count}{}", plural(&item))
    } else {
        "a table".to_owned()
    }
}

/// Returns the plural: `strings` of `a string`, `lists of strings` of `a list of strings`.
fn plural(noun: &str) -> String {
    let noun = noun.strip_prefix("a ").unwrap_or(noun);
    match noun.split_once(" of ") {
        Some((noun, rest)) => format!("{noun}s of {rest}"),
        None => format!("{noun}s"),
    }
}

fn has_type(schema: &Value, kind: &str) -> bool {
    schema["type"] == kind
}

fn is_in_range(schema: &Value, number: f64) -> bool {
    schema["minimum"].as_f64().is_none_or(|min| number >= min)
        && schema["maximum"].as_f64().is_none_or(|max| number <= max)
        && schema["exclusiveMinimum"]
            .as_f64()
            .is_none_or(|min| number > min)
}

/// Returns a key as written in TOML, in quotes if necessary.
fn quote_key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match !name.is_empty() && name.chars().all(is_bare) {
        true => name.to_owned(),
        false => format!("{name:?}"),
    }
}
