//! Renders the last turns of a session that is continued.

use ratatui_core::text::Span;
use selvedge_agent::Session;
use selvedge_journal::{Journal, Redactor, StoredCall};
use selvedge_protocol::{
    CallRecord, ConversationItem, FunctionCallOutput, MessageRole, ScriptToolCallOutput, TurnItem,
};
use selvedge_tools::summarise_args;

use super::call_list::{labelled_row, outcome_label};
use super::markdown::render_markdown;
use super::rows::{StyledRow, WrapMode, fold_rows, sanitize, sanitize_line, truncate};
use super::script_view::{script_result_rows, script_source_rows};
use super::theme::Theme;
use crate::call_outcome::CallOutcomeLabel;
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

/// Returns at most `limit` calls of a script with their outcomes, and with their arguments if the
/// journal still has them.
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
    let calls = output.calls.iter().take(limit);
    calls
        .map(|call| call_record_row(call, view.redactor, view.theme))
        .collect()
}

/// Returns the row of a call that the journal recorded.
fn stored_call_row(call: &StoredCall, redactor: &Redactor, theme: Theme) -> StyledRow {
    let arguments = call.args.as_ref();
    let summary = arguments.map(|args| summarise_args(&redactor.redact_value(args), &[]));
    let (label, duration) = (CallOutcomeLabel::of_stored(call), call.duration_ms);
    let shown = (call.tool.as_str(), summary.unwrap_or_default());
    ended_call_row(
        shown,
        label,
        duration.unwrap_or_default(),
        (redactor, theme),
    )
}

/// Returns the row of a call of which only the record is left, without its arguments.
fn call_record_row(call: &CallRecord, redactor: &Redactor, theme: Theme) -> StyledRow {
    let label = CallOutcomeLabel::of_record(call, None);
    let shown = (call.tool.as_str(), String::new());
    ended_call_row(shown, label, call.duration_ms, (redactor, theme))
}

fn ended_call_row(
    (tool, summary): (&str, String),
    label: CallOutcomeLabel,
    duration_ms: f64,
    (redactor, theme): (&Redactor, Theme),
) -> StyledRow {
    let reason = label.reason.as_deref();
    let reason = reason.map(|reason| redactor.redact_text(reason).into_owned());
    let label = CallOutcomeLabel { reason, ..label };
    let wrap = match label.reason {
        Some(_) => WrapMode::Words,
        None => WrapMode::Truncate,
    };
    let label = outcome_label(&label, duration_ms, theme);
    labelled_row(tool, &summary, label, theme)
        .with_wrap(wrap)
        .indented(2)
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

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::CallStatus;

    #[test]
    fn the_record_of_a_call_says_whether_its_command_failed() {
        let row = |tool: &str, exit_code| {
            let call = CallRecord {
                id: "tool_1".into(),
                tool: tool.into(),
                status: CallStatus::Done,
                reused: false,
                duration_ms: 12.0,
                args_digest: String::new(),
                line: None,
                error: None,
                exit_code,
            };
            call_record_row(&call, &Redactor::new(Vec::new()), Theme::Plain).plain()
        };
        assert_eq!(row("exec", Some(4)), "  ✗ exec  exit 4");
        assert_eq!(row("exec", Some(0)), "  ✓ exec  12 ms");
        assert_eq!(row("read_file", None), "  ✓ read_file  12 ms");
    }
}
