//! Tests of the view of a running turn.

use super::*;
use selvedge_protocol::{
    CallRecord, CallStatus, MessageRole, OutputPart, Reasoning, RunMetadata, RunStatus, ScriptError,
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
            .apply(event, 60, ReasoningDisplay::Collapsed, self.now);
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
            .live_rows(60, ReasoningDisplay::Collapsed, self.now)
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
fn reasoning_is_one_line_with_its_duration_and_its_text_is_kept() {
    let mut view = TestTurn::new();
    view.take(started(
        "i",
        ConversationItem::Reasoning(Reasoning::default()).into(),
    ));
    view.take(updated("i", "Hm.\nSo."));
    view.now += Duration::from_secs(3);
    assert_eq!(view.live(), ["· reasoning… 3 s"]);
    let reasoning = Reasoning {
        summary: vec!["Hm.\nSo.".into()],
        ..Reasoning::default()
    };
    view.take(completed(
        "i",
        ConversationItem::Reasoning(reasoning).into(),
    ));
    assert_eq!(view.printed(), ["· thought for 3 s", ""]);
    assert_eq!(view.turn.last_reasoning.as_deref(), Some("Hm.\nSo."));
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
        exit_code: None,
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
            "  shown",
            "  by the script",
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

#[test]
fn what_memory_recalled_is_one_line_that_opens() {
    let recalled = || RuntimeEvent::MemoryRecalled {
        turns: 1,
        lessons: 1,
        layers: 0,
        duration_ms: 38,
        details: vec!["turn ses_x/T-3 quoted".into(), "lesson les_1 quoted".into()],
    };
    let mut test = TestTurn::new();
    test.take(recalled());
    assert_eq!(test.printed(), ["· recalled 1 turn, 1 lesson · 38 ms", ""]);
    let opened = test.turn.last_recall.clone().unwrap_or_default();
    assert!(opened.contains("turn ses_x/T-3 quoted"), "{opened}");
    let rows = test
        .turn
        .apply(recalled(), 60, ReasoningDisplay::Expanded, test.now);
    let rows: Vec<String> = rows.iter().map(StyledRow::plain).collect();
    assert_eq!(rows[2], "  lesson les_1 quoted");
}
