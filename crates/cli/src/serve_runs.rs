//! The runs that clients of the agent server see, with secrets redacted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use selvedge_journal::{CallOverview, Journal, JournalError, Redactor, RunFilter, RunSummary};
use selvedge_server::{HostError, HostedReplay, HostedRun};
use selvedge_tools::summarise_args;
use serde_json::json;

use crate::list_table::first_code_line;
use crate::runs::{replay_for_server, run_json};
use crate::serve_errors::{invalid, journal_failure};

/// Most runs whose overview is kept.
const MAX_KEPT_OVERVIEWS: usize = 1000;

/// Overviews of runs that have ended, by id.
static ENDED_RUNS: Mutex<BTreeMap<String, CallOverview>> = Mutex::new(BTreeMap::new());

/// Returns runs of some workspaces, the newest first, each with the first line of its script
/// (`script`), its first call (`first_call`), the number of commands that failed in it
/// (`failed_commands`) and the name of the error with which it ended (`error`).
pub(crate) async fn list_runs(
    journal: &Arc<Journal>,
    redactor: Redactor,
    workspaces: &[String],
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<HostedRun>, HostError> {
    let filter = RunFilter {
        workspaces: Some(workspaces.to_vec()),
        after: after.map(str::to_owned),
        limit: Some(limit),
        ..RunFilter::default()
    };
    let read = move |journal: &Journal| {
        let view = |run: RunSummary| {
            let mut body = json!(run);
            // A run may expire between the two reads.
            if let Ok(outline) = journal.run_outline(&run.id) {
                body["script"] = json!(first_code_line(&redactor.redact_text(&outline.source)));
                body["error"] = json!(outline.error.map(|code| code.to_string()));
            }
            if let Ok(calls) = call_overview(journal, &run) {
                body["failed_commands"] = json!(calls.failed_commands);
                body["first_call"] = json!(calls.first_call.map(|(tool, args)| {
                    let summary = match args.is_null() {
                        true => String::new(),
                        false => summarise_args(&redactor.redact_value(&args), &[]),
                    };
                    format!("{tool} {summary}").trim_end().to_owned()
                }));
            }
            HostedRun {
                directory: workspace_of_run(journal, &run),
                body,
            }
        };
        let runs = journal.runs(&filter)?;
        Ok::<_, JournalError>(runs.into_iter().map(view).collect())
    };
    let runs = journal.spawn_blocking(read).await;
    runs.map_err(|error| journal_failure(&error))
}

/// Returns what the calls of a run say about it. That of a run that has ended is kept, because it
/// needs the values of all calls.
fn call_overview(journal: &Journal, run: &RunSummary) -> Result<CallOverview, JournalError> {
    let kept = || ENDED_RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kept().get(&run.id) {
        return Ok(known.clone());
    }
    let overview = journal.call_overview(&run.id)?;
    if run.ended_ms.is_some() {
        let mut kept = kept();
        if kept.len() >= MAX_KEPT_OVERVIEWS {
            kept.clear();
        }
        kept.insert(run.id.clone(), overview.clone());
    }
    Ok(overview)
}

/// Returns a run with its calls.
pub(crate) async fn show_run(
    journal: &Arc<Journal>,
    redactor: Redactor,
    id: &str,
) -> Result<HostedRun, HostError> {
    let id = id.to_owned();
    let read = move |journal: &Journal| {
        let run = journal.run(&id)?;
        // A person may shorten an id. Over the API, a short one would tell about other runs.
        if run.summary.id != id {
            return Err(JournalError::RunNotFound(id.clone()));
        }
        Ok::<_, JournalError>(HostedRun {
            directory: workspace_of_run(journal, &run.summary),
            body: run_json(journal, &run, &redactor)?,
        })
    };
    let run = journal.spawn_blocking(read).await;
    run.map_err(|error| journal_failure(&error))
}

/// Returns the folder in which a run ran; that of its session if it ran in the worktree of the
/// session.
fn workspace_of_run(journal: &Journal, run: &RunSummary) -> String {
    let session = journal.session(&run.session).ok();
    let session = session.filter(|session| session.id == run.session && session.worktree);
    session.map_or_else(|| run.directory.clone(), |session| session.directory)
}

/// Replays a run, on a thread that may block.
pub(crate) async fn replay_run(
    journal: &Arc<Journal>,
    redactor: Redactor,
    id: &str,
    failed_call: Option<&str>,
) -> Result<HostedReplay, HostError> {
    let (id, failed_call) = (id.to_owned(), failed_call.map(str::to_owned));
    let read = journal.spawn_blocking(move |journal| journal.run(&id));
    let run = read.await.map_err(|error| journal_failure(&error))?;
    let folder = run.summary.directory.clone();
    let replay = move || replay_for_server(run, failed_call, &redactor);
    let replayed = tokio::task::spawn_blocking(replay).await;
    let replayed = replayed.map_err(HostError::failed)?;
    replayed.map_err(|error| invalid(&error, &folder))
}
