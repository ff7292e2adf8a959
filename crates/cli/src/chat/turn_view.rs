//! The view of a running turn. Events go in, rows of finished parts come out, and the unfinished
//! parts can be rendered at any time.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ratatui_core::style::Style;
use ratatui_core::text::Span;
use selvedge_protocol::{
    ConversationItem, FunctionCall, FunctionCallOutput, LogLevel, PlanStep, RuntimeEvent,
    ScriptToolCall, ScriptToolCallOutput, TurnItem,
};

mod render;

pub(crate) use render::thinking_text_rows;

use self::render::call_result_rows;
use super::call_list::CallList;
use super::diff;
use super::rows::{StyledRow, WrapMode, sanitize, sanitize_line};
use super::script_view::{ScriptSection, plan_rows, script_result_rows, script_source_rows};
use super::theme::Theme;

/// Lines of one file's diff that are shown; the rest is folded.
const MAX_FILE_DIFF_LINES: usize = 24;

/// Whether the model's thinking is shown in full or as one line with its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThinkingDisplay {
    Collapsed,
    Expanded,
}

/// The parts of a turn that are not printed yet.
pub(crate) struct TurnView {
    theme: Theme,
    /// In the order in which they are printed.
    parts: VecDeque<TurnSection>,
    /// The diff last shown for each changed file, by path.
    shown_diffs: HashMap<String, String>,
    pub(crate) started_at: Instant,
    pub(crate) last_thinking: Option<String>,
}

enum TurnSection {
    Message(MessageSection),
    Thinking(ThinkingSection),
    Script(Box<ScriptSection>),
    Calls(CallsSection),
    Note(Vec<StyledRow>),
}

/// A message of the model, printed block by block while it streams in.
#[derive(Default)]
struct MessageSection {
    item_id: String,
    text: String,
    /// Bytes of the text that are already printed.
    printed_bytes: usize,
    /// Whether a line ended since the text was last searched for complete blocks.
    has_new_line: bool,
    is_complete: bool,
}

/// Thinking of the model.
struct ThinkingSection {
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
            Self::Calls(part) => Some(part),
            _ => None,
        }
    }
}

impl TurnView {
    pub(crate) fn new(theme: Theme, now: Instant) -> Self {
        Self {
            theme,
            parts: VecDeque::new(),
            shown_diffs: HashMap::new(),
            started_at: now,
            last_thinking: None,
        }
    }

    /// Applies an event and returns the rows of the parts that are finished now.
    pub(crate) fn apply(
        &mut self,
        event: RuntimeEvent,
        width: usize,
        thinking: ThinkingDisplay,
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
            RuntimeEvent::Error { message } => self.push_note(StyledRow::styled(
                sanitize_line(&message),
                self.theme.error(),
            )),
            _ => {}
        }
        self.take_finished_rows(width, thinking, now)
    }

    /// Ends the turn and returns the rows of all remaining parts.
    pub(crate) fn finish(
        &mut self,
        width: usize,
        thinking: ThinkingDisplay,
        now: Instant,
    ) -> Vec<StyledRow> {
        for part in &mut self.parts {
            match part {
                TurnSection::Message(part) => part.is_complete = true,
                TurnSection::Thinking(part) => {
                    part.duration
                        .get_or_insert(now.saturating_duration_since(part.started_at));
                }
                TurnSection::Script(script) => {
                    script.result_rows.get_or_insert_default();
                }
                TurnSection::Calls(part) => part.missing_results = 0,
                TurnSection::Note(_) => {}
            }
        }
        self.take_finished_rows(width, thinking, now)
    }

    /// Returns the rows of the unfinished parts.
    pub(crate) fn live_rows(
        &self,
        width: usize,
        thinking: ThinkingDisplay,
        now: Instant,
    ) -> Vec<StyledRow> {
        let mut rows = Vec::new();
        for part in &self.parts {
            let part_rows = self.section_rows(part, width, thinking, now);
            if !part_rows.is_empty() && !rows.is_empty() {
                rows.push(StyledRow::blank());
            }
            rows.extend(part_rows);
        }
        rows
    }

    /// Whether there are no unfinished parts.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn start_item(&mut self, id: String, item: &TurnItem, now: Instant) {
        match item {
            TurnItem::Conversation(ConversationItem::Reasoning(_)) => {
                self.parts.push_back(TurnSection::Thinking(ThinkingSection {
                    item_id: id,
                    text: String::new(),
                    started_at: now,
                    duration: None,
                }))
            }
            TurnItem::Conversation(ConversationItem::Message(_)) => {
                let part = MessageSection {
                    item_id: id,
                    ..MessageSection::default()
                };
                self.parts.push_back(TurnSection::Message(part));
            }
            TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
                self.add_call(Some(&id), call)
            }
            _ => {}
        }
    }

    fn update_item(&mut self, item: &str, delta: &str) {
        for part in self.parts.iter_mut().rev() {
            match part {
                TurnSection::Message(part) if part.item_id == item => {
                    part.text.push_str(delta);
                    part.has_new_line |= delta.contains('\n');
                    return;
                }
                TurnSection::Thinking(part) if part.item_id == item => {
                    return part.text.push_str(delta);
                }
                _ => {}
            }
        }
    }

    fn complete_item(&mut self, item_id: &str, item: TurnItem, now: Instant) {
        match item {
            TurnItem::Conversation(ConversationItem::Message(message)) => {
                for part in &mut self.parts {
                    if let TurnSection::Message(part) = part
                        && part.item_id == item_id
                    {
                        // Printed text cannot change: keep the streamed text if it differs there.
                        let whole = message.text();
                        if whole.get(..part.printed_bytes) == part.text.get(..part.printed_bytes) {
                            part.text = whole;
                        }
                        part.is_complete = true;
                    }
                }
            }
            TurnItem::Conversation(ConversationItem::Reasoning(thinking)) => {
                let whole = thinking.summary.concat() + &thinking.content.concat();
                for part in &mut self.parts {
                    if let TurnSection::Thinking(part) = part
                        && part.item_id == item_id
                    {
                        if !whole.is_empty() {
                            part.text.clone_from(&whole);
                        }
                        part.duration = Some(now.saturating_duration_since(part.started_at));
                        self.last_thinking = Some(part.text.clone());
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
        self.parts.retain_mut(|part| match part {
            TurnSection::Message(part) if part.item_id == item => {
                was_printed |= part.printed_bytes > 0;
                false
            }
            TurnSection::Thinking(part) => part.item_id != item,
            TurnSection::Calls(part) => {
                if let Some(index) = part.item_and_call_ids.iter().position(|(id, _)| id == item) {
                    part.calls
                        .remove_requested(&part.item_and_call_ids.remove(index).1);
                    part.missing_results = part.missing_results.saturating_sub(1);
                }
                !part.calls.is_empty()
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
        let is_calls = |part: &TurnSection| matches!(part, TurnSection::Calls(_));
        let has_group = match item {
            Some(_) => self.parts.back().is_some_and(is_calls),
            None => self.parts.iter().any(is_calls),
        };
        if !has_group {
            self.parts
                .push_back(TurnSection::Calls(CallsSection::default()));
        }
        if let Some(part) = self.parts.iter_mut().rev().find_map(TurnSection::as_calls) {
            part.calls
                .add_requested(&call.call_id, &call.name, &call.arguments);
            if let Some(item) = item {
                part.item_and_call_ids
                    .push((item.to_owned(), call.call_id.clone()));
                part.missing_results += 1;
            }
        }
    }

    /// Applies an event to the running script, else to the last group of structured calls.
    fn apply_call_event(&mut self, event: &RuntimeEvent, now: Instant) {
        if let Some(script) = self.running_script() {
            return script.calls.apply(event, now);
        }
        if let Some(part) = self.parts.iter_mut().rev().find_map(TurnSection::as_calls) {
            return part.calls.apply(event, now);
        }
        // The call was started by an earlier process.
        let mut part = CallsSection {
            missing_results: 1,
            ..CallsSection::default()
        };
        part.calls.apply(event, now);
        self.parts.push_back(TurnSection::Calls(part));
    }

    fn add_call_result(&mut self, output: &FunctionCallOutput) {
        let mut groups = self.parts.iter_mut().filter_map(TurnSection::as_calls);
        if let Some(part) = groups.find(|part| part.missing_results > 0) {
            part.missing_results -= 1;
            if !output.failed {
                part.calls
                    .set_result(&output.call_id, call_result_rows(output));
            }
        }
    }

    fn start_script(&mut self, call: ScriptToolCall, now: Instant) {
        let rows = script_source_rows(&call.id, &call.language, &call.source_code, self.theme);
        self.push_script(rows, call.id, now);
    }

    fn push_script(&mut self, head: Vec<StyledRow>, id: String, now: Instant) {
        self.parts.push_back(TurnSection::Note(head));
        self.parts
            .push_back(TurnSection::Script(Box::new(ScriptSection::new(id, now))));
    }

    /// Adds a script that an earlier process started, and whose source is therefore not known. Does
    /// nothing if a script or structured calls are running.
    fn resume_script(&mut self, id: String, now: Instant) {
        let is_known = self.parts.iter().any(|part| match part {
            TurnSection::Script(script) => script.result_rows.is_none(),
            TurnSection::Calls(part) => part.missing_results > 0,
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
            None => self.parts.push_back(TurnSection::Note(rows)),
        }
    }

    /// Returns the script that has no result yet.
    fn running_script(&mut self) -> Option<&mut ScriptSection> {
        self.parts.iter_mut().find_map(|part| match part {
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
            None => self.parts.push_back(TurnSection::Note(rows)),
        }
    }

    fn show_plan(&mut self, plan: &[PlanStep]) {
        let rows = plan_rows(plan, self.theme);
        match self.running_script() {
            Some(script) => script.plan_rows = rows,
            None => match self.parts.back_mut() {
                Some(TurnSection::Calls(part)) => part.extra_rows.extend(rows),
                _ => self.parts.push_back(TurnSection::Note(rows)),
            },
        }
    }

    /// Shows the files of the turn's diff that changed since they were last shown.
    fn show_diff(&mut self, text: &str) {
        let theme = self.theme;
        let mut rows = Vec::new();
        for file in diff::split_by_file(text) {
            if self.shown_diffs.get(&file.path) != Some(&file.text) {
                let changes = file.rows(MAX_FILE_DIFF_LINES, theme).into_iter();
                rows.extend(changes.map(|row| row.indented(4)));
                self.shown_diffs.insert(file.path, file.text);
            }
        }
        let target = self.parts.iter_mut().rev().find_map(|part| match part {
            TurnSection::Script(script) => Some(&mut script.diff_rows),
            TurnSection::Calls(part) => Some(&mut part.extra_rows),
            _ => None,
        });
        match target {
            Some(target) => target.extend(rows),
            None if rows.is_empty() => {}
            None => self.parts.push_back(TurnSection::Note(rows)),
        }
    }

    fn push_note(&mut self, row: StyledRow) {
        self.parts.push_back(TurnSection::Note(vec![row]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::{
        CallRecord, CallStatus, MessageRole, OutputPart, Reasoning, RunMetadata, RunStatus,
        ScriptError,
    };

    struct TestTurn {
        turn: TurnView,
        now: Instant,
        printed: Vec<StyledRow>,
    }

    impl TestTurn {
        fn new() -> Self {
            let now = Instant::now();
            Self {
                turn: TurnView::new(Theme::Plain, now),
                now,
                printed: Vec::new(),
            }
        }

        fn take(&mut self, event: RuntimeEvent) {
            let rows = self
                .turn
                .apply(event, 60, ThinkingDisplay::Collapsed, self.now);
            self.printed.extend(rows);
        }

        fn printed(&mut self) -> Vec<String> {
            std::mem::take(&mut self.printed)
                .iter()
                .map(StyledRow::plain)
                .collect()
        }

        fn live(&self) -> Vec<String> {
            self.turn
                .live_rows(60, ThinkingDisplay::Collapsed, self.now)
                .iter()
                .map(StyledRow::plain)
                .collect()
        }
    }

    fn message(text: &str) -> TurnItem {
        ConversationItem::message(MessageRole::Assistant, text).into()
    }

    fn started(id: &str, item: TurnItem) -> RuntimeEvent {
        RuntimeEvent::ItemStarted {
            item_id: id.into(),
            item,
        }
    }

    fn updated(id: &str, delta: &str) -> RuntimeEvent {
        RuntimeEvent::ItemUpdated {
            item_id: id.into(),
            delta: delta.into(),
        }
    }

    fn completed(id: &str, item: TurnItem) -> RuntimeEvent {
        RuntimeEvent::ItemCompleted {
            item_id: id.into(),
            item,
        }
    }

    fn script(source: &str) -> TurnItem {
        TurnItem::ScriptToolCall(ScriptToolCall {
            id: "scr_1".into(),
            call_id: "call_1".into(),
            language: "ts".into(),
            source_code: source.into(),
            source_sha256: String::new(),
            status: RunStatus::Pending,
        })
    }

    fn output(error: Option<ScriptError>) -> TurnItem {
        TurnItem::ScriptToolCallOutput(Box::new(ScriptToolCallOutput {
            id: "scr_1".into(),
            call_id: "call_1".into(),
            status: RunStatus::Completed,
            output_json: Some("{\"n\":1}".into()),
            error,
            summary: None,
            output: vec![OutputPart::Text {
                text: "shown\nby the script".into(),
            }],
            calls: Vec::new(),
            logs: Vec::new(),
            warnings: vec!["tool_2 was not awaited".into()],
            metadata: RunMetadata {
                duration_ms: 1500.0,
                ..RunMetadata::default()
            },
        }))
    }

    #[test]
    fn a_message_is_printed_block_by_block_while_it_streams() {
        let mut view = TestTurn::new();
        view.take(started("i", message("")));
        view.take(updated("i", "One.\n\nTw"));
        assert_eq!(
            (view.printed(), view.live()),
            (vec!["One.".into(), "".into()], vec!["Tw".into()])
        );
        view.take(updated("i", "o."));
        assert_eq!(
            (view.printed(), view.live()),
            (vec![], vec!["Two.".to_owned()])
        );
        view.take(completed("i", message("One.\n\nTwo.")));
        assert_eq!(
            (view.printed(), view.live()),
            (vec!["Two.".into(), "".into()], vec![])
        );
    }

    #[test]
    fn thinking_is_one_line_with_its_duration_and_its_text_is_kept() {
        let mut view = TestTurn::new();
        view.take(started(
            "i",
            ConversationItem::Reasoning(Reasoning::default()).into(),
        ));
        view.take(updated("i", "Hm.\nSo."));
        view.now += Duration::from_secs(3);
        assert_eq!(view.live(), ["· thinking… 3 s"]);
        let thinking = Reasoning {
            summary: vec!["Hm.\nSo.".into()],
            ..Reasoning::default()
        };
        view.take(completed("i", ConversationItem::Reasoning(thinking).into()));
        assert_eq!(view.printed(), ["· thought for 3 s", ""]);
        assert_eq!(view.turn.last_thinking.as_deref(), Some("Hm.\nSo."));
    }

    #[test]
    fn a_script_is_printed_at_once_and_its_calls_when_it_ends() {
        let mut view = TestTurn::new();
        view.take(completed("i", script("return 1")));
        assert_eq!(view.printed(), ["▶ script  scr_1", "    return 1"]);
        view.take(RuntimeEvent::CallStarted {
            parent_id: "scr_1".into(),
            call_id: "tool_1".into(),
            tool: "exec".into(),
            args_summary: "ls".into(),
        });
        view.take(RuntimeEvent::ScriptLog {
            script_id: "scr_1".into(),
            level: LogLevel::Log,
            message: "so far".into(),
        });
        assert_eq!(
            (view.printed(), view.live()),
            (
                vec![],
                vec!["  ⠋ exec ls".to_owned(), "  so far".to_owned()]
            )
        );
        let call = CallRecord {
            id: "tool_1".into(),
            tool: "exec".into(),
            status: CallStatus::Done,
            reused: false,
            duration_ms: 5.0,
            args_digest: String::new(),
            line: None,
            error: None,
        };
        view.take(RuntimeEvent::CallFinished {
            parent_id: "scr_1".into(),
            call,
            result_failure: None,
        });
        view.take(completed("o", output(None)));
        assert_eq!(
            view.printed(),
            [
                "  ✓ exec ls  5 ms",
                "  so far",
                "  shown⏎by the script",
                "◀ {\"n\":1}  1.5 s",
                "  warning: tool_2 was not awaited",
                ""
            ]
        );
        assert!(view.turn.is_empty());
    }

    #[test]
    fn a_dropped_answer_is_removed_or_noted_if_printed() {
        let mut view = TestTurn::new();
        view.take(started("i", message("")));
        view.take(updated("i", "Half"));
        view.take(RuntimeEvent::ItemDropped {
            item_id: "i".into(),
        });
        assert!(view.turn.is_empty() && view.printed().is_empty());
        view.take(started("j", message("")));
        view.take(updated("j", "Printed.\n\nHalf"));
        view.printed();
        view.take(RuntimeEvent::ItemDropped {
            item_id: "j".into(),
        });
        assert_eq!(
            view.printed(),
            ["the answer was interrupted; requesting it again", ""]
        );
    }

    #[test]
    fn calls_of_a_dropped_answer_are_removed() {
        let call = |id: &str| {
            let kind = Default::default();
            FunctionCall {
                call_id: id.into(),
                name: "exec".into(),
                arguments: "{}".into(),
                kind,
                native: None,
            }
        };
        let mut view = TestTurn::new();
        view.take(started(
            "i",
            ConversationItem::FunctionCall(call("a")).into(),
        ));
        view.take(started(
            "j",
            ConversationItem::FunctionCall(call("b")).into(),
        ));
        view.take(RuntimeEvent::ItemDropped {
            item_id: "i".into(),
        });
        assert_eq!(view.live(), ["  · exec"]);
        view.take(RuntimeEvent::ItemDropped {
            item_id: "j".into(),
        });
        assert!(view.turn.is_empty());
        view.take(started(
            "k",
            ConversationItem::FunctionCall(call("c")).into(),
        ));
        view.take(completed(
            "k",
            ConversationItem::FunctionCall(call("c")).into(),
        ));
        let output = vec![OutputPart::Text {
            text: "fine".into(),
        }];
        let output = FunctionCallOutput {
            call_id: "c".into(),
            output,
            failed: false,
        };
        view.take(completed(
            "o",
            ConversationItem::FunctionCallOutput(output).into(),
        ));
        assert_eq!(view.printed(), ["  · exec", "    fine", ""]);
    }

    #[test]
    fn a_diff_is_shown_again_only_if_it_changed() {
        let mut view = TestTurn::new();
        let diff = |line: &str| RuntimeEvent::DiffUpdated {
            diff: format!("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+{line}\n"),
        };
        view.take(diff("new"));
        assert_eq!(view.printed().len(), 5);
        view.take(diff("new"));
        assert_eq!(view.printed(), Vec::<String>::new());
        view.take(diff("newer"));
        assert!(view.printed().contains(&"    +newer".to_owned()));
    }
}
