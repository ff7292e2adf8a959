//! From a prompt to a request's body, on whichever API the provider speaks.

use selvedge_protocol::WireApi;
use serde_json::Value;

use crate::{Model, Prompt, Provider, chat, messages, responses};

/// The body of the request that asks this provider's model. A pure function: the same prompt gives the same bytes, so
/// that what a provider has cached stays found.
pub fn request(prompt: &Prompt, model: &Model, provider: &Provider) -> Value {
    match provider.wire {
        WireApi::Responses => responses::request(prompt, model, provider),
        WireApi::Chat => chat::request(prompt, model, provider),
        WireApi::Messages => messages::request(prompt, model, provider),
    }
}
