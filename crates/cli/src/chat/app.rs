//! The chat: what is typed, what the turn beside it tells, and what is drawn of both.

use std::collections::VecDeque;
use std::io::{self, Stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use crossterm::event::Event as Typed;
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

/// Between two pictures, at least.
const FRAME: Duration = Duration::from_millis(16);
/// While something is under way, times are told anew this often.
const TICK: Duration = Duration::from_millis(100);
/// How long a turn that was told to stop is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Within this time, a second Ctrl-C leaves.
const SECOND_PRESS: Duration = Duration::from_secs(3);

pub(crate) struct Chat {
    pub(super) setup: Setup,
    pub(super) args: ChatArgs,
    pub(super) parts: Parts,
    /// Helps to remember, where there is one.
    pub(super) small: Option<Arc<dyn SmallModel>>,
    /// The pack of the configuration, whatever a model asks for.
    pub(super) pack: Option<String>,
    /// Whether it is known what the servers have.
    pub(super) prepared: bool,
    /// What the agent was made of: the servers' generation.
    pub(super) generation: u64,
    pub(super) agent: Agent,
    /// `None` while a turn has it, and before the first one.
    pub(super) session: Option<Session>,
    pub(super) session_id: Option<String>,
    pub(super) sender: UnboundedSender<News>,
    receiver: UnboundedReceiver<News>,
    pub(super) running: Option<Running>,
    /// Whether a turn that was broken off is to go on.
    pub(super) go_on: bool,
    pub(super) queue: VecDeque<String>,
    pub(super) asking: VecDeque<Pending>,
    /// The first of them was put to the person.
    pub(super) put: bool,
    pub(super) editor: Editor,
    /// The words of a "no", or of a form's field.
    pub(super) why: Editor,
    pub(super) history: History,
    pub(super) offers: Option<Offers>,
    pub(super) searching: bool,
    pub(super) thoughts: Thoughts,
    pub(super) last_thought: Option<String>,
    pub(super) status: Status,
    /// Usage and cost of the turns before the one that runs.
    pub(super) before: (selvedge_protocol::Usage, f64),
    pub(super) notice: Option<String>,
    /// When Ctrl-C was pressed with nothing to stop.
    pub(super) pressed: Option<Instant>,
    pub(super) look: Look,
    pub(super) screen: Screen<Stdout>,
    finished: Vec<Row>,
    pub(super) leaving: bool,
}

pub(super) struct Running {
    pub(super) turn: Turn,
    pub(super) options: TurnOptions,
    pub(super) stopping: bool,
}

impl Chat {
    /// A chat that is ready to be drawn.
    pub(crate) async fn new(mut setup: Setup, args: ChatArgs) -> Result<Self> {
        let (width, height) = size();
        let look = Look::of_environment();
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
            // Where the journal is sealed, what was asked is not kept beside it in the clear.
            history: History::open(home.as_deref().filter(|_| !setup.config.journal.encrypt)),
            offers: None,
            searching: false,
            thoughts: Thoughts::Folded,
            last_thought: None,
            status: Status::default(),
            before: Default::default(),
            notice: None,
            pressed: None,
            look,
            screen: Screen::new(io::stdout(), width, height),
            finished: Vec::new(),
            leaving: false,
            setup,
            args,
        };
        chat.refresh_status();
        Ok(chat)
    }

    /// The session to go on with later, where there is one.
    pub(crate) fn to_resume(&self) -> Option<&str> {
        let id = self.session_id.as_deref();
        id.filter(|_| self.setup.journal.is_some())
    }

    pub(crate) async fn run(&mut self) -> Result<()> {
        let mut typed = typed();
        let stop = told_to_stop();
        tokio::pin!(stop);
        self.prepare_servers();
        let mut painted: Option<Instant> = None;
        let mut dirty = true;
        while !self.leaving {
            if dirty && painted.is_none_or(|at| at.elapsed() >= FRAME) {
                // Where nobody can see it, nobody is there any more.
                self.leaving |= self.paint().is_err();
                (painted, dirty) = (Some(Instant::now()), false);
                continue;
            }
            let wait = self.wait(painted, dirty);
            let void = self.asking.front_mut();
            tokio::select! {
                biased;
                told = &mut stop => match told {
                    Told::Interrupt => {
                        self.interrupt(Instant::now());
                        stop.set(told_to_stop());
                    }
                    Told::End => self.leaving = true,
                },
                event = typed.recv() => match event {
                    Some(event) => self.typed(event),
                    // Nobody is there any more.
                    None => self.leaving = true,
                },
                Some(news) = self.receiver.recv() => self.hear(news),
                () = gone(void) => {}
                () = tokio::time::sleep(wait) => {}
            }
            // What is there already is taken in before the next picture.
            while let Ok(event) = typed.try_recv() {
                self.typed(event);
            }
            for _ in 0..256 {
                let Ok(news) = self.receiver.try_recv() else {
                    break;
                };
                self.hear(news);
            }
            if self.asking.front().is_some_and(Pending::is_void) {
                self.put = false;
            }
            self.asking.retain(|asking| !asking.is_void());
            self.put_first(Instant::now());
            dirty = true;
        }
        self.conclude().await
    }

    /// How long nothing needs to be drawn.
    fn wait(&mut self, painted: Option<Instant>, dirty: bool) -> Duration {
        if dirty {
            return FRAME.saturating_sub(painted.map_or(FRAME, |at| at.elapsed()));
        }
        let asking = self.asking.front_mut();
        if let Some(at) = asking.and_then(|asking| asking.quiet().opens_at()) {
            return at.saturating_duration_since(Instant::now()).min(TICK);
        }
        match self.running.is_some() || self.pressed.is_some() {
            true => TICK,
            false => Duration::from_secs(3600),
        }
    }

    fn typed(&mut self, event: Typed) {
        match event {
            Typed::Key(key) if key.kind != crossterm::event::KeyEventKind::Release => self.key(key),
            Typed::Paste(text) => self.pasted(&text),
            Typed::Resize(width, height) => self.redraw(width.into(), height.into()),
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

    /// Prints rows above the live part, for good.
    pub(super) fn say(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.finished.extend(rows);
    }

    /// Prints rows and a blank line.
    pub(super) fn say_block(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.say(rows);
        self.say([Row::blank()]);
    }

    /// One line that says what is wrong, and what to do.
    pub(super) fn complain(&mut self, problem: &Problem) {
        let look = self.look;
        self.say_block(problem.lines().into_iter().map(|(word, text)| {
            let style = if word == "error" {
                look.bad()
            } else {
                look.busy()
            };
            Row::text(one_line(&text)).behind(Span::styled(format!("{word}: "), style))
        }));
    }

    fn hear(&mut self, news: News) {
        let now = Instant::now();
        let width = self.screen.width();
        match news {
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
                    let thought = running.turn.last_thought.clone();
                    self.last_thought = thought.or(self.last_thought.take());
                    self.say(rows);
                }
            }
            News::Question(question) => {
                let asking = Asking::new(question, now);
                self.asking.push_back(Pending::Gate(asking));
            }
            News::Form(question) => {
                // One that cannot be shown is not answered, and whoever waits hears of that.
                if let Some(asking) = FormAsking::new(question, now) {
                    self.asking.push_back(Pending::Form(Box::new(asking)));
                }
            }
            News::Over(over) => {
                let (session, outcome) = *over;
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

    /// Ends what runs, and takes the live part away.
    async fn conclude(&mut self) -> Result<()> {
        if let Some(running) = &self.running {
            let leaving = self.asking.front().map_or(Leaving::Stop, Pending::leaving);
            match leaving {
                Leaving::Stop => running.options.cancel.cancel(),
                Leaving::PutAway => running.options.leave.cancel(),
                Leaving::LeaveAsItIs => {}
            }
            let waits = leaving != Leaving::LeaveAsItIs;
            let ended = async {
                while waits && let Some(news) = self.receiver.recv().await {
                    let over = matches!(news, News::Over(_) | News::Broke);
                    self.queue.clear();
                    self.hear(news);
                    if over {
                        break;
                    }
                }
            };
            let _ = tokio::time::timeout(PATIENCE, ended).await;
        }
        let finished = std::mem::take(&mut self.finished);
        // A terminal that is gone shows nothing, and that is no failure.
        let _ = self.screen.paint(finished, Default::default());
        let _ = self.screen.clear();
        let _ = tokio::time::timeout(PATIENCE, self.parts.servers.stop()).await;
        Ok(())
    }
}

/// What is typed, from a thread that does nothing else; it ends with the process, or with the terminal.
fn typed() -> UnboundedReceiver<Typed> {
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

async fn gone(asking: Option<&mut Pending>) {
    match asking {
        Some(asking) => asking.void().await,
        None => std::future::pending().await,
    }
}

/// The size of the window; a usual one where nobody knows.
pub(super) fn size() -> (usize, usize) {
    match crossterm::terminal::size() {
        Ok((width @ 1.., height @ 1..)) => (width.into(), height.into()),
        _ => (80, 24),
    }
}
