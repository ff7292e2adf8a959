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

pub(crate) const WAIT_FOR_IT: &str =
    "it goes on as a task, and `tools.spawn.wait` tells what it comes to";

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
            by_work
                .entry(work_of(&call.args_digest).to_owned())
                .or_default()
                .push(call);
        }
        by_work
            .values_mut()
            .for_each(|calls| calls.sort_by_key(|call| call.order));
        let unknown = |call: &EarlierCall| {
            call.came_to == CameTo::Unknown && matches!(call.place, Place::Change(_))
        };
        let has_unknown = by_work.values().flatten().any(unknown);
        Self(Mutex::new(Left {
            calls: by_work,
            has_unknown,
            ..Left::default()
        }))
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that another build digested are known again by what they were asked to do.
    pub(crate) fn recognise(&self, digest_of: impl Fn(&str, &Value) -> Option<String>) {
        let mut left = self.left();
        let Left {
            calls, spent, said, ..
        } = &mut *left;
        let mut again = Vec::new();
        calls
            .values_mut()
            .for_each(|calls| again.extend(calls.extract_if(.., |call| call.said.is_some())));
        for mut call in again {
            // A tool that is not there yet may come.
            if let Some(digest) = call
                .said
                .as_ref()
                .and_then(|(tool, args)| digest_of(tool, args))
            {
                (call.args_digest, call.said) = (digest, None);
            }
            let same = calls
                .entry(work_of(&call.args_digest).to_owned())
                .or_default();
            same.push(call);
            same.sort_by_key(|call| call.order);
        }
        said.retain(|(id, (tool, args))| {
            let Some(digest) = digest_of(tool, args) else {
                return true;
            };
            for told in [&mut spent.blindly, &mut spent.knowingly] {
                let mut renamed = told
                    .extract_if(.., |_, told| told == id)
                    .map(|(_, id)| id)
                    .collect::<Vec<_>>();
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
        left.said.extend(
            gone.into_iter()
                .filter_map(|call| Some((call.id, call.said?))),
        );
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
    pub(crate) fn answer(
        &self,
        asking: Asking<'_>,
        kept: impl Fn(&Value, Manner) -> Kept,
    ) -> Known {
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
        let passed = left
            .calls
            .iter()
            .filter(|(work, _)| left.spent.own_way && !left.asked.contains(*work));
        let unknown = |call: &&EarlierCall| {
            call.came_to == CameTo::Unknown && matches!(call.place, Place::Change(_))
        };
        let mut ids: Vec<String> = passed
            .flat_map(|(_, calls)| calls.iter().filter(unknown).map(|call| call.id.clone()))
            .collect();
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
            let is = |later: &EarlierCall| {
                later.run > call.run && later.args_digest == asking.args_digest
            };
            calls
                .iter()
                .any(|later| is(later) && matches!(later.came_to, CameTo::Value(_)))
        };
        let judge = |(at, call): (usize, &EarlierCall)| {
            let manner = manner_of(&call.args_digest, asking.args_digest);
            match &call.came_to {
                _ if !self.may_answer(call, asking.looks, manner) => None,
                CameTo::Unknown if manner == Manner::Same && !done_later(call) => {
                    Some((0, Found::Unknown(at)))
                }
                CameTo::Unknown => Some((2, Found::Unknown(at))),
                CameTo::GoesOn(_) if asking.as_task && manner != Manner::OtherWay => {
                    Some((0, Found::Answer(at)))
                }
                CameTo::GoesOn(task) => {
                    Some((3, Found::Refused(task.clone(), WAIT_FOR_IT.to_owned())))
                }
                CameTo::Value(value) => match kept(value, manner) {
                    Kept::Answer => Some((usize::from(manner != Manner::Same), Found::Answer(at))),
                    Kept::Unfinished => Some((2, Found::Unknown(at))),
                    Kept::Refused(why) => Some((3, Found::Refused(call.id.clone(), why))),
                    Kept::Failed => None,
                },
            }
        };
        calls
            .iter()
            .enumerate()
            .filter_map(judge)
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, found)| found)
    }

    fn may_answer(&self, call: &EarlierCall, looks: bool, manner: Manner) -> bool {
        // Where exactly the same changes stand before it as then, and nobody knows of any other.
        let here = |changes: usize| {
            !self.spent.changed
                && self.answered == changes
                && self.last.is_none_or(|last| last < changes)
        };
        match (call.place, &call.came_to) {
            // Whoever looks sees what is there now, also with what counts as a change because nobody vouches for it.
            (Place::Change(number), CameTo::Value(_)) if looks => !self.has_unknown && here(number),
            (Place::Change(_), CameTo::Unknown) if looks => false,
            (Place::Change(_), _) => true,
            // A read that nobody saw the end of can be done again, and another manner is another read.
            (Place::ReadAfter(_), CameTo::Unknown) => false,
            (Place::ReadAfter(_), CameTo::GoesOn(_)) => true,
            (Place::ReadAfter(changes), CameTo::Value(_)) => {
                manner == Manner::Same && here(changes)
            }
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
mod tests;
