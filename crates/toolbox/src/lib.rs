//! The built-in tools. Each is one file and one line here.

mod aliases;
mod blocking;
mod file_search;
mod grep_files;
mod list_dir;
mod read_file;
mod update_plan;
mod view_image;
mod walk;
mod workspace;
mod write_file;

pub use update_plan::{Plan, Step, StepStatus};
pub use workspace::Workspace;

use selvedge_tools::{Registry, RegistryError};

/// Registers every built-in tool over a workspace.
pub fn register(registry: &mut Registry, workspace: &Workspace, plan: &Plan) -> Result<(), RegistryError> {
    registry.register(file_search::file_search(workspace))?;
    registry.register(grep_files::grep_files(workspace))?;
    registry.register(list_dir::list_dir(workspace))?;
    registry.register(read_file::read_file(workspace))?;
    registry.register(update_plan::update_plan(plan))?;
    registry.register(view_image::view_image(workspace))?;
    registry.register(write_file::write_file(workspace))?;
    Ok(())
}
