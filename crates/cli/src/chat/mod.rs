//! `selvedge` and `selvedge continue`: a chat in the terminal.
//!
//! A turn runs in its own task and reports to the chat through the channel in [`news`] only. Pure
//! functions render the state as rows ([`turn`], [`markdown`], [`calls`], [`question`],
//! [`status`]). Only [`screen`] writes to the terminal.

mod acts;
mod app;
mod calls;
mod code;
mod commands;
mod complete;
mod conversation;
mod diff;
mod editor;
mod form;
mod history;
mod keys;
mod look;
mod markdown;
mod news;
mod past;
mod pending;
mod question;
mod rows;
mod screen;
mod script;
mod status;
mod table;
mod terminal;
mod turn;
mod view;

use anyhow::Result;
use ratatui_core::text::Span;

use self::app::Chat;
pub(crate) use self::history::forget_asked;
use self::rows::{Row, one_line};
use crate::Exit;
use crate::args::{ChatArgs, ContinueArgs};
use crate::assembly::{self, Conversation};

pub(crate) fn chat(args: ChatArgs) -> Result<Exit> {
    open(args, Conversation::New)
}

pub(crate) fn continue_session(args: ContinueArgs) -> Result<Exit> {
    open(args.chat, Conversation::Old(args.session))
}

fn open(args: ChatArgs, opening: Conversation) -> Result<Exit> {
    terminal::must_be_there()?;
    let setup = assembly::setup(&args.place)?;
    // Two workers besides the thread that draws: a script that blocks one leaves the other free.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let (chat, ended) = runtime.block_on(async {
        let mut chat = Chat::new(setup, args).await?;
        greet(&mut chat);
        if let Conversation::Old(id) = &opening {
            chat.open(id.as_deref())?;
        }
        let raw_terminal = terminal::Held::take()?;
        let ended = chat.run().await;
        drop(raw_terminal);
        anyhow::Ok((chat, ended))
    })?;
    // Does not wait for a tool that is blocked in a system call.
    runtime.shutdown_background();
    chat.setup.close_journal()?;
    ended?;
    if let Some(id) = chat.to_resume() {
        crate::out::line(&format!("selvedge continue {id}"))?;
    }
    Ok(Exit::Done)
}

fn greet(chat: &mut Chat) {
    let theme = look::Look::of_environment();
    let directory = one_line(&chat.setup.directory.display().to_string());
    let body = vec![
        Span::styled("selvedge", theme.strong()),
        Span::styled(format!(" {}  ", env!("CARGO_PKG_VERSION")), theme.quiet()),
        Span::styled("/help", theme.code()),
        Span::styled(format!("  {directory}"), theme.quiet()),
    ];
    chat.say_block([Row::spans(body).cut()]);
}
