//! The memory's tables in the journal's file.

use selvedge_journal::Tables;

/// The migrations that create the tables.
pub(crate) const TABLES: Tables = Tables {
    component: "memory",
    migrations: &[include_str!("schema.sql")],
};
