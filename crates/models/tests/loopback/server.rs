//! An HTTP server on loopback that sends prepared replies.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The reply to one request.
#[derive(Debug, Clone)]
pub struct ProviderReply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// The chunks of the body.
    pub chunks: Vec<Vec<u8>>,
    pub end: End,
}

/// What happens after the last chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The reply ends properly.
    Complete,
    /// The connection is closed in the middle of the reply.
    Broken,
    /// The connection stays open, and nothing more is sent.
    Silent,
}

impl ProviderReply {
    pub fn events(body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_owned(), "text/event-stream".to_owned())];
        Self {
            status: 200,
            headers,
            chunks: vec![body.into()],
            end: End::Complete,
        }
    }

    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        Self {
            status,
            headers,
            chunks: vec![body.into()],
            end: End::Complete,
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn end(mut self, end: End) -> Self {
        self.end = end;
        self
    }

    /// Splits the body into chunks of this many bytes.
    pub fn split(mut self, size: usize) -> Self {
        let body = self.chunks.concat();
        self.chunks = body.chunks(size).map(<[u8]>::to_vec).collect();
        self
    }
}

/// A request that was received.
#[derive(Debug, Clone)]
pub struct ProviderRequest {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl ProviderRequest {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(header, _)| header == name)
            .map(|(_, value)| value.as_str())
    }
}

pub struct ProviderServer {
    pub url: String,
    requests: Arc<Mutex<Vec<ProviderRequest>>>,
    task: tokio::task::JoinHandle<()>,
    /// Has one permit for each exchange in progress.
    exchanges: Arc<tokio::sync::Semaphore>,
}

/// More exchanges than any test makes.
const MAX_EXCHANGES: u32 = 1000;

impl Drop for ProviderServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ProviderServer {
    /// Starts a server that sends these replies in order, and then closes every connection.
    pub async fn start(replies: impl IntoIterator<Item = ProviderReply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let replies = Arc::new(Mutex::new(replies.into_iter().collect::<VecDeque<_>>()));
        let received = requests.clone();
        let exchanges = Arc::new(tokio::sync::Semaphore::new(MAX_EXCHANGES as usize));
        let permits = exchanges.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let permit = permits.clone().acquire_owned().await;
                let serving = serve(stream, received.clone(), replies.clone());
                tokio::spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
        });
        Self {
            url,
            requests,
            task,
            exchanges,
        }
    }

    /// Waits until every exchange has ended.
    pub async fn wait_until_idle(&self) {
        drop(self.exchanges.acquire_many(MAX_EXCHANGES).await);
    }

    pub fn requests(&self) -> Vec<ProviderRequest> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    received: Arc<Mutex<Vec<ProviderRequest>>>,
    replies: Arc<Mutex<VecDeque<ProviderReply>>>,
) {
    let Some(request) = read(&mut stream).await else {
        return;
    };
    received.lock().unwrap().push(request);
    let Some(reply) = replies.lock().unwrap().pop_front() else {
        return;
    };
    let mut head = format!(
        "HTTP/1.1 {} X\r\ntransfer-encoding: chunked\r\nconnection: close\r\n",
        reply.status
    );
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let _ = stream.set_nodelay(true);
    let _ = stream.write_all(format!("{head}\r\n").as_bytes()).await;
    for bytes in reply.chunks.iter().filter(|bytes| !bytes.is_empty()) {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        if stream.write_all(&chunk).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    match reply.end {
        End::Complete => _ = stream.write_all(b"0\r\n\r\n").await,
        End::Broken => {}
        End::Silent => {
            // Waits until the client disconnects.
            let mut rest = [0; 64];
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<ProviderRequest> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        let head_end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = head_end {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut lines = head.lines();
            let line = lines.next()?.to_owned();
            let headers: Vec<(String, String)> = lines
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
                .collect();
            let length = headers
                .iter()
                .find(|(name, _)| name == "content-length")
                .map_or(0, |(_, n)| n.parse().unwrap());
            let body = bytes[end + 4..].to_vec();
            if body.len() >= length {
                return Some(ProviderRequest {
                    line,
                    headers,
                    body,
                });
            }
        }
        let count = stream
            .read(&mut buffer)
            .await
            .ok()
            .filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
    }
}
