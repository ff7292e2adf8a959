//! The memory's tables in the journal's file.

use selvedge_journal::ComponentSchema;

/// The migrations that create the tables.
pub(crate) const MEMORY_TABLES: ComponentSchema = ComponentSchema {
    component: "memory",
    migrations: &[include_str!("schema.sql")],
};
