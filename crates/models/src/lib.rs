//! Speaks OpenAI Responses, Chat Completions and Anthropic Messages, and hands on one stream of events.

mod as_text;
mod chat;
mod classify;
mod content;
mod decode;
mod error;
mod event;
mod json;
mod messages;
mod model;
mod pairing;
mod prompt;
mod provider;
mod request;
mod responses;
mod sse;

pub use classify::of_status as error_of;
pub use decode::Decoder;
pub use error::{Ability, ModelError};
pub use event::{ModelEvent, ReasoningView};
pub use model::{Model, Prices, Thinking};
pub use prompt::{Calls, Effort, Prompt, Tool, ToolInput};
pub use provider::{OutputLimit, Provider, Secret};
pub use request::request;
