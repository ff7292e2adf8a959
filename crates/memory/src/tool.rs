//! The tool `history.get_turn` (`history.getTurn("T-50", "S")` in scripts): fetches an earlier turn
//! at any level.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_tools::{Tool, ToolError, tool};
use serde::{Deserialize, Serialize};

use crate::{Level, Memory, MemoryError};

/// The arguments of `history.get_turn`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct GetTurnArgs {
    /// The turn, such as T-50.
    turn: String,
    /// R raw, S smoothed (the default), C compressed or T tiny.
    #[serde(default = "smoothed")]
    level: Level,
}

fn smoothed() -> Level {
    Level::Smoothed
}

/// The result of `history.get_turn`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct GetTurnOutput {
    /// The turn, such as T-50.
    turn: String,
    /// The level of the text.
    level: Level,
    /// The text of the turn at this level.
    text: String,
}

/// Creates the tool `history.get_turn` for a session. A fetched turn is announced on the board for
/// the next turns.
pub fn get_turn_tool(memory: Arc<Memory>, session: &str) -> impl Tool + use<> {
    let session = session.to_owned();
    let run = move |args: GetTurnArgs| {
        let (memory, session) = (memory.clone(), session.clone());
        async move {
            let fetched = tokio::task::spawn_blocking(move || {
                let text = memory.get_turn(&session, &args.turn, args.level)?;
                Ok::<_, MemoryError>(GetTurnOutput {
                    turn: args.turn,
                    level: args.level,
                    text,
                })
            });
            match fetched.await {
                Ok(Ok(output)) => Ok(output),
                Ok(Err(error)) => {
                    let hint = "use the name in a turn's tag: T-50 for <T-50-R>";
                    Err(ToolError::new(error.to_string()).suggest(hint))
                }
                Err(_) => Err(ToolError::new("cannot fetch the turn: the task failed")),
            }
        }
    };
    tool(
        "history.get_turn",
        "Returns an earlier turn of this session in more detail, by the name in its tag.",
        run,
    )
    .read_only()
    .positional(&["turn", "level"])
    .aliases([("turnId", "turn"), ("turn_id", "turn"), ("id", "turn")])
    .render(|output| output.text.clone())
}
