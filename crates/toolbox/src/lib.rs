//! The built-in tools. Each is one file and one line here.

mod aliases;
mod apply_patch;
mod blocking;
mod capture;
mod commands;
mod commit;
mod ending;
mod environment;
mod exec;
mod exec_command;
mod file_search;
mod grep_files;
mod judge;
mod list_dir;
mod patch;
mod preview;
mod read_file;
mod slot;
mod terminals;
mod turn_diff;
mod update_plan;
mod view_image;
mod walk;
mod workspace;
mod write_file;

pub use commands::{CommandSettings, Commands, Rule, Rules, SaveRule};
pub use environment::{EnvironmentPolicy, Inherit};
pub use judge::{CommandView, Safety, covered_by, judge_command, prefix_of, shown};
pub use turn_diff::{ChangeKind, ChangedFile, Diff, TurnDiff};
pub use update_plan::Plan;
pub use workspace::Workspace;

use crate::terminals::Terminals;
use selvedge_tools::{Registry, RegistryError};

/// The built-in tools, and what they share with whoever registers them.
#[derive(Clone)]
pub struct Toolbox {
    /// Where they work.
    pub workspace: Workspace,
    /// The plan they keep.
    pub plan: Plan,
    /// What they changed.
    pub turn_diff: TurnDiff,
    /// How they run commands.
    pub commands: Commands,
}

impl Toolbox {
    /// Tools over a workspace, with default settings.
    pub fn new(workspace: Workspace) -> Self {
        Self::with_commands(workspace, CommandSettings::default())
    }

    /// Tools over a workspace that run commands in this way.
    pub fn with_commands(workspace: Workspace, settings: CommandSettings) -> Self {
        let turn_diff = TurnDiff::new(&workspace);
        let commands = Commands::new(&workspace, &turn_diff, settings);
        Self { workspace, plan: Plan::default(), turn_diff, commands }
    }

    /// Registers them all.
    pub fn register(&self, registry: &mut Registry) -> Result<(), RegistryError> {
        let Self { workspace, plan, turn_diff, commands } = self;
        let terminals = Terminals::default();
        registry.register(apply_patch::apply_patch(workspace, turn_diff))?;
        registry.register(exec::exec(commands))?;
        registry.register(exec_command::exec_command(commands, &terminals))?;
        registry.register(exec_command::write_stdin(&terminals))?;
        registry.register(file_search::file_search(workspace))?;
        registry.register(grep_files::grep_files(workspace))?;
        registry.register(list_dir::list_dir(workspace))?;
        registry.register(read_file::read_file(workspace))?;
        registry.register(update_plan::update_plan(plan))?;
        registry.register(view_image::view_image(workspace))?;
        registry.register(write_file::write_file(workspace, turn_diff))?;
        for (alias, name) in aliases::TOOL_ALIASES {
            registry.alias(alias, name);
        }
        Ok(())
    }
}
