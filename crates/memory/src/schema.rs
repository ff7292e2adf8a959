//! The memory's tables in the journal's file.

use selvedge_journal::SchemaMigration::{Contract, Expand};
use selvedge_journal::{ComponentSchema, MEMORY_SCHEMA_VERSION};

/// The migrations that create the tables.
pub(crate) const MEMORY_TABLES: ComponentSchema = ComponentSchema {
    component: "memory",
    migrations: &[
        Expand(include_str!("schema.sql")),
        Expand(include_str!("projects.sql")),
        Expand(include_str!("turn_records.sql")),
        Contract {
            sql: include_str!("offline.sql"),
            compatible_since: 4,
        },
        Expand(include_str!("folder_sessions.sql")),
        Contract {
            sql: include_str!("folders.sql"),
            compatible_since: 6,
        },
        Expand(include_str!("locks.sql")),
        Expand(include_str!("late_usage.sql")),
    ],
};

/// Returns the schema of the memory's tables, for programs that copy or check a whole store.
pub fn memory_schema() -> ComponentSchema {
    MEMORY_TABLES
}

// The lease of a process says which version it knows.
const _: () = assert!(MEMORY_TABLES.migrations.len() == MEMORY_SCHEMA_VERSION as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_that_removes_something_says_so() {
        for migration in MEMORY_TABLES.migrations {
            if let Expand(sql) = migration {
                for removal in ["DROP ", "RENAME ", "DELETE FROM "] {
                    assert!(!sql.contains(removal), "{removal}in an expansion: {sql}");
                }
            }
        }
    }
}
