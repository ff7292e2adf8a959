//! Client for OpenAI Responses, Chat Completions and Anthropic Messages.
//!
//! A [`Prompt`] becomes a request. The answer is a stream of [`ModelEvent`]s, the same for every
//! API. Its items are appended to the history of the next prompt:
//!
//! ```no_run
//! use selvedge_models::{Model, ModelClient, ModelEvent, ModelTool, Prompt, Provider, Secret};
//! use selvedge_protocol::{ConversationItem, FinishReason, MessageRole};
//! use serde_json::json;
//!
//! # async fn ask() -> Result<(), selvedge_models::ModelError> {
//! let mut provider = Provider::find_built_in("anthropic").expect("it is built in");
//! provider.key = Some(Secret::new("sk-…"));
//! let client = ModelClient::new(provider)?;
//! let model = Model::from_table("claude-sonnet-5");
//!
//! let mut prompt = Prompt {
//!     system: "You know the weather.".into(),
//!     history: vec![ConversationItem::message(MessageRole::User, "How warm is it in Paris?")],
//!     tools: vec![ModelTool::function("temperature", "Degrees in a city.", json!({
//!         "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
//!     }))],
//!     ..Prompt::default()
//! };
//! loop {
//!     let mut stream = client.stream(&prompt, &model);
//!     let mut answer = Vec::new();
//!     let mut finish = FinishReason::Stop;
//!     while let Some(event) = stream.next().await {
//!         match event? {
//!             ModelEvent::Text { text, .. } => print!("{text}"),
//!             ModelEvent::ItemDone { item: value, .. } => answer.push(value),
//!             // The answer starts again: discard what was received so far.
//!             ModelEvent::Retrying { .. } | ModelEvent::Restarted => answer.clear(),
//!             ModelEvent::Finished { reason, .. } => finish = reason,
//!             _ => {}
//!         }
//!     }
//!     // The items contain reasoning, signatures and ids, which are sent back unchanged.
//!     let calls: Vec<String> = answer.iter().filter_map(|item| match item {
//!         ConversationItem::FunctionCall(call) => Some(call.call_id.clone()),
//!         _ => None,
//!     }).collect();
//!     prompt.history.extend(answer);
//!     let result = |id| ConversationItem::function_call_output(id, "21");
//!     prompt.history.extend(calls.iter().map(result));
//!     // After `Paused`, send the conversation again to continue the answer.
//!     if calls.is_empty() && finish != FinishReason::Paused {
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The codecs do no I/O: [`request_body`] encodes a prompt, [`Decoder`] decodes an answer.
//! [`ModelClient`] adds HTTP, retries and timeouts. This crate runs no tools and no scripts.
// Standard output and standard error belong to the embedding program.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod access_tokens;
mod batch;
mod calls_as_text;
mod chat;
mod classify;
mod client;
mod context_window;
mod decode;
mod discover;
mod embeddings;
mod error;
mod event;
mod lenient_json;
mod messages;
mod model;
mod model_table;
mod oauth;
mod pairing;
mod port_owner;
mod price_table;
mod prompt;
mod provider;
mod request;
mod request_loop;
mod request_parts;
mod responses;
mod sse;
mod transport;

pub use access_tokens::{AccessTokenSource, AccessTokens};
pub use batch::{BatchClient, BatchState};
pub use classify::error_from_status;
pub use client::{ModelClient, ModelStream};
pub use decode::Decoder;
pub use discover::{DiscoveredServer, discover_servers};
pub use error::{ModelCapability, ModelError};
pub use event::{ModelEvent, ReasoningView};
pub use model::{Model, WindowSource};
pub use oauth::{BrowserLogin, DeviceLogin, OAuthClient, OAuthError, OAuthTokens};
pub use prompt::{ModelTool, ModelToolInput, Prompt, ToolCallMode};
pub use provider::{KeySource, OutputLimitField, Provider, Secret};
pub use request::request_body;
pub use selvedge_protocol::{Effort, OAuthSettings, Prices, ReasoningStyle, RetryLimits};
