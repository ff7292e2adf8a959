//! Projects: sessions that share their memory, and which sessions another session may read.
//!
//! A project is found by its root: the git common directory of a folder, or the folder itself. The
//! caller determines the root. The id of the project is stored, so that it stays the same when the
//! folder is moved ([`Memory::move_project`]).

use selvedge_database::{Connection, NamedLockMode, params};
use selvedge_protocol::{MemoryScope, new_id};
use serde::Serialize;

use crate::distill_unit::unit_key;
use crate::store::{create_session, execute, query_first, query_rows};
use crate::{Memory, MemoryError};

/// The folder of a session, and what identifies its project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectPlace {
    /// The folder in which the session works.
    pub directory: String,
    /// The git common directory of the folder, or the folder itself.
    pub root: String,
}

/// A project, with its size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryProject {
    /// The id: `prj_…`.
    pub id: String,
    /// The folders that identify it.
    pub roots: Vec<String>,
    /// The number of its sessions.
    pub sessions: u32,
    /// The number of turns of its sessions.
    pub turns: u32,
}

/// Which memory a session may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryAccess {
    /// The name of the session; empty if there is none.
    pub session: String,
    /// The id of the project; `None` for the project of the session.
    pub project: Option<String>,
    /// What is read without approval. A session without a project reads only itself, unless this
    /// is [`MemoryScope::All`].
    pub scope: MemoryScope,
    /// Folders whose sessions may be read, without the folders below, whatever the scope is;
    /// `None` for no restriction.
    pub folders: Option<Vec<String>>,
}

impl MemoryAccess {
    /// Access to the project of a session, in all folders.
    pub fn new(session: &str) -> Self {
        Self {
            session: session.to_owned(),
            project: None,
            scope: MemoryScope::Project,
            folders: None,
        }
    }

    /// The same access with another scope.
    pub fn with_scope(&self, scope: MemoryScope) -> Self {
        Self {
            scope,
            ..self.clone()
        }
    }

    fn allows_folder(&self, directory: Option<&str>) -> bool {
        let Some(folders) = &self.folders else {
            return true;
        };
        directory.is_some_and(|directory| folders.iter().any(|folder| folder == directory))
    }
}

/// The sessions that an access reaches, as a search takes them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReadableSessions {
    /// The only session, if it is one.
    pub(crate) session: Option<String>,
    /// The project of the sessions; `None` for all.
    pub(crate) project: Option<String>,
    /// The names of the sessions, if folders restrict them.
    pub(crate) names: Option<Vec<String>>,
}

impl Memory {
    /// Assigns a session to the project with this root, which is created if it does not exist, and
    /// returns the id of the project. A session that has a project keeps it.
    pub fn join_project(&self, session: &str, place: &ProjectPlace) -> Result<String, MemoryError> {
        if let Some(project) = self.project_of(session)? {
            return Ok(project);
        }
        self.write(|connection| {
            create_session(connection, session)?;
            let project = project_at(connection, &place.root)?;
            assign(connection, session, &project, Some(&place.directory))?;
            Ok(project)
        })
    }

    /// Returns the project of a session; `None` if it has none.
    pub fn project_of(&self, session: &str) -> Result<Option<String>, MemoryError> {
        self.read(|reader| project_of(&reader.connection, session))
    }

    /// Returns the id of the project with this root; `None` if there is none.
    pub fn find_project(&self, root: &str) -> Result<Option<String>, MemoryError> {
        self.read(|reader| find_project(&reader.connection, root))
    }

    /// Returns the id of the project with this root, which is created if there is none.
    pub fn open_project(&self, root: &str) -> Result<String, MemoryError> {
        match self.find_project(root)? {
            Some(project) => Ok(project),
            None => self.write(|connection| project_at(connection, root)),
        }
    }

    /// Assigns the sessions that were stored before there were projects, and the lessons learned
    /// from them. `place_of` returns the place of a session; `None` if it has no folder, such as
    /// an imported conversation. Returns the number of sessions.
    pub fn adopt_sessions(
        &self,
        mut place_of: impl FnMut(&str) -> Option<ProjectPlace>,
    ) -> Result<usize, MemoryError> {
        let sql = "SELECT name FROM memory_sessions WHERE project IS NULL";
        let names: Vec<String> =
            self.read(|reader| query_rows(&reader.connection, sql, params![], |row| row.get(0)))?;
        if names.is_empty() {
            return Ok(0);
        }
        let places: Vec<Option<ProjectPlace>> = names.iter().map(|name| place_of(name)).collect();
        self.write(|connection| {
            for (name, place) in names.iter().zip(&places) {
                match place {
                    Some(place) => {
                        let project = project_at(connection, &place.root)?;
                        assign(connection, name, &project, Some(&place.directory))?;
                    }
                    None => assign(connection, name, "", None)?,
                }
            }
            // A lesson from several projects is used in all of them.
            let sql = "UPDATE memory_lessons SET project = coalesce((
                 SELECT CASE WHEN min(coalesce(project, '')) = max(coalesce(project, ''))
                     THEN min(project) END
                 FROM memory_sources JOIN memory_sessions ON memory_sessions.id = session
                 WHERE lesson = memory_lessons.id), '') WHERE project IS NULL";
            execute(connection, sql, params![])?;
            Ok(names.len())
        })
    }

    /// Returns all projects, the one with the newest session first.
    pub fn projects(&self) -> Result<Vec<MemoryProject>, MemoryError> {
        self.read(|reader| {
            let sql = "SELECT project, count(*), CAST(sum(turns) AS BIGINT) FROM memory_sessions
                 WHERE project <> '' GROUP BY project ORDER BY max(id) DESC";
            let mut projects: Vec<MemoryProject> =
                query_rows(&reader.connection, sql, params![], |row| {
                    Ok(MemoryProject {
                        id: row.get(0)?,
                        roots: Vec::new(),
                        sessions: row.get(1)?,
                        turns: row.get(2)?,
                    })
                })?;
            let sql = "SELECT root FROM memory_projects WHERE project = ?1 ORDER BY root";
            for project in &mut projects {
                project.roots = query_rows(&reader.connection, sql, params![project.id], |row| {
                    row.get(0)
                })?;
            }
            Ok(projects)
        })
    }

    /// Gives the project of a root another root, after its folder was moved. `folders` are the old
    /// and the new folder: sessions in the old one, or below, count as in the new one. Fails if
    /// the old root has no project, or if the new one has another.
    pub fn move_project(
        &self,
        (old_root, new_root): (&str, &str),
        (old_folder, new_folder): (&str, &str),
    ) -> Result<String, MemoryError> {
        self.write(|connection| {
            let project = require_project(connection, old_root)?;
            match find_project(connection, new_root)? {
                Some(other) if other != project => {
                    return Err(MemoryError::ProjectExists(new_root.to_owned()));
                }
                _ => {}
            }
            let sql = "DELETE FROM memory_projects WHERE root = ?1";
            execute(connection, sql, params![old_root])?;
            insert_root(connection, new_root, &project)?;
            for (table, column) in [("memory_sessions", "project"), ("memory_areas", "unit")] {
                let sql = format!(
                    "UPDATE {table} SET directory = ?3 || substr(directory, length(?2) + 1)
                     WHERE {column} = ?1
                     AND (directory = ?2 OR substr(directory, 1, length(?2) + 1) = ?2 || '/')"
                );
                connection.execute(&sql, params![project, old_folder, new_folder])?;
            }
            Ok(project)
        })
    }

    /// Adds the sessions, lessons and roots of a project to another one. Returns the id of the
    /// project that remains.
    pub fn merge_projects(&self, from_root: &str, into_root: &str) -> Result<String, MemoryError> {
        self.write(|connection| {
            let from = require_project(connection, from_root)?;
            let into = require_project(connection, into_root)?;
            for table in ["memory_projects", "memory_sessions"] {
                let sql = format!("UPDATE {table} SET project = ?2 WHERE project = ?1");
                connection.execute(&sql, params![from, into])?;
            }
            move_unit(connection, &from, &into)?;
            Ok(into)
        })
    }

    /// Returns the sessions that an access reaches.
    pub(crate) fn readable_sessions(
        &self,
        access: &MemoryAccess,
    ) -> Result<ReadableSessions, MemoryError> {
        self.read(|reader| readable_sessions(&reader.connection, access))
    }

    /// Returns whether an access reaches a session.
    pub fn can_read(&self, access: &MemoryAccess, session: &str) -> Result<bool, MemoryError> {
        if access.session == session {
            return Ok(true);
        }
        self.read(|reader| {
            let connection = &reader.connection;
            let sql = "SELECT project, directory FROM memory_sessions WHERE name = ?1";
            let found: Option<(Option<String>, Option<String>)> =
                query_first(connection, sql, params![session], |row| row.try_into())?;
            let Some((project, directory)) = found else {
                return Ok(false);
            };
            let in_scope = match access.scope {
                MemoryScope::Session => false,
                MemoryScope::Project => {
                    let own = own_project(connection, access)?;
                    own.is_some() && own == project
                }
                MemoryScope::All => true,
            };
            Ok(in_scope && access.allows_folder(directory.as_deref()))
        })
    }
}

pub(crate) fn readable_sessions(
    connection: &Connection,
    access: &MemoryAccess,
) -> Result<ReadableSessions, MemoryError> {
    let only_own = || ReadableSessions {
        session: Some(access.session.clone()),
        ..ReadableSessions::default()
    };
    let project = match access.scope {
        MemoryScope::Session => return Ok(only_own()),
        MemoryScope::Project => match own_project(connection, access)? {
            Some(project) => Some(project),
            None => return Ok(only_own()),
        },
        MemoryScope::All => None,
    };
    let names = match &access.folders {
        None => None,
        Some(_) => {
            let sql = "SELECT name, directory FROM memory_sessions";
            let all: Vec<(String, Option<String>)> =
                query_rows(connection, sql, params![], |row| row.try_into())?;
            let is_readable = |(name, directory): &(String, Option<String>)| {
                *name == access.session || access.allows_folder(directory.as_deref())
            };
            let readable = all.into_iter().filter(is_readable);
            Some(readable.map(|(name, _)| name).collect())
        }
    };
    Ok(ReadableSessions {
        session: None,
        project,
        names,
    })
}

/// Returns the project of an access; `None` if its session has none.
pub(crate) fn own_project(
    connection: &Connection,
    access: &MemoryAccess,
) -> Result<Option<String>, MemoryError> {
    match &access.project {
        Some(project) => Ok(Some(project.clone())),
        None => project_of(connection, &access.session),
    }
}

/// Returns the key of the lessons that an access reaches besides those of the user: the project, or
/// the session without one. Empty if there is no such session.
pub(crate) fn own_unit(
    connection: &Connection,
    access: &MemoryAccess,
) -> Result<String, MemoryError> {
    if let Some(project) = own_project(connection, access)? {
        return Ok(project);
    }
    let sql = "SELECT id FROM memory_sessions WHERE name = ?1";
    let id: Option<i64> = query_first(connection, sql, params![access.session], |row| row.get(0))?;
    Ok(id.map_or(String::new(), |id| unit_key("", id)))
}

/// Returns the project of a session; `None` if it has none.
fn project_of(connection: &Connection, session: &str) -> Result<Option<String>, MemoryError> {
    let sql = "SELECT coalesce(project, '') FROM memory_sessions WHERE name = ?1";
    let project: Option<String> = query_first(connection, sql, params![session], |row| row.get(0))?;
    Ok(project.filter(|project| !project.is_empty()))
}

fn find_project(connection: &Connection, root: &str) -> Result<Option<String>, MemoryError> {
    let sql = "SELECT project FROM memory_projects WHERE root = ?1";
    query_first(connection, sql, params![root], |row| row.get(0))
}

fn require_project(connection: &Connection, root: &str) -> Result<String, MemoryError> {
    find_project(connection, root)?.ok_or_else(|| MemoryError::ProjectNotFound(root.to_owned()))
}

/// Returns the project with this root, which is created if there is none.
fn project_at(connection: &Connection, root: &str) -> Result<String, MemoryError> {
    connection.lock_name("memory_projects", NamedLockMode::Exclusive);
    if let Some(project) = find_project(connection, root)? {
        return Ok(project);
    }
    let project = new_id("prj");
    insert_root(connection, root, &project)?;
    Ok(project)
}

fn insert_root(connection: &Connection, root: &str, project: &str) -> Result<(), MemoryError> {
    let sql = "INSERT INTO memory_projects (root, project) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    execute(connection, sql, params![root, project])?;
    Ok(())
}

/// Assigns a session that has no project, and what was learned in it.
fn assign(
    connection: &Connection,
    session: &str,
    project: &str,
    directory: Option<&str>,
) -> Result<(), MemoryError> {
    let sql = "UPDATE memory_sessions SET project = ?2, directory = ?3
         WHERE name = ?1 AND coalesce(project, '') = ''";
    execute(connection, sql, params![session, project, directory])?;
    let sql = "SELECT id FROM memory_sessions WHERE name = ?1";
    let id: Option<i64> = query_first(connection, sql, params![session], |row| row.get(0))?;
    match id {
        Some(id) if !project.is_empty() => move_unit(connection, &unit_key("", id), project),
        _ => Ok(()),
    }
}

/// Moves the lessons and requests of a project, or of a session without one, to another project.
fn move_unit(connection: &Connection, from: &str, into: &str) -> Result<(), MemoryError> {
    let sql = "UPDATE memory_lessons SET project = ?2 WHERE project = ?1";
    execute(connection, sql, params![from, into])?;
    let sql = "UPDATE memory_requests SET unit = ?2 WHERE unit = ?1";
    execute(connection, sql, params![from, into])?;
    for table in ["memory_passes", "memory_areas"] {
        let sql = format!("DELETE FROM {table} WHERE unit = ?1");
        connection.execute(&sql, params![from])?;
    }
    Ok(())
}
