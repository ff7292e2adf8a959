//! Answers from an earlier run: what is done is not done again.
//!
//! A script that goes on from an earlier run is told again what that run was told, as long as it walks the same road:
//! a change that was made answers wherever it is asked for again, and what was read answers only where the same
//! changes, and no others, stand before it. Everything else is done now.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The calls of an earlier run, each of which answers one call at most.
#[derive(Debug, Default)]
pub struct Earlier(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    /// By tool and arguments, in the order they were made.
    calls: HashMap<String, Vec<EarlierCall>>,
    /// How many changes have answered, and the last of them.
    answered: usize,
    last: Option<usize>,
    spent: Spent,
}

/// What of an earlier run has answered already.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    calls: Vec<String>,
    /// Whether something was changed since, or may have been: then what was read before may be stale.
    changed: bool,
    /// Calls nobody knows the end of, by tool and arguments, that the script has asked for since it last looked at
    /// anything: whoever asks again without looking would repeat them blindly.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    blindly: BTreeMap<String, String>,
    /// The same, once the script has looked: whoever asks now knows what it does.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    knowingly: BTreeMap<String, String>,
}

/// A call of an earlier run.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlierCall {
    /// Its id there.
    pub id: String,
    /// Digest of tool and arguments.
    pub args_digest: String,
    /// Where it stands among the changes that were made.
    pub place: Place,
    /// What came of it.
    pub came_to: CameTo,
}

/// Where a call stands among the changes that were made, from the first on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is the change of this number, from zero.
    Change(usize),
    /// It left the world as it was, after so many changes.
    ReadAfter(usize),
}

/// What came of a call that may answer another.
#[derive(Debug, Clone, PartialEq)]
pub enum CameTo {
    /// It returned this.
    Value(Value),
    /// It was started, and nobody knows how it ended.
    Unknown,
}

/// What the earlier run knows of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Known {
    /// Its result.
    Value(Value),
    /// It was started there as this call, and nobody knows how it ended.
    Unknown(String),
    /// Nothing that counts.
    Nothing,
    /// It was started there as this call, and the script, which was told so, looked and asks for it again.
    Again(String),
}

impl Earlier {
    /// The calls of a run, in the order they were made.
    pub fn new(calls: impl IntoIterator<Item = EarlierCall>) -> Self {
        let mut by_digest: HashMap<String, Vec<EarlierCall>> = HashMap::new();
        for call in calls {
            by_digest.entry(call.args_digest.clone()).or_default().push(call);
        }
        Self(Mutex::new(Left { calls: by_digest, ..Left::default() }))
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has answered so far.
    pub(crate) fn spent(&self) -> Spent {
        self.left().spent.clone()
    }

    /// As if these had answered.
    pub(crate) fn spend(&self, spent: &Spent) {
        let mut left = self.left();
        let mut gone = Vec::new();
        left.calls.values_mut().for_each(|calls| {
            gone.extend(calls.extract_if(.., |call| spent.calls.contains(&call.id)));
        });
        gone.iter().for_each(|call| left.count(call));
        left.spent = spent.clone();
    }

    /// What is known of a call; a recorded call answers once.
    pub(crate) fn answer(&self, args_digest: &str, read_only: bool) -> Known {
        let mut left = self.left();
        if let Some(id) = left.spent.blindly.get(args_digest) {
            return Known::Unknown(id.clone());
        }
        if let Some(id) = left.spent.knowingly.remove(args_digest) {
            return Known::Again(id);
        }
        let found = left.take(args_digest);
        left.spent.calls.extend(found.iter().map(|call| call.id.clone()));
        found.iter().for_each(|call| left.count(call));
        match found {
            Some(EarlierCall { came_to: CameTo::Value(value), .. }) => return Known::Value(value),
            Some(EarlierCall { came_to: CameTo::Unknown, id, place: Place::Change(_), .. }) => {
                // It may have changed anything: whoever checks must see what is there now.
                left.spent.changed = true;
                left.spent.blindly.insert(args_digest.to_owned(), id.clone());
                return Known::Unknown(id);
            }
            // A read that nobody saw the end of can be done again.
            Some(_) | None => {}
        }
        match read_only {
            true => {
                let looked = std::mem::take(&mut left.spent.blindly);
                left.spent.knowingly.extend(looked);
            }
            false => left.spent.changed = true,
        }
        Known::Nothing
    }
}

impl Left {
    /// The first call of these arguments that may answer here.
    fn take(&mut self, args_digest: &str) -> Option<EarlierCall> {
        let (changed, answered, last) = (self.spent.changed, self.answered, self.last);
        let calls = self.calls.get_mut(args_digest)?;
        let found = calls.iter().position(|call| match call.place {
            Place::Change(_) => true,
            // What was read answers where exactly the changes before it have answered.
            Place::ReadAfter(changes) => !changed && answered == changes && last.is_none_or(|last| last < changes),
        })?;
        Some(calls.remove(found))
    }

    fn count(&mut self, call: &EarlierCall) {
        if let Place::Change(number) = call.place {
            self.answered += 1;
            self.last = self.last.max(Some(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(id: &str, digest: &str, place: Place, came_to: CameTo) -> EarlierCall {
        EarlierCall { id: id.into(), args_digest: digest.into(), place, came_to }
    }

    fn value(value: impl Into<Value>) -> CameTo {
        CameTo::Value(value.into())
    }

    #[test]
    fn a_recorded_call_answers_once_and_in_order() {
        let earlier =
            Earlier::new([call("1", "w", Place::Change(0), value(1)), call("2", "w", Place::Change(1), value(2))]);
        assert_eq!(earlier.answer("w", false), Known::Value(json!(1)));
        assert_eq!(earlier.answer("w", false), Known::Value(json!(2)));
        assert_eq!(earlier.answer("w", false), Known::Nothing);
    }

    #[test]
    fn reads_are_fresh_after_the_first_change() {
        let earlier = Earlier::new([
            call("1", "r", Place::ReadAfter(0), value("old")),
            call("2", "r", Place::ReadAfter(0), value("old")),
            call("3", "w", Place::Change(0), value("done")),
        ]);
        assert_eq!(earlier.answer("r", true), Known::Value(json!("old")));
        assert_eq!(earlier.answer("new write", false), Known::Nothing);
        assert_eq!(earlier.answer("r", true), Known::Nothing);
        assert_eq!(earlier.answer("w", false), Known::Value(json!("done")));
    }

    #[test]
    fn a_read_answers_only_behind_the_changes_it_was_made_behind() {
        let recorded = || {
            Earlier::new([
                call("1", "r", Place::ReadAfter(0), value("before")),
                call("2", "w1", Place::Change(0), value(1)),
                call("3", "r", Place::ReadAfter(1), value("between")),
                call("4", "w2", Place::Change(1), value(2)),
            ])
        };
        let earlier = recorded();
        assert_eq!(earlier.answer("w1", false), Known::Value(json!(1)));
        assert_eq!(earlier.answer("r", true), Known::Value(json!("between")));
        let earlier = recorded();
        earlier.answer("w1", false);
        earlier.answer("w2", false);
        assert_eq!(earlier.answer("r", true), Known::Nothing);
        // As many changes, but others.
        let earlier = recorded();
        earlier.answer("w2", false);
        assert_eq!(earlier.answer("r", true), Known::Nothing);
    }

    #[test]
    fn an_unknown_outcome_is_named_and_what_is_read_after_it_is_fresh() {
        let earlier = Earlier::new([
            call("1", "r", Place::ReadAfter(0), value("before")),
            call("2", "w", Place::Change(0), CameTo::Unknown),
        ]);
        assert_eq!(earlier.answer("w", false), Known::Unknown("2".into()));
        assert_eq!(earlier.answer("r", true), Known::Nothing);
    }

    #[test]
    fn whoever_tries_again_without_looking_is_told_the_same() {
        let earlier = Earlier::new([call("1", "w", Place::Change(0), CameTo::Unknown)]);
        assert_eq!(earlier.answer("w", false), Known::Unknown("1".into()));
        assert_eq!(earlier.answer("w", false), Known::Unknown("1".into()));
        assert_eq!(earlier.answer("another", false), Known::Nothing);
        assert_eq!(earlier.answer("w", false), Known::Unknown("1".into()));
        assert_eq!(earlier.answer("look", true), Known::Nothing);
        assert_eq!(earlier.answer("w", false), Known::Again("1".into()));
        assert_eq!(earlier.answer("w", false), Known::Nothing);
    }

    #[test]
    fn an_unknown_read_is_done_again() {
        let earlier = Earlier::new([call("1", "r", Place::ReadAfter(0), CameTo::Unknown)]);
        assert_eq!(earlier.answer("r", true), Known::Nothing);
    }

    #[test]
    fn what_has_answered_is_remembered_for_another_process() {
        let recorded = || {
            Earlier::new([
                call("1", "w", Place::Change(0), value(1)),
                call("2", "r", Place::ReadAfter(1), value("then")),
                call("3", "x", Place::Change(1), CameTo::Unknown),
            ])
        };
        let (first, second) = (recorded(), recorded());
        first.answer("w", false);
        second.spend(&first.spent());
        assert_eq!(second.answer("r", true), Known::Value(json!("then")));
        second.answer("x", false);
        let third = recorded();
        third.spend(&second.spent());
        assert_eq!(third.answer("x", false), Known::Unknown("3".into()));
        assert_eq!(third.answer("r", true), Known::Nothing);
    }
}
