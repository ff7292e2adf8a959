//! An answer while it arrives: told live, cut into pieces, kept in the order the model produced it.

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
    Kept(Item),
    Said(String),
    Script(Written),
    Call(FunctionCall),
}

impl Piece {
    pub(crate) fn asks(&self) -> bool {
        matches!(self, Self::Script(_) | Self::Call(_))
    }
}

/// A script in an answer.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) item: ScriptToolCall,
    pub(crate) form: Form,
    /// Why it cannot run, where that is known already.
    pub(crate) trouble: Option<ScriptError>,
    pub(crate) timeout: Option<Duration>,
    /// The run it resumes.
    pub(crate) resume: Option<String>,
}

/// How a script was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Block,
    /// As a block that the text does not close.
    OpenBlock,
    Call,
}

/// A piece, and the name it was told under, where it was.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) piece: Piece,
    pub(crate) id: Option<String>,
}

/// All of an answer.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) pieces: Vec<Told>,
    /// As it goes back to the model.
    pub(crate) wire: Vec<Item>,
    pub(crate) usage: Option<Usage>,
    /// `None` where it was not heard to its end.
    pub(crate) finish: Option<FinishReason>,
    pub(crate) detail: Option<String>,
}

/// Whether there is a reason to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listen {
    On,
    NoMore,
}

/// Hears an answer.
pub(crate) struct Listener<'a> {
    pub(crate) harness: &'a Harness,
    /// The tool `script`, where it was offered.
    pub(crate) script: Option<&'a Tool>,
    pub(crate) after_block: AfterBlock,
    pub(crate) events: &'a EventSink,
    pub(crate) name: &'a mut (dyn FnMut() -> String + Send),
    pub(crate) parts: BTreeMap<u32, Part>,
    /// Whether pieces are told as they come. Behind a script they wait for its result.
    pub(crate) live: bool,
    pub(crate) told: Vec<String>,
    pub(crate) answer: Answer,
}

/// An item of the answer.
#[derive(Default)]
pub(crate) struct Part {
    pieces: Vec<Told>,
    detector: Detector,
    raw: String,
    /// The words being said, and the name they are told under.
    saying: String,
    id: Option<String>,
    /// What it thinks, since it was last told as complete.
    thinking: String,
    /// The thought was told as complete when other words began; its end may come much later.
    told_early: bool,
    done: bool,
}

impl Listener<'_> {
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
                    message: format!("{error}; trying again in {seconds:.1} s"),
                });
            }
            _ => {}
        }
        Listen::On
    }

    /// The answer is over, or is not listened to any more.
    pub(crate) fn conclude(mut self) -> Answer {
        let open = self.parts.iter().filter(|(_, part)| !part.done);
        let open: Vec<_> = open.map(|(item, part)| (*item, part.raw.clone())).collect();
        for (item, raw) in open {
            self.finish_text(item);
            if !raw.trim().is_empty() {
                self.answer.wire.push(Item::message(Role::Assistant, raw));
            }
        }
        self.answer.pieces = std::mem::take(&mut self.parts)
            .into_values()
            .flat_map(|part| part.pieces)
            .collect();
        // What was cut off is what was said so far, not a script.
        let cut = !matches!(
            self.answer.finish,
            Some(FinishReason::Stop | FinishReason::ToolCalls)
        );
        for told in &mut self.answer.pieces {
            if let Piece::Script(Written {
                form: Form::OpenBlock,
                item,
                ..
            }) = &mut told.piece
                && cut
            {
                told.piece = Piece::Said(std::mem::take(&mut item.source_code));
            }
        }
        self.answer
    }

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

    /// What came behind this block is not part of the answer.
    fn forget_behind(&mut self, item: u32, block: &str) {
        let part = self.parts.entry(item).or_default();
        if let Some(start) = part.raw.rfind(block) {
            part.raw.truncate(start + block.len());
        }
        part.detector = Detector::default();
    }

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

    /// The words being said are said.
    fn close(&mut self, item: u32) {
        let part = self.parts.entry(item).or_default();
        let (said, id) = (std::mem::take(&mut part.saying), part.id.take());
        if said.trim().is_empty() {
            // A thought or a call whose end did not come.
            if let Some(item_id) = id {
                self.events.emit(Event::ItemDropped { item_id });
            }
            return;
        }
        if let Some(item_id) = id.clone() {
            let item = Item::message(Role::Assistant, said.clone()).into();
            self.events.emit(Event::ItemCompleted { item_id, item });
        }
        part.pieces.push(Told {
            piece: Piece::Said(said),
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
        let again = part.told_early && part.thinking.is_empty();
        part.thinking.push_str(&text);
        if part.id.is_none() || again {
            self.start(item, Item::Reasoning(Reasoning::default()).into());
        }
        self.update(item, text);
    }

    /// Other words begin: where an API says only at the very end that a thought is over, it is told now.
    fn end_thoughts(&mut self, but: u32) {
        let others = self.parts.iter_mut().filter(|(item, _)| **item != but);
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
                let heard = self.parts.get(&item).map_or(0, |part| part.raw.len());
                // What was not told in pieces comes now.
                if let Some(rest) = text.get(heard..).filter(|rest| !rest.is_empty())
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
            kept => {
                self.answer.wire.push(kept.clone());
                let blank = matches!(&kept, Item::Reasoning(thought) if thought.summary.is_empty() && thought.content.is_empty());
                let shows = matches!(kept, Item::Reasoning(_)) && !blank;
                if shows && self.untold(item) {
                    self.start(item, Item::Reasoning(Reasoning::default()).into());
                }
                self.complete(item, kept.clone().into(), Piece::Kept(kept));
            }
        }
        Listen::On
    }

    /// Whether the item is to be told live, and was not yet.
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
            Some(wishes) => {
                let mut written = self.written(wishes.code, &call.call_id, Form::Call, None);
                written.timeout = wishes.timeout;
                written.resume = wishes.resume.or(written.resume);
                self.live = false;
                let part = self.parts.entry(item).or_default();
                part.done = true;
                part.pieces.push(Told {
                    piece: Piece::Script(written),
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

    fn complete(&mut self, item: u32, whole: TurnItem, piece: Piece) {
        let part = self.parts.entry(item).or_default();
        let (id, rest) = (part.id.take(), std::mem::take(&mut part.thinking));
        part.done = true;
        let whole = match part.told_early {
            false => Some(whole),
            // The rest of it, where there is any.
            true => (!rest.is_empty()).then(|| thought(rest)),
        };
        if let (Some(item_id), Some(whole)) = (id.clone(), whole) {
            let item = whole.shown();
            self.events.emit(Event::ItemCompleted { item_id, item });
        }
        part.pieces.push(Told { piece, id });
    }

    /// Whatever came so far is void.
    pub(crate) fn forget(&mut self) {
        for item_id in std::mem::take(&mut self.told) {
            self.events.emit(Event::ItemDropped { item_id });
        }
        self.parts.clear();
        self.answer = Answer::default();
        self.live = true;
    }
}

/// What a call of `script` wants.
pub(crate) struct Wishes {
    code: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) resume: Option<String>,
}

/// The script of a call; `None` where the arguments cannot be read.
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

/// The run that a script's pragma resumes.
pub(crate) fn resume_of(code: &str) -> Option<String> {
    Pragma::read(code).ok().flatten()?.resume
}

fn thought(text: String) -> TurnItem {
    Item::Reasoning(Reasoning {
        content: vec![text],
        ..Reasoning::default()
    })
    .into()
}

/// The error of something that looks like a script block and is not one.
pub(crate) fn malformed(problem: String) -> ScriptError {
    ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, problem)
}
