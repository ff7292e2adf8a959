//! The command line of `selvedge memory`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use selvedge_memory::Level;

#[derive(Debug, Subcommand)]
pub(crate) enum MemoryCommand {
    /// Import conversations from files
    Import(MemoryImportArgs),
    /// Find turns by their content
    Search(MemorySearchArgs),
    /// Show a session as it appears in a prompt: older turns shorter, within a budget
    Show(MemoryShowArgs),
    /// Print one turn at a given level
    Turn(MemoryTurnArgs),
    /// Learn from new turns: topics, lessons, preferences, conventions, problems and their fixes
    Distill(MemoryDistillArgs),
    /// List the lessons learned
    Lessons(MemoryLessonsArgs),
    /// List proposed lessons, and accept or decline them
    Review(MemoryReviewArgs),
    /// Show the topics of this project over time, as a small chart
    Topics(MemoryTopicsArgs),
    /// Write reference texts about topics by hand, and list them
    #[command(subcommand)]
    Layer(MemoryLayerCommand),
    /// Show the brief of the project with which a new session of this folder starts
    Brief(MemoryBriefArgs),
    /// Show what memory would recall for a message, stage by stage
    Explain(MemoryExplainArgs),
    /// List projects, and repair them after folders were moved
    #[command(subcommand)]
    Project(MemoryProjectCommand),
    /// Plan again which turns a prompt contains at which level
    Replan(MemoryReplanArgs),
    /// Rebuild the index of words and the vectors
    Reindex(MemoryReindexArgs),
    /// Show the sessions and how much each level shortens them
    Stats(MemoryStatsArgs),
    /// Forget a session, a turn or a lesson, everywhere
    Forget(MemoryForgetArgs),
    /// Print conversations as lines of JSON, with secrets redacted
    Export(MemoryExportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct MemoryImportArgs {
    /// JSONL files, or session files of Codex or Claude Code; `-` for standard input
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Format of the files [default: detected from the first line]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<MemoryFormatArg>,

    /// Import another agent's session under this name
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum MemoryFormatArg {
    /// {"session","part"?,"turn","role","speaker"?,"ts"?,"text"}, one per line
    Jsonl,
    /// A session of Codex
    Codex,
    /// A session of Claude Code
    ClaudeCode,
}

#[derive(Debug, Args)]
pub(crate) struct MemorySearchArgs {
    /// Words to search for
    #[arg(required_unless_present = "queries", conflicts_with = "queries")]
    pub(crate) query: Vec<String>,

    /// Search only this session [default: all]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Maximum number of turns [default: 10, or as many as fit the budget]
    #[arg(short, value_name = "N")]
    pub(crate) k: Option<usize>,

    /// Maximum number of tokens, including tags
    #[arg(long, value_name = "TOKENS")]
    pub(crate) budget: Option<u32>,

    /// Read queries from a file, one per line: text, or {"id","query","session"?}; `-` for
    /// standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) queries: Option<PathBuf>,

    /// Print one line of JSON per query
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryShowArgs {
    /// The session to show [default: the only session]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Maximum number of tokens, including tags and a reserve for nine more turns [default:
    /// `memory.history_tokens`]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) budget: Option<u32>,

    /// Print the text even on a terminal
    #[arg(long)]
    pub(crate) text: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryTurnArgs {
    /// The turn, such as T-50
    pub(crate) turn: String,

    /// The session of the turn [default: the only session]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// R (raw), S (smoothed), C (compressed) or T (tiny)
    #[arg(long, value_name = "LEVEL", default_value = "R")]
    pub(crate) level: Level,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryDistillArgs {
    /// Distill only the project of this session [default: all]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Read new turns now, also if it is not due (the default)
    #[arg(long, conflicts_with = "due")]
    pub(crate) now: bool,

    /// Read new turns only of projects whose last pass was 12 hours ago or more
    #[arg(long)]
    pub(crate) due: bool,

    /// First write the levels by the model and the vectors of this session
    #[arg(long, value_name = "SESSION", hide = true, requires = "due")]
    pub(crate) finish: Option<String>,

    /// The provider of the turns of that session
    #[arg(long, value_name = "PROVIDER", hide = true, requires = "finish")]
    pub(crate) finish_provider: Option<String>,

    /// Send requests to the model again that have no answer, also if they may have been paid for
    #[arg(long, conflicts_with = "due")]
    pub(crate) retry: bool,

    /// Show the last pass of each project, what it used, and when the next one is due
    #[arg(long, conflicts_with_all = ["now", "due", "wait", "retry"])]
    pub(crate) status: bool,

    /// Wait for the results of the provider's batch
    #[arg(long)]
    pub(crate) wait: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryLessonsArgs {
    /// List only active lessons about this
    #[arg(long, value_name = "WORDS")]
    pub(crate) about: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryReviewArgs {
    /// Use this lesson from now on
    #[arg(long, value_name = "LESSON")]
    pub(crate) accept: Vec<String>,

    /// Reject this lesson and never propose it again
    #[arg(long, value_name = "LESSON")]
    pub(crate) decline: Vec<String>,

    /// Use this lesson in all projects
    #[arg(long, value_name = "LESSON")]
    pub(crate) user: Vec<String>,

    /// Use this lesson only in the project in which it was learned
    #[arg(long, value_name = "LESSON")]
    pub(crate) project: Vec<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryTopicsArgs {
    /// Show the topics of this session [default: those of the project of this folder]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Show the topics of all projects and sessions
    #[arg(long, conflicts_with = "session")]
    pub(crate) all: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryReplanArgs {
    /// Plan only this session [default: all]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryReindexArgs {
    /// Rebuild only this session [default: all]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemoryLayerCommand {
    /// Add a text of 500 to 5,000 tokens, which is used from now on
    Add(MemoryLayerAddArgs),
    /// Change the text, the title, the topics or the scope of a layer
    Edit(MemoryLayerEditArgs),
    /// Remove a layer
    Remove(MemoryLayerRemoveArgs),
    /// List the layers of this project and of the user
    List(MemoryLayerListArgs),
}

#[derive(Debug, Args)]
pub(crate) struct MemoryLayerAddArgs {
    /// The file with the text; `-` for standard input
    pub(crate) file: PathBuf,

    /// A topic that the text is about; can be repeated
    #[arg(long = "topic", value_name = "TOPIC")]
    pub(crate) topics: Vec<String>,

    /// The title [default: the first heading, or the name of the file]
    #[arg(long, value_name = "TITLE")]
    pub(crate) title: Option<String>,

    /// Use it in all projects, instead of the project of this folder
    #[arg(long)]
    pub(crate) user: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryLayerEditArgs {
    /// The id of the layer
    pub(crate) layer: String,

    /// The file with the new text; `-` for standard input
    pub(crate) file: Option<PathBuf>,

    /// A topic that the text is about; replaces the earlier topics, can be repeated
    #[arg(long = "topic", value_name = "TOPIC")]
    pub(crate) topics: Vec<String>,

    /// The new title
    #[arg(long, value_name = "TITLE")]
    pub(crate) title: Option<String>,

    /// Use it in all projects
    #[arg(long, conflicts_with = "project")]
    pub(crate) user: bool,

    /// Use it in the project of this folder only
    #[arg(long)]
    pub(crate) project: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryLayerRemoveArgs {
    /// The id of the layer
    pub(crate) layer: String,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryLayerListArgs {
    /// List the layers of all projects
    #[arg(long)]
    pub(crate) all: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryBriefArgs {
    /// Show the brief with which this session started
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryExplainArgs {
    /// The message of the user
    #[arg(required = true)]
    pub(crate) message: Vec<String>,

    /// Recall for this session [default: a new session of this folder]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemoryProjectCommand {
    /// List the projects with their folders, sessions and turns
    List(MemoryProjectListArgs),
    /// Keep the memory of a project whose folder was moved
    Move(MemoryProjectMoveArgs),
    /// Join the memory of two projects
    Merge(MemoryProjectMergeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct MemoryProjectListArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryProjectMoveArgs {
    /// The folder as it was
    pub(crate) old: PathBuf,

    /// The folder as it is now
    pub(crate) new: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryProjectMergeArgs {
    /// The folder of the project that ends
    pub(crate) from: PathBuf,

    /// The folder of the project that gets its sessions and lessons
    pub(crate) into: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryStatsArgs {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryForgetArgs {
    /// The session to forget
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Forget only this turn of the session, such as T-5
    #[arg(long, value_name = "TURN", requires = "session")]
    pub(crate) turn: Option<String>,

    /// Forget this lesson
    #[arg(long, value_name = "LESSON", conflicts_with_all = ["session", "turn"])]
    pub(crate) lesson: Option<String>,

    /// Do not ask
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryExportArgs {
    /// Export only this session [default: all]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Write to this file [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}
