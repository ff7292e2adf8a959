//! A real HTTP server on loopback that answers as it is told to, and tells who asked and who left.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a client asked.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub head: String,
    pub body: String,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<String> {
        let own = |line: &str| {
            line.split_once(':')
                .filter(|(own, _)| own.eq_ignore_ascii_case(name))
                .map(|(_, v)| v.trim().to_owned())
        };
        self.head.lines().find_map(own)
    }
}

/// What is answered.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub end: End,
}

/// What happens after the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The connection is closed.
    Proper,
    /// Nothing more comes; the server waits until the client leaves.
    Silent,
    /// The body again and again, this often.
    Repeated(usize),
}

impl Reply {
    pub fn new(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_owned(), kind.to_owned())];
        Self {
            status,
            headers,
            body: body.into(),
            end: End::Proper,
        }
    }

    pub fn html(body: &str) -> Self {
        Self::new(200, "text/html; charset=utf-8", body)
    }

    pub fn to(place: &str) -> Self {
        Self::new(302, "text/html", "gone").header("location", place)
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn end(mut self, end: End) -> Self {
        self.end = end;
        self
    }
}

pub struct Server {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
    /// A message for each request as it comes in.
    arrived: Mutex<Receiver<()>>,
    /// How much was sent to each client that is gone.
    left: Mutex<Receiver<usize>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (arrive, arrived) = channel();
        let (leave, left) = channel();
        let (seen, answer) = (asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer, arrive, leave) =
                    (seen.clone(), answer.clone(), arrive.clone(), leave.clone());
                std::thread::spawn(move || serve(stream, &seen, answer.as_ref(), &arrive, &leave));
            }
        });
        Self {
            port,
            asked,
            arrived: Mutex::new(arrived),
            left: Mutex::new(left),
        }
    }

    pub fn url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.port)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self.asked().into_iter().map(|asked| asked.path).collect();
        paths.sort();
        paths
    }

    /// Waits until a request comes in.
    pub fn wait_for_a_request(&self) {
        self.arrived
            .lock()
            .unwrap()
            .recv_timeout(Duration::from_secs(30))
            .expect("no request came");
    }

    /// Waits until a client is gone, and tells how much it was sent.
    pub fn wait_until_one_left(&self) -> usize {
        self.left
            .lock()
            .unwrap()
            .recv_timeout(Duration::from_secs(30))
            .expect("nobody left")
    }
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<Asked>>,
    answer: &dyn Fn(&Asked) -> Reply,
    arrive: &Sender<()>,
    leave: &Sender<usize>,
) {
    let Some(asked) = read(&mut stream) else {
        return;
    };
    seen.lock().unwrap().push(asked.clone());
    let _ = arrive.send(());
    let reply = answer(&asked);
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
    let mut there = write(format!("{head}\r\n").as_bytes()) && write(&reply.body);
    if let End::Repeated(times) = reply.end {
        for _ in 1..times {
            there = there && write(&reply.body);
        }
    }
    if reply.end == End::Silent {
        let _ = stream.flush();
        let mut rest = [0; 64];
        while stream.read(&mut rest).is_ok_and(|read| read > 0) {}
    }
    let _ = leave.send(sent);
}

fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut words = head.lines().next()?.split(' ').map(str::to_owned);
            let (method, path) = (words.next()?, words.next()?);
            let asked = Asked {
                method,
                path,
                head,
                body: String::from_utf8_lossy(&bytes[end + 4..]).into_owned(),
            };
            let length: usize = asked
                .header("content-length")
                .map_or(0, |length| length.parse().unwrap());
            if bytes.len() - end - 4 >= length {
                return Some(asked);
            }
        }
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
    }
}
