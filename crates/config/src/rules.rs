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
    machine that need no approval.\n# Rules below [[folders]] apply in that folder only. Delete a \
    line to be asked again.\n";

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
    /// Rules that apply in one folder.
    pub folders: Vec<SavedFolderRules>,
}

/// Saved rules that apply in one folder only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SavedFolderRules {
    /// The folder of the workspace, without links.
    pub path: String,
    /// Commands that run without approval, confined.
    pub allow: Vec<Vec<String>>,
    /// Commands that also run without approval outside the confinement.
    pub allow_unconfined: Vec<Vec<String>>,
    /// Hosts that are reached without approval.
    pub allow_hosts: Vec<String>,
}

impl SavedRules {
    /// Returns the rules that apply in this folder: those for every folder and its own.
    pub fn in_folder(mut self, folder: &Path) -> Self {
        for own in std::mem::take(&mut self.folders) {
            if Path::new(&own.path) == folder {
                self.allow.extend(own.allow);
                self.allow_unconfined.extend(own.allow_unconfined);
                self.allow_hosts.extend(own.allow_hosts);
            }
        }
        self
    }

    /// Returns the rules of a folder, and adds an empty list if there is none.
    fn folder_mut(&mut self, folder: &Path) -> io::Result<&mut SavedFolderRules> {
        let path = folder.to_str().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path of the folder is not UTF-8",
            )
        })?;
        let index = self.folders.iter().position(|own| own.path == path);
        let index = index.unwrap_or_else(|| {
            self.folders.push(SavedFolderRules {
                path: path.to_owned(),
                ..SavedFolderRules::default()
            });
            self.folders.len() - 1
        });
        Ok(&mut self.folders[index])
    }
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

/// Saves a rule for a command, unless it exists: for this folder, or for every folder. Locks the
/// file against other processes.
pub fn save_rule(
    home: &Path,
    folder: Option<&Path>,
    prefix: &[String],
    unconfined: bool,
) -> Result<(), ConfigError> {
    let _lock = lock_rules(home).map_err(|error| unwritable(home, error))?;
    let mut rules = saved_rules(home)?;
    let (allow, allow_unconfined) = match folder {
        Some(folder) => {
            let own = rules.folder_mut(folder);
            let own = own.map_err(|error| unwritable(home, error))?;
            (&mut own.allow, &mut own.allow_unconfined)
        }
        None => (&mut rules.allow, &mut rules.allow_unconfined),
    };
    let list = if unconfined { allow_unconfined } else { allow };
    if list.iter().any(|rule| rule == prefix) {
        return Ok(());
    }
    list.push(prefix.to_vec());
    write_rules(home, &rules)
}

/// Saves a rule for a host, unless it exists: for this folder, or for every folder. Locks the file
/// against other processes.
pub fn save_host(home: &Path, folder: Option<&Path>, host: &str) -> Result<(), ConfigError> {
    let _lock = lock_rules(home).map_err(|error| unwritable(home, error))?;
    let mut rules = saved_rules(home)?;
    let hosts = match folder {
        Some(folder) => {
            let own = rules.folder_mut(folder);
            &mut own.map_err(|error| unwritable(home, error))?.allow_hosts
        }
        None => &mut rules.allow_hosts,
    };
    if hosts.iter().any(|known| known == host) {
        return Ok(());
    }
    hosts.push(host.to_owned());
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
    let lists = |allow: &[Vec<String>], unconfined: &[Vec<String>], hosts: &[String]| {
        [
            section("allow", allow.iter().map(line).collect()),
            section("allow_unconfined", unconfined.iter().map(line).collect()),
            section("allow_hosts", hosts.iter().map(quoted).collect()),
        ]
        .concat()
    };
    let folder = |own: &SavedFolderRules| {
        let lists = lists(&own.allow, &own.allow_unconfined, &own.allow_hosts);
        format!("\n[[folders]]\npath = {}\n{lists}", quoted(&own.path))
    };
    let text = [
        RULES_HEADER.to_owned(),
        lists(&rules.allow, &rules.allow_unconfined, &rules.allow_hosts),
        section(
            "allow_model_servers",
            rules.allow_model_servers.iter().map(server).collect(),
        ),
        rules.folders.iter().map(folder).collect(),
    ]
    .concat();
    // Replaced atomically: a truncated file could not be parsed.
    let new = home.join("rules.new");
    std::fs::write(&new, text)
        .and_then(|()| std::fs::rename(new, home.join(RULES_FILE)))
        .map_err(|error| unwritable(home, error))
}

fn lock_rules(home: &Path) -> io::Result<std::fs::File> {
    selvedge_files::create_private_folder(home)?;
    selvedge_files::lock_file(&home.join("rules.lock"))
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
    fn a_rule_for_a_folder_applies_in_it_only() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let rule = |text: &str| vec![text.to_owned()];
        let (here, there) = (Path::new("/a b/\"c\""), Path::new("/a b"));
        for _ in 0..2 {
            save_rule(&home, Some(here), &rule("make"), false).unwrap();
            save_rule(&home, Some(here), &rule("npm"), true).unwrap();
            save_rule(&home, None, &rule("cargo"), false).unwrap();
            save_host(&home, Some(there), "docs.rs").unwrap();
        }
        let rules = saved_rules(&home).unwrap();
        let own = rules.clone().in_folder(here);
        assert_eq!(own.allow, [rule("cargo"), rule("make")]);
        assert_eq!(own.allow_unconfined, [rule("npm")]);
        assert!(own.allow_hosts.is_empty());
        let own = rules.clone().in_folder(there);
        assert_eq!(own.allow, [rule("cargo")]);
        assert_eq!(own.allow_hosts, ["docs.rs"]);
        let own = rules.in_folder(Path::new("/"));
        assert_eq!((own.allow, own.allow_hosts), (vec![rule("cargo")], vec![]));
    }

    #[test]
    fn rules_are_saved_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        assert_eq!(saved_rules(&home).unwrap(), SavedRules::default());
        let words = |text: &str| text.split('|').map(str::to_owned).collect::<Vec<_>>();
        for _ in 0..2 {
            save_rule(&home, None, &words("npm|test"), false).unwrap();
            save_rule(&home, None, &words("say|\"quoted\" 'both'\n"), false).unwrap();
            save_rule(&home, None, &words("npm|install"), true).unwrap();
            save_host(&home, None, "docs.rs").unwrap();
            save_host(&home, None, "localhost:3000").unwrap();
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
        assert!(
            saved_rules(&home).is_err() && save_rule(&home, None, &words("a|b"), false).is_err()
        );
        assert_eq!(
            std::fs::read_to_string(home.join(RULES_FILE)).unwrap(),
            "allow = 3"
        );
    }
}
