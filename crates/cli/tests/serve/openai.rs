//! The OpenAI-compatible endpoints.

use serde_json::{Value, json};

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::server::{Asked, Reply};

/// A model that runs a script, and then answers with the number of messages it got from the user.
pub fn counts_messages(asked: &Asked) -> Reply {
    let messages = asked.body["messages"].as_array().unwrap();
    let of_user = messages.iter().filter(|message| message["role"] == "user");
    match messages.last().unwrap()["content"]
        .to_string()
        .contains("compute")
    {
        true => vec![text(&format!("Let me see.\n{}", block("return 6 * 7")))].into(),
        false => vec![text(&format!("{} messages", of_user.count()))].into(),
    }
}

fn data(text: &str) -> Vec<Value> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("data:"));
    lines
        .map(|line| serde_json::from_str(line.trim()).unwrap_or_else(|_| json!(line.trim())))
        .collect()
}

#[test]
fn chat_completions_are_turns_of_new_sessions() {
    let more = "[environments.small]\nsandbox_mode = \"read-only\"";
    let fixture = ServeFixture::with_config(more, counts_messages);
    let (_server, client) = fixture.start();
    let models = client.get("/v1/models");
    let names: Vec<&Value> = models.body["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(names, ["default", "small"]);
    let history = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "compute"}]},
    ]);
    let request = json!({"model": "small", "messages": history, "temperature": 0.5});
    let done = client.post("/v1/chat/completions", request.clone());
    assert_eq!(done.status, 200, "{done:?}");
    let choice = &done.body["choices"][0];
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(content.starts_with("Let me see."), "{content}");
    assert!(content.ends_with("3 messages"), "{content}");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(done.body["usage"]["total_tokens"], 240, "{done:?}");
    let session = done.body["metadata"]["session"].as_str().unwrap();
    let shown = client.get(&format!("/api/v1/sessions/{session}"));
    assert_eq!(shown.body["environment"], "small");
    // The same as a stream.
    let mut streamed = request;
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let streamed = client.post("/v1/chat/completions", streamed);
    let chunks = data(&streamed.text);
    assert_eq!(chunks.last(), Some(&json!("[DONE]")), "{}", streamed.text);
    let deltas = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"].get(0)?["delta"]["content"].as_str());
    assert_eq!(deltas.collect::<String>(), content);
    assert_eq!(chunks[chunks.len() - 2]["usage"]["total_tokens"], 240);
    // A session is continued with the last message only.
    let more = json!({
        "model": "small",
        "messages": [{"role": "user", "content": "more"}],
        "metadata": {"session": session},
    });
    let more = client.post("/v1/chat/completions", more);
    let content = &more.body["choices"][0]["message"]["content"];
    assert_eq!(content, "4 messages", "{more:?}");
}

#[test]
fn responses_continue_earlier_ones() {
    let fixture = ServeFixture::new(counts_messages);
    let (_server, client) = fixture.start();
    let request = json!({"model": "default", "input": "hello", "instructions": "Be brief."});
    let first = client.post("/v1/responses", request);
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.body["output"][0]["content"][0]["text"], "1 messages");
    assert_eq!(first.body["status"], "completed");
    let second = json!({
        "model": "default",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "again"}]}],
        "previous_response_id": first.body["id"],
        "stream": true,
    });
    let second = client.post("/v1/responses", second);
    let events = data(&second.text);
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds.first(), Some(&"response.created"), "{second:?}");
    assert_eq!(kinds.last(), Some(&"response.completed"));
    let deltas = events.iter().filter_map(|event| event["delta"].as_str());
    assert_eq!(deltas.collect::<String>(), "2 messages");
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], "2 messages");
    assert_eq!(
        last["metadata"]["session"],
        first.body["metadata"]["session"]
    );
}

#[test]
fn wrong_requests_are_refused_and_failures_reported() {
    let fixture = ServeFixture::new(|_| Reply::Fail(400, "{\"error\": \"no\"}".to_owned()));
    let (_server, client) = fixture.start();
    let message = json!([{"role": "user", "content": "x"}]);
    for wrong in [
        json!({"model": "default", "messages": []}),
        json!({"model": "none", "messages": message}),
        json!({"model": "default", "messages": message, "tools": [{"type": "function"}]}),
        json!({"model": "default", "messages": [{"role": "tool", "content": "x"}]}),
    ] {
        let refused = client.post("/v1/chat/completions", wrong.clone());
        assert_eq!(refused.status, 400, "{wrong}: {refused:?}");
    }
    let other =
        json!({"model": "default", "input": "x", "previous_response_id": "resp_ses_none_1"});
    assert_eq!(client.post("/v1/responses", other).status, 404);
    let failed = client.post("/v1/responses", json!({"model": "default", "input": "x"}));
    assert_eq!(failed.status, 500, "{failed:?}");
    let streamed = json!({"model": "default", "messages": message, "stream": true});
    let streamed = client.post("/v1/chat/completions", streamed);
    assert!(streamed.text.contains("\"error\""), "{streamed:?}");
}
