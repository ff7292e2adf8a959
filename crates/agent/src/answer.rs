//! Reads a streamed answer: emits events while it arrives, and splits it into text, scripts and
//! calls in the order in which the model produced them.

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge_models::{ModelEvent, Tool};
use selvedge_protocol::{
    CallKind, ErrorCode, Event, EventSink, FinishReason, FunctionCall, Item, Phase, Reasoning,
    Role, RunStatus, ScriptError, ScriptToolCall, TurnItem, Usage, new_id,
};
use selvedge_script::detect::{Detector, Segment};
use selvedge_script::{Harness, Pragma};
use serde_json::Value;

use crate::AfterBlock;

/// A piece of an answer.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Reasoning, or an item that only its provider understands.
    Kept(Item),
    /// Text outside of script blocks.
    Said(String),
    Script(Written),
    /// A structured call.
    Call(FunctionCall),
}

impl Piece {
    /// Returns whether the piece has to be run.
    pub(crate) fn asks(&self) -> bool {
        matches!(self, Self::Script(_) | Self::Call(_))
    }
}

/// A script in an answer.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) item: ScriptToolCall,
    pub(crate) form: Form,
    /// The reason why the script cannot run, if the block was malformed.
    pub(crate) trouble: Option<ScriptError>,
    pub(crate) timeout: Option<Duration>,
    /// The failed run that the script resumes.
    pub(crate) resume: Option<String>,
}

/// The form in which a model wrote a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Block,
    /// A block without a closing mark.
    OpenBlock,
    /// A call of the tool `script`.
    Call,
}

/// A piece, and the item id in the events that were emitted for it while the answer was streamed.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) piece: Piece,
    pub(crate) id: Option<String>,
}

/// A complete answer of the model.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) pieces: Vec<Told>,
    /// The items of the answer, as later requests repeat them.
    pub(crate) wire: Vec<Item>,
    pub(crate) usage: Option<Usage>,
    /// Why the model stopped; `None` if the answer was not read to its end.
    pub(crate) finish: Option<FinishReason>,
    /// The provider's explanation of the finish reason.
    pub(crate) detail: Option<String>,
}

/// Whether to continue reading the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listen {
    On,
    NoMore,
}

/// Reads the events of a streamed answer.
pub(crate) struct Listener<'a> {
    pub(crate) harness: &'a Harness,
    /// The tool `script`, if it was offered.
    pub(crate) script: Option<&'a Tool>,
    pub(crate) after_block: AfterBlock,
    pub(crate) events: &'a EventSink,
    /// Returns a new item id for events.
    pub(crate) name: &'a mut (dyn FnMut() -> String + Send),
    /// The items of the answer so far, by their index in the stream.
    pub(crate) parts: BTreeMap<u32, Part>,
    /// Whether pieces are emitted while they arrive. Pieces after a script are emitted after its
    /// result instead.
    pub(crate) live: bool,
    /// The ids of all items for which events were emitted.
    pub(crate) told: Vec<String>,
    pub(crate) answer: Answer,
}

/// The state of one item of the answer.
#[derive(Default)]
pub(crate) struct Part {
    pieces: Vec<Told>,
    detector: Detector,
    /// All text of the item.
    raw: String,
    /// The text since the last script block.
    saying: String,
    /// The item id of the events that are being emitted.
    id: Option<String>,
    /// Reasoning text since an `ItemCompleted` event was last emitted.
    thinking: String,
    /// `ItemCompleted` was emitted for the reasoning when another item began. The provider may
    /// report its end much later.
    told_early: bool,
    /// Whether the provider reported the end of the item.
    done: bool,
}

impl Listener<'_> {
    /// Handles one event of the stream.
    pub(crate) fn hear(&mut self, event: ModelEvent) -> Listen {
        match event {
            ModelEvent::Text { item, text } => return self.text(item, &text),
            ModelEvent::Reasoning { item, text, .. } => self.thinking(item, text),
            ModelEvent::CallStarted {
                item,
                call_id,
                name,
                kind,
            } => {
                if self.script.is_some_and(|script| script.name == name) {
                    self.live = false;
                } else if self.live {
                    self.end_thoughts(item);
                    let call = FunctionCall {
                        call_id,
                        name,
                        arguments: String::new(),
                        kind,
                        native: None,
                    };
                    self.start(item, Item::FunctionCall(call).into());
                }
            }
            ModelEvent::CallDelta { item, text } => self.update(item, text),
            ModelEvent::CallCut { item, .. } => {
                if let Some(id) = self.parts.remove(&item).and_then(|part| part.id) {
                    self.events.emit(Event::ItemDropped { item_id: id });
                }
            }
            ModelEvent::ItemDone { item, done } => return self.done(item, done),
            ModelEvent::Usage(usage) => self.answer.usage = Some(usage),
            ModelEvent::Finished { reason, detail } => {
                (self.answer.finish, self.answer.detail) = (Some(reason), detail);
            }
            ModelEvent::Restarted => self.forget(),
            ModelEvent::Retrying { error, after } => {
                self.forget();
                let seconds = after.as_secs_f64();
                self.events.emit(Event::Error {
                    message: format!("{error}; retrying in {seconds:.1} s"),
                });
            }
            _ => {}
        }
        Listen::On
    }

    /// Returns the answer, after the stream has ended or reading was stopped.
    pub(crate) fn conclude(mut self) -> Answer {
        let unfinished = self.parts.iter().filter(|(_, part)| !part.done);
        let unfinished: Vec<_> = unfinished
            .map(|(item, part)| (*item, part.raw.clone()))
            .collect();
        for (item, raw) in unfinished {
            self.finish_text(item);
            if !raw.trim().is_empty() {
                self.answer.wire.push(Item::message(Role::Assistant, raw));
            }
        }
        self.answer.pieces = std::mem::take(&mut self.parts)
            .into_values()
            .flat_map(|part| part.pieces)
            .collect();
        // In a truncated answer, an unclosed block is text and not a script.
        let truncated = !matches!(
            self.answer.finish,
            Some(FinishReason::Stop | FinishReason::ToolCalls)
        );
        for emitted in &mut self.answer.pieces {
            if let Piece::Script(Written {
                form: Form::OpenBlock,
                item,
                ..
            }) = &mut emitted.piece
                && truncated
            {
                emitted.piece = Piece::Said(std::mem::take(&mut item.source_code));
            }
        }
        self.answer
    }

    /// Adds text to an item and handles the segments that it completes.
    fn text(&mut self, item: u32, text: &str) -> Listen {
        let part = self.parts.entry(item).or_default();
        part.raw.push_str(text);
        let segments = part.detector.push(text);
        self.segments(item, segments, Form::Block)
    }

    fn segments(&mut self, item: u32, segments: Vec<Segment>, form: Form) -> Listen {
        for segment in segments {
            match segment {
                Segment::Text(text) => self.say(item, &text),
                Segment::Script(block) => {
                    self.close(item);
                    self.script(item, block.code, form, None);
                    if self.after_block == AfterBlock::Stop {
                        self.forget_behind(item, &block.raw);
                        return Listen::NoMore;
                    }
                }
                Segment::Malformed { raw, problem } => {
                    self.close(item);
                    self.script(item, raw, form, Some(malformed(problem)));
                }
            }
        }
        Listen::On
    }

    /// Removes the text after a block from the answer.
    fn forget_behind(&mut self, item: u32, block: &str) {
        let part = self.parts.entry(item).or_default();
        if let Some(start) = part.raw.rfind(block) {
            part.raw.truncate(start + block.len());
        }
        part.detector = Detector::default();
    }

    /// Adds text outside of script blocks, and emits it if pieces are emitted live.
    fn say(&mut self, item: u32, text: &str) {
        let live = self.live;
        self.end_thoughts(item);
        let part = self.parts.entry(item).or_default();
        part.saying.push_str(text);
        if !live || part.saying.trim().is_empty() {
            return;
        }
        let mut delta = text.to_owned();
        if part.id.is_none() {
            delta = part.saying.clone();
            self.start(item, Item::message(Role::Assistant, "").into());
        }
        self.update(item, delta);
    }

    /// Ends the current text of an item and makes it a piece.
    fn close(&mut self, item: u32) {
        let part = self.parts.entry(item).or_default();
        let (text, id) = (std::mem::take(&mut part.saying), part.id.take());
        if text.trim().is_empty() {
            // Reasoning or a call whose end did not arrive.
            if let Some(item_id) = id {
                self.events.emit(Event::ItemDropped { item_id });
            }
            return;
        }
        if let Some(item_id) = id.clone() {
            let item = Item::message(Role::Assistant, text.clone()).into();
            self.events.emit(Event::ItemCompleted { item_id, item });
        }
        part.pieces.push(Told {
            piece: Piece::Said(text),
            id,
        });
    }

    fn script(&mut self, item: u32, code: String, form: Form, trouble: Option<ScriptError>) {
        let call_id = new_id("call");
        let piece = Piece::Script(self.written(code, &call_id, form, trouble));
        self.live = false;
        let part = self.parts.entry(item).or_default();
        part.pieces.push(Told { piece, id: None });
    }

    fn written(
        &self,
        code: String,
        call_id: &str,
        form: Form,
        trouble: Option<ScriptError>,
    ) -> Written {
        let mut item = self.harness.item(&code, call_id);
        if trouble.is_some() {
            item.status = RunStatus::Rejected;
        }
        Written {
            item,
            form,
            trouble,
            timeout: None,
            resume: resume_of(&code),
        }
    }

    fn thinking(&mut self, item: u32, text: String) {
        if !self.live || text.is_empty() {
            return;
        }
        let part = self.parts.entry(item).or_default();
        let restarted = part.told_early && part.thinking.is_empty();
        part.thinking.push_str(&text);
        if part.id.is_none() || restarted {
            self.start(item, Item::Reasoning(Reasoning::default()).into());
        }
        self.update(item, text);
    }

    /// Emits `ItemCompleted` for the reasoning of all other items when an item begins. Some APIs
    /// report the end of reasoning only at the end of the answer.
    fn end_thoughts(&mut self, except: u32) {
        let others = self.parts.iter_mut().filter(|(item, _)| **item != except);
        for (_, part) in others.filter(|(_, part)| !part.thinking.is_empty()) {
            if let Some(item_id) = part.id.clone() {
                let item = thought(std::mem::take(&mut part.thinking));
                part.told_early = true;
                self.events.emit(Event::ItemCompleted { item_id, item });
            }
        }
    }

    fn start(&mut self, item: u32, started: TurnItem) {
        let id = (self.name)();
        self.told.push(id.clone());
        self.parts.entry(item).or_default().id = Some(id.clone());
        self.events.emit(Event::ItemStarted {
            item_id: id,
            item: started,
        });
    }

    fn update(&mut self, item: u32, delta: String) {
        if let Some(id) = self.parts.get(&item).and_then(|part| part.id.clone()) {
            self.events.emit(Event::ItemUpdated { item_id: id, delta });
        }
    }

    fn done(&mut self, item: u32, done: Item) -> Listen {
        match done {
            Item::Message(message) => {
                let text = message.text();
                let received = self.parts.get(&item).map_or(0, |part| part.raw.len());
                // Text that did not arrive in deltas.
                if let Some(rest) = text.get(received..).filter(|rest| !rest.is_empty())
                    && self.text(item, rest) == Listen::NoMore
                {
                    return Listen::NoMore;
                }
                self.answer.wire.push(Item::Message(message));
                self.finish_text(item);
            }
            Item::FunctionCall(call) => {
                self.answer.wire.push(Item::FunctionCall(call.clone()));
                self.called(item, call);
            }
            other => {
                self.answer.wire.push(other.clone());
                let visible = matches!(
                    &other,
                    Item::Reasoning(reasoning)
                        if !(reasoning.summary.is_empty() && reasoning.content.is_empty())
                );
                if visible && self.untold(item) {
                    self.start(item, Item::Reasoning(Reasoning::default()).into());
                }
                self.complete(item, other.clone().into(), Piece::Kept(other));
            }
        }
        Listen::On
    }

    /// Returns whether events are emitted live and none was emitted for the item yet.
    fn untold(&self, item: u32) -> bool {
        self.live && self.parts.get(&item).is_none_or(|part| part.id.is_none())
    }

    fn finish_text(&mut self, item: u32) {
        let part = self.parts.entry(item).or_default();
        part.done = true;
        let segments = std::mem::take(&mut part.detector).finish();
        self.segments(item, segments, Form::OpenBlock);
        self.close(item);
    }

    fn called(&mut self, item: u32, call: FunctionCall) {
        let script = self.script.filter(|script| script.name == call.name);
        match script.and_then(|_| code_of(&call)) {
            Some(args) => {
                let mut script = self.written(args.code, &call.call_id, Form::Call, None);
                script.timeout = args.timeout;
                script.resume = args.resume.or(script.resume);
                self.live = false;
                let part = self.parts.entry(item).or_default();
                part.done = true;
                part.pieces.push(Told {
                    piece: Piece::Script(script),
                    id: None,
                });
            }
            None => {
                let whole = TurnItem::from(Item::FunctionCall(call.clone()));
                if self.untold(item) {
                    self.start(item, whole.clone());
                }
                self.complete(item, whole, Piece::Call(call));
            }
        }
    }

    /// Ends an item: emits `ItemCompleted` and makes the item a piece.
    fn complete(&mut self, item: u32, whole: TurnItem, piece: Piece) {
        let part = self.parts.entry(item).or_default();
        let (id, rest) = (part.id.take(), std::mem::take(&mut part.thinking));
        part.done = true;
        let whole = match part.told_early {
            false => Some(whole),
            // Only the reasoning that followed the early event.
            true => (!rest.is_empty()).then(|| thought(rest)),
        };
        if let (Some(item_id), Some(whole)) = (id.clone(), whole) {
            let item = whole.shown();
            self.events.emit(Event::ItemCompleted { item_id, item });
        }
        part.pieces.push(Told { piece, id });
    }

    /// Discards everything received so far, because the provider starts the answer again.
    pub(crate) fn forget(&mut self) {
        for item_id in std::mem::take(&mut self.told) {
            self.events.emit(Event::ItemDropped { item_id });
        }
        self.parts.clear();
        self.answer = Answer::default();
        self.live = true;
    }
}

/// The arguments of a call of the tool `script`.
pub(crate) struct Wishes {
    code: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) resume: Option<String>,
}

/// Returns the arguments of a call of `script`, or `None` if they cannot be parsed.
pub(crate) fn code_of(call: &FunctionCall) -> Option<Wishes> {
    if call.kind == CallKind::Freeform {
        return Some(Wishes {
            code: call.arguments.clone(),
            timeout: None,
            resume: None,
        });
    }
    let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
    let code = arguments["code"].as_str()?.to_owned();
    let either = |camel: &str, snake: &str| arguments.get(camel).or(arguments.get(snake)).cloned();
    let timeout = either("timeoutMs", "timeout_ms")
        .and_then(|ms| ms.as_u64())
        .map(Duration::from_millis);
    let resume = arguments["resume"]
        .as_str()
        .filter(|run| !run.is_empty())
        .map(str::to_owned);
    Some(Wishes {
        code,
        timeout,
        resume,
    })
}

/// Returns the run that the script's pragma asks to resume.
pub(crate) fn resume_of(code: &str) -> Option<String> {
    Pragma::read(code).ok().flatten()?.resume
}

/// Returns a reasoning item with this text.
fn thought(text: String) -> TurnItem {
    Item::Reasoning(Reasoning {
        content: vec![text],
        ..Reasoning::default()
    })
    .into()
}

/// Returns the error of a malformed script block.
pub(crate) fn malformed(problem: String) -> ScriptError {
    ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, problem)
}
