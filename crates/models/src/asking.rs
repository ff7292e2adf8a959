//! Sends one request and decodes its answer, with retries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use selvedge_protocol::{Item, ModelErrorKind};

use crate::transport::{accepted, address, broken, headers, resource};
use crate::{Decoder, ModelError, ModelEvent, Provider, Secret};

/// Longest delay before a retry. If a provider asks for more, the request fails instead.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How long to wait for usage numbers after the answer itself is complete.
const AFTERMATH: Duration = Duration::from_secs(3);

/// Flag that is set when the caller has acted on the answer so far. It forbids retries.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acted(Arc<AtomicBool>);

impl Acted {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The state of one request, over all its attempts.
pub(crate) struct Asking {
    http: reqwest::Client,
    provider: Arc<Provider>,
    model: String,
    body: String,
    acted: Acted,
    left: Attempts,
    step: Step,
    /// Decoded events that were not returned yet.
    ready: VecDeque<ModelEvent>,
}

/// Retries left for this request. A successful attempt does not reset them.
#[derive(Debug)]
struct Attempts {
    /// Retries left for failures before the answer begins.
    requests: u32,
    /// Retries left for failures during the answer.
    streams: u32,
    /// Retries made so far, of both kinds.
    made: u32,
}

enum Step {
    Send,
    Wait(Duration),
    Read(Box<(reqwest::Response, Decoder)>),
    Fail(ModelError),
    Over,
}

/// The part of an attempt that failed.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Request,
    Stream,
}

impl Asking {
    pub(crate) fn new(
        http: reqwest::Client,
        provider: Arc<Provider>,
        model: &str,
        body: String,
        acted: Acted,
    ) -> Self {
        Self {
            http,
            left: Attempts {
                requests: provider.retries.request_max_retries,
                streams: provider.retries.stream_max_retries,
                made: 0,
            },
            provider,
            model: model.to_owned(),
            body,
            acted,
            step: Step::Send,
            ready: VecDeque::new(),
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if let ModelEvent::ItemDone {
                    done: Item::FunctionCall(_),
                    ..
                } = event
                {
                    self.acted.set();
                }
                return Some(Ok(event));
            }
            match std::mem::replace(&mut self.step, Step::Over) {
                Step::Send => match self.send().await {
                    Ok(response) => {
                        let decoder = Decoder::new(self.provider.origin(&self.model));
                        self.step = Step::Read(Box::new((response, decoder)));
                    }
                    Err(error) => self.failed(error, Stage::Request, Vec::new()),
                },
                Step::Wait(delay) => {
                    tokio::time::sleep(delay).await;
                    self.step = Step::Send;
                }
                Step::Read(reading) => self.read(reading).await,
                Step::Fail(error) => return Some(Err(self.provider.discreet(error))),
                Step::Over => return None,
            }
        }
    }

    async fn send(&self) -> Result<reqwest::Response, ModelError> {
        let provider = &*self.provider;
        provider.check_key()?;
        let request = self
            .http
            .post(address(provider, resource(provider.wire))?)
            .headers(headers(provider)?)
            .header("content-type", "application/json")
            .header("accept", "text/event-stream, application/json")
            .body(self.body.clone());
        // A local server may process a long prompt before it sends the headers of its response.
        let response = tokio::time::timeout(provider.stream_idle_timeout(), request.send()).await;
        let response = response.map_err(|_| silent(provider))?;
        accepted(response.map_err(|error| broken(provider, error))?).await
    }

    async fn read(&mut self, mut reading: Box<(reqwest::Response, Decoder)>) {
        let (response, decoder) = &mut *reading;
        let mut timeout = self.provider.stream_idle_timeout();
        if decoder.may_end() {
            timeout = timeout.min(AFTERMATH);
        }
        let mut events = Vec::new();
        let result = match tokio::time::timeout(timeout, response.chunk()).await {
            Ok(Ok(Some(bytes))) => match decoder.feed(&bytes, &mut events) {
                Ok(()) if !decoder.is_finished() => {
                    self.ready.extend(events);
                    self.step = Step::Read(reading);
                    return;
                }
                result => result.and_then(|()| decoder.finish(&mut events)),
            },
            Ok(Ok(None)) => decoder.finish(&mut events),
            // The answer is complete, even if the connection failed.
            Ok(Err(_)) | Err(_) if decoder.may_end() => decoder.finish(&mut events),
            Ok(Err(error)) => Err(broken(&self.provider, error)),
            Err(_) => Err(silent(&self.provider)),
        };
        match result {
            Ok(()) => self.ready.extend(events),
            Err(error) => self.failed(error, Stage::Stream, events),
        }
    }

    /// Schedules a retry, or ends the request with the error. `events` were decoded before the
    /// failure; a retry discards them.
    fn failed(&mut self, error: ModelError, stage: Stage, events: Vec<ModelEvent>) {
        let left = match stage {
            Stage::Request => &mut self.left.requests,
            Stage::Stream => &mut self.left.streams,
        };
        let delay = delay(&error, self.left.made);
        if error.is_passing() && *left > 0 && !self.acted.get() && delay <= LONGEST_WAIT {
            *left -= 1;
            self.left.made += 1;
            self.ready.push_back(ModelEvent::Retrying {
                error: self.provider.discreet(error),
                after: delay,
            });
            self.step = Step::Wait(delay);
        } else {
            self.ready.extend(events);
            self.step = Step::Fail(error);
        }
    }
}

/// Returns the delay before the next attempt: what the provider asked for, else exponential
/// backoff, both with jitter.
fn delay(error: &ModelError, made: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(200);
    const MOST: Duration = Duration::from_secs(10);
    match error.retry_after {
        Some(delay) if !delay.is_zero() => delay + delay.mul_f64(0.1 * fastrand::f64()),
        _ => FIRST
            .saturating_mul(2u32.saturating_pow(made))
            .min(MOST)
            .mul_f64(0.75 + 0.5 * fastrand::f64()),
    }
}

fn silent(provider: &Provider) -> ModelError {
    let seconds = provider.stream_idle_timeout().as_secs_f64();
    let name = &provider.name;
    ModelError::network(format!("provider `{name}` sent nothing for {seconds} s"))
}

impl Provider {
    /// Fails if the provider requires a key and none is set.
    pub(crate) fn check_key(&self) -> Result<(), ModelError> {
        match &self.env_key {
            Some(variable) if self.key.is_none() => {
                let message = format!("{variable} is not set: provider `{}` needs it", self.name);
                Err(ModelError::new(ModelErrorKind::Auth, message))
            }
            _ => Ok(()),
        }
    }

    /// Redacts the key and header values in an error. Some providers repeat them in messages.
    pub(crate) fn discreet(&self, mut error: ModelError) -> ModelError {
        let secrets = self.key.iter().chain(self.headers.values());
        for secret in secrets
            .map(Secret::reveal)
            .filter(|secret| secret.len() >= 4)
        {
            error.message = error.message.replace(secret, "[secret]");
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_and_are_never_shorter_than_requested() {
        let mut error = ModelError::network("x");
        for made in 0..40 {
            let expected = (0.2 * 2f64.powi(made)).min(10.0);
            for _ in 0..50 {
                let seconds = delay(&error, made as u32).as_secs_f64();
                assert!(
                    (0.75 * expected..=1.25 * expected).contains(&seconds),
                    "{made}: {seconds}"
                );
            }
        }
        error.retry_after = Some(Duration::from_secs(20));
        for _ in 0..50 {
            assert!((20.0..=22.0).contains(&delay(&error, 3).as_secs_f64()));
        }
    }
}
