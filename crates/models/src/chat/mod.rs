//! OpenAI Chat Completions, and the variants of other servers.

mod call_deltas;
mod chunk;
mod decode;
mod reasoning;
mod request;

pub(crate) use decode::ChatAnswerDecoder;
pub(crate) use request::request_body;
