//! A model on loopback that speaks the chat completions API. It answers the first request with a
//! given text, and all others with "Done."

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::Result;
use serde_json::json;

use crate::lab::Lab;

/// Starts the server and writes the configuration that uses it. The server runs until the attack
/// suite ends.
pub(crate) fn configure(lab: &Lab, first_answer: &str) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let config = format!(
        "model = \"mock\"\nmodel_context_window = 128000\nmodel_provider = \"mock\"\n\
         [model_providers.mock]\n\
         base_url = \"http://{}/v1\"\nwire_api = \"chat\"\n",
        listener.local_addr()?
    );
    std::fs::write(lab.home().join("config.toml"), config)?;
    let mut answers = vec![first_answer.to_owned()].into_iter();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answers.next().unwrap_or_else(|| "Done.".to_owned());
            // A client that is gone is not an error.
            let _ = respond(stream, &answer);
        }
    });
    Ok(())
}

/// Reads a request and sends the answer as one event of a stream.
fn respond(mut stream: TcpStream, answer: &str) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let header = line.trim().to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        if header.is_empty() {
            break;
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    let piece = json!({
        "id": "1",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": answer}, "finish_reason": null}],
    });
    let end = json!({
        "id": "1",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    });
    let body = format!("data: {piece}\n\ndata: {end}\n\ndata: [DONE]\n\n");
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )?;
    Ok(stream.flush()?)
}
