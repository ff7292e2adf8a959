//! A turn on its way: events go in, finished rows come out, and what is not finished can be drawn at any time.

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

/// More lines of one file's diff are folded.
const DIFF_LINES: usize = 24;

/// Whether thoughts are shown or only told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thoughts {
    Folded,
    Unfolded,
}

pub(crate) struct Turn {
    look: Look,
    parts: VecDeque<Part>,
    /// What was shown of each changed file.
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

#[derive(Default)]
struct MessagePart {
    id: String,
    text: String,
    printed: usize,
    /// Whether a line has ended since it was looked for blocks that are complete.
    lined: bool,
    over: bool,
}

struct ThoughtPart {
    id: String,
    text: String,
    since: Instant,
    took: Option<Duration>,
}

#[derive(Default)]
struct CallsPart {
    calls: Calls,
    told: Vec<Row>,
    /// Calls whose results have not come.
    open: usize,
    /// The names of their items, and their own.
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
    pub(crate) fn new(look: Look, now: Instant) -> Self {
        Self {
            look,
            parts: VecDeque::new(),
            diffs: HashMap::new(),
            started: now,
            last_thought: None,
        }
    }

    /// Takes in an event; what is finished comes back as rows.
    pub(crate) fn take(
        &mut self,
        event: Event,
        width: usize,
        thoughts: Thoughts,
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
                let words = format!(
                    "the conversation was made shorter: from about {tokens_before} to {tokens_after} tokens"
                );
                self.note(Row::quiet(words));
            }
            Event::Error { message } => self.note(Row::of(one_line(&message), self.look.bad())),
            _ => {}
        }
        self.finished(width, thoughts, now)
    }

    /// Nothing more comes: whatever is there is finished.
    pub(crate) fn end(&mut self, width: usize, thoughts: Thoughts, now: Instant) -> Vec<Row> {
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
        self.finished(width, thoughts, now)
    }

    /// What is not finished, as it stands.
    pub(crate) fn rows(&self, width: usize, thoughts: Thoughts, now: Instant) -> Vec<Row> {
        let mut rows = Vec::new();
        for part in &self.parts {
            let more = self.live(part, width, thoughts, now);
            if !more.is_empty() && !rows.is_empty() {
                rows.push(Row::blank());
            }
            rows.extend(more);
        }
        rows
    }

    /// Whether there is anything to see that is not finished.
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
                        // What is printed stays printed.
                        let whole = message.text();
                        if whole.get(..part.printed) == part.text.get(..part.printed) {
                            part.text = whole;
                        }
                        part.over = true;
                    }
                }
            }
            TurnItem::Item(Item::Reasoning(thought)) => {
                let whole = thought.summary.concat() + &thought.content.concat();
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
        let mut told = false;
        self.parts.retain_mut(|part| match part {
            Part::Message(part) if part.id == item => {
                told |= part.printed > 0;
                false
            }
            Part::Thought(part) => part.id != item,
            Part::Calls(part) => {
                if let Some(at) = part.items.iter().position(|(id, _)| id == item) {
                    part.calls.forget(&part.items.remove(at).1);
                    part.open = part.open.saturating_sub(1);
                }
                !part.calls.is_empty()
            }
            _ => true,
        });
        if told {
            self.note(Row::quiet("the answer broke off, and is asked for again"));
        }
    }

    /// A call that a model makes, among those it makes side by side; known under this name where it is new.
    fn wanted(&mut self, item: Option<&str>, call: &FunctionCall) {
        let is_calls = |part: &Part| matches!(part, Part::Calls(_));
        let has_place = match item {
            Some(_) => self.parts.back().is_some_and(is_calls),
            None => self.parts.iter().any(is_calls),
        };
        if !has_place {
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

    /// What happens belongs to the script that runs, else to the calls that were made last.
    fn call(&mut self, event: &Event, now: Instant) {
        if let Some(script) = self.open_script() {
            return script.calls.take(event, now);
        }
        if let Some(part) = self.parts.iter_mut().rev().find_map(Part::as_calls) {
            return part.calls.take(event, now);
        }
        // An earlier process began it.
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

    /// A script runs whose source was not told: an earlier process had begun it.
    fn script_goes_on(&mut self, id: String, now: Instant) {
        let begun = self.parts.iter().any(|part| match part {
            Part::Script(script) => script.result.is_none(),
            Part::Calls(part) => part.open > 0,
            _ => false,
        });
        if !begun {
            let head = vec![
                Span::styled("▶ script", self.look.busy()),
                Span::styled(format!("  {id} goes on"), self.look.quiet()),
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

    /// What the turn changed so far: files whose changes were not shown as they are now.
    fn diff(&mut self, text: &str) {
        let look = self.look;
        let mut rows = Vec::new();
        for file in diff::files(text) {
            if self.diffs.get(&file.path) != Some(&file.text) {
                let changes = file.rows(DIFF_LINES, look).into_iter();
                rows.extend(changes.map(|row| row.indent(4)));
                self.diffs.insert(file.path, file.text);
            }
        }
        let place = self.parts.iter_mut().rev().find_map(|part| match part {
            Part::Script(script) => Some(&mut script.diffs),
            Part::Calls(part) => Some(&mut part.told),
            _ => None,
        });
        match place {
            Some(place) => place.extend(rows),
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

    struct Watched {
        turn: Turn,
        now: Instant,
        printed: Vec<Row>,
    }

    impl Watched {
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

    fn said(words: &str) -> TurnItem {
        Item::message(Role::Assistant, words).into()
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
            warnings: vec!["nobody waited for tool_2".into()],
            metadata: RunMetadata {
                duration_ms: 1500.0,
                ..RunMetadata::default()
            },
        }))
    }

    #[test]
    fn words_are_printed_block_by_block_as_they_come() {
        let mut watched = Watched::new();
        watched.take(started("i", said("")));
        watched.take(updated("i", "One.\n\nTw"));
        assert_eq!(
            (watched.printed(), watched.live()),
            (vec!["One.".into(), "".into()], vec!["Tw".into()])
        );
        watched.take(updated("i", "o."));
        assert_eq!(
            (watched.printed(), watched.live()),
            (vec![], vec!["Two.".to_owned()])
        );
        watched.take(completed("i", said("One.\n\nTwo.")));
        assert_eq!(
            (watched.printed(), watched.live()),
            (vec!["Two.".into(), "".into()], vec![])
        );
    }

    #[test]
    fn a_thought_is_one_line_with_its_time_and_kept_for_whoever_asks() {
        let mut watched = Watched::new();
        watched.take(started("i", Item::Reasoning(Reasoning::default()).into()));
        watched.take(updated("i", "Hm.\nSo."));
        watched.now += Duration::from_secs(3);
        assert_eq!(watched.live(), ["· thinking… 3 s"]);
        let thought = Reasoning {
            summary: vec!["Hm.\nSo.".into()],
            ..Reasoning::default()
        };
        watched.take(completed("i", Item::Reasoning(thought).into()));
        assert_eq!(watched.printed(), ["· thought for 3 s", ""]);
        assert_eq!(watched.turn.last_thought.as_deref(), Some("Hm.\nSo."));
    }

    #[test]
    fn a_script_is_printed_at_once_its_calls_when_they_are_over() {
        let mut watched = Watched::new();
        watched.take(completed("i", script("return 1")));
        assert_eq!(watched.printed(), ["▶ script  scr_1", "    return 1"]);
        watched.take(Event::CallStarted {
            parent_id: "scr_1".into(),
            call_id: "tool_1".into(),
            tool: "exec".into(),
            about: "ls".into(),
        });
        watched.take(Event::Log {
            script_id: "scr_1".into(),
            level: LogLevel::Log,
            message: "so far".into(),
        });
        assert_eq!(
            (watched.printed(), watched.live()),
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
        watched.take(Event::CallFinished {
            parent_id: "scr_1".into(),
            call,
        });
        watched.take(completed("o", output(None)));
        assert_eq!(
            watched.printed(),
            [
                "  ✓ exec ls  5 ms",
                "  so far",
                "  shown⏎by the script",
                "◀ {\"n\":1}  1.5 s",
                "  warning: nobody waited for tool_2",
                ""
            ]
        );
        assert!(watched.turn.is_idle());
    }

    #[test]
    fn an_answer_that_is_asked_for_again_leaves_nothing_behind() {
        let mut watched = Watched::new();
        watched.take(started("i", said("")));
        watched.take(updated("i", "Half"));
        watched.take(Event::ItemDropped {
            item_id: "i".into(),
        });
        assert!(watched.turn.is_idle() && watched.printed().is_empty());
        watched.take(started("j", said("")));
        watched.take(updated("j", "Printed.\n\nHalf"));
        watched.printed();
        watched.take(Event::ItemDropped {
            item_id: "j".into(),
        });
        assert_eq!(
            watched.printed(),
            ["the answer broke off, and is asked for again", ""]
        );
    }

    #[test]
    fn calls_of_an_answer_that_is_asked_for_again_are_forgotten() {
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
        let mut watched = Watched::new();
        watched.take(started("i", Item::FunctionCall(call("a")).into()));
        watched.take(started("j", Item::FunctionCall(call("b")).into()));
        watched.take(Event::ItemDropped {
            item_id: "i".into(),
        });
        assert_eq!(watched.live(), ["  · exec"]);
        watched.take(Event::ItemDropped {
            item_id: "j".into(),
        });
        assert!(watched.turn.is_idle());
        watched.take(started("k", Item::FunctionCall(call("c")).into()));
        watched.take(completed("k", Item::FunctionCall(call("c")).into()));
        let output = vec![OutputPart::Text {
            text: "fine".into(),
        }];
        let output = FunctionCallOutput {
            call_id: "c".into(),
            output,
            failed: false,
        };
        watched.take(completed("o", Item::FunctionCallOutput(output).into()));
        assert_eq!(watched.printed(), ["  · exec", "    fine", ""]);
    }

    #[test]
    fn a_file_is_shown_again_only_when_it_changed_again() {
        let mut watched = Watched::new();
        let diff = |line: &str| Event::DiffUpdated {
            diff: format!("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+{line}\n"),
        };
        watched.take(diff("new"));
        assert_eq!(watched.printed().len(), 5);
        watched.take(diff("new"));
        assert_eq!(watched.printed(), Vec::<String>::new());
        watched.take(diff("newer"));
        assert!(watched.printed().contains(&"    +newer".to_owned()));
    }
}
