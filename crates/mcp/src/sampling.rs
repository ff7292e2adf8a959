//! What a server asks a model: its text, and nothing of ours.

use std::time::Duration;

use selvedge_protocol::{Preview, Role, View};
use selvedge_tools::Wish;
use serde_json::{Value, json};

/// What a server asks a model. No tools, no memory and nothing of a conversation belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampling {
    /// Who asks.
    pub server: String,
    /// The script or turn on whose way it asks.
    pub run: String,
    /// What the model is told before.
    pub system: String,
    /// What is said, oldest first.
    pub messages: Vec<Said>,
    /// Tokens the answer may have.
    pub max_tokens: u64,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// By whom, as the server tells it.
    pub role: Role,
    /// What.
    pub text: String,
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampled {
    /// Its words.
    pub text: String,
    /// Its name.
    pub model: String,
    /// Whether that is all of it.
    pub end: SampledEnd,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampledEnd {
    /// The model had said what it wanted.
    Whole,
    /// It reached the limit of tokens.
    Cut,
}

/// Tokens an answer may have, whatever a server wishes.
pub(crate) const MAX_TOKENS: u64 = 4096;
/// How long a model may take to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of everything a server may ask at once.
const MAX_BYTES: usize = 128 << 10;
/// Characters of it that a person is shown; of more, both ends.
const MAX_SHOWN: usize = 4000;

impl Sampling {
    /// Reads the `params` of `sampling/createMessage`; the error is why that is not asked.
    pub(crate) fn read(server: &str, run: String, request: &Value) -> Result<Self, String> {
        let tools = request["tools"].as_array();
        if tools.is_some_and(|tools| !tools.is_empty()) {
            return Err("the model is asked without tools".to_owned());
        }
        let mut messages = Vec::new();
        for message in request["messages"].as_array().into_iter().flatten() {
            let role = match message["role"].as_str() {
                Some("assistant") => Role::Assistant,
                _ => Role::User,
            };
            let text = text_of(&message["content"])?;
            messages.push(Said { role, text });
        }
        if messages.is_empty() {
            return Err("nothing is asked".to_owned());
        }
        let max_tokens = request["maxTokens"].as_u64().unwrap_or(MAX_TOKENS);
        let sampling = Self {
            server: server.to_owned(),
            run,
            system: request["systemPrompt"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            messages,
            max_tokens: max_tokens.clamp(1, MAX_TOKENS),
        };
        match sampling.texts().map(str::len).sum() {
            0..=MAX_BYTES => Ok(sampling),
            bytes => Err(format!("{bytes} bytes are too much to ask at once")),
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let messages = self.messages.iter().map(|said| said.text.as_str());
        std::iter::once(self.system.as_str()).chain(messages)
    }

    /// What a person is asked before the model is.
    pub(crate) fn wish(&self) -> Wish {
        let characters: usize = self.texts().map(|text| text.chars().count()).sum();
        let (server, max_tokens) = (&self.server, self.max_tokens);
        let reason = format!(
            "the server {server} asks your model: {characters} characters, for an answer of at most {max_tokens} tokens"
        );
        let mut text = String::new();
        if !self.system.is_empty() {
            text.push_str(&format!("system: {}\n", self.system));
        }
        for said in &self.messages {
            let who = match said.role {
                Role::Assistant => "assistant",
                _ => "user",
            };
            text.push_str(&format!("{who}: {}\n", said.text));
        }
        let view = crate::elicitation::both_ends(text.trim_end(), MAX_SHOWN);
        Wish {
            who: format!("mcp.{server}"),
            reason,
            preview: Preview {
                view: Some(View::Commands(view)),
                rule: None,
            },
            // No tool has such a name.
            agreement: format!("what the server {server} asks the model"),
        }
    }
}

impl Sampled {
    /// The result of `sampling/createMessage`.
    pub(crate) fn result(self) -> Value {
        let reason = match self.end {
            SampledEnd::Whole => "endTurn",
            SampledEnd::Cut => "maxTokens",
        };
        json!({"role": "assistant", "content": {"type": "text", "text": self.text}, "model": self.model, "stopReason": reason})
    }
}

fn text_of(content: &Value) -> Result<String, String> {
    let one = std::slice::from_ref(content);
    let blocks = content.as_array().map_or(one, Vec::as_slice);
    let texts = blocks.iter().map(|block| match block["type"].as_str() {
        Some("text") => Ok(block["text"].as_str().unwrap_or_default()),
        other => Err(format!(
            "the model is asked in text alone, not with `{}`",
            crate::link::short(other.unwrap_or("?"))
        )),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: Value) -> Result<Sampling, String> {
        Sampling::read("srv", "scr_1".into(), &request)
    }

    fn says(content: Value) -> Value {
        json!({"messages": [{"role": "user", "content": content}], "maxTokens": 100})
    }

    #[test]
    fn text_alone_is_asked_and_no_more_of_it_than_may_be() {
        let mut request =
            says(json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]));
        (request["includeContext"], request["systemPrompt"]) =
            (json!("allServers"), json!("Be short."));
        request["maxTokens"] = json!(1_000_000);
        let sampling = read(request).unwrap();
        assert_eq!(
            (sampling.messages[0].text.as_str(), sampling.max_tokens),
            ("one\ntwo", MAX_TOKENS)
        );
        let wish = sampling.wish();
        assert!(
            wish.reason.contains("srv asks your model: 16 characters")
                && wish.reason.contains("4096 tokens")
        );
        assert_eq!(
            wish.preview.view,
            Some(View::Commands("system: Be short.\nuser: one\ntwo".into()))
        );
        for bad in [
            json!({"messages": []}),
            says(json!({"type": "image", "data": "", "mimeType": "image/png"})),
            says(json!({"type": "text", "text": "x".repeat(MAX_BYTES + 1)})),
        ] {
            assert!(read(bad).is_err());
        }
        let mut with_tools = says(json!({"type": "text", "text": "x"}));
        with_tools["tools"] = json!([{"name": "t", "inputSchema": {}}]);
        assert!(read(with_tools).is_err());
    }

    #[test]
    fn the_end_of_a_long_question_is_shown() {
        let wish = read(says(
            json!({"type": "text", "text": "y".repeat(9000) + "the end"}),
        ))
        .unwrap()
        .wish();
        let Some(View::Commands(view)) = wish.preview.view else {
            panic!()
        };
        assert!(
            view.ends_with("the end") && view.chars().count() < MAX_SHOWN + 100,
            "{view}"
        );
    }
}
