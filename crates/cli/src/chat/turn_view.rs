//! The view of a running turn. Events go in, rows of finished sections come out, and the unfinished
//! sections can be rendered at any time.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ratatui_core::style::Style;
use ratatui_core::text::Span;
use selvedge_protocol::{
    ConversationItem, FunctionCall, FunctionCallOutput, LogLevel, PlanStep, RuntimeEvent,
    ScriptToolCall, ScriptToolCallOutput, TurnItem,
};

mod render;

pub(crate) use render::reasoning_text_rows;

use self::render::call_result_rows;
use super::call_list::CallList;
use super::diff;
use super::rows::{StyledRow, WrapMode, fold_expandable_rows, sanitize, sanitize_line};
use super::script_view::{ScriptSection, plan_rows, script_result_rows, script_source_rows};
use super::streamed_text::StreamedMarkdown;
use super::theme::Theme;
use crate::recall_summary::recall_summary;

/// Lines of one file's diff that are shown; the rest is folded.
const MAX_FILE_DIFF_LINES: usize = 24;

/// Whether the model's reasoning is shown in full or as one line with its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReasoningDisplay {
    Collapsed,
    Expanded,
}

/// The sections of a turn that are not printed yet.
pub(crate) struct TurnView {
    theme: Theme,
    /// In the order in which they are printed.
    sections: VecDeque<TurnSection>,
    /// The diff last shown for each changed file, by path.
    shown_diffs: HashMap<String, String>,
    /// What the turn changed in the folder.
    pub(crate) last_diff: String,
    pub(crate) started_at: Instant,
    pub(crate) last_reasoning: Option<String>,
    /// What memory recalled for the turn, one line each.
    pub(crate) last_recall: Option<String>,
}

enum TurnSection {
    Message(MessageSection),
    Reasoning(ReasoningSection),
    Script(Box<ScriptSection>),
    Calls(CallsSection),
    Note(Vec<StyledRow>),
}

/// A message of the model, printed block by block while it streams in.
#[derive(Default)]
struct MessageSection {
    item_id: String,
    text: StreamedMarkdown,
}

/// Reasoning of the model.
struct ReasoningSection {
    item_id: String,
    text: String,
    started_at: Instant,
    /// `None` while it streams in.
    duration: Option<Duration>,
}

/// Structured calls of one answer.
#[derive(Default)]
struct CallsSection {
    calls: CallList,
    /// Plans and diffs, printed below the calls.
    extra_rows: Vec<StyledRow>,
    /// Number of calls without a result.
    missing_results: usize,
    /// Item id and call id of each call.
    item_and_call_ids: Vec<(String, String)>,
}

impl TurnSection {
    fn as_calls(&mut self) -> Option<&mut CallsSection> {
        match self {
            Self::Calls(section) => Some(section),
            _ => None,
        }
    }
}

impl TurnView {
    pub(crate) fn new(theme: Theme, now: Instant) -> Self {
        Self {
            theme,
            sections: VecDeque::new(),
            shown_diffs: HashMap::new(),
            last_diff: String::new(),
            started_at: now,
            last_reasoning: None,
            last_recall: None,
        }
    }

    /// Applies an event and returns the rows of the sections that are finished now.
    pub(crate) fn apply(
        &mut self,
        event: RuntimeEvent,
        width: usize,
        reasoning: ReasoningDisplay,
        now: Instant,
    ) -> Vec<StyledRow> {
        match event {
            RuntimeEvent::ItemStarted { item_id, item } => self.start_item(item_id, &item, now),
            RuntimeEvent::ItemUpdated { item_id, delta } => self.update_item(&item_id, &delta),
            RuntimeEvent::ItemCompleted { item_id, item } => {
                self.complete_item(&item_id, item, now)
            }
            RuntimeEvent::ItemDropped { item_id } => self.drop_item(&item_id),
            RuntimeEvent::CallStarted { .. }
            | RuntimeEvent::CallFinished { .. }
            | RuntimeEvent::CallOutput { .. }
            | RuntimeEvent::ApprovalRequested { .. } => self.apply_call_event(&event, now),
            RuntimeEvent::ScriptStarted { script_id } => self.resume_script(script_id, now),
            RuntimeEvent::ScriptLog { level, message, .. } => match level {
                LogLevel::Log => self.add_log(&message, self.theme.dim()),
                _ => self.add_log(&message, self.theme.error()),
            },
            RuntimeEvent::ScriptProgress { message, .. } => {
                self.add_log(&format!("… {message}"), self.theme.dim())
            }
            RuntimeEvent::ScriptNotify { message, .. } => {
                self.add_log(&format!("! {message}"), self.theme.bold())
            }
            RuntimeEvent::PlanUpdated { plan, .. } => self.show_plan(&plan),
            RuntimeEvent::DiffUpdated { diff } => self.show_diff(&diff),
            RuntimeEvent::ThreadCompacted {
                tokens_before,
                tokens_after,
            } => {
                let text = format!(
                    "compacted the conversation from about {tokens_before} to {tokens_after} tokens"
                );
                self.push_note(StyledRow::dim(text));
            }
            RuntimeEvent::MemoryRecalled { .. } => self.show_recall(&event, reasoning),
            RuntimeEvent::Error { message } => self.push_note(StyledRow::styled(
                sanitize_line(&message),
                self.theme.error(),
            )),
            _ => {}
        }
        self.take_finished_rows(width, reasoning, now)
    }

    /// Ends the turn and returns the rows of all remaining sections.
    pub(crate) fn finish(
        &mut self,
        width: usize,
        reasoning: ReasoningDisplay,
        now: Instant,
    ) -> Vec<StyledRow> {
        for section in &mut self.sections {
            match section {
                TurnSection::Message(section) => section.text.complete(None),
                TurnSection::Reasoning(section) => {
                    section
                        .duration
                        .get_or_insert(now.saturating_duration_since(section.started_at));
                }
                TurnSection::Script(script) => {
                    script.result_rows.get_or_insert_default();
                }
                TurnSection::Calls(section) => section.missing_results = 0,
                TurnSection::Note(_) => {}
            }
        }
        self.take_finished_rows(width, reasoning, now)
    }

    /// Returns the rows of the unfinished sections.
    pub(crate) fn live_rows(
        &self,
        width: usize,
        reasoning: ReasoningDisplay,
        now: Instant,
    ) -> Vec<StyledRow> {
        let mut rows = Vec::new();
        for section in &self.sections {
            let rows_of_section = self.section_rows(section, width, reasoning, now);
            if !rows_of_section.is_empty() && !rows.is_empty() {
                rows.push(StyledRow::blank());
            }
            rows.extend(rows_of_section);
        }
        rows
    }

    /// Whether there are no unfinished sections.
    pub(crate) fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }

    fn start_item(&mut self, id: String, item: &TurnItem, now: Instant) {
        match item {
            TurnItem::Conversation(ConversationItem::Reasoning(_)) => {
                self.sections
                    .push_back(TurnSection::Reasoning(ReasoningSection {
                        item_id: id,
                        text: String::new(),
                        started_at: now,
                        duration: None,
                    }))
            }
            TurnItem::Conversation(ConversationItem::Message(_)) => {
                let section = MessageSection {
                    item_id: id,
                    ..MessageSection::default()
                };
                self.sections.push_back(TurnSection::Message(section));
            }
            TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
                self.add_call(Some(&id), call)
            }
            _ => {}
        }
    }

    fn update_item(&mut self, item: &str, delta: &str) {
        for section in self.sections.iter_mut().rev() {
            match section {
                TurnSection::Message(section) if section.item_id == item => {
                    return section.text.push(delta);
                }
                TurnSection::Reasoning(section) if section.item_id == item => {
                    return section.text.push_str(delta);
                }
                _ => {}
            }
        }
    }

    fn complete_item(&mut self, item_id: &str, item: TurnItem, now: Instant) {
        match item {
            TurnItem::Conversation(ConversationItem::Message(message)) => {
                for section in &mut self.sections {
                    if let TurnSection::Message(section) = section
                        && section.item_id == item_id
                    {
                        section.text.complete(Some(message.text()));
                    }
                }
            }
            TurnItem::Conversation(ConversationItem::Reasoning(reasoning)) => {
                let whole = reasoning.summary.concat() + &reasoning.content.concat();
                for section in &mut self.sections {
                    if let TurnSection::Reasoning(section) = section
                        && section.item_id == item_id
                    {
                        if !whole.is_empty() {
                            section.text.clone_from(&whole);
                        }
                        section.duration = Some(now.saturating_duration_since(section.started_at));
                        self.last_reasoning = Some(section.text.clone());
                    }
                }
            }
            TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
                self.add_call(None, &call)
            }
            TurnItem::Conversation(ConversationItem::FunctionCallOutput(output)) => {
                self.add_call_result(&output)
            }
            TurnItem::ScriptToolCall(call) => self.start_script(call, now),
            TurnItem::ScriptToolCallOutput(output) => self.finish_script(&output),
            TurnItem::Conversation(ConversationItem::Native(_)) => {}
        }
    }

    fn drop_item(&mut self, item: &str) {
        let mut was_printed = false;
        self.sections.retain_mut(|section| match section {
            TurnSection::Message(section) if section.item_id == item => {
                was_printed |= section.text.is_started();
                false
            }
            TurnSection::Reasoning(section) => section.item_id != item,
            TurnSection::Calls(section) => {
                if let Some(index) = section
                    .item_and_call_ids
                    .iter()
                    .position(|(id, _)| id == item)
                {
                    section
                        .calls
                        .remove_requested(&section.item_and_call_ids.remove(index).1);
                    section.missing_results = section.missing_results.saturating_sub(1);
                }
                !section.calls.is_empty()
            }
            _ => true,
        });
        if was_printed {
            self.push_note(StyledRow::dim(
                "the answer was interrupted; requesting it again",
            ));
        }
    }

    /// Adds a structured call to the group of calls at the end, or updates it. `item` is its item
    /// id if the call is new.
    fn add_call(&mut self, item: Option<&str>, call: &FunctionCall) {
        let is_calls = |section: &TurnSection| matches!(section, TurnSection::Calls(_));
        let has_group = match item {
            Some(_) => self.sections.back().is_some_and(is_calls),
            None => self.sections.iter().any(is_calls),
        };
        if !has_group {
            self.sections
                .push_back(TurnSection::Calls(CallsSection::default()));
        }
        if let Some(section) = self
            .sections
            .iter_mut()
            .rev()
            .find_map(TurnSection::as_calls)
        {
            section
                .calls
                .add_requested(&call.call_id, &call.name, &call.arguments);
            if let Some(item) = item {
                section
                    .item_and_call_ids
                    .push((item.to_owned(), call.call_id.clone()));
                section.missing_results += 1;
            }
        }
    }

    /// Applies an event to the running script, else to the last group of structured calls.
    fn apply_call_event(&mut self, event: &RuntimeEvent, now: Instant) {
        if let Some(script) = self.running_script() {
            return script.calls.apply(event, now);
        }
        if let Some(section) = self
            .sections
            .iter_mut()
            .rev()
            .find_map(TurnSection::as_calls)
        {
            return section.calls.apply(event, now);
        }
        // The call was started by an earlier process.
        let mut section = CallsSection {
            missing_results: 1,
            ..CallsSection::default()
        };
        section.calls.apply(event, now);
        self.sections.push_back(TurnSection::Calls(section));
    }

    fn add_call_result(&mut self, output: &FunctionCallOutput) {
        let mut groups = self.sections.iter_mut().filter_map(TurnSection::as_calls);
        if let Some(section) = groups.find(|section| section.missing_results > 0) {
            section.missing_results -= 1;
            if !output.failed {
                section
                    .calls
                    .set_result(&output.call_id, call_result_rows(output));
            }
        }
    }

    fn start_script(&mut self, call: ScriptToolCall, now: Instant) {
        let rows = script_source_rows(&call.id, &call.language, &call.source_code, self.theme);
        self.push_script(rows, call.id, now);
    }

    fn push_script(&mut self, head: Vec<StyledRow>, id: String, now: Instant) {
        self.sections.push_back(TurnSection::Note(head));
        self.sections
            .push_back(TurnSection::Script(Box::new(ScriptSection::new(id, now))));
    }

    /// Adds a script that an earlier process started, and whose source is therefore not known. Does
    /// nothing if a script or structured calls are running.
    fn resume_script(&mut self, id: String, now: Instant) {
        let is_known = self.sections.iter().any(|section| match section {
            TurnSection::Script(script) => script.result_rows.is_none(),
            TurnSection::Calls(section) => section.missing_results > 0,
            _ => false,
        });
        if !is_known {
            let head = vec![
                Span::styled("▶ script", self.theme.progress()),
                Span::styled(format!("  {id} resumed"), self.theme.dim()),
            ];
            self.push_script(vec![StyledRow::spans(head).truncated()], id, now);
        }
    }

    fn finish_script(&mut self, output: &ScriptToolCallOutput) {
        let rows = script_result_rows(output, self.theme);
        match self.running_script() {
            Some(script) => script.result_rows = Some(rows),
            None => self.sections.push_back(TurnSection::Note(rows)),
        }
    }

    /// Returns the script that has no result yet.
    fn running_script(&mut self) -> Option<&mut ScriptSection> {
        self.sections.iter_mut().find_map(|section| match section {
            TurnSection::Script(script) if script.result_rows.is_none() => Some(&mut **script),
            _ => None,
        })
    }

    fn add_log(&mut self, message: &str, style: Style) {
        let rows: Vec<StyledRow> = sanitize(message)
            .lines()
            .map(|line| {
                StyledRow::styled(line, style)
                    .indented(2)
                    .with_wrap(WrapMode::Anywhere)
            })
            .collect();
        match self.running_script() {
            Some(script) => script.log(rows),
            None => self.sections.push_back(TurnSection::Note(rows)),
        }
    }

    fn show_plan(&mut self, plan: &[PlanStep]) {
        let rows = plan_rows(plan, self.theme);
        match self.running_script() {
            Some(script) => script.plan_rows = rows,
            None => match self.sections.back_mut() {
                Some(TurnSection::Calls(section)) => section.extra_rows.extend(rows),
                _ => self.sections.push_back(TurnSection::Note(rows)),
            },
        }
    }

    /// Shows the files of the turn's diff that changed since they were last shown.
    fn show_diff(&mut self, text: &str) {
        let theme = self.theme;
        text.clone_into(&mut self.last_diff);
        let mut rows = Vec::new();
        for file in diff::split_by_file(text) {
            if self.shown_diffs.get(&file.path) != Some(&file.text) {
                let fold = |rows| fold_expandable_rows(rows, MAX_FILE_DIFF_LINES);
                let changes = file.rows(fold, theme).into_iter();
                rows.extend(changes.map(|row| row.indented(4)));
                self.shown_diffs.insert(file.path, file.text);
            }
        }
        let target = self
            .sections
            .iter_mut()
            .rev()
            .find_map(|section| match section {
                TurnSection::Script(script) => Some(&mut script.diff_rows),
                TurnSection::Calls(section) => Some(&mut section.extra_rows),
                _ => None,
            });
        match target {
            Some(target) => target.extend(rows),
            None if rows.is_empty() => {}
            None => self.sections.push_back(TurnSection::Note(rows)),
        }
    }

    /// Adds one line that says what memory recalled, and the details if reasoning is shown, too.
    fn show_recall(&mut self, event: &RuntimeEvent, display: ReasoningDisplay) {
        let RuntimeEvent::MemoryRecalled { details, .. } = event else {
            return;
        };
        let Some(head) = recall_summary(event) else {
            return;
        };
        let details = details.join("\n");
        let mut rows = vec![StyledRow::dim(format!("· {head}")).truncated()];
        if display == ReasoningDisplay::Expanded {
            rows.extend(reasoning_text_rows(&details));
        }
        self.last_recall = Some(format!("{head}\n{details}"));
        self.sections.push_back(TurnSection::Note(rows));
    }

    fn push_note(&mut self, row: StyledRow) {
        self.sections.push_back(TurnSection::Note(vec![row]));
    }
}

#[cfg(test)]
mod tests;
