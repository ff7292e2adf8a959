//! The memory's tables in the journal's file.

use selvedge_journal::{ComponentSchema, MEMORY_SCHEMA_VERSION};

/// The migrations that create the tables.
pub(crate) const MEMORY_TABLES: ComponentSchema = ComponentSchema {
    component: "memory",
    migrations: &[
        include_str!("schema.sql"),
        include_str!("projects.sql"),
        include_str!("turn_records.sql"),
        include_str!("offline.sql"),
        include_str!("folder_sessions.sql"),
        include_str!("folders.sql"),
    ],
};

/// Returns the schema of the memory's tables, for programs that copy or check a whole store.
pub fn memory_schema() -> ComponentSchema {
    MEMORY_TABLES
}

// The journal refuses to write a file with a newer memory, so it must know the version.
const _: () = assert!(MEMORY_TABLES.migrations.len() == MEMORY_SCHEMA_VERSION as usize);
