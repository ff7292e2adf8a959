//! The output of running calls, which is not stored: the newest part is kept for clients that
//! connect while the calls run.

use std::collections::VecDeque;

use selvedge_protocol::{OutputStream, RuntimeEvent};
use serde_json::{Value, json};

/// Output that is kept of one call, in bytes.
const MAX_KEPT_OUTPUT: usize = 16 << 10;
/// Calls whose output is kept.
const MAX_OPEN_CALLS: usize = 64;

/// The running calls of a session that have written output.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls(VecDeque<OpenCall>);

#[derive(Debug)]
struct OpenCall {
    parent_id: String,
    call_id: String,
    /// Parts of the output, each of another stream than the one before.
    parts: VecDeque<(OutputStream, String)>,
}

impl OpenCalls {
    /// Takes what an event says about calls.
    pub(crate) fn track(&mut self, event: &RuntimeEvent) {
        match event {
            RuntimeEvent::CallOutput {
                parent_id,
                call_id,
                stream,
                text,
            } => {
                let known = self.0.iter_mut().find(|call| call.is(parent_id, call_id));
                if let Some(call) = known {
                    return call.append(*stream, text);
                }
                if self.0.len() == MAX_OPEN_CALLS {
                    self.0.pop_front();
                }
                let mut call = OpenCall {
                    parent_id: parent_id.clone(),
                    call_id: call_id.clone(),
                    parts: VecDeque::new(),
                };
                call.append(*stream, text);
                self.0.push_back(call);
            }
            RuntimeEvent::CallFinished {
                parent_id, call, ..
            } => self.0.retain(|open| !open.is(parent_id, &call.id)),
            RuntimeEvent::TurnStarted { .. }
            | RuntimeEvent::TurnCompleted { .. }
            | RuntimeEvent::TurnFailed { .. } => self.0.clear(),
            _ => {}
        }
    }

    /// Returns the output that is kept, as events.
    pub(crate) fn events(&self) -> impl Iterator<Item = Value> + '_ {
        self.0.iter().flat_map(|call| {
            call.parts.iter().map(|(stream, text)| {
                json!({
                    "type": "call.output",
                    "parent_id": call.parent_id,
                    "call_id": call.call_id,
                    "stream": stream,
                    "text": text,
                })
            })
        })
    }
}

impl OpenCall {
    fn is(&self, parent_id: &str, call_id: &str) -> bool {
        self.parent_id == parent_id && self.call_id == call_id
    }

    /// Appends output, and drops the oldest if there is too much.
    fn append(&mut self, stream: OutputStream, text: &str) {
        match self.parts.back_mut() {
            Some((last, kept)) if *last == stream => kept.push_str(text),
            _ => self.parts.push_back((stream, text.to_owned())),
        }
        let length = |parts: &VecDeque<(_, String)>| -> usize {
            parts.iter().map(|(_, text): &(_, String)| text.len()).sum()
        };
        let mut excess = length(&self.parts).saturating_sub(MAX_KEPT_OUTPUT);
        while let Some((_, first)) = self.parts.front_mut().filter(|_| excess > 0) {
            if first.len() <= excess {
                excess -= first.len();
                self.parts.pop_front();
            } else {
                first.drain(..first.ceil_char_boundary(excess));
                excess = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(call_id: &str, stream: OutputStream, text: &str) -> RuntimeEvent {
        RuntimeEvent::CallOutput {
            parent_id: "scr_1".to_owned(),
            call_id: call_id.to_owned(),
            stream,
            text: text.to_owned(),
        }
    }

    #[test]
    fn the_newest_output_of_running_calls_is_kept() {
        let mut calls = OpenCalls::default();
        calls.track(&output("tool_1", OutputStream::Stdout, "a"));
        calls.track(&output("tool_1", OutputStream::Stdout, "b"));
        calls.track(&output("tool_1", OutputStream::Stderr, "c"));
        calls.track(&output("tool_2", OutputStream::Stdout, "d"));
        let texts = |calls: &OpenCalls| -> Vec<Value> {
            calls
                .events()
                .map(|mut event| event["text"].take())
                .collect()
        };
        assert_eq!(texts(&calls), [json!("ab"), json!("c"), json!("d")]);
        let long = "é".repeat(MAX_KEPT_OUTPUT);
        calls.track(&output("tool_1", OutputStream::Stderr, &long));
        let kept = texts(&calls);
        assert_eq!(kept.len(), 2);
        assert_eq!(kept[0].as_str().map(str::len), Some(MAX_KEPT_OUTPUT));
        calls.track(&RuntimeEvent::TurnStarted { turn: 2 });
        assert_eq!(calls.events().count(), 0);
    }

    #[test]
    fn at_most_as_many_calls_are_kept() {
        let mut calls = OpenCalls::default();
        for number in 0..=MAX_OPEN_CALLS {
            calls.track(&output(
                &format!("tool_{number}"),
                OutputStream::Stdout,
                "a",
            ));
        }
        assert_eq!(calls.events().count(), MAX_OPEN_CALLS);
        assert!(calls.events().all(|event| event["call_id"] != "tool_0"));
    }
}
