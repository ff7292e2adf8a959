//! Runs the slash commands of the chat.

use ratatui_core::text::Span;
use selvedge_journal::{Filter, RunState};
use selvedge_mcp::{ServerState, ServerStatus};
use selvedge_protocol::ApprovalPolicy;
use selvedge_toolbox::Diff;

use super::app::Chat;
use super::commands::{self, ALL, Command, KEYS, about_policy};
use super::conversation::wait_here;
use super::diff;
use super::news::News;
use super::rows::{Row, one_line};
use super::turn::thought_rows;
use crate::args::ModelArgs;
use crate::problem::Problem;
use crate::providers;
use crate::runs::{ago, count_of_calls};

/// Sessions or runs that one list shows.
const RUNS: usize = 20;
/// Lines per file that `/diff` shows.
const DIFF_LINES: usize = 1000;

impl Chat {
    pub(super) fn command(&mut self, text: &str) {
        let command = match commands::parse(text) {
            Ok(command) => command,
            Err((message, hint)) => return self.complain(&Problem::new(message).hint(hint)),
        };
        self.say([Row::quiet(one_line(text))]);
        let busy = self.running.is_some();
        match command {
            Command::Model(None) => self.tell_model(),
            Command::Approvals(None) => {
                let (name, meaning) = about_policy(self.setup.config.approval_policy);
                self.tell(format!("{name}: {meaning}"));
            }
            Command::Diff => self.look_for_changes(),
            Command::Resume(None) => self.list_sessions(),
            Command::Runs => self.list_runs(),
            Command::Mcp => self.look_after_servers(),
            Command::Thinking => self.tell_thought(),
            Command::Help => self.help(),
            Command::Quit => self.leaving = true,
            _ if busy => {
                let name = text.split_whitespace().next().unwrap_or_default();
                let problem = Problem::new(format!("{name} is not available during a turn"));
                self.complain(&problem.hint("press Ctrl-C to stop the turn"));
            }
            Command::Model(Some(name)) => self.choose_model(&name),
            Command::Approvals(Some(policy)) => self.choose_policy(policy),
            Command::Compact => self.compact(),
            Command::Resume(Some(id)) => {
                if let Err(error) = self.open(Some(&id)) {
                    self.complain_of(&error);
                }
            }
            Command::New => self.begin_anew(),
        }
    }

    fn tell(&mut self, text: impl Into<String>) {
        self.say_block([Row::text(text).indent(2)]);
    }

    fn complain_of(&mut self, error: &anyhow::Error) {
        self.complain(&Problem::from_error(error));
    }

    fn tell_model(&mut self) {
        let (model, provider) = (self.agent.model(), &self.agent.client().provider().name);
        let (name, window) = (&model.name, model.context_window);
        self.tell(format!(
            "{name} ({provider}), context window of {window} tokens"
        ));
    }

    fn choose_model(&mut self, name: &str) {
        // `provider/model` names both if such a provider is configured.
        let split = name.split_once('/');
        let split = split.filter(|(provider, _)| self.is_provider(provider));
        let (provider, model) = split.unwrap_or((&self.agent.client().provider().name, name));
        let args = ModelArgs {
            model: Some(model.to_owned()),
            provider: Some(provider.to_owned()),
        };
        // Provider and model are both known, so the future needs no network and is ready at once.
        let choice =
            futures_util::FutureExt::now_or_never(providers::choose(&self.setup.config, &args));
        let choice =
            choice.unwrap_or_else(|| Err(Problem::new("cannot list the provider's models").into()));
        match choice.and_then(|choice| self.choose(choice)) {
            Ok(()) => self.tell_model(),
            Err(error) => self.complain_of(&error),
        }
    }

    fn is_provider(&self, name: &str) -> bool {
        providers::all(&self.setup.config)
            .is_ok_and(|all| all.iter().any(|provider| provider.name == name))
    }

    fn choose_policy(&mut self, policy: ApprovalPolicy) {
        let before = std::mem::replace(&mut self.setup.config.approval_policy, policy);
        match self.rebuild() {
            Ok(()) => self.tell(format!("approval policy: {}", about_policy(policy).0)),
            Err(error) => {
                self.setup.config.approval_policy = before;
                self.complain_of(&error);
            }
        }
    }

    fn compact(&mut self) {
        let Some(session) = &mut self.session else {
            return self.tell("the session is empty");
        };
        match wait_here(self.agent.compact(session)) {
            Ok(Some((before, after))) => {
                self.status.context = self.agent.context_in_use(session);
                self.tell(format!(
                    "compacted about {before} tokens to {after}; the originals stay in the journal"
                ));
            }
            Ok(None) => self.tell("compacting would not save much"),
            Err(error) => self.complain(&Problem::new(error.to_string())),
        }
    }

    fn begin_anew(&mut self) {
        (self.session, self.session_id, self.before) = (None, None, Default::default());
        (self.status.usage, self.status.cost, self.status.context) = Default::default();
        self.setup.session.clear();
        self.setup.toolbox.turn_diff.begin_session();
        self.refresh_status();
        self.tell("started a new session");
    }

    fn tell_thought(&mut self) {
        match self.last_thought.clone() {
            Some(thought) => self.say_block(thought_rows(&thought)),
            None => self.tell("the model has shown no thinking yet"),
        }
    }

    fn help(&mut self) {
        let theme = self.look;
        let width = ALL.iter().map(|(usage, _)| usage.len()).max().unwrap_or(0);
        let row = |name: &str, help: &str| {
            let prefix = Span::styled(format!("  {name:<width$}  "), theme.code());
            Row::text(help).behind(prefix)
        };
        let mut rows: Vec<Row> = ALL.iter().map(|(usage, help)| row(usage, help)).collect();
        rows.push(Row::blank());
        for (keys, help) in KEYS {
            rows.push(match keys.len() <= width {
                true => row(keys, help),
                false => Row::spans(vec![
                    Span::styled(keys, theme.code()),
                    Span::raw(format!("  {help}")),
                ])
                .indent(2),
            });
        }
        self.say_block(rows);
    }

    fn list_sessions(&mut self) {
        let Some(journal) = self.setup.journal.clone() else {
            return self.nothing_kept();
        };
        let here = self.setup.directory.display().to_string();
        let now = selvedge_protocol::since_epoch();
        let sessions = journal.sessions(100).unwrap_or_default();
        let redactor = self.setup.redactor();
        let rows: Vec<Row> = sessions
            .iter()
            .filter(|session| session.directory == here)
            .take(RUNS)
            .map(|session| {
                let name = crate::sessions::title(&journal, session, &redactor);
                let when = ago(now, session.touched_ms);
                let text = format!("{}  {when:>7}  {name}", session.id);
                Row::text(one_line(&text)).cut().indent(2)
            })
            .collect();
        let hint = "type /resume ID to continue a session";
        self.say_list(rows, "no sessions in this folder", hint);
    }

    fn list_runs(&mut self) {
        let Some(journal) = self.setup.journal.clone() else {
            return self.nothing_kept();
        };
        let session = self.session_id.clone().unwrap_or_default();
        let filter = Filter {
            since_ms: None,
            tool: None,
            limit: Some(500),
        };
        let all = journal.runs(&filter).unwrap_or_default();
        let now = selvedge_protocol::since_epoch();
        let rows: Vec<Row> = all
            .iter()
            .filter(|run| !session.is_empty() && run.session == session)
            .take(RUNS)
            .map(|run| {
                let (state, style) = match run.state {
                    RunState::Running => ("running", self.look.busy()),
                    RunState::Completed => ("completed", self.look.good()),
                    RunState::Failed => ("failed", self.look.bad()),
                    RunState::Suspended => ("suspended", self.look.asks()),
                    RunState::Died => ("died", self.look.bad()),
                };
                let when = ago(now, run.started_ms);
                let body = vec![
                    Span::raw(format!("{}  ", run.id)),
                    Span::styled(format!("{state:<9}"), style),
                    Span::raw(format!("  {when:>6}  {}", count_of_calls(run.calls))),
                ];
                Row::spans(body).cut().indent(2)
            })
            .collect();
        let hint = "run `selvedge runs show ID` for details";
        self.say_list(rows, "no runs in this session yet", hint);
    }

    /// Prints the rows and the hint, or `empty` if there are no rows.
    fn say_list(&mut self, rows: Vec<Row>, empty: &str, hint: &str) {
        let last = if rows.is_empty() {
            Row::text(empty)
        } else {
            Row::quiet(hint)
        };
        self.say_block(rows.into_iter().chain([last.indent(2)]));
    }

    fn nothing_kept(&mut self) {
        let problem = Problem::new("this chat has no journal");
        self.complain(&problem.hint("start selvedge without --ephemeral"));
    }

    fn look_after_servers(&mut self) {
        if self.parts.servers.is_empty() {
            return self.tell("no MCP servers are configured; see docs/mcp.md");
        }
        let (servers, sender) = (self.parts.servers.clone(), self.sender.clone());
        tokio::spawn(async move {
            let status = servers.try_out().await;
            // Sending fails only if the chat has ended.
            let _ = sender.send(News::Servers(status));
        });
    }

    pub(super) fn show_servers(&mut self, status: &[ServerStatus]) {
        let theme = self.look;
        let mut rows = Vec::new();
        for server in status {
            let (mark, style) = match server.state {
                ServerState::Ready => ("✓ ", theme.good()),
                ServerState::Disabled => ("– ", theme.quiet()),
                _ => ("✗ ", theme.bad()),
            };
            let mut text = format!("{}  {}", server.name, server.state.as_str());
            if server.state == ServerState::Ready {
                text.push_str(&format!(", {} tools", server.tools.len()));
            }
            let mark = Span::styled(mark, style);
            rows.push(Row::text(one_line(&text)).behind(mark).indent(2));
            let notes = server.why.iter().chain(&server.notes);
            rows.extend(notes.map(|note| Row::quiet(one_line(note)).indent(6)));
        }
        self.say_block(rows);
    }

    fn look_for_changes(&self) {
        let (turn_diff, sender) = (self.setup.toolbox.turn_diff.clone(), self.sender.clone());
        tokio::task::spawn_blocking(move || {
            // Sending fails only if the chat has ended.
            let _ = sender.send(News::Diff(Box::new(turn_diff.session_diff())));
        });
    }

    pub(super) fn show_diff(&mut self, diff: &Diff) {
        let theme = self.look;
        let mut rows: Vec<Row> = diff::files(&diff.text)
            .iter()
            .flat_map(|file| file.rows(DIFF_LINES, theme))
            .collect();
        if rows.is_empty() {
            rows.push(Row::text("  no changes in this session"));
        }
        let notes = diff.notes.iter();
        rows.extend(notes.map(|note| Row::quiet(format!("note: {}", one_line(note)))));
        self.say_block(rows);
    }
}
