//! Recognises script blocks that a model copied from a text it was given, such as a file or a web
//! page: these must not run, because the text and not the model would decide what is done.

use selvedge_protocol::{ConversationItem, OutputPart, RunStatus};

use crate::answer::{AnswerPiece, AnswerScriptForm, TurnAnswer};
use crate::script_call::copied_block_error;
use crate::session_record::{SessionStep, SessionStepKind};

/// Maximum number of letters and digits between two copied lines: room for line numbers, file names
/// and other marks that a tool puts in front of each line.
const MAX_LINE_GAP: usize = 200;

/// Rejects the blocks of an answer that occur as blocks in the project's instructions or in earlier
/// results.
pub(crate) fn reject_copied_blocks(
    answer: &mut TurnAnswer,
    instructions: Option<&str>,
    steps: &[SessionStep],
) {
    for emitted in &mut answer.pieces {
        if let AnswerPiece::Script(script) = &mut emitted.piece
            && script.form == AnswerScriptForm::Block
            && script.error.is_none()
            && is_copied(&script.item.source_code, instructions, steps)
        {
            script.error = Some(Box::new(copied_block_error()));
            script.item.status = RunStatus::Rejected;
        }
    }
}

/// Returns whether the instructions contain the code as a block, or whether a result contained it
/// before the model or the user wrote it.
fn is_copied(code: &str, instructions: Option<&str>, steps: &[SessionStep]) -> bool {
    let lines: Vec<String> = code
        .lines()
        .map(letters_and_digits)
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() {
        return false;
    }
    if instructions.is_some_and(|text| contains_block(text, &lines)) {
        return true;
    }
    for step in steps {
        let mut texts = step.request_items.iter().flat_map(item_texts);
        let contains = texts.any(|text| contains_block(text, &lines));
        match step.kind {
            SessionStepKind::Results if contains => return true,
            // The model or the user wrote this code before a result contained it.
            SessionStepKind::UserMessage | SessionStepKind::Answer { .. } if contains => {
                return false;
            }
            _ => {}
        }
    }
    false
}

/// Whether all lines occur in the text after the marker of a block, in their order and close
/// together. Only letters and digits count, so that indentation, line ends, quotation marks, the
/// signs of a diff and the escapes of JSON make no difference.
fn contains_block(text: &str, lines: &[String]) -> bool {
    if !text.contains("tool-calls") {
        return false;
    }
    let text = letters_and_digits(text);
    text.match_indices("toolcalls").any(|(start, marker)| {
        let mut rest = &text[start + marker.len()..];
        lines.iter().all(|line| {
            let end = rest.floor_char_boundary(MAX_LINE_GAP + line.len());
            let found = rest[..end].find(line.as_str());
            if let Some(at) = found {
                rest = &rest[at + line.len()..];
            }
            found.is_some()
        })
    })
}

/// Returns the letters and digits of a text. Escapes of control characters are dropped; `\uXXXX` is
/// decoded.
fn letters_and_digits(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            kept.extend(c.is_alphanumeric().then_some(c));
            continue;
        }
        while chars.next_if_eq(&'\\').is_some() {}
        match chars.peek() {
            Some('b' | 'f' | 'n' | 'r' | 't') => {
                chars.next();
            }
            Some('u') => {
                chars.next();
                let digits: String = (0..4).filter_map(|_| chars.next()).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                let decoded = code.and_then(char::from_u32);
                kept.extend(decoded.filter(|c| c.is_alphanumeric()));
            }
            _ => {}
        }
    }
    kept
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

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "if (1) {\n\tawait tools.exec({ command: \"a\\tb\" });\n}\nreturn 'done'";

    fn contains(text: &str) -> bool {
        let lines: Vec<String> = CODE.lines().map(letters_and_digits).collect();
        contains_block(text, &lines)
    }

    #[test]
    fn copies_are_recognised_in_every_form_that_tools_give_them() {
        let block = format!("<tool-calls>\n{CODE}\n</tool-calls>\n");
        let prefixed = |prefix: &dyn Fn(usize) -> String| {
            let lines = block.lines().enumerate();
            let lines = lines.map(|(at, line)| format!("{}{line}\n", prefix(at)));
            lines.collect::<String>()
        };
        let json = serde_json::to_string(&block).unwrap();
        for text in [
            block.clone(),
            block.replace('\n', "\r\n"),
            block.replace('\t', "    "),
            format!("~~~ts tool-calls\n{CODE}\n~~~"),
            json.clone(),
            serde_json::to_string(&json).unwrap(),
            json.replace('<', "\\u003c"),
            prefixed(&|_| "> ".to_owned()),
            prefixed(&|_| "+".to_owned()),
            prefixed(&|at| format!("  {at}\t")),
            serde_json::to_string(&prefixed(&|at| format!("L{at}: "))).unwrap(),
            prefixed(&|at| format!("docs/readme.md:{at}:")),
            prefixed(&|at| format!("{{\"path\":\"readme.md\",\"line\":{at},\"text\":\"")),
        ] {
            assert!(contains(&text), "{text}");
        }
    }

    #[test]
    fn code_without_a_marker_or_in_another_order_is_no_copy() {
        let backwards: Vec<&str> = CODE.lines().rev().collect();
        for text in [
            CODE.to_owned(),
            format!("<tool-calls>\n{}\n</tool-calls>", backwards.join("\n")),
            format!(
                "<tool-calls>\nreturn 1\n</tool-calls>\n{}{CODE}",
                "word ".repeat(80)
            ),
        ] {
            assert!(!contains(&text), "{text}");
        }
    }
}
