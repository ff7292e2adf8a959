//! `selvedge memory search`: runs one query, or the queries of a file.

use std::io::BufRead;
use std::time::Instant;

use anyhow::Result;
use selvedge_memory::{Level, Memory, MemoryHit, MemoryQuery};
use serde_json::{Value, json};

use super::args::MemorySearchArgs;
use super::import::open_input;
use crate::CliStatus;
use crate::output::{print_json_text, print_line};
use crate::problem::Problem;

/// Default number of turns for a query without a budget.
const DEFAULT_RESULTS: usize = 10;

/// One query to run.
struct MemorySearchRequest {
    /// Repeated in the JSON output; `None` for the query on the command line.
    id: Option<Value>,
    text: String,
    /// Session to search; overrides `--session`.
    session: Option<String>,
}

pub(super) fn search(memory: &Memory, args: &MemorySearchArgs) -> Result<CliStatus> {
    match &args.queries {
        None => {
            let request = MemorySearchRequest {
                id: None,
                text: args.query.join(" "),
                session: None,
            };
            run_query(memory, args, &request)?;
        }
        Some(path) => {
            let (file, _) = open_input(path)?;
            for (index, text) in file.lines().enumerate() {
                let number = index + 1;
                let location = format!("{}:{number}", path.display());
                let text = text.map_err(|error| {
                    Problem::new(format!("{location}: {error}")).hint("save the file as UTF-8")
                })?;
                if let Some(request) = parse_query_line(&text, number).map_err(|error| {
                    Problem::new(format!("{location}: {error}"))
                        .hint("write a line as text, or as {\"id\", \"query\", \"session\"?}")
                })? {
                    run_query(memory, args, &request)?;
                }
            }
        }
    }
    Ok(CliStatus::Success)
}

/// Parses a line of a file of queries. Returns `None` for an empty line. The line number is the id
/// of a query that has none.
fn parse_query_line(text: &str, number: usize) -> Result<Option<MemorySearchRequest>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(text) else {
        return Ok(Some(MemorySearchRequest {
            id: Some(number.into()),
            text: text.to_owned(),
            session: None,
        }));
    };
    let string = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    let query = ["query", "text", "question", "q"]
        .iter()
        .find_map(|name| string(name));
    let text = query.ok_or("missing field `query`")?;
    Ok(Some(MemorySearchRequest {
        id: Some(fields.get("id").cloned().unwrap_or(number.into())),
        text,
        session: string("session"),
    }))
}

/// Runs a query and prints its hits.
fn run_query(
    memory: &Memory,
    args: &MemorySearchArgs,
    request: &MemorySearchRequest,
) -> Result<()> {
    let session = request.session.as_deref().or(args.session.as_deref());
    let default = if args.budget.is_some() {
        usize::MAX
    } else {
        DEFAULT_RESULTS
    };
    let query = MemoryQuery {
        session,
        max_turns: args.k.unwrap_or(default),
        budget: args.budget,
        ..MemoryQuery::new(&request.text)
    };
    let start = Instant::now();
    let hits = memory.search(&query)?;
    let elapsed = start.elapsed().as_secs_f64() * 1000.0;
    if args.json {
        let mut answer = serde_json::Map::new();
        answer.extend(request.id.clone().map(|id| ("id".to_owned(), id)));
        answer.insert("hits".into(), hits.iter().map(hit_json).collect());
        let elapsed = json!((elapsed * 1000.0).round() / 1000.0);
        answer.insert("elapsed_ms".into(), elapsed);
        print_json_text(&Value::Object(answer).to_string())?;
        return Ok(());
    }
    if args.queries.is_some() {
        print_line(&format!("? {}", request.text))?;
    }
    for hit in &hits {
        let MemoryHit {
            session,
            number,
            score,
            ..
        } = hit;
        let level = if hit.level == Level::Raw {
            Level::Smoothed
        } else {
            hit.level
        };
        let text = memory.turn_at_level(session, *number, level)?;
        let text = String::from_utf8_lossy(&text);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text: String = text.chars().take(100).collect();
        print_line(&format!("{score:>6.3}  {session}/T-{number}  {text}"))?;
    }
    if hits.is_empty() {
        eprint_line!("note: no turns found");
    }
    Ok(())
}

fn hit_json(hit: &MemoryHit) -> Value {
    let id = format!("T-{}", hit.number);
    // An imported turn keeps the name it had in its file.
    let key = hit
        .key
        .as_ref()
        .and_then(|key| serde_json::from_str(key).ok());
    let turn = key.unwrap_or_else(|| json!(id));
    json!({
        "turn": turn, "id": id, "session": hit.session, "score": (hit.score * 1e6).round() / 1e6,
        "level": hit.level, "tokens": hit.tokens,
    })
}
