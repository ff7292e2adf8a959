//! Tokens of the clients of an agent server: what they may be used for, and their names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest name of a token, in characters.
pub const MAX_TOKEN_NAME_CHARS: usize = 64;
/// How the names of tokens begin that logins of browsers created: `page_…`.
pub const LOGIN_TOKEN_PREFIX: &str = "page";
/// How ids begin that are shown where names of tokens are, or are used instead of them. A token
/// whose name begins so could be taken for a login, another token, a session or a run.
const RESERVED_NAME_PREFIXES: [&str; 9] = [
    LOGIN_TOKEN_PREFIX,
    "tok",
    "client",
    "ses",
    "run",
    "scr",
    "trn",
    "agt",
    "req",
];
/// Names that the journal uses for kinds of authors.
const RESERVED_NAMES: [&str; 4] = ["person", "client", "session", "run"];

/// Returns whether a person may give a token this name: letters, digits, `-`, `_` and `.`, the
/// first one a letter or digit, and not like the names that Selvedge itself gives.
pub fn is_token_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let lower = name.to_ascii_lowercase();
    let prefix = lower.split_once('_').map(|(prefix, _)| prefix);
    name.len() <= MAX_TOKEN_NAME_CHARS
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_plain)
        && !prefix.is_some_and(|prefix| RESERVED_NAME_PREFIXES.contains(&prefix))
        && !RESERVED_NAMES.contains(&lower.as_str())
}

/// Returns whether a token with this name was created by the login of a browser. Tokens of programs
/// cannot have such a name.
pub fn is_login_name(name: &str) -> bool {
    let rest = name.strip_prefix(LOGIN_TOKEN_PREFIX);
    rest.is_some_and(|rest| rest.starts_with('_'))
}

/// What a token may be used for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TokenScope {
    /// Create, read and use sessions, and read runs.
    Sessions,
    /// Query, read and write documents of the workspace.
    Documents,
    /// Read and post to channels.
    Channels,
    /// Search the memory.
    Memory,
    /// Read approval requests and decide about them.
    Approvals,
    /// Read the lessons that are used in all projects, and change them with `approvals`.
    #[serde(rename = "user-memory")]
    UserMemory,
}

impl TokenScope {
    /// All scopes, in the order of the reference.
    pub const ALL: [Self; 6] = [
        Self::Sessions,
        Self::Documents,
        Self::Channels,
        Self::Memory,
        Self::Approvals,
        Self::UserMemory,
    ];

    /// The scopes of a token that is created without any. The others are granted by name only:
    /// deciding about approvals, and what reaches beyond the workspaces of the token: channels, and
    /// lessons for all projects.
    pub const DEFAULT: [Self; 3] = [Self::Sessions, Self::Documents, Self::Memory];

    /// Returns the name used in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Documents => "documents",
            Self::Channels => "channels",
            Self::Memory => "memory",
            Self::Approvals => "approvals",
            Self::UserMemory => "user-memory",
        }
    }
}

/// A token of a client. The secret itself is not stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApiToken {
    /// Id of the token, `tok_…`.
    pub id: String,
    /// Name of the token, and of the person or program that uses it. Names are unique.
    pub name: String,
    /// What the token may be used for.
    pub scopes: Vec<TokenScope>,
    /// Folders whose sessions, documents and runs the token can reach.
    pub workspaces: Vec<String>,
    /// When the token was created, in milliseconds since 1970.
    pub created_ms: i64,
    /// When the token expires, in milliseconds since 1970. `None` if it does not.
    pub expires_ms: Option<i64>,
    /// When the token was revoked, in milliseconds since 1970.
    pub revoked_ms: Option<i64>,
    /// What its turns may cost in all, in US dollars.
    pub max_cost: Option<f64>,
    /// What its turns have cost.
    pub spent: f64,
}

impl ApiToken {
    /// Returns whether the token can be used at a time, in milliseconds since 1970.
    pub fn is_valid_at(&self, now_ms: i64) -> bool {
        self.revoked_ms.is_none() && self.expires_ms.is_none_or(|expires| now_ms < expires)
    }

    /// Returns whether the login of a browser created the token.
    pub fn is_login(&self) -> bool {
        is_login_name(&self.name)
    }

    /// Returns whether its turns have cost as much as they may.
    pub fn has_spent_all(&self) -> bool {
        self.max_cost.is_some_and(|limit| self.spent >= limit)
    }

    /// Returns why turns of the token's messages cannot run at a time; `None` if they can.
    pub fn refusal_at(&self, now_ms: i64) -> Option<String> {
        let name = &self.name;
        match self.max_cost {
            _ if self.revoked_ms.is_some() => Some(format!("the token `{name}` was revoked")),
            _ if !self.is_valid_at(now_ms) => Some(format!("the token `{name}` has expired")),
            Some(limit) if self.has_spent_all() => Some(format!(
                "the token `{name}` has spent {:.2} of {limit:.2}",
                self.spent
            )),
            _ => None,
        }
    }

    /// Returns whether sessions of the token can work in a folder: it is one of the workspaces. Not
    /// in folders below, because agents can replace these with links.
    pub fn works_in(&self, directory: &str) -> bool {
        self.workspaces
            .iter()
            .any(|workspace| workspace == directory)
    }

    /// Returns whether the token can read what was recorded in a folder.
    pub fn allows_directory(&self, directory: &str) -> bool {
        let directory = std::path::Path::new(directory);
        self.workspaces
            .iter()
            .any(|workspace| directory.starts_with(workspace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tokens_are_not_those_that_selvedge_gives() {
        for name in [
            "ci",
            "build-7",
            "a.b_c",
            "pagerduty",
            "page",
            "7",
            "sessions_bot",
        ] {
            assert!(is_token_name(name), "{name}");
        }
        let long = "x".repeat(MAX_TOKEN_NAME_CHARS + 1);
        for name in [
            "", ".", "..", "-", "-x", "_x", "a b", "a/b", "ä", "page_x", "PAGE_x", "tok_1",
            "ses_1", "client_1", "person", "Client", "run", &long,
        ] {
            assert!(!is_token_name(name), "{name}");
        }
    }
}
