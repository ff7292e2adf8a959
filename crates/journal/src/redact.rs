//! Views without secrets.

use std::borrow::Cow;
use std::sync::OnceLock;

use regex_lite::Regex;
use serde_json::Value;

use crate::blocks;

/// What secrets look like, whatever they are called; before each, what a text must have somewhere before the pattern is
/// worth trying. Most texts have none of it.
const SHAPES: &[(&[&str], &str)] = &[
    (&["sk-"], r"sk-[A-Za-z0-9_-]{16,}"),
    (
        &["_live_", "_test_"],
        r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}",
    ),
    (&["whsec_"], r"whsec_[A-Za-z0-9+/=_-]{16,}"),
    (
        &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        r"gh[pousr]_[A-Za-z0-9]{20,}",
    ),
    (&["github_pat_"], r"github_pat_[A-Za-z0-9_]{20,}"),
    (&["glpat-"], r"glpat-[A-Za-z0-9_-]{16,}"),
    (&["xox"], r"xox[abeprs]-[A-Za-z0-9-]{10,}"),
    (&["xapp-"], r"xapp-[A-Za-z0-9-]{10,}"),
    (
        &["hooks.slack.com"],
        r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{16,}",
    ),
    (
        &["discord"],
        r"discord(?:app)?\.com/api/webhooks/[0-9]+/[A-Za-z0-9_-]{20,}",
    ),
    // A number in Base64, a time, a signature.
    (
        &["MT", "Mj", "Mz", "ND", "NT", "Nj", "Nz", "OD", "OT"],
        r"\b(?:M[Tjz]|N[DTjz]|O[DT])[A-Za-z0-9_-]{21,}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",
    ),
    (&[":AA"], r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{32,}"),
    (&["SG."], r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    (&["SK"], r"\bSK[0-9a-f]{32}\b"),
    (&["pypi-"], r"pypi-[A-Za-z0-9_-]{16,}"),
    (&["ya29."], r"ya29\.[A-Za-z0-9_-]{16,}"),
    (&["GOCSPX-"], r"GOCSPX-[A-Za-z0-9_-]{16,}"),
    (&["dckr_pat_"], r"dckr_pat_[A-Za-z0-9_-]{10,}"),
    (&["AKIA", "ASIA"], r"(?:AKIA|ASIA)[A-Z0-9]{16}"),
    (&["AIza"], r"AIza[A-Za-z0-9_-]{30,}"),
    (&["npm_"], r"npm_[A-Za-z0-9]{30,}"),
    (&["hf_"], r"hf_[A-Za-z0-9]{20,}"),
    (&["gsk_"], r"gsk_[A-Za-z0-9]{20,}"),
    (&["xai-"], r"xai-[A-Za-z0-9_-]{20,}"),
    (&["pplx-"], r"pplx-[A-Za-z0-9]{20,}"),
    (&["r8_"], r"\br8_[A-Za-z0-9]{20,}"),
    (&["tvly-"], r"tvly-[A-Za-z0-9_-]{16,}"),
    (&["hvs.", "hvb."], r"\bhv[sb]\.[A-Za-z0-9_-]{20,}"),
    (&["_v1_"], r"\bdo[opr]_v1_[A-Za-z0-9]{20,}"),
    (
        &["shpat_", "shpss_", "shpca_", "shppa_"],
        r"shp(?:at|ss|ca|pa)_[A-Za-z0-9]{20,}",
    ),
    (&["ATATT3x"], r"ATATT3x[A-Za-z0-9_=-]{20,}"),
    (&["lin_api_"], r"lin_api_[A-Za-z0-9]{20,}"),
    (&["ntn_"], r"\bntn_[A-Za-z0-9]{20,}"),
    (&["secret_"], r"\bsecret_[A-Za-z0-9]{40,}"),
    (&["sntry"], r"sntry[su]_[A-Za-z0-9_=+/-]{20,}"),
    (&["dapi"], r"\bdapi[0-9a-f]{32}"),
    (&["AGE-SECRET-KEY-1"], r"AGE-SECRET-KEY-1[0-9A-Za-z]{20,}"),
    (
        &["eyJ"],
        r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    ),
    // To its end, or that of the text, whatever stands between.
    (
        &["-----BEGIN"],
        r"-----BEGIN (?:[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?|PGP MESSAGE)-----(?s:.*?)(?:-----END (?:[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?|PGP MESSAGE)-----|\z)",
    ),
    (
        &["---- BEGIN SSH2"],
        r"---- BEGIN SSH2 (?:ENCRYPTED )?PRIVATE KEY ----(?s:.*?)(?:---- END SSH2 (?:ENCRYPTED )?PRIVATE KEY ----|\z)",
    ),
    (
        &["PuTTY-User-Key-File-"],
        r"PuTTY-User-Key-File-[0-9]+: [a-z](?s:.*?)(?:Private-(?:MAC|Hash): *[0-9a-fA-F]+|\z)",
    ),
];

/// Parts of names that say that a value is secret, without what stands between their words.
const SECRET_NAMES: [&str; 14] = [
    "api_key",
    "secret",
    "token",
    "password",
    "passwd",
    "passphrase",
    "authorization",
    "credential",
    "private_key",
    "access_key",
    "account_key",
    "mysql_pwd",
    "pgpass",
    "cookie",
];

const LOGIN: &[&str] = &["pass:", "pass=", "pass =", "pass\"", "pass'", "pass\\"];

/// A header's value, and names and passwords as commands and files have them.
const CREDENTIALS: &[(&[&str], &str)] = &[
    (&["bearer"], r#"(?i)(\bbearer\s+)([^\s"',;]{6,})"#),
    (&["-u"], r#"(\s-u\s+["']?[^\s:"']+:)([^\s"',;]{3,})"#),
    (&["cookie"], r#"(?i)(\b(?:set-)?cookie:\s*)([^\r\n"']+)"#),
    (&["sshpass"], r#"(\bsshpass\s+-p\s*["']?)([^\s"']+)"#),
    (
        &["mysql", "mariadb"],
        r#"(\b(?:mysql|mariadb)[a-z-]*\s[^\n|;&]*?-p["']?)([^\s"']+)"#,
    ),
    (&["login"], r"(\blogin\s+\S+\s+password\s+)(\S+)"),
    // A variable such as DB_PASS, and the field of a login. Tests pass as well: what is bare must look like no number.
    (&["_pass="], r#"(?i)(_pass=")((?:[^"\\\n]|\\.)+)"#),
    (&["_pass="], r"(?i)(_pass=')([^'\n]+)"),
    (&["_pass="], r#"(?i)(_pass=)([^\s"'`&,;]{3,})"#),
    (&["pass="], r#"(\bPASS=)([^\s"'`&,;0-9][^\s"'`&,;]{3,})"#),
    (
        LOGIN,
        r#"(?i)(\bpass\\*["']?\s*[:=]\s*\\*")((?:[^"\\\n]|\\+[^"\\\n]){4,})"#,
    ),
    (
        LOGIN,
        r#"(?i)(\bpass["']?\s*[:=]\s*')((?:[^'\\\n]|\\.){4,})"#,
    ),
    // In a connection string, or the field of a login; a folder is none.
    (&["pwd="], r#"(?i)(pwd=")([^"\n/$~.\\](?:[^"\\\n]|\\.)+)"#),
    (&["pwd="], r"(?i)(pwd=')([^'\n/$~.\\][^'\n]+)"),
    (&["pwd="], r#"(?i)(pwd=)([^\s"'`&;/$~(\\.][^\s"'`&;]{2,})"#),
    (
        &["pwd\"", "pwd'", "pwd\\"],
        r#"(?i)(\bpwd\\*["']\s*:\s*\\*["'])([^"'\\\n/$~.](?:[^"'\\\n]|\\+[^"'\\\n])+)"#,
    ),
    (
        &[";pwd=", ";password="],
        r#"(?i)(;(?:pwd|password)=)([^;"'\n]+)"#,
    ),
    // An element of XML, whatever attributes it has.
    (
        &[
            "password>",
            "passwd>",
            "passphrase>",
            "pwd>",
            "secret>",
            "key>",
            "token>",
        ],
        r"(?i)(<(?:[a-z0-9_.-]+:)?[a-z0-9_.-]*(?:password|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|token)(?:\s[^<>]*)?>(?:<!\[CDATA\[)?)([^<]+)(</)",
    ),
    // A token in the place of a name in an address, then a password there.
    (
        &["@"],
        r"((?:https?|wss?|ssh|git|ftps?)://)([A-Za-z0-9_~-]{20,})((?::[^\s/@]*)?@)",
    ),
    (&["@"], r"([a-z][a-z0-9+.-]*://[^\s/:@]*:)([^\s/@]+)(@)"),
];

pub(crate) const INSTEAD: &str = "[redacted]";

/// Takes secrets out of what people see.
#[derive(Debug)]
pub struct Redactor {
    shapes: Vec<Pattern>,
    credentials: Vec<Pattern>,
    named: Pattern,
    block: Pattern,
    /// Fields and variables whose values are secret.
    names: Vec<String>,
}

/// Compiled when a text first has one of its marks.
#[derive(Debug)]
pub(crate) struct Pattern {
    marks: &'static [&'static str],
    source: Cow<'static, str>,
    compiled: OnceLock<Regex>,
}

impl Pattern {
    fn new(marks: &'static [&'static str], source: impl Into<Cow<'static, str>>) -> Self {
        Self {
            marks,
            source: source.into(),
            compiled: OnceLock::new(),
        }
    }

    #[allow(clippy::expect_used)] // They are constants, and a test compiles them.
    pub(crate) fn get(&self) -> &Regex {
        self.compiled
            .get_or_init(|| Regex::new(&self.source).expect("a valid pattern"))
    }

    fn replace(&self, text: &mut Cow<'_, str>, instead: &str) {
        let pattern = self.get();
        if pattern.is_match(text) {
            *text = Cow::Owned(pattern.replace_all(text, instead).into_owned());
        }
    }
}

impl Redactor {
    /// Knows common secrets by their looks, and those of these fields or variables by their names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let all = |patterns: &[(&'static [&'static str], &'static str)]| {
            patterns
                .iter()
                .map(|(marks, source)| Pattern::new(marks, *source))
                .collect()
        };
        let names: Vec<String> = names.into_iter().map(|name| name.to_lowercase()).collect();
        Self {
            shapes: all(SHAPES),
            credentials: all(CREDENTIALS),
            named: Pattern::new(&[], named(&names)),
            block: Pattern::new(&[], blocks::header(&secret_name(&names))),
            names,
        }
    }

    /// The text without secrets.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        let lower = text.to_ascii_lowercase();
        for shape in &self.shapes {
            if shape.marks.iter().any(|mark| text.contains(mark)) {
                shape.replace(&mut text, INSTEAD);
            }
        }
        let beginnings = SECRET_NAMES
            .iter()
            .map(|name| name.split('_').next().unwrap_or(name));
        if beginnings
            .chain(self.names.iter().map(String::as_str))
            .any(|mark| lower.contains(mark))
        {
            blocks::redact(&mut text, &self.block);
            self.named.replace(&mut text, &kept_of_named());
        }
        for credential in &self.credentials {
            if credential.marks.iter().any(|mark| lower.contains(mark)) {
                credential.replace(&mut text, &format!("${{1}}{INSTEAD}${{3}}"));
            }
        }
        text
    }

    /// The value without secrets.
    pub fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.string(text)),
            Value::Array(items) => {
                let before = std::iter::once(None).chain(items.iter().map(Value::as_str));
                let redacted = items.iter().zip(before).map(|(item, before)| match before {
                    // The value of an option such as --token, or -p for sshpass.
                    Some(option) if item.is_string() && self.is_secret_option(option, items) => {
                        INSTEAD.into()
                    }
                    _ => self.value(item),
                });
                Value::Array(redacted.collect())
            }
            Value::Object(fields) => {
                let redacted = fields.iter().map(|(name, value)| match value {
                    Value::Null | Value::Bool(_) => (name.clone(), value.clone()),
                    _ if self.is_secret(name) || is_password(name, value) => {
                        (name.clone(), INSTEAD.into())
                    }
                    value => (name.clone(), self.value(value)),
                });
                Value::Object(redacted.collect())
            }
            other => other.clone(),
        }
    }

    fn is_secret(&self, given: &str) -> bool {
        let name = given.to_lowercase();
        let plain = name.replace(['_', '-'], "");
        let has = |part: &str| plain.contains(&part.replace('_', ""));
        let named = SECRET_NAMES
            .iter()
            .any(|part| *part != "token" && has(part));
        self.names.contains(&name)
            || named
            || has("token")
                && !counts_tokens(given)
                && !plain.contains("maxtoken")
                && !plain.contains("tokeniz")
    }

    fn is_secret_option(&self, option: &str, command: &[Value]) -> bool {
        let of_sshpass =
            option == "-p" && command.first().and_then(Value::as_str) == Some("sshpass");
        of_sshpass
            || option
                .strip_prefix("--")
                .is_some_and(|name| !name.contains('=') && self.is_secret(name))
    }

    /// Text that is JSON itself is looked at as what it is.
    fn string(&self, text: &str) -> String {
        let looks_like_json = text.starts_with(['{', '[']) && text.len() > 2;
        match looks_like_json.then(|| serde_json::from_str::<Value>(text)) {
            Some(Ok(inner)) => {
                let redacted = self.value(&inner);
                // Untouched text stays as it was, blanks and all.
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

/// Whether a short name that means other things as well holds a password here: a folder is none, and no number.
fn is_password(name: &str, value: &Value) -> bool {
    let Some(value) = value.as_str() else {
        return false;
    };
    let name = name.to_lowercase();
    let is_folder = value.starts_with(['/', '~', '.', '$']) || value.get(1..3) == Some(":\\");
    name == "pass" || name.ends_with("_pass") || name.ends_with("pwd") && !is_folder
}

/// `name: value`, `name=value`, `"name": "value"` and `--name value`, where the name says that the value is secret. A
/// value in quotes goes to the closing one, also where all of it was quoted again, and once more.
fn named(names: &[String]) -> String {
    let name = format!(r"\b(?:{})", secret_name(names));
    let sign = r#"\\*["']?\s*[:=]\s*(?:bearer\s+|basic\s+)?"#;
    let option = format!(r#"--(?:{})(?:["']\s*,\s*|\s+)"#, secret_name(&[]));
    let scheme = r"(?:bearer\s+|basic\s+)?";
    // Each level of quoting doubles the backslashes and adds one; what is quoted in the value has a level more.
    let twice_escaped =
        format!(r#"(\\{{3}}"{scheme})(?:[^"\\\n]|\\{{7}}"|\\{{1,6}}[^"\\\n]|\\{{8}}){{4,}}"#);
    let once_escaped =
        format!(r#"(\\"{scheme})(?:[^"\\\n]|\\{{3}}"|\\{{1,2}}[^"\\\n]|\\{{4}}){{4,}}"#);
    let escaped = format!(r"(\\'{scheme})[^'\\]{{4,}}");
    let double = format!(r#"("{scheme})(?:[^"\\\n]|\\.){{4,}}"#);
    let single = format!(r"('{scheme})(?:[^'\\\n]|\\.){{4,}}");
    let back = format!(r"(`{scheme})(?:[^`\\\n]|\\.){{4,}}");
    let bare = r#"[^\s"'`&,;\\]{4,}"#;
    format!(
        "(?i)({name}{sign}|{option})(?:{twice_escaped}|{once_escaped}|{escaped}|{double}|{single}|{back}|{bare})"
    )
}

/// What is kept of a match of [`named`]: everything but the value.
fn kept_of_named() -> String {
    format!(
        "{}{INSTEAD}",
        (1..=7)
            .map(|group| format!("${{{group}}}"))
            .collect::<String>()
    )
}

/// A name that says that its value is secret, or is one of these. `tokens` are counted, and a tokenizer is no secret either.
fn secret_name(names: &[String]) -> String {
    let escaped = |name: &String| -> String {
        let quote = |c: char| {
            if c.is_alphanumeric() || c == '_' {
                c.to_string()
            } else {
                format!("\\{c}")
            }
        };
        name.chars().map(quote).collect()
    };
    let exact: String = names
        .iter()
        .map(|name| format!("|{}", escaped(name)))
        .collect();
    let others: Vec<String> = SECRET_NAMES
        .iter()
        .filter(|name| **name != "token")
        .map(|name| name.replace('_', "[_-]?"))
        .collect();
    let word = "[A-Za-z0-9_.-]*";
    let goes_on = format!("(?:[a-hj-rt-z0-9_.-]|i[a-rt-y0-9_.-]|(?-i:S[a-z])){word}");
    format!(
        "{word}(?:(?:{}){word}|token(?:{goes_on})?){exact}",
        others.join("|")
    )
}

/// Whether a name speaks of a number of tokens.
fn counts_tokens(name: &str) -> bool {
    name.match_indices("okens").any(|(at, word)| {
        let before = name[..at].ends_with(['t', 'T']);
        before && !name[at + word.len()..].starts_with(|next: char| next.is_ascii_lowercase())
    })
}
