//! What all commands have in common: the wall they run behind, their environment, what may run unasked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use selvedge_confine::{Child, Command, ConfineError, Confinement, Network, Rlimits, Stdio, Support, Wall, WeakerWall};
use selvedge_protocol::{SandboxPolicy, View};
use selvedge_tools::{Risk, ToolError};
use serde_json::{Value, json};

use crate::ending::Leaving;
use crate::environment::{Environment, EnvironmentPolicy};
use crate::judge::{CommandView, Safety, covered_by, judge_command, prefix_of, shown};
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
}

/// What can be said about commands.
#[derive(Default)]
pub struct CommandSettings {
    /// Which variables they get.
    pub environment: EnvironmentPolicy,
    /// Whether they reach the network although confined.
    pub network: bool,
    /// A weaker wall that will do where the whole one cannot be built.
    pub weaker_wall: Option<WeakerWall>,
    /// How much they may use.
    pub limits: Rlimits,
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
        let support = settings.support.take().map_or_else(OnceLock::new, OnceLock::from);
        let (workspace, turn_diff) = (workspace.clone(), turn_diff.clone());
        let environment = Environment::new(std::mem::take(&mut settings.environment));
        Self {
            inner: Arc::new(Inner {
                workspace,
                turn_diff,
                settings,
                rules,
                support,
                environment,
                leaving: Leaving::default(),
            }),
        }
    }

    /// What a command risks in a folder. `unconfined` is one that asks to run without its wall, and why.
    pub(crate) fn risk(&self, argv: &[String], cwd: Option<&str>, unconfined: Option<&str>) -> Risk {
        let what = shown(argv).lines().next().unwrap_or_default().chars().take(120).collect::<String>();
        let safety = self.judge(argv, cwd);
        if let Safety::Dangerous { why } = safety {
            return Risk::Ask { reason: format!("`{what}` {why}") };
        }
        let rules = self.inner.rules.lock().unwrap_or_else(PoisonError::into_inner);
        match unconfined {
            Some(_) if covered_by(argv, &rules.unconfined) => Risk::Harmless,
            Some("") => Risk::Ask { reason: format!("`{what}` wants to run without the sandbox") },
            Some(why) => Risk::Ask { reason: format!("`{what}` wants to run without the sandbox: {why}") },
            None if safety == Safety::ReadOnly => Risk::Harmless,
            None if covered_by(argv, &rules.confined) || covered_by(argv, &rules.unconfined) => Risk::Harmless,
            None => Risk::Guarded { reason: format!("runs `{what}`") },
        }
    }

    /// The judgement of the words, with what the folder adds to it: a repository elsewhere in the workspace may have
    /// been written by anybody, and names programs that even `git status` runs.
    fn judge(&self, argv: &[String], cwd: Option<&str>) -> Safety {
        let CommandView { commands, safety } = judge_command(argv);
        let at_root = self.inner.workspace.absolute(cwd.unwrap_or("."), None) == self.inner.workspace.root();
        let git = |words: &Vec<String>| words.first().is_some_and(|word| word.rsplit('/').next() == Some("git"));
        match safety {
            Safety::ReadOnly if !at_root && commands.iter().any(git) => {
                Safety::Unknown { why: "`git` may run what another folder's repository says".to_owned() }
            }
            safety => safety,
        }
    }

    /// What a person is shown, and what "always" would mean.
    pub(crate) fn preview(&self, argv: &[String]) -> selvedge_protocol::Preview {
        let rule = prefix_of(argv).map(|prefix| format!("`{} …`", prefix.join(" ")));
        selvedge_protocol::Preview { view: Some(View::Commands(shown(argv))), rule }
    }

    /// Remembers that commands which begin like this one need no question.
    pub(crate) fn allow_always(&self, argv: &[String], unconfined: bool) {
        let Some(prefix) = prefix_of(argv) else { return };
        let rule = Rule { prefix, unconfined };
        let mut rules = self.inner.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let list = if unconfined { &mut rules.unconfined } else { &mut rules.confined };
        if !list.contains(&rule.prefix) {
            list.push(rule.prefix.clone());
            if let Some(save) = &self.inner.settings.save_rule {
                save(&rule);
            }
        }
    }

    /// Starts a command. Blocks for a millisecond or two.
    pub(crate) fn start(&self, start: Start, stdio: Stdio) -> Result<Child, ToolError> {
        let inner = &self.inner;
        inner.leaving.forget_gone();
        let cwd = inner.workspace.absolute(start.cwd.as_deref().unwrap_or("."), None);
        if self.judge(&start.argv, start.cwd.as_deref()) != Safety::ReadOnly {
            inner.turn_diff.before_command();
        }
        let support = inner.support.get_or_init(Support::probe);
        let wall = if start.unconfined { Wall::None } else { self.wall() };
        let argv = start.argv.iter().map(OsString::from).collect();
        let env = inner.environment.build(&start.env);
        selvedge_confine::spawn(Command { argv, cwd, env, stdio }, &wall, support)
            .map_err(|error| explain(error, &start))
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
        let Inner { workspace, settings, .. } = self.inner.as_ref();
        if !self.are_confined() {
            return Wall::None;
        }
        let network = if settings.network { Network::On } else { Network::Off };
        Wall::Confined(Confinement {
            writable: workspace.writable_roots().map(Path::to_owned).collect(),
            protected: workspace.protected(),
            hidden: workspace.secrets().map(Path::to_owned).collect(),
            network,
            limits: settings.limits.clone(),
            weaker: settings.weaker_wall,
        })
    }
}

/// A command to start.
pub(crate) struct Start {
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) unconfined: bool,
}

fn explain(error: ConfineError, start: &Start) -> ToolError {
    let mut failure = ToolError::new(error.to_string());
    match error {
        ConfineError::Program { program, error } if error.kind() == std::io::ErrorKind::NotFound => {
            failure = ToolError::new(format!("there is no program `{program}`"));
            if program.contains(' ') && start.argv.len() == 1 {
                failure = failure.suggest(
                    "give the command as separate words: [\"npm\", \"test\"], or as [\"bash\", \"-c\", \"…\"]",
                );
            }
        }
        ConfineError::WorkingDirectory { error, .. } => {
            failure = ToolError::new(format!("cannot start in {}: {error}", start.cwd.as_deref().unwrap_or(".")));
        }
        ConfineError::NotEnforceable { .. } => {
            failure = failure
                .suggest("`selvedge doctor` tells what this machine lacks")
                .suggest("the setting `weaker_wall = \"landlock\"` accepts less, `danger-full-access` nothing at all");
        }
        _ => {}
    }
    failure
}

/// The words of an argument that holds a command.
pub(crate) fn argv_of(args: &Value) -> Vec<String> {
    let words = args["command"].as_array().into_iter().flatten();
    words.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Why a call wants to run without its wall; `None` where it does not.
pub(crate) fn escalation(args: &Value) -> Option<&str> {
    (args["with_escalated_permissions"] == json!(true)).then(|| args["justification"].as_str().unwrap_or_default())
}
