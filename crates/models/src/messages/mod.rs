//! Anthropic Messages: content blocks, signed thinking, cache breakpoints.

mod cache;
mod decode;
mod event;
mod request;

pub(crate) use decode::MessagesAnswerDecoder;
pub(crate) use request::request_body;
