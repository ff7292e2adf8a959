//! An encoder for the memory that asks a provider's embedding model.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_memory::{Encoder, MemoryError};
use selvedge_models::{ModelClient, ModelError, Provider};

/// The time limit for the vector of a question. A search without it uses keywords alone.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(600);
/// The time limit for the vectors of turns.
const TURNS_TIMEOUT: Duration = Duration::from_secs(30);

/// An embedding model of a provider, such as `openai/text-embedding-3-small`.
///
/// Requests are sent by a thread with a runtime of its own, which the first text starts: the memory
/// encodes from threads with and without a runtime.
#[derive(Debug)]
pub struct RemoteEncoder {
    name: String,
    model: String,
    client: ModelClient,
    requests: Mutex<Option<Sender<EncodeRequest>>>,
}

/// Texts to encode, and where the answer goes.
struct EncodeRequest {
    texts: Vec<String>,
    time_limit: Duration,
    /// When the caller stops waiting; `None` if it waits for the answer.
    deadline: Option<Instant>,
    answer: Sender<Result<Vec<Vec<f32>>, String>>,
}

impl RemoteEncoder {
    /// Creates an encoder. It does not connect yet.
    pub fn new(provider: Provider, model: &str) -> Result<Self, ModelError> {
        Ok(Self {
            name: format!("{}/{model}", provider.name),
            model: model.to_owned(),
            client: ModelClient::new(provider)?,
            requests: Mutex::default(),
        })
    }

    /// Returns the vectors of texts. `is_urgent` includes the requests before this one in the time
    /// limit; otherwise it begins when the request is sent.
    fn ask(
        &self,
        texts: &[&str],
        time_limit: Duration,
        is_urgent: bool,
    ) -> Result<Vec<Vec<f32>>, MemoryError> {
        let failed = |message: String| MemoryError::Encoder(format!("{}: {message}", self.name));
        let (answer, answered) = channel();
        let request = EncodeRequest {
            // Providers reject an empty text.
            texts: texts
                .iter()
                .map(|text| match text.trim().is_empty() {
                    true => ".".to_owned(),
                    false => (*text).to_owned(),
                })
                .collect(),
            time_limit,
            deadline: is_urgent.then(|| Instant::now() + time_limit),
            answer,
        };
        self.sender()
            .map_err(|error| failed(error.to_string()))?
            .send(request)
            .map_err(|_| failed("its thread has ended".to_owned()))?;
        let answer = match is_urgent {
            true => answered.recv_timeout(time_limit),
            false => answered.recv().map_err(RecvTimeoutError::from),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(no_answer(time_limit)),
            Err(RecvTimeoutError::Disconnected) => Err("its thread has ended".to_owned()),
        };
        answer.map_err(|message| {
            tracing::warn!(target: "selvedge::memory", encoder = %self.name, %message,
                "no vectors");
            failed(message)
        })
    }

    /// Returns the channel to the thread, and starts the thread with the first call.
    fn sender(&self) -> Result<Sender<EncodeRequest>, std::io::Error> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*requests {
            return Ok(sender.clone());
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (sender, receiver) = channel();
        let (client, model) = (self.client.clone(), self.model.clone());
        std::thread::Builder::new()
            .name("encoder".to_owned())
            .spawn(move || answer_requests(&runtime, &client, &model, &receiver))?;
        Ok(requests.insert(sender).clone())
    }
}

/// Answers requests until the encoder is dropped.
fn answer_requests(
    runtime: &tokio::runtime::Runtime,
    client: &ModelClient,
    model: &str,
    requests: &Receiver<EncodeRequest>,
) {
    for request in requests {
        if request.deadline.is_some_and(|end| Instant::now() >= end) {
            // The caller has stopped waiting.
            continue;
        }
        let embedded = client.embed(model, &request.texts);
        let answer = runtime.block_on(async {
            match tokio::time::timeout(request.time_limit, embedded).await {
                Ok(answer) => answer.map_err(|error| error.message),
                Err(_) => Err(no_answer(request.time_limit)),
            }
        });
        // The caller of an urgent request may have stopped waiting.
        let _ = request.answer.send(answer);
    }
}

fn no_answer(time_limit: Duration) -> String {
    format!("no answer within {} ms", time_limit.as_millis())
}

impl Encoder for RemoteEncoder {
    fn name(&self) -> &str {
        &self.name
    }

    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, MemoryError> {
        self.ask(texts, TURNS_TIMEOUT, false)
    }

    fn encode_question(&self, question: &str) -> Result<Vec<f32>, MemoryError> {
        let mut vectors = self.ask(&[question], QUESTION_TIMEOUT, true)?;
        Ok(vectors.pop().unwrap_or_default())
    }
}
