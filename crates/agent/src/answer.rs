//! Reads a streamed answer: emits events while it arrives, and splits it into text, scripts and
//! calls in the order in which the model produced them.

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge_models::{ModelEvent, ModelTool};
use selvedge_protocol::{
    ConversationItem, EventSink, FinishReason, FunctionCall, MessageRole, Reasoning, RunStatus,
    RuntimeEvent, ScriptError, ScriptToolCall, TurnItem, Usage, new_id,
};
use selvedge_script::detect::{BlockDetector, Segment, reasoning_text};
use selvedge_script::{Harness, named_run_to_resume};

use crate::AfterBlock;
use crate::answer_cut::AnswerCut;
use crate::model_request::retry_note;
use crate::script_call::{malformed_block_error, parse_script_call};

/// A piece of an answer.
#[derive(Debug)]
pub(crate) enum AnswerPiece {
    /// Reasoning, or an item that only its provider understands.
    Other(ConversationItem),
    /// Text outside of script blocks.
    Text(String),
    Script(AnswerScript),
    /// A structured call.
    Call(FunctionCall),
}

impl AnswerPiece {
    /// Returns whether the piece has to be run.
    pub(crate) fn must_run(&self) -> bool {
        matches!(self, Self::Script(_) | Self::Call(_))
    }
}

/// A script in an answer.
#[derive(Debug)]
pub(crate) struct AnswerScript {
    pub(crate) item: ScriptToolCall,
    pub(crate) form: AnswerScriptForm,
    /// The reason why the script cannot run, if the block was malformed.
    pub(crate) error: Option<Box<ScriptError>>,
    pub(crate) timeout: Option<Duration>,
    /// The run that the script resumes.
    pub(crate) resumes_run: Option<String>,
}

/// The form in which a model wrote a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerScriptForm {
    Block,
    /// A block without a closing mark.
    UnclosedBlock,
    /// A call of the tool `script`.
    Call,
}

/// A piece, and the item id in the events that were emitted for it while the answer was streamed.
#[derive(Debug)]
pub(crate) struct PieceWithItemId {
    pub(crate) piece: AnswerPiece,
    pub(crate) item_id: Option<String>,
}

/// A complete answer of the model.
#[derive(Debug, Default)]
pub(crate) struct TurnAnswer {
    pub(crate) pieces: Vec<PieceWithItemId>,
    /// The items of the answer, as later requests repeat them.
    pub(crate) request_items: Vec<ConversationItem>,
    pub(crate) usage: Option<Usage>,
    /// Why the model stopped; `None` if the answer was not read to its end.
    pub(crate) finish_reason: Option<FinishReason>,
    /// The provider's explanation of the finish reason.
    pub(crate) finish_detail: Option<String>,
}

/// Reads the events of a streamed answer.
pub(crate) struct AnswerReader<'a> {
    pub(crate) harness: &'a Harness,
    /// The tool `script`, if it was offered.
    pub(crate) script_tool: Option<&'a ModelTool>,
    pub(crate) after_block: AfterBlock,
    pub(crate) events: &'a EventSink,
    /// Returns a new item id for events.
    pub(crate) next_item_id: &'a mut (dyn FnMut() -> String + Send),
    /// The items of the answer so far, by their index in the stream.
    pub(crate) items: BTreeMap<u32, AnswerItemState>,
    /// Whether pieces are emitted while they arrive. False after the first script: later pieces are
    /// emitted after its result.
    pub(crate) emit_live: bool,
    /// The ids of all items for which events were emitted.
    pub(crate) emitted_ids: Vec<String>,
    /// Number of retries of the request.
    pub(crate) retries: u32,
    /// Where the answer ends, if it ends after a block.
    pub(crate) cut: Option<AnswerCut>,
    pub(crate) answer: TurnAnswer,
}

/// The state of one item of the answer.
#[derive(Default)]
pub(crate) struct AnswerItemState {
    pieces: Vec<PieceWithItemId>,
    detector: BlockDetector,
    /// All text of the item.
    full_text: String,
    /// Length of the segments of the text that were handled, in bytes.
    handled_len: usize,
    /// The text since the last script block.
    pub(crate) pending_text: String,
    /// Reasoning in the text, with its tags, that is not a piece yet.
    tagged_reasoning: String,
    /// The item id of the events that are being emitted.
    event_item_id: Option<String>,
    /// The reasoning text that no `ItemCompleted` event contains yet.
    reasoning: String,
    /// Whether `ItemCompleted` was emitted for the reasoning before the provider reported its end,
    /// because another item began.
    completed_early: bool,
    /// Whether the provider reported the end of the item.
    done: bool,
}

impl AnswerReader<'_> {
    /// Handles one event of the stream.
    pub(crate) fn handle_event(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Text { item_index, text } => self.push_text(item_index, &text),
            ModelEvent::Reasoning {
                item_index, text, ..
            } => self.push_reasoning(item_index, text),
            ModelEvent::CallStarted {
                item_index,
                call_id,
                name,
                kind,
            } => {
                let is_script = self.script_tool.is_some_and(|script| script.name == name);
                if is_script || self.is_in_block() {
                    self.emit_live = false;
                } else if self.emit_live {
                    self.complete_reasoning(item_index);
                    let call = FunctionCall {
                        call_id,
                        name,
                        arguments: String::new(),
                        kind,
                        native: None,
                    };
                    self.emit_started(item_index, ConversationItem::FunctionCall(call).into());
                }
            }
            ModelEvent::CallDelta { item_index, text } => self.emit_delta(item_index, text),
            ModelEvent::CallTruncated { item_index, .. } => {
                if let Some(id) = self
                    .items
                    .remove(&item_index)
                    .and_then(|state| state.event_item_id)
                {
                    self.events.emit(RuntimeEvent::ItemDropped { item_id: id });
                }
            }
            ModelEvent::ItemDone { item_index, item } => self.handle_item_done(item_index, item),
            ModelEvent::Usage(usage) => self.answer.usage = Some(usage),
            ModelEvent::Finished { reason, detail } => {
                (self.answer.finish_reason, self.answer.finish_detail) = (Some(reason), detail);
            }
            ModelEvent::Restarted => self.discard(),
            ModelEvent::Retrying {
                error,
                delay: after,
            } => {
                self.discard();
                self.retries += 1;
                let message = retry_note(&error, self.retries, after);
                self.events.emit(RuntimeEvent::Error { message });
            }
            _ => {}
        }
    }

    /// Returns the answer, after the stream has ended or reading was stopped.
    pub(crate) fn finish(mut self) -> TurnAnswer {
        let unfinished = self.items.iter().filter(|(_, state)| !state.done);
        let unfinished: Vec<_> = unfinished
            .map(|(item_index, state)| (*item_index, state.full_text.clone()))
            .collect();
        for (item_index, mut raw) in unfinished {
            self.finish_text(item_index);
            raw.truncate(self.kept_text_len(item_index).unwrap_or(raw.len()));
            if !raw.trim().is_empty() {
                self.answer
                    .request_items
                    .push(ConversationItem::message(MessageRole::Assistant, raw));
            }
        }
        self.answer.pieces = std::mem::take(&mut self.items)
            .into_values()
            .flat_map(|state| state.pieces)
            .collect();
        // In a truncated answer, an unclosed block is text and not a script.
        let truncated = !matches!(
            self.answer.finish_reason,
            Some(FinishReason::Stop | FinishReason::ToolCalls)
        );
        for emitted in &mut self.answer.pieces {
            if let AnswerPiece::Script(AnswerScript {
                form: AnswerScriptForm::UnclosedBlock,
                item,
                ..
            }) = &mut emitted.piece
                && truncated
            {
                emitted.piece = AnswerPiece::Text(std::mem::take(&mut item.source_code));
            }
        }
        self.answer
    }

    /// Adds text to an item and handles the segments that it completes.
    fn push_text(&mut self, item_index: u32, text: &str) {
        if self.is_after_cut(item_index) {
            return;
        }
        let state = self.items.entry(item_index).or_default();
        state.full_text.push_str(text);
        let segments = state.detector.push(text);
        self.handle_segments(item_index, segments, AnswerScriptForm::Block);
    }

    /// Handles segments of an item. Malformed blocks get this form.
    fn handle_segments(&mut self, item_index: u32, segments: Vec<Segment>, form: AnswerScriptForm) {
        for segment in segments {
            let state = self.items.entry(item_index).or_default();
            state.handled_len += segment.raw().len();
            let text_len = state.handled_len;
            if self.drop_after_cut(item_index, &segment) {
                continue;
            }
            if !matches!(segment, Segment::Reasoning(_)) {
                self.end_tagged_reasoning(item_index);
            }
            match segment {
                Segment::Text(text) => self.push_plain_text(item_index, &text),
                Segment::Reasoning(text) => {
                    self.end_plain_text(item_index);
                    let state = self.items.entry(item_index).or_default();
                    state.tagged_reasoning.push_str(&text);
                }
                Segment::EndOfReasoning(_) => self.reclassify_as_reasoning(item_index),
                Segment::Script(block) => {
                    let language = block.language();
                    self.end_plain_text(item_index);
                    let (call_id, form) = (new_id("call"), AnswerScriptForm::Block);
                    let mut script = self.build_script(block.code, &call_id, form, None);
                    script.item.language = language.to_owned();
                    self.push_script(item_index, script);
                    if self.after_block == AfterBlock::Stop {
                        self.cut = Some(AnswerCut {
                            item_index,
                            text_len,
                            dropped_text: String::new(),
                        });
                    }
                }
                Segment::Malformed { raw, problem } => {
                    self.end_plain_text(item_index);
                    let error = Some(malformed_block_error(problem));
                    let script = self.build_script(raw, &new_id("call"), form, error);
                    self.push_script(item_index, script);
                }
            }
        }
    }

    /// Adds text outside of script blocks, and emits it if pieces are emitted live.
    fn push_plain_text(&mut self, item_index: u32, text: &str) {
        let live = self.emit_live;
        self.complete_reasoning(item_index);
        let state = self.items.entry(item_index).or_default();
        state.pending_text.push_str(text);
        if !live || state.pending_text.trim().is_empty() {
            return;
        }
        let mut delta = text.to_owned();
        if state.event_item_id.is_none() {
            delta = state.pending_text.clone();
            self.emit_started(
                item_index,
                ConversationItem::message(MessageRole::Assistant, "").into(),
            );
        }
        self.emit_delta(item_index, delta);
    }

    /// Ends the current text of an item and makes it a piece.
    fn end_plain_text(&mut self, item_index: u32) {
        let state = self.items.entry(item_index).or_default();
        let (text, id) = (
            std::mem::take(&mut state.pending_text),
            state.event_item_id.take(),
        );
        if text.trim().is_empty() {
            // Reasoning or a call whose end did not arrive.
            if let Some(item_id) = id {
                self.events.emit(RuntimeEvent::ItemDropped { item_id });
            }
            return;
        }
        if let Some(item_id) = id.clone() {
            let item = ConversationItem::message(MessageRole::Assistant, text.clone()).into();
            self.events
                .emit(RuntimeEvent::ItemCompleted { item_id, item });
        }
        state.pieces.push(PieceWithItemId {
            piece: AnswerPiece::Text(text),
            item_id: id,
        });
    }

    /// Makes reasoning that was tagged in the text a piece.
    fn end_tagged_reasoning(&mut self, item_index: u32) {
        let state = self.items.entry(item_index).or_default();
        let raw = std::mem::take(&mut state.tagged_reasoning);
        let text = reasoning_text(&raw).to_owned();
        if text.is_empty() {
            return;
        }
        let reasoning = ConversationItem::Reasoning(Reasoning {
            content: vec![text],
            ..Reasoning::default()
        });
        if self.emit_live {
            let started = ConversationItem::Reasoning(Reasoning::default());
            self.emit_started(item_index, started.into());
        }
        let state = self.items.entry(item_index).or_default();
        let item_id = state.event_item_id.take();
        if let Some(item_id) = item_id.clone() {
            let item = reasoning.clone().into();
            self.events
                .emit(RuntimeEvent::ItemCompleted { item_id, item });
        }
        state.pieces.push(PieceWithItemId {
            piece: AnswerPiece::Other(reasoning),
            item_id,
        });
    }

    /// Reclassifies the item's text so far as reasoning. Called at a closing reasoning tag without
    /// an opening one: the chat template put the opening tag into the prompt. No script in this
    /// text runs.
    fn reclassify_as_reasoning(&mut self, item_index: u32) {
        self.end_plain_text(item_index);
        let state = self.items.entry(item_index).or_default();
        for emitted in &mut state.pieces {
            let text = match &mut emitted.piece {
                AnswerPiece::Text(text) => std::mem::take(text),
                AnswerPiece::Script(script) => std::mem::take(&mut script.item.source_code),
                AnswerPiece::Other(_) | AnswerPiece::Call(_) => continue,
            };
            emitted.piece = AnswerPiece::Other(ConversationItem::Reasoning(Reasoning {
                content: vec![text],
                ..Reasoning::default()
            }));
        }
    }

    fn push_script(&mut self, item_index: u32, script: AnswerScript) {
        self.emit_live = false;
        let state = self.items.entry(item_index).or_default();
        state.pieces.push(PieceWithItemId {
            piece: AnswerPiece::Script(script),
            item_id: None,
        });
    }

    fn build_script(
        &self,
        code: String,
        call_id: &str,
        form: AnswerScriptForm,
        error: Option<ScriptError>,
    ) -> AnswerScript {
        let mut item = self.harness.new_script_call(&code, call_id);
        if error.is_some() {
            item.status = RunStatus::Rejected;
        }
        AnswerScript {
            item,
            form,
            error: error.map(Box::new),
            timeout: None,
            resumes_run: named_run_to_resume(None, &code),
        }
    }

    fn push_reasoning(&mut self, item_index: u32, text: String) {
        if !self.emit_live || text.is_empty() {
            return;
        }
        let state = self.items.entry(item_index).or_default();
        let restarted = state.completed_early && state.reasoning.is_empty();
        state.reasoning.push_str(&text);
        if state.event_item_id.is_none() || restarted {
            self.emit_started(
                item_index,
                ConversationItem::Reasoning(Reasoning::default()).into(),
            );
        }
        self.emit_delta(item_index, text);
    }

    /// Emits `ItemCompleted` for all open reasoning, except that of the item `except`, which
    /// begins. Some APIs report the end of reasoning only at the end of the answer.
    fn complete_reasoning(&mut self, except: u32) {
        let others = self
            .items
            .iter_mut()
            .filter(|(item_index, _)| **item_index != except);
        for (_, state) in others.filter(|(_, state)| !state.reasoning.is_empty()) {
            if let Some(item_id) = state.event_item_id.clone() {
                let item = reasoning_item(std::mem::take(&mut state.reasoning));
                state.completed_early = true;
                self.events
                    .emit(RuntimeEvent::ItemCompleted { item_id, item });
            }
        }
    }

    fn emit_started(&mut self, item_index: u32, started: TurnItem) {
        let id = (self.next_item_id)();
        self.emitted_ids.push(id.clone());
        self.items.entry(item_index).or_default().event_item_id = Some(id.clone());
        self.events.emit(RuntimeEvent::ItemStarted {
            item_id: id,
            item: started,
        });
    }

    fn emit_delta(&mut self, item_index: u32, delta: String) {
        if let Some(id) = self
            .items
            .get(&item_index)
            .and_then(|state| state.event_item_id.clone())
        {
            self.events
                .emit(RuntimeEvent::ItemUpdated { item_id: id, delta });
        }
    }

    fn handle_item_done(&mut self, item_index: u32, done: ConversationItem) {
        if self.is_after_cut(item_index) {
            return;
        }
        match done {
            ConversationItem::Message(message) => {
                let text = message.text();
                let received = self
                    .items
                    .get(&item_index)
                    .map_or(0, |state| state.full_text.len());
                // Text that did not arrive in deltas.
                if let Some(rest) = text.get(received..).filter(|rest| !rest.is_empty()) {
                    self.push_text(item_index, rest);
                }
                self.finish_text(item_index);
                let kept = self.kept_text_len(item_index);
                self.answer
                    .request_items
                    .push(match kept.and_then(|len| text.get(..len)) {
                        Some(kept) => ConversationItem::message(MessageRole::Assistant, kept),
                        None => ConversationItem::Message(message),
                    });
            }
            ConversationItem::FunctionCall(call) => {
                self.answer
                    .request_items
                    .push(ConversationItem::FunctionCall(call.clone()));
                self.handle_call(item_index, call);
            }
            other => {
                self.answer.request_items.push(other.clone());
                let visible = matches!(
                    &other,
                    ConversationItem::Reasoning(reasoning)
                        if !(reasoning.summary.is_empty() && reasoning.content.is_empty())
                );
                if visible && self.needs_start_event(item_index) {
                    self.emit_started(
                        item_index,
                        ConversationItem::Reasoning(Reasoning::default()).into(),
                    );
                }
                self.complete_item(item_index, other.clone().into(), AnswerPiece::Other(other));
            }
        }
    }

    /// Returns whether a block is open at the end of any item's text.
    fn is_in_block(&self) -> bool {
        self.items
            .values()
            .any(|state| state.detector.is_in_block())
    }

    /// Returns whether events are emitted live and none was emitted for the item yet.
    fn needs_start_event(&self, item_index: u32) -> bool {
        self.emit_live
            && self
                .items
                .get(&item_index)
                .is_none_or(|state| state.event_item_id.is_none())
    }

    fn finish_text(&mut self, item_index: u32) {
        let state = self.items.entry(item_index).or_default();
        state.done = true;
        let segments = std::mem::take(&mut state.detector).finish();
        self.handle_segments(item_index, segments, AnswerScriptForm::UnclosedBlock);
        self.end_tagged_reasoning(item_index);
        self.end_plain_text(item_index);
    }

    fn handle_call(&mut self, item_index: u32, call: FunctionCall) {
        let script = self.script_tool.filter(|script| script.name == call.name);
        match script.and_then(|_| parse_script_call(&call)) {
            Some(args) => {
                let mut script =
                    self.build_script(args.code, &call.call_id, AnswerScriptForm::Call, None);
                script.timeout = args.timeout;
                script.resumes_run = named_run_to_resume(args.resume, &script.item.source_code);
                self.emit_live = false;
                let state = self.items.entry(item_index).or_default();
                state.done = true;
                state.pieces.push(PieceWithItemId {
                    piece: AnswerPiece::Script(script),
                    item_id: None,
                });
            }
            None => {
                let whole = TurnItem::from(ConversationItem::FunctionCall(call.clone()));
                self.emit_live &= !self.is_in_block();
                if self.needs_start_event(item_index) {
                    self.emit_started(item_index, whole.clone());
                }
                self.complete_item(item_index, whole, AnswerPiece::Call(call));
            }
        }
    }

    /// Ends an item: emits `ItemCompleted` and makes the item a piece.
    fn complete_item(&mut self, item_index: u32, whole: TurnItem, piece: AnswerPiece) {
        let state = self.items.entry(item_index).or_default();
        let (id, rest) = (
            state.event_item_id.take(),
            std::mem::take(&mut state.reasoning),
        );
        state.done = true;
        let whole = match state.completed_early {
            false => Some(whole),
            // Only the reasoning that followed the early event.
            true => (!rest.is_empty()).then(|| reasoning_item(rest)),
        };
        if let (Some(item_id), Some(whole)) = (id.clone(), whole) {
            let item = whole.without_native();
            self.events
                .emit(RuntimeEvent::ItemCompleted { item_id, item });
        }
        state.pieces.push(PieceWithItemId { piece, item_id: id });
    }

    /// Discards everything received so far: the answer failed, or starts again.
    pub(crate) fn discard(&mut self) {
        for item_id in std::mem::take(&mut self.emitted_ids) {
            self.events.emit(RuntimeEvent::ItemDropped { item_id });
        }
        self.items.clear();
        self.cut = None;
        self.answer = TurnAnswer::default();
        self.emit_live = true;
    }
}

/// Returns a reasoning item with this text.
fn reasoning_item(text: String) -> TurnItem {
    ConversationItem::Reasoning(Reasoning {
        content: vec![text],
        ..Reasoning::default()
    })
    .into()
}
