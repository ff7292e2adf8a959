//! What clients of the agent server see of errors: no text of configuration files, and no path of
//! the server outside of the folder that they use. The log has the whole error.

use selvedge_agent::AgentError;
use selvedge_journal::JournalError;
use selvedge_server::{HostError, HostErrorKind};

use crate::problem::Problem;
use crate::session_configuration::{SessionConfiguration, no_environment};

/// Returns a failure of the server, which clients do not see.
pub(crate) fn failed(error: &anyhow::Error) -> HostError {
    HostError::failed(format!("{error:#}"))
}

/// Returns the error of a request about files of a folder that this server does not serve.
pub(crate) fn not_served() -> HostError {
    HostError {
        kind: HostErrorKind::OtherServer,
        message: "this server does not serve the workspace".to_owned(),
        hint: None,
    }
}

/// Returns the error of a request that is wrong, or a failure of the server if the error is about
/// files outside of the folder.
pub(crate) fn invalid(error: &anyhow::Error, folder: &str) -> HostError {
    let problem = Problem::from_error(error);
    HostError {
        kind: HostErrorKind::Invalid,
        message: problem.to_string(),
        hint: problem.hints().first().cloned(),
    }
    .without_server_paths(folder, "")
}

/// Fails if there is no environment with the name of a request. Such a name may look like a path of
/// the server, which [`invalid`] would hide.
pub(crate) fn check_environment(
    configuration: &SessionConfiguration,
    environment: Option<&str>,
) -> Result<(), HostError> {
    let known = configuration.environment_names();
    let is_unknown = |name: &&str| known.iter().all(|known| known != name);
    environment.filter(is_unknown).map_or(Ok(()), |name| {
        let problem = no_environment(name);
        Err(HostError {
            kind: HostErrorKind::Invalid,
            message: problem.to_string(),
            hint: problem.hints().first().cloned(),
        })
    })
}

/// Hides errors about files of the server from clients.
pub(crate) trait WithoutServerPaths {
    /// Returns a failure of the server instead of an error that names paths outside of a folder,
    /// except `sent`, which is a text of the client itself. Removes a hint that names such paths.
    fn without_server_paths(self, folder: &str, sent: &str) -> Self;
}

impl WithoutServerPaths for HostError {
    fn without_server_paths(mut self, folder: &str, sent: &str) -> Self {
        let message = match sent.is_empty() {
            true => self.message.clone(),
            false => self.message.replace(sent, ""),
        };
        if names_server_files(&message, folder) {
            return Self::failed(self.message);
        }
        self.hint = self.hint.filter(|hint| !names_server_files(hint, folder));
        self
    }
}

/// Returns what clients see of the problem that ended a turn before its agent could work.
pub(crate) fn shown_problem(problem: &Problem, session: &str, turn: u32, folder: &str) -> Problem {
    let text = problem.to_string();
    tracing::error!(
        session,
        turn,
        error = text,
        "cannot set up the agent of a turn"
    );
    if names_server_files(&text, folder) {
        let message = format!("its log has turn {turn} of {session}");
        return Problem::new(format!("the server could not set up the agent; {message}"));
    }
    let hints = problem.hints().iter();
    let shown = hints.filter(|hint| !names_server_files(hint, folder));
    shown.fold(Problem::new(text), Problem::hint)
}

/// Whether a text names a configuration file, or an absolute path outside of a folder.
pub(crate) fn names_server_files(text: &str, folder: &str) -> bool {
    let is_end = |c: char| c.is_whitespace() || "`'\",;()[]<>".contains(c);
    let words = text.split(is_end);
    let mut words = words.map(|word| word.trim_end_matches([':', '.']));
    let is_outside = |word: &str| {
        let path = std::path::Path::new(word);
        word.len() > 1 && path.is_absolute() && !path.starts_with(folder)
    };
    let quotes_config = text.contains("config.toml:") || text.contains(".mcp.json:");
    quotes_config || words.any(is_outside)
}

/// Returns the failure of a request that the journal refused.
pub(crate) fn journal_failure(error: &JournalError) -> HostError {
    HostError {
        kind: match error {
            JournalError::RunNotFound(_)
            | JournalError::SessionNotFound(_)
            | JournalError::AmbiguousId(_) => HostErrorKind::NotFound,
            _ => HostErrorKind::Failed,
        },
        message: error.to_string(),
        hint: None,
    }
}

/// Returns the failure of a request about a session.
pub(crate) fn agent_failure(error: &AgentError) -> HostError {
    match error {
        AgentError::Journal(error) => journal_failure(error),
        other => HostError::failed(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_in_the_folder_are_shown() {
        for text in [
            "there is no environment `x`",
            "`/srv/a/b.md` is not a document",
            "the folder /srv/a/sub of the session now leads somewhere",
            "1/2 of it; see a/b, or `sub/x.md`: not found",
            "add `[environments.x]` to config.toml",
            "cannot read /srv/a: it is a folder",
            "`file:/etc/passwd` does not exist",
        ] {
            assert!(!names_server_files(text, "/srv/a"), "{text}");
        }
        for text in [
            "/var/lib/x/config.toml:1: unclosed array",
            ".selvedge/config.toml:3: unknown key `tokn = \"secret\"`",
            "cannot open /srv/ab: Too many open files",
            "cannot open `/var/lib/x/journal.sqlite`: disk I/O error",
            "error: (/etc/passwd)",
        ] {
            assert!(names_server_files(text, "/srv/a"), "{text}");
        }
    }
}
