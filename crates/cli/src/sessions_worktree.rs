//! `selvedge sessions diff`, `apply` and `discard`: the changes of a session, mostly in its git
//! worktree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use selvedge_agent::{TurnActivity, claim_between_turns};
use selvedge_journal::{Journal, SessionSummary};
use selvedge_protocol::SessionError;
use selvedge_server::HostedDiff;
use selvedge_toolbox::{
    OtherWorkspaces, SessionWorktree, WorkspacePaths, WorktreeError, WorktreeRules, changes_diff,
    is_reverted, remove_session_worktree, worktrees_folder,
};
use serde_json::json;

use crate::CliStatus;
use crate::args::WorkspaceArgs;
use crate::output::{print_json, print_line, print_text};
use crate::problem::Problem;
use crate::run::runtime;
use crate::sessions::session_problem;
use crate::sessions_args::{SessionsApplyArgs, SessionsDiffArgs, SessionsDiscardArgs};
use crate::sessions_send::store_problem;
use crate::sessions_stop::recorded_changes;
use crate::setup::{load_configuration, workspace_paths};
use crate::trust::TrustQuestion;

pub(crate) fn diff(journal: &Arc<Journal>, args: &SessionsDiffArgs) -> Result<CliStatus> {
    let diff = session_diff(journal, &args.session, args.turn)?.diff;
    match diff.is_empty() {
        true => eprint_line!("note: the session has changed no file"),
        false => print_text(diff.trim_end_matches('\n'))?,
    }
    Ok(CliStatus::Success)
}

/// Returns what a session changed in its worktree, or what one turn of it changed. A session
/// without a worktree shows its last turn that changed files. Blocks.
pub(crate) fn session_diff(
    journal: &Arc<Journal>,
    named: &str,
    turn: Option<u32>,
) -> Result<HostedDiff> {
    let session = journal.session(named);
    let session = session.map_err(|error| session_problem(&error))?;
    if session.worktree && turn.is_none() {
        let (info, worktree) = find(journal, &session.id)?;
        let diff = worktree.diff(&session_rules(&info)?);
        let diff = diff.map_err(|error| worktree_problem(&error))?;
        return Ok(HostedDiff {
            diff,
            turn: None,
            undone: false,
        });
    }
    Ok(match recorded_changes(journal, &session.id, turn)? {
        None => HostedDiff::default(),
        Some((turn, changes)) => HostedDiff {
            diff: changes_diff(&changes),
            turn: Some(turn),
            // A file that cannot be read is not as it was.
            undone: is_reverted(&changes).unwrap_or(false),
        },
    })
}

pub(crate) fn apply(journal: &Arc<Journal>, args: &SessionsApplyArgs) -> Result<CliStatus> {
    let session = journal.session(&args.session);
    let session = session.map_err(|error| session_problem(&error))?.id;
    refuse_running_turn(journal, &session)?;
    let paths = apply_changes(journal, &session)?;
    if args.json {
        return print_json(&json!({"changed": paths}));
    }
    for path in &paths {
        print_line(path)?;
    }
    if paths.is_empty() {
        eprint_line!("note: there is nothing to apply");
    }
    Ok(CliStatus::Success)
}

/// Merges what a session changed in its worktree into its folder, and returns the changed files.
/// The caller has claimed the session. Blocks.
pub(crate) fn apply_changes(journal: &Arc<Journal>, session: &str) -> Result<Vec<String>> {
    let (info, worktree) = find(journal, session)?;
    let changed = worktree.apply(&session_rules(&info)?).map_err(|error| {
        let problem = Problem::new(error.to_string());
        match &error {
            WorktreeError::Conflict(_) => {
                let (folder, branch) = (worktree.working_folder(), worktree.branch());
                let folder = folder.display();
                problem.hint(format!(
                    "commit your changes and merge with git: git -C {folder} add -A && git -C \
                     {folder} commit -m Changes && git merge {branch}"
                ))
            }
            _ => worktree_problem(&error),
        }
    })?;
    let paths = changed.iter().map(|path| path.display().to_string());
    Ok(paths.collect())
}

/// Returns what the configuration allows in the folder of a session.
pub(crate) fn session_rules(session: &SessionSummary) -> Result<WorktreeRules> {
    let configuration = load_configuration(&WorkspaceArgs {
        directory: Some(session.directory.clone().into()),
        trust_question: TrustQuestion::Never,
        ..WorkspaceArgs::default()
    })?;
    let config = configuration.config;
    let environment = session.environment.as_deref();
    let environment = environment.and_then(|name| config.environments.get(name));
    let policy = environment.and_then(|environment| environment.sandbox_mode);
    Ok(WorktreeRules {
        // Changes are merged into the folder itself, which may be one of the served ones.
        paths: WorkspacePaths {
            other_workspaces: OtherWorkspaces::default(),
            ..workspace_paths(&config)
        },
        policy: policy.unwrap_or(config.sandbox_mode),
        accepted_weaker: config.weaker_confinement,
    })
}

/// Deletes the worktree of a session with its changes. The caller has claimed the session. Blocks.
pub(crate) fn discard_changes(journal: &Arc<Journal>, session: &str) -> Result<()> {
    let (_, worktree) = find(journal, session)?;
    let discarded = worktree.discard();
    Ok(discarded.map_err(|error| worktree_problem(&error))?)
}

pub(crate) fn discard(journal: &Arc<Journal>, args: &SessionsDiscardArgs) -> Result<CliStatus> {
    let (session, worktree) = find(journal, &args.session)?;
    if !args.yes {
        let question = format!(
            "Delete the worktree {} with all changes of {}?\n",
            worktree.working_folder().display(),
            session.id
        );
        match crate::ask::confirm(&question, "Delete them", "Keep them") {
            Some(true) => {}
            Some(false) => return Ok(CliStatus::Failed),
            None => {
                let problem = Problem::new("cannot ask whether to delete the changes");
                return Err(problem
                    .hint(format!("run `selvedge sessions discard {} -y`", session.id))
                    .into());
            }
        }
    }
    refuse_running_turn(journal, &session.id)?;
    discard_changes(journal, &session.id)?;
    Ok(CliStatus::Success)
}

/// Creates the worktree of a session unless it exists, and returns the folder to work in. Blocks.
pub(crate) fn prepare_worktree(session: &str, directory: &Path) -> Result<PathBuf, Problem> {
    let prepare = |root: &Path| {
        let worktree = SessionWorktree::find(root, session, directory)?;
        worktree.create_if_missing()?;
        let folder = worktree.working_folder();
        Ok(folder.canonicalize().unwrap_or(folder))
    };
    prepare(&worktrees()?).map_err(|error: WorktreeError| worktree_problem(&error))
}

/// Removes the worktrees of sessions that were forgotten.
pub(crate) fn remove_worktrees<'a>(sessions: impl Iterator<Item = &'a String>) -> Result<()> {
    let worktrees = worktrees()?;
    for session in sessions {
        let removed = remove_session_worktree(&worktrees, session);
        removed.map_err(|error| worktree_problem(&error))?;
    }
    Ok(())
}

/// Fails if a session works in a worktree of its own and `directory` is not in it.
pub(crate) fn refuse_other_folder(
    session: &SessionSummary,
    directory: &Path,
) -> Result<(), Problem> {
    let folder = worktrees()?.join(&session.id);
    let real = folder.canonicalize().unwrap_or_else(|_| folder.clone());
    if !session.worktree || directory.starts_with(&real) {
        return Ok(());
    }
    let id = &session.id;
    let problem = Problem::new(format!("session {id} works in a worktree of its own"));
    Err(problem.hint(match folder.exists() {
        true => format!("pass -C {}", folder.display()),
        false => format!("run `selvedge sessions send {id} MESSAGE --wait`"),
    }))
}

fn worktrees() -> Result<PathBuf, Problem> {
    let home = selvedge_config::home();
    let home = home.ok_or_else(|| {
        Problem::new("cannot find the home folder").hint("set SELVEDGE_HOME to a folder")
    })?;
    Ok(worktrees_folder(&home))
}

fn find(journal: &Journal, named: &str) -> Result<(SessionSummary, SessionWorktree)> {
    let session = journal.session(named);
    let session = session.map_err(|error| session_problem(&error))?;
    if !session.worktree {
        let problem = Problem::new(format!("session {} has no worktree", session.id));
        return Err(problem
            .hint("create sessions with `worktree: true`, or run `git diff` in their folder")
            .into());
    }
    let directory = Path::new(&session.directory);
    let worktree = SessionWorktree::find(&worktrees()?, &session.id, directory);
    let worktree = worktree.map_err(|error| worktree_problem(&error))?;
    Ok((session, worktree))
}

/// Claims a session, so that no turn begins until this process ends. Fails if one runs.
pub(crate) fn refuse_running_turn(journal: &Arc<Journal>, session: &str) -> Result<()> {
    match claim_for_changes(journal, session)? {
        Ok(TurnActivity::Idle) => Ok(()),
        Ok(TurnActivity::Running) => {
            let problem = Problem::new(format!(
                "a turn or a script of session {session} is running"
            ));
            let hint = format!("wait for it, or run `selvedge sessions stop {session}`");
            Err(problem.hint(hint).into())
        }
        Err(error) => Err(store_problem(&error).into()),
    }
}

/// Claims a session with a journal handle that nothing else uses, so that no turn begins until the
/// handle is closed. A script that resumed a run of the session counts as a turn. Blocks.
pub(crate) fn claim_for_changes(
    journal: &Arc<Journal>,
    session: &str,
) -> Result<Result<TurnActivity, SessionError>> {
    let activity = runtime()?.block_on(claim_between_turns(journal, session));
    match journal.open_scripts(session)?.is_empty() {
        true => Ok(activity),
        false => Ok(activity.map(|_| TurnActivity::Running)),
    }
}

fn worktree_problem(error: &WorktreeError) -> Problem {
    let problem = Problem::new(error.to_string());
    match error.hint() {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}
