//! A script that is told again what it was told: its calls are answered from what is recorded.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use selvedge_protocol::{CallError, CallRecord, CallStatus, ErrorCode, Phase, ScriptError};
use serde_json::json;

use crate::tape::Told;
use crate::traffic::{Pending, Traffic, Wake, call_number};

/// What is known of the calls of a recorded script.
#[derive(Default)]
pub(crate) struct Recorded {
    /// What they returned, as JSON.
    pub(crate) values: HashMap<String, String>,
    /// Their lines in the ledger.
    pub(crate) lines: Vec<CallRecord>,
    /// A call that shall fail this time.
    pub(crate) fail: Option<String>,
    /// Is told of each call.
    pub(crate) watch: Option<Watch>,
    /// Calls of the recording that have answered since the script left its road.
    used: Mutex<HashSet<String>>,
    /// Whether the one that shall fail has failed.
    failed: AtomicBool,
}

/// Looks on while a recorded script is played.
pub type Watch = Box<dyn Fn(&Step<'_>) + Send + Sync>;

/// A call of a recorded script, as it is answered.
#[derive(Debug)]
pub struct Step<'a> {
    /// Which call.
    pub call_id: &'a str,
    /// The tool as the script names it.
    pub tool: &'a str,
    /// What stands between the parentheses, as a JSON array.
    pub args: &'a str,
    /// The value, or the error, in JSON.
    pub answer: Result<&'a str, &'a str>,
}

impl Recorded {
    pub(crate) fn new(
        values: impl Iterator<Item = (String, String)>,
        lines: Vec<CallRecord>,
    ) -> Self {
        Self {
            values: values.collect(),
            lines,
            ..Self::default()
        }
    }
}

impl Recorded {
    /// What to say where a call shall fail and was never answered at all.
    pub(crate) fn unmet(&self) -> Option<ScriptError> {
        let fail = self.fail.as_ref()?;
        let failed = self.failed.load(Ordering::Relaxed);
        (!failed).then(|| {
            diverged(&format!(
                "{fail} was never answered, so it cannot fail either"
            ))
        })
    }
}

impl Traffic<'_> {
    /// What the script is told next.
    pub(crate) fn play(&mut self, recorded: &Recorded) -> Result<Wake, ScriptError> {
        if recorded.fail.as_ref().is_some_and(|_| self.left_the_road) {
            return self.play_on(recorded);
        }
        let told = self.run.head().next();
        if let Some(lost) = self.run.head().lost() {
            return Err(diverged(&lost));
        }
        match told {
            None => Ok(Wake::TapeOver),
            Some(Told::Rang { id }) => {
                self.timers.retain(|(_, timer), ()| *timer != id);
                Ok(Wake::Ring(id))
            }
            Some(Told::Settled { id, call, error }) => {
                let Some(pending) = self.pending.remove(&id) else {
                    return Err(diverged(&format!(
                        "{call} was answered, which the script has not made"
                    )));
                };
                self.answer(recorded, id, pending, &call, error)
            }
            Some(_) => Err(diverged("it waits, and had gone on")),
        }
    }

    /// The script does something else than it did: what it does alike is answered alike.
    fn play_on(&mut self, recorded: &Recorded) -> Result<Wake, ScriptError> {
        let found = {
            let head = self.run.head();
            let mut used = recorded
                .used
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let made: Vec<(&str, &str)> = head
                .tape
                .told
                .iter()
                .filter_map(|told| match told {
                    Told::Made { path, args } => Some((path.as_str(), args.as_str())),
                    _ => None,
                })
                .collect();
            let settled = head.tape.told.iter().filter_map(|told| match told {
                Told::Settled { call, error, .. } => Some((call, error)),
                _ => None,
            });
            let mut open = settled.filter(|(call, _)| !used.contains(*call));
            let found = open.find_map(|(call, error)| {
                let (path, args) = made.get(call_number(call).checked_sub(1)?)?;
                let same = |pending: &Pending| pending.path == *path && pending.args == *args;
                // The one that was made first, as tools take them.
                let alike = self.pending.iter().filter(|(_, pending)| same(pending));
                let (id, _) = alike.min_by_key(|(_, pending)| call_number(&pending.call_id))?;
                Some((*id, call.clone(), error.clone()))
            });
            used.extend(found.iter().map(|(_, call, _)| call.clone()));
            found
        };
        if let Some((id, call, error)) = found
            && let Some(pending) = self.pending.remove(&id)
        {
            return self.answer(recorded, id, pending, &call, error);
        }
        if let Some(((_, id), ())) = self.timers.pop_first() {
            return Ok(Wake::Ring(id));
        }
        let mut left: Vec<&Pending> = self.pending.values().collect();
        left.sort_by_key(|pending| call_number(&pending.call_id));
        Err(match left.first() {
            Some(pending) => diverged(&format!(
                "it goes on to call {} with {}, and nobody recorded what that would come to",
                pending.path,
                crate::outcome::shortened(&pending.args, 200)
            )),
            None => diverged("it waits for something that was not recorded"),
        })
    }

    fn answer(
        &mut self,
        recorded: &Recorded,
        id: u32,
        pending: Pending,
        call: &str,
        error: Option<String>,
    ) -> Result<Wake, ScriptError> {
        let asked_to = |fail: &str| call_number(fail) == call_number(&pending.call_id);
        let fails = recorded.fail.as_deref().is_some_and(asked_to) && !self.left_the_road;
        let answer = match error {
            _ if fails => {
                self.left_the_road = true;
                recorded.failed.store(true, Ordering::Relaxed);
                self.run.head().loosen();
                let mut used = recorded
                    .used
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                // What was settled before has answered already. What this call came to then, it comes to if it is
                // tried again.
                used.extend(self.calls.iter().flatten().map(|line| line.id.clone()));
                Err(json!({
                    "name": "ToolExecutionError", "code": "ToolExecutionError", "toolName": pending.tool,
                    "callId": pending.call_id, "retryable": false, "message": "it is made to fail in this replay",
                    "at": pending.at.map(|at| format!("{}:{}", at.line, at.column)),
                })
                .to_string())
            }
            Some(error) => Err(error),
            None => match recorded.values.get(call) {
                Some(value) => Ok(value.clone()),
                None => return Err(diverged(&format!("what {call} returned was not recorded"))),
            },
        };
        if let Some(watch) = &recorded.watch {
            watch(&Step {
                call_id: &pending.call_id,
                tool: &pending.path,
                args: &pending.args,
                answer: answer.as_deref().map_err(String::as_str),
            });
        }
        match fails {
            true => self.write_down(failed(recorded, &pending)),
            false => self.copy_lines(recorded, call, &pending.call_id),
        }
        if let Ok(value) = &answer {
            self.keep(&pending.call_id, &pending.tool, value);
        }
        Ok(Wake::Settle(id, pending.call_id, answer))
    }

    /// Ends what is left as it ended then, and returns what was pending.
    pub(crate) fn end_as_then(&mut self, recorded: &Recorded) -> Vec<Pending> {
        let mut left: Vec<Pending> = std::mem::take(&mut self.pending).into_values().collect();
        left.sort_by_key(|pending| call_number(&pending.call_id));
        for pending in &left {
            self.copy_lines(recorded, &pending.call_id, &pending.call_id);
        }
        self.run.scope.end();
        left
    }

    fn copy_lines(&mut self, recorded: &Recorded, call: &str, as_call: &str) {
        let number = call_number(call);
        for line in recorded
            .lines
            .iter()
            .filter(|line| call_number(&line.id) == number)
        {
            let id = line.id.replacen(&format!("tool_{number}"), as_call, 1);
            let Some(slot) = self.calls.get_mut(call_number(as_call).saturating_sub(1)) else {
                continue;
            };
            slot.push(CallRecord { id, ..line.clone() });
        }
    }
}

/// The line of a call that is made to fail.
fn failed(recorded: &Recorded, pending: &Pending) -> CallRecord {
    let then = recorded
        .lines
        .iter()
        .find(|line| line.id == pending.call_id);
    let error = CallError {
        code: ErrorCode::ToolExecutionError,
        message: "it is made to fail in this replay".into(),
    };
    CallRecord {
        id: pending.call_id.clone(),
        tool: pending.tool.clone(),
        status: CallStatus::Failed,
        reused: false,
        duration_ms: 0.0,
        args_digest: then
            .map(|line| line.args_digest.clone())
            .unwrap_or_default(),
        line: pending.at.map(|at| at.line),
        error: Some(error),
    }
}

pub(crate) fn diverged(words: &str) -> ScriptError {
    ScriptError::new(
        ErrorCode::ReplayDivergenceError,
        Phase::Executing,
        format!("the replay left what was recorded: {words}"),
    )
    .suggest("the script, the recording or the engine is not the one it was recorded with")
}
