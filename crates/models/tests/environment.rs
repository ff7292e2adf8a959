//! Proxies and certificates from the environment. Each request is sent by a child process with its
//! own environment: this test program, started again.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "loopback/server.rs"]
#[allow(dead_code)]
mod server;

use std::process::Stdio;
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use selvedge_models::{Model, ModelClient, Prompt, Provider, RetryLimits};
use selvedge_protocol::{ConversationItem, MessageRole, WireApi};
use server::{ProviderReply, ProviderServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const CHILD_URL: &str = "SELVEDGE_TEST_CHILD_URL";
const ANSWER: &str = "data: {\"choices\":[{\
    \"delta\":{\"content\":\"Hello\"},\"finish_reason\":\"stop\"}]}\n\n\
    data: [DONE]\n\n";

/// Not a test: sends the request in the child process.
#[tokio::test]
async fn child_process() {
    let Ok(url) = std::env::var(CHILD_URL) else {
        return;
    };
    let provider = Provider {
        retries: RetryLimits {
            request_max_retries: 0,
            ..RetryLimits::default()
        },
        ..Provider::new("p", url, WireApi::Chat)
    };
    let prompt = Prompt {
        history: vec![ConversationItem::message(MessageRole::User, "hi")],
        ..Prompt::default()
    };
    let mut stream = ModelClient::new(provider)
        .unwrap()
        .stream(&prompt, &Model::from_table("m"));
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => println!("{event:?}"),
            Err(error) => println!("failed: {error}"),
        }
    }
}

/// Sends a request in a child process, and returns its output.
async fn output_of_child(url: &str, environment: &[(&str, &str)]) -> String {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child_process", "--nocapture"])
        .env(CHILD_URL, url)
        .stdin(Stdio::null());
    for name in [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
        "NO_PROXY",
        "no_proxy",
        "NODE_EXTRA_CA_CERTS",
    ] {
        command.env_remove(name);
    }
    let output = command
        .envs(environment.iter().copied())
        .output()
        .await
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_is_used_except_for_this_machine() {
    let proxy = ProviderServer::start([ProviderReply::events(ANSWER)]).await;
    let address = proxy.url.trim_end_matches("/v1").to_owned();
    let out = output_of_child("http://models.example/v1", &[("HTTP_PROXY", &address)]).await;
    assert!(out.contains("Hello"), "{out}");
    assert_eq!(
        proxy.requests()[0].line,
        "POST http://models.example/v1/chat/completions HTTP/1.1"
    );

    let server = ProviderServer::start([ProviderReply::events(ANSWER)]).await;
    let out = output_of_child(&server.url, &[("HTTP_PROXY", &address)]).await;
    assert!(
        out.contains("Hello") && proxy.requests().len() == 1,
        "{out}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_named_in_the_environment_are_trusted() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.pem");
    std::fs::write(&file, certified.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let settings = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![certified.cert.der().clone()], key)
    .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(settings));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}/v1",
        listener.local_addr().unwrap().port()
    );
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let answer = format!(
                "HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\
                content-length: {}\r\nconnection: close\r\n\r\n{ANSWER}",
                ANSWER.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    let path = file.to_str().unwrap();
    for variable in ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"] {
        let out = output_of_child(&url, &[(variable, path)]).await;
        assert!(out.contains("Hello"), "{variable}: {out}");
    }
    let out = output_of_child(&url, &[]).await;
    assert!(out.contains("failed: ") && !out.contains("Hello"), "{out}");
    server.abort();
}
