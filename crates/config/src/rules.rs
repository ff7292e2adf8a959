//! Commands and hosts that the user approved with "always", and model servers that the user
//! accepted, stored in `$SELVEDGE_HOME/rules.toml`. Rules in `config.toml` are separate.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::ConfigError;
use crate::check::line_of;
use crate::load::MAX_CONFIG_BYTES;

const RULES_FILE: &str = "rules.toml";
const RULES_HEADER: &str = "# Commands, by their first words, hosts, and model servers on this \
    machine that need no approval. Delete a line to be asked again.\n";

/// Saved rules. A rule for commands is the list of words that a command starts with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SavedRules {
    /// Commands that run without approval, confined.
    pub allow: Vec<Vec<String>>,
    /// Commands that also run without approval outside the confinement.
    pub allow_unconfined: Vec<Vec<String>>,
    /// Hosts that are reached without approval.
    pub allow_hosts: Vec<String>,
    /// Model servers on this machine that are used without being configured.
    pub allow_model_servers: Vec<SavedModelServer>,
}

/// A model server on this machine that the user accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedModelServer {
    /// Base URL of the server.
    pub base_url: String,
    /// Id of the user whose process listened at the address; `None` if that was unknown.
    pub user: Option<u32>,
}

/// Reads the saved rules. A missing file contains no rules.
pub fn saved_rules(home: &Path) -> Result<SavedRules, ConfigError> {
    let path = home.join(RULES_FILE);
    let Some(text) = selvedge_files::read_user_text(&path, MAX_CONFIG_BYTES)? else {
        return Ok(SavedRules::default());
    };
    toml::from_str(&text).map_err(|error| ConfigError::Invalid {
        path,
        message: format!(
            "line {}: {}",
            line_of(&text, error.span().map_or(0, |span| span.start)),
            error.message()
        ),
    })
}

/// Saves a rule for a command, unless it exists. Locks the file against other processes.
pub fn save_rule(home: &Path, prefix: &[String], unconfined: bool) -> Result<(), ConfigError> {
    let _lock = lock_rules(home).map_err(|error| unwritable(home, error))?;
    let mut rules = saved_rules(home)?;
    let list = if unconfined {
        &mut rules.allow_unconfined
    } else {
        &mut rules.allow
    };
    if list.iter().any(|rule| rule == prefix) {
        return Ok(());
    }
    list.push(prefix.to_vec());
    write_rules(home, &rules)
}

/// Saves a rule for a host, unless it exists. Locks the file against other processes.
pub fn save_host(home: &Path, host: &str) -> Result<(), ConfigError> {
    let _lock = lock_rules(home).map_err(|error| unwritable(home, error))?;
    let mut rules = saved_rules(home)?;
    if rules.allow_hosts.iter().any(|known| known == host) {
        return Ok(());
    }
    rules.allow_hosts.push(host.to_owned());
    write_rules(home, &rules)
}

/// Saves a model server. Replaces an entry of the same URL. Locks the file against other processes.
pub fn save_model_server(home: &Path, server: &SavedModelServer) -> Result<(), ConfigError> {
    let _lock = lock_rules(home).map_err(|error| unwritable(home, error))?;
    let mut rules = saved_rules(home)?;
    rules
        .allow_model_servers
        .retain(|known| known.base_url != server.base_url);
    rules.allow_model_servers.push(server.clone());
    write_rules(home, &rules)
}

fn write_rules(home: &Path, rules: &SavedRules) -> Result<(), ConfigError> {
    // A JSON string is also a valid TOML string.
    let quoted = |word: &String| serde_json::Value::from(word.as_str()).to_string();
    let line = |rule: &Vec<String>| {
        format!(
            "[{}]",
            rule.iter().map(quoted).collect::<Vec<_>>().join(", ")
        )
    };
    let server = |server: &SavedModelServer| {
        let user = server.user.map(|user| format!(", user = {user}"));
        let user = user.unwrap_or_default();
        format!("{{ base_url = {}{user} }}", quoted(&server.base_url))
    };
    let section = |name: &str, lines: Vec<String>| match lines.as_slice() {
        [] => String::new(),
        lines => format!("{name} = [\n  {},\n]\n", lines.join(",\n  ")),
    };
    let text = [
        RULES_HEADER.to_owned(),
        section("allow", rules.allow.iter().map(line).collect()),
        section(
            "allow_unconfined",
            rules.allow_unconfined.iter().map(line).collect(),
        ),
        section(
            "allow_hosts",
            rules.allow_hosts.iter().map(quoted).collect(),
        ),
        section(
            "allow_model_servers",
            rules.allow_model_servers.iter().map(server).collect(),
        ),
    ]
    .concat();
    // Replaced atomically: a truncated file could not be parsed.
    let new = home.join("rules.new");
    std::fs::write(&new, text)
        .and_then(|()| std::fs::rename(new, home.join(RULES_FILE)))
        .map_err(|error| unwritable(home, error))
}

fn lock_rules(home: &Path) -> io::Result<std::fs::File> {
    std::fs::create_dir_all(home)?;
    let lock = std::fs::File::create(home.join("rules.lock"))?;
    lock.lock()?;
    Ok(lock)
}

fn unwritable(home: &Path, error: io::Error) -> ConfigError {
    ConfigError::Unwritable {
        path: home.join(RULES_FILE),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_saved_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        assert_eq!(saved_rules(&home).unwrap(), SavedRules::default());
        let words = |text: &str| text.split('|').map(str::to_owned).collect::<Vec<_>>();
        for _ in 0..2 {
            save_rule(&home, &words("npm|test"), false).unwrap();
            save_rule(&home, &words("say|\"quoted\" 'both'\n"), false).unwrap();
            save_rule(&home, &words("npm|install"), true).unwrap();
            save_host(&home, "docs.rs").unwrap();
            save_host(&home, "localhost:3000").unwrap();
        }
        let rules = saved_rules(&home).unwrap();
        assert_eq!(
            rules.allow,
            [words("npm|test"), words("say|\"quoted\" 'both'\n")]
        );
        assert_eq!(rules.allow_unconfined, [words("npm|install")]);
        assert_eq!(rules.allow_hosts, ["docs.rs", "localhost:3000"]);
        let server = |user| SavedModelServer {
            base_url: "http://127.0.0.1:8080/v1".to_owned(),
            user,
        };
        for user in [None, Some(1001)] {
            save_model_server(&home, &server(user)).unwrap();
            let rules = saved_rules(&home).unwrap();
            assert_eq!(rules.allow_model_servers, [server(user)]);
        }
        // An invalid file is not overwritten.
        std::fs::write(home.join(RULES_FILE), "allow = 3").unwrap();
        assert!(saved_rules(&home).is_err() && save_rule(&home, &words("a|b"), false).is_err());
        assert_eq!(
            std::fs::read_to_string(home.join(RULES_FILE)).unwrap(),
            "allow = 3"
        );
    }
}
