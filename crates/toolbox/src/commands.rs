//! Runs commands for `exec` and `exec_command`: their confinement, their environment, and which of
//! them need approval.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use selvedge_confine::{
    Child, ChildCommand, ChildStdio, ConfineError, Confinement, ConfinementMode,
    ConfinementSupport, NetworkAccess, UnixSocketAccess, WeakerConfinement,
};
use selvedge_protocol::{CommandLimits, EnvironmentPolicy, Preview, PreviewContent, SandboxPolicy};
use selvedge_tools::{CallContext, Risk, ToolError, list_from_text};
use serde_json::{Value, json};

use crate::apply_patch;
use crate::command_safety::{
    CommandClassification, CommandSafety, classify_command, display_command, is_covered_by_rules,
    rule_prefix,
};
use crate::environment::EnvironmentBuilder;
use crate::patch;
use crate::running_command::ExitedCommands;
use crate::secret_access::may_show_secrets;
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
pub type SaveCommandRule = Box<dyn Fn(&CommandRule) + Send + Sync>;

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

/// The time limit of a command if the call does not set one.
pub(crate) const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest time limit that a call can set.
pub(crate) const MAX_COMMAND_TIMEOUT: Duration = Duration::from_secs(30 * 60);

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
            }),
        }
    }

    /// Keeps a file open until every command and everything it started have exited, even if this
    /// process exits before. Later calls have no effect.
    pub fn keep_open_while_running(&self, file: OwnedFd) {
        // A process has one journal, so the first file is enough.
        let _ = self.inner.keep_open_fd.set(file);
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
        match &request.unconfined_justification {
            _ if self.is_allowed_by_rule(request) => Risk::Harmless,
            // The justification is no part of the reason: an approver is shown it as the words of
            // the script's author.
            Some(_) => Risk::NeedsApproval {
                reason: format!("runs `{line}` without the sandbox"),
            },
            None if safety == CommandSafety::ReadOnly => Risk::Harmless,
            None => Risk::Moderate {
                reason: format!("runs `{line}`{}", request.cwd_and_env_lines()),
            },
        }
    }

    /// Returns whether a command is known to be read-only.
    pub(crate) fn is_read_only(&self, request: &CommandRequest) -> bool {
        request.unconfined_justification.is_none()
            && self.classify(request) == CommandSafety::ReadOnly
    }

    /// Classifies a command by its words, its environment and its working folder. Variables can
    /// make any program do anything. A repository in another folder may come from an untrusted
    /// source, and its configuration names programs that even `git status` runs.
    fn classify(&self, request: &CommandRequest) -> CommandSafety {
        let workspace = &self.inner.workspace;
        let CommandClassification { commands, safety } = classify_command(&request.argv);
        let is_git = |words: &Vec<String>| {
            words
                .first()
                .is_some_and(|word| word.rsplit('/').next() == Some("git"))
        };
        match safety {
            CommandSafety::ReadOnly if !request.env.is_empty() => CommandSafety::Unknown {
                reason: "sets environment variables".to_owned(),
            },
            CommandSafety::ReadOnly
                if !self.is_at_workspace_root(request) && commands.iter().any(is_git) =>
            {
                CommandSafety::Unknown {
                    reason: "`git` may run programs configured in another repository".to_owned(),
                }
            }
            CommandSafety::ReadOnly
                if !self.hides_secrets()
                    && may_show_secrets(workspace, &commands, &self.cwd(request)) =>
            {
                CommandSafety::Unknown {
                    reason: "may show secrets".to_owned(),
                }
            }
            safety => safety,
        }
    }

    /// Returns whether a rule allows the command. Rules apply only in the root of the workspace and
    /// without added variables: otherwise the same words may run another program.
    fn is_allowed_by_rule(&self, request: &CommandRequest) -> bool {
        let rules = self
            .inner
            .rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.can_have_rule(request)
            && (is_covered_by_rules(&request.argv, &rules.unconfined)
                || request.unconfined_justification.is_none()
                    && is_covered_by_rules(&request.argv, &rules.confined))
    }

    fn can_have_rule(&self, request: &CommandRequest) -> bool {
        request.env.is_empty() && self.is_at_workspace_root(request)
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

    /// Returns the rule that the answer "always" would add for this command. `None` if no rule is
    /// possible.
    fn rule_for(&self, request: &CommandRequest) -> Option<CommandRule> {
        let prefix = rule_prefix(&request.argv)
            .filter(|_| self.can_have_rule(request) && patch_args(request).is_none())?;
        Some(CommandRule {
            prefix,
            unconfined: request.unconfined_justification.is_some(),
        })
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
            view: Some(PreviewContent::Commands(view)),
            rule,
        }
    }

    /// Returns the key that an approval for the whole script is stored under: the rule for the
    /// command, or the files of a patch. `None` covers only this call.
    pub(crate) fn approval_key(&self, request: &CommandRequest) -> Option<String> {
        if let Some(patch) = patch_args(request) {
            return apply_patch::approval_key(&self.inner.workspace, &patch);
        }
        self.rule_for(request).map(|rule| format!("{rule:?}"))
    }

    /// Adds and saves the rule for this command, so that such commands run without approval.
    pub(crate) fn allow_always(&self, request: &CommandRequest) {
        let Some(rule) = self.rule_for(request) else {
            return;
        };
        let mut rules = self
            .inner
            .rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let list = if rule.unconfined {
            &mut rules.unconfined
        } else {
            &mut rules.confined
        };
        if !list.contains(&rule.prefix) {
            list.push(rule.prefix.clone());
            if let Some(save) = &self.inner.settings.save_rule {
                save(&rule);
            }
        }
    }

    /// Applies the patch if the command is a call of `apply_patch`, and returns a summary of the
    /// changed files. `None` if it is another command.
    pub(crate) async fn apply_if_patch(
        &self,
        request: &CommandRequest,
        call: &CallContext,
    ) -> Option<Result<String, ToolError>> {
        let CommandRunnerInner {
            workspace,
            turn_diff,
            ..
        } = self.inner.as_ref();
        Some(
            apply_patch::apply_from_command(workspace, turn_diff, patch_args(request)?, call).await,
        )
    }

    /// Starts a command. Blocks, usually for one or two milliseconds.
    pub(crate) fn spawn(
        &self,
        request: &CommandRequest,
        stdio: ChildStdio,
    ) -> Result<Child, ToolError> {
        let inner = &self.inner;
        inner.exited.drop_finished();
        if request.argv.first().is_none_or(String::is_empty) {
            return Err(ToolError::new("the command is empty")
                .suggest("pass a program and its arguments: [\"ls\", \"-l\"]"));
        }
        let cwd = self.cwd(request);
        if request.unconfined_justification.is_none()
            && self.hides_secrets()
            && inner.workspace.is_secret(&cwd)
        {
            let message = format!(
                "cannot start in {}: it is hidden from commands",
                cwd.display()
            );
            return Err(ToolError::new(message)
                .suggest("work in a folder that is not inside SELVEDGE_HOME")
                .suggest("set SELVEDGE_HOME to a separate folder, such as ~/.selvedge"));
        }
        if self.classify(request) != CommandSafety::ReadOnly {
            inner.turn_diff.before_command();
        }
        let support = inner.support.get_or_init(ConfinementSupport::probe);
        let mode = if request.unconfined_justification.is_some() {
            ConfinementMode::Unconfined
        } else {
            self.confinement_mode()
        };
        let argv = request.argv.iter().map(OsString::from).collect();
        let env = inner.environment.build(&request.env)?;
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
            },
            &mode,
            support,
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

    fn confinement_mode(&self) -> ConfinementMode {
        let CommandRunnerInner {
            workspace,
            settings,
            ..
        } = self.inner.as_ref();
        if !self.confines_commands() {
            return ConfinementMode::Unconfined;
        }
        let network = if settings.network {
            NetworkAccess::On
        } else {
            NetworkAccess::Off
        };
        ConfinementMode::Confined(Confinement {
            writable: workspace.writable_roots().map(Path::to_owned).collect(),
            protected: workspace.protected_paths(),
            hidden: workspace.secret_paths().map(Path::to_owned).collect(),
            network,
            unix_sockets: settings.unix_sockets,
            limits: settings.limits.clone(),
            accepted_weaker: settings.accepted_weaker,
        })
    }
}

/// A command to check or to run.
#[derive(Debug, Clone)]
pub(crate) struct CommandRequest {
    pub(crate) argv: Vec<String>,
    /// Relative to the workspace. `None` is its root.
    pub(crate) cwd: Option<String>,
    /// Variables that the call adds to the environment.
    pub(crate) env: BTreeMap<String, String>,
    /// `Some` runs the command without confinement, for this reason, which may be empty.
    pub(crate) unconfined_justification: Option<String>,
}

impl CommandRequest {
    /// Reads everything except `argv` from the arguments of a call.
    pub(crate) fn from_args(argv: Vec<String>, cwd_field: &str, args: &Value) -> Self {
        let text = |name: &str| args[name].as_str().map(str::to_owned);
        let env = args["env"].as_object().into_iter().flatten();
        Self {
            argv,
            cwd: text(cwd_field),
            env: env
                .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect(),
            unconfined_justification: (args["with_escalated_permissions"] == true)
                .then(|| text("justification").unwrap_or_default()),
        }
    }

    /// Returns the command in one line, truncated to 120 characters.
    pub(crate) fn to_line(&self) -> String {
        let line = display_command(&self.argv)
            .lines()
            .collect::<Vec<_>>()
            .join(" ");
        selvedge_text::truncate_chars(&line, 120).into_owned()
    }

    /// Returns lines for the working folder and the added variables, each after a newline. Empty if
    /// the call sets neither.
    fn cwd_and_env_lines(&self) -> String {
        let mut text = String::new();
        if let Some(cwd) = &self.cwd {
            text.push_str(&format!("\nin {cwd}"));
        }
        for (name, value) in &self.env {
            text.push_str(&format!("\nwith {name}={value}"));
        }
        text
    }
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
                let argv = json!(list_from_text("command", &program));
                failure = failure.suggest(format!("write the command as {argv}"));
            }
        }
        ConfineError::WorkingDirectory { error, .. } => {
            failure = ToolError::new(format!(
                "cannot start in {}: {error}",
                request.cwd.as_deref().unwrap_or(".")
            ));
        }
        ConfineError::ProtectedSymlink { .. } => {
            failure = failure.suggest(
                "replace the link with a folder, or with the `.git` file of a linked work tree",
            );
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
