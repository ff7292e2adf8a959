//! OpenAI Chat Completions, and the variants of other servers.

mod call;
mod chunk;
mod decode;
mod request;
mod thought;

pub(crate) use decode::Answer;
pub(crate) use request::request;
