//! The command line of `selvedge sessions`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// List sessions, most recently used first
    List(SessionsListArgs),
    /// Show the messages, scripts and calls of a session
    Show(SessionsShowArgs),
    /// Queue a message for a session; with --wait, run its turn and print the answer
    Send(SessionsSendArgs),
    /// Stop the running turn of a session, in whatever process it runs
    Stop(SessionsStopArgs),
    /// Show what a session changed in its git worktree, or what a turn changed
    Diff(SessionsDiffArgs),
    /// Merge what a session changed in its git worktree into its folder
    Apply(SessionsApplyArgs),
    /// Delete the git worktree of a session, with its changes
    Discard(SessionsDiscardArgs),
    /// Undo the file changes of a turn, if the files have not changed since
    Revert(SessionsRevertArgs),
    /// Delete a session from the journal and from memory
    Delete(SessionsDeleteArgs),
    /// Set the name of a session
    Rename(SessionsRenameArgs),
    /// Copy a session up to a turn into a new session
    Fork(SessionsForkArgs),
    /// Write a session as JSON, one line per item, with secrets redacted
    Export(SessionsExportArgs),
    /// Import a session that `export` wrote
    Import(SessionsImportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SessionsListArgs {
    /// Maximum number of sessions
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u32,

    /// Also list the sessions of sub-agents
    #[arg(long)]
    pub(crate) all: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsShowArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsSendArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// Text of the message; `-` reads standard input; may be omitted with --wait
    #[arg(required_unless_present = "wait")]
    pub(crate) message: Option<String>,

    /// Run the queued messages of the session, and print the last answer
    #[arg(long)]
    pub(crate) wait: bool,

    /// Print the message and its answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsStopArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// Also stop the sessions that it created, directly or through others
    #[arg(long)]
    pub(crate) children: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsDiffArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// Show what this turn changed [default: all changes in the worktree, else the last turn that
    /// changed files]
    #[arg(long, value_name = "N")]
    pub(crate) turn: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsApplyArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// Print the changed files as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsDiscardArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// Do not ask
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsRevertArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// Number of the turn [default: the last one that changed files]
    #[arg(long, value_name = "N")]
    pub(crate) turn: Option<u32>,

    /// Print the restored files as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsDeleteArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// Do not ask
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsRenameArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// New name of the session
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsForkArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// Last turn to copy [default: all turns]
    #[arg(long, value_name = "N")]
    pub(crate) turn: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsExportArgs {
    /// Id of the session, a prefix of the id, or its name
    pub(crate) session: String,

    /// File to write [default: standard output]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsImportArgs {
    /// File that `selvedge sessions export` wrote
    pub(crate) file: PathBuf,
}
