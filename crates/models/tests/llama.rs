//! Turns on each API with the server of llama.cpp and a tiny model of random weights.
//! `make test-llama` installs what it needs and sets `SELVEDGE_LLAMA_PYTHON`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use selvedge_models::{Model, ModelClient, ModelError, ModelEvent, Prompt, Provider, ToolCallMode};
use selvedge_protocol::{
    ConversationItem, FinishReason, FunctionCall, FunctionCallKind, MessageRole, ModelErrorKind,
    Usage, WireApi,
};
use serde_json::json;

const WIRES: [WireApi; 3] = [WireApi::Responses, WireApi::Chat, WireApi::Messages];

struct Llama {
    process: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Llama {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Llama {
    fn start() -> Option<Self> {
        let Some(python) = std::env::var_os("SELVEDGE_LLAMA_PYTHON") else {
            eprintln!("skipped: SELVEDGE_LLAMA_PYTHON is not set (make test-llama)");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/llama/serve.py");
        let mut process = Command::new(python)
            .arg(script)
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let address = lines.into_iter().find(|line| line.starts_with("http"));
        Some(Self {
            process,
            address: address.unwrap(),
            _folder: folder,
        })
    }

    fn client(&self, wire: WireApi) -> ModelClient {
        ModelClient::new(Provider::new(
            "llamacpp",
            format!("{}/v1", self.address),
            wire,
        ))
        .unwrap()
    }
}

struct Turn {
    text: String,
    items: Vec<ConversationItem>,
    usage: Option<Usage>,
    finish: FinishReason,
}

impl Turn {
    fn new() -> Self {
        Self {
            text: String::new(),
            items: Vec::new(),
            usage: None,
            finish: FinishReason::Paused,
        }
    }
}

async fn turn(client: &ModelClient, prompt: &Prompt) -> Result<Turn, ModelError> {
    let mut stream = client.stream(prompt, &Model::from_table("tiny"));
    let mut turn = Turn::new();
    while let Some(event) = stream.next().await {
        match event? {
            ModelEvent::Text { text, .. } => turn.text.push_str(&text),
            ModelEvent::ItemDone { item: done, .. } => turn.items.push(done),
            ModelEvent::Usage(usage) => turn.usage = Some(usage),
            ModelEvent::Finished { reason, .. } => turn.finish = reason,
            // The server sometimes closes a connection that it had kept open for the next request.
            ModelEvent::Retrying { error, .. } if error.kind == ModelErrorKind::Network => {
                turn = Turn::new();
            }
            ModelEvent::Retrying { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
    Ok(turn)
}

#[tokio::test]
async fn all_three_apis_answer_and_accept_their_answers_back() {
    let Some(llama) = Llama::start() else { return };
    for wire in WIRES {
        let client = llama.client(wire);
        let names = client.list_models().await.unwrap();
        assert!(names[0].ends_with("tiny.gguf"), "{names:?}");

        let history = vec![ConversationItem::message(
            MessageRole::User,
            "Say something, ü.",
        )];
        let mut prompt = Prompt {
            system: "Be brief.".into(),
            history,
            max_output_tokens: Some(24),
            ..Prompt::default()
        };
        let first = turn(&client, &prompt).await.unwrap();
        let messages: String = first
            .items
            .iter()
            .filter_map(|item| match item {
                ConversationItem::Message(message) => Some(message.text()),
                _ => None,
            })
            .collect();
        assert!(
            !first.text.is_empty() && messages == first.text,
            "{wire:?}: {:?}",
            first.text
        );
        let usage = first.usage.unwrap();
        // This server sometimes omits `message_start`, which contains the input tokens.
        let is_missing = |usage: &Usage| wire == WireApi::Messages && usage.input_tokens == 0;
        assert!(
            usage.input_tokens > 10 || is_missing(&usage),
            "{wire:?}: {usage:?}"
        );
        assert!(
            (1..=24).contains(&usage.output_tokens),
            "{wire:?}: {usage:?}"
        );
        assert!(
            matches!(first.finish, FinishReason::Length | FinishReason::Stop),
            "{wire:?}: {:?}",
            first.finish
        );

        // The answer is sent back, with a call and its result.
        prompt.history.extend(first.items);
        prompt
            .history
            .push(ConversationItem::message(MessageRole::User, "And now?"));
        prompt
            .history
            .push(ConversationItem::FunctionCall(FunctionCall {
                call_id: "call_1".into(),
                name: "look".into(),
                arguments: json!({"at": "it"}).to_string(),
                kind: FunctionCallKind::Function,
                native: None,
            }));
        prompt.history.push(ConversationItem::function_call_output(
            "call_1",
            "nothing there",
        ));
        // No tools: the server could not parse a call in the output of random weights.
        let second = turn(&client, &prompt).await.unwrap();
        let more = second.usage.unwrap();
        assert!(
            more.input_tokens > usage.input_tokens || is_missing(&more),
            "{wire:?}: {more:?}"
        );
        prompt.call_mode = ToolCallMode::Off;
        turn(&client, &prompt).await.unwrap();
    }
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_an_error() {
    let Some(llama) = Llama::start() else { return };
    for wire in WIRES {
        let history = vec![ConversationItem::message(
            MessageRole::User,
            "too long ".repeat(1000),
        )];
        let error = turn(
            &llama.client(wire),
            &Prompt {
                history,
                ..Prompt::default()
            },
        )
        .await
        .err()
        .unwrap();
        assert_eq!(
            error.kind,
            ModelErrorKind::ContextTooLong,
            "{wire:?}: {error:?}"
        );
    }
}
