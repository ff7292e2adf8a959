//! Decides whether the files of a folder may configure Selvedge. They can start programs and change
//! which calls need approval.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::Result;
use selvedge_config::{EffectKind, Project, ProjectEffect, TrustState, project_effects};

use crate::args::WorkspaceArgs;
use crate::ask::confirm;
use crate::instructions::InstructionUse;
use crate::problem::Problem;

/// Whether a person can be asked to trust a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TrustQuestion {
    #[default]
    Allowed,
    /// In the background of another command.
    Never,
}

/// What may be used of a folder's files.
pub(crate) struct TrustDecision {
    /// The configuration files, if they are trusted.
    pub(crate) project: Option<Project>,
    pub(crate) instructions: InstructionUse,
}

/// Decides which files of a folder are used. Asks once if there is a terminal. Only a folder with
/// configuration files is asked about; `instructions` are the files of the project with
/// instructions for the model, which are followed unless the user declined.
pub(crate) fn decide_trust(
    project: Project,
    instructions: &[PathBuf],
    home: Option<&Path>,
    flags: &WorkspaceArgs,
) -> Result<TrustDecision> {
    let trust_now = flags.trust;
    let can_ask = flags.trust_question == TrustQuestion::Allowed && has_terminal();
    let trusted = |project| TrustDecision {
        project,
        instructions: InstructionUse::Follow,
    };
    let directory = project.folder.clone();
    let files: Vec<&str> = project.files().map(|(name, _)| name).collect();
    if files.is_empty() {
        return Ok(trusted(None));
    }
    // The variable is about the folder of the command, not about those of sessions that it serves.
    let is_of_command = flags.trust_question == TrustQuestion::Allowed || flags.directory.is_none();
    let by_environment =
        is_of_command && std::env::var("SELVEDGE_TRUST").is_ok_and(|value| value == "1");
    let before = home.map_or(TrustState::Unknown, |home| {
        selvedge_config::trust_state(home, &project)
    });
    let cannot_save = |error: std::io::Error| {
        Problem::new(format!(
            "cannot save whether {} is trusted: {error}",
            directory.display()
        ))
        .hint("set SELVEDGE_HOME to a writable folder")
    };
    if let (true, Some(home)) = (trust_now, home) {
        selvedge_config::trust(home, &project).map_err(cannot_save)?;
    }
    if trust_now || by_environment || before == TrustState::Trusted {
        return Ok(trusted(Some(project)));
    }
    let mut state = before;
    if let (Some(home), TrustState::Unknown | TrustState::Changed, true) = (home, before, can_ask) {
        let question = trust_question(&project, instructions, before, home);
        match confirm(&question, "Trust this folder", "Do not trust it") {
            Some(true) => {
                selvedge_config::trust(home, &project).map_err(cannot_save)?;
                return Ok(trusted(Some(project)));
            }
            Some(false) => {
                selvedge_config::distrust(home, &project).map_err(cannot_save)?;
                state = TrustState::Declined;
            }
            None => {}
        }
    }
    let why = match before {
        TrustState::Changed => {
            "the configuration files of this folder have changed since it was trusted"
        }
        _ => "this folder is not trusted",
    };
    let mut ignored: Vec<PathBuf> = files.iter().map(|file| directory.join(file)).collect();
    let instructions = match state {
        TrustState::Declined => {
            ignored.extend(instructions.iter().cloned());
            InstructionUse::Ignore
        }
        _ => InstructionUse::Follow,
    };
    for file in ignored {
        eprint_line!("note: {} is ignored: {why}", file.display());
    }
    eprint_line!("hint: pass --trust to use the files of this folder");
    Ok(TrustDecision {
        project: None,
        instructions,
    })
}

fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Returns the question, which names everything that trust would start, change and follow.
fn trust_question(
    project: &Project,
    instructions: &[PathBuf],
    before: TrustState,
    home: &Path,
) -> String {
    let since = match before {
        TrustState::Changed => ", changed since you trusted it",
        _ => "",
    };
    let names: Vec<&str> = project.files().map(|(name, _)| name).collect();
    let mut text = format!(
        "? {:?} has its own {}{since}.\n  If you trust this folder, Selvedge will:\n",
        project.folder,
        names.join(" and ")
    );
    let effects = project_effects(project, Some(home));
    for ProjectEffect {
        kind,
        text: what,
        file,
    } in &effects
    {
        let verb = match kind {
            EffectKind::Program => "start",
            EffectKind::Connection => "connect",
            EffectKind::Setting => "set",
        };
        let what = selvedge_text::visible_line(what);
        text.push_str(&format!("  {verb:<8} {what}  [{file}]\n"));
    }
    for path in instructions {
        text.push_str(&format!(
            "  {:<8} {path:?}, instructions for the model\n",
            "follow"
        ));
    }
    let count = |kind| effects.iter().filter(|effect| effect.kind == kind).count();
    // The totals stand next to the question, because a long list scrolls.
    text.push_str(&format!(
        "  In all: programs {}, connections {}, settings {}, instructions {}.\n",
        count(EffectKind::Program),
        count(EffectKind::Connection),
        count(EffectKind::Setting),
        instructions.len()
    ));
    text.push_str("  Trust this folder from now on?\n");
    text
}
