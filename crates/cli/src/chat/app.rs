//! The chat: what is typed, what the turn beside it tells, and what is drawn of both.

use std::collections::VecDeque;
use std::io::{self, Stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use crossterm::event::Event as Typed;
use futures_util::FutureExt;
use selvedge_agent::{Agent, Session, TurnOptions, TurnOutcome};
use selvedge_mcp::Asked;
use selvedge_memory::SmallModel;
use selvedge_protocol::{ApprovalDecision, Event, EventSink, TurnEnd};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::complete::Offers;
use super::editor::Editor;
use super::history::History;
use super::look::Look;
use super::news::{News, approver, news};
use super::past::{asked, past};
use super::question::{Asking, decided};
use super::rows::{Row, one_line};
use super::screen::Screen;
use super::status::Status;
use super::turn::{Thoughts, Turn};
use crate::args::ChatArgs;
use crate::assembly::{self, Conversation, Parts, Wanted};
use crate::problem::Problem;
use crate::providers::{self, Choice};
use crate::remember::{remembering, small_model};
use crate::run::{Told, told_to_stop};
use crate::setting::Setting;
use crate::setup::Setup;

/// Between two pictures, at least.
const FRAME: Duration = Duration::from_millis(16);
/// While something is under way, times are told anew this often.
const TICK: Duration = Duration::from_millis(100);
/// How long a turn that was told to stop is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Within this time, a second Ctrl-C leaves.
const SECOND_PRESS: Duration = Duration::from_secs(3);

/// A chat.
pub(crate) struct Chat {
    pub(super) setup: Setup,
    pub(super) args: ChatArgs,
    pub(super) parts: Parts,
    /// Helps to remember, where there is one.
    small: Option<Arc<dyn SmallModel>>,
    /// The pack of the configuration, whatever a model asks for.
    pack: Option<String>,
    /// Whether it is known what the servers have.
    prepared: bool,
    /// What the agent was made of: the servers' generation.
    generation: u64,
    pub(super) agent: Agent,
    /// `None` while a turn has it, and before the first one.
    pub(super) session: Option<Session>,
    pub(super) session_id: Option<String>,
    pub(super) sender: UnboundedSender<News>,
    receiver: UnboundedReceiver<News>,
    pub(super) running: Option<Running>,
    pub(super) queue: VecDeque<String>,
    pub(super) asking: VecDeque<Asking>,
    pub(super) editor: Editor,
    /// The words of a "no".
    pub(super) why: Editor,
    pub(super) history: History,
    pub(super) offers: Option<Offers>,
    pub(super) thoughts: Thoughts,
    pub(super) last_thought: Option<String>,
    pub(super) status: Status,
    /// Usage and cost of the turns before the one that runs.
    pub(super) before: (selvedge_protocol::Usage, f64),
    pub(super) notice: Option<String>,
    /// When Ctrl-C was pressed with nothing to stop.
    pressed: Option<Instant>,
    pub(super) look: Look,
    screen: Screen<Stdout>,
    finished: Vec<Row>,
    pub(super) leaving: bool,
}

/// A turn that runs.
pub(super) struct Running {
    pub(super) turn: Turn,
    options: TurnOptions,
    pub(super) stopping: bool,
}

/// What a turn does.
enum Task {
    Ask(String),
    GoOn,
}

impl Chat {
    /// A chat that is ready to be drawn.
    pub(crate) async fn new(mut setup: Setup, args: ChatArgs) -> Result<Self> {
        let (width, height) = size();
        let look = Look::of_environment();
        let (sender, receiver) = news(setup.toolbox.turn_diff.clone());
        let choice = providers::choose(&setup.config, &args.model).await?;
        let servers = setup.servers(Asked::default())?;
        let pack = setup.config.tool_pack.clone();
        let memory = assembly::memory(&mut setup)?;
        let small = if memory.is_some() { small_model(&setup.config).await? } else { None };
        let memory = memory.map(|memory| remembering(&setup.config, memory, &choice.model, small.clone()));
        let (prepared, generation) = (servers.is_empty(), servers.generation());
        let parts = Parts { choice, servers, memory };
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
            queue: VecDeque::new(),
            asking: VecDeque::new(),
            editor: Editor::default(),
            why: Editor::default(),
            history: History::open(home.as_deref()),
            offers: None,
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

    /// Opens a session that was there before, and shows how it went.
    pub(crate) fn open(&mut self, id: Option<&str>) -> Result<()> {
        let session = assembly::session(&mut self.setup, &Conversation::Old(id.map(str::to_owned)))?;
        self.rebuild()?;
        self.before = session.spent();
        self.status.usage = self.before.0;
        self.status.cost = self.agent.model().prices.map(|_| self.before.1);
        self.status.context = self.agent.context_in_use(&session);
        self.session_id = Some(session.id().to_owned());
        self.setup.toolbox.turn_diff.begin_session();
        self.refresh_status();
        self.say(vec![Row::of(format!("session {}", session.id()), self.look.quiet()), Row::blank()]);
        let rows = past(&session, self.screen.width(), self.look);
        self.say(rows);
        let broken_off = session.is_open();
        self.session = Some(session);
        if broken_off {
            self.say(vec![Row::of("the last turn was broken off, and goes on", self.look.quiet()), Row::blank()]);
            self.begin(Task::GoOn);
        }
        Ok(())
    }

    /// The session to go on with later, where there is one.
    pub(crate) fn to_resume(&self) -> Option<&str> {
        self.session_id.as_deref().filter(|_| self.setup.journal.is_some())
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Until somebody leaves.
    pub(crate) async fn run(&mut self) -> Result<()> {
        let mut typed = typed();
        let stop = told_to_stop();
        tokio::pin!(stop);
        self.prepare_servers();
        let mut painted = Instant::now() - FRAME;
        let mut dirty = true;
        while !self.leaving {
            if dirty && painted.elapsed() >= FRAME {
                // Where nobody can see it, nobody is there any more.
                self.leaving |= self.paint().is_err();
                (painted, dirty) = (Instant::now(), false);
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
                let Ok(news) = self.receiver.try_recv() else { break };
                self.hear(news);
            }
            self.asking.retain(|asking| !asking.is_void());
            if let Some(asking) = self.asking.front_mut() {
                asking.open_if_quiet(Instant::now());
            }
            dirty = true;
        }
        self.conclude().await
    }

    /// How long nothing needs to be drawn.
    fn wait(&self, painted: Instant, dirty: bool) -> Duration {
        if dirty {
            return FRAME.saturating_sub(painted.elapsed());
        }
        let opens = self.asking.front().and_then(Asking::opens_at);
        if let Some(at) = opens {
            return at.saturating_duration_since(Instant::now()).min(TICK);
        }
        if self.running.is_some() || self.pressed.is_some() { TICK } else { Duration::from_secs(3600) }
    }

    fn typed(&mut self, event: Typed) {
        match event {
            Typed::Key(key) if key.kind != crossterm::event::KeyEventKind::Release => self.key(key),
            Typed::Paste(text) => self.pasted(&text),
            Typed::Resize(width, height) => {
                let frame = self.frame_for(width.into(), height.into());
                self.leaving |= self.screen.resize(width.into(), height.into(), frame).is_err();
            }
            _ => {}
        }
    }

    /// Draws everything anew.
    pub(super) fn redraw(&mut self) {
        let (width, height) = size();
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
    pub(super) fn say(&mut self, rows: Vec<Row>) {
        self.finished.extend(rows);
    }

    /// One line that says what is wrong, and what to do.
    pub(super) fn complain(&mut self, problem: &Problem) {
        let rows = problem.lines().into_iter().map(|(word, text)| {
            let style = if word == "error" { self.look.bad() } else { self.look.busy() };
            let lead = ratatui_core::text::Span::styled(format!("{word}: "), style);
            Row::of(one_line(&text), ratatui_core::style::Style::new()).behind(lead)
        });
        let rows: Vec<Row> = rows.chain([Row::blank()]).collect();
        self.say(rows);
    }

    fn hear(&mut self, news: News) {
        let now = Instant::now();
        let width = self.screen.width();
        match news {
            News::Event(event) => {
                if let Event::UsageUpdated { usage, cost, context_tokens, context_window, .. } = &event {
                    let mut all = self.before.0;
                    all += *usage;
                    self.status.usage = all;
                    self.status.cost = cost.map(|cost| cost + self.before.1);
                    (self.status.context, self.status.window) = (*context_tokens, *context_window);
                }
                if let Some(running) = &mut self.running {
                    let rows = running.turn.take(event, width, self.thoughts, now);
                    self.last_thought = running.turn.last_thought.clone().or(self.last_thought.take());
                    self.say(rows);
                }
            }
            News::Question(question) => {
                let asking = Asking::new(question, now);
                self.say(asking.told(self.look));
                self.asking.push_back(asking);
            }
            News::Over(over) => {
                let (session, outcome) = *over;
                self.over(session, &outcome, now);
            }
            News::Broke(why) => self.broke(&why, now),
            News::Files { letters, paths } => self.found(&letters, paths),
            News::Prepared => {
                self.prepared = true;
                self.next_turn();
            }
            News::Servers(status) => self.show_servers(&status),
            News::Diff(diff) => self.show_diff(&diff),
        }
    }

    /// Learns beside everything else what the servers have.
    fn prepare_servers(&self) {
        if !self.prepared {
            let (servers, sender) = (self.parts.servers.clone(), self.sender.clone());
            tokio::spawn(async move {
                servers.prepare_all().await;
                // The chat may be over.
                let _ = sender.send(News::Prepared);
            });
        }
    }

    /// Asks, now or when the turn that runs is over.
    pub(super) fn ask(&mut self, text: String) {
        self.history.add(&text);
        self.queue.push_back(text);
        self.next_turn();
    }

    /// Begins the next turn, where there is one to begin.
    fn next_turn(&mut self) {
        if self.running.is_some() || self.leaving {
            return;
        }
        if !self.prepared {
            self.notice = Some("MCP servers start; what you asked comes next".to_owned());
            return;
        }
        let Some(text) = self.queue.pop_front() else { return };
        self.notice = None;
        if let Err(error) = self.make_ready() {
            self.complain(&Problem::from_error(&error));
            self.editor.set(&text);
            return;
        }
        self.say(asked(&text, self.look));
        self.say(vec![Row::blank()]);
        self.begin(Task::Ask(text));
    }

    /// A session, and an agent that knows of it and of all tools there are.
    fn make_ready(&mut self) -> Result<()> {
        let new = self.session.is_none();
        if new {
            let session = assembly::session(&mut self.setup, &Conversation::New)?;
            self.session_id = Some(session.id().to_owned());
            self.session = Some(session);
            self.refresh_status();
        }
        if new || self.parts.servers.generation() != self.generation {
            self.rebuild()?;
        }
        Ok(())
    }

    /// Makes the agent anew, of what is chosen now.
    pub(super) fn rebuild(&mut self) -> Result<()> {
        self.setup.config.tool_pack = self.args.place.pack.clone().or_else(|| self.pack.clone());
        self.generation = self.parts.servers.generation();
        self.agent = make_agent(&mut self.setup, &self.args, &self.parts, &self.sender)?;
        self.refresh_status();
        Ok(())
    }

    /// Asks another model from now on.
    pub(super) fn choose(&mut self, choice: Choice) -> Result<()> {
        let memory = self.setup.memory.clone();
        let memory = memory.map(|memory| remembering(&self.setup.config, memory, &choice.model, self.small.clone()));
        let parts = Parts { choice, servers: self.parts.servers.clone(), memory };
        let before = std::mem::replace(&mut self.parts, parts);
        self.rebuild().inspect_err(|_| self.parts = before)
    }

    pub(super) fn refresh_status(&mut self) {
        self.status.model.clone_from(&self.agent.model().name);
        self.status.window = self.agent.model().context_window;
        self.status.sandbox = self.setup.config.sandbox_mode;
        self.status.session = self.session_id.clone().filter(|_| self.setup.journal.is_some());
    }

    fn begin(&mut self, task: Task) {
        let Some(mut session) = self.session.take() else { return };
        let sender = self.sender.clone();
        let setting = Setting::new(&self.setup, &self.args.limits, Vec::new());
        let options = TurnOptions {
            events: EventSink::new(move |event| _ = sender.send(News::Event(event))),
            setting: serde_json::to_string(&setting).unwrap_or_default(),
            ..TurnOptions::default()
        };
        self.before = session.spent();
        let running = Running { turn: Turn::new(self.look, Instant::now()), options: options.clone(), stopping: false };
        self.running = Some(running);
        let (agent, sender) = (self.agent.clone(), self.sender.clone());
        tokio::spawn(async move {
            let turn = async {
                let outcome = match task {
                    Task::Ask(text) => agent.turn(&mut session, text, &options).await,
                    Task::GoOn => agent.go_on(&mut session, &options).await,
                };
                (session, outcome)
            };
            let news = match std::panic::AssertUnwindSafe(turn).catch_unwind().await {
                Ok(over) => News::Over(Box::new(over)),
                Err(_) => News::Broke("the turn broke off, which is a mistake of this program".to_owned()),
            };
            // The chat may be over.
            let _ = sender.send(news);
        });
    }

    fn over(&mut self, session: Session, outcome: &TurnOutcome, now: Instant) {
        self.end_turn(now);
        self.before = session.spent();
        self.status.usage = self.before.0;
        self.status.context = self.agent.context_in_use(&session);
        self.session = Some(session);
        let mut go_on = true;
        match &outcome.end {
            Ok(TurnEnd::Stop) => {}
            Ok(TurnEnd::Interrupted) => {
                go_on = false;
                self.say(vec![Row::of("– stopped", self.look.quiet()), Row::blank()]);
            }
            Ok(TurnEnd::Length) => {
                self.say(vec![Row::of("the answer was cut by the limit of tokens", self.look.bad()), Row::blank()]);
            }
            Ok(end) => {
                go_on = false;
                let problem = Problem::new(format!("the turn ended early: {}", end.as_str()));
                self.complain(&problem.hint("say \"go on\" to go on"));
            }
            Err(error) => {
                go_on = false;
                let problem = Problem::new(format!("{}: {}", error.kind, error.message));
                self.complain(&match error.kind.as_str() {
                    "auth" => problem.hint("`selvedge models test` tries the key"),
                    "context_too_long" => problem.hint("/compact makes room, /new begins anew"),
                    _ => problem,
                });
            }
        }
        if go_on {
            self.next_turn();
        } else {
            self.give_back_queue();
        }
    }

    fn broke(&mut self, why: &str, now: Instant) {
        self.end_turn(now);
        self.complain(&Problem::new(why));
        // What was written down before is where it goes on.
        let id = self.session_id.clone();
        match assembly::session(&mut self.setup, &Conversation::Old(id)) {
            Ok(session) => self.session = Some(session),
            Err(_) => self.session_id = None,
        }
        self.give_back_queue();
    }

    fn end_turn(&mut self, now: Instant) {
        if let Some(mut running) = self.running.take() {
            let rows = running.turn.end(self.screen.width(), self.thoughts, now);
            self.say(rows);
        }
        self.asking.clear();
    }

    /// What was meant to follow a turn that did not end well is not sent by itself.
    fn give_back_queue(&mut self) {
        if !self.queue.is_empty() {
            let mut all: Vec<String> = self.queue.drain(..).collect();
            all.extend(Some(self.editor.take()).filter(|text| !text.is_empty()));
            self.editor.set(&all.join("\n"));
        }
    }

    /// Ctrl-C: stops the turn; with none, clears what is typed; again, leaves.
    pub(super) fn interrupt(&mut self, now: Instant) {
        match &mut self.running {
            Some(running) if running.stopping => self.leaving = true,
            Some(running) => {
                running.stopping = true;
                running.options.cancel.cancel();
            }
            None if !self.editor.is_empty() => {
                self.editor.clear();
                self.offers = None;
            }
            None if self.pressed.is_some() => self.leaving = true,
            None => {
                self.pressed = Some(now);
                self.notice = Some("Ctrl-C again leaves".to_owned());
            }
        }
    }

    /// Hands over what was decided about the question that stands first.
    pub(super) fn decide(&mut self, decision: ApprovalDecision) {
        if let Some(asking) = self.asking.pop_front() {
            self.say(vec![decided(&decision, self.look), Row::blank()]);
            asking.decide(decision);
        }
    }

    /// Ends what runs, and takes the live part away.
    async fn conclude(&mut self) -> Result<()> {
        if let Some(running) = &self.running {
            // A script that waits for an answer is put away with its question. Structured calls that wait are left as
            // they are: they have not begun, and are asked for again. Everything else ends.
            match self.asking.front().map(Asking::is_of_script) {
                None => running.options.cancel.cancel(),
                Some(true) => running.options.leave.cancel(),
                Some(false) => {}
            }
            let waits = !self.asking.front().is_some_and(|asking| !asking.is_of_script());
            let ended = async {
                while waits && let Some(news) = self.receiver.recv().await {
                    let over = matches!(news, News::Over(_) | News::Broke(_));
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

async fn gone(asking: Option<&mut Asking>) {
    match asking {
        Some(asking) => asking.void().await,
        None => std::future::pending().await,
    }
}

fn make_agent(setup: &mut Setup, args: &ChatArgs, parts: &Parts, sender: &UnboundedSender<News>) -> Result<Agent> {
    let wanted = Wanted {
        model: &args.model,
        limits: &args.limits,
        turn: &args.turn,
        approver: Some(approver(sender)),
        instructions: None,
        conversation: Conversation::New,
    };
    assembly::agent_of(setup, &args.place, wanted, parts.clone())
}

/// The size of the window; a usual one where nobody knows.
fn size() -> (usize, usize) {
    let (width, height) = crossterm::terminal::size().unwrap_or((80, 24));
    if width == 0 || height == 0 { (80, 24) } else { (width.into(), height.into()) }
}
