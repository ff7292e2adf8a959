//! Finding secrets, for redacted views and for the environment of commands.
//!
//! In text a secret needs evidence in its value: a known format ([`formats`]), or a name that says
//! "secret" before a value that looks like one ([`pairs`], [`evidence`]). For an environment variable
//! the name or the value suffices ([`environment`]).
//!
//! One pass of an Aho-Corasick automaton finds the places worth a closer look. Every look that finds
//! nothing reads a bounded number of bytes and every find is skipped as a whole, so that the time is
//! linear in the length of the text.

mod environment;
mod evidence;
mod formats;
mod names;
mod pairs;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use serde_json::Value;

pub use environment::is_secret_variable;

const REDACTED: &str = "[redacted]";

/// Takes secrets out of text and JSON.
#[derive(Debug)]
pub struct Redactor {
    pairs: OnceLock<pairs::Finder>,
    /// Lower-case names of fields and variables whose values are secret whatever they look like.
    names: Vec<String>,
}

impl Redactor {
    /// Knows common secrets, and everything that stands under one of these names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter().map(|name| name.to_lowercase());
        Self {
            pairs: OnceLock::new(),
            names: names.filter(|name| !name.is_empty()).collect(),
        }
    }

    /// The text without secrets.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut found = self.find(text);
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        found.sort_by_key(|range| range.start);
        let (mut shown, mut end) = (String::with_capacity(text.len()), 0);
        for range in found {
            if range.start >= end {
                shown.push_str(&text[end..range.start]);
                shown.push_str(REDACTED);
            }
            end = end.max(range.end);
        }
        shown.push_str(&text[end..]);
        Cow::Owned(shown)
    }

    /// Where secrets are, in no particular order.
    fn find(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = formats::find(text);
        let pairs = self.pairs.get_or_init(|| pairs::Finder::new(&self.names));
        pairs.find(text, &mut found);
        found
    }

    /// The value without secrets. A field whose name says "secret" loses every string in it that is
    /// no placeholder.
    pub fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.string(text)),
            Value::Array(items) => {
                let before = std::iter::once(None).chain(items.iter().map(Value::as_str));
                let redacted = items.iter().zip(before).map(|(item, before)| match before {
                    // The value of an option such as --token, or -p for sshpass.
                    Some(option) if item.is_string() && self.is_secret_option(option, items) => {
                        REDACTED.into()
                    }
                    _ => self.value(item),
                });
                Value::Array(redacted.collect())
            }
            Value::Object(fields) => {
                let redacted = fields
                    .iter()
                    .map(|(name, value)| (name.clone(), self.field(name, value)));
                Value::Object(redacted.collect())
            }
            other => other.clone(),
        }
    }

    fn field(&self, name: &str, value: &Value) -> Value {
        let configured = self.names.contains(&name.to_lowercase());
        match value {
            Value::Null | Value::Bool(_) => value.clone(),
            _ if configured => REDACTED.into(),
            Value::String(text) if names::is_secret(name) => match evidence::is_harmless(text) {
                true => value.clone(),
                false => REDACTED.into(),
            },
            Value::Array(items) if names::is_secret(name) => {
                items.iter().map(|item| self.field(name, item)).collect()
            }
            Value::Object(fields) if names::is_secret(name) => {
                let fields = fields
                    .iter()
                    .map(|(name, value)| (name.clone(), self.inner(value)));
                Value::Object(fields.collect())
            }
            value => self.value(value),
        }
    }

    /// A value somewhere below a secret name. Sentences stay: a schema describes its fields.
    fn inner(&self, value: &Value) -> Value {
        match value {
            Value::String(text) if !text.contains(' ') => self.field("secret", value),
            Value::String(_) => self.value(value),
            Value::Array(items) => items.iter().map(|item| self.inner(item)).collect(),
            other => self.field("secret", other),
        }
    }

    fn is_secret_option(&self, option: &str, command: &[Value]) -> bool {
        let of_sshpass =
            option == "-p" && command.first().and_then(Value::as_str) == Some("sshpass");
        let named = option.strip_prefix("--").is_some_and(|name| {
            !name.contains('=')
                && (names::is_secret(name) || self.names.contains(&name.to_lowercase()))
        });
        of_sshpass || named
    }

    /// A text that is JSON is redacted as JSON, and stays as it was, blanks included, if nothing in
    /// it is secret.
    fn string(&self, text: &str) -> String {
        let looks_like_json = text.starts_with(['{', '[']) && text.len() > 2;
        match looks_like_json.then(|| serde_json::from_str::<Value>(text)) {
            Some(Ok(inner)) => {
                let redacted = self.value(&inner);
                if redacted == inner {
                    self.text(text).into_owned()
                } else {
                    redacted.to_string()
                }
            }
            _ => self.text(text).into_owned(),
        }
    }
}
