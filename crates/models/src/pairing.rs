//! Orders a history so that each call is followed by its result, which every API requires.
//!
//! A turn can end between a call and its result, a user message can come in between, and two
//! providers can use the same id for two calls. Results are placed after the calls of their answer,
//! in the order of the calls. A call without a result gets a result that says so. A result without
//! a call is dropped.

use std::borrow::Cow;

use selvedge_protocol::{ConversationItem, FunctionCall, FunctionCallOutput, OutputPart};

const NO_RESULT_TEXT: &str =
    "no result was recorded: the call was interrupted, and its outcome is unknown";

/// Returns the history in an order that every API accepts.
pub(crate) fn pair_calls_with_results(
    history: &[ConversationItem],
) -> Vec<Cow<'_, ConversationItem>> {
    // The result of each call by its index: the first result with the id of an open call.
    let mut results: Vec<Option<&FunctionCallOutput>> = vec![None; history.len()];
    let mut open: Vec<(usize, &FunctionCall)> = Vec::new();
    for (index, item) in history.iter().enumerate() {
        match item {
            ConversationItem::FunctionCall(call) => open.push((index, call)),
            ConversationItem::FunctionCallOutput(output) => {
                let answers = |(_, call): &(usize, &FunctionCall)| call.call_id == output.call_id;
                if let Some(found) = open.iter().position(answers) {
                    results[open.remove(found).0] = Some(output);
                }
            }
            ConversationItem::Message(_)
            | ConversationItem::Reasoning(_)
            | ConversationItem::Native(_) => {}
        }
    }
    let mut ordered = Vec::with_capacity(history.len());
    let mut waiting: Vec<Cow<'_, ConversationItem>> = Vec::new();
    for (index, item) in history.iter().enumerate() {
        if matches!(item, ConversationItem::FunctionCallOutput(_)) {
            continue;
        }
        // An item after a result begins a new answer.
        let after_result =
            index > 0 && matches!(history[index - 1], ConversationItem::FunctionCallOutput(_));
        if !is_model_output(item) || after_result {
            ordered.append(&mut waiting);
        }
        ordered.push(Cow::Borrowed(item));
        if let ConversationItem::FunctionCall(call) = item {
            let output = results[index]
                .cloned()
                .unwrap_or_else(|| FunctionCallOutput {
                    call_id: call.call_id.clone(),
                    output: vec![OutputPart::Text {
                        text: NO_RESULT_TEXT.to_owned(),
                    }],
                    failed: true,
                });
            waiting.push(Cow::Owned(ConversationItem::FunctionCallOutput(output)));
        }
    }
    ordered.append(&mut waiting);
    ordered
}

/// Whether the item was produced by the model.
pub(crate) fn is_model_output(item: &ConversationItem) -> bool {
    match item {
        ConversationItem::Message(message) => {
            message.role == selvedge_protocol::MessageRole::Assistant
        }
        ConversationItem::Reasoning(_)
        | ConversationItem::FunctionCall(_)
        | ConversationItem::Native(_) => true,
        ConversationItem::FunctionCallOutput(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::{FunctionCallKind, MessageRole};

    fn call(id: &str, name: &str) -> ConversationItem {
        ConversationItem::FunctionCall(FunctionCall {
            call_id: id.into(),
            name: name.into(),
            arguments: "{}".into(),
            kind: FunctionCallKind::Function,
            native: None,
        })
    }

    fn shape(history: &[ConversationItem]) -> Vec<String> {
        let name = |item: &ConversationItem| match item {
            ConversationItem::Message(message) => message.text(),
            ConversationItem::FunctionCall(call) => format!("call {}", call.name),
            ConversationItem::FunctionCallOutput(output) if output.text() == NO_RESULT_TEXT => {
                format!("none for {}", output.call_id)
            }
            ConversationItem::FunctionCallOutput(output) => output.text(),
            ConversationItem::Reasoning(_) => "thought".into(),
            ConversationItem::Native(_) => "native".into(),
        };
        pair_calls_with_results(history)
            .iter()
            .map(|item| name(item))
            .collect()
    }

    #[test]
    fn results_follow_the_calls_of_their_answer() {
        let user = |text: &str| ConversationItem::message(MessageRole::User, text);
        let assistant = |text: &str| ConversationItem::message(MessageRole::Assistant, text);
        let history = [
            user("u"),
            call("1", "a"),
            call("2", "b"),
            user("wait"),
            ConversationItem::function_call_output("2", "rb"),
            assistant("s"),
        ];
        assert_eq!(
            shape(&history),
            ["u", "call a", "call b", "none for 1", "rb", "wait", "s"]
        );
        // The same id in two answers, and a result without a call.
        let history = [
            call("0", "a"),
            ConversationItem::function_call_output("0", "ra"),
            call("0", "b"),
            ConversationItem::function_call_output("0", "rb"),
            ConversationItem::function_call_output("9", "lost"),
            user("u"),
        ];
        assert_eq!(shape(&history), ["call a", "ra", "call b", "rb", "u"]);
        // Calls and text of one answer: the results follow the last call.
        assert_eq!(
            shape(&[call("1", "a"), assistant("s"), call("2", "b")]),
            ["call a", "s", "call b", "none for 1", "none for 2"]
        );
        // A result before its call is not used.
        assert_eq!(
            shape(&[
                ConversationItem::function_call_output("1", "early"),
                call("1", "a")
            ]),
            ["call a", "none for 1"]
        );
    }
}
