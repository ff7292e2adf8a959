//! Reading the files and laying one over the other.

use std::path::{Path, PathBuf};

use crate::{Config, PROJECT_FILES, Project};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file is there and cannot be read.
    #[error("cannot read {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {error}")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file is not TOML, or says something no key allows.
    #[error("{path}: {message}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong and where, in one line.
        message: String,
    },
}

/// Where Selvedge keeps its files: `$SELVEDGE_HOME`, else `~/.selvedge`.
pub fn home() -> Option<PathBuf> {
    match std::env::var_os("SELVEDGE_HOME") {
        Some(home) if !home.is_empty() => Some(home.into()),
        _ => std::env::home_dir().map(|home| home.join(".selvedge")),
    }
}

/// The user's configuration under the project's, where one is given. A missing file says nothing.
pub fn load(home: Option<&Path>, project: Option<&Project>) -> Result<Config, ConfigError> {
    let user = home.map(|home| home.join("config.toml"));
    let user = user
        .map(|path| read(&path).map(|table| Some((path, table?))))
        .transpose()?
        .flatten();
    let own = project.and_then(|project| {
        Some((
            project.folder.join(PROJECT_FILES[0]),
            project.config.as_deref()?,
        ))
    });
    let own = own
        .map(|(path, text)| table(&path, text).map(|table| (path, table)))
        .transpose()?;
    let mut merged = toml::Table::new();
    for (path, table) in user.into_iter().chain(own) {
        // Checked one by one, so that an error names the file it is in.
        parse(&path, table.clone())?;
        merge(&mut merged, table);
    }
    parse(Path::new("config.toml"), merged)
}

pub(crate) fn read(path: &Path) -> Result<Option<toml::Table>, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => table(path, &text).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ConfigError::Unreadable {
            path: path.to_owned(),
            error,
        }),
    }
}

fn table(path: &Path, text: &str) -> Result<toml::Table, ConfigError> {
    text.parse()
        .map_err(|error: toml::de::Error| invalid(path, &error, Some(text)))
}

fn parse(path: &Path, table: toml::Table) -> Result<Config, ConfigError> {
    toml::Value::Table(table)
        .try_into()
        .map_err(|error| invalid(path, &error, None))
}

pub(crate) fn invalid(path: &Path, error: &toml::de::Error, text: Option<&str>) -> ConfigError {
    let line = error
        .span()
        .zip(text)
        .map(|(span, text)| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let place = line
        .map(|line| format!("line {line}: "))
        .unwrap_or_default();
    let message = error.message().lines().next().unwrap_or_default();
    let key = error
        .to_string()
        .lines()
        .find_map(|line| {
            line.trim()
                .strip_prefix("in ")
                .map(|key| format!(" in {key}"))
        })
        .unwrap_or_default();
    ConfigError::Invalid {
        path: path.to_owned(),
        message: format!("{place}{message}{key}"),
    }
}

/// Lays `over` over `under`, table by table.
fn merge(under: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(toml::Value::Table(under)), toml::Value::Table(over)) => merge(under, over),
            (_, value) => _ = under.insert(key, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::{ApprovalPolicy, Mode};

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_project_lies_over_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let (home, project) = (dir.path().join("home"), dir.path().join("project"));
        write(
            &home,
            "config.toml",
            "model = \"x\"\napproval_policy = \"never\"\n[script_harness]\nmode = \"dry-run\"\n[script_harness.limits]\nmemory_mb = 10\n",
        );
        write(
            &project,
            ".selvedge/config.toml",
            "[script_harness.limits]\nmax_tool_calls = 3\n",
        );
        let config = load(Some(&home), Some(&Project::read(&project).unwrap())).unwrap();
        assert_eq!(config.approval_policy, ApprovalPolicy::Never);
        assert_eq!(config.script_harness.mode, Mode::DryRun);
        assert_eq!(
            (
                config.script_harness.limits.memory_mb,
                config.script_harness.limits.max_tool_calls
            ),
            (10, 3)
        );
        assert_eq!(load(None, None).unwrap(), Config::default());
    }

    /// A file as people have it for Codex.
    #[test]
    fn keys_of_models_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"
            model = "o3"
            model_provider = "proxy"
            model_reasoning_effort = "xhigh"
            [model_providers.proxy]
            name = "Proxy"
            base_url = "https://proxy.example.com/v1"
            env_key = "PROXY_KEY"
            wire_api = "chat"
            query_params = { api-version = "2026-01-01" }
            http_headers = { "X-Team" = "a" }
            env_http_headers = { "X-Secret" = "PROXY_SECRET" }
            request_max_retries = 1
            stream_idle_timeout_ms = 5000
            requires_openai_auth = false
            script_harness = "dry-run"
            [models."o3"]
            context_window = 1000
            prices = { input = 2.0, output = 8.0 }
        "#;
        write(dir.path(), "config.toml", text);
        let config = load(Some(dir.path()), None).unwrap();
        let provider = &config.model_providers["proxy"];
        assert_eq!(
            (config.model.as_deref(), config.model_provider.as_deref()),
            (Some("o3"), Some("proxy"))
        );
        assert_eq!(
            config.model_reasoning_effort,
            Some(crate::ReasoningEffort::Xhigh)
        );
        assert_eq!(provider.wire_api, Some(selvedge_protocol::WireApi::Chat));
        assert_eq!(provider.query_params["api-version"], "2026-01-01");
        assert_eq!(
            (provider.request_max_retries, provider.script_harness),
            (Some(1), Some(Mode::DryRun))
        );
        assert_eq!(config.models["o3"].prices.unwrap().output, 8.0);
    }

    #[test]
    fn errors_name_the_file_and_the_place() {
        let dir = tempfile::tempdir().unwrap();
        for (text, part) in [
            ("a = \n", "line 1"),
            (
                "approval_policy = \"sometimes\"\n",
                "unknown variant `sometimes`",
            ),
            (
                "[script_harness.limits]\nmemory = 3\n",
                "unknown field `memory`",
            ),
            (
                "[model_providers.x]\nwire_api = \"grpc\"\n",
                "unknown variant `grpc`",
            ),
            ("[models.x]\ncontext = 3\n", "unknown field `context`"),
        ] {
            write(dir.path(), "config.toml", text);
            let error = load(Some(dir.path()), None).unwrap_err().to_string();
            assert!(
                error.contains("config.toml") && error.contains(part),
                "{error}"
            );
        }
    }
}
