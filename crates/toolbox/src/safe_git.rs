//! Runs `git` for Selvedge itself. The repository may come from anywhere: git runs only if its
//! configuration names no program, and without hooks. Where git reads files that an agent may
//! change at the same time, it runs confined like the commands of the agent.

use std::ffi::{OsStr, OsString};
use std::io::{PipeReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use selvedge_confine::{
    ChildCommand, ChildStdio, ConfineError, ConfinementMode, ConfinementSupport,
};
use selvedge_protocol::EnvironmentPolicy;

use crate::environment::EnvironmentBuilder;
use crate::repository::{SubmoduleUse, why_git_may_run_programs};
use crate::worktree::WorktreeError;

/// How long one command of git may take: checking out a large repository takes minutes.
const GIT_TIMEOUT: Duration = Duration::from_secs(600);
/// How long one command may take that reads files of an agent, which may be pipes.
const CONFINED_TIMEOUT: Duration = Duration::from_secs(120);
/// Most bytes that git may print: a larger diff or change is refused.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// Longest part of an error message of git that is shown, in characters.
const MAX_MESSAGE_CHARS: usize = 400;
/// Where systems install git. `PATH` may name folders that agents can write, such as that of a
/// Python environment in a project.
const SYSTEM_GIT: [&str; 4] = [
    "/usr/bin/git",
    "/usr/local/bin/git",
    "/opt/homebrew/bin/git",
    "/run/current-system/sw/bin/git",
];

/// Variables for git that are kept. All others that begin with `GIT_` could lead it to another
/// repository.
const KEPT_GIT_VARIABLES: [&str; 5] = [
    "GIT_ALLOW_PROTOCOL",
    "GIT_NO_LAZY_FETCH",
    "GIT_OPTIONAL_LOCKS",
    "GIT_PAGER",
    "GIT_TERMINAL_PROMPT",
];
/// Author of the commits that Selvedge creates, so that git needs no configuration.
const COMMIT_IDENTITY: [(&str, &str); 4] = [
    ("GIT_AUTHOR_NAME", "Selvedge"),
    ("GIT_AUTHOR_EMAIL", "selvedge@localhost"),
    ("GIT_COMMITTER_NAME", "Selvedge"),
    ("GIT_COMMITTER_EMAIL", "selvedge@localhost"),
];

/// Returns the path of the git of the system.
pub fn system_git() -> Option<&'static Path> {
    let mut system = SYSTEM_GIT.iter().map(Path::new);
    system.find(|path| path.is_file())
}

/// Returns what the system offers to confine git.
pub(crate) fn confinement_support() -> &'static ConfinementSupport {
    static SUPPORT: OnceLock<ConfinementSupport> = OnceLock::new();
    SUPPORT.get_or_init(ConfinementSupport::probe)
}

/// Runs `git` in one folder of a repository.
#[derive(Debug)]
pub(crate) struct SafeGit {
    folder: PathBuf,
    env: Vec<(OsString, OsString)>,
    mode: ConfinementMode,
    /// How long one command may take.
    time_limit: Duration,
}

/// How one command of git ended.
struct GitOutput {
    succeeded: bool,
    stdout: Vec<u8>,
    stderr: String,
}

impl SafeGit {
    /// Checks the repository of a folder. Fails if its configuration may make git run a program.
    /// Git does not enter submodules.
    pub(crate) fn open(folder: &Path) -> Result<Self, WorktreeError> {
        Self::open_with(folder, ConfinementMode::Unconfined, &[])
    }

    /// Like [`Self::open`], for a folder whose files an agent may change meanwhile: git has the
    /// rights of the agent's commands, and further variables.
    pub(crate) fn open_with(
        folder: &Path,
        mode: ConfinementMode,
        variables: &[(&str, &OsStr)],
    ) -> Result<Self, WorktreeError> {
        let folder = folder.canonicalize().map_err(|error| WorktreeError::Git {
            message: format!("cannot open {}: {error}", folder.display()),
        })?;
        let temporary = std::env::temp_dir();
        let is_writable = |path: &Path| {
            path.starts_with(&folder) || path.starts_with(&temporary) || path.starts_with("/tmp")
        };
        let builder = EnvironmentBuilder::new(EnvironmentPolicy::default(), Vec::new());
        let env = builder.build_read_only(is_writable);
        let mut env = env.map_err(|error| WorktreeError::Git {
            message: error.message,
        })?;
        env.retain(|(name, _)| {
            let name = name.to_string_lossy();
            !name.starts_with("GIT_")
                || name.starts_with("GIT_CONFIG")
                || KEPT_GIT_VARIABLES.contains(&&*name)
        });
        env.push(("LC_ALL".into(), "C".into()));
        let pairs = COMMIT_IDENTITY.iter();
        env.extend(pairs.map(|(name, value)| (name.into(), value.into())));
        let time_limit = match mode {
            ConfinementMode::Unconfined => GIT_TIMEOUT,
            ConfinementMode::Confined(_) => CONFINED_TIMEOUT,
        };
        let git = Self {
            folder,
            env,
            mode,
            time_limit,
        };
        // Otherwise a missing git would look like an unreadable repository.
        git.bytes(&["--version"])?;
        let git = git.with_variables(variables);
        let list = |args: &[&str]| {
            let output = git.run(args, b"").ok()?;
            output.succeeded.then_some(output.stdout)
        };
        match why_git_may_run_programs(&git.folder, SubmoduleUse::NotEntered, list) {
            None => Ok(git),
            Some(reason) => Err(WorktreeError::UnsafeRepository { reason }),
        }
    }

    /// Adds variables to the environment of git.
    pub(crate) fn with_variables(mut self, variables: &[(&str, &OsStr)]) -> Self {
        let pairs = variables.iter();
        let pairs = pairs.map(|(name, value)| ((*name).into(), (*value).to_owned()));
        self.env.extend(pairs);
        self
    }

    /// Ignores the configuration of the user and the system, so that no filter is known. That of
    /// the repository has none, or git would not run.
    pub(crate) fn without_filters(mut self) -> Self {
        let ignored = [
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
        ];
        self.env.retain(|(name, _)| {
            name != "GIT_CONFIG_PARAMETERS" && ignored.iter().all(|(other, _)| name != other)
        });
        let pairs = ignored.iter();
        self.env
            .extend(pairs.map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Runs git and returns its output without the line break at the end.
    pub(crate) fn line<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<String, WorktreeError> {
        let output = self.bytes(args)?;
        let text = String::from_utf8_lossy(&output);
        Ok(text.trim_end_matches('\n').to_owned())
    }

    /// Runs git and returns its output.
    pub(crate) fn bytes<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<Vec<u8>, WorktreeError> {
        self.bytes_with(args, b"")
    }

    /// Runs git with an input, and returns its output.
    pub(crate) fn bytes_with<A: AsRef<OsStr>>(
        &self,
        args: &[A],
        input: &[u8],
    ) -> Result<Vec<u8>, WorktreeError> {
        let output = self.run(args, input).map_err(cannot_run)?;
        if output.succeeded {
            return Ok(output.stdout);
        }
        let command = args.first().map(|arg| arg.as_ref().to_string_lossy());
        let stderr = output.stderr.trim();
        let stderr = selvedge_text::truncate_chars(stderr, MAX_MESSAGE_CHARS);
        Err(WorktreeError::Git {
            message: format!("git {} failed: {stderr}", command.unwrap_or_default()),
        })
    }

    /// Whether git succeeds with these arguments.
    pub(crate) fn succeeds<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<bool, WorktreeError> {
        Ok(self.run(args, b"").map_err(cannot_run)?.succeeded)
    }

    fn run<A: AsRef<OsStr>>(&self, args: &[A], input: &[u8]) -> Result<GitOutput, ConfineError> {
        let pipe = || {
            std::io::pipe().map_err(|error| ConfineError::System {
                operation: "create a pipe for git",
                error,
            })
        };
        let ((stdin, mut to_git), (stdout, stdout_end), (stderr, stderr_end)) =
            (pipe()?, pipe()?, pipe()?);
        let program = system_git().ok_or(ConfineError::System {
            operation: "find git in a folder of the system",
            error: std::io::ErrorKind::NotFound.into(),
        })?;
        let args = args.iter().map(|arg| arg.as_ref().to_owned());
        let command = ChildCommand {
            argv: std::iter::once(program.into()).chain(args).collect(),
            cwd: self.folder.clone(),
            env: self.env.clone(),
            stdio: ChildStdio::Streams {
                stdin: stdin.into(),
                stdout: stdout_end.into(),
                stderr: stderr_end.into(),
            },
            keep_open_fd: None,
            lease: None,
        };
        let mut child = selvedge_confine::spawn(command, &self.mode, confinement_support())?;
        let deadline = Instant::now() + self.time_limit;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Git may end before it has read everything.
                let _ = to_git.write_all(input);
            });
            let (done, ended) = mpsc::channel();
            let read = |stream: PipeReader| {
                let done = done.clone();
                scope.spawn(move || {
                    let mut bytes = Vec::new();
                    // What was read before an error is enough for a message. After the limit the
                    // stream is closed, which ends git.
                    let _ = stream.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut bytes);
                    let _ = done.send(());
                    bytes
                })
            };
            let (stdout, stderr) = (read(stdout), read(stderr));
            let mut problem = None;
            for _ in 0..2 {
                let rest = deadline.saturating_duration_since(Instant::now());
                if ended.recv_timeout(rest).is_err() {
                    child.kill();
                    problem = Some("it has not ended in time".to_owned());
                }
            }
            let stdout = stdout.join().unwrap_or_default();
            let stderr = stderr.join().unwrap_or_default();
            if stdout.len() as u64 > MAX_OUTPUT_BYTES {
                child.kill();
                problem = Some(format!("it prints more than {} MB", MAX_OUTPUT_BYTES >> 20));
            }
            let succeeded = match problem {
                Some(problem) => Err(std::io::Error::other(problem)),
                None => child.wait_exit().map(|exit| exit.reason.code() == 0),
            };
            Ok(GitOutput {
                succeeded: succeeded.map_err(|error| ConfineError::System {
                    operation: "wait for git",
                    error,
                })?,
                stdout,
                stderr: String::from_utf8_lossy(&stderr).into_owned(),
            })
        })
    }
}

fn cannot_run(error: ConfineError) -> WorktreeError {
    let message = match error {
        ConfineError::Program { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            "git is not installed".to_owned()
        }
        ConfineError::System { error, .. } => format!("cannot run git: {error}"),
        error => format!("cannot run git: {error}"),
    };
    WorktreeError::Git { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_waits_for_a_pipe_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut git = SafeGit::open(folder.path()).unwrap();
        git.bytes(&["init", "-q"]).unwrap();
        let pipe = folder.path().join(".gitignore");
        let made = std::process::Command::new("mkfifo").arg(pipe).status();
        assert!(made.unwrap().success());
        git.time_limit = Duration::from_millis(300);
        let error = git.bytes(&["add", "--all"]).unwrap_err();
        assert!(error.to_string().contains("not ended in time"), "{error}");
    }

    #[test]
    fn output_is_limited() {
        let folder = tempfile::tempdir().unwrap();
        let git = SafeGit::open(folder.path()).unwrap();
        git.bytes(&["init", "-q"]).unwrap();
        let large = vec![b'a'; MAX_OUTPUT_BYTES as usize + 1];
        let id = git.bytes_with(&["hash-object", "-w", "--stdin"], &large);
        let id = String::from_utf8(id.unwrap()).unwrap();
        let error = git.bytes(&["cat-file", "blob", id.trim()]).unwrap_err();
        assert!(error.to_string().contains("more than 64 MB"), "{error}");
    }
}
