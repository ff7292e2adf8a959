//! Reads the configuration files and merges them.

use std::path::{Path, PathBuf};

use selvedge_files::{FileRefusal, RefusalReason, read_user_text};

use crate::check::{Diagnostic, DiagnosticSubject, Severity, check, line_of_key};
use crate::merge::merged_config;
use crate::{Config, PROJECT_FILES, Project};

/// Largest configuration file that is read, in bytes.
pub(crate) const MAX_CONFIG_BYTES: usize = 1 << 20;

/// Why a file of Selvedge's home or of a project cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file exists and cannot be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Why it is not read.
        reason: RefusalReason,
    },
    /// The file cannot be written.
    #[error("cannot write {path}: {error}")]
    Unwritable {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The content of the file is not valid.
    #[error("{path}: {message}")]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong and where, in one line.
        message: String,
    },
}

impl From<ConfigError> for Diagnostic {
    fn from(error: ConfigError) -> Self {
        let file = DiagnosticSubject::File;
        let (path, message, subject) = match error {
            ConfigError::Unreadable { path, reason } => {
                (path, format!("cannot read the file: {reason}"), file)
            }
            ConfigError::Unwritable { path, error } => {
                (path, format!("cannot write the file: {error}"), file)
            }
            ConfigError::Invalid { path, message } => (path, message, DiagnosticSubject::Key),
        };
        Self {
            severity: Severity::Error,
            path,
            line: None,
            message,
            subject,
        }
    }
}

impl From<FileRefusal> for ConfigError {
    fn from(FileRefusal { path, reason }: FileRefusal) -> Self {
        Self::Unreadable { path, reason }
    }
}

/// A file of a project that is not used is a warning: Selvedge works without it.
impl From<FileRefusal> for Diagnostic {
    fn from(FileRefusal { path, reason }: FileRefusal) -> Self {
        Self {
            severity: Severity::Warning,
            path,
            line: None,
            message: format!("the file is not used: {reason}"),
            subject: DiagnosticSubject::File,
        }
    }
}

/// Returns the folder of Selvedge's own files: `$SELVEDGE_HOME`, else `~/.selvedge`. `None` if the
/// user's home folder is unknown.
pub fn home() -> Option<PathBuf> {
    match std::env::var_os("SELVEDGE_HOME") {
        Some(home) if !home.is_empty() => Some(home.into()),
        _ => std::env::home_dir().map(|home| home.join(".selvedge")),
    }
}

/// Loads the user's configuration, overridden by that of the project if one is given. A project
/// that changes a program or an address does not get the user's credentials for it.
///
/// A missing file sets nothing. A file with an error is ignored, so that the result is always
/// valid; the caller decides whether to continue without it.
pub fn load(home: Option<&Path>, project: Option<&Project>) -> (Config, Vec<Diagnostic>) {
    let user = home.map_or(Ok(UserFile::default()), UserFile::read);
    let (user, refused) = match user {
        Ok(user) => (user, None),
        Err(error) => (UserFile::default(), Some(error.into())),
    };
    let (config, mut diagnostics) = load_with(&user, project);
    diagnostics.splice(0..0, refused);
    (config, diagnostics)
}

/// The user's `config.toml` as it was read, for programs that read it once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserFile(Option<(PathBuf, String)>);

impl UserFile {
    /// Reads the file. A missing file sets nothing.
    pub fn read(home: &Path) -> Result<Self, ConfigError> {
        let path = home.join("config.toml");
        let text = read_user_text(&path, MAX_CONFIG_BYTES)?;
        Ok(Self(text.map(|text| (path, text))))
    }

    /// Returns a file with this text, to check the text before it is written.
    pub fn with_text(path: &Path, text: &str) -> Self {
        Self(Some((path.to_owned(), text.to_owned())))
    }
}

/// Loads the configuration like [`load`], with a user's file that was read before.
pub fn load_with(user: &UserFile, project: Option<&Project>) -> (Config, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let user = user.0.clone();
    let project = project.and_then(|project| {
        Some((
            project.folder.join(PROJECT_FILES[0]),
            project.config.clone()?,
        ))
    });
    let mut usable = |file: Option<(PathBuf, String)>| {
        let Some((path, text)) = file else {
            return toml::Table::new();
        };
        let problems = check(&path, &text);
        let is_usable = problems
            .iter()
            .all(|problem| problem.severity == Severity::Warning);
        diagnostics.extend(problems);
        match is_usable {
            // `check` reports a file that cannot be parsed.
            true => text.parse().unwrap_or_default(),
            false => toml::Table::new(),
        }
    };
    let (user, project) = (usable(user), usable(project));
    let config = merged_config(user, project).unwrap_or_else(|error| {
        let path = PathBuf::from("config.toml");
        let message = format!("the configuration files conflict: {error}");
        diagnostics.push(ConfigError::Invalid { path, message }.into());
        Config::default()
    });
    (config, diagnostics)
}

/// Returns `FILE:LINE` of the place where a key is set: in the file of the project, else in that of
/// the user. `path` has the names of the tables above the key and its own name. `None` if no file
/// sets it.
pub fn place_of_key(
    home: Option<&Path>,
    project: Option<&Project>,
    path: &[&str],
) -> Option<String> {
    let in_project = project.and_then(|project| {
        let line = line_of_key(project.config.as_ref()?, path)?;
        let file = project.folder.join(PROJECT_FILES[0]);
        Some(format!("{}:{line}", file.display()))
    });
    let in_home = || {
        let file = home?.join("config.toml");
        let text = read_user_text(&file, MAX_CONFIG_BYTES).ok().flatten()?;
        let line = line_of_key(&text, path)?;
        Some(format!("{}:{line}", file.display()))
    };
    in_project.or_else(in_home)
}

/// Returns the user's configuration file as a table; an empty one if it cannot be used.
pub(crate) fn user_table(home: Option<&Path>) -> toml::Table {
    let path = home.map(|home| home.join("config.toml"));
    let text = path.and_then(|path| read_user_text(&path, MAX_CONFIG_BYTES).ok().flatten());
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::{ApprovalPolicy, Effort, ScriptMode};

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_project_overrides_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let (home, project) = (dir.path().join("home"), dir.path().join("project"));
        write(
            &home,
            "config.toml",
            "model = \"x\"\napproval_policy = \"never\"\n\
             [script_harness]\nmode = \"dry-run\"\n[script_harness.limits]\nmemory_mb = 10\n",
        );
        write(
            &project,
            ".selvedge/config.toml",
            "[script_harness.limits]\nmax_tool_calls = 3\n",
        );
        let (config, found) = load(Some(&home), Some(&Project::in_folder(&project)));
        assert_eq!(found, []);
        assert_eq!(config.approval_policy, ApprovalPolicy::Never);
        assert_eq!(config.script_harness.mode, ScriptMode::DryRun);
        assert_eq!(
            (
                config.script_harness.limits.memory_mb,
                config.script_harness.limits.max_tool_calls
            ),
            (10, 3)
        );
        assert_eq!(load(None, None), (Config::default(), Vec::new()));
    }

    /// A file as Codex users have it.
    #[test]
    fn keys_of_models_and_providers_are_read() {
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
        let (config, found) = load(Some(dir.path()), None);
        // Codex has a key that Selvedge does not have.
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("requires_openai_auth"));
        let provider = &config.model_providers["proxy"];
        assert_eq!(
            (config.model.as_deref(), config.model_provider.as_deref()),
            (Some("o3"), Some("proxy"))
        );
        assert_eq!(config.model_reasoning_effort, Some(Effort::Max));
        assert_eq!(provider.wire_api, Some(selvedge_protocol::WireApi::Chat));
        assert_eq!(provider.query_params["api-version"], "2026-01-01");
        assert_eq!(
            (
                provider.retries.request_max_retries,
                provider.script_harness.as_ref().and_then(|it| it.mode())
            ),
            (1, Some(ScriptMode::DryRun))
        );
        assert_eq!(config.models["o3"].prices.unwrap().output, 8.0);
    }

    /// Returns the diagnostics of a user's file, without the path of its folder.
    fn messages(text: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "config.toml", text);
        let (_, found) = load(Some(dir.path()), None);
        let folder = format!("{}/", dir.path().display());
        let display = |diagnostic: &Diagnostic| {
            let severity = match diagnostic.severity {
                Severity::Warning => "warning",
                Severity::Error => "error",
            };
            format!(
                "{severity}: {}",
                diagnostic.to_string().replace(&folder, "")
            )
        };
        found.iter().map(display).collect()
    }

    #[test]
    fn errors_name_the_file_the_line_and_the_expected_form() {
        for (text, message) in [
            (
                "a = \n",
                "error: config.toml:1: the value after `=` is missing",
            ),
            (
                "model = \"x\"\nmodel = \"y\"\n",
                "error: config.toml:2: `model` is set twice",
            ),
            (
                "\n[script_harness.limits]\ntimeout_ms = \"30s\"\n",
                "error: config.toml:3: script_harness.limits.timeout_ms must be a whole number of \
                 milliseconds, got \"30s\"",
            ),
            (
                "approval_policy = \"sometimes\"\n",
                "error: config.toml:1: approval_policy must be \"untrusted\", \"on-request\", \
                 \"on-failure\" or \"never\", got \"sometimes\"",
            ),
            (
                "[model_providers.x.script_harness]\nmode = \"sometimes\"\n",
                "error: config.toml:2: model_providers.x.script_harness.mode must be \
                 \"disabled\", \"dry-run\" or \"enabled\", got \"sometimes\"",
            ),
            (
                "[models.x]\nscript_harness = 3\n",
                "error: config.toml:2: models.x.script_harness must be \"disabled\", \
                 \"dry-run\" or \"enabled\", got 3",
            ),
            (
                "[model_providers.x.script_harness.limits]\nmemory = 3\n",
                "warning: config.toml:2: unknown key \
                 `model_providers.x.script_harness.limits.memory`; did you mean `memory_mb`?",
            ),
            (
                "[script_harness.limits]\nmemory_mb = 4096\n",
                "error: config.toml:2: script_harness.limits.memory_mb must be a whole number of \
                 megabytes from 1 to 2048, got 4096",
            ),
            (
                "[script_harness.limits]\nmax_tool_calls = 4294967296\n",
                "error: config.toml:2: invalid value: integer `4294967296`, expected u32",
            ),
            (
                "[web]\nmax_mb = -1\n",
                "error: config.toml:2: web.max_mb must be a whole number of megabytes of at least \
                 0, got -1",
            ),
            (
                "[model_providers.x]\nwire_api = \"grpc\"\n",
                "error: config.toml:2: model_providers.x.wire_api must be \"responses\", \"chat\" \
                 or \"messages\", got \"grpc\"",
            ),
            (
                "[models.\"a/b\"]\nprices = { input = 1 }\n",
                "error: config.toml:2: models.\"a/b\".prices must have the key `output`",
            ),
            (
                "[shell_environment_policy]\nexclude = [\n  \"AWS_*\",\n  \"[a\",\n]\n",
                "error: config.toml:4: invalid glob \"[a\" in shell_environment_policy.exclude[1]: \
                 unclosed character class; missing ']'",
            ),
            (
                "[workspace]\ndocuments = [\"docs/*.md\", \"a/[\"]\n",
                "error: config.toml:2: invalid glob \"a/[\" in workspace.documents[1]: unclosed \
                 character class; missing ']'",
            ),
            (
                "[memory]\nlevel_shares = [1, 2]\n",
                "error: config.toml:2: memory.level_shares must be a list of 4 whole numbers, got a list",
            ),
            (
                "allow_commands = [\"npm test\"]\n",
                "error: config.toml:1: allow_commands[0] must be a list of strings such as \
                 [\"npm\", \"test\"], got \"npm test\"",
            ),
            (
                "allow_commands = \"npm test\"\n",
                "error: config.toml:1: allow_commands must be a list of lists of strings, got \
                 \"npm test\"",
            ),
            (
                "[mcp_servers.x]\ncommand = \"x\"\ntool_timeout_sec = 0\n",
                "error: config.toml:3: mcp_servers.x.tool_timeout_sec must be a number of seconds \
                 greater than 0, got 0",
            ),
            (
                "journal = true\n",
                "error: config.toml:1: journal must be a table, got true",
            ),
            (
                "model = 3\n",
                "error: config.toml:1: model must be a string, got 3",
            ),
        ] {
            assert_eq!(messages(text), [message]);
        }
        assert_eq!(messages("model_reasoning_effort = \"max\"\n"), [""; 0]);
    }

    #[test]
    fn unknown_keys_are_reported_with_a_suggestion() {
        for (text, message) in [
            (
                "[script_harness.limits]\nmemory = 3\n",
                "warning: config.toml:2: unknown key `script_harness.limits.memory`; did you mean \
                 `memory_mb`?",
            ),
            (
                "aproval_policy = \"never\"\n",
                "error: config.toml:1: unknown key `aproval_policy`; did you mean \
                 `approval_policy`?",
            ),
            (
                "sandbox_mod = \"read-only\"\n",
                "error: config.toml:1: unknown key `sandbox_mod`; did you mean `sandbox_mode`?",
            ),
            (
                "\ntimeout_ms = 3\n",
                "warning: config.toml:2: unknown key `timeout_ms`; did you mean `web.timeout_ms`?",
            ),
            (
                "[tui.theme]\nname = \"x\"\n",
                "warning: config.toml:1: unknown key `tui`",
            ),
            (
                "[web]\nscript_harness.limits.timeout_ms = 3\n",
                "warning: config.toml:2: unknown key `web.script_harness`; move this line above \
                 the first [section]",
            ),
        ] {
            assert_eq!(messages(text), [message]);
        }
    }

    #[test]
    fn a_file_with_an_error_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "config.toml", "model = \"x\"\n");
        write(
            dir.path(),
            ".selvedge/config.toml",
            "model = \"y\"\nallow_commands = 3\n",
        );
        let project = Project::in_folder(dir.path());
        let (config, found) = load(Some(dir.path()), Some(&project));
        assert_eq!(config.model.as_deref(), Some("x"));
        assert_eq!((found.len(), found[0].line), (1, Some(2)));
        assert!(found[0].path.ends_with(".selvedge/config.toml"));
    }
}
