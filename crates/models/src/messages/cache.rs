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
    let fixed = if body["system"].is_array() {
        "system"
    } else {
        "tools"
    };
    if let Some(last) = body
        .get_mut(fixed)
        .and_then(Value::as_array_mut)
        .and_then(|list| list.last_mut())
    {
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
    for at in [newest.and_then(|newest| newest.checked_sub(1)), last]
        .into_iter()
        .flatten()
    {
        let blocks = messages[at]["content"].as_array_mut();
        let block = blocks.into_iter().flatten().rev().find(|block| {
            block["type"]
                .as_str()
                .is_some_and(|kind| CACHEABLE.contains(&kind))
        });
        if let Some(block) = block {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
    }
}
