//! The view of a running turn. Events go in, rows of finished parts come out, and the unfinished
//! parts can be rendered at any time.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ratatui_core::style::Style;
use ratatui_core::text::Span;
use selvedge_protocol::{
    Event, FunctionCall, FunctionCallOutput, Item, LogLevel, PlanStep, ScriptToolCall,
    ScriptToolCallOutput, TurnItem,
};

mod drawn;

pub(crate) use drawn::thought_rows;

use self::drawn::result_of_call;
use super::calls::Calls;
use super::diff;
use super::look::Look;
use super::rows::{Fit, Row, clean, one_line};
use super::script::{Script, plan_rows, script_head, script_result};

/// Lines of one file's diff that are shown; the rest is folded.
const DIFF_LINES: usize = 24;

/// Whether the model's thinking is shown in full or as one line with its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thoughts {
    Folded,
    Unfolded,
}

/// The parts of a turn that are not printed yet.
pub(crate) struct Turn {
    look: Look,
    /// In the order in which they are printed.
    parts: VecDeque<Part>,
    /// The diff last shown for each changed file, by path.
    diffs: HashMap<String, String>,
    pub(crate) started: Instant,
    pub(crate) last_thought: Option<String>,
}

enum Part {
    Message(MessagePart),
    Thought(ThoughtPart),
    Script(Box<Script>),
    Calls(CallsPart),
    Note(Vec<Row>),
}

/// A message of the model, printed block by block while it streams in.
#[derive(Default)]
struct MessagePart {
    id: String,
    text: String,
    /// Bytes of the text that are already printed.
    printed: usize,
    /// Whether a line ended since the text was last searched for complete blocks.
    lined: bool,
    over: bool,
}

/// Thinking of the model.
struct ThoughtPart {
    id: String,
    text: String,
    since: Instant,
    /// `None` while it streams in.
    took: Option<Duration>,
}

/// Structured calls of one answer.
#[derive(Default)]
struct CallsPart {
    calls: Calls,
    /// Plans and diffs, printed below the calls.
    told: Vec<Row>,
    /// Number of calls without a result.
    open: usize,
    /// Item id and call id of each call.
    items: Vec<(String, String)>,
}

impl Part {
    fn as_calls(&mut self) -> Option<&mut CallsPart> {
        match self {
            Self::Calls(part) => Some(part),
            _ => None,
        }
    }
}

impl Turn {
    pub(crate) fn new(theme: Look, now: Instant) -> Self {
        Self {
            look: theme,
            parts: VecDeque::new(),
            diffs: HashMap::new(),
            started: now,
            last_thought: None,
        }
    }

    /// Applies an event and returns the rows of the parts that are finished now.
    pub(crate) fn take(
        &mut self,
        event: Event,
        width: usize,
        thinking: Thoughts,
        now: Instant,
    ) -> Vec<Row> {
        match event {
            Event::ItemStarted { item_id, item } => self.begin(item_id, &item, now),
            Event::ItemUpdated { item_id, delta } => self.update(&item_id, &delta),
            Event::ItemCompleted { item_id, item } => self.complete(&item_id, item, now),
            Event::ItemDropped { item_id } => self.drop_item(&item_id),
            Event::CallStarted { .. }
            | Event::CallFinished { .. }
            | Event::CallOutput { .. }
            | Event::ApprovalRequested { .. } => self.call(&event, now),
            Event::ScriptStarted { script_id } => self.script_goes_on(script_id, now),
            Event::Log { level, message, .. } => match level {
                LogLevel::Log => self.log(&message, self.look.quiet()),
                _ => self.log(&message, self.look.bad()),
            },
            Event::Progress { message, .. } => self.log(&format!("… {message}"), self.look.quiet()),
            Event::Notify { message, .. } => self.log(&format!("! {message}"), self.look.strong()),
            Event::PlanUpdated { plan, .. } => self.plan(&plan),
            Event::DiffUpdated { diff } => self.diff(&diff),
            Event::ThreadCompacted {
                tokens_before,
                tokens_after,
            } => {
                let text = format!(
                    "compacted the conversation from about {tokens_before} to {tokens_after} tokens"
                );
                self.note(Row::quiet(text));
            }
            Event::Error { message } => self.note(Row::of(one_line(&message), self.look.bad())),
            _ => {}
        }
        self.finished(width, thinking, now)
    }

    /// Ends the turn and returns the rows of all remaining parts.
    pub(crate) fn end(&mut self, width: usize, thinking: Thoughts, now: Instant) -> Vec<Row> {
        for part in &mut self.parts {
            match part {
                Part::Message(part) => part.over = true,
                Part::Thought(part) => {
                    part.took
                        .get_or_insert(now.saturating_duration_since(part.since));
                }
                Part::Script(script) => {
                    script.result.get_or_insert_default();
                }
                Part::Calls(part) => part.open = 0,
                Part::Note(_) => {}
            }
        }
        self.finished(width, thinking, now)
    }

    /// Returns the rows of the unfinished parts.
    pub(crate) fn rows(&self, width: usize, thinking: Thoughts, now: Instant) -> Vec<Row> {
        let mut rows = Vec::new();
        for part in &self.parts {
            let part_rows = self.live(part, width, thinking, now);
            if !part_rows.is_empty() && !rows.is_empty() {
                rows.push(Row::blank());
            }
            rows.extend(part_rows);
        }
        rows
    }

    /// Whether there are no unfinished parts.
    pub(crate) fn is_idle(&self) -> bool {
        self.parts.is_empty()
    }

    fn begin(&mut self, id: String, item: &TurnItem, now: Instant) {
        match item {
            TurnItem::Item(Item::Reasoning(_)) => {
                self.parts.push_back(Part::Thought(ThoughtPart {
                    id,
                    text: String::new(),
                    since: now,
                    took: None,
                }))
            }
            TurnItem::Item(Item::Message(_)) => {
                let part = MessagePart {
                    id,
                    ..MessagePart::default()
                };
                self.parts.push_back(Part::Message(part));
            }
            TurnItem::Item(Item::FunctionCall(call)) => self.wanted(Some(&id), call),
            _ => {}
        }
    }

    fn update(&mut self, item: &str, delta: &str) {
        for part in self.parts.iter_mut().rev() {
            match part {
                Part::Message(part) if part.id == item => {
                    part.text.push_str(delta);
                    part.lined |= delta.contains('\n');
                    return;
                }
                Part::Thought(part) if part.id == item => return part.text.push_str(delta),
                _ => {}
            }
        }
    }

    fn complete(&mut self, item_id: &str, item: TurnItem, now: Instant) {
        match item {
            TurnItem::Item(Item::Message(message)) => {
                for part in &mut self.parts {
                    if let Part::Message(part) = part
                        && part.id == item_id
                    {
                        // Printed text cannot change: keep the streamed text if it differs there.
                        let whole = message.text();
                        if whole.get(..part.printed) == part.text.get(..part.printed) {
                            part.text = whole;
                        }
                        part.over = true;
                    }
                }
            }
            TurnItem::Item(Item::Reasoning(thinking)) => {
                let whole = thinking.summary.concat() + &thinking.content.concat();
                for part in &mut self.parts {
                    if let Part::Thought(part) = part
                        && part.id == item_id
                    {
                        if !whole.is_empty() {
                            part.text.clone_from(&whole);
                        }
                        part.took = Some(now.saturating_duration_since(part.since));
                        self.last_thought = Some(part.text.clone());
                    }
                }
            }
            TurnItem::Item(Item::FunctionCall(call)) => self.wanted(None, &call),
            TurnItem::Item(Item::FunctionCallOutput(output)) => self.call_result(&output),
            TurnItem::ScriptToolCall(call) => self.script(call, now),
            TurnItem::ScriptToolCallOutput(output) => self.script_result(&output),
            TurnItem::Item(Item::Native(_)) => {}
        }
    }

    fn drop_item(&mut self, item: &str) {
        let mut was_printed = false;
        self.parts.retain_mut(|part| match part {
            Part::Message(part) if part.id == item => {
                was_printed |= part.printed > 0;
                false
            }
            Part::Thought(part) => part.id != item,
            Part::Calls(part) => {
                if let Some(index) = part.items.iter().position(|(id, _)| id == item) {
                    part.calls.forget(&part.items.remove(index).1);
                    part.open = part.open.saturating_sub(1);
                }
                !part.calls.is_empty()
            }
            _ => true,
        });
        if was_printed {
            self.note(Row::quiet(
                "the answer was interrupted; requesting it again",
            ));
        }
    }

    /// Adds a structured call to the group of calls at the end, or updates it. `item` is its item
    /// id if the call is new.
    fn wanted(&mut self, item: Option<&str>, call: &FunctionCall) {
        let is_calls = |part: &Part| matches!(part, Part::Calls(_));
        let has_group = match item {
            Some(_) => self.parts.back().is_some_and(is_calls),
            None => self.parts.iter().any(is_calls),
        };
        if !has_group {
            self.parts.push_back(Part::Calls(CallsPart::default()));
        }
        if let Some(part) = self.parts.iter_mut().rev().find_map(Part::as_calls) {
            part.calls
                .wanted(&call.call_id, &call.name, &call.arguments);
            if let Some(item) = item {
                part.items.push((item.to_owned(), call.call_id.clone()));
                part.open += 1;
            }
        }
    }

    /// Applies an event to the running script, else to the last group of structured calls.
    fn call(&mut self, event: &Event, now: Instant) {
        if let Some(script) = self.open_script() {
            return script.calls.take(event, now);
        }
        if let Some(part) = self.parts.iter_mut().rev().find_map(Part::as_calls) {
            return part.calls.take(event, now);
        }
        // The call was started by an earlier process.
        let mut part = CallsPart {
            open: 1,
            ..CallsPart::default()
        };
        part.calls.take(event, now);
        self.parts.push_back(Part::Calls(part));
    }

    fn call_result(&mut self, output: &FunctionCallOutput) {
        let mut groups = self.parts.iter_mut().filter_map(Part::as_calls);
        if let Some(part) = groups.find(|part| part.open > 0) {
            part.open -= 1;
            if !output.failed {
                part.calls.returned(&output.call_id, result_of_call(output));
            }
        }
    }

    fn script(&mut self, call: ScriptToolCall, now: Instant) {
        let rows = script_head(&call.id, &call.language, &call.source_code, self.look);
        self.begin_script(rows, call.id, now);
    }

    fn begin_script(&mut self, head: Vec<Row>, id: String, now: Instant) {
        self.parts.push_back(Part::Note(head));
        self.parts
            .push_back(Part::Script(Box::new(Script::new(id, now))));
    }

    /// Adds a script that an earlier process started, and whose source is therefore not known. Does
    /// nothing if a script or structured calls are running.
    fn script_goes_on(&mut self, id: String, now: Instant) {
        let is_known = self.parts.iter().any(|part| match part {
            Part::Script(script) => script.result.is_none(),
            Part::Calls(part) => part.open > 0,
            _ => false,
        });
        if !is_known {
            let head = vec![
                Span::styled("▶ script", self.look.busy()),
                Span::styled(format!("  {id} resumed"), self.look.quiet()),
            ];
            self.begin_script(vec![Row::spans(head).cut()], id, now);
        }
    }

    fn script_result(&mut self, output: &ScriptToolCallOutput) {
        let rows = script_result(output, self.look);
        match self.open_script() {
            Some(script) => script.result = Some(rows),
            None => self.parts.push_back(Part::Note(rows)),
        }
    }

    /// Returns the script that has no result yet.
    fn open_script(&mut self) -> Option<&mut Script> {
        self.parts.iter_mut().find_map(|part| match part {
            Part::Script(script) if script.result.is_none() => Some(&mut **script),
            _ => None,
        })
    }

    fn log(&mut self, message: &str, style: Style) {
        let rows: Vec<Row> = clean(message)
            .lines()
            .map(|line| Row::of(line, style).indent(2).fit(Fit::Letters))
            .collect();
        match self.open_script() {
            Some(script) => script.log(rows),
            None => self.parts.push_back(Part::Note(rows)),
        }
    }

    fn plan(&mut self, plan: &[PlanStep]) {
        let rows = plan_rows(plan, self.look);
        match self.open_script() {
            Some(script) => script.plan = rows,
            None => match self.parts.back_mut() {
                Some(Part::Calls(part)) => part.told.extend(rows),
                _ => self.parts.push_back(Part::Note(rows)),
            },
        }
    }

    /// Shows the files of the turn's diff that changed since they were last shown.
    fn diff(&mut self, text: &str) {
        let theme = self.look;
        let mut rows = Vec::new();
        for file in diff::files(text) {
            if self.diffs.get(&file.path) != Some(&file.text) {
                let changes = file.rows(DIFF_LINES, theme).into_iter();
                rows.extend(changes.map(|row| row.indent(4)));
                self.diffs.insert(file.path, file.text);
            }
        }
        let target = self.parts.iter_mut().rev().find_map(|part| match part {
            Part::Script(script) => Some(&mut script.diffs),
            Part::Calls(part) => Some(&mut part.told),
            _ => None,
        });
        match target {
            Some(target) => target.extend(rows),
            None if rows.is_empty() => {}
            None => self.parts.push_back(Part::Note(rows)),
        }
    }

    fn note(&mut self, row: Row) {
        self.parts.push_back(Part::Note(vec![row]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::{
        CallRecord, CallStatus, OutputPart, Reasoning, Role, RunMetadata, RunStatus, ScriptError,
    };

    struct TestTurn {
        turn: Turn,
        now: Instant,
        printed: Vec<Row>,
    }

    impl TestTurn {
        fn new() -> Self {
            let now = Instant::now();
            Self {
                turn: Turn::new(Look::Plain, now),
                now,
                printed: Vec::new(),
            }
        }

        fn take(&mut self, event: Event) {
            let rows = self.turn.take(event, 60, Thoughts::Folded, self.now);
            self.printed.extend(rows);
        }

        fn printed(&mut self) -> Vec<String> {
            std::mem::take(&mut self.printed)
                .iter()
                .map(Row::plain)
                .collect()
        }

        fn live(&self) -> Vec<String> {
            self.turn
                .rows(60, Thoughts::Folded, self.now)
                .iter()
                .map(Row::plain)
                .collect()
        }
    }

    fn message(text: &str) -> TurnItem {
        Item::message(Role::Assistant, text).into()
    }

    fn started(id: &str, item: TurnItem) -> Event {
        Event::ItemStarted {
            item_id: id.into(),
            item,
        }
    }

    fn updated(id: &str, delta: &str) -> Event {
        Event::ItemUpdated {
            item_id: id.into(),
            delta: delta.into(),
        }
    }

    fn completed(id: &str, item: TurnItem) -> Event {
        Event::ItemCompleted {
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
        view.take(started("i", Item::Reasoning(Reasoning::default()).into()));
        view.take(updated("i", "Hm.\nSo."));
        view.now += Duration::from_secs(3);
        assert_eq!(view.live(), ["· thinking… 3 s"]);
        let thinking = Reasoning {
            summary: vec!["Hm.\nSo.".into()],
            ..Reasoning::default()
        };
        view.take(completed("i", Item::Reasoning(thinking).into()));
        assert_eq!(view.printed(), ["· thought for 3 s", ""]);
        assert_eq!(view.turn.last_thought.as_deref(), Some("Hm.\nSo."));
    }

    #[test]
    fn a_script_is_printed_at_once_and_its_calls_when_it_ends() {
        let mut view = TestTurn::new();
        view.take(completed("i", script("return 1")));
        assert_eq!(view.printed(), ["▶ script  scr_1", "    return 1"]);
        view.take(Event::CallStarted {
            parent_id: "scr_1".into(),
            call_id: "tool_1".into(),
            tool: "exec".into(),
            about: "ls".into(),
        });
        view.take(Event::Log {
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
        view.take(Event::CallFinished {
            parent_id: "scr_1".into(),
            call,
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
        assert!(view.turn.is_idle());
    }

    #[test]
    fn a_dropped_answer_is_removed_or_noted_if_printed() {
        let mut view = TestTurn::new();
        view.take(started("i", message("")));
        view.take(updated("i", "Half"));
        view.take(Event::ItemDropped {
            item_id: "i".into(),
        });
        assert!(view.turn.is_idle() && view.printed().is_empty());
        view.take(started("j", message("")));
        view.take(updated("j", "Printed.\n\nHalf"));
        view.printed();
        view.take(Event::ItemDropped {
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
        view.take(started("i", Item::FunctionCall(call("a")).into()));
        view.take(started("j", Item::FunctionCall(call("b")).into()));
        view.take(Event::ItemDropped {
            item_id: "i".into(),
        });
        assert_eq!(view.live(), ["  · exec"]);
        view.take(Event::ItemDropped {
            item_id: "j".into(),
        });
        assert!(view.turn.is_idle());
        view.take(started("k", Item::FunctionCall(call("c")).into()));
        view.take(completed("k", Item::FunctionCall(call("c")).into()));
        let output = vec![OutputPart::Text {
            text: "fine".into(),
        }];
        let output = FunctionCallOutput {
            call_id: "c".into(),
            output,
            failed: false,
        };
        view.take(completed("o", Item::FunctionCallOutput(output).into()));
        assert_eq!(view.printed(), ["  · exec", "    fine", ""]);
    }

    #[test]
    fn a_diff_is_shown_again_only_if_it_changed() {
        let mut view = TestTurn::new();
        let diff = |line: &str| Event::DiffUpdated {
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
