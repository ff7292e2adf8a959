//! Renders the last turns of a session that is continued.

use ratatui_core::text::Span;
use selvedge_agent::Session;
use selvedge_protocol::{FunctionCallOutput, Item, Role, TurnItem};

use super::look::Look;
use super::markdown::markdown;
use super::rows::{Row, clean, folded, one_line, short};
use super::script::{script_head, script_result};

/// Turns that are shown when a session is opened.
const TURNS: u32 = 3;
/// Lines of a user message, and calls of a script, that are shown.
const LINES: usize = 20;

/// Returns the last [`TURNS`] turns of the session as rows.
pub(crate) fn past(session: &Session, width: usize, theme: Look) -> Vec<Row> {
    let history = session.history();
    let first_turn = session.turn().saturating_sub(TURNS - 1).max(1);
    let mut rows = Vec::new();
    if first_turn > 1 {
        rows.push(Row::quiet(format!("… {} earlier turns", first_turn - 1)));
        rows.push(Row::blank());
    }
    let shown = history.iter().filter(|(turn, _)| *turn >= first_turn);
    let shown: Vec<&TurnItem> = shown.map(|(_, item)| item).collect();
    for (index, item) in shown.iter().enumerate() {
        let rendered = item_rows(item, width, theme);
        if rendered.is_empty() {
            continue;
        }
        rows.extend(rendered);
        use Item::{FunctionCall, FunctionCallOutput};
        let is_call = |item: &&TurnItem| {
            matches!(
                item,
                TurnItem::Item(FunctionCall(_) | FunctionCallOutput(_))
            )
        };
        let joins_next = matches!(item, TurnItem::ScriptToolCall(_))
            || is_call(item) && shown.get(index + 1).is_some_and(is_call);
        if !joins_next {
            rows.push(Row::blank());
        }
    }
    rows
}

fn item_rows(item: &TurnItem, width: usize, theme: Look) -> Vec<Row> {
    match item {
        TurnItem::Item(Item::Message(message)) if message.role == Role::User => {
            asked(&message.text(), theme)
        }
        TurnItem::Item(Item::Message(message)) => markdown(&message.text(), width, theme),
        TurnItem::Item(Item::Reasoning(_)) => vec![Row::quiet("· thought")],
        TurnItem::Item(Item::FunctionCall(call)) => {
            let arguments = short(&one_line(&call.arguments), 100);
            let body = vec![
                Span::raw(one_line(&call.name)),
                Span::styled(format!(" {arguments}"), theme.quiet()),
            ];
            vec![Row::spans(body).cut().behind(Span::raw("  · "))]
        }
        TurnItem::Item(Item::FunctionCallOutput(output)) => call_result(output, theme),
        TurnItem::Item(Item::Native(_)) => Vec::new(),
        TurnItem::ScriptToolCall(call) => {
            script_head(&call.id, &call.language, &call.source_code, theme)
        }
        TurnItem::ScriptToolCallOutput(output) => {
            let call = |call: &selvedge_protocol::CallRecord| {
                let text = format!("{}  {}", one_line(&call.tool), call.status.as_str());
                Row::quiet(text).cut().behind(Span::raw("  · "))
            };
            let calls = output.calls.iter().take(LINES).map(call);
            calls.chain(script_result(output, theme)).collect()
        }
    }
}

fn call_result(output: &FunctionCallOutput, theme: Look) -> Vec<Row> {
    let (mark, style) = match output.failed {
        true => ("✗", theme.bad()),
        false => ("✓", theme.good()),
    };
    let text = output.text();
    let first = short(&one_line(text.lines().next().unwrap_or_default()), 200);
    let mark = Span::styled(format!("    {mark} "), style);
    vec![Row::quiet(first).cut().behind(mark)]
}

/// Returns a user message as rows, folded if it is long.
pub(crate) fn asked(text: &str, theme: Look) -> Vec<Row> {
    let text = clean(text.trim_end());
    let rows = text
        .lines()
        .map(|line| Row::of(line, theme.strong()))
        .collect();
    let rows = folded(rows, LINES).into_iter().enumerate();
    rows.map(|(index, row)| match index {
        0 => row.behind(Span::styled("› ", theme.person())),
        _ => row.indent(2),
    })
    .collect()
}
