//! Runs `git` for Selvedge itself. The repository may come from anywhere: git runs only if its
//! configuration names no program, and without hooks.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use selvedge_protocol::EnvironmentPolicy;

use crate::environment::EnvironmentBuilder;
use crate::repository::{SubmoduleUse, why_git_may_run_programs};
use crate::worktree::WorktreeError;

/// How long one command of git may take: checking out a large repository takes minutes.
const GIT_TIMEOUT: Duration = Duration::from_secs(600);
/// Time between two checks whether git has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Longest part of an error message of git that is shown, in characters.
const MAX_MESSAGE_CHARS: usize = 400;

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

/// Runs `git` in one folder of a repository.
#[derive(Debug)]
pub(crate) struct SafeGit {
    folder: PathBuf,
    env: Vec<(OsString, OsString)>,
}

/// How one command of git ended.
struct GitOutput {
    succeeded: bool,
    stdout: Vec<u8>,
    stderr: String,
}

impl SafeGit {
    /// Checks the repository of a folder. Fails if its configuration may make git run a program;
    /// with [`SubmoduleUse::Entered`], also if a submodule may.
    pub(crate) fn open(folder: &Path, submodules: SubmoduleUse) -> Result<Self, WorktreeError> {
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
        let git = Self { folder, env };
        // Otherwise a missing git would look like an unreadable repository.
        git.bytes(&["--version"])?;
        let list = |args: &[&str]| {
            let output = git.start(args, &[], b"").ok()?;
            output.succeeded.then_some(output.stdout)
        };
        match why_git_may_run_programs(&git.folder, submodules, list) {
            None => Ok(git),
            Some(reason) => Err(WorktreeError::UnsafeRepository { reason }),
        }
    }

    /// Runs git and returns its output without the line break at the end.
    pub(crate) fn line<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<String, WorktreeError> {
        let output = self.bytes(args)?;
        let text = String::from_utf8_lossy(&output);
        Ok(text.trim_end_matches('\n').to_owned())
    }

    /// Runs git and returns its output.
    pub(crate) fn bytes<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<Vec<u8>, WorktreeError> {
        self.bytes_with(args, &[], b"")
    }

    /// Runs git with further variables and an input, and returns its output.
    pub(crate) fn bytes_with<A: AsRef<OsStr>>(
        &self,
        args: &[A],
        variables: &[(&str, &OsStr)],
        input: &[u8],
    ) -> Result<Vec<u8>, WorktreeError> {
        let output = self.start(args, variables, input)?;
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
        Ok(self.start(args, &[], b"")?.succeeded)
    }

    fn start<A: AsRef<OsStr>>(
        &self,
        args: &[A],
        variables: &[(&str, &OsStr)],
        input: &[u8],
    ) -> Result<GitOutput, WorktreeError> {
        let failed = |error: std::io::Error| WorktreeError::Git {
            message: match error.kind() {
                std::io::ErrorKind::NotFound => "git is not installed".to_owned(),
                _ => format!("cannot run git: {error}"),
            },
        };
        let mut command = Command::new("git");
        command
            .args(args)
            .current_dir(&self.folder)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (mut stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Git may end before it has read everything.
                let _ = stdin.as_mut().map(|stdin| stdin.write_all(input));
            });
            let stdout = scope.spawn(move || read_all(stdout));
            let stderr = scope.spawn(move || read_all(stderr));
            let succeeded = wait_for(&mut child).map_err(failed)?;
            let (stdout, stderr) = (stdout.join(), stderr.join());
            Ok(GitOutput {
                succeeded,
                stdout: stdout.unwrap_or_default(),
                stderr: String::from_utf8_lossy(&stderr.unwrap_or_default()).into_owned(),
            })
        })
    }
}

fn read_all(stream: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // What was read before an error is enough for a message.
        let _ = stream.read_to_end(&mut bytes);
    }
    bytes
}

/// Waits for a command, and kills it after the time limit. Returns whether it succeeded.
fn wait_for(child: &mut Child) -> std::io::Result<bool> {
    let deadline = Instant::now() + GIT_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(std::io::Error::other(format!(
                "it has not ended within {} s",
                GIT_TIMEOUT.as_secs()
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
