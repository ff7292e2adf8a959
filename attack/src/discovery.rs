//! Attacks by a process that listens on a port where a model server is expected. It must not get a
//! prompt unless the user accepted it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, observe};

/// A model server that counts the prompts it gets.
struct FakeModelServer {
    port: u16,
    prompts: Arc<AtomicUsize>,
}

impl FakeModelServer {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let prompts = Arc::new(AtomicUsize::new(0));
        let counted = prompts.clone();
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut head = BufReader::new(&stream).lines().map_while(Result::ok);
                if head.next().is_some_and(|line| line.starts_with("POST ")) {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                head.find(String::is_empty);
                let body = r#"{"object": "list", "data": [{"id": "tiny"}]}"#;
                let length = body.len();
                let _ = write!(
                    &stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                     content-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
            }
        });
        Ok(Self { port, prompts })
    }
}

/// How the user configured the providers.
#[derive(Clone, Copy)]
enum Known {
    /// The address of one provider is the fake server's.
    Address(&'static str),
    /// `OLLAMA_HOST` names the fake server.
    OllamaHost,
}

pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    const NO_RULES: &str = "";
    let mut all = Vec::new();
    for provider in ["ollama", "lmstudio", "llamacpp"] {
        for args in [&["models", "test"][..], &["exec", "hello"], &["doctor"]] {
            let name = format!(
                "`{}` with a process at the port of {provider}",
                args.join(" ")
            );
            all.push(attempt(name, Known::Address(provider), args, NO_RULES));
        }
    }
    let test: &[&str] = &["models", "test"];
    for (name, args) in [
        (
            "a model by name",
            &["models", "test", "--model", "tiny"][..],
        ),
        ("a question with --json", &["exec", "--json", "hello"]),
        ("the chat without a terminal", &[]),
    ] {
        let name = format!("{name} and a process at the port of ollama");
        all.push(attempt(name, Known::Address("ollama"), args, NO_RULES));
    }
    all.push(attempt(
        "OLLAMA_HOST".into(),
        Known::OllamaHost,
        test,
        NO_RULES,
    ));
    for (name, rules) in [
        (
            "a server of another user was accepted",
            r#"{ base_url = "$URL", user = 4242 }"#,
        ),
        (
            "a server of an unknown user was accepted",
            r#"{ base_url = "$URL" }"#,
        ),
        (
            "a server at another port was accepted",
            r#"{ base_url = "http://127.0.0.1:1/v1", user = $USER }"#,
        ),
        (
            "a server at another path was accepted",
            r#"{ base_url = "$URL/", user = $USER }"#,
        ),
        (
            "a server by another name was accepted",
            r#"{ base_url = "http://localhost:$PORT/v1", user = $USER }"#,
        ),
    ] {
        all.push(attempt(name.into(), Known::Address("ollama"), test, rules));
    }
    Ok(all)
}

/// Runs a command that needs a model, with `y` on its standard input. It succeeds if the fake
/// server gets a prompt.
fn attempt(
    name: String,
    known: Known,
    args: &'static [&'static str],
    rules: &'static str,
) -> Attempt {
    Attempt::new(name, move |lab: &Lab| {
        let server = FakeModelServer::start()?;
        let url = format!("http://127.0.0.1:{}/v1", server.port);
        let nowhere = "http://127.0.0.1:9/v1".to_owned();
        let providers = ["ollama", "lmstudio", "llamacpp"].map(|name| match known {
            Known::Address(other) if other == name => (name, &url),
            _ => (name, &nowhere),
        });
        let config: String = providers
            .iter()
            .filter(|(name, _)| !matches!((known, *name), (Known::OllamaHost, "ollama")))
            .map(|(name, url)| format!("[model_providers.{name}]\nbase_url = \"{url}\"\n"))
            .collect();
        std::fs::write(lab.home().join("config.toml"), config)?;
        if !rules.is_empty() {
            let user = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(lab.home())?);
            let rules = rules
                .replace("$URL", &url)
                .replace("$PORT", &server.port.to_string())
                .replace("$USER", &user.to_string());
            let rules = format!("allow_model_servers = [{rules}]\n");
            std::fs::write(lab.home().join("rules.toml"), rules)?;
        }
        let mut command = lab.selvedge(args);
        for key in [
            "OPENAI_API_KEY",
            "ANTHROPIC_API_KEY",
            "OPENROUTER_API_KEY",
            "OLLAMA_HOST",
        ] {
            command.env_remove(key);
        }
        if let Known::OllamaHost = known {
            command.env("OLLAMA_HOST", format!("127.0.0.1:{}", server.port));
        }
        let seen = observe(command, "1\n1\ny\n")?;
        let prompts = server.prompts.load(Ordering::SeqCst);
        Ok(Verdict::held_if(
            prompts == 0 && seen.ended_cleanly(),
            format!("{prompts} prompts: {}", seen.output()),
        ))
    })
}
