//! Configuration: `$SELVEDGE_HOME/config.toml`, under a trusted project's `.selvedge/config.toml`,
//! under flags. Read once and handed down as plain values.

mod keys;
mod load;
mod rules;
mod trust;

pub use keys::{
    CommandLimits, Config, Expose, Inherit, JournalKeeping, MemoryKeys, MemoryStrategy, ScriptHarness,
    ShellEnvironmentPolicy, ToolPack, WeakerWall, WorkspaceWrite,
};
pub use load::{ConfigError, home, load};
pub use rules::{SavedRules, save_rule, saved_rules};
pub use trust::{is_trusted, trust};

/// Every key, its default and its meaning, as a Markdown table.
pub fn reference() -> String {
    keys::reference()
}
