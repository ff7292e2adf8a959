//! What clients of the agent server see of the health of a workspace: the checks of `selvedge
//! doctor`, and the state of the memory.

use std::sync::Arc;

use selvedge_memory::{LessonStatus, Memory};
use selvedge_server::{HostError, HostedCheck, HostedCheckState, HostedLesson};
use selvedge_text::count_noun;

use crate::doctor::check_for_server;
use crate::memory::ago;
use crate::serve_errors::failed;
use crate::serve_memory_views::read;
use crate::session_configuration::SessionConfiguration;

/// Checks a folder, on a thread that may block.
pub(crate) async fn check_folder(
    configuration: SessionConfiguration,
    folder: &str,
) -> Result<Vec<HostedCheck>, HostError> {
    let folder = folder.to_owned();
    let check = move || anyhow::Ok(check_for_server(&configuration.into_setup()?, &folder));
    let checked = tokio::task::spawn_blocking(check).await;
    let checked = checked.map_err(HostError::failed)?;
    checked.map_err(|error| failed(&error))
}

/// Describes the memory of a folder: its sessions, and the lessons that its clients see.
pub(crate) async fn memory_state(
    memory: Arc<Memory>,
    sessions: Vec<String>,
    lessons: &[HostedLesson],
) -> Result<String, HostError> {
    let is_proposed = |lesson: &&HostedLesson| lesson.status == LessonStatus::Proposed.as_str();
    let proposals = lessons.iter().filter(is_proposed).count();
    read(memory, move |memory| {
        let mut turns = 0;
        for session in &sessions {
            turns += memory.turn_count(session)?;
        }
        // The sessions of a folder belong to one project.
        let state = match sessions.last() {
            Some(session) => memory.distill_state(session)?,
            None => None,
        };
        let turns = count_noun(turns, "turn");
        let compared = match memory.compares_meanings() {
            true => "words and meanings",
            false => "words",
        };
        let pass = match state.and_then(|state| state.last_pass) {
            None => "no lessons were learned yet".to_owned(),
            Some(pass) => match pass.ended_ms {
                Some(ended_ms) => format!("lessons were learned {} ago", ago(ended_ms)),
                None => format!("learning began {} ago", ago(pass.started_ms)),
            },
        };
        let proposals = count_noun(proposals, "proposal");
        Ok(format!(
            "{turns} stored, found by {compared}; {pass}; {proposals} for review"
        ))
    })
    .await
}

/// Returns the state of the memory as a check.
pub(crate) fn memory_check(state: Result<String, HostError>) -> HostedCheck {
    let (state, details) = match state {
        Ok(details) => (HostedCheckState::Passed, details),
        Err(error) => (HostedCheckState::Failed, error.message),
    };
    HostedCheck {
        what: "project memory".to_owned(),
        state,
        details,
    }
}
