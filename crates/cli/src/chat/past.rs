//! What was said before, for a chat that goes on: the last turns, in the words they were shown in.

use ratatui_core::text::Span;
use selvedge_agent::Session;
use selvedge_protocol::{FunctionCallOutput, Item, Role, TurnItem};

use super::look::Look;
use super::markdown::markdown;
use super::rows::{Row, clean, folded, one_line, short};
use super::script::{script_head, script_result};

const TURNS: u32 = 3;
/// Lines of a question that are shown.
const LINES: usize = 20;

pub(crate) fn past(session: &Session, width: usize, look: Look) -> Vec<Row> {
    let history = session.history();
    let from = session.turn().saturating_sub(TURNS - 1).max(1);
    let mut rows = Vec::new();
    if from > 1 {
        rows.push(Row::quiet(format!("… {} earlier turns", from - 1)));
        rows.push(Row::blank());
    }
    let shown = history.iter().filter(|(turn, _)| *turn >= from);
    let shown: Vec<&TurnItem> = shown.map(|(_, item)| item).collect();
    for (at, item) in shown.iter().enumerate() {
        let more = item_rows(item, width, look);
        if more.is_empty() {
            continue;
        }
        rows.extend(more);
        use Item::{FunctionCall, FunctionCallOutput};
        let is_call = |item: &&TurnItem| {
            matches!(
                item,
                TurnItem::Item(FunctionCall(_) | FunctionCallOutput(_))
            )
        };
        let goes_on = matches!(item, TurnItem::ScriptToolCall(_))
            || is_call(item) && shown.get(at + 1).is_some_and(is_call);
        if !goes_on {
            rows.push(Row::blank());
        }
    }
    rows
}

fn item_rows(item: &TurnItem, width: usize, look: Look) -> Vec<Row> {
    match item {
        TurnItem::Item(Item::Message(message)) if message.role == Role::User => {
            asked(&message.text(), look)
        }
        TurnItem::Item(Item::Message(message)) => markdown(&message.text(), width, look),
        TurnItem::Item(Item::Reasoning(_)) => vec![Row::quiet("· thought")],
        TurnItem::Item(Item::FunctionCall(call)) => {
            let arguments = short(&one_line(&call.arguments), 100);
            let body = vec![
                Span::raw(one_line(&call.name)),
                Span::styled(format!(" {arguments}"), look.quiet()),
            ];
            vec![Row::spans(body).cut().behind(Span::raw("  · "))]
        }
        TurnItem::Item(Item::FunctionCallOutput(output)) => call_result(output, look),
        TurnItem::Item(Item::Native(_)) => Vec::new(),
        TurnItem::ScriptToolCall(call) => {
            script_head(&call.id, &call.language, &call.source_code, look)
        }
        TurnItem::ScriptToolCallOutput(output) => {
            let call = |call: &selvedge_protocol::CallRecord| {
                let words = format!("{}  {}", one_line(&call.tool), call.status.as_str());
                Row::quiet(words).cut().behind(Span::raw("  · "))
            };
            let calls = output.calls.iter().take(LINES).map(call);
            calls.chain(script_result(output, look)).collect()
        }
    }
}

fn call_result(output: &FunctionCallOutput, look: Look) -> Vec<Row> {
    let (mark, style) = match output.failed {
        true => ("✗", look.bad()),
        false => ("✓", look.good()),
    };
    let text = output.text();
    let first = short(&one_line(text.lines().next().unwrap_or_default()), 200);
    let mark = Span::styled(format!("    {mark} "), style);
    vec![Row::quiet(first).cut().behind(mark)]
}

pub(crate) fn asked(text: &str, look: Look) -> Vec<Row> {
    let text = clean(text.trim_end());
    let rows = text
        .lines()
        .map(|line| Row::of(line, look.strong()))
        .collect();
    let rows = folded(rows, LINES).into_iter().enumerate();
    rows.map(|(at, row)| match at {
        0 => row.behind(Span::styled("› ", look.person())),
        _ => row.indent(2),
    })
    .collect()
}
