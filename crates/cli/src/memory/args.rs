//! The command line of `selvedge memory`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use selvedge_memory::Level;

#[derive(Debug, Subcommand)]
pub(crate) enum MemoryCommand {
    /// Remember conversations from files
    Import(ImportArgs),
    /// Find turns by what they are about
    Search(SearchArgs),
    /// Show a session as a prompt has it: the older the shorter, within a budget
    Show(ShowArgs),
    /// Print one turn, at any level
    Turn(TurnArgs),
    /// Read what is new and learn from it: topics, preferences, errors and their cures
    Distill(DistillArgs),
    /// List what was learned
    Lessons(LessonsArgs),
    /// Accept or decline what waits for a person
    Review(ReviewArgs),
    /// Tell what there is, and how far each level brings it down
    Stats(StatsArgs),
    /// Forget a session, a turn or a lesson, everywhere
    Forget(ForgetArgs),
    /// Print conversations as lines, without their secrets
    Export(ExportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Files of lines, or session files of Codex or Claude Code; `-` for standard input
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// What the files hold [default: told from their first line]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<FormatArg>,

    /// Remember another agent's session under this name
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum FormatArg {
    /// {"session","part"?,"turn","role","speaker"?,"ts"?,"text"}, one per line
    Jsonl,
    /// A session of Codex
    Codex,
    /// A session of Claude Code
    ClaudeCode,
}

#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// What to look for, in words
    #[arg(required_unless_present = "queries", conflicts_with = "queries")]
    pub(crate) query: Vec<String>,

    /// Only in this session [default: in all]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// At most so many turns [default: 10, or as many as the budget holds]
    #[arg(short, value_name = "N")]
    pub(crate) k: Option<usize>,

    /// At most so many tokens, tags counted
    #[arg(long, value_name = "TOKENS")]
    pub(crate) budget: Option<u32>,

    /// Many queries from a file, one per line: text, or {"id","query","session"?}; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) queries: Option<PathBuf>,

    /// Print one line of JSON per query
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The session [default: the only one there is]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Tokens in all, tags and room for nine more turns counted [default: `memory.budget` of the configuration]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) budget: Option<u32>,

    /// Print the text, also on a terminal
    #[arg(long)]
    pub(crate) text: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TurnArgs {
    /// The turn, such as T-50
    pub(crate) turn: String,

    /// Its session [default: the only one there is]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// R raw, S smoothed, C compressed or T tiny
    #[arg(long, value_name = "LEVEL", default_value = "R")]
    pub(crate) level: Level,
}

#[derive(Debug, Args)]
pub(crate) struct DistillArgs {
    /// Only this session [default: all]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Wait for what was handed over to a provider's batch
    #[arg(long)]
    pub(crate) wait: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LessonsArgs {
    /// Only those in use that are about this
    #[arg(long, value_name = "WORDS")]
    pub(crate) about: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReviewArgs {
    /// Use it from now on
    #[arg(long, value_name = "LESSON")]
    pub(crate) accept: Vec<String>,

    /// Do not use it, and do not propose it again
    #[arg(long, value_name = "LESSON")]
    pub(crate) decline: Vec<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// The session
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Only this turn of it, such as T-5
    #[arg(long, value_name = "TURN", requires = "session")]
    pub(crate) turn: Option<String>,

    /// A lesson
    #[arg(long, value_name = "LESSON", conflicts_with_all = ["session", "turn"])]
    pub(crate) lesson: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Only this session [default: all]
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,

    /// Write to this file [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}
