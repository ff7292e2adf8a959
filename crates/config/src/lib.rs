//! Configuration files: `$SELVEDGE_HOME/config.toml`, overridden by a trusted project's
//! `.selvedge/config.toml`. Flags override both; the caller applies them.
//!
//! [`Config`] is the only definition of a key. The check of files, the JSON Schema and the
//! reference in docs/configuration.md are derived from it.
// Standard streams belong to the program that uses this crate.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod check;
mod effects;
mod keys;
mod load;
mod mcp;
mod merge;
mod project;
mod rules;
mod schema;
mod trust;

pub use check::{Diagnostic, DiagnosticSubject, Severity};
pub use effects::{EffectKind, ProjectEffect, project_effects};
pub use keys::{
    AgentSettings, Config, EnvironmentSettings, ExposeSettings, FeatureSettings, JournalSettings,
    McpServer, MemoryBatch, MemorySettings, MemoryStrategy, ModelProvider, ModelScriptSettings,
    ModelSettings, ProviderOrigin, ScriptHarnessSettings, ServeSettings, WebAccessSettings,
    WorkspaceSettings, WorkspaceWriteSettings,
};
pub use load::{ConfigError, UserFile, home, load, load_with, place_of_key};
pub use mcp::{project_servers, servers_in_project_config};
pub use project::{PROJECT_FILES, Project};
pub use rules::{
    SavedFolderRules, SavedModelServer, SavedRules, save_host, save_model_server, save_rule,
    saved_rules,
};
pub use schema::{reference, schema};
pub use trust::{TrustState, distrust, trust, trust_state};
