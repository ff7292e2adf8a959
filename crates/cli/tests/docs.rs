//! The generated parts of the docs are up to date. `make docs` writes them again.
#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code)]
#[path = "../src/chat/commands.rs"]
mod commands;

use std::path::Path;
use std::process::Command;

use selvedge_protocol::{ApprovalRequirement, ErrorCode, ModelErrorKind, TurnEnd};

#[test]
fn generated_docs_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let parts = [
        ("docs/errors.md", "errors", errors()),
        (
            "docs/configuration.md",
            "keys",
            selvedge_config::reference(),
        ),
        ("docs/commands.md", "help", help()),
        ("docs/tools.md", "tools", tools()),
        ("docs/models.md", "kinds", kinds()),
        ("docs/agent.md", "ends", ends()),
        ("docs/terminal.md", "keys", keys()),
    ];
    let mut drifted = Vec::new();
    for (file, name, fresh) in parts {
        let path = root.join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        let (start, end) = (
            format!("<!-- generated: {name} -->\n"),
            "<!-- /generated -->",
        );
        let (before, rest) = text
            .split_once(&start)
            .unwrap_or_else(|| panic!("{file} has no {start}"));
        let (old, after) = rest
            .split_once(end)
            .unwrap_or_else(|| panic!("{file} has no {end}"));
        let fresh = format!("\n{}\n\n", fresh.trim_end());
        if old != fresh {
            if std::env::var_os("UPDATE_DOCS").is_some() {
                std::fs::write(&path, format!("{before}{start}{fresh}{end}{after}")).unwrap();
            } else {
                drifted.push(file);
            }
        }
    }
    assert!(
        drifted.is_empty(),
        "{drifted:?} are out of date: run `make docs`"
    );
}

#[test]
fn every_event_is_documented() {
    let source = include_str!("../../protocol/src/event.rs");
    let (_, events) = source.split_once("#[serde(tag = \"type\")]").unwrap();
    let (events, _) = events.split_once("\n}\n").unwrap();
    let names = events
        .split("#[serde(rename = \"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap());
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/agent.md"))
            .unwrap();
    let table: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .collect();
    let missing: Vec<&str> = names
        .filter(|name| !table.iter().any(|cell| cell.contains(&format!("`{name}`"))))
        .collect();
    assert!(
        events.matches("rename").count() > 20 && missing.is_empty(),
        "docs/agent.md does not describe {missing:?}"
    );
}

/// Tools that exist only in an agent's turn, with memory, or beside an MCP server.
const TURN_AND_MCP_TOOLS: [&str; 13] = [
    "agents.launch.sync",
    "agents.launch.async",
    "agents.wait",
    "agents.llm.chat",
    "history.getTurn",
    "memory.search",
    "listMcpResources",
    "listMcpResourceTemplates",
    "readMcpResource",
    "listMcpPrompts",
    "getMcpPrompt",
    "mcpCallTool",
    "mcpReadResource",
];

#[test]
fn every_tool_has_an_example_that_passes_the_check() {
    let home = tempfile::tempdir().unwrap();
    let expose = "[script_harness.expose]\nenable_http = true\nenable_spawn = true\n";
    std::fs::write(home.path().join("config.toml"), expose).unwrap();
    let command = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .env("SELVEDGE_HOME", home.path())
            .current_dir(home.path());
        command
    };
    let page = include_str!("../../../docs/tools.md");
    let (_, page) = page.split_once("## Examples and errors").unwrap();
    let examples: Vec<(&str, &str)> = page
        .split("### `")
        .skip(1)
        .map(|part| {
            let (name, rest) = part.split_once('`').unwrap();
            let (_, code) = rest.split_once("```ts\n").unwrap();
            assert!(rest.contains("\nErrors: "), "{name} names no errors");
            (name, code.split_once("\n```").unwrap().0)
        })
        .collect();

    let listed = command(&["tools", "--json"]).output().unwrap().stdout;
    let listed: Vec<selvedge_protocol::ToolSpec> = serde_json::from_slice(&listed).unwrap();
    let names = listed.iter().map(|spec| spec.js_name.as_str());
    let missing: Vec<&str> = names
        .chain(TURN_AND_MCP_TOOLS)
        .filter(|name| !page.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "docs/tools.md has no {missing:?}");

    for (name, code) in examples {
        let file = home.path().join("example.ts");
        std::fs::write(&file, code).unwrap();
        let output = command(&["check", "--json", "example.ts"])
            .output()
            .unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let errors = report["errors"].as_array().unwrap().iter();
        let errors: Vec<_> = errors
            .filter(|error| {
                let absent = error["code"] == "ToolNotFoundError";
                !(absent && TURN_AND_MCP_TOOLS.contains(&name))
            })
            .collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
}

fn errors() -> String {
    let mut table = String::from("| code | meaning | try again? |\n|---|---|---|\n");
    for code in ErrorCode::ALL {
        table.push_str(&format!(
            "| `{code}` | {} | {} |\n",
            code.meaning(),
            code.retry()
        ));
    }
    table
}

fn kinds() -> String {
    let mut table = String::from("| kind | meaning |\n|---|---|\n");
    for kind in ModelErrorKind::ALL {
        table.push_str(&format!("| `{kind}` | {} |\n", kind.meaning()));
    }
    table
}

fn ends() -> String {
    let mut table = String::from("| `finish_reason` | meaning |\n|---|---|\n");
    for end in TurnEnd::ALL {
        table.push_str(&format!("| `{}` | {} |\n", end.as_str(), end.meaning()));
    }
    table
}

/// Returns the tables of the chat's commands and keys.
fn keys() -> String {
    let mut table = String::from("| command | what it does |\n|---|---|\n");
    for (usage, what) in commands::SLASH_COMMANDS {
        table.push_str(&format!("| `{usage}` | {what} |\n"));
    }
    table.push_str("\n| key | what it does |\n|---|---|\n");
    for (key, what) in commands::KEY_BINDINGS {
        table.push_str(&format!("| {} | {what} |\n", key.replace('\\', "\\\\")));
    }
    table
}

fn selvedge(args: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_selvedge"))
        .args(args)
        .env("SELVEDGE_HOME", home.path())
        .current_dir(home.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the help of every command. The commands are found by parsing the help.
fn help() -> String {
    let mut text = String::new();
    let mut left = vec![Vec::<String>::new()];
    while let Some(command) = left.pop() {
        let words: Vec<&str> = command
            .iter()
            .map(String::as_str)
            .chain(["--help"])
            .collect();
        let shown = selvedge(&words);
        let trimmed: Vec<&str> = shown.lines().map(str::trim_end).collect();
        let heading = ["selvedge"]
            .into_iter()
            .chain(command.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join(" ");
        text.push_str(&format!(
            "## `{heading}`\n\n```text\n{}\n```\n\n",
            trimmed.join("\n").trim_end()
        ));
        let below = trimmed
            .iter()
            .skip_while(|line| **line != "Commands:")
            .skip(1)
            .take_while(|line| !line.is_empty());
        let names: Vec<&str> = below
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help")
            .collect();
        left.extend(
            names
                .iter()
                .rev()
                .map(|name| [&command[..], &[(*name).to_owned()]].concat()),
        );
    }
    text
}

fn tools() -> String {
    let listed: Vec<serde_json::Value> =
        serde_json::from_str(&selvedge(&["tools", "--json"])).unwrap();
    let mut table = String::from(
        "| in scripts | what it does | reads only | approval | available |\n|---|---|---|---|---|\n",
    );
    for tool in listed {
        let available = tool["available"].as_str().unwrap().to_owned();
        let spec: selvedge_protocol::ToolSpec = serde_json::from_value(tool).unwrap();
        let first = spec.description.lines().next().unwrap_or_default();
        let reads = if spec.read_only { "yes" } else { "no" };
        let approval = match spec.approval {
            ApprovalRequirement::ByArguments => "depends on arguments",
            other => other.as_str(),
        };
        table.push_str(&format!(
            "| `{}` | {first} | {reads} | {approval} | {available} |\n",
            selvedge_script::callable_name(&spec.js_name)
        ));
    }
    format!("{table}\n```ts\n{}```\n", selvedge(&["tools", "--ts"]))
}
