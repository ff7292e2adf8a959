//! Requests of the client to a server on loopback: headers, retries, timeouts and errors.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "loopback/server.rs"]
#[allow(dead_code)]
mod server;

use std::time::{Duration, Instant};

use selvedge_models::{
    Model, ModelClient, ModelError, ModelEvent, Prompt, Provider, RetryLimits, Secret,
};
use selvedge_protocol::{ConversationItem, FinishReason, MessageRole, ModelErrorKind, WireApi};
use serde_json::json;
use server::{End, ProviderReply, ProviderServer};

const HELLO: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const CALL: &str = "data: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{\
    \"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}}\n\n";

fn complete() -> ProviderReply {
    ProviderReply::events(format!("{HELLO}{STOP}{DONE}"))
}

fn busy() -> ProviderReply {
    ProviderReply::json(503, json!({"error": {"message": "busy"}}).to_string())
        .header("retry-after-ms", "1")
}

fn provider(server: &ProviderServer) -> Provider {
    Provider::new("p", &server.url, WireApi::Chat)
}

fn prompt() -> Prompt {
    Prompt {
        history: vec![ConversationItem::message(MessageRole::User, "hi")],
        ..Prompt::default()
    }
}

async fn events(provider: Provider) -> Vec<Result<ModelEvent, ModelError>> {
    let mut stream = ModelClient::new(provider)
        .unwrap()
        .stream(&prompt(), &Model::from_table("m"));
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

fn is_complete(events: &[Result<ModelEvent, ModelError>]) -> bool {
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
async fn an_answer_is_decoded_in_chunks_of_any_size() {
    for size in [1, 3, 10_000] {
        let server = ProviderServer::start([complete().split(size)]).await;
        assert!(is_complete(&events(provider(&server)).await));
    }
}

#[tokio::test]
async fn key_headers_and_query_are_sent() {
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
        let server = ProviderServer::start([ProviderReply::json(400, "{}")]).await;
        let mut provider = Provider {
            wire_api: wire,
            ..provider(&server)
        };
        provider.key = Some(Secret::new("sk-1"));
        provider.headers.insert("X-Own".into(), Secret::new("yes"));
        provider.query.insert("api-version".into(), "1".into());
        events(provider.clone()).await;
        let request = &server.requests()[0];
        assert_eq!(request.line, format!("POST {path}?api-version=1 HTTP/1.1"));
        assert_eq!(
            (request.header(header), request.header("x-own")),
            (Some(value), Some("yes"))
        );
        assert_eq!(
            request.header("anthropic-version").is_some(),
            wire == WireApi::Messages
        );
        // A configured header for the key.
        let server = ProviderServer::start([ProviderReply::json(400, "{}")]).await;
        events(Provider {
            base_url: server.url.clone(),
            key_header: Some("api-key".into()),
            ..provider
        })
        .await;
        assert_eq!(server.requests()[0].header("api-key"), Some("sk-1"));
        assert_eq!(server.requests()[0].header("authorization"), None);
    }
}

#[tokio::test]
async fn no_request_is_sent_without_the_required_key() {
    let server = ProviderServer::start([complete()]).await;
    let found = events(Provider {
        env_key: Some("MY_KEY".into()),
        ..provider(&server)
    })
    .await;
    assert_eq!(error(&found).kind, ModelErrorKind::Auth);
    assert_eq!(
        error(&found).message,
        "MY_KEY is not set: provider `p` needs it"
    );
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn the_key_is_redacted_in_errors() {
    let server = ProviderServer::start([ProviderReply::json(
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
    assert_eq!(server.requests().len(), 1, "a wrong key is not retried");
}

#[tokio::test]
async fn transient_failures_are_retried() {
    let limited = ProviderReply::json(429, json!({"error": {"message": "slow down"}}).to_string())
        .header("retry-after-ms", "1");
    let cut = ProviderReply::events(HELLO).end(End::Broken);
    let unfinished = ProviderReply::events(HELLO);
    let failing =
        ProviderReply::events("data: {\"error\":{\"message\":\"upstream\",\"code\":502}}\n\n");
    for failure in [
        busy(),
        limited,
        cut,
        unfinished,
        failing,
        ProviderReply::json(500, ""),
    ] {
        let server = ProviderServer::start([failure.clone(), complete()]).await;
        let found = events(provider(&server)).await;
        assert!(
            is_complete(&found) && retries(&found) == 1,
            "{failure:?}: {found:?}"
        );
        // The retry sends the same body.
        assert_eq!(server.requests()[0].body, server.requests()[1].body);
    }
}

#[tokio::test]
async fn permanent_failures_are_not_retried() {
    use ModelErrorKind::{Auth, ContextTooLong, InvalidRequest, Quota, Refused, UnknownModel};
    for (status, body, kind) in [
        (400, json!({"error": {"message": "bad"}}), InvalidRequest),
        (401, json!({"error": {"message": "who"}}), Auth),
        (402, json!({"error": {"message": "pay"}}), Quota),
        (
            404,
            json!({"error": {"message": "no such model"}}),
            UnknownModel,
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
        let server = ProviderServer::start([
            ProviderReply::json(status, body.to_string()).header("x-request-id", "r1"),
            complete(),
        ])
        .await;
        let found = events(provider(&server)).await;
        assert_eq!(
            (error(&found).kind, server.requests().len()),
            (kind, 1),
            "{body}"
        );
        assert_eq!(error(&found).request_id.as_deref(), Some("r1"));
    }
}

/// Both limits apply to the whole request: their sum bounds the number of attempts.
#[tokio::test]
async fn retries_of_requests_and_streams_add_up() {
    let cut = || ProviderReply::events(HELLO).end(End::Broken);
    let settings = |server: &ProviderServer| Provider {
        retries: RetryLimits {
            request_max_retries: 2,
            stream_max_retries: 2,
            ..RetryLimits::default()
        },
        ..provider(server)
    };
    let server = ProviderServer::start([busy(), cut(), busy(), cut(), busy(), complete()]).await;
    let found = events(settings(&server)).await;
    assert_eq!(
        (error(&found).kind, server.requests().len()),
        (ModelErrorKind::Overloaded, 5),
        "{found:?}"
    );
    let server = ProviderServer::start([cut(), busy(), busy(), cut(), cut(), complete()]).await;
    let found = events(settings(&server)).await;
    assert_eq!(
        (error(&found).kind, server.requests().len()),
        (ModelErrorKind::Network, 5),
        "{found:?}"
    );
    let server = ProviderServer::start([busy(), complete()]).await;
    let found = events(Provider {
        retries: RetryLimits {
            request_max_retries: 0,
            ..RetryLimits::default()
        },
        ..provider(&server)
    })
    .await;
    assert_eq!(
        (error(&found).kind, server.requests().len()),
        (ModelErrorKind::Overloaded, 1)
    );
}

/// A client without paid retries repeats only what the provider did not process.
#[tokio::test]
async fn requests_that_may_have_been_paid_for_are_not_repeated() {
    let failure = || ProviderReply::json(500, json!({"error": {"message": "no"}}).to_string());
    let cut = ProviderReply::events(HELLO).end(End::Broken);
    for (first, requests, may_be_processed) in
        [(busy(), 2, false), (failure(), 1, false), (cut, 1, true)]
    {
        let server = ProviderServer::start([first, complete()]).await;
        let client = ModelClient::new(provider(&server)).unwrap();
        let client = client.without_paid_retries();
        let mut stream = client.stream(&prompt(), &Model::from_table("m"));
        let mut found = Vec::new();
        while let Some(event) = stream.next().await {
            found.push(event);
        }
        assert_eq!(server.requests().len(), requests);
        match requests {
            1 => assert_eq!(error(&found).may_be_processed, may_be_processed),
            _ => assert!(is_complete(&found), "{found:?}"),
        }
    }
}

#[tokio::test]
async fn a_retry_waits_as_requested_unless_that_is_too_long() {
    let limited = |after: &str| ProviderReply::json(429, "{}").header("retry-after", after);
    let server = ProviderServer::start([limited("0.3"), complete()]).await;
    let start = Instant::now();
    let found = events(provider(&server)).await;
    assert!(is_complete(&found) && start.elapsed() >= Duration::from_millis(300));
    let server = ProviderServer::start([limited("3600"), complete()]).await;
    let found = events(provider(&server)).await;
    assert_eq!(
        (error(&found).kind, error(&found).retry_after),
        (ModelErrorKind::RateLimit, Some(Duration::from_secs(3600)))
    );
    assert_eq!(server.requests().len(), 1);
}

/// A failure after a complete call, or after `acted`, is not retried.
#[tokio::test]
async fn an_answer_that_was_acted_on_is_not_retried() {
    let server =
        ProviderServer::start([ProviderReply::events(CALL).end(End::Broken), complete()]).await;
    let found = events(Provider {
        wire_api: WireApi::Responses,
        ..provider(&server)
    })
    .await;
    assert!(found.iter().any(|event| matches!(
        event,
        Ok(ModelEvent::ItemDone {
            item: ConversationItem::FunctionCall(_),
            ..
        })
    )));
    assert_eq!(
        (error(&found).kind, server.requests().len()),
        (ModelErrorKind::Network, 1),
        "{found:?}"
    );

    for acted in [true, false] {
        // The connection stays open, so that it fails only after the text was received.
        let server =
            ProviderServer::start([ProviderReply::events(HELLO).end(End::Silent), complete()])
                .await;
        let provider = Provider {
            retries: RetryLimits {
                stream_idle_timeout_ms: 300,
                ..RetryLimits::default()
            },
            ..provider(&server)
        };
        let mut stream = ModelClient::new(provider)
            .unwrap()
            .stream(&prompt(), &Model::from_table("m"));
        let mut last = None;
        while let Some(event) = stream.next().await {
            if let (true, Ok(ModelEvent::Text { .. })) = (acted, &event) {
                stream.forbid_retries();
            }
            last = Some(event);
        }
        assert_eq!(
            (last.unwrap().is_ok(), server.requests().len()),
            if acted { (false, 1) } else { (true, 2) }
        );
    }
}

#[tokio::test]
async fn a_silent_answer_times_out() {
    let idle = |server: &ProviderServer| Provider {
        retries: RetryLimits {
            stream_idle_timeout_ms: 200,
            request_max_retries: 0,
            stream_max_retries: 0,
        },
        ..provider(server)
    };
    let server = ProviderServer::start([ProviderReply::events(HELLO).end(End::Silent)]).await;
    let found = events(idle(&server)).await;
    assert_eq!(error(&found).kind, ModelErrorKind::Timeout);
    assert!(
        error(&found)
            .message
            .contains("provider `p` sent nothing for 0.2 s"),
        "{:?}",
        error(&found)
    );
    // A complete answer does not wait until the server closes the connection.
    for complete in [format!("{HELLO}{STOP}{DONE}"), format!("{HELLO}{STOP}")] {
        let server =
            ProviderServer::start([ProviderReply::events(complete).end(End::Silent)]).await;
        assert!(is_complete(&events(idle(&server)).await));
    }
}

#[tokio::test]
async fn a_refused_connection_a_web_page_and_a_redirect_are_reported() {
    // No server listens on the port any more.
    let stopped = ProviderServer::start([]).await;
    let url = stopped.url.clone();
    drop(stopped);
    let address = url.trim_start_matches("http://").trim_end_matches("/v1");
    while std::net::TcpStream::connect(address).is_ok() {
        tokio::task::yield_now().await;
    }
    let mut unreachable = Provider::new("p", &url, WireApi::Chat);
    unreachable.retries.request_max_retries = 0;
    let found = events(unreachable).await;
    assert_eq!(error(&found).kind, ModelErrorKind::Network);
    let start = format!("cannot connect to provider `p` at {url}: ");
    assert!(
        error(&found).message.starts_with(&start),
        "{:?}",
        error(&found)
    );
    // A redirect is not followed, because the key must not be sent to another host.
    let page = ProviderReply {
        headers: vec![("content-type".into(), "text/html; charset=utf-8".into())],
        ..ProviderReply::events("<html>")
    };
    let redirect = ProviderReply::json(302, "").header("location", "http://127.0.0.1:9/v1");
    for (reply, message) in [
        (
            page,
            "the server returned a web page, not an API response: check base_url",
        ),
        (
            redirect,
            "the server redirects to http://127.0.0.1:9/v1: change base_url",
        ),
    ] {
        let server = ProviderServer::start([reply]).await;
        let found = events(provider(&server)).await;
        assert_eq!(
            (error(&found).kind, server.requests().len()),
            (ModelErrorKind::BaseUrl, 1)
        );
        assert_eq!(error(&found).message, message);
    }
}

#[tokio::test]
async fn dropping_the_stream_closes_the_connection() {
    let server = ProviderServer::start([ProviderReply::events(HELLO).end(End::Silent)]).await;
    let mut stream = ModelClient::new(provider(&server))
        .unwrap()
        .stream(&prompt(), &Model::from_table("m"));
    while !matches!(
        stream.next().await.unwrap().unwrap(),
        ModelEvent::Text { .. }
    ) {}
    drop(stream);
    // The exchange ends when the client disconnects.
    server.wait_until_idle().await;
}

#[tokio::test]
async fn models_are_listed() {
    let list = json!({"object": "list", "data": [{"id": "b"}, {"id": "a"}]}).to_string();
    let server = ProviderServer::start([
        ProviderReply::json(200, list),
        ProviderReply::json(200, "[]"),
        ProviderReply::json(401, "{}"),
    ])
    .await;
    let client = ModelClient::new(provider(&server)).unwrap();
    assert_eq!(client.list_models().await.unwrap(), ["b", "a"]);
    assert_eq!(server.requests()[0].line, "GET /v1/models HTTP/1.1");
    assert_eq!(
        client.list_models().await.unwrap_err().kind,
        ModelErrorKind::Protocol
    );
    assert_eq!(
        client.list_models().await.unwrap_err().kind,
        ModelErrorKind::Auth
    );
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_server_of_another_user_than_the_accepted_one_gets_no_request() {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self").unwrap().uid();
    let server = ProviderServer::start([complete(), complete()]).await;
    for (accepted, is_sent) in [(own + 1, false), (own, true)] {
        let provider = Provider {
            accepted_user: Some(accepted),
            ..provider(&server)
        };
        let events = events(provider).await;
        let error = events.into_iter().find_map(Result::err);
        assert_eq!(error.is_none(), is_sent, "{error:?}");
        assert_eq!(server.requests().len(), usize::from(is_sent));
        if let Some(error) = error {
            assert!(error.message.contains("is not run by the user"), "{error}");
        }
    }
}
