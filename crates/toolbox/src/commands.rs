//! What all commands have in common: the wall they run behind, their environment, what may run unasked.

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
use selvedge_tools::{Call, Risk, ToolError};
use serde_json::{Value, json};

use crate::apply_patch;
use crate::ending::Leaving;
use crate::environment::Environment;
use crate::judge::{CommandView, Safety, covered_by, judge_command, prefix_of, shown};
use crate::patch;
use crate::privacy::may_show_secrets;
use crate::{TurnDiff, Workspace};

/// How commands run. Clones share what is learned.
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

/// What can be said about commands.
#[derive(Default)]
pub struct CommandSettings {
    /// Which variables they get.
    pub environment: EnvironmentPolicy,
    /// Names of variables that no command gets, whatever `environment` says, such as the keys of providers.
    pub never_inherit: Vec<String>,
    /// Whether they reach the network although confined.
    pub network: bool,
    /// Whether they make sockets that have a name in the file system.
    pub named_sockets: NamedSockets,
    /// A weaker wall that will do where the whole one cannot be built.
    pub weaker_wall: Option<WeakerWall>,
    /// How much they may use.
    pub limits: CommandLimits,
    /// What may run without a question.
    pub rules: Rules,
    /// Told when a person adds a rule, to remember it.
    pub save_rule: Option<SaveRule>,
    /// What is said to be enforceable here, instead of what is.
    pub support: Option<Support>,
}

/// Keeps a rule for the next time.
pub type SaveRule = Box<dyn Fn(&Rule) + Send + Sync>;

/// Commands that need no question, by how they begin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Behind the wall.
    pub confined: Vec<Vec<String>>,
    /// Also without it.
    pub unconfined: Vec<Vec<String>>,
}

/// One rule, as a person agreed to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// How the command begins.
    pub prefix: Vec<String>,
    /// Whether it may run without the wall.
    pub unconfined: bool,
}

/// How long a command may run where the call does not say.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a call may say.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(30 * 60);

impl Commands {
    /// Commands in a workspace.
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

    /// Keeps a file open until every command and everything it started are gone, even if we are gone before.
    pub fn hold_while_any_runs(&self, file: OwnedFd) {
        // The first one stays: there is one journal.
        let _ = self.inner.hold.set(file);
    }

    /// What a command risks.
    pub(crate) fn risk(&self, wanted: &Wanted) -> Risk {
        if let Some(patch) = patch_of(wanted) {
            return apply_patch::risk(&self.inner.workspace, &patch);
        }
        let what = wanted.in_one_line();
        let safety = self.judge(wanted);
        if let Safety::Dangerous { why, command } = safety {
            // In a long script nobody would find it.
            let place = if what.contains(&command) {
                String::new()
            } else {
                format!(", in `{what}`")
            };
            let command = if place.is_empty() { &what } else { &command };
            return Risk::Ask {
                reason: format!("`{command}`: {why}{place}"),
            };
        }
        match &wanted.unconfined {
            _ if self.has_rule(wanted) => Risk::Harmless,
            Some(why) if why.is_empty() => Risk::Ask {
                reason: format!("`{what}` wants to run without the sandbox"),
            },
            Some(why) => Risk::Ask {
                reason: format!("`{what}` wants to run without the sandbox: {why}"),
            },
            None if safety == Safety::ReadOnly => Risk::Harmless,
            None => Risk::Guarded {
                reason: format!("runs `{what}`{}", wanted.circumstances()),
            },
        }
    }

    /// Whether a command is known to change nothing.
    pub(crate) fn reads_only(&self, wanted: &Wanted) -> bool {
        wanted.unconfined.is_none() && self.judge(wanted) == Safety::ReadOnly
    }

    /// The judgement of the words, with what the circumstances add to it: variables can make any program do anything,
    /// and a repository elsewhere in the workspace may have been written by anybody and names programs that even
    /// `git status` runs.
    fn judge(&self, wanted: &Wanted) -> Safety {
        let workspace = &self.inner.workspace;
        let CommandView { commands, safety } = judge_command(&wanted.argv);
        let git = |words: &Vec<String>| {
            words
                .first()
                .is_some_and(|word| word.rsplit('/').next() == Some("git"))
        };
        match safety {
            Safety::ReadOnly if !wanted.env.is_empty() => Safety::Unknown {
                why: "it comes with variables of its own".to_owned(),
            },
            Safety::ReadOnly if !self.at_root(wanted) && commands.iter().any(git) => {
                Safety::Unknown {
                    why: "`git` may run what another folder's repository says".to_owned(),
                }
            }
            Safety::ReadOnly
                if !self.hides_secrets()
                    && may_show_secrets(workspace, &commands, &self.cwd(wanted)) =>
            {
                Safety::Unknown {
                    why: "it may show secrets".to_owned(),
                }
            }
            safety => safety,
        }
    }

    /// Whether somebody allowed this before. A rule is for the workspace's own folder and no variables: elsewhere and
    /// with others the same words may run something else.
    fn has_rule(&self, wanted: &Wanted) -> bool {
        let rules = self
            .inner
            .rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.is_plain(wanted)
            && (covered_by(&wanted.argv, &rules.unconfined)
                || wanted.unconfined.is_none() && covered_by(&wanted.argv, &rules.confined))
    }

    fn is_plain(&self, wanted: &Wanted) -> bool {
        wanted.env.is_empty() && self.at_root(wanted)
    }

    fn at_root(&self, wanted: &Wanted) -> bool {
        self.cwd(wanted) == self.inner.workspace.root()
    }

    fn cwd(&self, wanted: &Wanted) -> PathBuf {
        self.inner
            .workspace
            .absolute(wanted.cwd.as_deref().unwrap_or("."), None)
    }

    /// Whether what is private is not there for commands.
    fn hides_secrets(&self) -> bool {
        self.are_confined() && self.inner.settings.weaker_wall != Some(WeakerWall::Landlock)
    }

    /// The rule a person can make of a command.
    fn rule(&self, wanted: &Wanted) -> Option<Rule> {
        let prefix = prefix_of(&wanted.argv)
            .filter(|_| self.is_plain(wanted) && patch_of(wanted).is_none())?;
        Some(Rule {
            prefix,
            unconfined: wanted.unconfined.is_some(),
        })
    }

    /// What a person is shown, and what "always" would mean.
    pub(crate) fn preview(&self, wanted: &Wanted) -> Preview {
        if let Some(patch) = patch_of(wanted) {
            return apply_patch::preview(&self.inner.workspace, &patch);
        }
        let rule = self.rule(wanted).map(|rule| {
            let outside = if rule.unconfined {
                ", without the sandbox"
            } else {
                ""
            };
            format!("`{} …`{outside}", rule.prefix.join(" "))
        });
        let view = format!("{}{}", shown(&wanted.argv), wanted.circumstances());
        Preview {
            view: Some(View::Commands(view)),
            rule,
        }
    }

    /// What "for this script" covers: commands that begin alike, as for a rule; or patches of the same files.
    pub(crate) fn agreement(&self, wanted: &Wanted) -> Option<String> {
        if let Some(patch) = patch_of(wanted) {
            return apply_patch::agreement(&self.inner.workspace, &patch);
        }
        self.rule(wanted).map(|rule| format!("{rule:?}"))
    }

    /// Remembers that commands which begin like this one need no question.
    pub(crate) fn allow_always(&self, wanted: &Wanted) {
        let Some(rule) = self.rule(wanted) else {
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

    /// What became of a command that is a patch: what it changed, or why it changed nothing. `None` if it is none.
    pub(crate) async fn patched(
        &self,
        wanted: &Wanted,
        call: &Call,
    ) -> Option<Result<String, ToolError>> {
        let Inner {
            workspace,
            turn_diff,
            ..
        } = self.inner.as_ref();
        Some(apply_patch::apply_from_command(workspace, turn_diff, patch_of(wanted)?, call).await)
    }

    /// Starts a command. Blocks for a millisecond or two.
    pub(crate) fn start(&self, wanted: &Wanted, stdio: Stdio) -> Result<Child, ToolError> {
        let inner = &self.inner;
        inner.leaving.forget_gone();
        if wanted.argv.first().is_none_or(String::is_empty) {
            return Err(ToolError::new("there is no program to run")
                .suggest("a command is a program and its arguments: [\"ls\", \"-l\"]"));
        }
        let cwd = self.cwd(wanted);
        if wanted.unconfined.is_none() && self.hides_secrets() && inner.workspace.is_secret(&cwd) {
            let message = format!(
                "cannot start in {}: it is hidden from commands",
                cwd.display()
            );
            return Err(ToolError::new(message)
                .suggest("work in a folder that is not inside SELVEDGE_HOME")
                .suggest("set SELVEDGE_HOME to a folder of its own, such as ~/.selvedge"));
        }
        if self.judge(wanted) != Safety::ReadOnly {
            inner.turn_diff.before_command();
        }
        let support = inner.support.get_or_init(Support::probe);
        let wall = if wanted.unconfined.is_some() {
            Wall::None
        } else {
            self.wall()
        };
        let argv = wanted.argv.iter().map(OsString::from).collect();
        let env = inner.environment.build(&wanted.env);
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
        .map_err(|error| explain(error, wanted))
    }

    /// Commands that have ended and are not quite gone.
    pub(crate) fn leaving(&self) -> &Leaving {
        &self.inner.leaving
    }

    /// Whether commands run behind a wall here.
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

/// A command somebody wants to run.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: Option<String>,
    /// Variables of its own.
    pub(crate) env: BTreeMap<String, String>,
    /// Why it should run without its wall; `None` where it should not.
    pub(crate) unconfined: Option<String>,
}

impl Wanted {
    /// From the arguments of a call, with these words.
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

    pub(crate) fn in_one_line(&self) -> String {
        let words = shown(&self.argv).lines().collect::<Vec<_>>().join(" ");
        selvedge_text::with_ellipsis(&words, 120).into_owned()
    }

    /// Where it runs and with what, where that is not as usual.
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

/// The arguments for `apply_patch`, where a command means that tool.
fn patch_of(wanted: &Wanted) -> Option<Value> {
    patch::of_command(&wanted.argv).map(|patch| json!({"patch": patch, "cwd": wanted.cwd}))
}

fn explain(error: ConfineError, wanted: &Wanted) -> ToolError {
    let mut failure = ToolError::new(error.to_string());
    match error {
        ConfineError::Program { program, error }
            if error.kind() == std::io::ErrorKind::NotFound =>
        {
            failure = ToolError::new(format!("there is no program `{program}`"));
            if program.contains(' ') && wanted.argv.len() == 1 {
                failure = failure.suggest(
                    "give the command as separate words: [\"npm\", \"test\"], or as [\"bash\", \"-c\", \"…\"]",
                );
            }
        }
        ConfineError::WorkingDirectory { error, .. } => {
            failure = ToolError::new(format!(
                "cannot start in {}: {error}",
                wanted.cwd.as_deref().unwrap_or(".")
            ));
        }
        ConfineError::Unprotectable { .. } => {
            failure = failure
                .suggest("make it a folder, or the file that git writes for linked work trees");
        }
        ConfineError::Everything => failure = failure.suggest("-C takes the folder to work in"),
        ConfineError::NotEnforceable { .. } => {
            failure = failure
                .suggest("`selvedge doctor` tells what this machine lacks")
                .suggest(
                    "the setting `weaker_wall` accepts less, `danger-full-access` nothing at all",
                );
        }
        _ => {}
    }
    failure
}
