//! Configuration: `$SELVEDGE_HOME/config.toml`, under a trusted project's `.selvedge/config.toml`,
//! under flags. Read once and handed down as plain values.
// Standard streams belong to whoever runs this.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod keys;
mod load;
mod mcp;
mod project;
mod rules;
mod trust;

pub use keys::{
    CommandLimits, Config, Durability, Expose, Inherit, JournalKeeping, MemoryBatch, MemoryKeys,
    MemoryStrategy, ModelProvider, ModelSettings, ReasoningEffort, ScriptHarness,
    ShellEnvironmentPolicy, ThinkingStyle, TokenPrices, ToolPack, WeakerWall, Web, WorkspaceWrite,
};
pub use load::{ConfigError, home, load};
pub use mcp::{McpApproval, McpSampling, McpServer, project_servers};
pub use project::{PROJECT_FILES, Project};
pub use rules::{SavedRules, save_host, save_rule, saved_rules};
pub use trust::{Trust, distrust, trust, trusted};

/// Every key, its default and its meaning, as a Markdown table.
pub fn reference() -> String {
    keys::reference()
}

/// Every key of an MCP server, its default and its meaning, as a Markdown table.
pub fn mcp_reference() -> String {
    keys::mcp_reference()
}

/// Every key of a provider and of a model, as two Markdown tables.
pub fn reference_of_models() -> String {
    keys::reference_of_models()
}
