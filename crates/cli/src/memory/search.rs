//! `selvedge memory search`.

use std::io::BufRead;
use std::time::Instant;

use anyhow::Result;
use selvedge_memory::{Hit, Level, Memory, Query};
use serde_json::{Value, json};

use super::args::SearchArgs;
use super::import::open;
use crate::Exit;
use crate::out::{harmless, line};
use crate::problem::Problem;

/// Turns found where nothing else is said.
const USUAL: usize = 10;

struct Asked {
    id: Option<Value>,
    text: String,
    session: Option<String>,
}

pub(super) fn search(memory: &Memory, args: &SearchArgs) -> Result<Exit> {
    match &args.queries {
        None => {
            let asked = Asked {
                id: None,
                text: args.query.join(" "),
                session: None,
            };
            answer(memory, args, &asked)?;
        }
        Some(path) => {
            let (file, _) = open(path)?;
            for (at, text) in file.lines().enumerate() {
                let place = format!("{}:{}", path.display(), at + 1);
                let text = text.map_err(|error| {
                    Problem::new(format!("{place}: {error}")).hint("queries are UTF-8")
                })?;
                if let Some(asked) = read(&text, at + 1).map_err(|wrong| {
                    Problem::new(format!("{place}: {wrong}"))
                        .hint("a line is text, or {\"id\", \"query\", \"session\"?}")
                })? {
                    answer(memory, args, &asked)?;
                }
            }
        }
    }
    Ok(Exit::Done)
}

fn read(text: &str, number: usize) -> Result<Option<Asked>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(text) else {
        return Ok(Some(Asked {
            id: Some(number.into()),
            text: text.to_owned(),
            session: None,
        }));
    };
    let word = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    let query = ["query", "text", "question", "q"]
        .iter()
        .find_map(|name| word(name));
    let text = query.ok_or("it has no `query`")?;
    Ok(Some(Asked {
        id: Some(fields.get("id").cloned().unwrap_or(number.into())),
        text,
        session: word("session"),
    }))
}

fn answer(memory: &Memory, args: &SearchArgs, asked: &Asked) -> Result<()> {
    let session = asked.session.as_deref().or(args.session.as_deref());
    let usual = if args.budget.is_some() {
        usize::MAX
    } else {
        USUAL
    };
    let query = Query {
        session,
        k: args.k.unwrap_or(usual),
        budget: args.budget,
        ..Query::new(&asked.text)
    };
    let start = Instant::now();
    let hits = memory.search(&query)?;
    let elapsed = start.elapsed().as_secs_f64() * 1000.0;
    if args.json {
        let mut answer = serde_json::Map::new();
        answer.extend(asked.id.clone().map(|id| ("id".to_owned(), id)));
        answer.insert("hits".into(), hits.iter().map(as_json).collect());
        let elapsed = json!((elapsed * 1000.0).round() / 1000.0);
        answer.insert("elapsed_ms".into(), elapsed);
        line(&Value::Object(answer).to_string())?;
        return Ok(());
    }
    if args.queries.is_some() {
        line(&format!("? {}", asked.text))?;
    }
    for hit in &hits {
        let Hit {
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
        let told = memory.level(session, *number, level)?;
        let told = String::from_utf8_lossy(&told);
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        let told: String = told.chars().take(100).collect();
        line(&harmless(&format!(
            "{score:>6.3}  {session}/T-{number}  {told}"
        )))?;
    }
    if hits.is_empty() {
        tell!("note: nothing was found");
    }
    Ok(())
}

fn as_json(hit: &Hit) -> Value {
    let id = format!("T-{}", hit.number);
    // A turn is called what it was called where it came from.
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
