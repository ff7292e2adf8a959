//! Assembles calls from streamed deltas, with or without ids and indexes.

use selvedge_protocol::{
    ConversationItem, FunctionCall, FunctionCallKind, ModelOrigin, NativePayload, new_id,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::decode::EventCollector;
use crate::lenient_json::{LenientNumber, LenientText, parse_part};
use crate::{ModelError, ModelEvent};

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ChatCallDelta<'a> {
    index: LenientNumber,
    id: LenientText<'a>,
    function: Option<ChatFunctionDelta<'a>>,
    /// Gemini's signature of the reasoning before the call. Without it the next request fails.
    extra_content: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ChatFunctionDelta<'a> {
    name: LenientText<'a>,
    arguments: Option<&'a RawValue>,
}

/// The calls of an answer, as received so far.
#[derive(Debug, Default)]
pub(super) struct ChatCallAssembler(Vec<PartialChatCall>);

#[derive(Debug, Default)]
struct PartialChatCall {
    item: u32,
    index: Option<u64>,
    /// Id that the server sent; may be empty.
    server_id: String,
    /// Id of the call in events: the server's, or a new one if that is empty or already used.
    call_id: String,
    name: String,
    arguments: String,
    extra: Option<Value>,
}

impl ChatCallAssembler {
    /// Adds a delta to its call, which may be a new one.
    pub(super) fn add_delta(
        &mut self,
        delta: &ChatCallDelta<'_>,
        items: &mut u32,
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        let function = delta.function.as_ref();
        let name = function.and_then(|function| function.name.get());
        let position = match self.find(delta.index.0, delta.id.get(), name) {
            Some(position) => position,
            None => self.start_call(delta.index.0, delta.id.or_empty(), items, out)?,
        };
        let call = &mut self.0[position];
        if let Some(extra) = delta.extra_content {
            out.count_bytes(extra.get().len())?;
            call.extra = Some(parse_part(extra)?);
        }
        function.map_or(Ok(()), |function| call.add_function_delta(function, out))
    }

    /// Adds a delta of the deprecated `function_call`, of which an answer has at most one.
    pub(super) fn add_function_delta(
        &mut self,
        function: &ChatFunctionDelta<'_>,
        items: &mut u32,
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        if self.0.is_empty() {
            self.start_call(None, "", items, out)?;
        }
        let call = self.0.last_mut();
        call.map_or(Ok(()), |call| call.add_function_delta(function, out))
    }

    /// Emits all calls. Returns whether at least one is complete.
    pub(super) fn emit_all(
        &mut self,
        origin: &ModelOrigin,
        last_is_truncated: bool,
        out: &mut EventCollector<'_>,
    ) -> bool {
        let count = self.0.len();
        let mut any_complete = false;
        for (position, call) in self.0.drain(..).enumerate() {
            let item = call.item;
            // A call without a name cannot be run.
            if call.name.is_empty() {
                continue;
            }
            let is_truncated = last_is_truncated && position + 1 == count;
            let arguments = match call.arguments.trim().is_empty() {
                true if !is_truncated => "{}".to_owned(),
                _ => call.arguments,
            };
            let call = FunctionCall {
                call_id: call.call_id,
                name: call.name,
                arguments,
                kind: FunctionCallKind::Function,
                native: call.extra.map(|extra| NativePayload {
                    origin: origin.clone(),
                    json: json!({"extra_content": extra}),
                }),
            };
            if is_truncated {
                out.push(ModelEvent::CallTruncated {
                    item_index: item,
                    call,
                });
            } else {
                any_complete = true;
                out.item_done(item, ConversationItem::FunctionCall(call));
            }
        }
        any_complete
    }

    /// Returns the position of the call that a delta continues; `None` if it begins a new call.
    fn find(&self, index: Option<u64>, id: Option<&str>, name: Option<&str>) -> Option<usize> {
        let position = match index {
            Some(_) => self.0.iter().rposition(|call| call.index == index)?,
            None => self.0.len().checked_sub(1)?,
        };
        let call = &self.0[position];
        let other_id = id.is_some_and(|id| id != call.server_id && !call.server_id.is_empty());
        // Without ids, a name after complete arguments begins the next call.
        let next_call = name.is_some()
            && id.is_none()
            && !call.name.is_empty()
            && call.arguments.ends_with('}')
            && serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_ok();
        let has_other_id_without_index =
            index.is_none() && id.is_some() && id != Some(&call.server_id);
        (!other_id && !next_call && !has_other_id_without_index).then_some(position)
    }

    fn start_call(
        &mut self,
        index: Option<u64>,
        id: &str,
        items: &mut u32,
        out: &mut EventCollector<'_>,
    ) -> Result<usize, ModelError> {
        out.count_item()?;
        out.count_bytes(id.len())?;
        let unusable = id.is_empty() || self.0.iter().any(|call| call.call_id == id);
        let call_id = if unusable {
            new_id("call")
        } else {
            id.to_owned()
        };
        self.0.push(PartialChatCall {
            item: *items,
            index,
            server_id: id.to_owned(),
            call_id,
            ..PartialChatCall::default()
        });
        *items += 1;
        Ok(self.0.len() - 1)
    }
}

impl PartialChatCall {
    fn add_function_delta(
        &mut self,
        function: &ChatFunctionDelta<'_>,
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError> {
        // Arguments that were received before the name are emitted after it.
        let mut unemitted = String::new();
        if let (true, Some(name)) = (self.name.is_empty(), function.name.get()) {
            out.count_bytes(name.len())?;
            self.name = name.to_owned();
            out.call_started(self.item, &self.call_id, name, FunctionCallKind::Function);
            unemitted = self.arguments.clone();
        }
        if let Some(raw) = function.arguments {
            let delta = match raw.get().starts_with('"') {
                true => parse_part::<LenientText<'_>>(raw)?.or_empty().to_owned(),
                // Some servers send the arguments as an object, not as a string.
                false => raw.get().to_owned(),
            };
            out.count_bytes(delta.len())?;
            self.arguments.push_str(&delta);
            unemitted.push_str(&delta);
        }
        if !self.name.is_empty() {
            out.call_delta(self.item, &unemitted);
        }
        Ok(())
    }
}
