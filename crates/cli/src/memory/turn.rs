//! `selvedge memory turn`: prints one turn at a level.

use anyhow::Result;
use selvedge_memory::{Memory, MemoryError, parse_turn_number};
use serde_json::Value;

use super::args::MemoryTurnArgs;
use crate::CliStatus;
use crate::output::print_bytes;

pub(super) fn turn(memory: &Memory, args: &MemoryTurnArgs) -> Result<CliStatus> {
    let session = super::resolve_session(memory, args.session.as_deref())?;
    let missing = || MemoryError::TurnNotFound {
        session: session.clone(),
        turn: args.turn.clone(),
    };
    // A turn is named by its number, or by the name it had in an imported file.
    let number = match parse_turn_number(&args.turn) {
        Some(number) => number,
        None => memory
            .find_turn_by_key(&session, &Value::from(args.turn.as_str()).to_string())?
            .ok_or_else(missing)?,
    };
    if number > memory.turn_count(&session)? {
        memory.turn(&session, 1).map_err(|error| match error {
            error @ MemoryError::SessionNotFound(_) => error,
            _ => missing(),
        })?;
        return Err(missing().into());
    }
    let bytes = memory.turn_at_level(&session, number, args.level)?;
    print_bytes(&bytes)?;
    Ok(CliStatus::Success)
}
