//! Decides whether the sandbox blocked a command that failed.
//!
//! - Network: the confinement counts the attempts that had no route, so this is known for certain.
//! - Files: unprivileged Linux does not report refused writes of another process. The output names
//!   a path; the rules of the sandbox say whether it is closed to the command, and a probe whether
//!   it is open to this process. Both together are a denial.
//! - Anything else is guessed from the output, and labelled as a guess: refused system calls, and
//!   the network where commands have no network namespace.

use std::path::Path;

use crate::capture::MAX_CAPTURE_BYTES;

/// Why a command was blocked, or probably was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SandboxDenial {
    /// The command tried to reach another host.
    Network,
    /// The output says that this path is refused, and the sandbox is what refuses it.
    Path(String),
    /// The output says that this path does not exist, and the sandbox hides it.
    HiddenPath(String),
    /// Only the output suggests it: the phrase.
    Guess(&'static str),
}

impl SandboxDenial {
    /// Returns the reason in one line.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Network => "it tried to reach another host, without network access".to_owned(),
            Self::Path(path) => format!("the sandbox does not allow access to {path}"),
            Self::HiddenPath(path) => {
                format!("{path} is hidden from commands, because it may hold secrets")
            }
            Self::Guess(phrase) => format!("a guess, because its output says \"{phrase}\""),
        }
    }
}

/// Texts of programs whose access to a file or to the system was refused.
const ACCESS_PHRASES: [&str; 6] = [
    "read-only file system",
    "permission denied",
    "operation not permitted",
    "erofs",
    "eacces",
    "eperm",
];

/// Texts of programs that did not find a file.
const NOT_FOUND_PHRASES: [&str; 2] = ["no such file or directory", "enoent"];

/// Texts of programs that could not reach the network.
const NETWORK_PHRASES: [&str; 9] = [
    "network is unreachable",
    "could not resolve host",
    "couldn't resolve host",
    "couldn't connect to server",
    "temporary failure in name resolution",
    "name or service not known",
    "failed to lookup address",
    "eai_again",
    "enetunreach",
];

/// Returns whether the sandbox blocked a confined command that failed. `network_denied` is what the
/// confinement reports, `is_refused_by_sandbox` whether the sandbox alone refuses access to a path,
/// `is_hidden` whether a path looks to commands as if it did not exist.
pub(crate) fn find_denial(
    output: &str,
    network_denied: Option<bool>,
    is_refused_by_sandbox: impl Fn(&str) -> bool,
    is_hidden: impl Fn(&str) -> bool,
) -> Option<SandboxDenial> {
    if network_denied == Some(true) {
        return Some(SandboxDenial::Network);
    }
    // Only the beginning and the end are searched: a long output has the error message there.
    let end = output.len().saturating_sub(MAX_CAPTURE_BYTES / 8);
    let start = output.floor_char_boundary(MAX_CAPTURE_BYTES / 8);
    let rest = &output[output.ceil_char_boundary(end).max(start)..];
    let mut guess = None;
    for line in output[..start].lines().chain(rest.lines()) {
        let lower = line.to_lowercase();
        if let Some(phrase) = find_phrase(&lower, &ACCESS_PHRASES) {
            let mut paths = named_paths(line, &lower, phrase).into_iter();
            match paths.find(|path| is_refused_by_sandbox(path)) {
                Some(path) => return Some(SandboxDenial::Path(path)),
                None => guess = guess.or(Some(SandboxDenial::Guess(phrase))),
            }
        }
        if let Some(phrase) = find_phrase(&lower, &NOT_FOUND_PHRASES) {
            let mut paths = named_paths(line, &lower, phrase).into_iter();
            if let Some(path) = paths.find(|path| is_hidden(path)) {
                return Some(SandboxDenial::HiddenPath(path));
            }
        }
        // Where the confinement reports attempts, there was none.
        if network_denied.is_none()
            && let Some(phrase) = find_phrase(&lower, &NETWORK_PHRASES)
        {
            guess = guess.or(Some(SandboxDenial::Guess(phrase)));
        }
    }
    guess
}

fn find_phrase(lower: &str, phrases: &[&'static str]) -> Option<&'static str> {
    phrases
        .iter()
        .copied()
        .find(|phrase| lower.contains(phrase))
}

/// Returns the paths that an error line may be about: the texts in quotes, and the last word before
/// the phrase.
fn named_paths(line: &str, lower: &str, phrase: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for quote in ['\'', '"', '`'] {
        let quoted = line.split(quote).skip(1).step_by(2);
        paths.extend(quoted.map(str::to_owned));
    }
    // Lower case may have another length, so the position is only a hint.
    let before = lower.find(phrase).and_then(|at| line.get(..at));
    let before = before.unwrap_or_default().trim_end_matches([' ', ':', '(']);
    let last = before
        .rsplit(char::is_whitespace)
        .next()
        .unwrap_or_default();
    paths.push(last.trim_matches(['\'', '"', '`', '‘', '’']).to_owned());
    paths.retain(|path| !path.is_empty() && path.len() < 1000);
    paths
}

/// Whether this process could write to a path, or create it.
pub(crate) fn can_write(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    let existing = path.ancestors().find(|path| path.exists());
    existing.is_some_and(|path| access(path, Access::WRITE_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(output: &str, network_denied: Option<bool>) -> Option<SandboxDenial> {
        find_denial(
            output,
            network_denied,
            |path| path.starts_with("/closed"),
            |path| path.starts_with("/hidden"),
        )
    }

    #[test]
    fn a_denial_is_known_from_the_counters_or_from_a_path_that_only_the_sandbox_refuses() {
        let path = |path: &str| Some(SandboxDenial::Path(path.to_owned()));
        for (output, network_denied, expected) in [
            ("", Some(true), Some(SandboxDenial::Network)),
            ("curl: (6) Could not resolve host: x", Some(false), None),
            (
                "curl: (6) Could not resolve host: x",
                None,
                Some(SandboxDenial::Guess("could not resolve host")),
            ),
            (
                "touch: cannot touch '/closed/x': Read-only file system",
                Some(false),
                path("/closed/x"),
            ),
            (
                "bash: line 1: /closed/y: Permission denied",
                None,
                path("/closed/y"),
            ),
            (
                "Error: EROFS: read-only file system, open '/closed/z'",
                None,
                path("/closed/z"),
            ),
            (
                "cat: mine: Permission denied",
                Some(false),
                Some(SandboxDenial::Guess("permission denied")),
            ),
            (
                "cat: /hidden/key: No such file or directory",
                Some(false),
                Some(SandboxDenial::HiddenPath("/hidden/key".to_owned())),
            ),
            ("cat: /x: No such file or directory", Some(false), None),
            ("assertion failed: left == right", None, None),
        ] {
            assert_eq!(denial(output, network_denied), expected, "{output}");
        }
    }
}
