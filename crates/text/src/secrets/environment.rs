//! Environment variables that are not handed to commands.

use std::sync::LazyLock;

use super::Redactor;
use super::formats::FORMATS;

/// Parts of the names of variables that hold secrets.
const PARTS: &str = "\
    KEY SECRET TOKEN PASSW PASSPHRASE WEBHOOK CONNECTION_STRING AUTH_CONFIG CREDS JWT CREDENTIAL \
    PRIVATE COOKIE";

/// How such names end.
const ENDINGS: &str = "PASS _PWD _DSN _AUTH _PAT";

/// Variables that lead to a program that answers for the user.
const AGENTS: [&str; 3] = [
    "SSH_AUTH_SOCK",
    "GPG_AGENT_INFO",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// Parts of values whose rest opens a door.
const MARKS: [&str; 4] = [
    "-----BEGIN",
    "AccountKey=",
    "SharedAccessKey=",
    "hooks.slack.com/",
];

/// Whether a variable is a secret, by its name or by its value.
pub fn is_secret_variable(name: &str, value: &str) -> bool {
    static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| Redactor::new([]));
    let name = name.to_ascii_uppercase();
    let has_login = value
        .split_once("://")
        .and_then(|(_, rest)| rest.split(['/', '?', '#']).next())
        .is_some_and(|authority| authority.contains('@'));
    AGENTS.contains(&name.as_str())
        || PARTS.split(' ').any(|part| name.contains(part))
        || ENDINGS.split(' ').any(|ending| name.ends_with(ending))
        || has_login
        || MARKS.iter().any(|mark| value.contains(mark))
        || begins_like_a_secret(value)
        || !REDACTOR.find(value).is_empty()
}

/// Whether a value begins as the secrets of some service do. Unlike in text, that is enough.
fn begins_like_a_secret(value: &str) -> bool {
    let is_one_word = value.len() >= 16 && !value.contains([' ', '/', '\n']);
    let mut prefixes = FORMATS.iter().flat_map(|(prefixes, _)| *prefixes);
    is_one_word
        && prefixes.any(|prefix| {
            prefix.len() >= 3 && prefix.ends_with(['-', '_', '.']) && value.starts_with(prefix)
        })
}
