//! A server that is killed again and again while clients send messages and follow events.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::answer_encoding::{block, text};
use crate::fixture::ServeFixture;
use crate::recovery::{remaining_items, stored_items, wait_until};
use crate::server::{Asked, Reply};
use crate::support::api::ApiClient;

const SESSIONS: usize = 4;
const MESSAGES: usize = 4;
const KILLS: usize = 20;

/// A model that runs a script for each message, which appends the mark of the message to a file.
fn appends_marks(asked: &Asked) -> Reply {
    let messages = asked.body["messages"].as_array().unwrap();
    let last = messages.last().unwrap()["content"].to_string();
    match last.find("mark ") {
        Some(at) if !last.contains("marked") => {
            let rest = &last[at + "mark ".len()..];
            let mark: String = rest.chars().take_while(char::is_ascii_digit).collect();
            let code = format!(
                "await tools.exec({{ command: ['sh', '-c', 'echo {mark} >> marks'] }});\n\
                 await tools.listDir({{ path: '.' }}); return 'marked'"
            );
            vec![text(&format!("I will.\n{}", block(&code)))].into()
        }
        _ => vec![text("done")].into(),
    }
}

/// What the threads of the clients share.
struct KilledServer {
    /// A client of the server that runs now, or of one that was just killed.
    client: Mutex<ApiClient>,
    kills: AtomicUsize,
    is_over: AtomicBool,
}

/// Ends the threads, also if the test fails.
struct EndOnDrop<'a>(&'a KilledServer);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

impl KilledServer {
    fn client(&self) -> ApiClient {
        let client = self.client.lock();
        client.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Sends messages with idempotency keys, each just before a kill, until they are acknowledged.
    fn send_messages(&self, session: &str, first_mark: usize) {
        for number in 0..MESSAGES {
            let due = number * KILLS / MESSAGES;
            wait_until("the kill is due", || {
                self.kills.load(Ordering::SeqCst) >= due || self.is_over()
            });
            let key = format!("{session} {number}");
            let path = format!("POST /api/v1/sessions/{session}/messages");
            let body = json!({"text": format!("mark {} please", first_mark + number)});
            wait_until("the message is acknowledged", || {
                let headers = [("Idempotency-Key", key.as_str())];
                let client = self.client();
                let sent = client.try_request(&path, &headers, &body.to_string());
                let acknowledged = sent.filter(|sent| sent.status == 202);
                let number = acknowledged.and_then(|sent| sent.body["number"].as_u64());
                number.is_some() || self.is_over()
            });
        }
    }

    /// Follows the events of a session, after each kill from the last one that arrived. `seen` gets
    /// the stored events.
    fn follow(&self, session: &str, seen: &Mutex<Vec<(u64, Value)>>) {
        let path = format!("GET /api/v1/sessions/{session}/events");
        while !self.is_over() {
            let last = seen.lock().unwrap().last().map_or(0, |(number, _)| *number);
            let id = last.to_string();
            let stream = self
                .client()
                .try_send(&path, &[("Last-Event-ID", id.as_str())], "");
            let Ok(stream) = stream else {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            let (mut number, mut body) = (None, None);
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if let Some(id) = line.strip_prefix("id:") {
                    number = id.trim().parse::<u64>().ok();
                } else if let Some(data) = line.strip_prefix("data:") {
                    body = serde_json::from_str::<Value>(data.trim()).ok();
                } else if line.is_empty()
                    && let (Some(number), Some(body)) = (number.take(), body.take())
                {
                    seen.lock().unwrap().push((number, body));
                }
            }
        }
    }
}

/// Returns whether the outputs of a turn say of a call that its outcome is unknown: its script was
/// resumed, and could not repeat the call.
fn has_unknown_outcome(client: &ApiClient, session: &str, turn: &Value) -> bool {
    let items = client.get(&format!("/api/v1/sessions/{session}/items"));
    let mut items = items.body["items"].as_array().unwrap().iter();
    items.any(|entry| {
        entry["turn"] == *turn && entry["item"]["error"]["code"] == "OutcomeUnknownError"
    })
}

#[test]
fn kills_under_load_lose_and_repeat_nothing() {
    let fixture = ServeFixture::new(appends_marks);
    let (server, client) = fixture.start();
    let sessions: Vec<String> = (0..SESSIONS).map(|_| client.session(json!({}))).collect();
    let seen: [Mutex<Vec<(u64, Value)>>; SESSIONS] = Default::default();
    let killed = KilledServer {
        client: Mutex::new(client),
        kills: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let mut server = server;
        let _end = EndOnDrop(&killed);
        let mut senders = Vec::new();
        for (index, session) in sessions.iter().enumerate() {
            let (killed, seen) = (&killed, &seen[index]);
            scope.spawn(move || killed.follow(session, seen));
            senders.push(scope.spawn(move || killed.send_messages(session, index * MESSAGES)));
        }
        for kill in 0..KILLS {
            killed.kills.store(kill, Ordering::SeqCst);
            let pause = [30, 120, 250][kill % 3] + 40 * (kill * MESSAGES / KILLS) as u64;
            std::thread::sleep(Duration::from_millis(pause));
            server.kill();
            let (next, client) = fixture.start();
            server = next;
            *killed.client.lock().unwrap() = client;
        }
        for sender in senders {
            sender.join().unwrap();
        }
        let client = killed.client();
        let marks = fixture.workspace.work().join("marks");
        for (index, session) in sessions.iter().enumerate() {
            let answers = (1..=MESSAGES as u64).map(|number| client.answer(session, number));
            let answers: Vec<Value> = answers.collect();
            let path = format!("/api/v1/sessions/{session}/messages/{}", MESSAGES + 1);
            assert_eq!(client.get(&path).status, 404, "a message was stored twice");
            assert_eq!(
                remaining_items(&client, session),
                stored_items(&client, session)
            );
            // Every stored event arrived once, in order.
            let stored = client.stored_events(session, 0);
            wait_until("the last event arrives", || {
                seen[index].lock().unwrap().len() >= stored.len()
            });
            assert_eq!(*seen[index].lock().unwrap(), stored);
            let marks = std::fs::read_to_string(&marks).unwrap_or_default();
            for answer in answers {
                assert_eq!(answer["state"], "answered", "{answer}");
                let text = answer["text"].as_str().unwrap();
                let mark = text.split(' ').nth(1).unwrap();
                let lines = marks.lines().filter(|line| *line == mark).count();
                let is_explained = match lines {
                    0 => has_unknown_outcome(&client, session, &answer["turn"]),
                    lines => lines == 1,
                };
                assert!(is_explained, "{lines} lines of mark {mark}: {answer}");
            }
        }
        // The streams end, and with them the threads that follow.
        killed.is_over.store(true, Ordering::SeqCst);
        server.kill();
    });
}
