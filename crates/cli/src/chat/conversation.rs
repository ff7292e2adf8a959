//! Sessions and turns of the chat: opens sessions, queues messages, starts turns and handles
//! their end.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use futures_util::FutureExt;
use selvedge_agent::{Agent, Session, TurnOptions, TurnOutcome};
use selvedge_mcp::Elicited;
use selvedge_protocol::{ApprovalDecision, EventSink, ModelErrorKind, TurnEnd, TurnErrorKind};
use tokio::sync::mpsc::UnboundedSender;

use super::app::{Chat, Running};
use super::form::elicited;
use super::news::{InTheChat, News};
use super::past::{asked, past};
use super::pending::Pending;
use super::question::decided;
use super::rows::Row;
use super::turn::Turn;
use crate::args::ChatArgs;
use crate::assembly::{self, Conversation, Parts, Wanted};
use crate::problem::Problem;
use crate::providers::Choice;
use crate::remember::remembering;
use crate::setting::Setting;
use crate::setup::Setup;

/// Blocks the calling thread until `work` is done. Only for the thread that draws, which runs
/// nothing else.
pub(super) fn wait_here<T>(work: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work))
}

/// How a turn starts.
enum Task {
    /// With a user message.
    Ask(String),
    /// By recovering the interrupted turn of the session.
    GoOn,
}

impl Chat {
    /// Opens an earlier session, the last one of this folder if `id` is `None`, and prints its last
    /// turns.
    pub(crate) fn open(&mut self, id: Option<&str>) -> Result<()> {
        let session = self.find_session(&Conversation::Old(id.map(str::to_owned)))?;
        self.rebuild()?;
        self.before = session.spent();
        self.status.usage = self.before.0;
        self.status.cost = self.agent.model().prices.map(|_| self.before.1);
        self.status.context = self.agent.context_in_use(&session);
        self.session_id = Some(session.id().to_owned());
        self.setup.toolbox.turn_diff.begin_session();
        self.refresh_status();
        self.say_block([Row::quiet(format!("session {}", session.id()))]);
        let rows = past(&session, self.screen.width(), self.look);
        self.say(rows);
        let interrupted = session.is_open();
        self.session = Some(session);
        if interrupted {
            self.say_block([Row::quiet("the last turn was interrupted; continuing it")]);
            self.go_on = true;
            self.next_turn();
        }
        Ok(())
    }

    fn find_session(&mut self, conversation: &Conversation) -> Result<Session> {
        wait_here(assembly::session(&mut self.setup, conversation))
    }

    /// Loads the catalogues of the MCP servers in the background.
    pub(super) fn prepare_servers(&self) {
        if !self.prepared {
            let (servers, sender) = (self.parts.servers.clone(), self.sender.clone());
            tokio::spawn(async move {
                servers.prepare_all().await;
                // Sending fails only if the chat has ended.
                let _ = sender.send(News::Prepared);
            });
        }
    }

    /// Sends a message now, or queues it if a turn is running.
    pub(super) fn ask(&mut self, text: String) {
        self.history.add(&text);
        self.queue.push_back(text);
        self.next_turn();
    }

    /// Starts the next turn if there is work, no turn is running and the servers are ready.
    pub(super) fn next_turn(&mut self) {
        let nothing_to_do = !self.go_on && self.queue.is_empty();
        if nothing_to_do || self.running.is_some() || self.leaving {
            return;
        }
        if !self.prepared {
            self.notice = Some("starting the MCP servers…".to_owned());
            return;
        }
        self.notice = None;
        if let Err(error) = self.make_ready() {
            self.complain(&Problem::from_error(&error));
            return self.give_back_queue();
        }
        if std::mem::take(&mut self.go_on) {
            return self.begin(Task::GoOn);
        }
        let Some(text) = self.queue.pop_front() else {
            return;
        };
        self.say_block(asked(&text, self.look));
        self.begin(Task::Ask(text));
    }

    /// Creates the session if there is none, and rebuilds the agent if the session or the tools
    /// changed.
    fn make_ready(&mut self) -> Result<()> {
        let new = self.session.is_none();
        if new {
            let session = self.find_session(&Conversation::New)?;
            self.session_id = Some(session.id().to_owned());
            self.session = Some(session);
            self.refresh_status();
        }
        if new || self.parts.servers.generation() != self.generation {
            self.rebuild()?;
        }
        Ok(())
    }

    /// Rebuilds the agent from the current configuration, model and servers.
    pub(super) fn rebuild(&mut self) -> Result<()> {
        self.setup.config.tool_pack = self.args.place.pack.clone().or_else(|| self.pack.clone());
        self.generation = self.parts.servers.generation();
        self.agent = make_agent(&mut self.setup, &self.args, &self.parts, &self.sender)?;
        self.refresh_status();
        Ok(())
    }

    /// Switches to another model. Keeps the current one if the agent cannot be built.
    pub(super) fn choose(&mut self, choice: Choice) -> Result<()> {
        let config = &self.setup.config;
        let memory = self.setup.memory.clone();
        let memory =
            memory.map(|memory| remembering(config, memory, &choice.model, self.small.clone()));
        let servers = self.parts.servers.clone();
        let parts = Parts {
            choice,
            servers,
            memory,
        };
        let before = std::mem::replace(&mut self.parts, parts);
        self.rebuild().inspect_err(|_| self.parts = before)
    }

    fn begin(&mut self, task: Task) {
        let Some(mut session) = self.session.take() else {
            return;
        };
        let sender = self.sender.clone();
        let setting = Setting::new(&self.setup, &self.args.limits, Vec::new());
        let options = TurnOptions {
            events: EventSink::new(move |event| _ = sender.send(News::Event(event))),
            setting: serde_json::to_string(&setting).unwrap_or_default(),
            ..TurnOptions::default()
        };
        self.before = session.spent();
        self.running = Some(Running {
            turn: Turn::new(self.look, Instant::now()),
            options: options.clone(),
            stopping: false,
        });
        let (agent, sender) = (self.agent.clone(), self.sender.clone());
        tokio::spawn(async move {
            let turn = async {
                let outcome = match task {
                    Task::Ask(text) => agent.turn(&mut session, text, &options).await,
                    Task::GoOn => agent.go_on(&mut session, &options).await,
                };
                (session, outcome)
            };
            let update = match std::panic::AssertUnwindSafe(turn).catch_unwind().await {
                Ok(finished) => News::Over(Box::new(finished)),
                Err(_) => News::Broke,
            };
            // Sending fails only if the chat has ended.
            let _ = sender.send(update);
        });
    }

    pub(super) fn over(&mut self, session: Session, outcome: &TurnOutcome, now: Instant) {
        self.end_turn(now);
        self.before = session.spent();
        self.status.usage = self.before.0;
        self.status.context = self.agent.context_in_use(&session);
        self.session = Some(session);
        match &outcome.end {
            Ok(TurnEnd::Stop) => return self.next_turn(),
            Ok(TurnEnd::Interrupted) => self.say_block([Row::quiet("– stopped")]),
            Ok(TurnEnd::Length) => {
                let text = "the answer was truncated at the token limit";
                self.say_block([Row::of(text, self.look.bad())]);
                return self.next_turn();
            }
            Ok(end) => {
                let problem = Problem::new(format!("the turn ended early: {}", end.as_str()));
                self.complain(&problem.hint("send \"continue\" to let the model continue"));
            }
            Err(error) => {
                let problem = Problem::new(format!("{}: {}", error.kind, error.message));
                self.complain(&match error.kind {
                    TurnErrorKind::Model(ModelErrorKind::Auth) => {
                        problem.hint("check the API key with `selvedge models test`")
                    }
                    TurnErrorKind::Model(ModelErrorKind::ContextTooLong) => {
                        problem.hint("type /compact to free context, or /new to start over")
                    }
                    _ => problem,
                });
            }
        }
        self.give_back_queue();
    }

    pub(super) fn broke(&mut self, now: Instant) {
        self.end_turn(now);
        self.complain(&Problem::new(
            "the turn panicked; this is a bug in Selvedge",
        ));
        // The task that panicked owned the session: read it again from the journal.
        let id = self.session_id.clone();
        match self.find_session(&Conversation::Old(id)) {
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
        self.put = false;
    }

    /// Moves queued messages back into the editor after a turn that was stopped or failed, so that
    /// they are not sent without the user.
    fn give_back_queue(&mut self) {
        if !self.queue.is_empty() {
            let mut all: Vec<String> = self.queue.drain(..).collect();
            all.extend(Some(self.editor.take()).filter(|text| !text.is_empty()));
            self.editor.set(&all.join("\n"));
        }
    }

    /// Handles Ctrl-C: stops the turn, else clears the input, else quits at the second press.
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
                self.notice = Some("press Ctrl-C again to quit".to_owned());
            }
        }
    }

    /// Prints the first question if it is not shown yet. Its pause starts then: keys pressed before
    /// were not meant for it.
    pub(super) fn put_first(&mut self, now: Instant) {
        let Some(question) = self.asking.front_mut() else {
            return;
        };
        if self.put {
            return question.quiet().open_if_quiet(now);
        }
        question.quiet().disturbed(now);
        let rows = question.told(self.look);
        self.put = true;
        self.say(rows);
    }

    /// Answers the first question, which must be an approval.
    pub(super) fn decide(&mut self, decision: ApprovalDecision) {
        if let Some(Pending::Gate(prompt)) = self.asking.pop_front() {
            self.put = false;
            self.say_block([decided(&decision, self.look)]);
            prompt.decide(decision);
        }
    }

    /// Answers the first question, which must be a form.
    pub(super) fn fill(&mut self, outcome: Elicited) {
        self.why.clear();
        if let Some(Pending::Form(prompt)) = self.asking.pop_front() {
            self.put = false;
            self.say_block([elicited(&outcome, self.look)]);
            prompt.decide(outcome);
        }
    }
}

/// Builds an agent whose approvals are asked in the chat.
pub(super) fn make_agent(
    setup: &mut Setup,
    args: &ChatArgs,
    parts: &Parts,
    sender: &UnboundedSender<News>,
) -> Result<Agent> {
    let wanted = Wanted {
        model: &args.model,
        limits: &args.limits,
        turn: &args.turn,
        approver: Some(Arc::new(InTheChat(sender.clone()))),
        // Only needed to create the servers, which `parts` already has.
        person: None,
        instructions: None,
        conversation: Conversation::New,
    };
    assembly::agent_of(setup, &args.place, wanted, parts.clone())
}
