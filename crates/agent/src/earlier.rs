//! What a run has done, with all it went on from: what the next one need not do again.

use selvedge_journal::{Call, CallState, Journal, JournalError, Run};
use selvedge_protocol::CallStatus;
use selvedge_tools::{CameTo, EarlierCall, Place};

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
    let mut road = Road::default();
    for run in chain.iter().rev() {
        road.go_on(run);
    }
    // Where nobody knows what a change came to, whoever looks must see what is there now.
    if road.left.iter().any(|call| call.came_to == CameTo::Unknown && matches!(call.place, Place::Change(_))) {
        road.left.retain(|call| matches!(call.place, Place::Change(_)));
    }
    Ok(road.left)
}

/// What a chain of runs has left for the next.
#[derive(Default)]
struct Road {
    left: Vec<EarlierCall>,
    /// Changes that were made, or begun.
    changes: usize,
}

impl Road {
    fn go_on(&mut self, run: &Run) {
        let before = self.changes;
        let mut made: Vec<EarlierCall> = Vec::new();
        let mut refused: Vec<String> = Vec::new();
        for call in &run.calls {
            if call.reused || is_refused_as_unknown(call) {
                // It stays what it was, where it was.
                if let Some(used) = self.left.iter().position(|before| before.args_digest == call.digest) {
                    made.push(self.left.remove(used));
                }
                refused.extend((!call.reused).then(|| call.digest.clone()));
                continue;
            }
            let place = match call.read_only {
                true => Place::ReadAfter(self.changes),
                false => Place::Change(self.changes),
            };
            // Whether it failed or not, it may have changed something.
            self.changes += usize::from(!call.read_only && was_begun(call));
            // What was read beside a change is neither what was before it nor what is behind it.
            if call.read_only && run.calls.iter().any(|change| overlaps(change, call)) {
                continue;
            }
            let came_to = match (call.state, &call.value) {
                (CallState::Ended(CallStatus::Done), Some(value)) => CameTo::Value(value.clone()),
                (CallState::Ended(CallStatus::OutcomeUnknown), _) => CameTo::Unknown,
                // It was stopped on its way: nobody knows how far it came.
                (CallState::Ended(CallStatus::Aborted), _) if was_begun(call) => CameTo::Unknown,
                _ => continue,
            };
            let id = format!("{}/{}", run.summary.id, call.id);
            // A second attempt stands for the first; so does one of a call that was repeated knowingly.
            let attempt = id.strip_suffix(".again").map(str::to_owned);
            let knowingly = refused.contains(&call.digest);
            let first = made.iter_mut().find(|first| {
                attempt.as_ref() == Some(&first.id)
                    || knowingly && first.args_digest == call.digest && first.came_to == CameTo::Unknown
            });
            match first {
                Some(first) => (first.place, first.came_to) = (place, came_to),
                None => made.push(EarlierCall { id, args_digest: call.digest.clone(), place, came_to }),
            }
        }
        if self.changes > before {
            // What was read before a change, and is not on the road any more, is not what is there now.
            self.left.retain(|before| matches!(before.place, Place::Change(_)));
        }
        self.left.append(&mut made);
    }
}

/// Whether a change was under way while something was read.
fn overlaps(change: &Call, read: &Call) -> bool {
    let end = |call: &Call| call.started_ms as f64 + call.duration_ms.unwrap_or(f64::INFINITY);
    let changes = !change.read_only && was_begun(change);
    changes && (change.started_ms as f64) < end(read) && end(change) > read.started_ms as f64
}

/// Whether its tool was entered: its arguments were written down before.
fn was_begun(call: &Call) -> bool {
    call.args.is_some() && !call.reused
}

fn is_refused_as_unknown(call: &Call) -> bool {
    call.state == CallState::Ended(CallStatus::OutcomeUnknown) && call.args.is_none()
}
