//! Renders the last turns of a session that is continued.

use ratatui_core::text::Span;
use selvedge_agent::Session;
use selvedge_journal::{Journal, Redactor};
use selvedge_protocol::{
    CallRecord, ConversationItem, FunctionCallOutput, MessageRole, ScriptToolCallOutput, TurnItem,
};

use super::call_list::stored_call_row;
use super::markdown::render_markdown;
use super::rows::{StyledRow, fold_rows, sanitize, sanitize_line, truncate};
use super::script_view::{script_result_rows, script_source_rows};
use super::theme::Theme;
use crate::prompt_images::text_with_images;

/// Turns that are shown when a session is opened.
const SHOWN_TURNS: u32 = 3;
/// Lines of a user message, and calls of a script, that are shown in these turns.
const MAX_SHOWN_LINES: usize = 20;

/// How the turns of a session are shown.
pub(crate) struct RecentTurnView<'a> {
    /// Knows the arguments and the outcomes of calls; `None` if the session is not stored.
    pub(crate) journal: Option<&'a Journal>,
    pub(crate) redactor: &'a Redactor,
    pub(crate) width: usize,
    pub(crate) theme: Theme,
}

/// Returns the last [`SHOWN_TURNS`] turns of the session as rows.
pub(crate) fn recent_turn_rows(session: &Session, view: &RecentTurnView<'_>) -> Vec<StyledRow> {
    let history = session.history();
    let first_turn = session.turn_number().saturating_sub(SHOWN_TURNS - 1).max(1);
    let mut rows = Vec::new();
    if first_turn > 1 {
        rows.push(StyledRow::dim(format!(
            "… {} earlier turns",
            first_turn - 1
        )));
        rows.push(StyledRow::blank());
    }
    let shown = history.iter().filter(|(turn, _)| *turn >= first_turn);
    let shown: Vec<&TurnItem> = shown.map(|(_, item)| item).collect();
    for (index, item) in shown.iter().enumerate() {
        let rendered = item_rows(item, view);
        if rendered.is_empty() {
            continue;
        }
        rows.extend(rendered);
        use ConversationItem::{FunctionCall, FunctionCallOutput};
        let is_call = |item: &&TurnItem| {
            matches!(
                item,
                TurnItem::Conversation(FunctionCall(_) | FunctionCallOutput(_))
            )
        };
        let joins_next = matches!(item, TurnItem::ScriptToolCall(_))
            || is_call(item) && shown.get(index + 1).is_some_and(is_call);
        if !joins_next {
            rows.push(StyledRow::blank());
        }
    }
    rows
}

fn item_rows(item: &TurnItem, view: &RecentTurnView<'_>) -> Vec<StyledRow> {
    let (width, theme) = (view.width, view.theme);
    match item {
        TurnItem::Conversation(ConversationItem::Message(message))
            if message.role == MessageRole::User =>
        {
            user_message_rows(&text_with_images(message), theme)
        }
        TurnItem::Conversation(ConversationItem::Message(message)) => {
            render_markdown(&message.text(), width, theme)
        }
        TurnItem::Conversation(ConversationItem::Reasoning(_)) => vec![StyledRow::dim("· thought")],
        TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
            let arguments = truncate(&sanitize_line(&call.arguments), 100);
            let body = vec![
                Span::raw(sanitize_line(&call.name)),
                Span::styled(format!(" {arguments}"), theme.dim()),
            ];
            vec![
                StyledRow::spans(body)
                    .truncated()
                    .with_prefix(Span::raw("  · ")),
            ]
        }
        TurnItem::Conversation(ConversationItem::FunctionCallOutput(output)) => {
            call_result_rows(output, theme)
        }
        TurnItem::Conversation(ConversationItem::Native(_)) => Vec::new(),
        TurnItem::ScriptToolCall(call) => {
            script_source_rows(&call.id, &call.language, &call.source_code, theme)
        }
        TurnItem::ScriptToolCallOutput(output) => {
            let mut rows = script_call_rows(output, view, MAX_SHOWN_LINES);
            rows.extend(script_result_rows(output, theme));
            rows
        }
    }
}

/// Returns at most `limit` calls of a script with their outcomes, if the journal still has them.
pub(crate) fn script_call_rows(
    output: &ScriptToolCallOutput,
    view: &RecentTurnView<'_>,
    limit: usize,
) -> Vec<StyledRow> {
    let stored = view
        .journal
        .and_then(|journal| journal.run(&output.id).ok());
    if let Some(run) = stored {
        let calls = run.calls.iter().take(limit);
        return calls
            .map(|call| stored_call_row(call, view.redactor, view.theme))
            .collect();
    }
    // Without a mark: a command that is done may have failed.
    let row = |call: &CallRecord| {
        let text = format!("{}  {}", sanitize_line(&call.tool), call.status.as_str());
        StyledRow::dim(text)
            .truncated()
            .with_prefix(Span::raw("  · "))
    };
    output.calls.iter().take(limit).map(row).collect()
}

fn call_result_rows(output: &FunctionCallOutput, theme: Theme) -> Vec<StyledRow> {
    // No check mark: the text of a command that is done names its exit code.
    let (mark, style) = match output.failed {
        true => ("✗", theme.error()),
        false => ("·", theme.dim()),
    };
    let text = output.text();
    let first = truncate(&sanitize_line(text.lines().next().unwrap_or_default()), 200);
    let mark = Span::styled(format!("    {mark} "), style);
    vec![StyledRow::dim(first).truncated().with_prefix(mark)]
}

/// Returns a user message as rows, folded if it is long.
pub(crate) fn user_message_rows(text: &str, theme: Theme) -> Vec<StyledRow> {
    let text = sanitize(text.trim_end());
    let rows = text
        .lines()
        .map(|line| StyledRow::styled(line, theme.bold()))
        .collect();
    let rows = fold_rows(rows, MAX_SHOWN_LINES).into_iter().enumerate();
    rows.map(|(index, row)| match index {
        0 => row.with_prefix(Span::styled("› ", theme.user_input())),
        _ => row.indented(2),
    })
    .collect()
}
