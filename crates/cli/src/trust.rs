//! Decides whether the files of a folder may configure Selvedge. They can start programs and change
//! which calls need approval.

use std::io::{BufRead, IsTerminal};
use std::path::Path;

use anyhow::Result;
use selvedge_config::{Project, TrustState};

use crate::output::eprint_text;
use crate::problem::Problem;

/// Returns the project if its files are trusted. Asks once if there is a terminal.
pub(crate) fn trusted_project(
    project: Project,
    home: Option<&Path>,
    trust_now: bool,
) -> Result<Option<Project>> {
    let directory = project.folder.clone();
    let files: Vec<&str> = project.files().map(|(name, _)| name).collect();
    if files.is_empty() {
        return Ok(None);
    }
    let by_environment = std::env::var("SELVEDGE_TRUST").is_ok_and(|value| value == "1");
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
        return Ok(Some(project));
    }
    if let (Some(home), TrustState::Unknown | TrustState::Changed, true) = (home, before, can_ask())
    {
        if ask_for_trust(&directory, &files, before) {
            selvedge_config::trust(home, &project).map_err(cannot_save)?;
            return Ok(Some(project));
        }
        selvedge_config::distrust(home, &project).map_err(cannot_save)?;
    }
    let why = match before {
        TrustState::Changed => "it has changed since this folder was trusted",
        _ => "this folder is not trusted",
    };
    for file in files {
        let file = directory.join(file).display().to_string();
        eprint_line!("note: {file} is ignored: {why}");
    }
    eprint_line!("hint: pass --trust to use the files of this folder");
    Ok(None)
}

fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

fn ask_for_trust(directory: &Path, files: &[&str], before: TrustState) -> bool {
    let since = match before {
        TrustState::Changed => ", changed since you trusted it",
        _ => "",
    };
    let question = format!(
        "? {} has its own {}, \
         which can start programs and change which calls need approval{since}.\n  \
         Trust this folder from now on? [y/N] ",
        selvedge_text::visible_line(&directory.display().to_string()),
        files.join(" and ")
    );
    eprint_text(&question);
    // If the terminal is gone, the empty answer means no.
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    matches!(line.trim().to_lowercase().as_str(), "y" | "yes")
}
