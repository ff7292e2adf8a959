//! The chat's state and main loop: handles input and updates of the running turn, and redraws.

use std::collections::VecDeque;
use std::io::{self, Stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use crossterm::event::Event as InputEvent;
use ratatui_core::text::Span;
use selvedge_agent::{Agent, Session, TurnOptions};
use selvedge_memory::SmallModel;
use selvedge_protocol::Event;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::complete::Offers;
use super::conversation::make_agent;
use super::editor::Editor;
use super::form::FormAsking;
use super::history::History;
use super::look::Look;
use super::news::{InTheChat, News, news};
use super::pending::{Leaving, Pending};
use super::question::Asking;
use super::rows::{Row, one_line};
use super::screen::Screen;
use super::status::Status;
use super::turn::{Thoughts, Turn};
use crate::args::ChatArgs;
use crate::assembly::{self, Parts};
use crate::problem::Problem;
use crate::providers;
use crate::remember::{remembering, small_model};
use crate::run::{Told, told_to_stop};
use crate::setup::Setup;

/// Minimum time between two redraws.
const FRAME: Duration = Duration::from_millis(16);
/// How often elapsed times are redrawn while a turn runs.
const TICK: Duration = Duration::from_millis(100);
/// How long the chat waits at its end for the turn, and then for the MCP servers, to stop.
const PATIENCE: Duration = Duration::from_secs(5);
/// A second Ctrl-C within this time quits.
const SECOND_PRESS: Duration = Duration::from_secs(3);

/// The whole state of a chat.
pub(crate) struct Chat {
    pub(super) setup: Setup,
    pub(super) args: ChatArgs,
    pub(super) parts: Parts,
    /// The model that memory uses for summaries, if one is configured.
    pub(super) small: Option<Arc<dyn SmallModel>>,
    /// The tool pack set in the configuration; `None` if the model decides.
    pub(super) pack: Option<String>,
    /// Whether the catalogues of the MCP servers are loaded. Turns start only then.
    pub(super) prepared: bool,
    /// The generation of the MCP servers' tools with which the agent was built.
    pub(super) generation: u64,
    pub(super) agent: Agent,
    /// `None` before the first turn, and while a turn owns the session.
    pub(super) session: Option<Session>,
    pub(super) session_id: Option<String>,
    pub(super) sender: UnboundedSender<News>,
    receiver: UnboundedReceiver<News>,
    pub(super) running: Option<Running>,
    /// Whether the next turn recovers the interrupted turn of the opened session.
    pub(super) go_on: bool,
    /// Messages to send when the current turn ends.
    pub(super) queue: VecDeque<String>,
    /// Unanswered questions. Only the first is shown.
    pub(super) asking: VecDeque<Pending>,
    /// Whether the first question is on the screen.
    pub(super) put: bool,
    pub(super) editor: Editor,
    /// Input for the first question: the reason of a denial, or a form field.
    pub(super) why: Editor,
    pub(super) history: History,
    pub(super) offers: Option<Offers>,
    pub(super) searching: bool,
    pub(super) thoughts: Thoughts,
    pub(super) last_thought: Option<String>,
    pub(super) status: Status,
    /// Usage and cost in US dollars of the session's earlier turns.
    pub(super) before: (selvedge_protocol::Usage, f64),
    /// Text shown in place of the status line until the next key.
    pub(super) notice: Option<String>,
    /// When Ctrl-C was pressed while no turn was running and the input was empty.
    pub(super) pressed: Option<Instant>,
    pub(super) look: Look,
    pub(super) screen: Screen<Stdout>,
    /// Rows to print above the live part at the next redraw.
    finished: Vec<Row>,
    /// Ends the main loop.
    pub(super) leaving: bool,
}

/// The turn in progress.
pub(super) struct Running {
    pub(super) turn: Turn,
    pub(super) options: TurnOptions,
    /// Whether the turn was cancelled and has not ended yet.
    pub(super) stopping: bool,
}

impl Chat {
    /// Builds the agent and an empty chat. Draws nothing and starts no server.
    pub(crate) async fn new(mut setup: Setup, args: ChatArgs) -> Result<Self> {
        let (width, height) = size();
        let theme = Look::of_environment();
        let (sender, receiver) = news(setup.toolbox.turn_diff.clone());
        let choice = providers::choose(&setup.config, &args.model).await?;
        let person = Arc::new(InTheChat(sender.clone()));
        let servers = setup.servers(assembly::asked(&setup, Some(person)))?;
        let pack = setup.config.tool_pack.clone();
        let memory = assembly::memory(&mut setup)?;
        let small = match memory {
            Some(_) => small_model(&setup.config).await?,
            None => None,
        };
        let memory =
            memory.map(|memory| remembering(&setup.config, memory, &choice.model, small.clone()));
        let (prepared, generation) = (servers.is_empty(), servers.generation());
        let parts = Parts {
            choice,
            servers,
            memory,
        };
        let agent = make_agent(&mut setup, &args, &parts, &sender)?;
        let home = setup.home.clone().filter(|_| !setup.ephemeral);
        setup.toolbox.turn_diff.begin_session();
        let mut chat = Self {
            prepared,
            generation,
            parts,
            small,
            pack,
            agent,
            session: None,
            session_id: None,
            sender,
            receiver,
            running: None,
            go_on: false,
            queue: VecDeque::new(),
            asking: VecDeque::new(),
            put: false,
            editor: Editor::default(),
            why: Editor::default(),
            // If the journal is encrypted, messages must not be stored in a plain file.
            history: History::open(home.as_deref().filter(|_| !setup.config.journal.encrypt)),
            offers: None,
            searching: false,
            thoughts: Thoughts::Folded,
            last_thought: None,
            status: Status::default(),
            before: Default::default(),
            notice: None,
            pressed: None,
            look: theme,
            screen: Screen::new(io::stdout(), width, height),
            finished: Vec::new(),
            leaving: false,
            setup,
            args,
        };
        chat.refresh_status();
        Ok(chat)
    }

    /// Returns the id of the session if it can be continued later.
    pub(crate) fn to_resume(&self) -> Option<&str> {
        let id = self.session_id.as_deref();
        id.filter(|_| self.setup.journal.is_some())
    }

    pub(crate) async fn run(&mut self) -> Result<()> {
        let mut input = typed();
        let stop = told_to_stop();
        tokio::pin!(stop);
        self.prepare_servers();
        let mut painted: Option<Instant> = None;
        let mut dirty = true;
        while !self.leaving {
            if dirty && painted.is_none_or(|at| at.elapsed() >= FRAME) {
                // If the terminal cannot be written, the user is gone.
                self.leaving |= self.paint().is_err();
                (painted, dirty) = (Some(Instant::now()), false);
                continue;
            }
            let wait = self.wait(painted, dirty);
            let first_question = self.asking.front_mut();
            tokio::select! {
                biased;
                signal = &mut stop => match signal {
                    Told::Interrupt => {
                        self.interrupt(Instant::now());
                        stop.set(told_to_stop());
                    }
                    Told::End => self.leaving = true,
                },
                event = input.recv() => match event {
                    Some(event) => self.typed(event),
                    // The terminal is closed.
                    None => self.leaving = true,
                },
                Some(update) = self.receiver.recv() => self.hear(update),
                () = gone(first_question) => {}
                () = tokio::time::sleep(wait) => {}
            }
            // Handle everything that is already queued before the next redraw.
            while let Ok(event) = input.try_recv() {
                self.typed(event);
            }
            for _ in 0..256 {
                let Ok(update) = self.receiver.try_recv() else {
                    break;
                };
                self.hear(update);
            }
            if self.asking.front().is_some_and(Pending::is_void) {
                self.put = false;
            }
            self.asking.retain(|question| !question.is_void());
            self.put_first(Instant::now());
            dirty = true;
        }
        self.conclude().await
    }

    /// Returns how long the main loop may sleep before the next redraw.
    fn wait(&mut self, painted: Option<Instant>, dirty: bool) -> Duration {
        if dirty {
            return FRAME.saturating_sub(painted.map_or(FRAME, |at| at.elapsed()));
        }
        let question = self.asking.front_mut();
        if let Some(at) = question.and_then(|question| question.quiet().opens_at()) {
            return at.saturating_duration_since(Instant::now()).min(TICK);
        }
        match self.running.is_some() || self.pressed.is_some() {
            true => TICK,
            false => Duration::from_secs(3600),
        }
    }

    fn typed(&mut self, event: InputEvent) {
        match event {
            InputEvent::Key(key) if key.kind != crossterm::event::KeyEventKind::Release => {
                self.key(key)
            }
            InputEvent::Paste(text) => self.pasted(&text),
            InputEvent::Resize(width, height) => self.redraw(width.into(), height.into()),
            _ => {}
        }
    }

    pub(super) fn redraw(&mut self, width: usize, height: usize) {
        let frame = self.frame_for(width, height);
        self.leaving |= self.screen.resize(width, height, frame).is_err();
    }

    fn paint(&mut self) -> io::Result<()> {
        if self.pressed.is_some_and(|at| at.elapsed() > SECOND_PRESS) {
            (self.pressed, self.notice) = (None, None);
        }
        let finished = std::mem::take(&mut self.finished);
        let frame = self.frame_for(self.screen.width(), self.screen.height());
        self.screen.paint(finished, frame)
    }

    /// Prints rows above the live part at the next redraw. They are never redrawn.
    pub(super) fn say(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.finished.extend(rows);
    }

    /// Prints rows and a blank line.
    pub(super) fn say_block(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.say(rows);
        self.say([Row::blank()]);
    }

    /// Prints an error and its hints.
    pub(super) fn complain(&mut self, problem: &Problem) {
        let theme = self.look;
        self.say_block(problem.lines().into_iter().map(|(label, text)| {
            let style = if label == "error" {
                theme.bad()
            } else {
                theme.busy()
            };
            Row::text(one_line(&text)).behind(Span::styled(format!("{label}: "), style))
        }));
    }

    fn hear(&mut self, update: News) {
        let now = Instant::now();
        let width = self.screen.width();
        match update {
            News::Event(event) => {
                if let Event::UsageUpdated {
                    usage,
                    cost,
                    context_tokens,
                    context_window,
                    ..
                } = &event
                {
                    self.status.usage = self.before.0;
                    self.status.usage += *usage;
                    self.status.cost = cost.map(|cost| cost + self.before.1);
                    (self.status.context, self.status.window) = (*context_tokens, *context_window);
                }
                if let Some(running) = &mut self.running {
                    let rows = running.turn.take(event, width, self.thoughts, now);
                    let thinking = running.turn.last_thought.clone();
                    self.last_thought = thinking.or(self.last_thought.take());
                    self.say(rows);
                }
            }
            News::Question(question) => {
                let prompt = Asking::new(question, now);
                self.asking.push_back(Pending::Gate(prompt));
            }
            News::Form(question) => {
                // A form that cannot be shown is dropped: its reply channel closes, and the server
                // gets an error.
                if let Some(prompt) = FormAsking::new(question, now) {
                    self.asking.push_back(Pending::Form(Box::new(prompt)));
                }
            }
            News::Over(finished) => {
                let (session, outcome) = *finished;
                self.over(session, &outcome, now);
            }
            News::Broke => self.broke(now),
            News::Files { letters, paths } => self.found(&letters, paths),
            News::Prepared => {
                self.prepared = true;
                self.next_turn();
            }
            News::Servers(status) => self.show_servers(&status),
            News::Diff(diff) => self.show_diff(&diff),
        }
    }

    pub(super) fn refresh_status(&mut self) {
        self.status.model.clone_from(&self.agent.model().name);
        self.status.window = self.agent.model().context_window;
        self.status.sandbox = self.setup.config.sandbox_mode;
        self.status.session = self.to_resume().map(str::to_owned);
    }

    /// Ends the running turn, prints the remaining rows and clears the live part.
    async fn conclude(&mut self) -> Result<()> {
        if let Some(running) = &self.running {
            let action = self.asking.front().map_or(Leaving::Stop, Pending::leaving);
            match action {
                Leaving::Stop => running.options.cancel.cancel(),
                Leaving::PutAway => running.options.leave.cancel(),
                Leaving::LeaveAsItIs => {}
            }
            let wait_for_turn = action != Leaving::LeaveAsItIs;
            let ended = async {
                while wait_for_turn && let Some(update) = self.receiver.recv().await {
                    let is_end = matches!(update, News::Over(_) | News::Broke);
                    self.queue.clear();
                    self.hear(update);
                    if is_end {
                        break;
                    }
                }
            };
            let _ = tokio::time::timeout(PATIENCE, ended).await;
        }
        let finished = std::mem::take(&mut self.finished);
        // Errors are ignored: the terminal may be closed.
        let _ = self.screen.paint(finished, Default::default());
        let _ = self.screen.clear();
        let _ = tokio::time::timeout(PATIENCE, self.parts.servers.stop()).await;
        Ok(())
    }
}

/// Reads terminal events on a thread of its own, which ends when the terminal or the receiver
/// closes.
fn typed() -> UnboundedReceiver<InputEvent> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = crossterm::event::read() {
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Completes when the asker of this question no longer waits. Never completes without a question.
async fn gone(question: Option<&mut Pending>) {
    match question {
        Some(question) => question.void().await,
        None => std::future::pending().await,
    }
}

/// Returns the width and height of the terminal, or 80 by 24 if it does not report them.
pub(super) fn size() -> (usize, usize) {
    match crossterm::terminal::size() {
        Ok((width @ 1.., height @ 1..)) => (width.into(), height.into()),
        _ => (80, 24),
    }
}
