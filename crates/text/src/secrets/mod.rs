//! Secret detection, for redacted output and for the environment of commands.
//!
//! In text a secret needs evidence in its value: a known format ([`formats`]), or the name of a
//! secret before a value that looks like one ([`pairs`], [`evidence`]). An environment variable is
//! secret by its name or its value ([`environment`]).
//!
//! One pass of an Aho-Corasick automaton finds candidates. A candidate that is not a secret reads a
//! bounded number of bytes, and a secret is skipped as a whole, so that the time is linear in the
//! length of the text.

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

/// Replaces secrets in text and JSON by `[redacted]`.
#[derive(Debug)]
pub struct Redactor {
    pairs: OnceLock<pairs::PairFinder>,
    /// Lower-case names of fields and variables whose values are always secret.
    names: Vec<String>,
}

impl Redactor {
    /// Creates a redactor for known kinds of secrets and for all values with one of these names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter().map(|name| name.to_lowercase());
        Self {
            pairs: OnceLock::new(),
            names: names.filter(|name| !name.is_empty()).collect(),
        }
    }

    /// Returns the text with secrets replaced.
    pub fn redact_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut found = self.find(text);
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        found.sort_by_key(|range| range.start);
        let (mut redacted, mut end) = (String::with_capacity(text.len()), 0);
        for range in found {
            if range.start >= end {
                redacted.push_str(&text[end..range.start]);
                redacted.push_str(REDACTED);
            }
            end = end.max(range.end);
        }
        redacted.push_str(&text[end..]);
        Cow::Owned(redacted)
    }

    /// Returns the ranges of secrets, in no particular order. They may overlap.
    fn find(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = formats::find(text);
        let pairs = self
            .pairs
            .get_or_init(|| pairs::PairFinder::new(&self.names));
        pairs.find(text, &mut found);
        found
    }

    /// Returns the value with secrets replaced. In a field with the name of a secret, every string
    /// that is not a placeholder is replaced.
    pub fn redact_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.redact_string(text)),
            Value::Array(items) => {
                let previous = std::iter::once(None).chain(items.iter().map(Value::as_str));
                let program = items.first().and_then(Value::as_str).unwrap_or_default();
                let program = program.rsplit('/').next().unwrap_or_default();
                let items_and_previous = items.iter().zip(previous);
                let redacted = items_and_previous.map(|(item, previous)| match previous {
                    // The value of an option such as --token, or -p for sshpass.
                    Some(option) if item.is_string() && self.is_secret_option(option, items) => {
                        REDACTED.into()
                    }
                    _ => match item.as_str().and_then(|word| {
                        redact_option_value(program, previous.unwrap_or_default(), word)
                    }) {
                        Some(redacted) => redacted.into(),
                        None => self.redact_value(item),
                    },
                });
                Value::Array(redacted.collect())
            }
            Value::Object(fields) => {
                let redacted = fields
                    .iter()
                    .map(|(name, value)| (self.redact_name(name), self.redact_field(name, value)));
                Value::Object(redacted.collect())
            }
            other => other.clone(),
        }
    }

    /// Redacts a name, which can be a secret itself. No format of a secret is shorter.
    fn redact_name(&self, name: &str) -> String {
        match name.len() < MIN_SECRET_NAME_BYTES {
            true => name.to_owned(),
            false => self.redact_text(name).into_owned(),
        }
    }

    fn redact_field(&self, name: &str, value: &Value) -> Value {
        let configured = self.names.contains(&name.to_lowercase());
        match value {
            Value::Null | Value::Bool(_) => value.clone(),
            _ if configured => REDACTED.into(),
            Value::String(text) if names::is_secret(name) => match evidence::is_placeholder(text) {
                true => value.clone(),
                false => REDACTED.into(),
            },
            // A short number is a count or a limit.
            Value::Number(number)
                if names::is_secret(name) && number.to_string().len() >= MIN_SECRET_DIGITS =>
            {
                REDACTED.into()
            }
            Value::Array(items) if names::is_secret(name) => items
                .iter()
                .map(|item| self.redact_field(name, item))
                .collect(),
            Value::Object(fields) if names::is_secret(name) => {
                let fields = fields
                    .iter()
                    .map(|(name, value)| (self.redact_name(name), self.redact_nested(value)));
                Value::Object(fields.collect())
            }
            value => self.redact_value(value),
        }
    }

    /// Redacts a value nested in a field with the name of a secret. Strings with spaces are kept
    /// unless they contain a secret: they are sentences, such as the descriptions of a schema.
    fn redact_nested(&self, value: &Value) -> Value {
        match value {
            Value::String(text) if !text.contains(' ') => self.redact_field("secret", value),
            Value::String(_) => self.redact_value(value),
            Value::Array(items) => items.iter().map(|item| self.redact_nested(item)).collect(),
            other => self.redact_field("secret", other),
        }
    }

    fn is_secret_option(&self, option: &str, command: &[Value]) -> bool {
        let is_sshpass =
            option == "-p" && command.first().and_then(Value::as_str) == Some("sshpass");
        let is_secret_name = option.strip_prefix("--").is_some_and(|name| {
            !name.contains('=')
                && (names::is_secret(name) || self.names.contains(&name.to_lowercase()))
        });
        is_sshpass || is_secret_name
    }

    /// Redacts a string. JSON is redacted as JSON, and is unchanged, including its whitespace, if
    /// it contains no secret.
    fn redact_string(&self, text: &str) -> String {
        let looks_like_json = text.starts_with(['{', '[']) && text.len() > 2;
        match looks_like_json.then(|| serde_json::from_str::<Value>(text)) {
            Some(Ok(inner)) => {
                let redacted = self.redact_value(&inner);
                if redacted == inner {
                    self.redact_text(text).into_owned()
                } else {
                    redacted.to_string()
                }
            }
            _ => self.redact_text(text).into_owned(),
        }
    }
}

/// Shortest name of a field that is searched for secrets, in bytes.
const MIN_SECRET_NAME_BYTES: usize = 12;

/// Fewest digits of a number in a field with the name of a secret that count as a secret.
const MIN_SECRET_DIGITS: usize = 6;

/// Programs that take a password directly after `-p`.
const PASSWORD_AFTER_P: [&str; 5] = [
    "mysql",
    "mysqldump",
    "mysqladmin",
    "mariadb",
    "mariadb-dump",
];

/// Returns the word of a command without the password in it: `USER:PASSWORD` after `-u` of `curl`,
/// `-pPASSWORD` of `mysql`. `None` if it has none.
fn redact_option_value(program: &str, previous: &str, word: &str) -> Option<String> {
    let takes_user = matches!(previous, "-u" | "--user" | "-U" | "--proxy-user");
    if program == "curl" && takes_user {
        let (user, password) = word.split_once(':')?;
        return (!password.is_empty()).then(|| format!("{user}:{REDACTED}"));
    }
    let password = word.strip_prefix("-p")?;
    let is_password = PASSWORD_AFTER_P.contains(&program) && !password.is_empty();
    is_password.then(|| format!("-p{REDACTED}"))
}
