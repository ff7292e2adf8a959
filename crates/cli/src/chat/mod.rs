//! `selvedge` and `selvedge continue`: a chat in the terminal.
//!
//! The turn runs beside what is drawn and typed; [`news`] is the only way between them. What is drawn is made by plain
//! functions from what is known ([`turn`], [`markdown`], [`calls`], [`question`], [`status`]) and put on the terminal by
//! [`screen`] alone.

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
    // Two threads beside the one that draws: a script that holds one leaves the other.
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
        let held = terminal::Held::take()?;
        let ended = chat.run().await;
        drop(held);
        anyhow::Ok((chat, ended))
    })?;
    // A tool that hangs in the system is not waited for.
    runtime.shutdown_background();
    chat.setup.close_journal()?;
    ended?;
    if let Some(id) = chat.to_resume() {
        crate::out::line(&format!("selvedge continue {id}"))?;
    }
    Ok(Exit::Done)
}

fn greet(chat: &mut Chat) {
    let look = look::Look::of_environment();
    let directory = one_line(&chat.setup.directory.display().to_string());
    let body = vec![
        Span::styled("selvedge", look.strong()),
        Span::styled(format!(" {}  ", env!("CARGO_PKG_VERSION")), look.quiet()),
        Span::styled("/help", look.code()),
        Span::styled(format!("  {directory}"), look.quiet()),
    ];
    chat.say_block([Row::spans(body).cut()]);
}
