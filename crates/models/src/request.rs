//! Encodes a prompt for the API of a provider.

use selvedge_protocol::WireApi;
use serde_json::Value;

use crate::{Model, Prompt, Provider, chat, messages, responses};

/// Returns the body of a request. The same prompt always has the same body, so that the provider's
/// prompt cache stays valid.
pub fn request_body(prompt: &Prompt, model: &Model, provider: &Provider) -> Value {
    match provider.wire_api {
        WireApi::Responses => responses::request_body(prompt, model, provider),
        WireApi::Chat => chat::request_body(prompt, model, provider),
        WireApi::Messages => messages::request_body(prompt, model, provider),
    }
}
