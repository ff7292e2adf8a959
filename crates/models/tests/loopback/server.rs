//! A real HTTP server on loopback that says what it is told to, cut where it is told to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What is answered to one request.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// The body, as it is written.
    pub pieces: Vec<Vec<u8>>,
    pub end: End,
}

/// What happens after the last piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The answer ends as it should.
    Proper,
    /// The connection breaks.
    Broken,
    /// Nothing more comes.
    Silent,
}

impl Reply {
    pub fn events(body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_owned(), "text/event-stream".to_owned())];
        Self {
            status: 200,
            headers,
            pieces: vec![body.into()],
            end: End::Proper,
        }
    }

    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        Self {
            status,
            headers,
            pieces: vec![body.into()],
            end: End::Proper,
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

    /// The same in pieces of this many bytes.
    pub fn cut(mut self, size: usize) -> Self {
        let body = self.pieces.concat();
        self.pieces = body.chunks(size).map(<[u8]>::to_vec).collect();
        self
    }
}

/// What a client asked.
#[derive(Debug, Clone)]
pub struct Asked {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }
}

pub struct Server {
    pub url: String,
    pub asked: Arc<Mutex<Vec<Asked>>>,
    task: tokio::task::JoinHandle<()>,
    /// Held by every exchange that goes on.
    open: Arc<tokio::sync::Semaphore>,
}

/// More exchanges than any test has.
const EXCHANGES: u32 = 1000;

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// A server that gives these answers in order, and closes the connection where none is left.
    pub async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let replies = Arc::new(Mutex::new(replies.into_iter().collect::<VecDeque<_>>()));
        let seen = asked.clone();
        let open = Arc::new(tokio::sync::Semaphore::new(EXCHANGES as usize));
        let exchanges = open.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let going_on = exchanges.clone().acquire_owned().await;
                let serving = serve(stream, seen.clone(), replies.clone());
                tokio::spawn(async move {
                    serving.await;
                    drop(going_on);
                });
            }
        });
        Self {
            url,
            asked,
            task,
            open,
        }
    }

    /// Waits until every exchange is over.
    pub async fn quiet(&self) {
        drop(self.open.acquire_many(EXCHANGES).await);
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    seen: Arc<Mutex<Vec<Asked>>>,
    replies: Arc<Mutex<VecDeque<Reply>>>,
) {
    let Some(asked) = read(&mut stream).await else {
        return;
    };
    seen.lock().unwrap().push(asked);
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
    for piece in reply.pieces.iter().filter(|piece| !piece.is_empty()) {
        let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
        chunk.extend_from_slice(piece);
        chunk.extend_from_slice(b"\r\n");
        if stream.write_all(&chunk).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    match reply.end {
        End::Proper => _ = stream.write_all(b"0\r\n\r\n").await,
        End::Broken => {}
        End::Silent => {
            // Until the client goes away.
            let mut rest = [0; 64];
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
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
                return Some(Asked {
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
