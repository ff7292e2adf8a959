//! Connections to the journal's file or database: opening it for reading and writing, and small
//! query helpers.

use std::path::Path;
use std::time::Duration;

use selvedge_database::{Connection, FromColumn, OptionalRow, Params};

use crate::{ComponentSchema, JournalError, JournalLocation};

/// The name of the journal's file in its folder.
pub(crate) const FILE_NAME: &str = "journal.sqlite";
/// How long a connection waits for a lock that another one holds. A write usually takes well under
/// a millisecond.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens the database of a journal for the tables of `schema`. Creates the folder and the file if
/// they do not exist. Fails without a write if a newer version of Selvedge wrote the database.
pub(crate) fn open_read_write(
    location: &JournalLocation,
    schema: &ComponentSchema,
) -> Result<Connection, JournalError> {
    let folder = location.folder();
    if let Some(pool) = location.pool() {
        let connection = Connection::from_pool(&pool);
        schema.check_versions(&connection)?;
        return Ok(connection);
    }
    let file = |error| JournalError::File {
        path: folder.to_owned(),
        error,
    };
    create_private_folder(folder).map_err(file)?;
    let path = folder.join(FILE_NAME);
    create_private(&path).map_err(|error| JournalError::File {
        path: path.clone(),
        error,
    })?;
    let connection = Connection::open_file(&path, BUSY_TIMEOUT)?;
    // Until the versions are checked, closing the connection must not move the log into the file.
    connection.keep_log_on_close(true)?;
    schema.check_versions(&connection)?;
    connection.keep_log_on_close(false)?;
    connection.use_log(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Like [`open_read_write`], with a connection that is never taken for anything else, and that is
/// lost if a database does not answer in time.
pub(crate) fn open_own(
    location: &JournalLocation,
    schema: &ComponentSchema,
    answer_timeout: Duration,
) -> Result<Connection, JournalError> {
    let Some(database) = location.database() else {
        return open_read_write(location, schema);
    };
    let connection = Connection::open_postgres(database)?;
    connection.set_answer_timeout(answer_timeout);
    schema.check_versions(&connection)?;
    Ok(connection)
}

/// Creates a folder that other users cannot read. One that exists stays as it is.
pub(crate) fn create_private_folder(path: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Creates the file if it does not exist, and removes all permissions of other users. A file that
/// exists is not opened: closing it would release the locks that other connections of this process
/// have on it, and another program could then delete the log.
#[cfg(unix)]
fn create_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let created = std::fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path);
    match created {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        created => return created.map(drop),
    }
    let mut permissions = path.metadata()?.permissions();
    if permissions.mode() & 0o077 != 0 {
        permissions.set_mode(0o600);
        std::fs::set_permissions(path, permissions)?;
    }
    Ok(())
}

/// Does nothing: on other systems the permissions of the folder apply.
#[cfg(not(unix))]
fn create_private(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Executes a statement through the connection's cache of prepared statements.
pub(crate) fn execute(
    connection: &Connection,
    sql: &str,
    params: Params<'_>,
) -> Result<(), JournalError> {
    connection.prepare_cached(sql)?.execute(params)?;
    Ok(())
}

/// Returns the first column of all rows.
pub(crate) fn query_column<T: FromColumn>(
    connection: &Connection,
    sql: &str,
    params: Params<'_>,
) -> Result<Vec<T>, JournalError> {
    let mut read = connection.prepare_cached(sql)?;
    let rows = read.query_map(params, |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the first column of the first row, or `None` if there is no row.
pub(crate) fn query_first<T: FromColumn>(
    connection: &Connection,
    sql: &str,
    params: Params<'_>,
) -> Result<Option<T>, JournalError> {
    let mut read = connection.prepare_cached(sql)?;
    Ok(read.query_row(params, |row| row.get(0)).optional()?)
}

/// Returns the SQL condition that a column with a folder is one of some folders, or lies below.
/// `folders` is a parameter with a list as JSON.
pub(crate) fn in_folders_condition(column: &str, folders: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM json_each({folders}) WHERE {column} = value
            OR substr({column}, 1, length(rtrim(value, '/')) + 1) = rtrim(value, '/') || '/')"
    )
}
