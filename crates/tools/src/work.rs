//! What a call does, however it is said, and the digest that names it.

use std::panic::AssertUnwindSafe;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Registered;

/// What is said to people about a call, and is no part of what it does.
const WORDS_FOR_PEOPLE: [&str; 2] = ["approval_context", "justification"];

/// The tool that leaves a command running in a terminal, and the one that types into it until its end.
pub const TERMINAL: &str = "exec_command";
/// See [`TERMINAL`].
pub const TYPED: &str = "write_stdin";

/// What a call does: whoever makes two calls for the same work has it done twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// Canonical name of the tool that does it, or of what several tools do.
    pub tool: String,
    /// What it is to do.
    pub args: Value,
    /// How: how long to wait for it, in which form to tell of it. Null where nothing was said of that.
    pub manner: Value,
    /// By which of several ways: what fails by one may be done by another. Null where there is one alone.
    pub way: Value,
}

/// How another call for the same work was made, seen from this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// In the same manner.
    Same,
    /// In another manner.
    Other,
    /// By another way: its answer may have another form.
    OtherWay,
}

/// What a call of an earlier run that did the same work is for this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// Its answer.
    Answer,
    /// No answer: the work was stopped on its way, and nobody knows how far it came.
    Unfinished,
    /// No answer, although the work is done: why, in one line.
    Refused(String),
    /// None: the work failed there, and may be tried by this way.
    Failed,
}

/// Of which way of naming work a digest is: another build may have another.
const NAMING: &str = "2:";

/// Whether a digest was made the way they are made now. One that was not says nothing to those of now.
pub fn is_named_as_now(digest: &str) -> bool {
    digest.starts_with(NAMING)
}

/// Names what a call does and, behind dots, its manner and its way; the order of fields is nothing. Without the key
/// nobody can find out by trying what was digested.
pub(crate) fn digest(key: &[u8; 32], tool: &Registered, args: &Value) -> String {
    // A tool that breaks over its arguments does what they say.
    let said =
        std::panic::catch_unwind(AssertUnwindSafe(|| tool.tool.work(args))).unwrap_or_default();
    let Work {
        tool,
        args,
        manner,
        way,
    } = said.unwrap_or_else(|| {
        let mut args = args.clone();
        if let Value::Object(fields) = &mut args {
            fields.retain(|name, _| !WORDS_FOR_PEOPLE.contains(&name.as_str()));
        }
        Work {
            tool: tool.spec.name.clone(),
            args,
            manner: Value::Null,
            way: Value::Null,
        }
    });
    let work = hmac(key, &tool, &args);
    let part = |part: &Value| {
        if part.is_null() {
            String::new()
        } else {
            hmac(key, "", part)
        }
    };
    format!("{NAMING}{work}.{}.{}", part(&manner), part(&way))
        .trim_end_matches('.')
        .to_owned()
}

/// How the manner of one call stands to that of another, by their digests.
pub(crate) fn manner_of(one: &str, other: &str) -> Manner {
    let way = |digest: &str| digest.split('.').nth(2).map(str::to_owned);
    match one == other {
        true => Manner::Same,
        false if way(one) == way(other) => Manner::Other,
        false => Manner::OtherWay,
    }
}

/// What of a digest names the work.
pub(crate) fn work_of(digest: &str) -> &str {
    digest.split_once('.').map_or(digest, |(work, _)| work)
}

/// Whether two digests are of calls for the same work.
pub fn same_work(one: &str, other: &str) -> bool {
    work_of(one) == work_of(other)
}

pub(crate) fn hmac(key: &[u8; 32], name: &str, value: &Value) -> String {
    // With a key that is shorter than a block.
    let (mut inner, mut outer) = ([0x36; 64], [0x5c; 64]);
    for (index, byte) in key.iter().enumerate() {
        inner[index] ^= byte;
        outer[index] ^= byte;
    }
    let text = format!("{name}\n{}", sorted(value));
    let hash = Sha256::new()
        .chain_update(inner)
        .chain_update(text)
        .finalize();
    let hash = Sha256::new()
        .chain_update(outer)
        .chain_update(hash)
        .finalize();
    hash.iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut pairs: Vec<_> = object
                .iter()
                .map(|(key, value)| (key.clone(), sorted(value)))
                .collect();
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(pairs.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}
