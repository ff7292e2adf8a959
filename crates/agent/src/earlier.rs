//! What a run has done, with all it went on from: what the next one need not do again.

use std::sync::Arc;

use selvedge_journal::{Call, CallState, Journal, JournalError, Run, RunState};
use selvedge_protocol::CallStatus;
use selvedge_script::Resume;
use selvedge_tools::{
    CameTo, Earlier, EarlierCall, Place, SPAWN, TERMINAL, TYPED, is_named_as_now, same_work,
};
use serde_json::Value;

/// A run that somebody wants to go on from: the last of those that went on from the one that was named, since what
/// they did is not done again either.
#[derive(Debug)]
pub enum EarlierRun {
    /// It is over, and this is what it made.
    Over(Resume),
    /// It goes on.
    Runs(String),
    /// It waits for an answer.
    Waits(String),
}

/// What there is to go on from where this run is named. What ran in another folder is as if it were not there, and ids
/// are whole: nobody finds runs by trying letters.
pub fn earlier_run(
    journal: &Journal,
    id: &str,
    directory: &str,
) -> Result<EarlierRun, JournalError> {
    let mut run = journal.run(id)?;
    if run.summary.id != id || run.summary.directory != directory {
        return Err(JournalError::NoRun(id.to_owned()));
    }
    if let Some(last) = went_on_from(journal, id)?.pop() {
        run = journal.run(&last)?;
    }
    Ok(match run.summary.state {
        RunState::Running => EarlierRun::Runs(run.summary.id),
        RunState::Suspended => EarlierRun::Waits(run.summary.id),
        RunState::Completed | RunState::Failed | RunState::Died => {
            EarlierRun::Over(all_it_made(journal, &run)?)
        }
    })
}

/// What this run made, with all it went on from.
pub fn all_it_made(journal: &Journal, run: &Run) -> Result<Resume, JournalError> {
    let calls = Earlier::new(earlier_calls(journal, run)?);
    Ok(Resume {
        run: run.summary.id.clone(),
        calls: Arc::new(calls),
    })
}

/// The runs that went on from this one, each from the one before it.
pub(crate) fn went_on_from(journal: &Journal, id: &str) -> Result<Vec<String>, JournalError> {
    let mut chain: Vec<String> = Vec::new();
    while let Some(next) = journal.resumed_by(chain.last().map_or(id, String::as_str))? {
        // A file that somebody mended by hand may say anything.
        if next == id || chain.contains(&next) {
            break;
        }
        chain.push(next);
    }
    Ok(chain)
}

/// The calls that answer those of a run that goes on from this one.
fn earlier_calls(journal: &Journal, run: &Run) -> Result<Vec<EarlierCall>, JournalError> {
    let mut chain = vec![run.clone()];
    while let Some(before) = chain.last().and_then(|run| run.summary.resumes.clone()) {
        if chain.iter().any(|run| run.summary.id == before) {
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
    for run in chain.into_iter().rev() {
        road.go_on(&as_it_came_out(journal, run)?);
    }
    // Where nobody knows what a change came to, whoever looks must see what is there now.
    if road
        .left
        .iter()
        .any(|call| call.came_to == CameTo::Unknown && matches!(call.place, Place::Change(_)))
    {
        road.left
            .retain(|call| matches!(call.place, Place::Change(_)));
    }
    Ok(road.left)
}

/// What a chain of runs has left for the next.
#[derive(Default)]
struct Road {
    left: Vec<EarlierCall>,
    /// Changes that were made, or begun.
    changes: usize,
    /// Runs and calls that were recorded.
    runs: usize,
    recorded: usize,
}

impl Road {
    fn go_on(&mut self, run: &Run) {
        let before = self.changes;
        self.runs += 1;
        let mut made: Vec<EarlierCall> = Vec::new();
        for call in &run.calls {
            if call.reused || is_refused_as_unknown(call) {
                // It stays what it was, where it was.
                if let Some(used) = self.used_by(call) {
                    made.push(self.left.remove(used));
                } else if !call.read_only && !made.iter().any(|made| is_the_same_left(made, call)) {
                    // The run that made it is forgotten: what it left is known from here.
                    let came_to = call
                        .value
                        .clone()
                        .filter(|_| call.reused)
                        .map_or(CameTo::Unknown, CameTo::Value);
                    let place = Place::Change(self.changes);
                    made.push(self.record(run, call, place, came_to));
                    self.changes += 1;
                }
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
            let Some(came_to) = came_to(call) else {
                continue;
            };
            let record = self.record(run, call, place, came_to);
            // A second attempt stands for the first. One of a call that was repeated knowingly does not: it may as well
            // have been another, after the first was found done.
            let attempt = record.id.strip_suffix(".again");
            match made
                .iter_mut()
                .find(|first| attempt == Some(first.id.as_str()))
            {
                Some(first) => (first.place, first.came_to) = (record.place, record.came_to),
                None => made.push(record),
            }
        }
        if self.changes > before {
            // What was read before a change, and is not on the road any more, is not what is there now.
            self.left
                .retain(|before| matches!(before.place, Place::Change(_)));
        }
        self.left.append(&mut made);
    }

    /// A call as whoever goes on from its run knows it.
    fn record(&mut self, run: &Run, call: &Call, place: Place, came_to: CameTo) -> EarlierCall {
        self.recorded += 1;
        let task = task_of(call);
        // A task's call is its first.
        let id = match &task {
            Some(task) => format!("{task}/tool_1"),
            None => format!("{}/{}", run.summary.id, call.id),
        };
        let said = said(call).filter(|_| !is_named_as_now(&call.digest));
        let (run, order) = (self.runs, self.recorded);
        EarlierCall {
            id,
            args_digest: call.digest.clone(),
            run,
            order,
            place,
            came_to,
            task,
            said,
        }
    }

    /// Which of what was left before a call was answered from, or told of.
    fn used_by(&self, call: &Call) -> Option<usize> {
        let of = |is: &dyn Fn(&EarlierCall) -> bool| {
            let all = self
                .left
                .iter()
                .enumerate()
                .filter(|(_, before)| is(before));
            all.min_by_key(|(_, before)| before.order).map(|(at, _)| at)
        };
        if let Some(task) = of(&|before| before.task.is_some() && before.task == task_of(call)) {
            return Some(task);
        }
        let came_so = |before: &EarlierCall| (before.came_to != CameTo::Unknown) == call.reused;
        // What another build digested is told by what was said, and what came of it.
        let said_so = |before: &EarlierCall| {
            let same_value = matches!((&before.came_to, &call.value), (CameTo::Value(one), Some(other)) if one == other);
            before.said.is_some() && (before.said == said(call) || same_value || !call.reused)
        };
        of(&|before| came_so(before) && before.args_digest == call.digest)
            .or_else(|| {
                of(&|before| came_so(before) && same_work(&before.args_digest, &call.digest))
            })
            .or_else(|| of(&|before| came_so(before) && said_so(before)))
            // What was cut short is told as of unknown outcome to whoever asks in another manner.
            .or_else(|| {
                of(&|before| {
                    !call.reused
                        && before.args_digest != call.digest
                        && same_work(&before.args_digest, &call.digest)
                })
            })
    }
}

/// The run, each call in the order they began and with what became of it at last: a task is what it came to, and what
/// was left running in a terminal that nobody saw the end of is of unknown outcome.
fn as_it_came_out(journal: &Journal, mut run: Run) -> Result<Run, JournalError> {
    run.calls.sort_by_key(|call| call.began_ns);
    let ended = ended_terminals(&run);
    for call in &mut run.calls {
        match terminal_of(call) {
            Some(terminal) if ended.contains(&terminal) => {}
            Some(_) if call.tool == TERMINAL => {
                call.state = CallState::Ended(CallStatus::OutcomeUnknown)
            }
            // Nobody can type into it any more.
            Some(_) => call.state = CallState::Ended(CallStatus::Failed),
            None if call.tool == SPAWN => come_to_its_end(journal, call)?,
            None => {}
        }
    }
    Ok(run)
}

/// What a task came to, in place of that it was started.
fn come_to_its_end(journal: &Journal, task: &mut Call) -> Result<(), JournalError> {
    let run = match journal.run(&task.id) {
        Ok(run) => run,
        Err(JournalError::NoRun(_)) => {
            // It is forgotten, or did not come to be written down.
            (task.state, task.value) = (CallState::Ended(CallStatus::OutcomeUnknown), None);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if matches!(run.summary.state, RunState::Running | RunState::Suspended) {
        (task.state, task.over_ns) = (CallState::Running, None);
        return Ok(());
    }
    // The last attempt counts.
    match run.calls.into_iter().rfind(was_begun) {
        Some(made) => {
            let open = made.tool == TERMINAL && terminal_of(&made).is_some();
            task.state = if open {
                CallState::Ended(CallStatus::OutcomeUnknown)
            } else {
                made.state
            };
            (task.value, task.read_only, task.over_ns) = (made.value, made.read_only, made.over_ns);
        }
        None => (task.state, task.args) = (CallState::Ended(CallStatus::NotStarted), None),
    }
    Ok(())
}

/// What a task of this folder came to; `None` where there is none, or it failed.
pub fn task_came_to(journal: &Journal, id: &str, directory: &str) -> Option<CameTo> {
    let run = journal
        .run(id)
        .ok()
        .filter(|run| run.summary.id == id && run.summary.directory == directory)?;
    let mut task = run.calls.iter().rfind(|call| was_begun(call))?.clone();
    (task.id, task.tool) = (id.to_owned(), SPAWN.to_owned());
    come_to_its_end(journal, &mut task).ok()?;
    came_to(&task)
}

/// What came of a call, where that is something for another.
fn came_to(call: &Call) -> Option<CameTo> {
    match (call.state, &call.value) {
        (CallState::Running, _) if call.tool == SPAWN => Some(CameTo::GoesOn(call.id.clone())),
        (CallState::Ended(CallStatus::Done), Some(value)) => Some(CameTo::Value(value.clone())),
        (CallState::Ended(CallStatus::OutcomeUnknown), _) => Some(CameTo::Unknown),
        // It was stopped on its way: nobody knows how far it came.
        (CallState::Ended(CallStatus::Aborted), _) if was_begun(call) => Some(CameTo::Unknown),
        _ => None,
    }
}

/// The terminal in which a command went on when its call was over, or that was typed into.
fn terminal_of(call: &Call) -> Option<Value> {
    match call.tool.as_str() {
        TERMINAL => call.value.as_ref()?.get("sessionId").cloned(),
        TYPED => call.args.as_ref()?.get("session_id").cloned(),
        _ => None,
    }
}

/// The calls whose commands were still at work in their terminals when nobody looked at them any more.
pub fn left_at_work(run: &Run) -> Vec<&Call> {
    let ended = ended_terminals(run);
    let left = |call: &&Call| {
        call.tool == TERMINAL && terminal_of(call).is_some_and(|it| !ended.contains(&it))
    };
    run.calls.iter().filter(left).collect()
}

/// The terminals that were followed until their commands were over.
fn ended_terminals(run: &Run) -> Vec<Value> {
    let over = |call: &&Call| {
        call.tool == TYPED
            && call
                .value
                .as_ref()
                .is_some_and(|it| it.get("exitCode").is_some())
    };
    run.calls
        .iter()
        .filter(over)
        .filter_map(terminal_of)
        .collect()
}

/// Tool and arguments of a call, those of the call that a task was.
fn said(call: &Call) -> Option<(String, Value)> {
    let args = call.args.clone()?;
    match (call.tool == SPAWN, args["tool"].as_str()) {
        (true, Some(tool)) => Some((tool.to_owned(), args["args"].clone())),
        _ => Some((call.tool.clone(), args)),
    }
}

fn task_of(call: &Call) -> Option<String> {
    (call.tool == SPAWN).then(|| call.id.clone())
}

/// Whether a change was under way while something was read.
fn overlaps(change: &Call, read: &Call) -> bool {
    let began = |call: &Call| call.began_ns.unwrap_or(i64::MIN);
    let over = |call: &Call| call.over_ns.unwrap_or(i64::MAX);
    let changes = !change.read_only && was_begun(change);
    changes && began(change) < over(read) && over(change) > began(read)
}

/// Whether its tool was entered: its arguments were written down before.
fn was_begun(call: &Call) -> bool {
    call.args.is_some() && !call.reused
}

/// Whether a call that was refused is one that was refused before, or a task one that was told of before.
fn is_the_same_left(made: &EarlierCall, call: &Call) -> bool {
    let same_task = made.task.is_some() && made.task == task_of(call);
    same_task
        || !call.reused
            && made.came_to == CameTo::Unknown
            && same_work(&made.args_digest, &call.digest)
}

fn is_refused_as_unknown(call: &Call) -> bool {
    call.state == CallState::Ended(CallStatus::OutcomeUnknown) && call.args.is_none()
}
