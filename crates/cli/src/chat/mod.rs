//! `selvedge` and `selvedge continue`: a chat in the terminal.
//!
//! A turn runs in its own task and reports to the chat through the channel in [`updates`] only.
//! Pure functions render the state as rows ([`turn_view`], [`markdown`], [`call_list`],
//! [`approval_prompt`], [`status`]). Only [`screen`] writes to the terminal.

mod app;
mod approval_prompt;
mod call_list;
mod choice_list;
mod command_actions;
mod commands;
mod completion;
mod conversation;
mod diff;
mod editor;
mod form_prompt;
mod highlight;
mod history;
mod history_search;
mod images;
mod inbox;
mod journal_lists;
mod keys;
mod markdown;
mod other_programs;
mod pending_question;
mod proposals;
mod recent_turns;
mod rows;
mod screen;
mod script_view;
mod scroll_view;
mod session_actions;
mod shell_command;
mod status;
mod streamed_text;
mod table;
mod terminal;
mod theme;
mod turn_view;
mod updates;
mod view;

use anyhow::Result;
use ratatui_core::text::Span;

use self::app::Chat;
pub(crate) use self::history::remove_from_history;
pub(crate) use self::rows::truncate;
use self::rows::{StyledRow, sanitize_line, wrap_rows};
pub(crate) use self::status::format_usage;
pub(crate) use self::streamed_text::StreamedMarkdown;
pub(crate) use self::theme::Theme;
use crate::CliStatus;
use crate::agent_setup::{self, SessionChoice};
use crate::args::{ChatCommandArgs, ContinueArgs};
use crate::distill_schedule::{EndedSession, process_after_command};
use crate::journal::JournalNeed;

/// Starts a chat in a new session or the last one of this folder, with a first message if there is
/// one.
pub(crate) fn chat(
    args: ChatCommandArgs,
    continue_last: bool,
    message: Option<String>,
) -> Result<CliStatus> {
    let choice = match continue_last {
        true => SessionChoice::Existing(None),
        false => SessionChoice::New,
    };
    run_chat(args, choice, message)
}

pub(crate) fn continue_session(args: ContinueArgs) -> Result<CliStatus> {
    run_chat(args.chat, SessionChoice::Existing(args.session), None)
}

fn run_chat(
    args: ChatCommandArgs,
    choice: SessionChoice,
    message: Option<String>,
) -> Result<CliStatus> {
    terminal::require_terminal()?;
    let journal = match &choice {
        SessionChoice::New => JournalNeed::Optional,
        SessionChoice::Existing(_) => JournalNeed::Required,
    };
    let setup = agent_setup::setup_with_sub_agents(&args.workspace, journal)?;
    // Two workers besides the thread that draws: a script that blocks one leaves the other free.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let (chat, ended) = runtime.block_on(async {
        let mut chat = Chat::new(setup, args).await?;
        print_banner(&mut chat);
        if let SessionChoice::Existing(id) = &choice {
            chat.open_session(id.as_deref())?;
        }
        if let Some(message) = message.filter(|message| !message.trim().is_empty()) {
            chat.submit_message(message);
        }
        let raw_terminal = terminal::RawModeGuard::enable()?;
        let ended = chat.run().await;
        drop(raw_terminal);
        anyhow::Ok((chat, ended))
    })?;
    // Does not wait for a tool that is blocked in a system call.
    runtime.shutdown_background();
    chat.setup.flush_journal_and_apply_retention()?;
    let provider = chat.parts.choice.provider.name.as_str();
    let session = chat.continuable_session();
    let session = session.map(|id| EndedSession { id, provider });
    process_after_command(&chat.setup, session);
    ended?;
    if let Some(id) = chat.continuable_session() {
        crate::output::print_line(&format!("selvedge continue {id}"))?;
    }
    Ok(CliStatus::Success)
}

/// Returns the blocks of a text that are complete now, as lines for a terminal, with the escape
/// sequences of their styles.
pub(crate) fn finished_lines(text: &mut StreamedMarkdown, theme: Theme) -> Vec<String> {
    let (width, _) = app::terminal_size();
    let lines = wrap_rows(&text.take_rows(width, theme), width);
    lines.iter().map(screen::line_with_escapes).collect()
}

fn print_banner(chat: &mut Chat) {
    let theme = theme::Theme::from_env();
    let directory = sanitize_line(&chat.setup.directory.display().to_string());
    let body = vec![
        Span::styled("selvedge", theme.bold()),
        Span::styled(format!(" {}  ", env!("CARGO_PKG_VERSION")), theme.dim()),
        Span::styled("/help", theme.code()),
        Span::styled(format!("  {directory}"), theme.dim()),
    ];
    chat.print_block([StyledRow::spans(body).truncated()]);
}
