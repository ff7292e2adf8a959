//! Decodes the bytes of an answer to events. It does no I/O.

use selvedge_protocol::{CallKind, Item, Origin, WireApi};

use crate::sse::{Events, MAX_EVENT_BYTES};
use crate::{ModelError, ModelEvent, ReasoningView, chat, messages, responses};

/// Largest total size of an answer's texts, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Most items of an answer.
const MAX_ITEMS: usize = 4096;

/// Decodes one answer: a stream of server-sent events, or one JSON body. The chunks that it is fed
/// may end anywhere.
///
/// ```
/// use selvedge_models::{Decoder, ModelEvent};
/// use selvedge_protocol::{Origin, WireApi};
///
/// let origin = Origin { wire: WireApi::Chat, provider: "local".into(), model: "m".into() };
/// let mut decoder = Decoder::new(origin);
/// let mut events = Vec::new();
/// decoder.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"Hel", &mut events)?;
/// decoder.feed(b"lo\"}}]}\n\n", &mut events)?;
/// let last = b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
/// decoder.feed(last, &mut events)?;
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

/// How the answer is transmitted; its first byte decides.
#[derive(Debug)]
enum Framing {
    /// Only white space was received so far.
    Unknown,
    Events(Events),
    /// The server does not stream. The body is decoded at its end.
    Body(Vec<u8>),
}

/// Decodes the answer of one API.
pub(crate) trait AnswerDecoder: std::fmt::Debug + Send + Sync {
    /// Decodes one event of a stream.
    fn event(&mut self, name: &[u8], data: &[u8], out: &mut Emitter<'_>) -> Result<(), ModelError>;
    /// Decodes an answer that was not streamed.
    fn body(&mut self, body: &[u8], out: &mut Emitter<'_>) -> Result<(), ModelError>;
    /// Handles the end of the input. Fails if the answer is incomplete.
    fn end(&mut self, out: &mut Emitter<'_>) -> Result<(), ModelError>;
    /// Whether the answer is complete and no further input is needed.
    fn is_finished(&self) -> bool;
    /// Whether [`end`](Self::end) would succeed now.
    fn may_end(&self) -> bool {
        self.is_finished()
    }
}

/// Collects the events of an answer, and enforces its size limits.
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

    /// Emits text. Like the two methods below, it emits nothing if the text is empty.
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

    /// Counts bytes of text that are stored. Fails if the answer is too large.
    pub(crate) fn keep(&mut self, bytes: usize) -> Result<(), ModelError> {
        let left = self.allowance.bytes.checked_sub(bytes);
        self.allowance.bytes = left.ok_or_else(|| {
            let limit = MAX_ANSWER_BYTES >> 20;
            ModelError::protocol(format!("the answer is larger than {limit} MB"))
        })?;
        Ok(())
    }

    /// Counts one item. Fails if the answer has too many.
    pub(crate) fn item(&mut self) -> Result<(), ModelError> {
        let left = self.allowance.items.checked_sub(1);
        self.allowance.items = left.ok_or_else(|| {
            ModelError::protocol(format!("the answer has more than {MAX_ITEMS} items"))
        })?;
        Ok(())
    }
}

/// What is left of an answer's size limits.
#[derive(Debug)]
struct Allowance {
    bytes: usize,
    items: usize,
}

impl Decoder {
    /// Creates a decoder for an answer of this API, provider and model.
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

    /// Decodes more bytes and appends their events. After an error, do not call it again.
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

    /// Decodes the end of the input and appends the last events. Fails if the answer is
    /// incomplete.
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

    /// Whether the answer is complete and no further input is needed.
    pub fn is_finished(&self) -> bool {
        self.answer.is_finished()
    }

    /// Whether the answer would be complete if the input ended now. Usage numbers may still be
    /// missing.
    pub fn may_end(&self) -> bool {
        self.answer.may_end()
    }
}

/// Decodes an event, unless it has no data.
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

/// Data of the event that marks the end of a stream.
pub(crate) const DONE: &[u8] = b"[DONE]";

/// Returns the error for an answer that ended early.
pub(crate) fn broke_off() -> ModelError {
    ModelError::protocol("the answer ended before it was complete")
}
