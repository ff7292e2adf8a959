//! `selvedge runs resume`: goes on with a run that waits for an answer.

use std::sync::Arc;

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::{Run, RunState};
use selvedge_protocol::{Answer, ApprovalDecision, ApprovalRequest, Claim, Ledger};
use selvedge_script::{RunOptions, Suspended};
use selvedge_tools::{Approver, AskLater};

use crate::Exit;
use crate::args::RunsResumeArgs;
use crate::ask::AtTheTerminal;
use crate::problem::Problem;
use crate::run::{Signals, conclude, drive, runtime};
use crate::runs::problem;
use crate::setting::Setting;
use crate::show::Show;

pub(crate) fn resume(args: &RunsResumeArgs) -> Result<Exit> {
    let run = super::open()?.run(&args.run).map_err(|error| problem(&error))?;
    check(&run)?;
    let setting = Setting::parse(&run.setting, &run.summary.directory)?;
    let setup = setting.setup()?;
    let Some(journal) = setup.journal.clone() else {
        return Err(Problem::new("nothing is written down here").hint("set SELVEDGE_HOME").into());
    };
    let runtime = runtime()?;
    let show = if args.quiet || args.json { Show::nothing() } else { Show::on_stderr() };
    let person = {
        let _inside = runtime.enter();
        AtTheTerminal::new(show.clone()).map(|person| Arc::new(person) as Arc<dyn Approver>)
    };
    let answer = match (args.approve, args.deny) {
        (true, _) => Some(Answer::Once),
        (_, true) => Some(Answer::No(args.because.clone())),
        _ if person.is_some() => None,
        _ => {
            return Err(Problem::new("there is no terminal to ask at").hint("say --approve or --deny").into());
        }
    };
    let first = Answered {
        calls: run
            .questions
            .iter()
            .flat_map(|question| question.calls.iter().map(|call| call.call_id.clone()))
            .collect(),
        answer,
        then: person.unwrap_or_else(|| Arc::new(AskLater)),
    };
    let harness = setup.harness(&setting.limits(), Some(Arc::new(first)))?;
    let earlier = run.summary.resumes.as_deref().map(|earlier| setup.resume(earlier)).transpose()?;
    let id = run.summary.id.clone();
    if journal.claim(&id).map_err(|error| Problem::new(error.to_string()))? == Claim::Elsewhere {
        return Err(taken(&id).into());
    }
    let Some(state) = journal.take_suspension(&id).map_err(|error| problem(&error))? else {
        return Err(taken(&id).into());
    };
    let values = run.calls.into_iter().filter_map(|call| Some((call.id, call.value?))).collect();
    let options = RunOptions {
        id: Some(id.clone()),
        resume: earlier,
        events: show.sink(),
        facts: setting.facts(&setup),
        session: setup.session(&setting.session)?,
        setting: run.setting,
        ..RunOptions::default()
    };
    let signals = Signals { cancel: options.cancel.clone(), end: options.leave.clone() };
    let suspended = Suspended { state, values };
    let output = drive(&runtime, signals, harness.go_on(&run.source, &suspended, options));
    runtime.shutdown_background();
    show.finish();
    let output = output.map_err(|words| {
        Problem::new(format!("{id} cannot go on from where it was: {words}"))
            .hint(format!("`selvedge run FILE --resume {id}` goes on from what it did"))
    })?;
    conclude(&output, args.json, &id, run.source.as_bytes())
}

/// Only a run that waits can be gone on with.
fn check(run: &Run) -> Result<(), Problem> {
    let id = &run.summary.id;
    let (words, hint) = match run.summary.state {
        RunState::Suspended => return Ok(()),
        RunState::Running => ("still runs", "wait for its end, or stop it".to_owned()),
        RunState::Completed => ("is done", format!("`selvedge runs show {id}` shows what it did")),
        RunState::Failed | RunState::Died => {
            ("has ended", format!("`selvedge run FILE --resume {id}` goes on: what is done is not done again"))
        }
    };
    Err(Problem::new(format!("{id} {words}: it does not wait for an answer")).hint(hint))
}

fn taken(id: &str) -> Problem {
    Problem::new(format!("another process goes on with {id}")).hint(format!("`selvedge runs show {id}` shows how far"))
}

/// Answers the question the run was put away with, and hands on every other.
struct Answered {
    calls: Vec<String>,
    /// `None` asks the person again.
    answer: Option<Answer>,
    then: Arc<dyn Approver>,
}

impl Approver for Answered {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        let same = request.calls.iter().all(|call| self.calls.contains(&call.call_id));
        match &self.answer {
            Some(answer) if same => {
                std::future::ready(ApprovalDecision::Answered(vec![answer.clone(); request.calls.len()])).boxed()
            }
            _ => self.then.ask(request),
        }
    }
}
