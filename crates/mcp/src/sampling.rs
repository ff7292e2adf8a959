//! Sampling requests of a server: parses and limits them, and formats them for approval.

use std::time::Duration;

use selvedge_protocol::{MessageRole, Preview, PreviewContent};
use selvedge_text::truncate_middle;
use selvedge_tools::GatedAction;
use serde_json::{Value, json};

/// A sampling request of a server. It contains only what the server sent: no tools, no memory and
/// nothing of the user's conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpSamplingRequest {
    /// Name of the server that sent the request.
    pub server: String,
    /// Id of the run or turn whose call caused the request.
    pub scope_id: String,
    /// System prompt; may be empty.
    pub system_prompt: String,
    /// The messages, oldest first. There is at least one.
    pub messages: Vec<McpSamplingMessage>,
    /// Maximum number of tokens of the answer.
    pub max_tokens: u64,
}

/// A message of a sampling request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpSamplingMessage {
    /// Role that the server assigned to the message: user or assistant.
    pub role: MessageRole,
    /// Text of the message.
    pub text: String,
}

/// A model's answer to a sampling request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpSamplingResponse {
    /// Text of the answer.
    pub text: String,
    /// Name of the model that answered.
    pub model: String,
    /// Why the answer ended.
    pub stop_reason: McpSamplingStopReason,
}

/// Why a model's answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpSamplingStopReason {
    /// The answer is complete.
    EndTurn,
    /// The answer reached the limit of tokens.
    MaxTokens,
}

/// Maximum number of tokens of an answer. A larger limit of the server is reduced to it.
pub(crate) const MAX_SAMPLING_TOKENS: u64 = 4096;
/// How long a model may take to answer.
pub(crate) const SAMPLING_TIMEOUT: Duration = Duration::from_secs(120);
/// Largest total size of system prompt and messages, in bytes.
const MAX_SAMPLING_BYTES: usize = 128 << 10;
/// Length to which the request is truncated in the approval question, in bytes.
const MAX_SAMPLING_PREVIEW_BYTES: usize = 4000;

impl McpSamplingRequest {
    /// Parses the `params` of `sampling/createMessage`. Fails with the reason if it contains
    /// something unsupported or is too large.
    pub(crate) fn parse(server: &str, run: String, request: &Value) -> Result<Self, String> {
        let tools = request["tools"].as_array();
        if tools.is_some_and(|tools| !tools.is_empty()) {
            return Err("sampling with tools is not supported".to_owned());
        }
        let mut messages = Vec::new();
        for message in request["messages"].as_array().into_iter().flatten() {
            let role = match message["role"].as_str() {
                Some("assistant") => MessageRole::Assistant,
                _ => MessageRole::User,
            };
            let text = content_text(&message["content"])?;
            messages.push(McpSamplingMessage { role, text });
        }
        if messages.is_empty() {
            return Err("the request has no messages".to_owned());
        }
        let max_tokens = request["maxTokens"].as_u64().unwrap_or(MAX_SAMPLING_TOKENS);
        let sampling = Self {
            server: server.to_owned(),
            scope_id: run,
            system_prompt: request["systemPrompt"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            messages,
            max_tokens: max_tokens.clamp(1, MAX_SAMPLING_TOKENS),
        };
        match sampling.texts().map(str::len).sum() {
            0..=MAX_SAMPLING_BYTES => Ok(sampling),
            bytes => Err(format!(
                "the request has {bytes} bytes, the limit is {MAX_SAMPLING_BYTES}"
            )),
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let messages = self.messages.iter().map(|message| message.text.as_str());
        std::iter::once(self.system_prompt.as_str()).chain(messages)
    }

    /// Returns what a person has to approve before the request is sent to the model.
    pub(crate) fn approval_request(&self) -> GatedAction {
        let characters: usize = self.texts().map(|text| text.chars().count()).sum();
        let (server, max_tokens) = (&self.server, self.max_tokens);
        let reason = format!(
            "the server {server} asks your model: {characters} characters, \
            for an answer of at most {max_tokens} tokens"
        );
        let mut text = String::new();
        if !self.system_prompt.is_empty() {
            text.push_str(&format!("system: {}\n", self.system_prompt));
        }
        for message in &self.messages {
            let role = match message.role {
                MessageRole::Assistant => "assistant",
                _ => "user",
            };
            text.push_str(&format!("{role}: {}\n", message.text));
        }
        let view = truncate_middle(text.trim_end(), MAX_SAMPLING_PREVIEW_BYTES);
        GatedAction {
            requester: format!("mcp.{server}"),
            reason,
            preview: Preview {
                view: Some(PreviewContent::Text(view)),
                rule: None,
            },
            // Contains spaces, so that it differs from the name of every tool.
            approval_key: format!("what the server {server} asks the model"),
        }
    }
}

impl McpSamplingResponse {
    /// Converts the answer to the result of `sampling/createMessage`.
    pub(crate) fn into_result(self) -> Value {
        let reason = match self.stop_reason {
            McpSamplingStopReason::EndTurn => "endTurn",
            McpSamplingStopReason::MaxTokens => "maxTokens",
        };
        json!({
            "role": "assistant",
            "content": {"type": "text", "text": self.text},
            "model": self.model,
            "stopReason": reason,
        })
    }
}

fn content_text(content: &Value) -> Result<String, String> {
    let one = std::slice::from_ref(content);
    let blocks = content.as_array().map_or(one, Vec::as_slice);
    let texts = blocks.iter().map(|block| match block["type"].as_str() {
        Some("text") => Ok(block["text"].as_str().unwrap_or_default()),
        other => Err(format!(
            "sampling supports only text, not `{}`",
            crate::connection::shorten(other.unwrap_or("?"))
        )),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: Value) -> Result<McpSamplingRequest, String> {
        McpSamplingRequest::parse("srv", "scr_1".into(), &request)
    }

    fn request_with(content: Value) -> Value {
        json!({"messages": [{"role": "user", "content": content}], "maxTokens": 100})
    }

    #[test]
    fn only_text_within_the_limits_is_accepted() {
        let mut request =
            request_with(json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]));
        (request["includeContext"], request["systemPrompt"]) =
            (json!("allServers"), json!("Be short."));
        request["maxTokens"] = json!(1_000_000);
        let sampling = read(request).unwrap();
        assert_eq!(
            (sampling.messages[0].text.as_str(), sampling.max_tokens),
            ("one\ntwo", MAX_SAMPLING_TOKENS)
        );
        let action = sampling.approval_request();
        assert!(
            action.reason.contains("srv asks your model: 16 characters")
                && action.reason.contains("4096 tokens")
        );
        assert_eq!(
            action.preview.view,
            Some(PreviewContent::Text(
                "system: Be short.\nuser: one\ntwo".into()
            ))
        );
        for bad in [
            json!({"messages": []}),
            request_with(json!({"type": "image", "data": "", "mimeType": "image/png"})),
            request_with(json!({"type": "text", "text": "x".repeat(MAX_SAMPLING_BYTES + 1)})),
        ] {
            assert!(read(bad).is_err());
        }
        let mut with_tools = request_with(json!({"type": "text", "text": "x"}));
        with_tools["tools"] = json!([{"name": "t", "inputSchema": {}}]);
        assert!(read(with_tools).is_err());
    }

    #[test]
    fn the_preview_shows_the_end_of_a_long_request() {
        let action = read(request_with(
            json!({"type": "text", "text": "y".repeat(9000) + "the end"}),
        ))
        .unwrap()
        .approval_request();
        let Some(PreviewContent::Text(view)) = action.preview.view else {
            panic!()
        };
        assert!(
            view.ends_with("the end") && view.len() <= MAX_SAMPLING_PREVIEW_BYTES,
            "{view}"
        );
    }
}
