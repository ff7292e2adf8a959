//! Ends turns of the agent server whose agent could not be set up.

use std::sync::Arc;

use selvedge_agent::Session;
use selvedge_journal::Journal;
use selvedge_protocol::{ClaimedMessage, EventSink, RuntimeEvent, TurnError, TurnErrorKind, Usage};

use crate::problem::Problem;
use crate::session_runner::input_of_message;

/// Ends the turn of a message whose agent could not be set up, so that clients and the session see
/// the failure.
pub(crate) async fn fail_turn(
    journal: &Arc<Journal>,
    session: &str,
    claimed: &ClaimedMessage,
    problem: &Problem,
    events: &EventSink,
) {
    let error = TurnError::new(TurnErrorKind::Setup, problem.to_string());
    // The setup has closed the session.
    let recorded = async {
        let mut session = Session::open(journal, session).await?;
        let input = input_of_message(&claimed.message);
        session.fail_turn(input, error.clone()).await
    };
    if let Err(error) = recorded.await {
        tracing::error!(session, %error, "cannot record the failed turn");
    }
    if !claimed.begun {
        let turn = claimed.turn;
        events.emit(RuntimeEvent::TurnStarted { turn });
    }
    events.emit(RuntimeEvent::TurnFailed {
        turn: claimed.turn,
        error,
        hint: problem.hints().first().cloned(),
        usage: Usage::default(),
        cost: None,
    });
}
