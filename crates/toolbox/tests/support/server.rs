//! A real HTTP server on loopback with scripted responses, which records requests and closed
//! connections.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A received request.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    pub method: String,
    pub path: String,
    pub head: String,
    pub body: String,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<String> {
        let value_of = |line: &str| {
            line.split_once(':')
                .filter(|(key, _)| key.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.trim().to_owned())
        };
        self.head.lines().find_map(value_of)
    }
}

/// A response.
#[derive(Debug, Clone)]
pub struct WebReply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub end: AfterBody,
}

/// What the server does after the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterBody {
    /// Close the connection.
    Proper,
    /// Send nothing more, and wait until the client closes the connection.
    Silent,
    /// Send the body this many times in all.
    Repeated(usize),
}

impl WebReply {
    pub fn new(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_owned(), kind.to_owned())];
        Self {
            status,
            headers,
            body: body.into(),
            end: AfterBody::Proper,
        }
    }

    pub fn html(body: &str) -> Self {
        Self::new(200, "text/html; charset=utf-8", body)
    }

    /// A redirect.
    pub fn redirect(url: &str) -> Self {
        Self::new(302, "text/html", "gone").header("location", url)
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn end(mut self, end: AfterBody) -> Self {
        self.end = end;
        self
    }
}

pub struct WebServer {
    pub port: u16,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    /// Receives a message for each request.
    arrived: Mutex<Receiver<()>>,
    /// Receives the bytes sent on each closed connection.
    closed: Mutex<Receiver<usize>>,
}

impl WebServer {
    pub fn start(answer: impl Fn(&ReceivedRequest) -> WebReply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (arrival, arrived) = channel();
        let (closed_sender, closed) = channel();
        let (received, answer) = (requests.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (received, answer, arrival, closed_sender) = (
                    received.clone(),
                    answer.clone(),
                    arrival.clone(),
                    closed_sender.clone(),
                );
                std::thread::spawn(move || {
                    serve(stream, &received, answer.as_ref(), &arrival, &closed_sender)
                });
            }
        });
        Self {
            port,
            requests,
            arrived: Mutex::new(arrived),
            closed: Mutex::new(closed),
        }
    }

    pub fn url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.port)
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self
            .requests()
            .into_iter()
            .map(|request| request.path)
            .collect();
        paths.sort();
        paths
    }

    /// Waits for the next request.
    pub fn wait_for_request(&self) {
        self.arrived
            .lock()
            .unwrap()
            .recv_timeout(Duration::from_secs(30))
            .expect("no request arrived");
    }

    /// Waits until a connection is closed, and returns the bytes sent on it.
    pub fn wait_until_closed(&self) -> usize {
        self.closed
            .lock()
            .unwrap()
            .recv_timeout(Duration::from_secs(30))
            .expect("no connection was closed")
    }
}

fn serve(
    mut stream: TcpStream,
    received: &Mutex<Vec<ReceivedRequest>>,
    answer: &dyn Fn(&ReceivedRequest) -> WebReply,
    arrival: &Sender<()>,
    closed_sender: &Sender<usize>,
) {
    let Some(request) = read(&mut stream) else {
        return;
    };
    received.lock().unwrap().push(request.clone());
    let _ = arrival.send(());
    let reply = answer(&request);
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut sent = 0;
    let mut write = |bytes: &[u8]| {
        let written = stream.write_all(bytes).is_ok();
        sent += bytes.len();
        written
    };
    let mut connected = write(format!("{head}\r\n").as_bytes()) && write(&reply.body);
    if let AfterBody::Repeated(times) = reply.end {
        for _ in 1..times {
            connected = connected && write(&reply.body);
        }
    }
    if reply.end == AfterBody::Silent {
        let _ = stream.flush();
        let mut rest = [0; 64];
        while stream.read(&mut rest).is_ok_and(|read| read > 0) {}
    }
    let _ = closed_sender.send(sent);
}

fn read(stream: &mut TcpStream) -> Option<ReceivedRequest> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut words = head.lines().next()?.split(' ').map(str::to_owned);
            let (method, path) = (words.next()?, words.next()?);
            let request = ReceivedRequest {
                method,
                path,
                head,
                body: String::from_utf8_lossy(&bytes[end + 4..]).into_owned(),
            };
            let length: usize = request
                .header("content-length")
                .map_or(0, |length| length.parse().unwrap());
            if bytes.len() - end - 4 >= length {
                return Some(request);
            }
        }
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
    }
}
