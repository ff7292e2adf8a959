//! Runs the slash commands of the chat.

use ratatui_core::text::Span;
use selvedge_mcp::{ServerState, ServerStatus};
use selvedge_protocol::ApprovalPolicy;
use selvedge_toolbox::WorkspaceDiff;

use super::app::Chat;
use super::commands::{
    self, KEY_BINDINGS, SCRIPT_MODES, SLASH_COMMANDS, SlashCommand, describe_choice,
    describe_policy,
};
use super::conversation::wait_here;
use super::diff;
use super::rows::{StyledRow, fold_rows, sanitize_line};
use super::turn_view::reasoning_text_rows;
use super::updates::ChatUpdate;
use crate::mcp::ADD_SERVER_HINT;
use crate::problem::Problem;
use crate::providers;

/// Lines per file that `/diff` shows.
const MAX_SESSION_DIFF_LINES: usize = 1000;

impl Chat {
    pub(super) fn run_command(&mut self, text: &str) {
        let command = match commands::parse_command(text) {
            Ok(command) => command,
            Err((message, hint)) => return self.print_problem(&Problem::new(message).hint(hint)),
        };
        self.print_rows([StyledRow::dim(sanitize_line(text))]);
        let busy = self.running_turn.is_some();
        match command {
            SlashCommand::Model(None) => self.show_model(),
            SlashCommand::Approvals(None) => {
                let (name, meaning) = describe_policy(self.setup.config.approval_policy);
                self.print_text(format!("{name}: {meaning}"));
            }
            SlashCommand::Mode(mode) => {
                self.script_mode = mode.or(self.script_mode);
                let mode = self.script_mode.unwrap_or(self.agent.options().mode);
                let (name, meaning) = describe_choice(&SCRIPT_MODES, mode);
                self.print_text(format!("{name}: {meaning}"));
            }
            SlashCommand::Diff => self.compute_session_diff(),
            SlashCommand::Continue(None) => self.list_sessions(),
            SlashCommand::Runs => self.list_runs(),
            SlashCommand::Mcp => self.check_servers(),
            SlashCommand::Reasoning => self.show_reasoning(),
            SlashCommand::Recalled => self.show_recalled(),
            SlashCommand::Memory(None) => self.show_proposals(),
            SlashCommand::Memory(Some((decision, id))) => self.review_proposal(&id, decision),
            SlashCommand::Help => self.show_help(),
            SlashCommand::Quit => self.quitting = true,
            SlashCommand::Status => self.show_status(),
            SlashCommand::Trust(answer) => self.trust_folder(answer.as_deref() == Some("yes")),
            _ if busy => {
                let name = text.split_whitespace().next().unwrap_or_default();
                let problem = Problem::new(format!("{name} is not available during a turn"));
                self.print_problem(&problem.hint("press Esc to stop the turn"));
            }
            SlashCommand::Model(Some(name)) => self.switch_model(&name),
            SlashCommand::Approvals(Some(policy)) => self.switch_policy(policy),
            SlashCommand::Compact => self.compact(),
            SlashCommand::Continue(Some(id)) => {
                if let Err(error) = self.open_session(Some(&id)) {
                    self.print_error(&error);
                }
            }
            SlashCommand::New => self.start_new_session(),
            SlashCommand::Clear => self.clear_chat(),
            SlashCommand::Init => self.write_instructions(),
            SlashCommand::Review => self.review_changes(),
            SlashCommand::Undo => self.undo_last_turn(),
            SlashCommand::Copy => self.copy_answer(),
            SlashCommand::Export(file) => self.export_session(file.as_deref()),
            SlashCommand::Expand => self.expand_last_turn(),
        }
    }

    pub(super) fn print_text(&mut self, text: impl Into<String>) {
        self.print_block([StyledRow::text(text).indented(2)]);
    }

    pub(super) fn print_error(&mut self, error: &anyhow::Error) {
        self.print_problem(&Problem::from_error(error));
    }

    fn show_model(&mut self) {
        let (model, provider) = (self.agent.model(), &self.agent.client().provider().name);
        let (name, window) = (&model.name, self.agent.context_window());
        self.print_text(format!(
            "{name} ({provider}), context window of {window} tokens"
        ));
    }

    fn switch_model(&mut self, name: &str) {
        let mut args = match providers::split_model_name(&self.setup.config, name) {
            Ok(args) => args,
            Err(error) => return self.print_error(&error),
        };
        let own = || self.agent.client().provider().name.clone();
        args.provider.get_or_insert_with(own);
        // Provider and model are both known, so the future needs no network and is ready at once.
        let choice = futures_util::FutureExt::now_or_never(providers::choose_model(
            &self.setup.config,
            &args,
        ));
        let choice =
            choice.unwrap_or_else(|| Err(Problem::new("cannot list the provider's models").into()));
        match choice.and_then(|choice| self.use_model(choice)) {
            Ok(()) => self.show_model(),
            Err(error) => self.print_error(&error),
        }
    }

    fn switch_policy(&mut self, policy: ApprovalPolicy) {
        let before = std::mem::replace(&mut self.setup.config.approval_policy, policy);
        match self.rebuild_agent() {
            Ok(()) => self.print_text(format!("approval policy: {}", describe_policy(policy).0)),
            Err(error) => {
                self.setup.config.approval_policy = before;
                self.print_error(&error);
            }
        }
    }

    fn compact(&mut self) {
        let Some(session) = &mut self.session else {
            return self.print_text("the session is empty");
        };
        match wait_here(self.agent.compact(session)) {
            Ok(Some((before, after))) => {
                self.status.context_tokens = self.agent.estimated_context_tokens(session);
                self.print_text(format!(
                    "compacted about {before} tokens to {after}; the originals stay in the journal"
                ));
            }
            Ok(None) => self.print_text("compacting would not save much"),
            Err(error) => self.print_problem(&Problem::new(error.to_string())),
        }
    }

    pub(super) fn start_new_session(&mut self) {
        (self.session, self.session_id) = (None, None);
        self.session_state.replace();
        (
            self.status.usage,
            self.status.cost,
            self.status.context_tokens,
        ) = Default::default();
        self.setup.session.clear();
        self.setup.toolbox.turn_diff.begin_session();
        self.refresh_status();
        self.print_text("started a new session");
    }

    fn show_reasoning(&mut self) {
        match self.session_state.last_reasoning.clone() {
            Some(thought) => self.print_block(reasoning_text_rows(&thought)),
            None => self.print_text("the model has shown no reasoning yet"),
        }
    }

    fn show_recalled(&mut self) {
        match self.session_state.last_recall.clone() {
            Some(recall) => self.print_block(reasoning_text_rows(&recall)),
            None => self.print_text("memory has recalled nothing in this session yet"),
        }
    }

    fn show_help(&mut self) {
        let theme = self.theme;
        let width = SLASH_COMMANDS
            .iter()
            .map(|(usage, _)| usage.len())
            .max()
            .unwrap_or(0);
        let row = |name: &str, help: &str| {
            let prefix = Span::styled(format!("  {name:<width$}  "), theme.code());
            StyledRow::text(help).with_prefix(prefix)
        };
        let mut rows: Vec<StyledRow> = SLASH_COMMANDS
            .iter()
            .map(|(usage, help)| row(usage, help))
            .collect();
        rows.push(StyledRow::blank());
        for (keys, help) in KEY_BINDINGS {
            rows.push(match keys.len() <= width {
                true => row(keys, help),
                false => StyledRow::spans(vec![
                    Span::styled(keys, theme.code()),
                    Span::raw(format!("  {help}")),
                ])
                .indented(2),
            });
        }
        self.print_block(rows);
    }

    fn check_servers(&mut self) {
        if self.parts.servers.is_empty() {
            let problem = Problem::new("no MCP servers are configured");
            return self.print_problem(&problem.hint(ADD_SERVER_HINT));
        }
        let (servers, sender) = (self.parts.servers.clone(), self.sender.clone());
        tokio::spawn(async move {
            let status = servers.start_and_check().await;
            // Sending fails only if the chat has ended.
            let _ = sender.send(ChatUpdate::ServersChecked(status));
        });
    }

    pub(super) fn show_servers(&mut self, status: &[ServerStatus]) {
        let theme = self.theme;
        let mut rows = Vec::new();
        for server in status {
            let (mark, style) = match server.state {
                ServerState::Ready => ("✓ ", theme.success()),
                ServerState::Disabled => ("– ", theme.dim()),
                _ => ("✗ ", theme.error()),
            };
            let mut text = format!("{}  {}", server.name, server.state.as_str());
            if server.state == ServerState::Ready {
                let tools = selvedge_text::count_noun(server.tools.len(), "tool");
                text.push_str(&format!(", {tools}"));
            }
            let mark = Span::styled(mark, style);
            rows.push(
                StyledRow::text(sanitize_line(&text))
                    .with_prefix(mark)
                    .indented(2),
            );
            let notes = server.reason.iter().chain(&server.notes).cloned();
            let hint = server.hint.iter().map(|hint| format!("hint: {hint}"));
            let notes = notes.chain(hint);
            rows.extend(notes.map(|note| StyledRow::dim(sanitize_line(&note)).indented(6)));
        }
        self.print_block(rows);
    }

    fn compute_session_diff(&self) {
        let (turn_diff, sender) = (self.setup.toolbox.turn_diff.clone(), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            // Sending fails only if the chat has ended.
            let _ = sender.send(ChatUpdate::SessionDiffReady(Box::new(
                turn_diff.session_diff(),
            )));
        });
    }

    pub(super) fn show_diff(&mut self, diff: &WorkspaceDiff) {
        let theme = self.theme;
        let mut rows: Vec<StyledRow> = diff::split_by_file(&diff.text)
            .iter()
            .flat_map(|file| file.rows(|rows| fold_rows(rows, MAX_SESSION_DIFF_LINES), theme))
            .collect();
        if rows.is_empty() {
            rows.push(StyledRow::text("  no changes in this session"));
        }
        let notes = diff.notes.iter();
        rows.extend(notes.map(|note| StyledRow::dim(format!("note: {}", sanitize_line(note)))));
        self.print_block(rows);
    }
}
