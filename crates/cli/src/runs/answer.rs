//! `selvedge runs answer`: answers the approval requests of a suspended run, and resumes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::resume_from;
use selvedge_journal::{Journal, JournalError, Run, RunState};
use selvedge_mcp::Asked;
use selvedge_protocol::{Answer, ApprovalDecision, ApprovalRequest, GatedCall};
use selvedge_script::{Author, RunOptions, Suspended};
use selvedge_tools::{Approver, AskLater};
use serde_json::Value;

use crate::Exit;
use crate::args::LimitArgs;
use crate::problem::Problem;
use crate::run::{Kept, Signals, conclude, drive, end, person, runtime};
use crate::runs::args::RunsAnswerArgs;
use crate::setting::Setting;
use crate::show::Show;

pub(crate) fn answer(args: &RunsAnswerArgs) -> Result<Exit> {
    let run = super::open()?.run(&args.run)?;
    check(&run)?;
    let setting = Setting::parse(&run.setting)?;
    let setup = setting.setup(run.summary.directory.clone().into())?;
    let Some(journal) = setup.journal.clone() else {
        return Err(Problem::new("cannot find the home folder")
            .hint("set SELVEDGE_HOME")
            .into());
    };
    let runtime = runtime()?;
    let show = Show::on_stderr_unless(args.json || args.quiet);
    let person = person(&runtime, &show);
    let answer = match (args.approve, args.deny) {
        (true, _) => Some(Answer::Once),
        (_, true) => Some(Answer::No(args.because.clone())),
        _ if person.is_some() => None,
        _ => {
            return Err(
                Problem::new("asking for approval needs an interactive terminal")
                    .hint("pass --approve or --deny")
                    .into(),
            );
        }
    };
    let first = Arc::new(Answered {
        calls: run
            .questions
            .iter()
            .flat_map(|question| question.calls.iter().map(asked_for))
            .collect(),
        answer,
        used: AtomicBool::new(false),
        then: match &person {
            Some(person) => person.clone(),
            None => Arc::new(AskLater),
        },
    });
    let harness = setup
        .harness(&LimitArgs::default(), Some(first.clone()))
        .for_one_script();
    let earlier = run.summary.resumes.as_deref();
    let earlier = earlier.map(|earlier| resume_from(&journal, &journal.run(earlier)?));
    let earlier = earlier.transpose()?;
    let id = run.summary.id.clone();
    take_over(&journal, &id)?;
    let state = journal.take_suspension(&id)?;
    let state = state.ok_or_else(|| taken(&id))?;
    let values = run
        .calls
        .into_iter()
        .filter_map(|call| Some((call.id, call.value?)));
    let values = values.collect();
    let options = RunOptions {
        id: Some(id.clone()),
        author: Author::Person,
        resume: earlier,
        events: show.sink(),
        facts: setting.facts(&setup),
        session: setup.kept_in_session(),
        setting: run.setting,
        ..RunOptions::default()
    };
    let signals = Signals {
        cancel: options.cancel.clone(),
        end: options.leave.clone(),
    };
    let suspended = Suspended { state, values };
    let servers = setup.servers(Asked {
        person: person.map(|person| person as _),
        model: None,
    })?;
    let tools = setup.all_tools()?;
    let script = async {
        servers.prepare_for(&harness, run.source.as_bytes()).await;
        let output = harness
            .with_tools(servers.onto(&tools))
            .resume(&run.source, &suspended, options)
            .await;
        servers.stop().await;
        output
    };
    let output = drive(&runtime, signals, script);
    end(runtime, &setup, &show);
    let output = output.map_err(|error| {
        Problem::new(format!("cannot resume {id}: {error}")).hint(format!(
            "run `selvedge run FILE --resume {id}` to reuse the results of its completed calls"
        ))
    })?;
    let source = run.source.as_bytes();
    let exit = conclude(&output, args.json, Kept::InTheJournal, &id, source)?;
    if first.answer.is_some() && !first.used.load(Ordering::Relaxed) {
        tell!("note: the answer was not used: the script did not repeat the approval request");
    }
    setup.close_journal()?;
    Ok(exit)
}

/// Returns what identifies a call that a person was shown: id, tool and arguments.
fn asked_for(call: &GatedCall) -> (String, String, Value) {
    (call.call_id.clone(), call.tool.clone(), call.args.clone())
}

/// Returns an error unless the run is suspended.
pub(super) fn check(run: &Run) -> Result<(), Problem> {
    let id = &run.summary.id;
    let (state, hint) = match run.summary.state {
        RunState::Suspended => return Ok(()),
        RunState::Running => (
            "is still running",
            format!("run `selvedge runs cancel {id}` to stop it"),
        ),
        RunState::Completed => (
            "has completed",
            format!("run `selvedge runs show {id}` to see its calls"),
        ),
        RunState::Failed | RunState::Died => (
            "has ended",
            format!(
                "run `selvedge run FILE --resume {id}` to reuse the results of its completed calls"
            ),
        ),
    };
    Err(Problem::new(format!("{id} is not suspended: it {state}")).hint(hint))
}

/// Makes this process the one that resumes or ends a suspended run.
pub(super) fn take_over(journal: &Journal, id: &str) -> Result<()> {
    journal.take_over(id).map_err(|error| match error {
        JournalError::TakenOver | JournalError::NotSuspended(_) => taken(id).into(),
        other => other.into(),
    })
}

fn taken(id: &str) -> Problem {
    Problem::new(format!("another process has resumed {id}"))
        .hint(format!("run `selvedge runs show {id}` to see its state"))
}

/// Answers the approval requests that the run was suspended with. Passes others to `then`.
struct Answered {
    calls: Vec<(String, String, Value)>,
    /// Decision of the command line; `None` asks the person again.
    answer: Option<Answer>,
    used: AtomicBool,
    then: Arc<dyn Approver>,
}

impl Approver for Answered {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        let was_shown = |call: &GatedCall| self.calls.contains(&asked_for(call));
        match &self.answer {
            Some(answer) if request.calls.iter().all(was_shown) => {
                self.used.store(true, Ordering::Relaxed);
                let answers = vec![answer.clone(); request.calls.len()];
                std::future::ready(ApprovalDecision::Answered(answers)).boxed()
            }
            _ => self.then.ask(request),
        }
    }
}
