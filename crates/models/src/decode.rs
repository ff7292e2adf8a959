//! Decodes the bytes of an answer to events. It does no I/O.

use selvedge_protocol::{ConversationItem, FunctionCallKind, ModelOrigin, WireApi};

use crate::sse::{MAX_EVENT_BYTES, SseParser};
use crate::{ModelError, ModelEvent, ReasoningView, chat, messages, responses};

/// Largest total size of an answer's texts, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Maximum number of items of an answer.
const MAX_ANSWER_ITEMS: usize = 4096;

/// Decodes one answer: a stream of server-sent events, or one JSON body. The chunks that it is fed
/// may end anywhere.
///
/// ```
/// use selvedge_models::{Decoder, ModelEvent};
/// use selvedge_protocol::{ModelOrigin, WireApi};
///
/// let origin = ModelOrigin { wire: WireApi::Chat, provider: "local".into(), model: "m".into() };
/// let mut decoder = Decoder::new(origin);
/// let mut events = Vec::new();
/// decoder.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"Hel", &mut events)?;
/// decoder.feed(b"lo\"}}]}\n\n", &mut events)?;
/// let last = b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
/// decoder.feed(last, &mut events)?;
/// decoder.finish(&mut events)?;
/// assert!(events.contains(&ModelEvent::Text { item_index: 0, text: "Hello".into() }));
/// # Ok::<(), selvedge_models::ModelError>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    framing: AnswerFraming,
    wire_decoder: Box<dyn WireDecoder>,
    limits: AnswerLimits,
}

/// How the answer is transmitted; its first byte decides.
#[derive(Debug)]
enum AnswerFraming {
    /// Only whitespace was received so far.
    Unknown,
    Events(SseParser),
    /// The server does not stream. The body is decoded at its end.
    Body(Vec<u8>),
}

/// Decodes the answer of one API.
pub(crate) trait WireDecoder: std::fmt::Debug + Send + Sync {
    /// Decodes one event of a stream.
    fn decode_event(
        &mut self,
        name: &[u8],
        data: &[u8],
        out: &mut EventCollector<'_>,
    ) -> Result<(), ModelError>;
    /// Decodes an answer that was not streamed.
    fn decode_body(&mut self, body: &[u8], out: &mut EventCollector<'_>) -> Result<(), ModelError>;
    /// Handles the end of the input. Fails if the answer is incomplete.
    fn decode_end(&mut self, out: &mut EventCollector<'_>) -> Result<(), ModelError>;
    /// Whether the answer is complete and no further input is needed.
    fn needs_no_more_input(&self) -> bool;
    /// Whether [`decode_end`](Self::decode_end) would succeed now.
    fn may_end_here(&self) -> bool {
        self.needs_no_more_input()
    }
}

/// Collects the events of an answer, and enforces its size limits.
pub(crate) struct EventCollector<'a> {
    events: &'a mut Vec<ModelEvent>,
    limits: &'a mut AnswerLimits,
}

impl EventCollector<'_> {
    pub(crate) fn push(&mut self, event: ModelEvent) {
        self.events.push(event);
    }

    pub(crate) fn started(&mut self, id: Option<&str>, model: Option<&str>) {
        let (id, model) = (id.map(str::to_owned), model.map(str::to_owned));
        self.push(ModelEvent::Started { id, model });
    }

    /// Emits text. Like the two methods below, it emits nothing if the text is empty.
    pub(crate) fn text(&mut self, item_index: u32, text: &str) {
        if !text.is_empty() {
            let text = text.to_owned();
            self.push(ModelEvent::Text { item_index, text });
        }
    }

    pub(crate) fn reasoning(&mut self, item_index: u32, view: ReasoningView, text: &str) {
        if !text.is_empty() {
            let text = text.to_owned();
            self.push(ModelEvent::Reasoning {
                item_index,
                view,
                text,
            });
        }
    }

    pub(crate) fn call_delta(&mut self, item_index: u32, text: &str) {
        if !text.is_empty() {
            let text = text.to_owned();
            self.push(ModelEvent::CallDelta { item_index, text });
        }
    }

    pub(crate) fn call_started(
        &mut self,
        item_index: u32,
        call_id: &str,
        name: &str,
        kind: FunctionCallKind,
    ) {
        self.push(ModelEvent::CallStarted {
            item_index,
            call_id: call_id.to_owned(),
            name: name.to_owned(),
            kind,
        });
    }

    pub(crate) fn item_done(&mut self, item_index: u32, item: ConversationItem) {
        self.push(ModelEvent::ItemDone { item_index, item });
    }

    /// Counts bytes of text that are stored. Fails if the answer is too large.
    pub(crate) fn count_bytes(&mut self, bytes: usize) -> Result<(), ModelError> {
        let left = self.limits.bytes_left.checked_sub(bytes);
        self.limits.bytes_left = left.ok_or_else(|| {
            let limit = MAX_ANSWER_BYTES >> 20;
            ModelError::protocol(format!("the answer is larger than {limit} MB"))
        })?;
        Ok(())
    }

    /// Counts one item. Fails if the answer has too many.
    pub(crate) fn count_item(&mut self) -> Result<(), ModelError> {
        let left = self.limits.items_left.checked_sub(1);
        self.limits.items_left = left.ok_or_else(|| {
            ModelError::protocol(format!("the answer has more than {MAX_ANSWER_ITEMS} items"))
        })?;
        Ok(())
    }
}

/// The remaining size limits of an answer.
#[derive(Debug)]
struct AnswerLimits {
    bytes_left: usize,
    items_left: usize,
}

impl Decoder {
    /// Creates a decoder for an answer of this API, provider and model.
    pub fn new(origin: ModelOrigin) -> Self {
        Self {
            framing: AnswerFraming::Unknown,
            wire_decoder: match origin.wire {
                WireApi::Responses => Box::new(responses::ResponsesAnswerDecoder::new(origin)),
                WireApi::Chat => Box::new(chat::ChatAnswerDecoder::new(origin)),
                WireApi::Messages => Box::new(messages::MessagesAnswerDecoder::new(origin)),
            },
            limits: AnswerLimits {
                bytes_left: MAX_ANSWER_BYTES,
                items_left: MAX_ANSWER_ITEMS,
            },
        }
    }

    /// Decodes more bytes and appends their events. After an error, do not call it again.
    pub fn feed(&mut self, bytes: &[u8], events: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        let mut bytes = bytes;
        if let AnswerFraming::Unknown = self.framing {
            bytes = bytes.trim_ascii_start();
            self.framing = match bytes.first() {
                None => return Ok(()),
                Some(b'{') => AnswerFraming::Body(Vec::new()),
                Some(_) => AnswerFraming::Events(SseParser::default()),
            };
        }
        let (answer, limits) = (&mut self.wire_decoder, &mut self.limits);
        let mut out = EventCollector { events, limits };
        match &mut self.framing {
            AnswerFraming::Unknown => Ok(()),
            AnswerFraming::Events(parser) => parser.feed(bytes, |name, data| {
                decode_event(answer, name, data, &mut out)
            }),
            AnswerFraming::Body(body) if body.len() + bytes.len() > MAX_EVENT_BYTES => {
                Err(crate::sse::EventTooLarge.into())
            }
            AnswerFraming::Body(body) => {
                body.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Decodes the end of the input and appends the last events. Fails if the answer is
    /// incomplete.
    pub fn finish(&mut self, events: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        let (answer, limits) = (&mut self.wire_decoder, &mut self.limits);
        let mut out = EventCollector { events, limits };
        match &mut self.framing {
            AnswerFraming::Unknown => {}
            AnswerFraming::Events(parser) => {
                parser.finish(|name, data| decode_event(answer, name, data, &mut out))?;
            }
            AnswerFraming::Body(body) => answer.decode_body(body, &mut out)?,
        }
        answer.decode_end(&mut out)
    }

    /// Whether the answer is complete and no further input is needed.
    pub fn needs_no_more_input(&self) -> bool {
        self.wire_decoder.needs_no_more_input()
    }

    /// Whether the answer would be complete if the input ended now. Usage numbers may still be
    /// missing.
    pub fn may_end_here(&self) -> bool {
        self.wire_decoder.may_end_here()
    }
}

/// Decodes an event, unless it has no data.
fn decode_event(
    answer: &mut Box<dyn WireDecoder>,
    name: &[u8],
    data: &[u8],
    out: &mut EventCollector<'_>,
) -> Result<(), ModelError> {
    match data.trim_ascii() {
        b"" => Ok(()),
        data => answer.decode_event(name, data, out),
    }
}

/// Data of the event that marks the end of a stream.
pub(crate) const DONE_MARKER: &[u8] = b"[DONE]";

/// Returns the error for an answer that ended early.
pub(crate) fn incomplete_answer() -> ModelError {
    ModelError::protocol("the answer ended before it was complete")
}
