//! Answers from an earlier run: what is done is not done again.
//!
//! A script that goes on from an earlier run is told again what that run was told, as long as it walks the same road:
//! a change that was made answers wherever it is asked for again, and what was read answers only where the same
//! changes, and no others, stand before it. Everything else is done now.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::work::{manner_of, work_of};
use crate::{Kept, Manner};

pub(crate) const WAIT_FOR_IT: &str = "it goes on as a task, and `tools.spawn.wait` tells what it comes to";

/// The calls of an earlier run, each of which answers one call at most.
#[derive(Debug, Default)]
pub struct Earlier(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    /// By what they do, in the order they were made.
    calls: HashMap<String, Vec<EarlierCall>>,
    /// Tool and arguments of calls that have answered and that another build digested.
    said: Vec<(String, (String, Value))>,
    /// What the script asked for, by what it does.
    asked: HashSet<String>,
    /// Of some change nobody knows the end.
    has_unknown: bool,
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
    /// Whether something was changed that the earlier run did not change.
    #[serde(default)]
    own_way: bool,
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
    /// Which run made it, of those that went on from one another.
    pub run: usize,
    /// Which it was of all their calls, in the order they began.
    pub order: usize,
    /// Where it stands among the changes that were made.
    pub place: Place,
    /// What came of it.
    pub came_to: CameTo,
    /// The task it was, where it was made as one.
    pub task: Option<String>,
    /// Tool and arguments, where the digest is another build's.
    pub said: Option<(String, Value)>,
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
    /// It goes on, as this task.
    GoesOn(String),
}

/// A call that is asked for now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub(crate) args_digest: &'a str,
    pub(crate) read_only: bool,
    /// Whether it tells how the world is, as far as it says of itself.
    pub(crate) looks: bool,
    /// The batch it belongs to.
    pub(crate) batch: usize,
    /// Whether it is asked for as a task, which may go on.
    pub(crate) as_task: bool,
}

/// What the earlier run knows of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Known {
    /// Its result, and the task that came to it.
    Value(Value, Option<String>),
    /// It goes on as this task.
    GoesOn(String),
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
    /// The calls of a run.
    pub fn new(calls: impl IntoIterator<Item = EarlierCall>) -> Self {
        let mut by_work: HashMap<String, Vec<EarlierCall>> = HashMap::new();
        for call in calls {
            by_work.entry(work_of(&call.args_digest).to_owned()).or_default().push(call);
        }
        by_work.values_mut().for_each(|calls| calls.sort_by_key(|call| call.order));
        let unknown = |call: &EarlierCall| call.came_to == CameTo::Unknown && matches!(call.place, Place::Change(_));
        let has_unknown = by_work.values().flatten().any(unknown);
        Self(Mutex::new(Left { calls: by_work, has_unknown, ..Left::default() }))
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that another build digested are known again by what they were asked to do.
    pub(crate) fn recognise(&self, digest_of: impl Fn(&str, &Value) -> Option<String>) {
        let mut left = self.left();
        let Left { calls, spent, said, .. } = &mut *left;
        let mut again = Vec::new();
        calls.values_mut().for_each(|calls| again.extend(calls.extract_if(.., |call| call.said.is_some())));
        for mut call in again {
            // A tool that is not there yet may come.
            if let Some(digest) = call.said.as_ref().and_then(|(tool, args)| digest_of(tool, args)) {
                (call.args_digest, call.said) = (digest, None);
            }
            let same = calls.entry(work_of(&call.args_digest).to_owned()).or_default();
            same.push(call);
            same.sort_by_key(|call| call.order);
        }
        said.retain(|(id, (tool, args))| {
            let Some(digest) = digest_of(tool, args) else { return true };
            for told in [&mut spent.blindly, &mut spent.knowingly] {
                let mut renamed = told.extract_if(.., |_, told| told == id).map(|(_, id)| id).collect::<Vec<_>>();
                told.extend(renamed.pop().map(|id| (work_of(&digest).to_owned(), id)));
            }
            false
        });
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
        left.said.extend(gone.into_iter().filter_map(|call| Some((call.id, call.said?))));
        left.spent = spent.clone();
    }

    /// Calls that are asked for together know nothing of each other's answers: the number of the next batch of them.
    pub(crate) fn next_batch(&self) -> usize {
        let mut left = self.left();
        left.batches += 1;
        left.batches
    }

    /// What is known of a call; a recorded call answers once. `kept` says what one that did the same work is for this
    /// one.
    pub(crate) fn answer(&self, asking: Asking<'_>, kept: impl Fn(&Value, Manner) -> Kept) -> Known {
        let mut left = self.left();
        let work = work_of(asking.args_digest);
        left.asked.insert(work.to_owned());
        let found = left.find(&asking, kept);
        // What is known to be done is told, whatever else was begun of the same.
        if let Some(Found::Answer(at)) = found
            && let Some(call) = left.take(work, at)
        {
            return match call.came_to {
                CameTo::Value(value) => Known::Value(value, call.task),
                CameTo::GoesOn(task) => Known::GoesOn(task),
                CameTo::Unknown => Known::Unknown(call.id),
            };
        }
        if let Some(id) = left.spent.blindly.get(work).cloned() {
            left.told.insert(work.to_owned(), asking.batch);
            return Known::Unknown(id);
        }
        // What is done is not repeated instead of what may be, and of several that nobody knows the end of each is
        // told first: who has looked after one may ask for the next.
        if found.is_none()
            && let Some(id) = left.spent.knowingly.remove(work)
        {
            return Known::Again(id);
        }
        match found {
            Some(Found::Unknown(at)) => {
                let id = left.take(work, at).map(|call| call.id).unwrap_or_default();
                // It may have changed anything: whoever checks must see what is there now.
                left.spent.changed = true;
                left.spent.blindly.insert(work.to_owned(), id.clone());
                left.told.insert(work.to_owned(), asking.batch);
                return Known::Unknown(id);
            }
            // It stays, for whoever asks as it was asked then.
            Some(Found::Refused(id, why)) => return Known::Refused(id, why),
            Some(Found::Answer(_)) | None => {}
        }
        left.spent.changed |= !asking.read_only;
        Known::Nothing
    }

    /// A change is made, that the earlier run did not make.
    pub(crate) fn goes_its_own_way(&self) {
        self.left().spent.own_way = true;
    }

    /// The changes nobody knows the end of that the script did not ask for, where it made others.
    pub fn passed_over(&self) -> Vec<String> {
        let left = self.left();
        let passed = left.calls.iter().filter(|(work, _)| left.spent.own_way && !left.asked.contains(*work));
        let unknown = |call: &&EarlierCall| call.came_to == CameTo::Unknown && matches!(call.place, Place::Change(_));
        let mut ids: Vec<String> =
            passed.flat_map(|(_, calls)| calls.iter().filter(unknown).map(|call| call.id.clone())).collect();
        ids.sort();
        ids
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
        for (work, id) in spent.blindly.extract_if(.., |work, _| since(work)) {
            // Of several, the first has the key that all attempts carry.
            spent.knowingly.entry(work).or_insert(id);
        }
    }
}

/// A record that has something to say to a call, and where it is.
enum Found {
    Answer(usize),
    Unknown(usize),
    Refused(String, String),
}

impl Left {
    /// What there is for a call: of those that were asked for just so the first, whatever came of it, so that each of
    /// several hears what it heard then; but what was done by a later run before what nobody knows the end of, and of
    /// those that were asked for otherwise, too, one that is done before one that was begun.
    fn find(&self, asking: &Asking<'_>, kept: impl Fn(&Value, Manner) -> Kept) -> Option<Found> {
        let calls = self.calls.get(work_of(asking.args_digest))?;
        let done_later = |call: &EarlierCall| {
            let is = |later: &EarlierCall| later.run > call.run && later.args_digest == asking.args_digest;
            calls.iter().any(|later| is(later) && matches!(later.came_to, CameTo::Value(_)))
        };
        let judge = |(at, call): (usize, &EarlierCall)| {
            let manner = manner_of(&call.args_digest, asking.args_digest);
            match &call.came_to {
                _ if !self.may_answer(call, asking.looks, manner) => None,
                CameTo::Unknown if manner == Manner::Same && !done_later(call) => Some((0, Found::Unknown(at))),
                CameTo::Unknown => Some((2, Found::Unknown(at))),
                CameTo::GoesOn(_) if asking.as_task && manner != Manner::OtherWay => Some((0, Found::Answer(at))),
                CameTo::GoesOn(task) => Some((3, Found::Refused(task.clone(), WAIT_FOR_IT.to_owned()))),
                CameTo::Value(value) => match kept(value, manner) {
                    Kept::Answer => Some((usize::from(manner != Manner::Same), Found::Answer(at))),
                    Kept::Unfinished => Some((2, Found::Unknown(at))),
                    Kept::Refused(why) => Some((3, Found::Refused(call.id.clone(), why))),
                    Kept::Failed => None,
                },
            }
        };
        calls.iter().enumerate().filter_map(judge).min_by_key(|(rank, _)| *rank).map(|(_, found)| found)
    }

    fn may_answer(&self, call: &EarlierCall, looks: bool, manner: Manner) -> bool {
        // Where exactly the same changes stand before it as then, and nobody knows of any other.
        let here = |changes: usize| {
            !self.spent.changed && self.answered == changes && self.last.is_none_or(|last| last < changes)
        };
        match (call.place, &call.came_to) {
            // Whoever looks sees what is there now, also with what counts as a change because nobody vouches for it.
            (Place::Change(number), CameTo::Value(_)) if looks => !self.has_unknown && here(number),
            (Place::Change(_), CameTo::Unknown) if looks => false,
            (Place::Change(_), _) => true,
            // A read that nobody saw the end of can be done again, and another manner is another read.
            (Place::ReadAfter(_), CameTo::Unknown) => false,
            (Place::ReadAfter(_), CameTo::GoesOn(_)) => true,
            (Place::ReadAfter(changes), CameTo::Value(_)) => manner == Manner::Same && here(changes),
        }
    }

    /// A record that answers: it does so once.
    fn take(&mut self, work: &str, at: usize) -> Option<EarlierCall> {
        let calls = self.calls.get_mut(work).filter(|calls| at < calls.len())?;
        let call = calls.remove(at);
        self.count(&call);
        self.spent.calls.push(call.id.clone());
        Some(call)
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
        let order = id.bytes().last().map_or(0, usize::from);
        EarlierCall { id: id.into(), args_digest: digest.into(), run: 1, order, place, came_to, task: None, said: None }
    }

    /// In a batch of its own; what was done in another manner answers.
    fn ask(earlier: &Earlier, args_digest: &str, read_only: bool) -> Known {
        let batch = earlier.next_batch();
        earlier.answer(Asking { args_digest, read_only, looks: read_only, as_task: false, batch }, |_, _| Kept::Answer)
    }

    /// A look that is answered.
    fn look(earlier: &Earlier) {
        let batch = earlier.next_batch();
        let asking = Asking { args_digest: "look", read_only: true, looks: true, as_task: false, batch };
        assert_eq!(earlier.answer(asking, |_, _| Kept::Answer), Known::Nothing);
        earlier.looked(batch);
    }

    fn value(value: impl Into<Value>) -> CameTo {
        CameTo::Value(value.into())
    }

    #[test]
    fn a_recorded_call_answers_once_and_in_order() {
        let earlier =
            Earlier::new([call("1", "w", Place::Change(0), value(1)), call("2", "w", Place::Change(1), value(2))]);
        assert_eq!(ask(&earlier, "w", false), Known::Value(json!(1), None));
        assert_eq!(ask(&earlier, "w", false), Known::Value(json!(2), None));
        assert_eq!(ask(&earlier, "w", false), Known::Nothing);
    }

    #[test]
    fn reads_are_fresh_after_the_first_change() {
        let earlier = Earlier::new([
            call("1", "r", Place::ReadAfter(0), value("old")),
            call("2", "r", Place::ReadAfter(0), value("old")),
            call("3", "w", Place::Change(0), value("done")),
        ]);
        assert_eq!(ask(&earlier, "r", true), Known::Value(json!("old"), None));
        assert_eq!(ask(&earlier, "new write", false), Known::Nothing);
        assert_eq!(ask(&earlier, "r", true), Known::Nothing);
        assert_eq!(ask(&earlier, "w", false), Known::Value(json!("done"), None));
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
        assert_eq!(ask(&earlier, "w1", false), Known::Value(json!(1), None));
        assert_eq!(ask(&earlier, "r", true), Known::Value(json!("between"), None));
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
    fn of_several_unknown_outcomes_each_is_named_before_one_is_repeated() {
        let earlier = Earlier::new([
            call("1", "w", Place::Change(0), CameTo::Unknown),
            call("2", "w", Place::Change(1), CameTo::Unknown),
        ]);
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        look(&earlier);
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("2".into()));
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("2".into()));
        look(&earlier);
        assert_eq!(ask(&earlier, "w", false), Known::Again("1".into()));
        assert_eq!(ask(&earlier, "w", false), Known::Nothing);
    }

    #[test]
    fn a_look_that_nobody_saw_the_end_of_is_made_again() {
        let earlier = Earlier::new([call("1", "status", Place::Change(0), CameTo::Unknown)]);
        let asking = Asking { args_digest: "status", read_only: false, looks: true, as_task: false, batch: 1 };
        assert_eq!(earlier.answer(asking, |_, _| Kept::Answer), Known::Nothing);
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
        let asking =
            |args_digest, read_only| Asking { args_digest, read_only, looks: read_only, as_task: false, batch };
        assert_eq!(earlier.answer(asking("w", false), |_, _| Kept::Answer), Known::Unknown("1".into()));
        assert_eq!(earlier.answer(asking("look", true), |_, _| Kept::Answer), Known::Nothing);
        earlier.looked(batch);
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
    }

    #[test]
    fn what_is_asked_for_in_another_manner_is_the_same_work() {
        let recorded = |came_to| Earlier::new([call("1", "w", Place::Change(0), came_to)]);
        let otherwise = |earlier: &Earlier, kept: Kept| {
            let batch = earlier.next_batch();
            let asking = Asking { args_digest: "w.slowly", read_only: false, looks: false, as_task: false, batch };
            earlier.answer(asking, |_, manner| if manner == Manner::Other { kept.clone() } else { Kept::Answer })
        };
        let earlier = recorded(CameTo::Unknown);
        assert_eq!(otherwise(&earlier, Kept::Answer), Known::Unknown("1".into()));
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        let earlier = recorded(value(1));
        assert_eq!(otherwise(&earlier, Kept::Answer), Known::Value(json!(1), None));
        assert_eq!(ask(&earlier, "w", false), Known::Nothing);
        assert_eq!(otherwise(&recorded(value(1)), Kept::Unfinished), Known::Unknown("1".into()));
        // Whoever is refused may ask in the right manner.
        let earlier = recorded(value(1));
        let why = "in another form".to_owned();
        assert_eq!(otherwise(&earlier, Kept::Refused(why.clone())), Known::Refused("1".into(), why));
        assert_eq!(ask(&earlier, "w", false), Known::Value(json!(1), None));
    }

    #[test]
    fn of_two_calls_for_the_same_each_hears_what_it_heard_then() {
        let recorded = [
            call("2", "w", Place::Change(1), value("done")),
            call("3", "w", Place::Change(2), value("done as well")),
            call("1", "w", Place::Change(0), CameTo::Unknown),
        ];
        let earlier = Earlier::new(recorded.clone());
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        assert_eq!(ask(&earlier, "w", false), Known::Value(json!("done"), None));
        assert_eq!(ask(&earlier, "w", false), Known::Value(json!("done as well"), None));
        assert_eq!(ask(&earlier, "w", false), Known::Unknown("1".into()));
        // What a later run did is what was unknown before.
        let mut again = recorded.clone();
        (again[0].run, again[1].run) = (2, 2);
        let earlier = Earlier::new(again);
        assert_eq!(ask(&earlier, "w", false), Known::Value(json!("done"), None));
        // In another manner, what is done answers first.
        let earlier = Earlier::new(recorded);
        assert_eq!(ask(&earlier, "w.slowly", false), Known::Value(json!("done"), None));
    }

    #[test]
    fn what_is_done_by_another_way_is_not_made_instead_of_what_may_be() {
        let earlier = Earlier::new([
            call("1", "w..terminal", Place::Change(0), value("done")),
            call("2", "w..words", Place::Change(1), CameTo::Unknown),
        ]);
        let words = |earlier: &Earlier| {
            let batch = earlier.next_batch();
            let asking = Asking { args_digest: "w..words", read_only: false, looks: false, as_task: false, batch };
            earlier.answer(asking, |_, manner| match manner {
                Manner::OtherWay => Kept::Refused("by another way".into()),
                _ => Kept::Answer,
            })
        };
        assert_eq!(words(&earlier), Known::Unknown("2".into()));
        look(&earlier);
        assert_eq!(words(&earlier), Known::Refused("1".into(), "by another way".into()));
        assert_eq!(ask(&earlier, "w..terminal", false), Known::Value(json!("done"), None));
        assert_eq!(words(&earlier), Known::Again("2".into()));
    }

    #[test]
    fn what_was_done_at_last_answers_before_what_was_stopped() {
        let earlier = Earlier::new([
            call("1", "w.short", Place::Change(0), value("stopped")),
            call("2", "w.long", Place::Change(1), value("done")),
        ]);
        let kept = |value: &Value, manner| match (value == "stopped", manner) {
            (true, Manner::Other) => Kept::Unfinished,
            _ => Kept::Answer,
        };
        let asking = Asking { args_digest: "w.longer", read_only: false, looks: false, as_task: false, batch: 1 };
        assert_eq!(earlier.answer(asking, kept), Known::Value(json!("done"), None));
        assert_eq!(earlier.answer(asking, kept), Known::Unknown("1".into()));
    }

    #[test]
    fn whoever_looks_after_a_change_sees_what_is_there_now() {
        // Recorded as a change, because nobody vouches for what it says of itself.
        let recorded = || Earlier::new([call("1", "balance", Place::Change(0), value(0))]);
        let look = |earlier: &Earlier| {
            let asking = Asking {
                args_digest: "balance",
                read_only: false,
                looks: true,
                as_task: false,
                batch: earlier.next_batch(),
            };
            earlier.answer(asking, |_, _| Kept::Answer)
        };
        assert_eq!(look(&recorded()), Known::Value(json!(0), None));
        let earlier = recorded();
        ask(&earlier, "pay", false);
        assert_eq!(look(&earlier), Known::Nothing);
        // Behind a change that answers it was another look.
        let paid = call("2", "pay", Place::Change(1), value("paid"));
        let earlier = Earlier::new([call("1", "balance", Place::Change(0), value(0)), paid]);
        assert_eq!(ask(&earlier, "pay", false), Known::Value(json!("paid"), None));
        assert_eq!(look(&earlier), Known::Nothing);
        let unknown = call("2", "pay", Place::Change(1), CameTo::Unknown);
        let earlier = Earlier::new([call("1", "balance", Place::Change(0), value(0)), unknown]);
        assert_eq!(look(&earlier), Known::Nothing);
    }

    #[test]
    fn a_read_in_another_manner_is_another_read() {
        let earlier = Earlier::new([call("1", "r", Place::ReadAfter(0), value("short"))]);
        assert_eq!(ask(&earlier, "r.whole", true), Known::Nothing);
        assert_eq!(ask(&earlier, "r", true), Known::Value(json!("short"), None));
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
            ])
        };
        let (first, second) = (recorded(), recorded());
        ask(&first, "w", false);
        second.spend(&first.spent());
        assert_eq!(ask(&second, "r", true), Known::Value(json!("then"), None));
        assert_eq!(ask(&second, "w", false), Known::Nothing);
    }

    #[test]
    fn what_another_build_digested_is_known_by_what_was_said() {
        let said = |id: &str, digest: &str, number, came_to, args: i64| EarlierCall {
            said: Some(("pay".into(), json!(args))),
            ..call(id, digest, Place::Change(number), came_to)
        };
        let digest_of = |tool: &str, args: &Value| (args != 9).then(|| format!("{tool}{args}"));
        let earlier = Earlier::new([
            said("1", "old a", 0, value("first"), 5),
            said("2", "old b", 1, value("second"), 5),
            said("3", "old c", 2, value("not there yet"), 9),
        ]);
        earlier.recognise(digest_of);
        assert_eq!(ask(&earlier, "pay5", false), Known::Value(json!("first"), None));
        assert_eq!(ask(&earlier, "pay5", false), Known::Value(json!("second"), None));
        assert_eq!(ask(&earlier, "pay9", false), Known::Nothing);
        earlier.recognise(|tool, args| Some(format!("{tool}{args}")));
        assert_eq!(ask(&earlier, "pay9", false), Known::Value(json!("not there yet"), None));
        // Also where that build was told to check.
        let unknown = || Earlier::new([said("1", "old", 0, CameTo::Unknown, 5)]);
        let (then, now) = (unknown(), unknown());
        assert_eq!(ask(&then, "old", false), Known::Unknown("1".into()));
        now.spend(&then.spent());
        now.recognise(digest_of);
        assert_eq!(ask(&now, "pay5", false), Known::Unknown("1".into()));
        look(&now);
        assert_eq!(ask(&now, "pay5", false), Known::Again("1".into()));
    }

    #[test]
    fn a_task_that_goes_on_is_for_those_who_wait() {
        let recorded =
            || Earlier::new([call("tsk_1/tool_1", "w..exec", Place::Change(0), CameTo::GoesOn("tsk_1".into()))]);
        let task = |digest, as_task| {
            let asking = Asking { args_digest: digest, read_only: false, looks: false, batch: 1, as_task };
            recorded().answer(asking, |_, _| Kept::Answer)
        };
        assert_eq!(task("w..exec", true), Known::GoesOn("tsk_1".into()));
        assert_eq!(task("w.longer.exec", true), Known::GoesOn("tsk_1".into()));
        assert_eq!(task("w..exec", false), Known::Refused("tsk_1".into(), WAIT_FOR_IT.into()));
        assert_eq!(task("w..terminal", true), Known::Refused("tsk_1".into(), WAIT_FOR_IT.into()));
    }

    #[test]
    fn what_was_told_to_check_is_remembered_for_another_process() {
        let recorded = || Earlier::new([call("1", "x", Place::Change(0), CameTo::Unknown)]);
        let (first, second) = (recorded(), recorded());
        ask(&first, "x", false);
        second.spend(&first.spent());
        assert_eq!(ask(&second, "x", false), Known::Unknown("1".into()));
        look(&second);
        let third = recorded();
        third.spend(&second.spent());
        assert_eq!(ask(&third, "x", false), Known::Again("1".into()));
    }
}
