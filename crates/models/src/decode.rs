//! From an answer's bytes to events. No I/O: whoever has bytes, live or recorded, feeds them.

use selvedge_protocol::{Origin, WireApi};

use crate::sse::{Events, MAX_EVENT_BYTES};
use crate::{ModelError, ModelEvent, chat, messages, responses};

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
    answer: Answer,
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

#[derive(Debug)]
enum Answer {
    Responses(responses::Answer),
    Chat(Box<chat::Answer>),
    Messages(Box<messages::Answer>),
}

/// How much more an answer may hold: what arrives must not fill the memory.
#[derive(Debug)]
pub(crate) struct Allowance {
    bytes: usize,
    items: usize,
}

impl Allowance {
    /// Takes note of text that is kept.
    pub(crate) fn keep(&mut self, bytes: usize) -> Result<(), ModelError> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(|| {
            ModelError::protocol(format!(
                "the answer is larger than {} MB",
                MAX_ANSWER_BYTES >> 20
            ))
        })?;
        Ok(())
    }

    /// Takes note of one more item.
    pub(crate) fn item(&mut self) -> Result<(), ModelError> {
        self.items = self.items.checked_sub(1).ok_or_else(|| {
            ModelError::protocol(format!("the answer has more than {MAX_ITEMS} items"))
        })?;
        Ok(())
    }
}

impl Decoder {
    /// A decoder for an answer from there.
    pub fn new(origin: Origin) -> Self {
        let answer = match origin.wire {
            WireApi::Responses => Answer::Responses(responses::Answer::new(origin)),
            WireApi::Chat => Answer::Chat(Box::new(chat::Answer::new(origin))),
            WireApi::Messages => Answer::Messages(Box::new(messages::Answer::new(origin))),
        };
        let allowance = Allowance {
            bytes: MAX_ANSWER_BYTES,
            items: MAX_ITEMS,
        };
        Self {
            framing: Framing::Unknown,
            answer,
            allowance,
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
        let Self {
            framing,
            answer,
            allowance,
        } = self;
        match framing {
            Framing::Unknown => Ok(()),
            Framing::Events(parser) => parser.feed(bytes, |name, data| {
                answer.event(name, data, events, allowance)
            }),
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
        let Self {
            framing,
            answer,
            allowance,
        } = self;
        match framing {
            Framing::Unknown => {}
            Framing::Events(parser) => {
                parser.finish(|name, data| answer.event(name, data, events, allowance))?;
            }
            Framing::Body(body) => answer.body(body, events, allowance)?,
        }
        answer.end(events)
    }

    /// Whether the answer is complete, and nothing that still comes is waited for.
    pub fn is_finished(&self) -> bool {
        match &self.answer {
            Answer::Responses(answer) => answer.is_finished(),
            Answer::Chat(answer) => answer.is_finished(),
            Answer::Messages(answer) => answer.is_finished(),
        }
    }

    /// Whether the answer would be complete if nothing more came: only numbers about it may be missing.
    pub fn may_end(&self) -> bool {
        match &self.answer {
            Answer::Responses(answer) => answer.is_finished(),
            Answer::Chat(answer) => answer.may_end(),
            Answer::Messages(answer) => answer.may_end(),
        }
    }
}

impl Answer {
    fn event(
        &mut self,
        name: &[u8],
        data: &[u8],
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        let data = data.trim_ascii();
        // What a comment would have done.
        if data.is_empty() {
            return Ok(());
        }
        match self {
            Self::Responses(answer) => answer.event(data, events, allowance),
            Self::Chat(answer) => answer.event(name, data, events, allowance),
            Self::Messages(answer) => answer.event(data, events, allowance),
        }
    }

    fn body(
        &mut self,
        body: &[u8],
        events: &mut Vec<ModelEvent>,
        allowance: &mut Allowance,
    ) -> Result<(), ModelError> {
        match self {
            Self::Responses(answer) => answer.body(body, events, allowance),
            Self::Chat(answer) => answer.body(body, events, allowance),
            Self::Messages(answer) => answer.body(body, events, allowance),
        }
    }

    fn end(&mut self, events: &mut Vec<ModelEvent>) -> Result<(), ModelError> {
        match self {
            Self::Responses(answer) => answer.end(),
            Self::Chat(answer) => answer.end(events),
            Self::Messages(answer) => answer.end(events),
        }
    }
}

/// The data of an event that only says that there are no more.
pub(crate) const DONE: &[u8] = b"[DONE]";

/// The error of an answer that broke off.
pub(crate) fn broke_off() -> ModelError {
    ModelError::protocol("the answer ended before it was complete")
}
