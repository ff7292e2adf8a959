//! The command line of `selvedge sessions`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// List sessions, the one last used first
    List(SessionsListArgs),
    /// Show a session: what was said and done, in order
    Show(SessionArgs),
    /// Give a session a name
    Rename(SessionsRenameArgs),
    /// Begin a new session like another, up to a turn
    Fork(SessionsForkArgs),
    /// Write a session as JSON, one line per item, without its secrets
    Export(SessionsExportArgs),
    /// Take in a session that `export` wrote
    Import(SessionsImportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SessionsListArgs {
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u32,

    /// Those that agents began, too
    #[arg(long)]
    pub(crate) all: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    /// The session: its id, the beginning of it, or its name
    pub(crate) session: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsRenameArgs {
    /// The session
    pub(crate) session: String,

    /// Its new name
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsForkArgs {
    /// The session
    pub(crate) session: String,

    /// The last turn that is taken over [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) turn: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsExportArgs {
    /// The session
    pub(crate) session: String,

    /// Where to; standard output where none is named
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsImportArgs {
    /// A file that `export` wrote
    pub(crate) file: PathBuf,
}
