//! Sessions and turns of the chat: opens sessions, queues messages, starts turns and handles
//! their end.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use futures_util::FutureExt;
use selvedge_agent::{
    Agent, BackgroundPolicy, BackgroundWork, Session, TurnInput, TurnOptions, TurnOutcome,
};
use selvedge_mcp::ElicitationResponse;
use selvedge_protocol::{
    ApprovalResponse, EventSink, LimitSurface, ModelErrorKind, TurnEnd, TurnErrorKind,
};
use tokio::sync::mpsc::UnboundedSender;

use super::app::{Chat, RunningTurn};
use super::form_prompt::outcome_row;
use super::inbox::InboxUse;
use super::pending_question::ChatQuestion;
use super::recent_turns::{RecentTurnView, recent_turn_rows, user_message_rows};
use super::rows::StyledRow;
use super::turn_view::TurnView;
use super::updates::{ChatApprover, ChatUpdate};
use crate::agent_setup::{self, AgentBuildOptions, AgentParts, SessionChoice};
use crate::args::ChatCommandArgs;
use crate::exec::NO_ANSWER;
use crate::memory_setup::memory_for_agent;
use crate::problem::Problem;
use crate::providers::ModelChoice;
use crate::saved_config::SavedRunConfig;
use crate::setup::CliSetup;

/// Blocks the calling thread until `work` is done. Only for the thread that draws, which runs
/// nothing else.
pub(super) fn wait_here<T>(work: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work))
}

/// How a turn starts.
pub(super) enum TurnStart {
    /// With a user message.
    Message(TurnInput),
    /// By recovering the interrupted turn of the session.
    Recover,
}

impl Chat {
    /// Opens an earlier session, the last one of this folder if `id` is `None`, and prints its last
    /// turns.
    pub(crate) fn open_session(&mut self, id: Option<&str>) -> Result<()> {
        let session = self.find_session(&SessionChoice::Existing(id.map(str::to_owned)))?;
        self.rebuild_agent()?;
        self.session_state.replace();
        self.session_state.spent_before_turn = session.total_spent();
        self.status.usage = self.session_state.spent_before_turn.0;
        self.status.cost = self
            .agent
            .model()
            .prices
            .map(|_| self.session_state.spent_before_turn.1);
        self.status.context_tokens = self.agent.estimated_context_tokens(&session);
        self.session_id = Some(session.id().to_owned());
        self.setup.toolbox.turn_diff.begin_session();
        self.refresh_status();
        self.print_block([StyledRow::dim(format!("session {}", session.id()))]);
        let view = RecentTurnView {
            journal: self.setup.journal.as_deref(),
            redactor: &self.setup.redactor(),
            width: self.screen.width(),
            theme: self.theme,
        };
        let rows = recent_turn_rows(&session, &view);
        self.print_rows(rows);
        let interrupted = session.has_open_turn();
        self.session = Some(session);
        if interrupted {
            self.print_block([StyledRow::dim(
                "the last turn was interrupted; continuing it",
            )]);
            self.session_state.recover_next_turn = true;
        }
        self.start_next_turn();
        Ok(())
    }

    fn find_session(&mut self, choice: &SessionChoice) -> Result<Session> {
        wait_here(agent_setup::open_session(&mut self.setup, choice))
    }

    /// Loads the catalogues of the MCP servers in the background.
    pub(super) fn prepare_servers(&self) {
        if !self.servers_ready {
            let (servers, sender) = (self.parts.servers.clone(), self.sender.clone());
            tokio::spawn(async move {
                servers.ensure_all_catalogues().await;
                // Sending fails only if the chat has ended.
                let _ = sender.send(ChatUpdate::ServersReady);
            });
        }
    }

    /// Sends a message now, or queues it if a turn is running.
    pub(super) fn submit_message(&mut self, text: String) {
        self.history.add(&text);
        self.send_message(text);
    }

    /// Sends a message that the user did not type, now or after the running turn.
    pub(super) fn send_message(&mut self, text: String) {
        self.queued_messages.push_back(text);
        self.start_next_turn();
    }

    /// Starts the next turn if there is work, no turn is running and the servers are ready.
    pub(super) fn start_next_turn(&mut self) {
        if self.running_turn.is_some() || self.quitting {
            return;
        }
        if !self.session_state.recover_next_turn && self.queued_messages.is_empty() {
            return self.start_inbox_turn();
        }
        if !self.servers_ready {
            return;
        }
        (self.notice, self.inbox_use) = (None, InboxUse::Automatic);
        if let Err(error) = self.prepare_turn() {
            self.print_problem(&Problem::from_error(&error));
            return self.restore_queued_input();
        }
        if std::mem::take(&mut self.session_state.recover_next_turn) {
            return self.spawn_turn(TurnStart::Recover);
        }
        let Some(text) = self.queued_messages.pop_front() else {
            return;
        };
        let mut prompt = match self.attach_images(text.clone()) {
            Ok(prompt) => prompt,
            Err(problem) => {
                self.print_problem(&problem);
                self.queued_messages.push_front(text);
                return self.restore_queued_input();
            }
        };
        self.print_block(user_message_rows(&text, self.theme));
        self.print_rows(Self::image_rows(&prompt));
        let mut parts = std::mem::take(&mut self.session_state.context_for_model);
        parts.insert(0, text);
        prompt.text = parts.join("\n\n");
        self.spawn_turn(TurnStart::Message(prompt.into()));
    }

    /// Creates the session if there is none, and rebuilds the agent if the session or the tools
    /// changed.
    pub(super) fn prepare_turn(&mut self) -> Result<()> {
        let new = self.session.is_none();
        if new {
            let session = self.find_session(&SessionChoice::New)?;
            self.session_id = Some(session.id().to_owned());
            self.session = Some(session);
            self.refresh_status();
        }
        if new || self.parts.servers.generation() != self.servers_generation {
            self.rebuild_agent()?;
        }
        Ok(())
    }

    /// Rebuilds the agent from the current configuration, model and servers.
    pub(super) fn rebuild_agent(&mut self) -> Result<()> {
        self.setup.config.tool_pack = self
            .args
            .workspace
            .pack
            .clone()
            .or_else(|| self.configured_pack.clone());
        self.servers_generation = self.parts.servers.generation();
        self.agent = build_agent(&mut self.setup, &self.args, &self.parts, &self.sender)?;
        self.refresh_status();
        Ok(())
    }

    /// Switches to another model. Keeps the current one if the agent cannot be built.
    pub(super) fn use_model(&mut self, choice: ModelChoice) -> Result<()> {
        let client = choice.client()?;
        let window = wait_here(agent_setup::context_window(&client, &choice));
        let memory = self.setup.memory.clone();
        let memory = memory.map(|memory| {
            let (small, work) = (self.small_model.clone(), BackgroundWork::InProcess);
            memory_for_agent(&self.setup, memory, window, small, work)
        });
        let servers = self.parts.servers.clone();
        let parts = AgentParts {
            choice,
            client,
            servers,
            memory,
        };
        let before = std::mem::replace(&mut self.parts, parts);
        self.rebuild_agent().inspect_err(|_| self.parts = before)
    }

    pub(super) fn spawn_turn(&mut self, start: TurnStart) {
        let Some(mut session) = self.session.take() else {
            return;
        };
        let sender = self.sender.clone();
        let saved_config = SavedRunConfig::from_setup(&self.setup, &self.args.limits, Vec::new());
        let options = TurnOptions {
            events: EventSink::new(move |event| _ = sender.send(ChatUpdate::Event(event))),
            saved_config: serde_json::to_string(&saved_config).unwrap_or_default(),
            background: BackgroundPolicy::Detach,
            mode: self.script_mode,
            ..TurnOptions::default()
        };
        self.session_state.spent_before_turn = session.total_spent();
        self.session_state.last_shell_output = None;
        self.running_turn = Some(RunningTurn {
            turn: TurnView::new(self.theme, Instant::now()),
            options: options.clone(),
            stopping: false,
        });
        let (mut agent, sender) = (self.agent.clone(), self.sender.clone());
        if let Some(gate) = self.inbox_gate() {
            agent = agent.with_request_gate(gate);
        }
        tokio::spawn(async move {
            let turn = async {
                let outcome = match start {
                    TurnStart::Message(input) => {
                        agent.run_turn(&mut session, input, &options).await
                    }
                    TurnStart::Recover => agent.run_open_turn(&mut session, &options).await,
                };
                (session, outcome)
            };
            let update = match std::panic::AssertUnwindSafe(turn).catch_unwind().await {
                Ok(finished) => ChatUpdate::TurnFinished(Box::new(finished)),
                Err(_) => ChatUpdate::TurnPanicked,
            };
            // Sending fails only if the chat has ended.
            let _ = sender.send(update);
        });
    }

    pub(super) fn finish_turn(&mut self, session: Session, outcome: &TurnOutcome, now: Instant) {
        self.close_turn_view(now);
        self.finish_inbox_message(&session, Some(outcome));
        self.session_state.spent_before_turn = session.total_spent();
        self.status.usage = self.session_state.spent_before_turn.0;
        self.status.context_tokens = self.agent.estimated_context_tokens(&session);
        self.session = Some(session);
        let message = outcome.message.as_deref().unwrap_or_default();
        if matches!(outcome.end, Ok(TurnEnd::Stop | TurnEnd::Length)) && message.trim().is_empty() {
            self.print_block([StyledRow::styled(NO_ANSWER, self.theme.error())]);
        }
        match &outcome.end {
            Ok(TurnEnd::Stop) => return self.start_next_turn(),
            Ok(TurnEnd::Interrupted) => self.print_block([StyledRow::dim("– stopped")]),
            Ok(TurnEnd::Length) => {
                let text = "the answer was truncated at the token limit";
                self.print_block([StyledRow::styled(text, self.theme.error())]);
                return self.start_next_turn();
            }
            Ok(end) => {
                let problem = Problem::new(format!("the turn ended early: {}", end.as_str()));
                self.print_problem(&problem.hint("send \"continue\" to let the model continue"));
            }
            Err(error) => {
                let problem = Problem::new(format!("{}: {}", error.kind, error.message));
                self.print_problem(&match error.kind {
                    TurnErrorKind::Model(ModelErrorKind::ContextTooLong) => {
                        problem.hint("type /compact to free context, or /new to start over")
                    }
                    TurnErrorKind::Model(kind) => {
                        let provider = self.agent.client().provider();
                        let problem =
                            crate::models::request_problem(provider, kind, &error.message, None);
                        match kind {
                            ModelErrorKind::UnknownModel | ModelErrorKind::InvalidRequest => {
                                problem.with_only_hint("type /model MODEL to use another model")
                            }
                            _ => problem,
                        }
                    }
                    TurnErrorKind::DiskFull => {
                        Problem::new(&error.message).hint("free disk space, then send \"continue\"")
                    }
                    _ => Problem::new(&error.message).hint("send \"continue\" to try again"),
                });
            }
        }
        self.inbox_use = InboxUse::Paused;
        self.restore_queued_input();
    }

    pub(super) fn recover_from_panic(&mut self, now: Instant) {
        self.close_turn_view(now);
        self.print_problem(&Problem::new(
            "the turn panicked; this is a bug in Selvedge",
        ));
        // The task that panicked owned the session: read it again from the journal.
        let id = self.session_id.clone();
        match self.find_session(&SessionChoice::Existing(id)) {
            Ok(session) => self.session = Some(session),
            Err(_) => self.session_id = None,
        }
        self.restore_queued_input();
    }

    fn close_turn_view(&mut self, now: Instant) {
        if let Some(mut running) = self.running_turn.take() {
            let rows = running
                .turn
                .finish(self.screen.width(), self.reasoning_display, now);
            self.session_state.last_diff = running.turn.last_diff;
            self.print_rows(rows);
        }
        self.drop_abandoned_questions();
    }

    /// Drops the questions whose askers no longer wait. Those of agents that run in the background
    /// may remain after a turn.
    pub(super) fn drop_abandoned_questions(&mut self) {
        let first = self.questions.front();
        self.question_shown &= first.is_some_and(|question| !question.is_abandoned());
        self.questions.retain(|question| !question.is_abandoned());
    }

    /// Moves queued messages back into the editor after a turn that was stopped or failed, so that
    /// they are not sent without the user.
    fn restore_queued_input(&mut self) {
        if !self.queued_messages.is_empty() {
            let mut all: Vec<String> = self.queued_messages.drain(..).collect();
            all.extend(Some(self.editor.take()).filter(|text| !text.is_empty()));
            self.editor.set(&all.join("\n"));
        }
    }

    /// Whether the work that was asked for waits until the MCP servers have started.
    pub(super) fn waits_for_servers(&self) -> bool {
        let has_work = self.session_state.recover_next_turn || !self.queued_messages.is_empty();
        has_work && !self.servers_ready && self.running_turn.is_none()
    }

    /// Handles Esc: stops the turn or the command of the user, else takes back messages that wait
    /// for the MCP servers.
    pub(super) fn stop_work(&mut self) {
        if let Some(running) = &mut self.running_turn {
            running.stopping = true;
            running.options.cancel.cancel();
        } else if let Some(command) = &self.shell_command {
            command.kill();
        } else {
            self.restore_queued_input();
        }
    }

    /// Handles Ctrl-C: stops the turn or the command of the user, else takes back messages that
    /// wait for the MCP servers, else clears the input, else quits at the second press.
    pub(super) fn interrupt(&mut self, now: Instant) {
        self.history_search = None;
        if self.running_turn.is_none()
            && let Some(command) = &self.shell_command
        {
            return command.kill();
        }
        match &mut self.running_turn {
            Some(running) if running.stopping => self.quitting = true,
            Some(running) => {
                running.stopping = true;
                running.options.cancel.cancel();
            }
            None if !self.queued_messages.is_empty() => self.restore_queued_input(),
            None if !self.editor.is_empty() => {
                self.editor.clear();
                self.history.reset_position();
                self.completions = None;
            }
            None if self.ctrl_c_pressed_at.is_some() => self.quitting = true,
            None => {
                self.ctrl_c_pressed_at = Some(now);
                self.notice = Some("press Ctrl-C again to quit".to_owned());
            }
        }
    }

    /// Prints the first question if it is not shown yet. Its pause starts then: keys pressed before
    /// were not meant for it.
    pub(super) fn show_first_question(&mut self, now: Instant) {
        let Some(question) = self.questions.front_mut() else {
            return;
        };
        if self.question_shown {
            return question.typing_pause_mut().end_if_elapsed(now);
        }
        question.typing_pause_mut().restart(now);
        let rows = question.intro_rows(self.theme);
        self.question_shown = true;
        self.print_rows(rows);
    }

    /// Answers the first question, which must be an approval.
    pub(super) fn answer_approval(&mut self, decision: ApprovalResponse) {
        if let Some(ChatQuestion::Approval(prompt)) = self.questions.pop_front() {
            self.question_shown = false;
            self.print_block([prompt.decision_row(&decision, self.theme)]);
            prompt.reply(decision);
        }
    }

    /// Answers the first question, which must be a form.
    pub(super) fn answer_form(&mut self, outcome: ElicitationResponse) {
        self.answer_editor.clear();
        if let Some(ChatQuestion::Form(prompt)) = self.questions.pop_front() {
            self.question_shown = false;
            self.print_block([outcome_row(&outcome, self.theme)]);
            prompt.reply(outcome);
        }
    }
}

/// Builds an agent whose approvals are asked in the chat.
pub(super) fn build_agent(
    setup: &mut CliSetup,
    args: &ChatCommandArgs,
    parts: &AgentParts,
    sender: &UnboundedSender<ChatUpdate>,
) -> Result<Agent> {
    let options = AgentBuildOptions {
        model: &args.model,
        script_limits: &args.limits,
        surface: LimitSurface::Chat,
        turn_limits: &args.turn,
        approver: Some(Arc::new(ChatApprover(sender.clone()))),
        // Only needed to create the servers, which `parts` already has.
        elicitation_handler: None,
        instructions: None,
        session: SessionChoice::New,
    };
    agent_setup::build_agent(setup, &args.workspace, options, parts.clone())
}
