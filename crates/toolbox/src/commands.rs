//! Runs commands for `exec` and `exec_command`: their confinement, their environment, and which of
//! them need approval.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use selvedge_confine::{
    Child, Command, ConfineError, Confinement, NamedSockets, Network, Stdio, Support, Wall,
    WeakerWall,
};
use selvedge_protocol::{CommandLimits, EnvironmentPolicy, Preview, SandboxPolicy, View};
use selvedge_tools::{Call, Risk, ToolError, list_from_text};
use serde_json::{Value, json};

use crate::apply_patch;
use crate::ending::Leaving;
use crate::environment::Environment;
use crate::judge::{CommandView, Safety, covered_by, judge_command, prefix_of, shown};
use crate::patch;
use crate::privacy::may_show_secrets;
use crate::{TurnDiff, Workspace};

/// Starts commands and decides which of them need approval. Clones share the rules.
#[derive(Clone)]
pub struct Commands {
    inner: Arc<Inner>,
}

struct Inner {
    workspace: Workspace,
    turn_diff: TurnDiff,
    settings: CommandSettings,
    rules: Mutex<Rules>,
    support: OnceLock<Support>,
    environment: Environment,
    leaving: Leaving,
    hold: OnceLock<OwnedFd>,
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
    pub named_sockets: NamedSockets,
    /// The weakest confinement to accept where the full one is not available. `None` accepts only
    /// the full one.
    pub weaker_wall: Option<WeakerWall>,
    /// Limits on processes, file size and memory.
    pub limits: CommandLimits,
    /// Commands that run without approval.
    pub rules: Rules,
    /// Stores a rule that a person added. `None`: the rule is forgotten when the process exits.
    pub save_rule: Option<SaveRule>,
    /// Replaces the detected confinement features of this machine, for tests.
    pub support: Option<Support>,
}

/// Stores a rule for later processes.
pub type SaveRule = Box<dyn Fn(&Rule) + Send + Sync>;

/// Prefixes of commands that run without approval. Each prefix is a list of words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Prefixes of commands that run confined.
    pub confined: Vec<Vec<String>>,
    /// Prefixes of commands that may also run without the sandbox.
    pub unconfined: Vec<Vec<String>>,
}

/// A rule that a person added with the answer "always".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The first words of the commands that the rule covers.
    pub prefix: Vec<String>,
    /// Whether the rule also covers commands without the sandbox.
    pub unconfined: bool,
}

/// The time limit of a command if the call does not set one.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest time limit that a call can set.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(30 * 60);

impl Commands {
    /// Creates the runner for a workspace.
    pub fn new(workspace: &Workspace, turn_diff: &TurnDiff, mut settings: CommandSettings) -> Self {
        let rules = Mutex::new(std::mem::take(&mut settings.rules));
        let support = settings
            .support
            .take()
            .map_or_else(OnceLock::new, OnceLock::from);
        let (workspace, turn_diff) = (workspace.clone(), turn_diff.clone());
        let environment = Environment::new(
            std::mem::take(&mut settings.environment),
            std::mem::take(&mut settings.never_inherit),
        );
        Self {
            inner: Arc::new(Inner {
                workspace,
                turn_diff,
                settings,
                rules,
                support,
                environment,
                leaving: Leaving::default(),
                hold: OnceLock::new(),
            }),
        }
    }

    /// Keeps a file open until every command and everything it started have exited, even if this
    /// process exits before. Later calls have no effect.
    pub fn hold_while_any_runs(&self, file: OwnedFd) {
        // A process has one journal, so the first file is enough.
        let _ = self.inner.hold.set(file);
    }

    /// Returns the risk of a command: harmless, guarded by the policy, or always asked for.
    pub(crate) fn risk(&self, request: &Wanted) -> Risk {
        if let Some(patch) = patch_of(request) {
            return apply_patch::risk(&self.inner.workspace, &patch);
        }
        let line = request.in_one_line();
        let safety = self.judge(request);
        if let Safety::Dangerous { why, command } = safety {
            // The line is truncated, so it may not show the dangerous part of a long script.
            let context = if line.contains(&command) {
                String::new()
            } else {
                format!(", in `{line}`")
            };
            let command = if context.is_empty() { &line } else { &command };
            return Risk::Ask {
                reason: format!("`{command}`: {why}{context}"),
            };
        }
        match &request.unconfined {
            _ if self.has_rule(request) => Risk::Harmless,
            Some(justification) if justification.is_empty() => Risk::Ask {
                reason: format!("runs `{line}` without the sandbox"),
            },
            Some(justification) => Risk::Ask {
                reason: format!("runs `{line}` without the sandbox: {justification}"),
            },
            None if safety == Safety::ReadOnly => Risk::Harmless,
            None => Risk::Guarded {
                reason: format!("runs `{line}`{}", request.circumstances()),
            },
        }
    }

    /// Returns whether a command is known to be read-only.
    pub(crate) fn reads_only(&self, request: &Wanted) -> bool {
        request.unconfined.is_none() && self.judge(request) == Safety::ReadOnly
    }

    /// Classifies a command by its words, its environment and its working folder. Variables can
    /// make any program do anything. A repository in another folder may come from an untrusted
    /// source, and its configuration names programs that even `git status` runs.
    fn judge(&self, request: &Wanted) -> Safety {
        let workspace = &self.inner.workspace;
        let CommandView { commands, safety } = judge_command(&request.argv);
        let is_git = |words: &Vec<String>| {
            words
                .first()
                .is_some_and(|word| word.rsplit('/').next() == Some("git"))
        };
        match safety {
            Safety::ReadOnly if !request.env.is_empty() => Safety::Unknown {
                why: "sets environment variables".to_owned(),
            },
            Safety::ReadOnly if !self.at_root(request) && commands.iter().any(is_git) => {
                Safety::Unknown {
                    why: "`git` may run programs configured in another repository".to_owned(),
                }
            }
            Safety::ReadOnly
                if !self.hides_secrets()
                    && may_show_secrets(workspace, &commands, &self.cwd(request)) =>
            {
                Safety::Unknown {
                    why: "may show secrets".to_owned(),
                }
            }
            safety => safety,
        }
    }

    /// Returns whether a rule allows the command. Rules apply only in the root of the workspace and
    /// without added variables: otherwise the same words may run another program.
    fn has_rule(&self, request: &Wanted) -> bool {
        let rules = self
            .inner
            .rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.is_plain(request)
            && (covered_by(&request.argv, &rules.unconfined)
                || request.unconfined.is_none() && covered_by(&request.argv, &rules.confined))
    }

    fn is_plain(&self, request: &Wanted) -> bool {
        request.env.is_empty() && self.at_root(request)
    }

    fn at_root(&self, request: &Wanted) -> bool {
        self.cwd(request) == self.inner.workspace.root()
    }

    fn cwd(&self, request: &Wanted) -> PathBuf {
        self.inner
            .workspace
            .absolute(request.cwd.as_deref().unwrap_or("."), None)
    }

    /// Returns whether secrets are hidden from confined commands.
    fn hides_secrets(&self) -> bool {
        self.are_confined() && self.inner.settings.weaker_wall != Some(WeakerWall::Landlock)
    }

    /// Returns the rule that the answer "always" would add for this command. `None` if no rule is
    /// possible.
    fn rule(&self, request: &Wanted) -> Option<Rule> {
        let prefix = prefix_of(&request.argv)
            .filter(|_| self.is_plain(request) && patch_of(request).is_none())?;
        Some(Rule {
            prefix,
            unconfined: request.unconfined.is_some(),
        })
    }

    /// Returns what a person sees before the approval: the command, and the rule that "always"
    /// adds.
    pub(crate) fn preview(&self, request: &Wanted) -> Preview {
        if let Some(patch) = patch_of(request) {
            return apply_patch::preview(&self.inner.workspace, &patch);
        }
        let rule = self.rule(request).map(|rule| {
            let suffix = if rule.unconfined {
                ", without the sandbox"
            } else {
                ""
            };
            format!("`{} …`{suffix}", rule.prefix.join(" "))
        });
        let view = format!("{}{}", shown(&request.argv), request.circumstances());
        Preview {
            view: Some(View::Commands(view)),
            rule,
        }
    }

    /// Returns the key that an approval for the whole script is stored under: the rule for the
    /// command, or the files of a patch. `None` covers only this call.
    pub(crate) fn agreement(&self, request: &Wanted) -> Option<String> {
        if let Some(patch) = patch_of(request) {
            return apply_patch::agreement(&self.inner.workspace, &patch);
        }
        self.rule(request).map(|rule| format!("{rule:?}"))
    }

    /// Adds and saves the rule for this command, so that such commands run without approval.
    pub(crate) fn allow_always(&self, request: &Wanted) {
        let Some(rule) = self.rule(request) else {
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
    pub(crate) async fn patched(
        &self,
        request: &Wanted,
        call: &Call,
    ) -> Option<Result<String, ToolError>> {
        let Inner {
            workspace,
            turn_diff,
            ..
        } = self.inner.as_ref();
        Some(apply_patch::apply_from_command(workspace, turn_diff, patch_of(request)?, call).await)
    }

    /// Starts a command. Blocks, usually for one or two milliseconds.
    pub(crate) fn start(&self, request: &Wanted, stdio: Stdio) -> Result<Child, ToolError> {
        let inner = &self.inner;
        inner.leaving.forget_gone();
        if request.argv.first().is_none_or(String::is_empty) {
            return Err(ToolError::new("the command is empty")
                .suggest("pass a program and its arguments: [\"ls\", \"-l\"]"));
        }
        let cwd = self.cwd(request);
        if request.unconfined.is_none() && self.hides_secrets() && inner.workspace.is_secret(&cwd) {
            let message = format!(
                "cannot start in {}: it is hidden from commands",
                cwd.display()
            );
            return Err(ToolError::new(message)
                .suggest("work in a folder that is not inside SELVEDGE_HOME")
                .suggest("set SELVEDGE_HOME to a separate folder, such as ~/.selvedge"));
        }
        if self.judge(request) != Safety::ReadOnly {
            inner.turn_diff.before_command();
        }
        let support = inner.support.get_or_init(Support::probe);
        let wall = if request.unconfined.is_some() {
            Wall::None
        } else {
            self.wall()
        };
        let argv = request.argv.iter().map(OsString::from).collect();
        let env = inner.environment.build(&request.env);
        let hold = inner.hold.get().and_then(|hold| hold.try_clone().ok());
        selvedge_confine::spawn(
            Command {
                argv,
                cwd,
                env,
                stdio,
                hold,
            },
            &wall,
            support,
        )
        .map_err(|error| explain(error, request))
    }

    /// Returns the commands that have exited and whose namespaces still exist.
    pub(crate) fn leaving(&self) -> &Leaving {
        &self.inner.leaving
    }

    /// Returns whether the sandbox policy confines commands.
    pub(crate) fn are_confined(&self) -> bool {
        self.inner.workspace.policy() != SandboxPolicy::DangerFullAccess
    }

    fn wall(&self) -> Wall {
        let Inner {
            workspace,
            settings,
            ..
        } = self.inner.as_ref();
        if !self.are_confined() {
            return Wall::None;
        }
        let network = if settings.network {
            Network::On
        } else {
            Network::Off
        };
        Wall::Confined(Confinement {
            writable: workspace.writable_roots().map(Path::to_owned).collect(),
            protected: workspace.protected(),
            hidden: workspace.secrets().map(Path::to_owned).collect(),
            network,
            named_sockets: settings.named_sockets,
            limits: settings.limits.clone(),
            weaker: settings.weaker_wall,
        })
    }
}

/// A command to check or to run.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) argv: Vec<String>,
    /// Relative to the workspace. `None` is its root.
    pub(crate) cwd: Option<String>,
    /// Variables that the call adds to the environment.
    pub(crate) env: BTreeMap<String, String>,
    /// The justification for running without the sandbox, possibly empty. `None` runs confined.
    pub(crate) unconfined: Option<String>,
}

impl Wanted {
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
            unconfined: (args["with_escalated_permissions"] == true)
                .then(|| text("justification").unwrap_or_default()),
        }
    }

    /// Returns the command in one line, truncated to 120 characters.
    pub(crate) fn in_one_line(&self) -> String {
        let line = shown(&self.argv).lines().collect::<Vec<_>>().join(" ");
        selvedge_text::with_ellipsis(&line, 120).into_owned()
    }

    /// Returns lines for the working folder and the added variables, each after a newline. Empty if
    /// the call sets neither.
    fn circumstances(&self) -> String {
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
fn patch_of(request: &Wanted) -> Option<Value> {
    patch::of_command(&request.argv).map(|patch| json!({"patch": patch, "cwd": request.cwd}))
}

/// Returns the error of a command that could not be started, with hints.
fn explain(error: ConfineError, request: &Wanted) -> ToolError {
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
        ConfineError::Unprotectable { .. } => {
            failure = failure.suggest(
                "replace the link with a folder, or with the `.git` file of a linked work tree",
            );
        }
        ConfineError::Everything => {
            failure = failure.suggest("pass -C with the folder to work in");
        }
        ConfineError::NotEnforceable { .. } => {
            failure = failure
                .suggest("run `selvedge doctor` to see what this machine lacks")
                .suggest(
                    "set `weaker_wall` in the configuration to accept weaker confinement, or \
                     `sandbox_mode = \"danger-full-access\"` to accept none",
                );
        }
        _ => {}
    }
    failure
}
