//! Encodes a prompt for the API of a provider.

use selvedge_protocol::WireApi;
use serde_json::Value;

use crate::{Model, Prompt, Provider, chat, messages, responses};

/// Returns the body of a request. The same prompt always has the same body, so that the provider's
/// prompt cache stays valid.
pub fn request(prompt: &Prompt, model: &Model, provider: &Provider) -> Value {
    match provider.wire {
        WireApi::Responses => responses::request(prompt, model, provider),
        WireApi::Chat => chat::request(prompt, model, provider),
        WireApi::Messages => messages::request(prompt, model, provider),
    }
}
