//! Five hundred tools: their size in tokens, and the search for one of them.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use serde_json::{Value, json};
use support::{Client, TestWorkspace};

fn tokens(text: &str) -> usize {
    tiktoken_rs::o200k_base_singleton()
        .encode_ordinary(text)
        .len()
}

fn workspace_with_500_tools() -> TestWorkspace {
    let workspace = TestWorkspace::new();
    workspace.config(
        &(0..10)
            .map(|number| {
                TestWorkspace::odd(&format!("suite{number}"), &format!("catalogue:{number}"))
            })
            .collect::<String>(),
    );
    workspace
}

#[test]
fn five_hundred_tools_cost_at_most_two_thousand_tokens() {
    let workspace = workspace_with_500_tools();
    let (status, listed) = {
        let output = workspace.command(&["tools", "--json"]).output().unwrap();
        (
            output.status,
            serde_json::from_slice::<Vec<Value>>(&output.stdout).unwrap(),
        )
    };
    assert!(status.success());
    let theirs: Vec<&Value> = listed
        .iter()
        .filter(|tool| tool["name"].as_str().unwrap().starts_with("mcp."))
        .collect();
    assert_eq!(theirs.len(), 500);
    let structured: usize = theirs
        .iter()
        .map(|tool| {
            tokens(
                &json!({"name": tool["name"], "description": tool["description"], "parameters": tool["inputSchema"]})
                    .to_string(),
            )
        })
        .sum();
    let mut client = Client::start(&workspace, &[], json!({}));
    // Tools of servers that start slowly are announced by a notification.
    let mut tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
    let lesson = |tools: &Value| tools[0]["description"].as_str().unwrap().to_owned();
    while !(0..10).all(|n| lesson(&tools).contains(&format!("suite{n} (50)"))) {
        client.wait_for(|message| message["method"] == "notifications/tools/list_changed");
        tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
    }
    assert!(lesson(&tools).contains("of 5"), "{}", lesson(&tools));
    let ours: usize = tools
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| {
            tokens(
                &json!({"name": tool["name"], "description": tool["description"], "parameters": tool["inputSchema"]})
                    .to_string(),
            )
        })
        .sum();
    eprintln!("500 tools: {structured} tokens with all schemas, {ours} with ours");
    assert!(ours <= 2000, "{ours} tokens");
    assert!(structured > 20 * ours, "{structured} tokens");
}

#[test]
fn a_script_finds_a_tool_by_search_and_calls_it() {
    let workspace = workspace_with_500_tools();
    let mut client = Client::start(&workspace, &[], json!({}));
    for (words, tool) in [
        ("create a calendar event", "create_calendar_event"),
        ("find invoices", "search_invoice"),
        ("remove a webhook", "delete_webhook"),
        ("export the dashboard", "export_dashboard"),
        ("assign an incident to a person", "assign_incident"),
    ] {
        let code = format!(
            "const found = await tools.search({words:?}); const t = found.find(t => t.name.endsWith({end:?})) ?? found[0]; return [(await tools[t.name]({{ workspace_id: 'w' }})).called, found.length]",
            end = selvedge_tools::camel_case(tool),
        );
        assert_eq!(client.value(&code)[0], tool, "{words}");
    }
    // A query with the words of a tool returns it first.
    let first = client.value(
        "const [t] = await tools.search('create calendar event'); return [t.name, t.signature]",
    );
    assert_eq!(first[0], "mcp.suite0.createCalendarEvent");
    assert!(
        first[1].as_str().unwrap().contains("workspace_id: string"),
        "{first}"
    );
}
