//! Runs commands for `exec` and `exec_command`: their confinement, their environment, and which of
//! them need approval.

mod rules;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use selvedge_confine::{
    Child, ChildCommand, ChildStdio, CommandLease, ConfineError, Confinement, ConfinementMode,
    ConfinementSupport, NetworkAccess, UnixSocketAccess, WeakerConfinement,
};
use selvedge_protocol::{
    CommandLimits, EnvironmentPolicy, Preview, PreviewContent, RuleScope, SandboxPolicy,
};
use selvedge_tools::{CallContext, Risk, ToolError};
use serde_json::{Value, json};

use crate::apply_patch;
use crate::command_access::CommandAccess;
use crate::command_request::{CommandRequest, PatchedCommand};
use crate::command_safety::{
    CommandClassification, CommandSafety, classify_command, display_command,
};
use crate::environment::{BuiltEnvironment, EnvironmentBuilder};
use crate::patch;
use crate::repository::{RepositoryCheck, read_git_output};
use crate::rewritable_files::key_with_content;
use crate::running_command::ExitedCommands;
use crate::sandbox_denial::can_write;
use crate::secret_access::{may_show_secrets, protected_change};
use crate::{TurnDiffTracker, Workspace};

/// Starts commands and decides which of them need approval. Clones share the rules.
#[derive(Clone)]
pub struct CommandRunner {
    inner: Arc<CommandRunnerInner>,
}

struct CommandRunnerInner {
    workspace: Workspace,
    turn_diff: TurnDiffTracker,
    settings: CommandSettings,
    rules: Mutex<CommandRules>,
    support: OnceLock<ConfinementSupport>,
    environment: EnvironmentBuilder,
    exited: ExitedCommands,
    keep_open_fd: OnceLock<OwnedFd>,
    lease: OnceLock<&'static CommandLease>,
    repository: RepositoryCheck,
}

/// Settings for commands.
#[derive(Default)]
pub struct CommandSettings {
    /// Which environment variables commands inherit.
    pub environment: EnvironmentPolicy,
    /// Names of variables that commands never get, whatever `environment` says. For example the API
    /// keys of providers.
    pub never_inherit: Vec<String>,
    /// Whether confined commands can reach the network.
    pub network: bool,
    /// Whether confined commands can create Unix sockets that have a path.
    pub unix_sockets: UnixSocketAccess,
    /// The weakest confinement to accept if this machine does not support the full one. With
    /// `None`, commands fail on such a machine.
    pub accepted_weaker: Option<WeakerConfinement>,
    /// Limits on processes, file size and memory.
    pub limits: CommandLimits,
    /// Commands that run without approval.
    pub rules: CommandRules,
    /// Stores a rule that a person added. `None`: the rule is forgotten when the process exits.
    pub save_rule: Option<SaveCommandRule>,
    /// Replaces the detected confinement features of this machine, for tests.
    pub support: Option<ConfinementSupport>,
}

/// Stores a rule for later processes.
pub type SaveCommandRule = Box<dyn Fn(&CommandRule, RuleScope) + Send + Sync>;

/// Prefixes of commands that run without approval. Each prefix is a list of words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandRules {
    /// Prefixes of commands that run confined.
    pub confined: Vec<Vec<String>>,
    /// Prefixes of commands that may also run without confinement.
    pub unconfined: Vec<Vec<String>>,
}

/// A rule that a person added with the answer "always".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRule {
    /// The first words of the commands that the rule covers.
    pub prefix: Vec<String>,
    /// Whether the rule also covers commands that run without confinement.
    pub unconfined: bool,
}

impl CommandRunner {
    /// Creates the runner for a workspace.
    pub fn new(
        workspace: &Workspace,
        turn_diff: &TurnDiffTracker,
        mut settings: CommandSettings,
    ) -> Self {
        let rules = Mutex::new(std::mem::take(&mut settings.rules));
        let support = settings
            .support
            .take()
            .map_or_else(OnceLock::new, OnceLock::from);
        let (workspace, turn_diff) = (workspace.clone(), turn_diff.clone());
        let environment = EnvironmentBuilder::new(
            std::mem::take(&mut settings.environment),
            std::mem::take(&mut settings.never_inherit),
        );
        Self {
            inner: Arc::new(CommandRunnerInner {
                workspace,
                turn_diff,
                settings,
                rules,
                support,
                environment,
                exited: ExitedCommands::default(),
                keep_open_fd: OnceLock::new(),
                lease: OnceLock::new(),
                repository: RepositoryCheck::default(),
            }),
        }
    }

    /// Keeps a file open until every command and everything it started have exited, even if this
    /// process exits before. Later calls have no effect.
    pub fn keep_open_while_running(&self, file: OwnedFd) {
        // A process has one journal, so the first file is enough.
        let _ = self.inner.keep_open_fd.set(file);
    }

    /// Kills every command and everything it started at the end of a lease. Later calls have no
    /// effect.
    pub fn kill_at_end_of(&self, lease: &'static CommandLease) {
        // All journals of a process extend the same lease, so the first one is enough.
        let _ = self.inner.lease.set(lease);
    }

    /// Returns the risk of a command: `Harmless` if it is read-only or a rule allows it,
    /// `NeedsApproval` if it is dangerous or runs unconfined, else `Moderate`.
    pub(crate) fn risk(&self, request: &CommandRequest) -> Risk {
        if let Some(patch) = patch_args(request) {
            return apply_patch::risk(&self.inner.workspace, &patch);
        }
        let line = request.to_line();
        let safety = self.classify(request);
        if let CommandSafety::Dangerous {
            reason: why,
            command,
        } = safety
        {
            // The line is truncated, so it may not show the dangerous part of a long script.
            let context = if line.contains(&command) {
                String::new()
            } else {
                format!(", in `{line}`")
            };
            let command = if context.is_empty() { &line } else { &command };
            return Risk::NeedsApproval {
                reason: format!("`{command}`: {why}{context}"),
            };
        }
        if let Some(why) = self.protected_change(request) {
            return Risk::NeedsApproval {
                reason: format!("`{line}` {why}"),
            };
        }
        match request.run_unconfined {
            _ if self.is_allowed_by_rule(request) => Risk::Harmless,
            // The justification is not part of the reason: the approval question shows it
            // separately, as text of the script's author.
            true => Risk::NeedsApproval {
                reason: format!(
                    "runs `{line}` without the sandbox{}",
                    self.writable_program_note(request)
                ),
            },
            false if safety == CommandSafety::ReadOnly => Risk::Harmless,
            false => Risk::Moderate {
                reason: format!("runs `{line}`{}", request.cwd_and_env_lines()),
            },
        }
    }

    /// Returns whether a command is known to be read-only.
    pub(crate) fn is_read_only(&self, request: &CommandRequest) -> bool {
        !request.run_unconfined && self.classify(request) == CommandSafety::ReadOnly
    }

    /// Classifies a command by its words, its environment, its working folder and the repository
    /// there. Variables can make any program do anything.
    fn classify(&self, request: &CommandRequest) -> CommandSafety {
        let command = classify_command(&request.argv);
        if command.safety != CommandSafety::ReadOnly {
            return command.safety;
        }
        let cwd = self.cwd(request);
        let runs_git = command.commands.iter().any(|words| is_git(words));
        let reason = if !request.env.is_empty() {
            Some("sets environment variables".to_owned())
        } else if runs_git && !self.is_at_workspace_root(request) {
            Some("`git` may run programs configured in another repository".to_owned())
        } else if !self.hides_secrets() && may_show_secrets(&self.inner.workspace, &command, &cwd) {
            Some("may show secrets".to_owned())
        } else if runs_git {
            self.why_repository_may_run_programs()
        } else {
            None
        };
        reason.map_or(CommandSafety::ReadOnly, |reason| CommandSafety::Unknown {
            reason,
        })
    }

    /// Classifies a command as [`classify_command`] does, and with the rules that depend on the
    /// workspace.
    pub fn classify_command(&self, argv: &[String]) -> CommandClassification {
        let request = CommandRequest {
            argv: argv.to_vec(),
            cwd: None,
            env: BTreeMap::new(),
            run_unconfined: false,
        };
        CommandClassification {
            safety: self.classify(&request),
            ..classify_command(argv)
        }
    }

    /// Returns why `git` may run a program in the workspace. `None` if it runs none.
    fn why_repository_may_run_programs(&self) -> Option<String> {
        let root = self.inner.workspace.root();
        self.inner
            .repository
            .why_it_may_run_programs(root, |args| self.git_output(args))
    }

    /// Runs `git` in the workspace as read-only commands run, and returns its output. `None` if it
    /// fails or takes too long.
    fn git_output(&self, args: &[&str]) -> Option<Vec<u8>> {
        let (reader, writer) = std::io::pipe().ok()?;
        let null = || {
            std::fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
        };
        let argv = std::iter::once("git").chain(args.iter().copied());
        let command = ChildCommand {
            argv: argv.map(OsString::from).collect(),
            cwd: self.inner.workspace.root().to_owned(),
            env: self.read_only_environment().ok()?,
            stdio: ChildStdio::Streams {
                stdin: null().ok()?.into(),
                stdout: writer.into(),
                stderr: null().ok()?.into(),
            },
            keep_open_fd: None,
            lease: None,
        };
        let mode = self.confinement_mode(CommandAccess::ReadOnly);
        let mut child = selvedge_confine::spawn(command, &mode, self.support()).ok()?;
        let output = read_git_output(reader)?;
        let exit = child.wait_exit().ok()?;
        (exit.reason.code() == 0).then_some(output)
    }

    fn read_only_environment(&self) -> BuiltEnvironment {
        let is_writable = |path: &Path| self.is_in_writable_folder(path);
        self.inner.environment.build_read_only(is_writable)
    }

    /// Returns whether a path, or its target, is the workspace or another folder that commands may
    /// write, or lies in one.
    fn is_in_writable_folder(&self, path: &Path) -> bool {
        let workspace = &self.inner.workspace;
        let is_below = |path: &Path| {
            path.starts_with(workspace.root())
                || workspace
                    .writable_roots()
                    .any(|root| root.parent().is_some() && path.starts_with(root))
        };
        is_below(path) || path.canonicalize().is_ok_and(|real| is_below(&real))
    }

    /// Returns a protected file that a command may change through a redirection or a pattern, with
    /// the reason, if only Landlock confines it: Landlock does not protect single files. Under
    /// `danger-full-access` nothing is protected.
    fn protected_change(&self, request: &CommandRequest) -> Option<String> {
        if !self.confines_commands() || self.hides_secrets() {
            return None;
        }
        let command = classify_command(&request.argv);
        if command.safety == CommandSafety::ReadOnly {
            return None;
        }
        protected_change(&self.inner.workspace, &command, &self.cwd(request))
    }

    fn is_at_workspace_root(&self, request: &CommandRequest) -> bool {
        self.cwd(request) == self.inner.workspace.root()
    }

    fn cwd(&self, request: &CommandRequest) -> PathBuf {
        self.inner
            .workspace
            .absolute(request.cwd.as_deref().unwrap_or("."), None)
    }

    /// Returns whether secrets are hidden from confined commands.
    fn hides_secrets(&self) -> bool {
        self.confines_commands()
            && self.inner.settings.accepted_weaker != Some(WeakerConfinement::Landlock)
    }

    /// Returns what a person sees before the approval: the command, and the rule that "always"
    /// adds.
    pub(crate) fn preview(&self, request: &CommandRequest) -> Preview {
        if let Some(patch) = patch_args(request) {
            return apply_patch::preview(&self.inner.workspace, &patch);
        }
        let rule = self.rule_for(request).map(|rule| {
            let suffix = if rule.unconfined {
                ", without the sandbox"
            } else {
                ""
            };
            format!("`{} …`{suffix}", rule.prefix.join(" "))
        });
        let view = format!(
            "{}{}",
            display_command(&request.argv),
            request.cwd_and_env_lines()
        );
        Preview {
            view: Some(PreviewContent::Text(view)),
            rule,
        }
    }

    /// Returns the key that an approval for the whole script is stored under: the rule for the
    /// command, the files of a patch, or the content of an unconfined program. `None` covers only
    /// this call.
    pub(crate) fn approval_key(&self, request: &CommandRequest) -> Option<String> {
        if let Some(patch) = patch_args(request) {
            return apply_patch::approval_key(&self.inner.workspace, &patch);
        }
        let rule = self.rule_for(request).map(|rule| format!("{rule:?}"));
        if rule.is_some() || !request.run_unconfined {
            return rule;
        }
        key_with_content(&self.inner.workspace, &self.cwd(request), request)
    }

    /// Applies the patch if the command is a call of `apply_patch`, and returns the output that a
    /// program would have. `None` if it is another command.
    pub(crate) async fn apply_if_patch(
        &self,
        request: &CommandRequest,
        call: &CallContext,
    ) -> Option<PatchedCommand> {
        let CommandRunnerInner {
            workspace,
            turn_diff,
            ..
        } = self.inner.as_ref();
        let args = patch_args(request)?;
        let patched = apply_patch::apply_from_command(workspace, turn_diff, args, call).await;
        Some(PatchedCommand::new(patched))
    }

    /// Starts a command with the access that it was admitted with. Blocks, usually for one or two
    /// milliseconds.
    pub(crate) fn spawn(
        &self,
        request: &CommandRequest,
        access: CommandAccess,
        stdio: ChildStdio,
    ) -> Result<Child, ToolError> {
        let inner = &self.inner;
        inner.exited.drop_finished();
        if request.argv.first().is_none_or(String::is_empty) {
            return Err(ToolError::new("the command is empty")
                .suggest("pass a program and its arguments: [\"ls\", \"-l\"]"));
        }
        let cwd = self.cwd(request);
        if !request.run_unconfined && self.hides_secrets() && inner.workspace.is_secret(&cwd) {
            let message = format!(
                "cannot start in {}: it is hidden from commands",
                cwd.display()
            );
            return Err(ToolError::new(message)
                .suggest("work in a folder that is not inside SELVEDGE_HOME")
                .suggest("set SELVEDGE_HOME to a separate folder, such as ~/.selvedge"));
        }
        if access == CommandAccess::Full {
            inner.turn_diff.before_command();
        }
        let mode = if request.run_unconfined {
            ConfinementMode::Unconfined
        } else {
            self.confinement_mode(access)
        };
        let argv = request.argv.iter().map(OsString::from).collect();
        let env = match access {
            CommandAccess::ReadOnly => self.read_only_environment()?,
            CommandAccess::Full if self.is_unconfined_by_rule(request) => {
                let is_writable = |path: &Path| self.is_in_writable_folder(path);
                inner.environment.build_for_rule(is_writable)?
            }
            CommandAccess::Full => inner.environment.build(&request.env)?,
        };
        let keep_open_fd = inner
            .keep_open_fd
            .get()
            .and_then(|file| file.try_clone().ok());
        selvedge_confine::spawn(
            ChildCommand {
                argv,
                cwd,
                env,
                stdio,
                keep_open_fd,
                lease: inner.lease.get().copied(),
            },
            &mode,
            self.support(),
        )
        .map_err(|error| spawn_error(error, request))
    }

    /// Returns the commands that have exited and whose namespaces still exist.
    pub(crate) fn exited(&self) -> &ExitedCommands {
        &self.inner.exited
    }

    /// Returns whether the sandbox policy confines commands.
    pub(crate) fn confines_commands(&self) -> bool {
        self.inner.workspace.policy() != SandboxPolicy::DangerFullAccess
    }

    /// Returns whether this command would run confined.
    pub(crate) fn confines(&self, request: &CommandRequest) -> bool {
        !request.run_unconfined && self.confines_commands()
    }

    /// Returns whether the sandbox refuses commands access to a path that this process may access.
    /// `cwd` is the working folder of the command.
    pub(crate) fn is_refused_by_sandbox(&self, cwd: Option<&str>, path: &str) -> bool {
        let workspace = &self.inner.workspace;
        let absolute = workspace.absolute(path, cwd);
        self.is_hidden_by_sandbox(cwd, path)
            || !workspace.is_writable_by_commands(&absolute) && can_write(&absolute)
    }

    /// Returns whether the sandbox hides a path from commands, because it may hold
    /// secrets. `cwd` is the working folder of the command.
    pub(crate) fn is_hidden_by_sandbox(&self, cwd: Option<&str>, path: &str) -> bool {
        let workspace = &self.inner.workspace;
        self.hides_secrets() && workspace.is_secret(&workspace.absolute(path, cwd))
    }

    fn support(&self) -> &ConfinementSupport {
        self.inner.support.get_or_init(ConfinementSupport::probe)
    }

    /// Returns the confinement of a command. For a read-only command it allows neither writes nor
    /// network access.
    fn confinement_mode(&self, access: CommandAccess) -> ConfinementMode {
        let CommandRunnerInner {
            workspace,
            settings,
            ..
        } = self.inner.as_ref();
        if !self.confines_commands() {
            return ConfinementMode::Unconfined;
        }
        let network = match settings.network && access == CommandAccess::Full {
            true => NetworkAccess::On,
            false => NetworkAccess::Off,
        };
        let (writable, protected) = match access {
            CommandAccess::Full => (
                workspace.command_writable_roots(),
                workspace.protected_paths(),
            ),
            CommandAccess::ReadOnly => (Vec::new(), Vec::new()),
        };
        ConfinementMode::Confined(Confinement {
            writable,
            protected,
            hidden: workspace.paths_to_hide(),
            lock_folders: workspace.lock_folders(),
            network,
            unix_sockets: match access {
                CommandAccess::Full => settings.unix_sockets,
                CommandAccess::ReadOnly => UnixSocketAccess::Off,
            },
            limits: settings.limits.clone(),
            accepted_weaker: settings.accepted_weaker,
        })
    }
}

fn is_git(words: &[String]) -> bool {
    words
        .first()
        .is_some_and(|word| word.rsplit('/').next() == Some("git"))
}

/// Returns the arguments for `apply_patch` if the command is a call of that tool.
fn patch_args(request: &CommandRequest) -> Option<Value> {
    patch::patch_in_command(&request.argv).map(|patch| json!({"patch": patch, "cwd": request.cwd}))
}

/// Returns the error of a command that could not be started, with hints.
fn spawn_error(error: ConfineError, request: &CommandRequest) -> ToolError {
    let mut failure = ToolError::new(error.to_string());
    match error {
        ConfineError::Program { program, error }
            if error.kind() == std::io::ErrorKind::NotFound =>
        {
            failure = ToolError::new(format!("program not found: `{program}`"));
            if program.contains(' ') && request.argv.len() == 1 {
                let line = json!(program);
                failure = failure.suggest(format!("write the command as one string: {line}"));
            }
        }
        ConfineError::WorkingDirectory { error, .. } => {
            failure = ToolError::new(format!(
                "cannot start in {}: {error}",
                request.cwd.as_deref().unwrap_or(".")
            ));
        }
        ConfineError::ProtectedSymlink { .. } => {
            failure = failure.suggest("replace the link with the file or folder that it points to");
        }
        ConfineError::WorkspaceIsRoot => {
            failure = failure.suggest("pass -C with the folder to work in");
        }
        ConfineError::Unsupported { .. } => {
            failure = failure
                .suggest("run `selvedge doctor` to see what this machine lacks")
                .suggest(
                    "set `weaker_confinement` in the configuration to accept weaker confinement, or \
                     `sandbox_mode = \"danger-full-access\"` to accept none",
                );
        }
        _ => {}
    }
    failure
}
