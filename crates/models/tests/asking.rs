//! Asking a real server on loopback: what is sent, what is tried again, and what is not.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "loopback/server.rs"]
#[allow(dead_code)]
mod server;

use std::time::{Duration, Instant};

use selvedge_models::{
    Client, Model, ModelError, ModelEvent, Prompt, Provider, RetryLimits, Secret,
};
use selvedge_protocol::{FinishReason, Item, ModelErrorKind, Role, WireApi};
use serde_json::json;
use server::{End, Reply, Server};

const HELLO: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const CALL: &str = "data: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}}\n\n";

fn whole() -> Reply {
    Reply::events(format!("{HELLO}{STOP}{DONE}"))
}

fn busy() -> Reply {
    Reply::json(503, json!({"error": {"message": "busy"}}).to_string())
        .header("retry-after-ms", "1")
}

fn provider(server: &Server) -> Provider {
    Provider::new("p", &server.url, WireApi::Chat)
}

fn prompt() -> Prompt {
    Prompt {
        history: vec![Item::message(Role::User, "hi")],
        ..Prompt::default()
    }
}

async fn events(provider: Provider) -> Vec<Result<ModelEvent, ModelError>> {
    let mut stream = Client::new(provider)
        .unwrap()
        .stream(&prompt(), &Model::known("m"));
    let mut all = Vec::new();
    while let Some(event) = stream.next().await {
        all.push(event);
    }
    all
}

fn retries(events: &[Result<ModelEvent, ModelError>]) -> usize {
    events
        .iter()
        .filter(|event| matches!(event, Ok(ModelEvent::Retrying { .. })))
        .count()
}

fn ends_well(events: &[Result<ModelEvent, ModelError>]) -> bool {
    events.last()
        == Some(&Ok(ModelEvent::Finished {
            reason: FinishReason::Stop,
            detail: None,
        }))
}

fn error(events: &[Result<ModelEvent, ModelError>]) -> &ModelError {
    events.last().unwrap().as_ref().unwrap_err()
}

#[tokio::test]
async fn a_question_is_answered() {
    for size in [1, 3, 10_000] {
        let server = Server::start([whole().cut(size)]).await;
        assert!(ends_well(&events(provider(&server)).await));
    }
}

#[tokio::test]
async fn keys_headers_and_queries_go_where_they_belong() {
    for (wire, path, header, value) in [
        (
            WireApi::Responses,
            "/v1/responses",
            "authorization",
            "Bearer sk-1",
        ),
        (
            WireApi::Chat,
            "/v1/chat/completions",
            "authorization",
            "Bearer sk-1",
        ),
        (WireApi::Messages, "/v1/messages", "x-api-key", "sk-1"),
    ] {
        let server = Server::start([Reply::json(400, "{}")]).await;
        let mut provider = Provider {
            wire,
            ..provider(&server)
        };
        provider.key = Some(Secret::new("sk-1"));
        provider.headers.insert("X-Own".into(), Secret::new("yes"));
        provider.query.insert("api-version".into(), "1".into());
        events(provider.clone()).await;
        let asked = &server.asked()[0];
        assert_eq!(asked.line, format!("POST {path}?api-version=1 HTTP/1.1"));
        assert_eq!(
            (asked.header(header), asked.header("x-own")),
            (Some(value), Some("yes"))
        );
        assert_eq!(
            asked.header("anthropic-version").is_some(),
            wire == WireApi::Messages
        );
        // A header of one's own choice.
        let server = Server::start([Reply::json(400, "{}")]).await;
        events(Provider {
            base_url: server.url.clone(),
            key_header: Some("api-key".into()),
            ..provider
        })
        .await;
        assert_eq!(server.asked()[0].header("api-key"), Some("sk-1"));
        assert_eq!(server.asked()[0].header("authorization"), None);
    }
}

#[tokio::test]
async fn without_its_key_nothing_is_asked() {
    let server = Server::start([whole()]).await;
    let found = events(Provider {
        env_key: Some("MY_KEY".into()),
        ..provider(&server)
    })
    .await;
    assert_eq!(error(&found).kind, ModelErrorKind::Auth);
    assert!(error(&found).message.contains("MY_KEY") && server.asked().is_empty());
}

#[tokio::test]
async fn no_error_tells_the_key() {
    let server = Server::start([Reply::json(
        401,
        json!({"error": {"message": "Incorrect API key provided: sk-secret."}}).to_string(),
    )])
    .await;
    let found = events(Provider {
        key: Some(Secret::new("sk-secret")),
        ..provider(&server)
    })
    .await;
    assert_eq!(
        (error(&found).kind, error(&found).status),
        (ModelErrorKind::Auth, Some(401))
    );
    assert!(!format!("{:?}", error(&found)).contains("sk-secret"));
    assert_eq!(server.asked().len(), 1, "a wrong key is not tried again");
}

#[tokio::test]
async fn what_passes_is_tried_again() {
    let limited = Reply::json(429, json!({"error": {"message": "slow down"}}).to_string())
        .header("retry-after-ms", "1");
    let cut = Reply::events(HELLO).end(End::Broken);
    let unfinished = Reply::events(HELLO);
    let failing = Reply::events("data: {\"error\":{\"message\":\"upstream\",\"code\":502}}\n\n");
    for passing in [
        busy(),
        limited,
        cut,
        unfinished,
        failing,
        Reply::json(500, ""),
    ] {
        let server = Server::start([passing.clone(), whole()]).await;
        let found = events(provider(&server)).await;
        assert!(
            ends_well(&found) && retries(&found) == 1,
            "{passing:?}: {found:?}"
        );
        // The same question, word for word.
        assert_eq!(server.asked()[0].body, server.asked()[1].body);
    }
}

#[tokio::test]
async fn what_does_not_pass_is_not_tried_again() {
    use ModelErrorKind::{Auth, ContextTooLong, InvalidRequest, Quota, Refused};
    for (status, body, kind) in [
        (400, json!({"error": {"message": "bad"}}), InvalidRequest),
        (401, json!({"error": {"message": "who"}}), Auth),
        (402, json!({"error": {"message": "pay"}}), Quota),
        (
            404,
            json!({"error": {"message": "no such model"}}),
            InvalidRequest,
        ),
        (
            413,
            json!({"error": {"message": "too much"}}),
            ContextTooLong,
        ),
        (
            429,
            json!({"error": {"message": "pay", "code": "insufficient_quota"}}),
            Quota,
        ),
        (
            400,
            json!({"error": {"message": "x", "code": "content_filter"}}),
            Refused,
        ),
    ] {
        let server = Server::start([
            Reply::json(status, body.to_string()).header("x-request-id", "r1"),
            whole(),
        ])
        .await;
        let found = events(provider(&server)).await;
        assert_eq!(
            (error(&found).kind, server.asked().len()),
            (kind, 1),
            "{body}"
        );
        assert_eq!(error(&found).request_id.as_deref(), Some("r1"));
    }
}

/// Two counts, for the whole question: they add, and never multiply.
#[tokio::test]
async fn attempts_add_up() {
    let cut = || Reply::events(HELLO).end(End::Broken);
    let settings = |server: &Server| Provider {
        retries: RetryLimits {
            request_max_retries: 2,
            stream_max_retries: 2,
            ..RetryLimits::default()
        },
        ..provider(server)
    };
    let server = Server::start([busy(), cut(), busy(), cut(), busy(), whole()]).await;
    let found = events(settings(&server)).await;
    assert_eq!(
        (error(&found).kind, server.asked().len()),
        (ModelErrorKind::Overloaded, 5),
        "{found:?}"
    );
    let server = Server::start([cut(), busy(), busy(), cut(), cut(), whole()]).await;
    let found = events(settings(&server)).await;
    assert_eq!(
        (error(&found).kind, server.asked().len()),
        (ModelErrorKind::Network, 5),
        "{found:?}"
    );
    let server = Server::start([busy(), whole()]).await;
    let found = events(Provider {
        retries: RetryLimits {
            request_max_retries: 0,
            ..RetryLimits::default()
        },
        ..provider(&server)
    })
    .await;
    assert_eq!(
        (error(&found).kind, server.asked().len()),
        (ModelErrorKind::Overloaded, 1)
    );
}

#[tokio::test]
async fn a_delay_is_kept_and_one_too_long_is_told() {
    let limited = |after: &str| Reply::json(429, "{}").header("retry-after", after);
    let server = Server::start([limited("0.3"), whole()]).await;
    let start = Instant::now();
    let found = events(provider(&server)).await;
    assert!(ends_well(&found) && start.elapsed() >= Duration::from_millis(300));
    let server = Server::start([limited("3600"), whole()]).await;
    let found = events(provider(&server)).await;
    assert_eq!(
        (error(&found).kind, error(&found).retry_after),
        (ModelErrorKind::RateLimit, Some(Duration::from_secs(3600)))
    );
    assert_eq!(server.asked().len(), 1);
}

/// Once a call was handed over, or somebody said that something was done, the answer is not asked for again.
#[tokio::test]
async fn what_was_acted_on_is_not_asked_again() {
    let server = Server::start([Reply::events(CALL).end(End::Broken), whole()]).await;
    let found = events(Provider {
        wire: WireApi::Responses,
        ..provider(&server)
    })
    .await;
    assert!(found.iter().any(|event| matches!(
        event,
        Ok(ModelEvent::ItemDone {
            done: Item::FunctionCall(_),
            ..
        })
    )));
    assert_eq!(
        (error(&found).kind, server.asked().len()),
        (ModelErrorKind::Network, 1),
        "{found:?}"
    );

    for acts in [true, false] {
        // Silent, so that nothing fails before the text was seen.
        let server = Server::start([Reply::events(HELLO).end(End::Silent), whole()]).await;
        let provider = Provider {
            retries: RetryLimits {
                stream_idle_timeout_ms: 300,
                ..RetryLimits::default()
            },
            ..provider(&server)
        };
        let mut stream = Client::new(provider)
            .unwrap()
            .stream(&prompt(), &Model::known("m"));
        let mut last = None;
        while let Some(event) = stream.next().await {
            if let (true, Ok(ModelEvent::Text { .. })) = (acts, &event) {
                stream.acted();
            }
            last = Some(event);
        }
        assert_eq!(
            (last.unwrap().is_ok(), server.asked().len()),
            if acts { (false, 1) } else { (true, 2) }
        );
    }
}

#[tokio::test]
async fn silence_has_an_end() {
    let idle = |server: &Server| Provider {
        retries: RetryLimits {
            stream_idle_timeout_ms: 200,
            request_max_retries: 0,
            stream_max_retries: 0,
        },
        ..provider(server)
    };
    let server = Server::start([Reply::events(HELLO).end(End::Silent)]).await;
    let found = events(idle(&server)).await;
    assert_eq!(error(&found).kind, ModelErrorKind::Network);
    assert!(
        error(&found).message.contains("silent for 0.2 s"),
        "{:?}",
        error(&found)
    );
    // Complete, but the server does not hang up: nobody waits for that.
    for complete in [format!("{HELLO}{STOP}{DONE}"), format!("{HELLO}{STOP}")] {
        let server = Server::start([Reply::events(complete).end(End::Silent)]).await;
        assert!(ends_well(&events(idle(&server)).await));
    }
}

#[tokio::test]
async fn places_that_are_no_api_are_told() {
    // Nobody is there.
    let gone = Server::start([]).await;
    let url = gone.url.clone();
    drop(gone);
    let mut nobody = Provider::new("p", url, WireApi::Chat);
    nobody.retries.request_max_retries = 0;
    let found = events(nobody).await;
    assert_eq!(error(&found).kind, ModelErrorKind::Network);
    // A web page, and somewhere else: a key does not travel.
    let page = Reply {
        headers: vec![("content-type".into(), "text/html; charset=utf-8".into())],
        ..Reply::events("<html>")
    };
    let elsewhere = Reply::json(302, "").header("location", "http://127.0.0.1:9/v1");
    for (reply, words) in [(page, "web page"), (elsewhere, "http://127.0.0.1:9/v1")] {
        let server = Server::start([reply]).await;
        let found = events(provider(&server)).await;
        assert_eq!(
            (error(&found).kind, server.asked().len()),
            (ModelErrorKind::InvalidRequest, 1)
        );
        assert!(error(&found).message.contains(words), "{:?}", error(&found));
    }
}

#[tokio::test]
async fn a_dropped_answer_hangs_up() {
    let server = Server::start([Reply::events(HELLO).end(End::Silent)]).await;
    let mut stream = Client::new(provider(&server))
        .unwrap()
        .stream(&prompt(), &Model::known("m"));
    while !matches!(
        stream.next().await.unwrap().unwrap(),
        ModelEvent::Text { .. }
    ) {}
    drop(stream);
    // The server waits until its client is gone.
    server.quiet().await;
}

#[tokio::test]
async fn models_are_listed() {
    let list = json!({"object": "list", "data": [{"id": "b"}, {"id": "a"}]}).to_string();
    let server = Server::start([
        Reply::json(200, list),
        Reply::json(200, "[]"),
        Reply::json(401, "{}"),
    ])
    .await;
    let client = Client::new(provider(&server)).unwrap();
    assert_eq!(client.models().await.unwrap(), ["b", "a"]);
    assert_eq!(server.asked()[0].line, "GET /v1/models HTTP/1.1");
    assert_eq!(
        client.models().await.unwrap_err().kind,
        ModelErrorKind::Protocol
    );
    assert_eq!(
        client.models().await.unwrap_err().kind,
        ModelErrorKind::Auth
    );
}
