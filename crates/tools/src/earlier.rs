//! Answers from an earlier run: what is done is not done again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The calls of an earlier run, each of which answers one call at most.
#[derive(Debug, Default)]
pub struct Earlier(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    /// By tool and arguments, in the order they were made, last first.
    calls: HashMap<String, Vec<EarlierCall>>,
    /// Whether something was changed since: then what was read before may be stale.
    changed: bool,
    /// Calls that have answered.
    spent: Vec<String>,
}

/// What of an earlier run has answered already.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    calls: Vec<String>,
    changed: bool,
}

/// A call of an earlier run.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlierCall {
    /// Its id there.
    pub id: String,
    /// Digest of tool and arguments.
    pub args_digest: String,
    /// Whether it left the world as it was.
    pub read_only: bool,
    /// What came of it.
    pub came_to: CameTo,
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
}

impl Earlier {
    /// The calls of a run, in the order they were made.
    pub fn new(calls: impl IntoIterator<Item = EarlierCall>) -> Self {
        let mut by_digest: HashMap<String, Vec<EarlierCall>> = HashMap::new();
        for call in calls {
            by_digest.entry(call.args_digest.clone()).or_default().push(call);
        }
        by_digest.values_mut().for_each(|calls| calls.reverse());
        Self(Mutex::new(Left { calls: by_digest, ..Left::default() }))
    }

    /// What has answered so far.
    pub(crate) fn spent(&self) -> Spent {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Spent { calls: left.spent.clone(), changed: left.changed }
    }

    /// As if these had answered.
    pub(crate) fn spend(&self, spent: &Spent) {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.calls.values_mut().for_each(|calls| calls.retain(|call| !spent.calls.contains(&call.id)));
        left.changed |= spent.changed;
        left.spent.extend(spent.calls.iter().cloned());
    }

    /// What is known of a call; a recorded call answers once.
    pub(crate) fn answer(&self, args_digest: &str, read_only: bool) -> Known {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = left.changed;
        let found = left.calls.get_mut(args_digest).and_then(|calls| {
            // What was read before a change is not what is there now.
            if read_only && changed { None } else { calls.pop() }
        });
        left.spent.extend(found.iter().map(|call| call.id.clone()));
        match found {
            Some(EarlierCall { came_to: CameTo::Value(value), .. }) => Known::Value(value),
            Some(EarlierCall { came_to: CameTo::Unknown, id, read_only: false, .. }) => Known::Unknown(id),
            // A read that nobody saw the end of can be done again.
            Some(_) | None => {
                left.changed |= !read_only;
                Known::Nothing
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(id: &str, digest: &str, read_only: bool, came_to: CameTo) -> EarlierCall {
        EarlierCall { id: id.into(), args_digest: digest.into(), read_only, came_to }
    }

    #[test]
    fn a_recorded_call_answers_once_and_in_order() {
        let value = |n: i32| CameTo::Value(json!(n));
        let earlier = Earlier::new([call("1", "w", false, value(1)), call("2", "w", false, value(2))]);
        assert_eq!(earlier.answer("w", false), Known::Value(json!(1)));
        assert_eq!(earlier.answer("w", false), Known::Value(json!(2)));
        assert_eq!(earlier.answer("w", false), Known::Nothing);
    }

    #[test]
    fn reads_are_fresh_after_the_first_change() {
        let earlier = Earlier::new([
            call("1", "r", true, CameTo::Value(json!("old"))),
            call("2", "r", true, CameTo::Value(json!("old"))),
            call("3", "w", false, CameTo::Value(json!("done"))),
        ]);
        assert_eq!(earlier.answer("r", true), Known::Value(json!("old")));
        assert_eq!(earlier.answer("new write", false), Known::Nothing);
        assert_eq!(earlier.answer("r", true), Known::Nothing);
        assert_eq!(earlier.answer("w", false), Known::Value(json!("done")));
    }

    #[test]
    fn an_unknown_outcome_is_named_and_an_unknown_read_repeated() {
        let earlier = Earlier::new([call("1", "w", false, CameTo::Unknown), call("2", "r", true, CameTo::Unknown)]);
        assert_eq!(earlier.answer("w", false), Known::Unknown("1".into()));
        assert_eq!(earlier.answer("r", true), Known::Nothing);
    }
}
