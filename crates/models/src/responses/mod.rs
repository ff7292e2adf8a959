//! OpenAI Responses: items, encrypted reasoning, freeform tools.

mod decode;
mod item;
mod request;

pub(crate) use decode::ResponsesAnswerDecoder;
pub(crate) use request::request_body;
