//! Slash commands about the session and the folder: status, clear, init, undo, copy, export, trust,
//! review and expand.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ratatui_core::text::Span;
use selvedge_config::{Project, project_effects};
use selvedge_protocol::{ConversationItem, MessageRole, OutputPart, TurnItem};

use super::app::Chat;
use super::commands::{SCRIPT_MODES, describe_choice, describe_policy};
use super::diff;
use super::highlight::highlight_code;
use super::recent_turns::{RecentTurnView, script_call_rows};
use super::rows::{StyledRow, sanitize, sanitize_line};
use super::shell_command::output_rows;
use super::status::format_usage;
use super::updates::ChatUpdate;
use crate::problem::Problem;
use crate::prompt_images::text_with_images;
use crate::sessions_stop::{RevertDecider, revert_turn};

/// Largest text that `/copy` sends to the terminal, in bytes. Terminals ignore longer ones.
const MAX_COPIED_BYTES: usize = 74_994;

/// The request of `/init`.
const INIT_PROMPT: &str = "Write AGENTS.md in the root of this project, or improve the one that \
    exists: a guide of at most 60 lines for coding agents. Read the README, the manifests and the \
    layout first. Say how to build, test and lint, how the code is organised, which conventions it \
    follows, and what must not be touched. State only what you found in the files.";

/// The request of `/review`.
const REVIEW_PROMPT: &str = "Review the uncommitted changes of this repository (`git status`, \
    `git diff HEAD`, and new files). Change nothing. Report defects first, the most serious first, \
    each with file and line, what goes wrong, and how to fix it; then risks and missing tests. Say \
    so if there is nothing to report.";

impl Chat {
    pub(super) fn show_status(&mut self) {
        let (model, provider) = (self.agent.model(), &self.agent.client().provider().name);
        let config = &self.setup.config;
        let mode = self.script_mode.unwrap_or(self.agent.options().mode);
        let sandbox = serde_json::json!(config.sandbox_mode);
        let rules = match self.setup.project {
            Some(_) => "trusted",
            None => "its configuration files, if any, are not used",
        };
        let cost = match (model.prices, self.status.cost) {
            (None, _) => ", cost unknown: the model has no prices".to_owned(),
            (Some(_), Some(cost)) if cost > 0.0 => format!(", ${cost:.2}"),
            (Some(_), _) => String::new(),
        };
        let usage = format_usage(&self.status.usage);
        let fields = [
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("model", format!("{} ({provider})", model.name)),
            (
                "session",
                self.session_id
                    .clone()
                    .unwrap_or_else(|| "none yet".to_owned()),
            ),
            (
                "folder",
                format!("{} ({rules})", self.setup.directory.display()),
            ),
            (
                "approvals",
                describe_policy(config.approval_policy).0.to_owned(),
            ),
            ("sandbox", sandbox.as_str().unwrap_or_default().to_owned()),
            ("scripts", describe_choice(&SCRIPT_MODES, mode).0.to_owned()),
            ("tokens", format!("{usage}{cost}")),
            (
                "context",
                format!("{}% left", self.status.context_left_percent()),
            ),
        ];
        let theme = self.theme;
        let row = |(name, value): (&str, String)| {
            StyledRow::text(sanitize_line(&value))
                .with_prefix(Span::styled(format!("  {name:<10} "), theme.dim()))
        };
        self.print_block(fields.map(row));
    }

    /// Starts a new session on an empty screen.
    pub(super) fn clear_chat(&mut self) {
        self.quitting |= self.screen.erase().is_err();
        self.start_new_session();
    }

    pub(super) fn write_instructions(&mut self) {
        self.send_message(INIT_PROMPT.to_owned());
    }

    pub(super) fn review_changes(&mut self) {
        self.send_message(REVIEW_PROMPT.to_owned());
    }

    /// Restores the files that the last turn changed.
    pub(super) fn undo_last_turn(&mut self) {
        let (Some(journal), Some(session)) = (self.setup.journal.clone(), self.session_id.clone())
        else {
            return self.print_text("nothing to undo");
        };
        let (sender, number) = (self.sender.clone(), self.session_state.number);
        tokio::task::spawn_blocking(move || {
            let undone = revert_turn(&journal, &session, None, RevertDecider::Person);
            let show = Box::new(move |chat: &mut Self| chat.show_undone(number, undone));
            // Sending fails only if the chat has ended.
            let _ = sender.send(ChatUpdate::JournalRead(show));
        });
    }

    /// Shows which files were restored. `session` is the number of the session whose turn was
    /// undone, the only one whose model learns of it.
    fn show_undone(&mut self, session: u64, undone: anyhow::Result<(u32, Vec<String>)>) {
        match undone {
            Ok((turn, paths)) if paths.is_empty() => {
                self.print_text(format!("turn {turn} was undone before"));
            }
            Ok((turn, paths)) => {
                let files = paths.join(", ");
                if session == self.session_state.number {
                    self.session_state
                        .context_for_model
                        .push(format!("I undid the file changes of turn {turn}: {files}"));
                }
                let rows = paths
                    .iter()
                    .map(|path| StyledRow::text(sanitize_line(path)));
                let head = StyledRow::text(format!("undid the file changes of turn {turn}:"));
                self.print_block(std::iter::once(head).chain(rows).map(|row| row.indented(2)));
            }
            Err(error) => self.print_problem(&Problem::from_error(&error)),
        }
    }

    /// Copies the last answer to the clipboard, with the terminal's help (OSC 52).
    pub(super) fn copy_answer(&mut self) {
        let history = self.session.as_ref().map(|session| session.history());
        let mut items = history.into_iter().flatten().rev();
        let answer = items.find_map(|(_, item)| match item {
            TurnItem::Conversation(ConversationItem::Message(message))
                if message.role == MessageRole::Assistant && !message.text().trim().is_empty() =>
            {
                Some(message.text())
            }
            _ => None,
        });
        match answer {
            None => self.print_text("there is no answer to copy"),
            Some(answer) if answer.len() > MAX_COPIED_BYTES => {
                let problem = Problem::new("the answer is too long for the terminal's clipboard");
                self.print_problem(&problem.hint("type /export to write the session to a file"));
            }
            Some(answer) => {
                let encoded = STANDARD.encode(answer.trim_end());
                self.quitting |= self.screen.copy(&encoded).is_err();
                self.print_text("copied the last answer");
            }
        }
    }

    /// Writes the session as Markdown. Does not replace a file.
    pub(super) fn export_session(&mut self, file: Option<&str>) {
        let Some(session) = &self.session else {
            return self.print_text("the session is empty");
        };
        let name = format!("{}.md", session.id());
        let file = self.setup.directory.join(file.unwrap_or(&name));
        let text = session_markdown(session.id(), session.history());
        match write_new_file(&file, &self.setup.redactor().redact_text(&text)) {
            Ok(()) => self.print_text(format!("wrote {}", file.display())),
            Err(error) => {
                let problem = Problem::new(format!("cannot write {}: {error}", file.display()));
                self.print_problem(&problem.hint("type /export FILE with a new file"));
            }
        }
    }

    /// Shows what trusting the folder would do, or trusts it with the files that were shown.
    pub(super) fn trust_folder(&mut self, confirmed: bool) {
        let home = self.setup.home.clone();
        let (project, _) = Project::read(&self.setup.project_files(), home.as_deref());
        if project.files().next().is_none() {
            return self.print_text("this folder has no configuration files");
        }
        let shown = self.shown_project.replace(project.clone());
        let is_shown = shown.as_ref() == Some(&project);
        let Some(home) = home.filter(|_| confirmed && is_shown) else {
            let effects = project_effects(&project, self.setup.home.as_deref());
            let rows = effects.iter().map(|effect| {
                StyledRow::text(sanitize_line(&format!(
                    "{}  [{}]",
                    effect.text, effect.file
                )))
                .indented(4)
            });
            let head = match shown.is_some() && !is_shown {
                true => "  its files have changed; they would start or set:",
                false => "  its files would start or set:",
            };
            let mut all = vec![StyledRow::text(head)];
            all.extend(rows);
            all.push(StyledRow::dim("  type /trust yes to trust this folder"));
            return self.print_block(all);
        };
        match selvedge_config::trust(&home, &project) {
            Ok(()) => self.print_text("trusted; start the chat again to use its files"),
            Err(error) => {
                let problem = Problem::new(format!("cannot save the decision: {error}"));
                self.print_problem(&problem.hint("set SELVEDGE_HOME to a writable folder"));
            }
        }
    }

    /// Prints what was folded last in full: the output of a command that the user ran since the
    /// last turn, or else the scripts, calls, results and changes of that turn.
    pub(super) fn expand_last_turn(&mut self) {
        if let Some((line, output)) = &self.session_state.last_shell_output {
            let head = StyledRow::dim(format!("! {}", sanitize(line)));
            let rows = output_rows(output).into_iter().map(|row| row.indented(2));
            let rows: Vec<StyledRow> = std::iter::once(head).chain(rows).collect();
            return self.print_block(rows);
        }
        let Some(session) = &self.session else {
            self.notice = Some("nothing to expand until the turn ends".to_owned());
            return;
        };
        let items = session.turn_items(session.turn_number());
        let view = RecentTurnView {
            journal: self.setup.journal.as_deref(),
            redactor: &self.setup.redactor(),
            width: self.screen.width(),
            theme: self.theme,
        };
        let mut rows: Vec<StyledRow> = items
            .iter()
            .flat_map(|item| whole_item_rows(item, &view))
            .collect();
        let files = diff::split_by_file(&self.session_state.last_diff);
        let changes = files
            .iter()
            .flat_map(|file| file.rows(std::convert::identity, view.theme));
        rows.extend(changes.map(|row| row.indented(4)));
        match rows.is_empty() {
            true => self.notice = Some("the last turn has no scripts or results".to_owned()),
            false => self.print_rows(rows),
        }
    }
}

/// Returns a script, a call or a result in full. Messages have no rows: they are never folded.
fn whole_item_rows(item: &TurnItem, view: &RecentTurnView<'_>) -> Vec<StyledRow> {
    let theme = view.theme;
    let mut rows = Vec::new();
    match item {
        TurnItem::ScriptToolCall(call) => {
            rows.push(StyledRow::styled(
                format!("▶ script  {}", call.id),
                theme.progress(),
            ));
            let source = call.source_code.trim_matches('\n');
            let code = highlight_code("ts", source, theme).into_iter();
            rows.extend(code.map(|row| row.indented(4)));
        }
        TurnItem::ScriptToolCallOutput(output) => {
            rows.extend(script_call_rows(output, view, usize::MAX));
            let logged = output.logs.iter();
            rows.extend(logged.flat_map(|entry| text_rows(&entry.message)));
            for part in &output.output {
                if let OutputPart::Text { text } = part {
                    rows.extend(text_rows(text));
                }
            }
            if let Some(error) = &output.error {
                rows.push(StyledRow::text(format!("    ✗ {}", error.code)));
                rows.extend(text_rows(&error.message));
            }
            if let Some(value) = output.value() {
                let text = serde_json::to_string_pretty(&value).unwrap_or_default();
                rows.extend(text_rows(&text));
            }
            rows.push(StyledRow::blank());
        }
        TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
            let text = sanitize_line(&format!("{} {}", call.name, call.arguments));
            rows.push(StyledRow::text(text).with_prefix(Span::styled("  · ", theme.dim())));
        }
        TurnItem::Conversation(ConversationItem::FunctionCallOutput(output)) => {
            rows.extend(text_rows(&output.text()));
            rows.push(StyledRow::blank());
        }
        TurnItem::Conversation(_) => {}
    }
    rows
}

fn text_rows(text: &str) -> Vec<StyledRow> {
    let text = sanitize(text.trim_end());
    let rows = text.lines().map(|line| StyledRow::text(line).indented(4));
    rows.collect()
}

/// Returns a session as Markdown: messages as text, scripts and results as code.
fn session_markdown(id: &str, items: Vec<(u32, TurnItem)>) -> String {
    let mut text = format!("# {id}\n");
    let fence = |language: &str, code: &str| {
        format!("\n~~~~{language}\n{}\n~~~~\n", code.trim_matches('\n'))
    };
    for (turn, item) in items {
        text.push_str(&match item {
            TurnItem::Conversation(ConversationItem::Message(message)) => match message.role {
                MessageRole::User => format!("\n## Turn {turn}\n\n> {}\n", {
                    text_with_images(&message).trim_end().replace('\n', "\n> ")
                }),
                MessageRole::Assistant => format!("\n{}\n", message.text().trim_end()),
            },
            TurnItem::ScriptToolCall(call) => fence("ts", &call.source_code),
            TurnItem::ScriptToolCallOutput(output) => match (&output.error, &output.output_json) {
                (Some(error), _) => fence("text", &format!("{}: {}", error.code, error.message)),
                (None, Some(value)) => fence("json", value),
                (None, None) => String::new(),
            },
            TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
                fence("json", &format!("{} {}", call.name, call.arguments))
            }
            TurnItem::Conversation(ConversationItem::FunctionCallOutput(output)) => {
                fence("text", &output.text())
            }
            TurnItem::Conversation(_) => String::new(),
        });
    }
    text
}

/// Writes a file that only its owner can read. Fails if the file exists.
fn write_new_file(file: &Path, text: &str) -> std::io::Result<()> {
    std::fs::File::create_new(file)?;
    crate::private_file::write_private(file, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exported_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.md");
        write_new_file(&file, "one").unwrap();
        assert!(write_new_file(&file, "two").is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
    }
}
