//! The tool `history.get_turn` (`tools.history.getTurn("T-50", "S")` in scripts): fetches an
//! earlier turn at any level.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{CallReach, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, spec_of, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Level, Memory};

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
    GetTurnTool(memory, session.to_owned())
}

/// The tool `history.get_turn` of a session.
struct GetTurnTool(Arc<Memory>, String);

/// Returns the description of the tool `history.get_turn`.
pub fn get_turn_spec() -> ToolSpec {
    let description =
        "Returns an earlier turn of this session in more detail, by the name in its tag.";
    let spec = spec_of::<GetTurnArgs, GetTurnOutput>("history.get_turn", description);
    ToolSpec {
        aliases: vec![("turnId", "turn"), ("turn_id", "turn"), ("id", "turn")],
        ..spec
            .as_read_only()
            .with_positional(&["turn", "level"])
            .with_reach(CallReach::Local)
    }
}

impl Tool for GetTurnTool {
    fn spec(&self) -> ToolSpec {
        get_turn_spec()
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let run = async |GetTurnArgs { turn, level }| {
            let session = self.1.clone();
            let fetch = move |memory: &Arc<Memory>| {
                let text = memory.get_turn(&session, &turn, level)?;
                Ok(GetTurnOutput { turn, level, text })
            };
            self.0.run_blocking(fetch).await.map_err(|error| {
                let hint = "use the name in a turn's tag: T-50 for <T-50-R>";
                ToolError::new(error.to_string()).suggest(hint)
            })
        };
        typed_call(args, run, |output: &GetTurnOutput| {
            Some(output.text.clone())
        })
    }
}
