//! The queue of `selvedge mcp serve`: scripts beyond the limit of a session wait.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use serde_json::{Value, json};
use support::{Client, TestWorkspace};

#[test]
fn the_ninth_script_of_a_session_is_queued_and_completes() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let endless =
        json!({"code": "await tools.exec({command: ['sleep', '600']})", "yieldAfterMs": 1});
    let running: Vec<Value> = (0..8)
        .map(|_| client.call("script", endless.clone())["structuredContent"]["id"].clone())
        .collect();
    let request = client.ask(
        "tools/call",
        json!({
            "name": "script",
            "arguments": {"code": "return 'ninth'", "yieldAfterMs": 300},
            "_meta": {"progressToken": 9},
        }),
    );
    let item = client.answer_to(request)["result"]["structuredContent"].clone();
    assert_eq!(item["status"], "running", "{item}");
    let queued = "queued: the script starts when one of the running scripts ends";
    assert_eq!(item["warnings"][0], queued);
    let progress = client.others().into_iter();
    let progress: Vec<Value> = progress
        .filter(|message| message["method"] == "notifications/progress")
        .map(|message| message["params"]["message"].clone())
        .collect();
    assert_eq!(progress, [queued]);
    let stop = json!({"id": running[3], "terminate": true});
    client.call("script_wait", stop);
    let ended = client.call("script_wait", json!({"id": item["id"]}));
    assert_eq!(ended["structuredContent"]["output_json"], "\"ninth\"");
}
