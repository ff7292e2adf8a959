//! Answers from an earlier run: what is done is not done again.
//!
//! A script that goes on from an earlier run is told again what that run was told, as long as it walks the same road:
//! a change that was made answers wherever it is asked for again, and what was read answers only where the same
//! changes, and no others, stand before it. Everything else is done now.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Kept;
use crate::work::work_of;

/// The calls of an earlier run, each of which answers one call at most.
#[derive(Debug, Default)]
pub struct Earlier(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    /// By what they do, in the order they were made.
    calls: HashMap<String, Vec<EarlierCall>>,
    /// How many changes have answered, and the last of them.
    answered: usize,
    last: Option<usize>,
    /// Batches of calls that were asked for so far.
    batches: usize,
    /// The batch in which the script was last told that nobody knows the end of a call, by what it does.
    told: HashMap<String, usize>,
    spent: Spent,
}

/// What of an earlier run has answered already.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    calls: Vec<String>,
    /// Whether something was changed since, or may have been: then what was read before may be stale.
    changed: bool,
    /// Calls nobody knows the end of, by what they do, that the script has asked for and was told so: whoever asks
    /// again without looking would repeat them blindly.
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
    /// Digest of what it does and in which manner.
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

/// A call that is asked for now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub(crate) args_digest: &'a str,
    pub(crate) read_only: bool,
    /// The batch it belongs to.
    pub(crate) batch: usize,
}

/// What the earlier run knows of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Known {
    /// Its result.
    Value(Value),
    /// It was done there as this call, whose result is none for this one, and why.
    Refused(String, String),
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
        let mut by_work: HashMap<String, Vec<EarlierCall>> = HashMap::new();
        for call in calls {
            by_work.entry(work_of(&call.args_digest).to_owned()).or_default().push(call);
        }
        Self(Mutex::new(Left { calls: by_work, ..Left::default() }))
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

    /// Calls that are asked for together know nothing of each other's answers: the number of the next batch of them.
    pub(crate) fn next_batch(&self) -> usize {
        let mut left = self.left();
        left.batches += 1;
        left.batches
    }

    /// What is known of a call; a recorded call answers once. `kept` says what one that did the same work in another
    /// manner is for this one.
    pub(crate) fn answer(&self, asking: Asking<'_>, kept: impl FnOnce(Value) -> Kept) -> Known {
        let mut left = self.left();
        let work = work_of(asking.args_digest);
        if let Some(id) = left.spent.blindly.get(work).cloned() {
            left.told.insert(work.to_owned(), asking.batch);
            return Known::Unknown(id);
        }
        if let Some(id) = left.spent.knowingly.remove(work) {
            return Known::Again(id);
        }
        if let Some(call) = left.take(asking.args_digest) {
            left.count(&call);
            left.spent.calls.push(call.id.clone());
            match (call.came_to, call.place) {
                (CameTo::Value(value), _) if call.args_digest == asking.args_digest => return Known::Value(value),
                (CameTo::Value(value), _) => match kept(value) {
                    Kept::Answer(value) => return Known::Value(value),
                    Kept::Refused(why) => return Known::Refused(call.id, why),
                    Kept::DoneNow => {}
                },
                (CameTo::Unknown, Place::Change(_)) => {
                    // It may have changed anything: whoever checks must see what is there now.
                    left.spent.changed = true;
                    left.spent.blindly.insert(work.to_owned(), call.id.clone());
                    left.told.insert(work.to_owned(), asking.batch);
                    return Known::Unknown(call.id);
                }
                // A read that nobody saw the end of can be done again.
                (CameTo::Unknown, Place::ReadAfter(_)) => {}
            }
        }
        left.spent.changed |= !asking.read_only;
        Known::Nothing
    }

    /// Whether the script was told of a call that nobody knows the end of.
    pub(crate) fn waits_for_a_look(&self) -> bool {
        !self.left().spent.blindly.is_empty()
    }

    /// The script was told how the world is, because it asked in this batch: what it was told to check before, it may
    /// have checked.
    pub(crate) fn looked(&self, batch: usize) {
        let mut left = self.left();
        let Left { told, spent, .. } = &mut *left;
        let since = |work: &String| told.get(work).is_none_or(|told| *told < batch);
        spent.knowingly.extend(spent.blindly.extract_if(.., |work, _| since(work)));
    }
}

impl Left {
    /// The first call that may answer here: one for the same work in the same manner, or else a change that did the
    /// same work in another.
    fn take(&mut self, args_digest: &str) -> Option<EarlierCall> {
        let (changed, answered, last) = (self.spent.changed, self.answered, self.last);
        let calls = self.calls.get_mut(work_of(args_digest))?;
        let same = |call: &EarlierCall| {
            call.args_digest == args_digest
                && match call.place {
                    Place::Change(_) => true,
                    // What was read answers where exactly the changes before it have answered.
                    Place::ReadAfter(changes) => {
                        !changed && answered == changes && last.is_none_or(|last| last < changes)
                    }
                }
        };
        let change = |call: &EarlierCall| matches!(call.place, Place::Change(_));
        let found = calls.iter().position(same).or_else(|| calls.iter().position(change))?;
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

    /// In a batch of its own; what was done in another manner answers.
    fn ask(earlier: &Earlier, args_digest: &str, read_only: bool) -> Known {
        let batch = earlier.next_batch();
        earlier.answer(Asking { args_digest, read_only, batch }, Kept::Answer)
    }

    /// A look that is answered.
    fn look(earlier: &Earlier) {
        let batch = earlier.next_batch();
        assert_eq!(
            earlier.answer(Asking { args_digest: "look", read_only: true, batch }, Kept::Answer),
            Known::Nothing
        );
        earlier.looked(batch);
    }

    fn value(value: impl Into<Value>) -> CameTo {
        CameTo::Value(value.into())
    }

    #[test]
    fn a_recorded_call_answers_once_and_in_order() {
        let earlier =
            Earlier::new([call("1", "w", Place::Change(0), value(1)), call("2", "w", Place::Change(1), value(2))]);
        assert_eq!(ask(&earlier, "w", false), Known::Value(json!(1)));
        assert_eq!(ask(&earlier, "w", false), Known::Value(json!(2)));
        assert_eq!(ask(&earlier, "w", false), Known::Nothing);
    }

    #[test]
    fn reads_are_fresh_after_the_first_change() {
        let earlier = Earlier::new([
            call("1", "r", Place::ReadAfter(0), value("old")),
            call("2", "r", Place::ReadAfter(0), value("old")),
            call("3", "w", Place::Change(0), value("done")),
        ]);
        assert_eq!(ask(&earlier, "r", true), Known::Value(json!("old")));
        assert_eq!(ask(&earlier, "new write", false), Known::Nothing);
        assert_eq!(ask(&earlier, "r", true), Known::Nothing);
        assert_eq!(ask(&earlier, "w", false), Known::Value(json!("done")));
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
        assert_eq!(ask(&earlier, "w1", false), Known::Value(json!(1)));
        assert_eq!(ask(&earlier, "r", true), Known::Value(json!("between")));
        let earlier = recorded();
        ask(&earlier, "w1", false);
        ask(&earlier, "w2", false);
        assert_eq!(ask(&earlier, "r", true), Known::Nothing);
        // As many changes, but others.
        let earlier = recorded();
        ask(&earlier, "w2", false);
        assert_eq!(ask(&earlier, "r", true), Known::Nothing);
    }

    #[test]
    fn an_unknown_outcome_is_named_and_what_is_read_after_it_is_fresh() {
        let earlier = Earlier::new([
            call("1", "r", Place::ReadAfter(0), value("before")),
            call("2", "w", Place::Change(0), CameTo::Unknown),
        ]);
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("2".into()));
        assert_eq!(ask(&earlier, "r", true), Known::Nothing);
    }

    #[test]
    fn whoever_tries_again_without_looking_is_told_the_same() {
        let earlier = Earlier::new([call("1", "w", Place::Change(0), CameTo::Unknown)]);
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        assert_eq!(ask(&earlier, "another", false), Known::Nothing);
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        // A look that nobody answered, and one that was under way when the script was told, are none.
        assert_eq!(ask(&earlier, "look", true), Known::Nothing);
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        let under_way = earlier.next_batch();
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        earlier.looked(under_way);
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        look(&earlier);
        assert_eq!(ask(&earlier, "w", false), Known::Again("1".into()));
        assert_eq!(ask(&earlier, "w", false), Known::Nothing);
    }

    #[test]
    fn calls_of_one_batch_know_nothing_of_each_other() {
        let earlier = Earlier::new([call("1", "w", Place::Change(0), CameTo::Unknown)]);
        let batch = earlier.next_batch();
        let asking = |args_digest, read_only| Asking { args_digest, read_only, batch };
        assert_eq!(earlier.answer(asking("w", false), Kept::Answer), Known::Unknown("1".into()));
        assert_eq!(earlier.answer(asking("look", true), Kept::Answer), Known::Nothing);
        earlier.looked(batch);
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    }

    #[test]
    fn what_is_asked_for_in_another_manner_is_the_same_work() {
        let recorded = |came_to| Earlier::new([call("1", "w", Place::Change(0), came_to)]);
        let otherwise = |earlier: &Earlier, kept: fn(Value) -> Kept| {
            let batch = earlier.next_batch();
            earlier.answer(Asking { args_digest: "w.slowly", read_only: false, batch }, kept)
        };
        let earlier = recorded(CameTo::Unknown);
        assert_eq!(otherwise(&earlier, Kept::Answer), Known::Unknown("1".into()));
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        let earlier = recorded(value(1));
        assert_eq!(otherwise(&earlier, Kept::Answer), Known::Value(json!(1)));
        assert_eq!(ask(&earlier, "w", false), Known::Nothing);
        let refuse: fn(Value) -> Kept = |_| Kept::Refused("in another form".into());
        assert_eq!(otherwise(&recorded(value(1)), refuse), Known::Refused("1".into(), "in another form".into()));
        assert_eq!(otherwise(&recorded(value(1)), |_| Kept::DoneNow), Known::Nothing);
    }

    #[test]
    fn a_read_in_another_manner_is_another_read() {
        let earlier = Earlier::new([call("1", "r", Place::ReadAfter(0), value("short"))]);
        assert_eq!(ask(&earlier, "r.whole", true), Known::Nothing);
        assert_eq!(ask(&earlier, "r", true), Known::Value(json!("short")));
    }

    #[test]
    fn an_unknown_read_is_done_again() {
        let earlier = Earlier::new([call("1", "r", Place::ReadAfter(0), CameTo::Unknown)]);
        assert_eq!(ask(&earlier, "r", true), Known::Nothing);
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
        ask(&first, "w", false);
        second.spend(&first.spent());
        assert_eq!(ask(&second, "r", true), Known::Value(json!("then")));
        ask(&second, "x", false);
        let third = recorded();
        third.spend(&second.spent());
        assert_eq!(ask(&third, "x", false), Known::Unknown("3".into()));
        assert_eq!(ask(&third, "r", true), Known::Nothing);
    }
}
