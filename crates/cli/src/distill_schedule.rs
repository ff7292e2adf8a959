//! Starts the distilling of projects that are due: at the end of a command, as a process of its
//! own, and in the agent server. That process first finishes the session of the command.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use selvedge_config::Config;
use selvedge_memory::{DistillState, Memory, MemoryError};

use crate::memory_setup::small_model;
use crate::serve_host::JournalHost;
use crate::setup::CliSetup;

/// How often the server looks for projects that are due.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The session of a command that ends.
#[derive(Clone, Copy)]
pub(crate) struct EndedSession<'a> {
    pub(crate) id: &'a str,
    /// The provider of its turns, which serves `memory.model` if that names no other.
    pub(crate) provider: &'a str,
}

/// Transactions in which a command writes the levels by rules of its session. Others are written
/// when they are needed.
const MAX_LEVEL_TRANSACTIONS: u32 = 16;

/// Writes the levels by rules of the command's session, whose own task ended with the command. Then
/// starts a process that finishes what is left, and does not wait for it: it writes the levels by
/// the model and the vectors of the command's session, and distills the projects that are
/// due, unless `memory.distill_idle_minutes` is 0. Does nothing if nothing is left.
pub(crate) fn process_after_command(setup: &CliSetup, session: Option<EndedSession<'_>>) {
    let Some(memory) = &setup.memory else {
        return;
    };
    if let Some(session) = session
        && let Err(error) = write_levels(memory, session.id)
    {
        tracing::warn!(target: "selvedge::memory", %error, "levels are not written");
    }
    let started = unfinished_session(memory, &setup.config, session).and_then(|unfinished| {
        let is_due = is_enabled(&setup.config) && has_due_project(memory)?;
        match unfinished.is_some() || is_due {
            true => start_detached(setup, unfinished),
            false => Ok(()),
        }
    });
    if let Err(error) = started {
        let error = format!("{error:#}");
        tracing::warn!(target: "selvedge::memory", error, "lessons are not distilled");
    }
}

/// Writes the levels of a session by rules.
fn write_levels(memory: &Memory, session: &str) -> Result<(), MemoryError> {
    for _ in 0..MAX_LEVEL_TRANSACTIONS {
        if memory.write_levels(Some(session))?.remaining_turns == 0 {
            break;
        }
    }
    Ok(())
}

/// Returns the session if levels by a model or vectors of its turns are missing.
fn unfinished_session<'a>(
    memory: &Memory,
    config: &Config,
    session: Option<EndedSession<'a>>,
) -> Result<Option<EndedSession<'a>>> {
    let Some(session) = session else {
        return Ok(None);
    };
    let has_model = config.memory.model.is_some();
    let is_unfinished = (has_model && memory.has_turns_to_summarise(session.id)?)
        || memory.has_turns_to_encode(session.id)?;
    Ok(is_unfinished.then_some(session))
}

/// Asks the model for the levels of the next turns of a session, and writes all its vectors.
pub(crate) fn finish_session(
    memory: &Arc<Memory>,
    session: &str,
    provider: Option<&str>,
    config: &Config,
) -> Result<()> {
    let runtime = crate::run::runtime()?;
    let summarised = runtime.block_on(async {
        if let Some(model) = small_model(config, provider).await? {
            memory.summarise(session, model.as_ref()).await?;
        }
        anyhow::Ok(())
    });
    while memory.write_vectors(session)? > 0 {}
    summarised
}

/// Returns whether due passes begin by themselves.
pub(crate) fn is_enabled(config: &Config) -> bool {
    config.memory.distill_idle_minutes > 0
}

fn has_due_project(memory: &Memory) -> Result<bool> {
    Ok(memory.distill_states()?.iter().any(DistillState::is_due))
}

/// Starts `selvedge memory distill --due` in a process group of its own, so that it continues when
/// the terminal is closed or interrupted. It finishes the session first, if there is one.
fn start_detached(setup: &CliSetup, session: Option<EndedSession<'_>>) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(home) = &setup.home {
        command.env("SELVEDGE_HOME", std::path::absolute(home)?);
    }
    // The configuration of this folder names the model and the encoder.
    command
        .current_dir(&setup.directory)
        .args(["memory", "distill", "--due"]);
    if let Some(EndedSession { id, provider }) = session {
        command.args(["--finish", id, "--finish-provider", provider]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()?;
    Ok(())
}

/// Distills the projects that are due, at the start of the server and later, until it is aborted.
pub(crate) async fn distill_in_server(host: Arc<JournalHost>) {
    loop {
        if let Err(error) = distill_due_projects(&host).await {
            let error = format!("{error:#}");
            tracing::warn!(target: "selvedge::memory", error, "lessons are not distilled");
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

async fn distill_due_projects(host: &Arc<JournalHost>) -> Result<()> {
    let memory = host.memory()?;
    let states = memory
        .run_blocking(|memory| memory.distill_states())
        .await?;
    for state in states.iter().filter(|state| state.is_due()) {
        if let Err(error) = distill_project(host, state).await {
            let (error, session) = (format!("{error:#}"), &state.session);
            tracing::warn!(target: "selvedge::memory", session, error, "lessons are not distilled");
            let name = session.clone();
            memory
                .run_blocking(move |memory| memory.postpone_distilling(&name))
                .await?;
        }
    }
    Ok(())
}

async fn distill_project(host: &Arc<JournalHost>, state: &DistillState) -> Result<()> {
    let of_folder = |folder: &Path| Ok(host.configuration(folder)?.config);
    let user = host.user_configuration();
    let mut config = project_configuration(state, &user, of_folder)?;
    if !is_enabled(&config) {
        return Ok(());
    }
    config.journal = user.journal;
    let memory = host.memory_for(&config)?;
    let model = small_model(&config, None).await?;
    loop {
        match memory.distill(&state.session, model.as_deref()).await {
            Ok(distilled) if distilled.remaining_turns > 0 => {}
            Ok(_) | Err(MemoryError::DistillLocked(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the configuration with which a project is distilled: that of its folder, or that of the
/// user for a conversation without one. If the folder does not exist, it is not known whether its
/// turns may be sent to a model or an encoder, so the configuration names none.
pub(crate) fn project_configuration(
    state: &DistillState,
    user: &Config,
    of_folder: impl FnOnce(&Path) -> Result<Config>,
) -> Result<Config> {
    match state.directory.as_deref().map(Path::new) {
        None => Ok(user.clone()),
        Some(folder) if folder.is_dir() => of_folder(folder),
        Some(_) => {
            let mut config = user.clone();
            config.memory.model = None;
            if config.memory.encoder.is_some() {
                config.memory.encoder = Some("none".to_owned());
            }
            Ok(config)
        }
    }
}
