//! OpenAI Chat Completions, and the many servers that speak it, each a little differently.

mod call;
mod chunk;
mod decode;
mod request;
mod thought;

pub(crate) use decode::Answer;
pub(crate) use request::request;
