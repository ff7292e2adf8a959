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
    r"xapp-[A-Za-z0-9-]{10,}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"pypi-[A-Za-z0-9_-]{16,}",
    r"ya29\.[A-Za-z0-9_-]{16,}",
    r"dckr_pat_[A-Za-z0-9_-]{10,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    r"AIza[A-Za-z0-9_-]{30,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"hf_[A-Za-z0-9]{20,}",
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
];

/// Parts of names that say that a value is secret.
const SECRET_NAMES: &str = "api[_-]?key|secret|token|passw(?:or)?d|authorization|credential";

/// A header's value, and a name and password for `curl`.
const CREDENTIALS: &str = r#"(?i)(\bbearer\s+|\s-u\s+["']?[^\s:"']+:)([^\s"',;]{6,})"#;

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
    "xapp-",
    "SG.",
    "pypi-",
    "ya29.",
    "dckr_pat_",
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
    credentials: Regex,
    in_url: Regex,
    /// Fields and variables whose values are secret.
    names: Vec<String>,
}

impl Redactor {
    /// Knows common secrets by their looks, and those of these fields or variables by their names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        #[allow(clippy::expect_used)] // They are constants, and a test compiles them.
        let compile = |pattern: &str| Regex::new(pattern).expect("a valid pattern");
        let names: Vec<String> = names.into_iter().map(|name| name.to_lowercase()).collect();
        Self {
            shapes: compile(&SHAPES.join("|")),
            named: compile(&named(&names)),
            credentials: compile(CREDENTIALS),
            in_url: compile(IN_URL),
            names,
        }
    }

    /// The text without secrets.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        let lower = text.to_ascii_lowercase();
        let steps = [
            (&self.shapes, MARKS_OF_SHAPES.to_vec(), INSTEAD.to_owned()),
            (
                &self.named,
                MARKS_OF_NAMES.iter().copied().chain(self.names.iter().map(String::as_str)).collect(),
                format!("${{1}}{INSTEAD}"),
            ),
            (&self.credentials, vec!["bearer", "-u"], format!("${{1}}{INSTEAD}")),
            (&self.in_url, MARKS_OF_URLS.to_vec(), format!("${{1}}{INSTEAD}${{3}}")),
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
            Value::String(text) => Value::String(self.string(text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.value(item)).collect()),
            Value::Object(fields) => {
                let redacted = fields.iter().map(|(name, value)| match value {
                    Value::Null | Value::Bool(_) => (name.clone(), value.clone()),
                    _ if self.names.contains(&name.to_lowercase()) => (name.clone(), INSTEAD.into()),
                    _ if is_secret(name) => (name.clone(), INSTEAD.into()),
                    value => (name.clone(), self.value(value)),
                });
                Value::Object(redacted.collect())
            }
            other => other.clone(),
        }
    }
}

impl Redactor {
    /// Text that is JSON itself is looked at as what it is.
    fn string(&self, text: &str) -> String {
        let looks_like_json = text.starts_with(['{', '[']) && text.len() > 2;
        match looks_like_json.then(|| serde_json::from_str::<Value>(text)) {
            Some(Ok(inner)) => {
                let redacted = self.value(&inner);
                // Untouched text stays as it was, blanks and all.
                if redacted == inner { self.text(text).into_owned() } else { redacted.to_string() }
            }
            _ => self.text(text).into_owned(),
        }
    }
}

/// `name: value`, `name=value`, `"name": "value"` and `--name value`, where the name says that the value is secret.
fn named(names: &[String]) -> String {
    let escaped = |name: &String| -> String {
        let quote = |c: char| if c.is_alphanumeric() || c == '_' { c.to_string() } else { format!("\\{c}") };
        name.chars().map(quote).collect()
    };
    let exact: String = names.iter().map(|name| format!("|{}", escaped(name))).collect();
    let part = format!(r"[A-Za-z0-9_.-]*(?:{SECRET_NAMES})[A-Za-z0-9_.-]*");
    let sign = r#"\\?["']?\s*[:=]\s*\\?["']?(?:bearer\s+|basic\s+)?"#;
    format!(
        r#"(?i)(\b(?:{part}{exact}){sign}|--[a-z0-9-]*(?:{SECRET_NAMES})[a-z0-9-]*(?:["']\s*,\s*["']|\s+["']?))([^\s"'&,;\\]{{4,}})"#
    )
}

fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    let words = ["api_key", "apikey", "secret", "token", "password", "passwd", "authorization", "credential"];
    words.iter().any(|word| name.contains(word)) && !name.ends_with("tokens") && !name.contains("max_token")
}
