//! Further MCP servers and built-in namespaces for the tests of calls.

use std::time::Duration;

use schemars::JsonSchema;
use selvedge_tools::{CallContext, Registry, ToolError, tool, tool_with_context};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize, JsonSchema)]
struct IssueNumber {
    number: usize,
}

#[derive(Deserialize, JsonSchema)]
struct NewIssue {
    title: String,
    body: String,
}

#[derive(Deserialize, JsonSchema)]
struct Milliseconds {
    ms: u64,
}

#[derive(Deserialize, JsonSchema)]
struct NoFields {}

#[derive(Deserialize, JsonSchema)]
struct Post {
    channel: String,
    message: String,
}

/// Adds tools to the server `github`, the servers `slow`, `JSON`, `console` and `channels`, and the
/// namespace `channels`.
pub fn with_more_servers(mut tools: Registry) -> Registry {
    let issue = |args: IssueNumber| async move {
        Ok(json!({"title": (["bug", "idea"].get(args.number.wrapping_sub(1)))}))
    };
    let create = |args: NewIssue| async move { Ok(format!("{}: {}", args.title, args.body)) };
    let wait = |args: Milliseconds, call: CallContext| async move {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(args.ms)) => Ok(args.ms),
            () = call.cancel.cancelled() => Err(ToolError::new("stopped")),
        }
    };
    let list = |_: NoFields| async move { Ok(json!([1, 2])) };
    let post = |args: Post| async move { Ok(format!("{}: {}", args.channel, args.message)) };
    let registered = [
        tools.register(tool("mcp.github.get_issue", "Reads an issue.", issue).read_only()),
        tools.register(tool("mcp.github.create_issue", "Creates an issue.", create)),
        tools.register(tool_with_context("mcp.slow.sleep", "Waits.", wait).read_only()),
        tools.register(tool("mcp.JSON.parse", "Lists.", list).read_only()),
        tools.register(tool("mcp.console.log", "Lists.", list).read_only()),
        tools.register(tool("mcp.channels.list", "Lists.", list).read_only()),
        tools.register(tool("channels.post", "Posts.", post)),
        tools.register(tool("channels.list", "Lists channels.", list).read_only()),
    ];
    assert!(registered.iter().all(Result::is_ok), "{registered:?}");
    tools
}
