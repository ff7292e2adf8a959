//! A model on loopback that records every request. It answers the first one with a script that
//! searches the workspace, and all others with "Done."

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use serde_json::json;

use crate::lab::Lab;

/// The first answer: a search reads the ignore files of the workspace.
const SEARCH: &str = "<tool-calls>\nreturn [await tools.grepFiles({ pattern: 'no-such-text' }), \
    (await tools.fileSearch({ pattern: '*' })).map(found => found.path), 'search-' + 'has-ended']\n\
    </tool-calls>";

/// Text in a request after the search has ended.
pub(crate) const SEARCHED: &str = "search-has-ended";

/// The requests that the model received. The server runs until the attack suite ends.
#[derive(Clone, Default)]
pub(crate) struct RecordingModel {
    requests: Arc<Mutex<String>>,
}

impl RecordingModel {
    /// Starts a server and writes the configuration that uses it.
    pub(crate) fn start(lab: &Lab) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let config = format!(
            "model = \"mock\"\nmodel_context_window = 128000\nmodel_provider = \"mock\"\n\
             [model_providers.mock]\n\
             base_url = \"http://{}/v1\"\nwire_api = \"chat\"\n",
            listener.local_addr()?
        );
        std::fs::write(lab.home().join("config.toml"), config)?;
        let model = Self::default();
        let recording = model.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that is gone is not an error.
                let _ = recording.respond(stream);
            }
        });
        Ok(model)
    }

    /// Returns the bodies of all requests.
    pub(crate) fn requests(&self) -> String {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn respond(&self, mut stream: TcpStream) -> Result<()> {
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
        let mut request = String::new();
        reader.take(length).read_to_string(&mut request)?;
        let answer = match self.lock().is_empty() {
            true => SEARCH,
            false => "Done.",
        };
        self.lock().push_str(&request);
        let piece = |delta: serde_json::Value, finish: Option<&str>| {
            json!({"id": "1", "object": "chat.completion.chunk",
                   "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        };
        let body = format!(
            "data: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
            piece(json!({"content": answer}), None),
            piece(json!({}), Some("stop"))
        );
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        )?;
        Ok(stream.flush()?)
    }
}
