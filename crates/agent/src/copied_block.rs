//! Recognises script blocks that a model copied from a text it was given, such as a file or a web
//! page: these must not run, because the text and not the model would decide what is done.

use selvedge_protocol::{ConversationItem, OutputPart, RunStatus};

use crate::answer::{AnswerPiece, AnswerScriptForm, TurnAnswer};
use crate::script_call::copied_block_error;
use crate::session_record::{SessionStep, SessionStepKind};

/// Rejects the blocks of an answer that stand as blocks in earlier results.
pub(crate) fn reject_copied_blocks(answer: &mut TurnAnswer, steps: &[SessionStep]) {
    for emitted in &mut answer.pieces {
        if let AnswerPiece::Script(script) = &mut emitted.piece
            && script.form == AnswerScriptForm::Block
            && script.error.is_none()
            && is_copied(&script.item.source_code, steps)
        {
            script.error = Some(copied_block_error());
            script.item.status = RunStatus::Rejected;
        }
    }
}

/// Returns whether a result contains the code as a block before the model or the user wrote it.
fn is_copied(code: &str, steps: &[SessionStep]) -> bool {
    let code = comparable_text(code);
    if code.is_empty() {
        return false;
    }
    let tag = format!("<tool-calls>{code}</tool-calls>");
    let fence = format!("tool-calls{code}```");
    for step in steps {
        let texts = step.request_items.iter().flat_map(item_texts);
        let contains = texts.into_iter().any(|text| {
            text.contains("tool-calls") && {
                let text = comparable_text(text);
                text.contains(&tag) || text.contains(&fence)
            }
        });
        match step.kind {
            SessionStepKind::Results if contains => return true,
            // What was the model's or the user's own before is not from outside.
            SessionStepKind::Prompt | SessionStepKind::Answer { .. } if contains => return false,
            _ => {}
        }
    }
    false
}

/// Returns the texts of an item that the model was sent.
fn item_texts(item: &ConversationItem) -> Vec<&str> {
    let parts = match item {
        ConversationItem::Message(message) => &message.content,
        ConversationItem::FunctionCallOutput(output) => &output.output,
        _ => return Vec::new(),
    };
    let texts = parts.iter().filter_map(|part| match part {
        OutputPart::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Returns a text without what copying changes: indentation, line ends, the marks of quotes and
/// line numbers, and the escapes of JSON.
fn comparable_text(text: &str) -> String {
    let lines = text.split('\n').flat_map(|line| line.split("\\n"));
    let mut comparable = String::with_capacity(text.len());
    for line in lines {
        let line = line.trim_start_matches(|c: char| c.is_whitespace() || c == '>');
        let kept = without_line_number(line).chars();
        comparable.extend(kept.filter(|c| !c.is_whitespace() && *c != '\\'));
    }
    // JSON may contain the brackets of a tag as codes.
    comparable.replace("u003c", "<").replace("u003e", ">")
}

/// Returns a line without a line number such as `L12: ` or `12:`.
fn without_line_number(line: &str) -> &str {
    let digits = line.strip_prefix('L').unwrap_or(line);
    let rest = digits.trim_start_matches(|c: char| c.is_ascii_digit());
    match rest.len() < digits.len() {
        true => rest.strip_prefix([':', '\t', '|', '-']).unwrap_or(line),
        false => line,
    }
}
