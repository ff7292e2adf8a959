//! `selvedge memory project`: lists projects, and repairs them after folders were moved.

use std::path::{Path, PathBuf};

use anyhow::Result;
use selvedge_memory::{Memory, MemoryProject};
use selvedge_text::count_noun;

use super::args::{MemoryProjectCommand, MemoryProjectListArgs};
use crate::CliStatus;
use crate::memory_setup::project_place;
use crate::output::print_line;
use crate::problem::Problem;

pub(super) fn project(memory: &Memory, command: &MemoryProjectCommand) -> Result<CliStatus> {
    match command {
        MemoryProjectCommand::List(args) => list(memory, args),
        MemoryProjectCommand::Move(args) => {
            let (old, new) = (stored_root(memory, &args.old)?, absolute(&args.new)?);
            let place = project_place(&new);
            let old_folder = absolute(&args.old)?.display().to_string();
            let project = memory.move_project(
                (&old, &place.root),
                (&old_folder, &new.display().to_string()),
            )?;
            eprint_line!("moved {project} to {}", place.root);
            Ok(CliStatus::Success)
        }
        MemoryProjectCommand::Merge(args) => {
            let (from, into) = (
                stored_root(memory, &args.from)?,
                stored_root(memory, &args.into)?,
            );
            let project = memory.merge_projects(&from, &into)?;
            eprint_line!("merged {from} into {project}");
            Ok(CliStatus::Success)
        }
    }
}

fn list(memory: &Memory, args: &MemoryProjectListArgs) -> Result<CliStatus> {
    let projects = memory.projects()?;
    if args.json {
        return crate::output::print_json(&projects);
    }
    for project in &projects {
        let MemoryProject {
            id,
            roots,
            sessions,
            turns,
        } = project;
        let (sessions, turns) = (count_noun(*sessions, "session"), count_noun(*turns, "turn"));
        print_line(&format!("{id}  {sessions}, {turns}  {}", roots.join(", ")))?;
    }
    if projects.is_empty() {
        eprint_line!("note: no projects yet; a session of an agent creates the one of its folder");
    }
    Ok(CliStatus::Success)
}

/// Returns the root under which the project of a folder is stored. The folder may be gone.
fn stored_root(memory: &Memory, folder: &Path) -> Result<String> {
    let folder = absolute(folder)?;
    let candidates = [
        PathBuf::from(project_place(&folder).root),
        folder.join(".git"),
        folder.clone(),
    ];
    for root in candidates {
        let root = root.display().to_string();
        if memory.find_project(&root)?.is_some() {
            return Ok(root);
        }
    }
    let folder = folder.display();
    Err(
        Problem::new(format!("there is no project in the folder {folder}"))
            .hint("run `selvedge memory project list` to list the projects")
            .into(),
    )
}

/// Returns the absolute path of a folder, with links resolved if it exists.
fn absolute(folder: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(folder)?;
    Ok(absolute.canonicalize().unwrap_or(absolute))
}
