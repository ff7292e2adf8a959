//! Views without secrets.

use std::borrow::Cow;

use regex_lite::Regex;
use serde_json::Value;

/// What secrets look like, whatever they are called.
const SHAPES: &[&str] = &[
    r"sk-[A-Za-z0-9_-]{16,}",
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}",
    r"gh[pousr]_[A-Za-z0-9]{20,}",
    r"github_pat_[A-Za-z0-9_]{20,}",
    r"glpat-[A-Za-z0-9_-]{16,}",
    r"xox[abprs]-[A-Za-z0-9-]{10,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    r"AIza[A-Za-z0-9_-]{30,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"hf_[A-Za-z0-9]{20,}",
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
];

/// `name: value` and `name=value` where the name says that the value is secret.
const NAMED: &str = r#"(?i)([A-Za-z0-9_.-]*(?:api[_-]?key|secret|token|passw(?:or)?d|authorization|credential)[A-Za-z0-9_.-]*["']?\s*[:=]\s*["']?(?:bearer\s+|basic\s+)?)([^\s"'&,;]{6,})"#;

/// A password in an address.
const IN_URL: &str = r"([a-z][a-z0-9+.-]*://[^\s/:@]+:)([^\s/@]+)(@)";

/// What a text must have somewhere before a pattern is worth trying: most texts have none of it.
const MARKS_OF_SHAPES: &[&str] = &[
    "sk-",
    "sk_",
    "rk_",
    "pk_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xox",
    "AKIA",
    "ASIA",
    "AIza",
    "npm_",
    "hf_",
    "eyJ",
    "-----BEGIN",
];
const MARKS_OF_NAMES: &[&str] = &["api", "secret", "token", "passw", "authorization", "credential"];
const MARKS_OF_URLS: &[&str] = &["://"];

const INSTEAD: &str = "[redacted]";

/// Takes secrets out of what people see.
#[derive(Debug)]
pub struct Redactor {
    shapes: Regex,
    named: Regex,
    in_url: Regex,
    /// Fields and variables whose values are secret.
    names: Vec<String>,
}

impl Redactor {
    /// Knows common secrets by their looks, and those of these fields or variables by their names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        #[allow(clippy::expect_used)] // They are constants, and a test compiles them.
        let compile = |pattern: &str| Regex::new(pattern).expect("a valid pattern");
        Self {
            shapes: compile(&SHAPES.join("|")),
            named: compile(NAMED),
            in_url: compile(IN_URL),
            names: names.into_iter().map(|name| name.to_lowercase()).collect(),
        }
    }

    /// The text without secrets.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        let lower = text.to_ascii_lowercase();
        let steps = [
            (&self.shapes, MARKS_OF_SHAPES, INSTEAD.to_owned()),
            (&self.named, MARKS_OF_NAMES, format!("${{1}}{INSTEAD}")),
            (&self.in_url, MARKS_OF_URLS, format!("${{1}}{INSTEAD}${{3}}")),
        ];
        for (pattern, marks, instead) in steps {
            let marked = marks.iter().any(|mark| text.contains(mark) || lower.contains(mark));
            if marked && pattern.is_match(&text) {
                text = Cow::Owned(pattern.replace_all(&text, instead.as_str()).into_owned());
            }
        }
        text
    }

    /// The value without secrets.
    pub fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text).into_owned()),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.value(item)).collect()),
            Value::Object(fields) => {
                let redacted = fields.iter().map(|(name, value)| match value {
                    _ if self.names.contains(&name.to_lowercase()) => (name.clone(), INSTEAD.into()),
                    Value::String(_) | Value::Number(_) if is_secret(name) => (name.clone(), INSTEAD.into()),
                    value => (name.clone(), self.value(value)),
                });
                Value::Object(redacted.collect())
            }
            other => other.clone(),
        }
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    let words = ["api_key", "apikey", "secret", "token", "password", "passwd", "authorization", "credential"];
    words.iter().any(|word| name.contains(word)) && !name.ends_with("tokens") && !name.contains("max_token")
}
