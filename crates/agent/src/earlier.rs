//! What a run has done, with all it went on from: what the next one need not do again.

use selvedge_journal::{Call, CallState, Journal, JournalError, Run};
use selvedge_protocol::CallStatus;
use selvedge_tools::{CameTo, EarlierCall};

/// Runs one may have gone on from, one after the other.
const LONGEST: usize = 1000;

/// The calls that answer those of a run that goes on from this one.
pub fn earlier_calls(journal: &Journal, run: &Run) -> Result<Vec<EarlierCall>, JournalError> {
    let mut chain = vec![run.clone()];
    while let Some(before) = chain.last().and_then(|run| run.summary.resumes.clone()) {
        if chain.len() > LONGEST {
            break;
        }
        match journal.run(&before) {
            Ok(run) => chain.push(run),
            // It was so long ago that it is forgotten.
            Err(JournalError::NoRun(_)) => break,
            Err(error) => return Err(error),
        }
    }
    // From the first to the last: each has used up some of what was there before, and left some of its own.
    let mut left: Vec<EarlierCall> = Vec::new();
    for run in chain.iter().rev() {
        let changed = run.calls.iter().any(|call| !call.read_only && !call.reused && was_begun(call));
        for call in run.calls.iter().filter(|call| call.reused || is_refused_as_unknown(call)) {
            if let Some(used) = left.iter().position(|before| before.args_digest == call.digest) {
                left.remove(used);
            }
        }
        // What was read before a change is not what is there now.
        left.retain(|before| !(changed && before.read_only));
        left.extend(of_run(run));
    }
    Ok(left)
}

fn of_run(run: &Run) -> Vec<EarlierCall> {
    let mut calls: Vec<EarlierCall> = Vec::new();
    for call in &run.calls {
        let came_to = match (call.state, &call.value) {
            (CallState::Ended(CallStatus::Done), Some(value)) => CameTo::Value(value.clone()),
            (CallState::Ended(CallStatus::OutcomeUnknown), _) => CameTo::Unknown,
            // It was stopped on its way: nobody knows how far it came.
            (CallState::Ended(CallStatus::Aborted), _) if was_begun(call) => CameTo::Unknown,
            _ => continue,
        };
        // A second attempt stands for the first.
        let first = call.id.strip_suffix(".again").map(|id| format!("{}/{id}", run.summary.id));
        let first = first.and_then(|id| calls.iter_mut().find(|call| call.id == id));
        match first {
            Some(first) => first.came_to = came_to,
            None => calls.push(EarlierCall {
                id: format!("{}/{}", run.summary.id, call.id),
                args_digest: call.digest.clone(),
                read_only: call.read_only,
                came_to,
            }),
        }
    }
    calls
}

/// Whether its tool was entered: its arguments were written down before.
fn was_begun(call: &Call) -> bool {
    call.args.is_some()
}

fn is_refused_as_unknown(call: &Call) -> bool {
    call.state == CallState::Ended(CallStatus::OutcomeUnknown) && !was_begun(call)
}
