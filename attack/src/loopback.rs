//! A server on loopback: a model with prepared answers, or a site with one page.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::Result;
use serde_json::json;

/// A server that runs until the process ends.
pub(crate) struct LoopbackServer {
    address: SocketAddr,
}

/// Returns the media type and body for the n-th request.
type ReplyFn = dyn Fn(usize) -> (&'static str, String) + Send + Sync;

impl LoopbackServer {
    /// Starts a model that gives these answers in turn, and then `done`.
    pub(crate) fn model(answers: Vec<ModelAnswer>) -> Result<Self> {
        Self::start(move |request| {
            let done = ModelAnswer::Text("done".to_owned());
            let answer = answers.get(request).unwrap_or(&done);
            ("text/event-stream", answer.encode())
        })
    }

    /// Starts a site with this page at every address.
    pub(crate) fn page(html: String) -> Result<Self> {
        Self::start(move |_| ("text/html", html.clone()))
    }

    fn start(
        reply: impl Fn(usize) -> (&'static str, String) + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let reply: Arc<ReplyFn> = Arc::new(reply);
        std::thread::spawn(move || {
            for (request, stream) in listener.incoming().flatten().enumerate() {
                let reply = reply.clone();
                // A client that leaves early is not an error.
                std::thread::spawn(move || _ = answer(stream, &*reply, request));
            }
        });
        Ok(Self { address })
    }

    /// The address of the server, without a path.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A configuration whose model is this server.
    pub(crate) fn model_config(&self) -> String {
        format!(
            "model = \"mock\"\nmodel_context_window = 128000\nmodel_provider = \"mock\"\n\
             [model_providers.mock]\n\
             base_url = \"{}/v1\"\nwire_api = \"chat\"\n",
            self.url()
        )
    }
}

/// Reads one request and answers it.
fn answer(mut stream: TcpStream, reply: &ReplyFn, request: usize) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    reader.take(length).read_to_end(&mut Vec::new())?;
    let (media_type, body) = reply(request);
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )?;
    Ok(())
}

/// An answer of the model.
pub(crate) enum ModelAnswer {
    Text(String),
    /// A call of `read_file` with this path.
    ReadFile(String),
}

impl ModelAnswer {
    /// Encodes the answer as a stream of Chat Completions.
    fn encode(&self) -> String {
        let (delta, finish) = match self {
            Self::Text(text) => (json!({"role": "assistant", "content": text}), "stop"),
            Self::ReadFile(path) => {
                let arguments = json!({"path": path}).to_string();
                let function = json!({"name": "read_file", "arguments": arguments});
                let call =
                    json!({"index": 0, "id": "c1", "type": "function", "function": function});
                (
                    json!({"role": "assistant", "tool_calls": [call]}),
                    "tool_calls",
                )
            }
        };
        let event = |delta, finish| {
            let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
            let chunk = json!({"id": "1", "object": "chat.completion.chunk", "model": "mock",
                               "choices": [choice]});
            format!("data: {chunk}\n\n")
        };
        let end = event(json!({}), json!(finish));
        format!(
            "{}{end}data: [DONE]\n\n",
            event(delta, serde_json::Value::Null)
        )
    }
}
