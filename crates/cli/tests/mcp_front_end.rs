//! Hostile scripts do not keep `selvedge mcp serve` from answering others, and its log counts every
//! script.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use serde_json::{Value, json};
use support::{Client, TestWorkspace};

#[test]
fn scripts_that_are_hard_to_parse_do_not_delay_others() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let hidden = format!("const q=`/*`;{}", "(a=a<".repeat(24));
    let costly = format!("x={}", "a?(b):c=>".repeat(300));
    let ask = |client: &mut Client, code: &str| {
        let params = json!({"name": "script", "arguments": {"code": code}});
        client.ask("tools/call", params)
    };
    let hostile: Vec<u64> = [&hidden, &costly, &hidden, &costly]
        .map(|code| ask(&mut client, code))
        .into();
    assert_eq!(client.value("return 1"), json!(1));
    for id in hostile {
        let answer = client.answer_to(id);
        let error = &answer["result"]["structuredContent"]["error"];
        assert_ne!(*error, Value::Null, "{answer}");
    }
}

#[test]
fn the_log_has_spans_and_counters_of_each_script() {
    let workspace = TestWorkspace::new();
    let log = workspace.home().join("log.jsonl");
    let mut client = Client::start(&workspace, &["--log", log.to_str().unwrap()], json!({}));
    client.value("return 1");
    client.value("return (await tools.listDir({ path: '.' })).entries.length");
    client.close();
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let count = |name: &str| {
        let metrics = lines.iter().filter(|line| line["fields"]["metric"] == name);
        metrics.count()
    };
    assert_eq!((count("runs"), count("calls")), (2, 1), "{text}");
    let spans = lines.iter().filter(|line| line["span"]["name"] == "script");
    assert!(spans.count() >= 2, "{text}");
}
