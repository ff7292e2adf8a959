//! Cache breakpoints: where the provider may cache the prefix of a request.
//!
//! Three of the four possible breakpoints are set:
//! - after the system text, which also covers the tools before it;
//! - before the newest message of the user, because later turns send that message without the
//!   text that was added to it;
//! - at the end, for the next request of the same turn, which continues this one.

use serde_json::{Value, json};

/// Types of blocks that can have `cache_control`.
const CACHEABLE_BLOCK_TYPES: [&str; 5] = ["text", "image", "tool_use", "tool_result", "document"];

/// Adds the breakpoints to a request body.
pub(super) fn add_cache_breakpoints(body: &mut Value) {
    let has_system = body["system"].is_array();
    let fixed = if has_system { "system" } else { "tools" };
    let list = body.get_mut(fixed).and_then(Value::as_array_mut);
    if let Some(last) = list.and_then(|list| list.last_mut()) {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
    let Some(messages) = body["messages"].as_array_mut() else {
        return;
    };
    let newest = messages.iter().rposition(|message| {
        let results_only =
            |blocks: &Vec<Value>| blocks.iter().all(|block| block["type"] == "tool_result");
        message["role"] == "user" && !message["content"].as_array().is_some_and(results_only)
    });
    let last = messages.len().checked_sub(1);
    let before_newest = newest.and_then(|newest| newest.checked_sub(1));
    for index in before_newest.into_iter().chain(last) {
        let blocks = messages[index]["content"].as_array_mut();
        let mut blocks = blocks.into_iter().flatten();
        let is_cacheable = |block: &&mut Value| {
            CACHEABLE_BLOCK_TYPES
                .iter()
                .any(|kind| block["type"] == *kind)
        };
        if let Some(block) = blocks.rfind(is_cacheable) {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
    }
}
