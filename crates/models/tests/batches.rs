//! The batch APIs of OpenAI and Anthropic, with a server on loopback.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "loopback/server.rs"]
#[allow(dead_code)]
mod server;

use selvedge_models::{BatchState, Model, ModelClient, Prompt, Provider, Secret};
use selvedge_protocol::{ConversationItem, MessageRole, ModelErrorKind, WireApi};
use serde_json::{Value, json};
use server::{End, ProviderReply, ProviderServer};

fn client(server: &ProviderServer, wire: WireApi) -> ModelClient {
    let mut provider = Provider::new("p", &server.url, wire);
    provider.key = Some(Secret::new("sk-very-secret"));
    ModelClient::new(provider).unwrap()
}

fn prompts(count: usize) -> Vec<Prompt> {
    let prompt = |n| Prompt {
        history: vec![ConversationItem::message(
            MessageRole::User,
            format!("question {n}"),
        )],
        ..Prompt::default()
    };
    (0..count).map(prompt).collect()
}

fn ok(body: Value) -> ProviderReply {
    ProviderReply::json(200, body.to_string())
}

fn lines(lines: &[Value]) -> ProviderReply {
    ProviderReply::json(
        200,
        lines
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>(),
    )
    .split(7)
}

/// The body of an answer with this text.
fn answer_body(wire: WireApi, text: &str) -> Value {
    match wire {
        WireApi::Responses => json!({
            "id": "r",
            "status": "completed",
            "output": [{
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": text}],
            }],
        }),
        WireApi::Chat => {
            json!({
                "choices": [
                    {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"},
                ],
            })
        }
        WireApi::Messages => {
            json!({
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            })
        }
    }
}

fn texts(state: BatchState) -> Vec<Result<String, String>> {
    match state {
        BatchState::Ended(answers) => answers
            .into_iter()
            .map(|answer| answer.map_err(|e| e.message))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn openai_batches_use_files() {
    for wire in [WireApi::Responses, WireApi::Chat] {
        let answered = |id: &str, text: &str| {
            json!({
                "custom_id": id,
                "response": {"status_code": 200, "body": answer_body(wire, text)},
            })
        };
        let server = ProviderServer::start([
            ok(json!({"id": "file-1"})),
            ok(json!({"id": "batch_1", "status": "validating"})),
            ok(json!({"id": "batch_1", "status": "in_progress"})),
            ok(json!({
                "id": "batch_1",
                "status": "completed",
                "output_file_id": "file-out",
                "error_file_id": "file-err",
            })),
            lines(&[answered("prompt-2", "third"), answered("prompt-0", "first")]),
            lines(&[json!({
                "custom_id": "prompt-1",
                "response": {"status_code": 400, "body": {"error": {"message": "too long"}}},
            })]),
        ])
        .await;
        let (batches, model) = (
            client(&server, wire).batches(),
            Model::from_table("gpt-5.5"),
        );
        let batch = batches.submit(&prompts(4), &model).await.unwrap();
        assert_eq!(batch, "batch_1");
        assert_eq!(
            batches.poll(&batch, 4, &model).await.unwrap(),
            BatchState::InProgress
        );
        let found = texts(batches.poll(&batch, 4, &model).await.unwrap());
        let expected = [
            Ok("first"),
            Err("too long"),
            Ok("third"),
            Err("the batch has no answer to this prompt"),
        ];
        assert!(
            found
                .iter()
                .map(|f| f.as_deref().map_err(String::as_str))
                .eq(expected),
            "{found:?}"
        );

        let requests = server.requests();
        let lines: Vec<&str> = requests
            .iter()
            .map(|request| request.line.trim_end_matches(" HTTP/1.1"))
            .collect();
        assert_eq!(
            lines,
            [
                "POST /v1/files",
                "POST /v1/batches",
                "GET /v1/batches/batch_1",
                "GET /v1/batches/batch_1",
                "GET /v1/files/file-out/content",
                "GET /v1/files/file-err/content"
            ]
        );
        assert!(
            requests
                .iter()
                .all(|request| request.header("authorization") == Some("Bearer sk-very-secret"))
        );
        let endpoint = if wire == WireApi::Chat {
            "/v1/chat/completions"
        } else {
            "/v1/responses"
        };
        assert_eq!(
            requests[1].json(),
            json!({"input_file_id": "file-1", "endpoint": endpoint, "completion_window": "24h"})
        );
        let upload = String::from_utf8(requests[0].body.clone()).unwrap();
        let uploaded: Vec<Value> = upload
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        assert_eq!(uploaded.len(), 4);
        assert_eq!(
            (&uploaded[1]["custom_id"], &uploaded[1]["url"]),
            (&json!("prompt-1"), &json!(endpoint))
        );
        assert!(
            uploaded[1]["body"].to_string().contains("question 1")
                && uploaded[1]["body"]["stream"].is_null()
        );
        assert!(upload.contains("name=\"purpose\"\r\n\r\nbatch\r\n") && upload.ends_with("--\r\n"));
    }
}

#[tokio::test]
async fn anthropic_batches_use_one_request_and_json_lines() {
    let wire = WireApi::Messages;
    let server = ProviderServer::start([
        ok(json!({"id": "msgbatch_1", "processing_status": "in_progress"})),
        ok(json!({"id": "msgbatch_1", "processing_status": "canceling"})),
        ok(json!({
            "id": "msgbatch_1",
            "processing_status": "ended",
            "results_url": "https://elsewhere/steal",
        })),
        lines(&[
            json!({
                "custom_id": "prompt-1",
                "result": {
                    "type": "errored",
                    "error": {"type": "error", "error": {"message": "overloaded"}},
                },
            }),
            json!({
                "custom_id": "prompt-0",
                "result": {"type": "succeeded", "message": answer_body(wire, "first")},
            }),
            json!({"custom_id": "prompt-2", "result": {"type": "expired"}}),
        ]),
    ])
    .await;
    let (batches, model) = (
        client(&server, wire).batches(),
        Model::from_table("claude-sonnet-5"),
    );
    let batch = batches.submit(&prompts(3), &model).await.unwrap();
    assert_eq!(
        batches.poll(&batch, 3, &model).await.unwrap(),
        BatchState::InProgress
    );
    let found = texts(batches.poll(&batch, 3, &model).await.unwrap());
    assert_eq!(
        found,
        [
            Ok("first".to_owned()),
            Err("overloaded".to_owned()),
            Err("the prompt is expired".to_owned())
        ]
    );
    let requests = server.requests();
    assert_eq!(
        requests[3].line, "GET /v1/messages/batches/msgbatch_1/results HTTP/1.1",
        "the key is sent to no other host"
    );
    assert!(
        requests
            .iter()
            .all(|request| request.header("x-api-key") == Some("sk-very-secret"))
    );
    let submitted = requests[0].json()["requests"].clone();
    assert!(
        submitted[2]["custom_id"] == "prompt-2"
            && submitted[2]["params"].to_string().contains("question 2")
    );
    assert!(
        submitted[2]["params"]["stream"].is_null() && submitted[2]["params"]["max_tokens"].is_u64()
    );
}

#[tokio::test]
async fn a_failed_batch_is_distinguished_from_a_failed_request() {
    let expired = json!({
        "custom_id": "prompt-0",
        "response": null,
        "error": {"code": "batch_expired", "message": "too late"},
    });
    let gone = [json!({"custom_id": "prompt-0", "result": {"type": "expired"}})];
    for (wire, replies) in [
        (
            WireApi::Responses,
            vec![ok(
                json!({"status": "failed", "errors": {"data": [{"message": "no such model"}]}}),
            )],
        ),
        (
            WireApi::Responses,
            vec![
                ok(json!({"status": "expired", "error_file_id": "file-err"})),
                lines(&[expired]),
            ],
        ),
        (
            WireApi::Responses,
            vec![ProviderReply::json(
                404,
                json!({"error": {"message": "no such batch"}}).to_string(),
            )],
        ),
        (
            WireApi::Messages,
            vec![
                ok(json!({"processing_status": "ended", "request_counts": {"expired": 1}})),
                lines(&gone),
            ],
        ),
    ] {
        let server = ProviderServer::start(replies).await;
        let state = client(&server, wire)
            .batches()
            .poll("b", 1, &Model::from_table("m"))
            .await
            .unwrap();
        assert!(matches!(state, BatchState::Failed(_)), "{state:?}");
    }
    // A failed request says nothing about the batch.
    let broken = ProviderReply::json(200, "{\"status\":").end(End::Broken);
    let failures = [
        ProviderReply::json(503, "{}"),
        broken,
        ok(json!({"something": "else"})),
        ProviderReply::json(
            401,
            json!({"error": {"message": "bad key sk-very-secret"}}).to_string(),
        ),
    ];
    let server = ProviderServer::start(failures).await;
    let batches = client(&server, WireApi::Responses).batches();
    for kind in [
        ModelErrorKind::Server,
        ModelErrorKind::Network,
        ModelErrorKind::Protocol,
        ModelErrorKind::Auth,
    ] {
        let error = batches
            .poll("b", 1, &Model::from_table("m"))
            .await
            .unwrap_err();
        assert!(
            kind == error.kind || (kind == ModelErrorKind::Server && error.is_transient()),
            "{error:?}"
        );
        assert!(!error.message.contains("very-secret"), "{error}");
    }
    // A failed submission is not retried, and an invalid id is not used in a URL.
    let server = ProviderServer::start([
        ProviderReply::json(503, "{}"),
        ok(json!({"id": "../files"})),
    ])
    .await;
    let batches = client(&server, WireApi::Messages).batches();
    assert!(
        batches
            .submit(&prompts(1), &Model::from_table("m"))
            .await
            .is_err()
    );
    assert!(
        batches
            .submit(&prompts(1), &Model::from_table("m"))
            .await
            .is_err()
    );
    assert_eq!(server.requests().len(), 2);
}
