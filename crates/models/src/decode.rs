//! From an answer's bytes to events. No I/O: whoever has bytes, live or recorded, feeds them.

use selvedge_protocol::{CallKind, Item, Origin, WireApi};

use crate::sse::{Events, MAX_EVENT_BYTES};
use crate::{ModelError, ModelEvent, ReasoningView, chat, messages, responses};

/// The most text an answer may have in all.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// The most items it may have.
const MAX_ITEMS: usize = 4096;

/// Decodes one answer, fed in pieces cut anywhere: a stream of server-sent events, or one JSON body.
///
/// ```
/// use selvedge_models::{Decoder, ModelEvent};
/// use selvedge_protocol::{Origin, WireApi};
///
/// let origin = Origin { wire: WireApi::Chat, provider: "local".into(), model: "m".into() };
/// let mut decoder = Decoder::new(origin);
/// let mut events = Vec::new();
/// decoder.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"Hel", &mut events)?;
/// decoder.feed(b"lo\"}}]}\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", &mut events)?;
/// decoder.finish(&mut events)?;
/// assert!(events.contains(&ModelEvent::Text { item: 0, text: "Hello".into() }));
/// # Ok::<(), selvedge_models::ModelError>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    framing: Framing,
    answer: Box<dyn AnswerDecoder>,
    allowance: Allowance,
}

#[derive(Debug)]
enum Framing {
    /// Nothing but white space so far.
    Unknown,
    Events(Events),
    /// The server did not stream: everything is kept until the end.
    Body(Vec<u8>),
}

/// An answer of one API as far as it came.
pub(crate) trait AnswerDecoder: std::fmt::Debug + Send + Sync {
    /// Takes one event of a stream.
    fn event(&mut self, name: &[u8], data: &[u8], out: &mut Emitter<'_>) -> Result<(), ModelError>;
    /// Takes an answer that was not streamed.
    fn body(&mut self, body: &[u8], out: &mut Emitter<'_>) -> Result<(), ModelError>;
    /// There is no more. An answer that is not complete is an error.
    fn end(&mut self, out: &mut Emitter<'_>) -> Result<(), ModelError>;
    fn is_finished(&self) -> bool;
    fn may_end(&self) -> bool {
        self.is_finished()
    }
}

/// Takes the events of an answer, and checks how much it holds.
pub(crate) struct Emitter<'a> {
    events: &'a mut Vec<ModelEvent>,
    allowance: &'a mut Allowance,
}

impl Emitter<'_> {
    pub(crate) fn push(&mut self, event: ModelEvent) {
        self.events.push(event);
    }

    pub(crate) fn started(&mut self, id: Option<&str>, model: Option<&str>) {
        let (id, model) = (id.map(str::to_owned), model.map(str::to_owned));
        self.push(ModelEvent::Started { id, model });
    }

    /// Tells a piece of text; an empty one is not told. The same holds for those below.
    pub(crate) fn text(&mut self, item: u32, text: &str) {
        if !text.is_empty() {
            let text = text.to_owned();
            self.push(ModelEvent::Text { item, text });
        }
    }

    pub(crate) fn reasoning(&mut self, item: u32, view: ReasoningView, text: &str) {
        if !text.is_empty() {
            let text = text.to_owned();
            self.push(ModelEvent::Reasoning { item, view, text });
        }
    }

    pub(crate) fn call_delta(&mut self, item: u32, text: &str) {
        if !text.is_empty() {
            let text = text.to_owned();
            self.push(ModelEvent::CallDelta { item, text });
        }
    }

    pub(crate) fn call_started(&mut self, item: u32, call_id: &str, name: &str, kind: CallKind) {
        self.push(ModelEvent::CallStarted {
            item,
            call_id: call_id.to_owned(),
            name: name.to_owned(),
            kind,
        });
    }

    pub(crate) fn done(&mut self, item: u32, done: Item) {
        self.push(ModelEvent::ItemDone { item, done });
    }

    /// Takes note of text that is kept.
    pub(crate) fn keep(&mut self, bytes: usize) -> Result<(), ModelError> {
        let left = self.allowance.bytes.checked_sub(bytes);
        self.allowance.bytes = left.ok_or_else(|| {
            let most = MAX_ANSWER_BYTES >> 20;
            ModelError::protocol(format!("the answer is larger than {most} MB"))
        })?;
        Ok(())
    }

    /// Takes note of one more item.
    pub(crate) fn item(&mut self) -> Result<(), ModelError> {
        let left = self.allowance.items.checked_sub(1);
        self.allowance.items = left.ok_or_else(|| {
            ModelError::protocol(format!("the answer has more than {MAX_ITEMS} items"))
        })?;
        Ok(())
    }
}

/// How much more an answer may hold: what arrives must not fill the memory.
#[derive(Debug)]
struct Allowance {
    bytes: usize,
    items: usize,
}

impl Decoder {
    /// A decoder for an answer from there.
    pub fn new(origin: Origin) -> Self {
        Self {
            framing: Framing::Unknown,
            answer: match origin.wire {
                WireApi::Responses => Box::new(responses::Answer::new(origin)),
                WireApi::Chat => Box::new(chat::Answer::new(origin)),
                WireApi::Messages => Box::new(messages::Answer::new(origin)),
            },
            allowance: Allowance {
                bytes: MAX_ANSWER_BYTES,
                items: MAX_ITEMS,
            },
        }
    }

    /// Takes more bytes and adds what they tell to `events`. After an error the answer is over.
    pub fn feed(&mut self, bytes: &[u8], events: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        let mut bytes = bytes;
        if let Framing::Unknown = self.framing {
            bytes = bytes.trim_ascii_start();
            self.framing = match bytes.first() {
                None => return Ok(()),
                Some(b'{') => Framing::Body(Vec::new()),
                Some(_) => Framing::Events(Events::default()),
            };
        }
        let (answer, allowance) = (&mut self.answer, &mut self.allowance);
        let mut out = Emitter { events, allowance };
        match &mut self.framing {
            Framing::Unknown => Ok(()),
            Framing::Events(parser) => {
                parser.feed(bytes, |name, data| event(answer, name, data, &mut out))
            }
            Framing::Body(body) if body.len() + bytes.len() > MAX_EVENT_BYTES => {
                Err(crate::sse::TooLarge.into())
            }
            Framing::Body(body) => {
                body.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// There are no more bytes. An answer that is not complete is an error.
    pub fn finish(&mut self, events: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        let (answer, allowance) = (&mut self.answer, &mut self.allowance);
        let mut out = Emitter { events, allowance };
        match &mut self.framing {
            Framing::Unknown => {}
            Framing::Events(parser) => {
                parser.finish(|name, data| event(answer, name, data, &mut out))?;
            }
            Framing::Body(body) => answer.body(body, &mut out)?,
        }
        answer.end(&mut out)
    }

    /// Whether the answer is complete, and nothing that still comes is waited for.
    pub fn is_finished(&self) -> bool {
        self.answer.is_finished()
    }

    /// Whether the answer would be complete if nothing more came: only numbers about it may be missing.
    pub fn may_end(&self) -> bool {
        self.answer.may_end()
    }
}

/// Hands an event on, unless it is empty, as a comment would be.
fn event(
    answer: &mut Box<dyn AnswerDecoder>,
    name: &[u8],
    data: &[u8],
    out: &mut Emitter<'_>,
) -> Result<(), ModelError> {
    match data.trim_ascii() {
        b"" => Ok(()),
        data => answer.event(name, data, out),
    }
}

/// The data of an event that only says that there are no more.
pub(crate) const DONE: &[u8] = b"[DONE]";

/// The error of an answer that broke off.
pub(crate) fn broke_off() -> ModelError {
    ModelError::protocol("the answer ended before it was complete")
}
