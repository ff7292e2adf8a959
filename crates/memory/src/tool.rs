//! The tool `history.get_turn` (`tools.history.getTurn("T-50", "S")` in scripts): fetches an
//! earlier turn of this session, or of another session of the project, at any level.

use std::sync::Arc;

use schemars::JsonSchema;
use selvedge_protocol::{CallReach, MemoryScope, ToolSpec};
use selvedge_tools::{CallContext, CallFuture, Risk, Tool, ToolError, spec_of, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::board::split_turn_name;
use crate::{Level, Memory, MemoryAccess};

/// Why a call needs approval that reads more than `memory.scope` allows.
pub(crate) const WIDER_SCOPE_REASON: &str = "reads the memory of other projects";

/// The arguments of `history.get_turn`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct GetTurnArgs {
    /// The turn, such as T-50, or ses_x/T-50 for a turn of another session.
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
pub fn get_turn_tool(memory: Arc<Memory>, access: MemoryAccess) -> impl Tool + use<> {
    GetTurnTool(memory, access)
}

/// The tool `history.get_turn` of a session.
struct GetTurnTool(Arc<Memory>, MemoryAccess);

impl GetTurnTool {
    /// Returns the access that a call needs. If the turn is in a session outside of the scope, it
    /// is that to all sessions, for which the call needs approval.
    fn access_for(&self, turn: &str) -> MemoryAccess {
        let Self(memory, access) = self;
        let (session, _) = split_turn_name(&access.session, turn);
        let all = access.with_scope(MemoryScope::All);
        // A read that fails is repeated by the call, which reports the error.
        let can = |access: &MemoryAccess| memory.can_read(access, session).unwrap_or(false);
        match !can(access) && can(&all) {
            true => all,
            false => access.clone(),
        }
    }
}

/// Returns the description of the tool `history.get_turn`.
pub fn get_turn_spec() -> ToolSpec {
    let description = "Returns an earlier turn in more detail, by its name.";
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

    fn risk(&self, args: &Value) -> Risk {
        let turn = args["turn"].as_str().unwrap_or_default();
        match self.access_for(turn).scope > self.1.scope {
            true => Risk::NeedsApproval {
                reason: WIDER_SCOPE_REASON.to_owned(),
            },
            false => Risk::Harmless,
        }
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let run = async |GetTurnArgs { turn, level }| {
            let access = self.access_for(&turn);
            let fetch = move |memory: &Arc<Memory>| {
                let text = memory.get_turn(&access, &turn, level)?;
                Ok(GetTurnOutput { turn, level, text })
            };
            self.0.run_blocking(fetch).await.map_err(|error| {
                let hint = "use the name in a turn's tag: T-50 for <T-50-R>, or ses_x/T-50";
                ToolError::new(error.to_string()).suggest(hint)
            })
        };
        typed_call(args, run, |output: &GetTurnOutput| {
            Some(output.text.clone())
        })
    }
}
