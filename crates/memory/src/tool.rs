//! `history.getTurn("T-50", "S")`: an earlier turn at any level, for scripts and as a structured call.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_tools::{Tool, ToolError, tool};
use serde::{Deserialize, Serialize};

use crate::{Level, Memory, MemoryError};

/// Which turn, and how much of it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// The turn, such as T-50.
    turn: String,
    /// R raw, S smoothed, C compressed or T tiny.
    #[serde(default = "smoothed")]
    level: Level,
}

fn smoothed() -> Level {
    Level::Smoothed
}

/// The turn.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// The turn, such as T-50.
    turn: String,
    /// How it is told.
    level: Level,
    /// What was said and done.
    text: String,
}

/// The tool that fetches earlier turns of a session. What it fetched stays on the announcement board for five turns.
pub fn get_turn(memory: Arc<Memory>, session: &str) -> impl Tool + use<> {
    let session = session.to_owned();
    let run = move |args: Args| {
        let (memory, session) = (memory.clone(), session.clone());
        async move {
            let fetched = tokio::task::spawn_blocking(move || {
                let text = memory.get_turn(&session, &args.turn, args.level)?;
                Ok::<_, MemoryError>(Output {
                    turn: args.turn,
                    level: args.level,
                    text,
                })
            });
            match fetched.await {
                Ok(Ok(output)) => Ok(output),
                Ok(Err(error)) => {
                    let hint = "turns are named by their tags: <T-50-R> is T-50";
                    Err(ToolError::new(error.to_string()).suggest(hint))
                }
                Err(_) => Err(ToolError::new("fetching the turn was given up")),
            }
        }
    };
    tool(
        "history.get_turn",
        "Fetches an earlier turn of this session in more detail, by the name in its tag.",
        run,
    )
    .read_only()
    .positional(&["turn", "level"])
    .aliases([("turnId", "turn"), ("turn_id", "turn"), ("id", "turn")])
    .render(|output| output.text.clone())
}
