//! Where a provider is told to remember: after what stays the same from one request to the next.
//!
//! Three marks of the four there may be. After the system text, which covers the tools before it. Before the newest
//! message of the user, since what rides inside that message is not sent again. And at the very end, for the next
//! request of the same turn, which has all of this in front of it.

use serde_json::{Value, json};

/// Blocks that can carry a mark.
const CACHEABLE: [&str; 5] = ["text", "image", "tool_use", "tool_result", "document"];

/// Puts the marks into a body.
pub(super) fn mark(body: &mut Value) {
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
    for at in before_newest.into_iter().chain(last) {
        let mut blocks = messages[at]["content"].as_array_mut().into_iter().flatten();
        let is_cacheable = |block: &&mut Value| CACHEABLE.iter().any(|kind| block["type"] == *kind);
        if let Some(block) = blocks.rfind(is_cacheable) {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
    }
}
