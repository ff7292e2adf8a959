//! Measures queries over 20,000 documents of a workspace, and how soon a changed file is found.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use selvedge_documents::{DocumentIndex, DocumentQuery, SortKey};
use selvedge_protocol::SandboxPolicy;
use selvedge_toolbox::{Workspace, WorkspaceDocuments};
use serde_json::{Value, json};

use crate::mcp::{McpServerProcess, serve_command};
use crate::measure::{Samples, elapsed_ms};
use crate::server::time_document_queries;
use crate::table::BenchTable;

const DOCUMENTS: usize = 20_000;
const ROUNDS: usize = 200;
/// Rounds of queries through scripts and requests.
const CALL_ROUNDS: usize = 50;
/// Maximum time of a query, 95th percentile, in milliseconds.
const MAX_QUERY_MS: f64 = 10.0;
/// Maximum time until a changed file is found, 95th percentile, in milliseconds.
const MAX_REFRESH_MS: f64 = 50.0;

/// Documents that a query without a limit returns.
const DEFAULT_LIMIT: usize = 1000;

/// Words of the documents.
const WORDS: [&str; 16] = [
    "login", "crash", "session", "database", "timeout", "render", "button", "token", "cache",
    "server", "queue", "worker", "memory", "socket", "header", "parser",
];

pub(crate) fn measure(table: &mut BenchTable) -> Result<()> {
    let tree = tempfile::tempdir()?;
    for number in 0..DOCUMENTS {
        write_document(
            tree.path(),
            number,
            if number % 10 == 0 { "open" } else { "closed" },
        )?;
    }
    let workspace = Workspace::open(tree.path(), SandboxPolicy::WorkspaceWrite, &[])?;
    let documents = WorkspaceDocuments::new(&workspace, &[])?;
    let index = documents.index();
    let first = Instant::now();
    anyhow::ensure!(
        find(index, json!({}), None, &[])? == DOCUMENTS,
        "documents are missing"
    );
    let first = elapsed_ms(first);
    let start = Instant::now();
    find(index, json!({}), Some("login"), &[])?;
    let first_text = elapsed_ms(start);
    table.add_row(
        "first query over 20,000 documents; first query by text",
        format!("{first:.0} ms; {first_text:.0} ms"),
        "",
        "",
        true,
    );
    let fields = json!({"kind": "issue", "status": "open"});
    let other = json!({"priority": [1, 2], "tags": "login"});
    for (what, fields, text, sort) in [
        ("by kind and status", &fields, None, &[][..]),
        (
            "by two other fields, sorted by two",
            &other,
            None,
            &["-created", "title"],
        ),
        (
            "by status and text",
            &json!({"status": "open"}),
            Some("login crash"),
            &[],
        ),
    ] {
        let mut times = Samples::default();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            find(index, fields.clone(), text, sort)?;
            times.extend([elapsed_ms(start)]);
        }
        let row = format!("query over 20,000 documents {what}, 100 returned");
        add_row(table, &row, &times, MAX_QUERY_MS);
    }
    let mut times = Samples::default();
    for number in 0..ROUNDS {
        let start = Instant::now();
        write_document(tree.path(), number, "changed")?;
        let found = find(index, json!({"status": "changed"}), None, &[])?;
        times.extend([elapsed_ms(start)]);
        anyhow::ensure!(found == number + 1, "a changed document is not found");
    }
    add_row(
        table,
        "change a document and find it",
        &times,
        MAX_REFRESH_MS,
    );
    measure_calls(table, tree.path())
}

/// Measures whole queries: scripts that call `workspace.query`, and requests to the agent server.
fn measure_calls(table: &mut BenchTable, tree: &Path) -> Result<()> {
    let home = tempfile::tempdir()?;
    let mut server = McpServerProcess::start(&mut serve_command(home.path(), tree)?)?;
    for (limit, max_ms) in [(Some(100), Some(MAX_QUERY_MS)), (None, None)] {
        let mut query = json!({"kind": "issue", "status": "open"});
        if let Some(limit) = limit {
            query["limit"] = json!(limit);
        }
        let code = format!("return (await workspace.query({query})).length");
        let mut times = Samples::default();
        // The first query of a process reads all documents.
        for round in 0..=CALL_ROUNDS {
            let start = Instant::now();
            let result = server.run_script(&code)?;
            let time = elapsed_ms(start);
            let text = result["content"][0]["text"].as_str().unwrap_or_default();
            let found = limit.unwrap_or(DEFAULT_LIMIT).to_string();
            anyhow::ensure!(text.starts_with(&found), "{result}");
            if round > 0 {
                times.extend([time]);
            }
        }
        let found = limit.unwrap_or(DEFAULT_LIMIT);
        let row =
            format!("query by kind and status in a script, over `mcp serve`, {found} returned");
        match max_ms {
            Some(max_ms) => add_row(table, &row, &times, max_ms),
            None => add_plain_row(table, &row, &times),
        }
    }
    let times = time_document_queries(tree, CALL_ROUNDS)?;
    let row = format!("`POST /documents/query` of the agent server, {DEFAULT_LIMIT} returned");
    add_plain_row(table, &row, &times);
    Ok(())
}

fn add_plain_row(table: &mut BenchTable, what: &str, times: &Samples) {
    let times = format!("{:.1} ms (p95 {:.1})", times.p50(), times.p95());
    table.add_row(what, times, "", "", true);
}

fn add_row(table: &mut BenchTable, what: &str, times: &Samples, max_ms: f64) {
    table.add_row(
        what,
        format!("{:.1} ms (p95 {:.1})", times.p50(), times.p95()),
        "",
        &format!("p95 ≤ {max_ms:.0} ms"),
        times.p95() <= max_ms,
    );
}

/// Returns how many documents match.
fn find(index: &DocumentIndex, fields: Value, text: Option<&str>, sort: &[&str]) -> Result<usize> {
    let query = DocumentQuery {
        fields: fields.as_object().cloned().unwrap_or_default(),
        text: text.map(str::to_owned),
        sort: sort.iter().map(|key| SortKey::parse(key)).collect(),
        limit: 100,
    };
    Ok(index.query(&query)?.total)
}

fn write_document(tree: &Path, number: usize, status: &str) -> Result<()> {
    let folder = tree.join(format!("issues/{}", number % 200));
    std::fs::create_dir_all(&folder)?;
    let word = |step: usize| WORDS[(number / 3 + step * step) % WORDS.len()];
    let words = (0..250).map(|at| match at % 6 {
        0 => format!("word{}", (number * 31 + at * 17) % 50_000),
        _ => word(at).to_owned(),
    });
    let body = words.collect::<Vec<_>>().join(" ");
    let text = format!(
        "---\nkind: issue\nstatus: {status}\ntitle: \"Issue {number}: {}\"\npriority: {}\n\
         assignee: user{}\ntags: [{}, {}]\ncreated: 2026-01-{:02}\n---\n\n# Issue\n\n{body}\n",
        word(0),
        number % 5,
        number % 37,
        word(1),
        word(2),
        number % 28 + 1
    );
    std::fs::write(folder.join(format!("{number}.md")), text)?;
    Ok(())
}
