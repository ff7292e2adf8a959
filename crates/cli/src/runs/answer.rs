//! `selvedge runs answer`: answers the approval requests of a suspended run, and restores it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::resume_input_of_run;
use selvedge_journal::{Journal, JournalError, StoredRun, StoredRunState};
use selvedge_mcp::ServerRequestHandlers;
use selvedge_protocol::{ApprovalRequest, ApprovalResponse, CallDecision, GatedCall, LimitSurface};
use selvedge_script::{RestoreInput, ResumeHintStyle, RunOptions};
use selvedge_tools::{Approver, DeferringApprover};
use serde_json::Value;

use crate::CliStatus;
use crate::args::ScriptLimitArgs;
use crate::problem::Problem;
use crate::progress::ProgressDisplay;
use crate::run::{
    RunStorage, SignalTokens, drop_hint_of_denial, print_run_result, run_with_signals, runtime,
    shut_down, terminal_approver,
};
use crate::runs::args::RunsAnswerArgs;
use crate::runs::resume_advice;
use crate::saved_config::SavedRunConfig;
use crate::servers::wait_for_servers;

pub(crate) fn answer(args: &RunsAnswerArgs) -> Result<CliStatus> {
    let run = super::open_user_journal()?.run(&args.run)?;
    require_suspended(&run)?;
    let saved_config = SavedRunConfig::parse(&run.saved_config)?;
    let setup = saved_config.setup(run.summary.directory.clone().into())?;
    let Some(journal) = setup.journal.clone() else {
        return Err(Problem::new("cannot find the home folder")
            .hint("set SELVEDGE_HOME")
            .into());
    };
    let runtime = runtime()?;
    let show = ProgressDisplay::on_stderr(args.json || args.quiet);
    let limits = setup.limits(&ScriptLimitArgs::default());
    let person = terminal_approver(&runtime, &show, &limits);
    let has_person = person.is_some();
    let answer = match (args.approve, args.deny) {
        (true, _) => Some(CallDecision::Once),
        (_, true) => Some(CallDecision::Deny(args.because.clone())),
        _ if person.is_some() => None,
        _ => {
            return Err(
                Problem::new("asking for approval needs an interactive terminal")
                    .hint("pass --approve or --deny")
                    .into(),
            );
        }
    };
    let first = Arc::new(PresetApprover {
        calls: run
            .open_approvals
            .iter()
            .flat_map(|question| question.calls.iter().map(call_identity))
            .collect(),
        answer,
        was_used: AtomicBool::new(false),
        fallback: match &person {
            Some(person) => person.clone(),
            None => Arc::new(DeferringApprover),
        },
    });
    let harness = setup
        .harness(&ScriptLimitArgs::default(), Some(first.clone()))
        // As in a chat, limits are raised in the configuration.
        .with_surface(LimitSurface::Chat)
        .for_one_script();
    let earlier = run.summary.resumes.as_deref();
    let earlier = earlier.map(|earlier| resume_input_of_run(&journal, journal.run(earlier)?));
    let earlier = earlier.transpose()?;
    let id = run.summary.id.clone();
    claim_run(&journal, &id)?;
    let state = journal.read_suspension(&id)?;
    let state = state.ok_or_else(|| already_claimed(&id))?;
    let values = run
        .calls
        .into_iter()
        .filter_map(|call| Some((call.id, call.value?)));
    let values = values.collect();
    let options = RunOptions {
        id: Some(id.clone()),
        resume_hint: ResumeHintStyle::CommandLine { file: None },
        resume: earlier,
        events: show.sink(),
        context: saved_config.script_context(&setup),
        store: setup.script_store(),
        saved_config: run.saved_config,
        ..RunOptions::default()
    };
    let signals = SignalTokens {
        cancel: options.cancel.clone(),
        terminate: options.caller_gone.clone(),
    };
    let suspended = RestoreInput { state, values };
    let servers = setup.servers(ServerRequestHandlers {
        elicitation: person.map(|person| person as _),
        sampling: None,
    })?;
    let tools = setup.built_in_tools()?;
    let script = async {
        let starting = servers.ensure_catalogues_for_script(&harness, run.source.as_bytes());
        wait_for_servers(&servers, starting).await;
        let output = harness
            .with_tools(servers.script_registry(&tools))
            .restore_suspended(&run.source, &suspended, options)
            .await;
        servers.stop().await;
        output
    };
    let output = run_with_signals(&runtime, signals, script);
    shut_down(runtime, &setup, &show);
    let mut output = output.map_err(|error| {
        Problem::new(format!("cannot continue {id}: {error}")).hint(format!(
            "run `selvedge runs cancel {id}`, then `selvedge run FILE --resume {id}`"
        ))
    })?;
    if args.deny || has_person {
        drop_hint_of_denial(&mut output);
    }
    let source = run.source.as_bytes();
    let exit = print_run_result(&output, args.json, RunStorage::Journaled, &id, source)?;
    if first.answer.is_some() && !first.was_used.load(Ordering::Relaxed) {
        eprint_line!(
            "note: the answer was not used: the script did not repeat the approval request"
        );
    }
    setup.flush_journal_and_apply_retention()?;
    Ok(exit)
}

/// Returns what identifies a call that a person was shown: id, tool and arguments.
fn call_identity(call: &GatedCall) -> (String, String, Value) {
    (call.call_id.clone(), call.tool.clone(), call.args.clone())
}

/// Returns an error unless the run is suspended.
pub(super) fn require_suspended(run: &StoredRun) -> Result<(), Problem> {
    let id = &run.summary.id;
    let (state, hint) = match run.summary.state {
        StoredRunState::Suspended => return Ok(()),
        StoredRunState::Running => (
            "is still running",
            format!("run `selvedge runs cancel {id}` to stop it"),
        ),
        StoredRunState::Completed => (
            "has completed",
            format!("run `selvedge runs show {id}` to see its calls"),
        ),
        StoredRunState::Failed | StoredRunState::Died => (
            "has ended",
            resume_advice(run)
                .unwrap_or_else(|| format!("run `selvedge runs show {id}` to see its calls")),
        ),
    };
    Err(Problem::new(format!("{id} is not suspended: it {state}")).hint(hint))
}

/// Makes this process the one that restores or ends a suspended run.
pub(super) fn claim_run(journal: &Journal, id: &str) -> Result<()> {
    journal
        .claim_suspended_run(id)
        .map_err(|error| match error {
            JournalError::ClaimedByOther | JournalError::NotSuspended(_) => {
                already_claimed(id).into()
            }
            other => other.into(),
        })
}

fn already_claimed(id: &str) -> Problem {
    Problem::new(format!("another process has claimed {id}"))
        .hint(format!("run `selvedge runs show {id}` to see its state"))
}

/// Answers the approval requests that the run was suspended with. Passes others to `fallback`.
struct PresetApprover {
    calls: Vec<(String, String, Value)>,
    /// Decision of the command line; `None` asks the person again.
    answer: Option<CallDecision>,
    was_used: AtomicBool,
    fallback: Arc<dyn Approver>,
}

impl Approver for PresetApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        let was_shown = |call: &GatedCall| self.calls.contains(&call_identity(call));
        match &self.answer {
            Some(answer) if request.calls.iter().all(was_shown) => {
                self.was_used.store(true, Ordering::Relaxed);
                let answers = vec![answer.clone(); request.calls.len()];
                std::future::ready(ApprovalResponse::Decided(answers)).boxed()
            }
            _ => self.fallback.ask(request),
        }
    }
}
