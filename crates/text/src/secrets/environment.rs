//! Environment variables that are secret and not passed to commands.

use std::sync::LazyLock;

use super::Redactor;
use super::formats::FORMATS;

/// Parts of the names of secret variables.
const SECRET_NAME_PARTS: &str = "\
    KEY SECRET TOKEN PASSW PASSPHRASE WEBHOOK CONNECTION_STRING AUTH_CONFIG CREDS JWT CREDENTIAL \
    PRIVATE COOKIE AUTHORIZATION BEARER MNEMONIC SEED_PHRASE AWS_SESSION BW_SESSION OP_SESSION \
    KUBECONFIG_DATA";

/// Endings of the names of secret variables.
const SECRET_NAME_SUFFIXES: &str = "PASS PW _PWD _DSN _AUTH _PAT";

/// Parts of the names of variables that may hold the login of a database: `user/password@host`.
const DATABASE_NAME_PARTS: &str = "CONN DATABASE DB LOGIN ORA SQL TNS USERID";

/// Variables that locate an agent which authenticates as the user.
const AGENT_VARIABLES: [&str; 3] = [
    "SSH_AUTH_SOCK",
    "GPG_AGENT_INFO",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// Parts of values that contain a credential.
const SECRET_VALUE_PARTS: [&str; 4] = [
    "-----BEGIN",
    "AccountKey=",
    "SharedAccessKey=",
    "hooks.slack.com/",
];

/// Returns whether an environment variable is secret, by its name or its value.
pub fn is_secret_variable(name: &str, value: &str) -> bool {
    static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| Redactor::new([]));
    let name = name.to_ascii_uppercase();
    let has_login = value
        .split_once("://")
        .and_then(|(_, rest)| rest.split(['/', '?', '#']).next())
        .is_some_and(|authority| authority.contains('@'));
    AGENT_VARIABLES.contains(&name.as_str())
        || SECRET_NAME_PARTS.split(' ').any(|part| name.contains(part))
        || SECRET_NAME_SUFFIXES
            .split(' ')
            .any(|ending| name.ends_with(ending))
        || has_login
        || is_database_login(&name, value)
        || SECRET_VALUE_PARTS.iter().any(|mark| value.contains(mark))
        || has_secret_prefix(value)
        || !REDACTOR.find(value).is_empty()
}

/// Returns whether a variable holds a login such as `scott/tiger@db`. `name` is in capitals.
fn is_database_login(name: &str, value: &str) -> bool {
    let mut parts = DATABASE_NAME_PARTS.split(' ');
    let login = value.split_once('@').and_then(|(login, host)| {
        let (user, password) = login.split_once('/')?;
        Some([user, password, host].iter().all(|part| !part.is_empty()))
    });
    parts.any(|part| name.contains(part)) && login == Some(true)
}

/// Returns whether a value starts with the prefix of a known secret format. In text, the whole
/// format must match; for a variable the prefix suffices.
fn has_secret_prefix(value: &str) -> bool {
    let is_one_word = value.len() >= 16 && !value.contains([' ', '/', '\n']);
    let mut prefixes = FORMATS.iter().flat_map(|(prefixes, _)| *prefixes);
    is_one_word
        && prefixes.any(|prefix| {
            prefix.len() >= 3 && prefix.ends_with(['-', '_', '.']) && value.starts_with(prefix)
        })
}
