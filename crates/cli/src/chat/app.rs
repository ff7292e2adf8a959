//! The chat's state and main loop: handles input and updates of the running turn, and redraws.

use std::collections::VecDeque;
use std::io::{self, Stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use crossterm::event::Event as InputEvent;
use ratatui_core::text::Span;
use selvedge_agent::{Agent, BackgroundWork, Session, TurnOptions};
use selvedge_config::Project;
use selvedge_memory::SmallModel;
use selvedge_protocol::{ClaimedMessage, RuntimeEvent, ScriptMode};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::approval_prompt::ApprovalPrompt;
use super::completion::CompletionMenu;
use super::conversation::build_agent;
use super::editor::Editor;
use super::form_prompt::FormPrompt;
use super::history::InputHistory;
use super::history_search::HistorySearch;
use super::images::PastedImages;
use super::inbox::{InboxPoll, InboxUse};
use super::other_programs::{InputGate, spawn_input_reader};
use super::pending_question::{ChatQuestion, QuitAction};
use super::rows::{StyledRow, sanitize_line};
use super::screen::ChatScreen;
use super::shell_command::ShellCommand;
use super::status::StatusLine;
use super::theme::Theme;
use super::turn_view::{ReasoningDisplay, TurnView};
use super::updates::{ChatApprover, ChatUpdate, update_channel};
use crate::agent_setup::{self, AgentParts};
use crate::args::ChatCommandArgs;
use crate::memory_setup::{memory_for_agent, small_model_if_possible};
use crate::problem::Problem;
use crate::providers;
use crate::setup::CliSetup;
use crate::stop_signals::{StopSignal, StopSignals};

/// Minimum time between two redraws.
const MIN_FRAME_INTERVAL: Duration = Duration::from_millis(16);
/// How often an idle chat looks for messages to its session.
const INBOX_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How often elapsed times are redrawn while a turn runs.
const TIMER_REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// How long the chat waits at its end for the turn, and then for the MCP servers, to stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// A second Ctrl-C within this time quits.
const QUIT_CONFIRM_WINDOW: Duration = Duration::from_secs(3);

/// The whole state of a chat.
pub(crate) struct Chat {
    pub(super) setup: CliSetup,
    pub(super) args: ChatCommandArgs,
    pub(super) parts: AgentParts,
    /// The model that memory uses for summaries, if one is configured.
    pub(super) small_model: Option<Arc<dyn SmallModel>>,
    /// The tool pack set in the configuration; `None` if the model decides.
    pub(super) configured_pack: Option<String>,
    /// Whether the catalogues of the MCP servers are loaded. Turns start only then.
    pub(super) servers_ready: bool,
    /// The generation of the MCP servers' tools with which the agent was built.
    pub(super) servers_generation: u64,
    pub(super) agent: Agent,
    /// `None` before the first turn, and while a turn owns the session.
    pub(super) session: Option<Session>,
    pub(super) session_id: Option<String>,
    pub(super) session_state: ChatSessionState,
    pub(super) sender: UnboundedSender<ChatUpdate>,
    receiver: UnboundedReceiver<ChatUpdate>,
    pub(super) running_turn: Option<RunningTurn>,
    /// Messages to send when the current turn ends.
    pub(super) queued_messages: VecDeque<String>,
    /// The stored message that the current turn answers, if it is one.
    pub(super) inbox_message: Option<ClaimedMessage>,
    /// Whether messages to the session start turns by themselves.
    pub(super) inbox_use: InboxUse,
    /// Unanswered questions. Only the first is shown.
    pub(super) questions: VecDeque<ChatQuestion>,
    /// Whether the first question is on the screen.
    pub(super) question_shown: bool,
    pub(super) editor: Editor,
    pub(super) pasted_images: PastedImages,
    /// Input for the first question: the reason of a denial, or a form field.
    pub(super) answer_editor: Editor,
    pub(super) history: InputHistory,
    pub(super) completions: Option<CompletionMenu>,
    pub(super) file_search_running: bool,
    pub(super) reasoning_display: ReasoningDisplay,
    pub(super) status: StatusLine,
    /// The mode that `/mode` set for the next turns.
    pub(super) script_mode: Option<ScriptMode>,
    /// The files of the folder that `/trust` showed last.
    pub(super) shown_project: Option<Project>,
    /// The search in the history, while it is open.
    pub(super) history_search: Option<HistorySearch>,
    /// The command that the user runs with `!`.
    pub(super) shell_command: Option<ShellCommand>,
    pub(super) input_gate: InputGate,
    /// Text shown in place of the status line until the next key.
    pub(super) notice: Option<String>,
    /// When Ctrl-C was pressed while no turn was running and the input was empty.
    pub(super) ctrl_c_pressed_at: Option<Instant>,
    pub(super) theme: Theme,
    pub(super) screen: ChatScreen<Stdout>,
    /// Rows to print above the live part at the next redraw.
    finished_rows: Vec<StyledRow>,
    /// Ends the main loop.
    pub(super) quitting: bool,
}

/// What belongs to the session besides its turns. A session that is opened or started has its own.
#[derive(Default)]
pub(super) struct ChatSessionState {
    /// The number of the session in this chat.
    pub(super) number: u64,
    /// Usage and cost in US dollars of the session's earlier turns.
    pub(super) spent_before_turn: (selvedge_protocol::Usage, f64),
    /// Whether the next turn recovers the interrupted turn of the opened session.
    pub(super) recover_next_turn: bool,
    pub(super) last_reasoning: Option<String>,
    /// What memory recalled last, one line each.
    pub(super) last_recall: Option<String>,
    /// What the last turn changed in the folder.
    pub(super) last_diff: String,
    /// The last command that the user ran since the last turn, and its output.
    pub(super) last_shell_output: Option<(String, String)>,
    /// What the next message tells the model besides its text: commands that the user ran.
    pub(super) context_for_model: Vec<String>,
}

impl ChatSessionState {
    /// Begins the state of the next session.
    pub(super) fn replace(&mut self) {
        *self = Self {
            number: self.number + 1,
            ..Self::default()
        };
    }
}

/// Why the main loop wakes without an event.
#[derive(PartialEq, Eq)]
enum ChatWakeReason {
    Redraw,
    InboxPoll,
}

/// The turn in progress.
pub(super) struct RunningTurn {
    pub(super) turn: TurnView,
    pub(super) options: TurnOptions,
    /// Whether the turn was cancelled and has not ended yet.
    pub(super) stopping: bool,
}

impl Chat {
    /// Builds the agent and an empty chat. Draws nothing and starts no server.
    pub(crate) async fn new(mut setup: CliSetup, args: ChatCommandArgs) -> Result<Self> {
        let (width, height) = terminal_size();
        let theme = Theme::from_env();
        let (sender, receiver) = update_channel(setup.toolbox.turn_diff.clone());
        let choice = providers::choose_model(&setup.config, &args.model).await?;
        let approver = Arc::new(ChatApprover(sender.clone()));
        let servers = setup.servers(agent_setup::mcp_request_handlers(&setup, Some(approver)))?;
        let pack = setup.config.tool_pack.clone();
        let memory = agent_setup::open_memory(&mut setup)?;
        let small = match memory {
            Some(_) => small_model_if_possible(&setup.config, &choice.provider.name).await,
            None => None,
        };
        let client = choice.client()?;
        let window = agent_setup::context_window(&client, &choice).await;
        let work = BackgroundWork::InProcess;
        let memory =
            memory.map(|memory| memory_for_agent(&setup, memory, window, small.clone(), work));
        let (servers_ready, generation) = (servers.is_empty(), servers.generation());
        let parts = AgentParts {
            choice,
            client,
            servers,
            memory,
        };
        let agent = build_agent(&mut setup, &args, &parts, &sender)?;
        let home = setup.home.clone().filter(|_| !setup.ephemeral);
        setup.toolbox.turn_diff.begin_session();
        let mut chat = Self {
            servers_ready,
            servers_generation: generation,
            parts,
            small_model: small,
            configured_pack: pack,
            agent,
            session: None,
            session_id: None,
            session_state: ChatSessionState::default(),
            sender,
            receiver,
            running_turn: None,
            queued_messages: VecDeque::new(),
            inbox_message: None,
            inbox_use: InboxUse::Automatic,
            questions: VecDeque::new(),
            question_shown: false,
            editor: Editor::default(),
            pasted_images: PastedImages::default(),
            answer_editor: Editor::default(),
            // If the journal is encrypted, messages must not be stored in a plain file.
            history: InputHistory::open(home.as_deref().filter(|_| !setup.config.journal.encrypt)),
            completions: None,
            file_search_running: false,
            reasoning_display: ReasoningDisplay::Collapsed,
            status: StatusLine::default(),
            script_mode: None,
            shown_project: None,
            history_search: None,
            shell_command: None,
            input_gate: InputGate::default(),
            notice: None,
            ctrl_c_pressed_at: None,
            theme,
            screen: ChatScreen::new(io::stdout(), width, height),
            finished_rows: Vec::new(),
            quitting: false,
            setup,
            args,
        };
        chat.refresh_status();
        Ok(chat)
    }

    /// Returns the id of the session if it can be continued later.
    pub(crate) fn continuable_session(&self) -> Option<&str> {
        let id = self.session_id.as_deref();
        id.filter(|_| self.setup.journal.is_some())
    }

    pub(crate) async fn run(&mut self) -> Result<()> {
        let mut input = spawn_input_reader(self.input_gate.clone());
        let mut stop = StopSignals::listen()?;
        self.prepare_servers();
        self.announce_proposals();
        let mut painted: Option<Instant> = None;
        let mut dirty = true;
        while !self.quitting {
            if dirty && painted.is_none_or(|at| at.elapsed() >= MIN_FRAME_INTERVAL) {
                // If the terminal cannot be written, the user is gone.
                self.quitting |= self.paint().is_err();
                (painted, dirty) = (Some(Instant::now()), false);
                continue;
            }
            let (wait, reason) = self.time_until_wake(painted, dirty);
            let first_question = self.questions.front_mut();
            let mut polled = false;
            tokio::select! {
                biased;
                signal = stop.next() => match signal {
                    StopSignal::Interrupt => self.interrupt(Instant::now()),
                    StopSignal::Terminate => self.quitting = true,
                },
                event = input.recv() => match event {
                    Some(event) => self.handle_input(event),
                    // The terminal is closed.
                    None => self.quitting = true,
                },
                Some(update) = self.receiver.recv() => self.handle_update(update),
                () = until_abandoned(first_question) => {}
                () = tokio::time::sleep(wait) => polled = reason == ChatWakeReason::InboxPoll,
            }
            if polled && self.poll_inbox() == InboxPoll::Unchanged {
                continue;
            }
            // Handle everything that is already queued before the next redraw.
            while let Ok(event) = input.try_recv() {
                self.handle_input(event);
            }
            for _ in 0..256 {
                let Ok(update) = self.receiver.try_recv() else {
                    break;
                };
                self.handle_update(update);
            }
            self.drop_abandoned_questions();
            let shown_before = self.question_shown;
            self.show_first_question(Instant::now());
            // Each question rings the bell, also one that follows another.
            let is_open = self.question_shown;
            let changed = match is_open && !shown_before {
                true => self.screen.set_question_open(false),
                false => Ok(()),
            };
            let changed = changed.and_then(|()| self.screen.set_question_open(is_open));
            // If the terminal cannot be written, the user is gone.
            self.quitting |= changed.is_err();
            dirty = true;
        }
        self.shut_down().await
    }

    /// Returns how long the main loop may sleep, and what it does then.
    fn time_until_wake(
        &mut self,
        painted: Option<Instant>,
        dirty: bool,
    ) -> (Duration, ChatWakeReason) {
        let redraw = self.time_until_redraw(painted, dirty);
        match self.is_idle() && redraw > INBOX_POLL_INTERVAL {
            true => (INBOX_POLL_INTERVAL, ChatWakeReason::InboxPoll),
            false => (redraw, ChatWakeReason::Redraw),
        }
    }

    /// Returns how long the main loop may sleep before the next redraw.
    fn time_until_redraw(&mut self, painted: Option<Instant>, dirty: bool) -> Duration {
        if dirty {
            return MIN_FRAME_INTERVAL
                .saturating_sub(painted.map_or(MIN_FRAME_INTERVAL, |at| at.elapsed()));
        }
        let question = self.questions.front_mut();
        if let Some(at) = question.and_then(|question| question.typing_pause_mut().ends_at()) {
            return at
                .saturating_duration_since(Instant::now())
                .min(TIMER_REDRAW_INTERVAL);
        }
        match self.running_turn.is_some() || self.ctrl_c_pressed_at.is_some() {
            true => TIMER_REDRAW_INTERVAL,
            false => Duration::from_secs(3600),
        }
    }

    fn handle_input(&mut self, event: InputEvent) {
        match event {
            InputEvent::Key(key) if key.kind != crossterm::event::KeyEventKind::Release => {
                self.handle_key(key)
            }
            InputEvent::Paste(text) => self.handle_paste(&text),
            InputEvent::Resize(width, height) => self.redraw(width.into(), height.into()),
            _ => {}
        }
    }

    pub(super) fn redraw(&mut self, width: usize, height: usize) {
        let frame = self.render_frame(width, height);
        self.quitting |= self.screen.resize(width, height, frame).is_err();
    }

    fn paint(&mut self) -> io::Result<()> {
        if self
            .ctrl_c_pressed_at
            .is_some_and(|at| at.elapsed() > QUIT_CONFIRM_WINDOW)
        {
            (self.ctrl_c_pressed_at, self.notice) = (None, None);
        }
        let finished = std::mem::take(&mut self.finished_rows);
        let frame = self.render_frame(self.screen.width(), self.screen.height());
        self.screen.paint(finished, frame)
    }

    /// Prints rows above the live part at the next redraw. They are never redrawn.
    pub(super) fn print_rows(&mut self, rows: impl IntoIterator<Item = StyledRow>) {
        self.finished_rows.extend(rows);
    }

    /// Prints rows and a blank line.
    pub(super) fn print_block(&mut self, rows: impl IntoIterator<Item = StyledRow>) {
        self.print_rows(rows);
        self.print_rows([StyledRow::blank()]);
    }

    /// Prints an error and its hints.
    pub(super) fn print_problem(&mut self, problem: &Problem) {
        let theme = self.theme;
        let row = |label: &'static str, text: &str, style| {
            StyledRow::text(sanitize_line(text)).with_prefix(Span::styled(label, style))
        };
        let hints = problem.hints().iter();
        let hints = hints.map(|hint| row("hint: ", hint, theme.progress()));
        let error = row("error: ", &problem.to_string(), theme.error());
        self.print_block(std::iter::once(error).chain(hints));
    }

    fn handle_update(&mut self, update: ChatUpdate) {
        let now = Instant::now();
        let width = self.screen.width();
        match update {
            ChatUpdate::Event(event) => {
                if let RuntimeEvent::UsageUpdated {
                    usage,
                    cost,
                    context_tokens,
                    context_window,
                    ..
                } = &event
                {
                    self.status.usage = self.session_state.spent_before_turn.0;
                    self.status.usage += *usage;
                    self.status.cost =
                        cost.map(|cost| cost + self.session_state.spent_before_turn.1);
                    (self.status.context_tokens, self.status.context_window) =
                        (*context_tokens, *context_window);
                }
                if let Some(running) = &mut self.running_turn {
                    let rows = running
                        .turn
                        .apply(event, width, self.reasoning_display, now);
                    let reasoning = running.turn.last_reasoning.clone();
                    self.session_state.last_reasoning =
                        reasoning.or(self.session_state.last_reasoning.take());
                    let recall = running.turn.last_recall.clone();
                    self.session_state.last_recall =
                        recall.or(self.session_state.last_recall.take());
                    self.print_rows(rows);
                }
            }
            ChatUpdate::ApprovalRequested(question) => {
                let prompt = Box::new(ApprovalPrompt::new(question, now));
                self.questions.push_back(ChatQuestion::Approval(prompt));
            }
            ChatUpdate::FormRequested(question) => {
                // A form that cannot be shown is dropped: its reply channel closes, and the server
                // gets an error.
                if let Some(prompt) = FormPrompt::new(question, now) {
                    self.questions
                        .push_back(ChatQuestion::Form(Box::new(prompt)));
                }
            }
            ChatUpdate::TurnFinished(finished) => {
                let (session, outcome) = *finished;
                self.finish_turn(session, &outcome, now);
            }
            ChatUpdate::TurnPanicked => self.recover_from_panic(now),
            ChatUpdate::ClipboardRead(image) => self.handle_clipboard(image),
            ChatUpdate::ImageFileRead { text, image } => self.handle_image_file(&text, image),
            ChatUpdate::FilesFound { query, paths } => self.handle_found_files(&query, paths),
            ChatUpdate::ServersReady => {
                self.servers_ready = true;
                let failures = self.parts.servers.start_failures();
                let warnings = failures.iter().flat_map(|failure| {
                    let hint = failure.hint().map(|hint| format!("hint: {hint}"));
                    let rows = [format!("warning: {failure}")].into_iter().chain(hint);
                    rows.map(|row| StyledRow::text(sanitize_line(&row)))
                });
                let warnings: Vec<_> = warnings.collect();
                if !warnings.is_empty() {
                    self.print_block(warnings);
                }
                self.start_next_turn();
            }
            ChatUpdate::JournalRead(show) => show(self),
            ChatUpdate::ServersChecked(status) => self.show_servers(&status),
            ChatUpdate::SessionDiffReady(diff) => self.show_diff(&diff),
        }
    }

    pub(super) fn refresh_status(&mut self) {
        self.status.model.clone_from(&self.agent.model().name);
        self.status.context_window = self.agent.context_window();
        self.status.sandbox = self.setup.config.sandbox_mode;
        self.status.session_id = self.continuable_session().map(str::to_owned);
    }

    /// Ends the running turn, prints the remaining rows and clears the live part.
    async fn shut_down(&mut self) -> Result<()> {
        if let Some(running) = &self.running_turn {
            let action = self
                .questions
                .front()
                .map_or(QuitAction::CancelTurn, ChatQuestion::quit_action);
            match action {
                QuitAction::CancelTurn => running.options.cancel.cancel(),
                QuitAction::SuspendScript => running.options.caller_gone.cancel(),
                QuitAction::KeepInterrupted => {}
            }
            let wait_for_turn = action != QuitAction::KeepInterrupted;
            let ended = async {
                while wait_for_turn && let Some(update) = self.receiver.recv().await {
                    let is_end = matches!(
                        update,
                        ChatUpdate::TurnFinished(_) | ChatUpdate::TurnPanicked
                    );
                    self.queued_messages.clear();
                    self.handle_update(update);
                    if is_end {
                        break;
                    }
                }
            };
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await;
        }
        if let Some(command) = &self.shell_command {
            command.kill();
        }
        let agents = self.setup.sub_agents.clone().unwrap_or_default();
        let stopped = match agents.stop_background_agents().await {
            0 => None,
            1 => Some("stopped 1 agent that was still running in the background".to_owned()),
            running => Some(format!(
                "stopped {running} agents that were still running in the background"
            )),
        };
        self.print_rows(stopped.map(StyledRow::dim));
        let finished = std::mem::take(&mut self.finished_rows);
        // Errors are ignored: the terminal may be closed.
        let _ = self.screen.paint(finished, Default::default());
        let _ = self.screen.clear();
        let _ = self.screen.set_question_open(false);
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.parts.servers.stop()).await;
        Ok(())
    }
}

/// Completes when the asker of this question no longer waits. Never completes without a question.
async fn until_abandoned(question: Option<&mut ChatQuestion>) {
    match question {
        Some(question) => question.until_abandoned().await,
        None => std::future::pending().await,
    }
}

/// Returns the width and height of the terminal, or 80 by 24 if it does not report them.
pub(super) fn terminal_size() -> (usize, usize) {
    match crossterm::terminal::size() {
        Ok((width @ 1.., height @ 1..)) => (width.into(), height.into()),
        _ => (80, 24),
    }
}
