//! The built-in tools. Each tool is one file and one line in [`Toolbox::register`].
// Standard streams belong to the program that uses this crate.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod aliases;
mod apply_patch;
mod blocking;
mod cabinet;
mod capture;
mod channels;
mod command_access;
mod command_request;
mod command_safety;
mod commands;
mod commit;
mod credentials;
mod edit_file;
mod environment;
mod exec;
mod exec_command;
mod fetch_from_fc;
#[cfg(feature = "web")]
mod fetch_url;
mod file_replacement;
mod file_search;
mod git_files;
mod grep_files;
mod hidden_paths;
#[cfg(feature = "web")]
mod http;
mod ignore_rules;
mod image_data;
mod list_dir;
mod nearest_text;
mod offer;
mod one_or_many;
mod other_workspaces;
mod packs;
mod parent_folders;
mod patch;
mod preview;
mod programs;
mod prompts;
mod protected_paths;
mod read_coverage;
mod read_file;
mod repository;
mod revert;
mod rewritable_files;
mod running_command;
mod safe_git;
mod sandbox_denial;
mod save_to_fc;
mod secret_access;
mod sessions;
mod target_file;
mod terminals;
mod text_file;
mod turn_diff;
mod update_plan;
mod view_image;
mod walk;
#[cfg(feature = "web")]
mod web;
#[cfg(feature = "web")]
mod web_search;
mod workspace;
mod workspace_documents;
mod workspace_query;
mod workspace_read;
mod workspace_write;
mod worktree;
mod write_file;

pub use channels::ChannelAccess;
pub use command_safety::{
    CommandClassification, CommandSafety, classify_command, display_command, is_covered_by_rules,
    rule_prefix,
};
pub use commands::{CommandRule, CommandRules, CommandRunner, CommandSettings, SaveCommandRule};
pub use file_replacement::{FileReplacement, FileReplacementError, replace_files};
pub use git_files::project_root;
pub use ignore_rules::refused_ignore_files;
pub use image_data::{
    ImageDataError, MAX_IMAGE_FILE_BYTES, PreparedImage, is_image, prepare_image,
};
pub use offer::ToolsConfig;
pub use other_workspaces::OtherWorkspaces;
pub use packs::{PackError, PackSelection, ToolPacks};
pub use programs::{FoundProgram, find_program, safe_search_path, writable_place};
pub use revert::{RevertError, changes_diff, is_reverted, revert_changes};
pub use safe_git::system_git;
pub use selvedge_protocol::{PatchFlavour, ShellFlavour};
pub use sessions::{SessionAccess, SessionEnvironment};
pub use turn_diff::{ChangeKind, ChangedFile, TurnDiffTracker, WorkspaceDiff};
pub use update_plan::SharedPlan;
#[cfg(feature = "web")]
pub use web::{NameResolver, SaveHost, SearchService, WebAccess, WebService, WebSettings};
pub use workspace::{Workspace, WorkspacePaths};
pub use workspace_documents::WorkspaceDocuments;
pub use worktree::{
    SessionWorktree, WorktreeError, WorktreeRules, is_in_repository, remove_session_worktree,
    worktrees_folder,
};

use std::sync::Arc;

use crate::terminals::Terminals;
use selvedge_protocol::DocumentStore;
use selvedge_tools::{Registry, RegistryError, TaskSet};

/// Creates the tools for background tasks. A task runs `exec` unless the script names another tool.
pub fn command_tasks() -> TaskSet {
    TaskSet::with_default_tool("exec", "\"exec\", { command: [\"make\"] }")
}

/// The tools that change files by themselves. Commands may change files, too.
pub const FILE_CHANGING_TOOLS: [&str; 3] = ["apply_patch", "edit_file", "write_file"];

/// The built-in tools, and the state that they share with the embedder.
#[derive(Clone)]
pub struct Toolbox {
    /// The folder that the tools work in.
    pub workspace: Workspace,
    /// The plan that `update_plan` writes.
    pub plan: SharedPlan,
    /// The changes of files in the current turn.
    pub turn_diff: TurnDiffTracker,
    /// Runs commands under confinement.
    pub commands: CommandRunner,
    /// Stores documents. In memory by default; an embedder can replace it before `register`.
    pub cabinet: Arc<dyn DocumentStore>,
    /// The Markdown documents of the workspace. All of its Markdown files by default.
    pub documents: WorkspaceDocuments,
    /// The channels. `None` by default: every call of their tools fails.
    pub channels: Option<ChannelAccess>,
    /// Other sessions. `None` by default: every call of their tools fails.
    pub sessions: Option<SessionAccess>,
    /// The web client.
    #[cfg(feature = "web")]
    pub web: WebAccess,
    /// Whether to register the tool `http`. Off by default.
    #[cfg(feature = "web")]
    pub offer_http: bool,
}

impl Toolbox {
    /// Creates the tools for a workspace with default settings.
    pub fn new(workspace: Workspace) -> Self {
        Self::with_command_settings(workspace, CommandSettings::default())
    }

    /// Creates the tools for a workspace with these settings for commands.
    pub fn with_command_settings(workspace: Workspace, settings: CommandSettings) -> Self {
        let turn_diff = TurnDiffTracker::new(&workspace);
        let commands = CommandRunner::new(&workspace, &turn_diff, settings);
        let documents = WorkspaceDocuments::with_default_globs(&workspace);
        Self {
            documents,
            workspace,
            plan: SharedPlan::default(),
            turn_diff,
            commands,
            cabinet: Arc::new(cabinet::InMemoryCabinet::default()),
            channels: None,
            sessions: None,
            #[cfg(feature = "web")]
            web: WebAccess::new(WebSettings::default()),
            #[cfg(feature = "web")]
            offer_http: false,
        }
    }

    /// Registers all tools and their aliases.
    pub fn register(&self, registry: &mut Registry) -> Result<(), RegistryError> {
        let workspace = || self.workspace.clone();
        let (commands, cabinet) = (|| self.commands.clone(), || self.cabinet.clone());
        let (turn_diff, documents) = (|| self.turn_diff.clone(), || self.documents.clone());
        let (channels, sessions) = (|| self.channels.clone(), || self.sessions.clone());
        let terminals = Terminals::default();
        registry.register(apply_patch::ApplyPatch(workspace(), turn_diff()))?;
        registry.register(channels::ChannelFollow(channels()))?;
        registry.register(channels::ChannelList(channels()))?;
        registry.register(channels::ChannelPost(channels()))?;
        registry.register(channels::ChannelRead(channels()))?;
        registry.register(edit_file::EditFile(workspace(), turn_diff()))?;
        registry.register(exec::Exec(commands()))?;
        registry.register(exec_command::ExecCommand(commands(), terminals.clone()))?;
        registry.register(exec_command::WriteStdin(terminals))?;
        registry.register(fetch_from_fc::FetchFromFc(cabinet()))?;
        registry.register(file_search::FileSearch(workspace()))?;
        registry.register(grep_files::GrepFiles(workspace()))?;
        registry.register(list_dir::ListDir(workspace()))?;
        registry.register(prompts::PromptsGet(cabinet()))?;
        registry.register(prompts::PromptsSave(cabinet()))?;
        registry.register(read_file::ReadFile(workspace()))?;
        registry.register(save_to_fc::SaveToFc(workspace(), cabinet()))?;
        registry.register(sessions::SessionCreate(sessions()))?;
        registry.register(sessions::SessionGet(sessions()))?;
        registry.register(sessions::SessionList(sessions()))?;
        registry.register(sessions::SessionSend(sessions()))?;
        registry.register(update_plan::UpdatePlan(self.plan.clone()))?;
        registry.register(view_image::ViewImage(workspace()))?;
        registry.register(workspace_query::WorkspaceQuery(documents()))?;
        registry.register(workspace_read::WorkspaceRead(workspace(), documents()))?;
        registry.register(workspace_write::WorkspaceWrite(
            workspace(),
            turn_diff(),
            documents(),
        ))?;
        registry.register(write_file::WriteFile(workspace(), turn_diff(), cabinet()))?;
        #[cfg(feature = "web")]
        {
            let web = || self.web.clone();
            registry.register(fetch_url::FetchUrl(web(), cabinet()))?;
            registry.register(web_search::WebSearch(web(), cabinet()))?;
            if self.offer_http {
                registry.register(http::Http(web()))?;
            }
        }
        aliases::register_aliases(registry);
        Ok(())
    }
}
