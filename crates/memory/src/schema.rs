//! The memory's tables in the journal's file.

use selvedge_journal::SchemaMigration::Expand;
use selvedge_journal::{ComponentSchema, MEMORY_SCHEMA_VERSION};

/// The migrations that create the tables.
pub(crate) const MEMORY_TABLES: ComponentSchema = ComponentSchema {
    component: "memory",
    migrations: &[
        Expand(include_str!("schema.sql")),
        Expand(include_str!("projects.sql")),
        Expand(include_str!("turn_records.sql")),
        Expand(include_str!("offline.sql")),
        Expand(include_str!("folder_sessions.sql")),
        Expand(include_str!("folders.sql")),
        Expand(include_str!("late_usage.sql")),
    ],
};

/// Returns the schema of the memory's tables, for programs that copy or check a whole store.
pub fn memory_schema() -> ComponentSchema {
    MEMORY_TABLES
}

// The lease of a process says which version it knows.
const _: () = assert!(MEMORY_TABLES.migrations.len() == MEMORY_SCHEMA_VERSION as usize);
