//! `selvedge memory turn`: prints one turn at a level.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use selvedge_memory::{Memory, MemoryError, turn_number};
use serde_json::Value;

use super::args::TurnArgs;
use crate::Exit;
use crate::out::line;

pub(super) fn turn(memory: &Memory, args: &TurnArgs) -> Result<Exit> {
    let session = super::session(memory, args.session.as_deref())?;
    let missing = || MemoryError::NoTurn {
        session: session.clone(),
        turn: args.turn.clone(),
    };
    // A turn is named by its number, or by the name it had in an imported file.
    let number = match turn_number(&args.turn) {
        Some(number) => number,
        None => memory
            .number_of(&session, &Value::from(args.turn.as_str()).to_string())?
            .ok_or_else(missing)?,
    };
    if number > memory.turns(&session)? {
        memory.turn(&session, 1).map_err(|error| match error {
            error @ MemoryError::NoSession(_) => error,
            _ => missing(),
        })?;
        return Err(missing().into());
    }
    let bytes = memory.level(&session, number, args.level)?;
    if std::io::stdout().is_terminal() {
        line(&String::from_utf8_lossy(&bytes))?;
        return Ok(Exit::Done);
    }
    match std::io::stdout().lock().write_all(&bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(Exit::Done),
    }
}
