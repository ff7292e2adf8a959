//! Sends one request and decodes its answer, with retries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use selvedge_protocol::{ConversationItem, ModelErrorKind};

use crate::transport::{
    check_response, connection_error, prompt_resource_path, request_headers, resource_url,
};
use crate::{Decoder, ModelError, ModelEvent, Provider, Secret};

/// Longest delay before a retry. If a provider asks for more, the request fails instead.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// How long to wait for usage numbers after the answer itself is complete.
const TRAILING_EVENTS_TIMEOUT: Duration = Duration::from_secs(3);

/// Forbids retries. Set when a complete call was returned, or by the caller.
#[derive(Debug, Clone, Default)]
pub(crate) struct NoRetryFlag(Arc<AtomicBool>);

impl NoRetryFlag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Which failures are retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryPolicy {
    /// Those after which the same request may succeed.
    Transient,
    /// Of these, only failures before the provider processed the request.
    Unprocessed,
}

impl RetryPolicy {
    fn allows(self, error: &ModelError) -> bool {
        error.is_transient() && (self == Self::Transient || error.is_unprocessed())
    }
}

/// The state of one request, over all its attempts.
pub(crate) struct RequestLoop {
    http: reqwest::Client,
    provider: Arc<Provider>,
    model: String,
    body: String,
    no_retry: NoRetryFlag,
    policy: RetryPolicy,
    retries: RetryCounters,
    step: RequestStep,
    /// Decoded events that were not returned yet.
    ready_events: VecDeque<ModelEvent>,
}

/// Retries left for this request. A successful attempt does not reset them.
#[derive(Debug)]
struct RetryCounters {
    /// Retries left for failures before the answer begins.
    request_retries_left: u32,
    /// Retries left for failures during the answer.
    stream_retries_left: u32,
    /// Retries made so far, of both kinds.
    retries_made: u32,
}

enum RequestStep {
    Send,
    Wait(Duration),
    Read(Box<(reqwest::Response, Decoder)>),
    Fail(ModelError),
    Done,
}

/// The part of an attempt that failed.
#[derive(Debug, Clone, Copy)]
enum AttemptStage {
    Request,
    Stream,
}

impl RequestLoop {
    pub(crate) fn new(
        http: reqwest::Client,
        provider: Arc<Provider>,
        model: &str,
        body: String,
        no_retry: NoRetryFlag,
    ) -> Self {
        Self {
            http,
            retries: RetryCounters {
                request_retries_left: provider.retries.request_max_retries,
                stream_retries_left: provider.retries.stream_max_retries,
                retries_made: 0,
            },
            provider,
            model: model.to_owned(),
            body,
            no_retry,
            policy: RetryPolicy::Transient,
            step: RequestStep::Send,
            ready_events: VecDeque::new(),
        }
    }

    pub(crate) fn with_policy(self, policy: RetryPolicy) -> Self {
        Self { policy, ..self }
    }

    pub(crate) async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.ready_events.pop_front() {
                if let ModelEvent::ItemDone {
                    item: ConversationItem::FunctionCall(_),
                    ..
                } = event
                {
                    self.no_retry.set();
                }
                return Some(Ok(event));
            }
            match std::mem::replace(&mut self.step, RequestStep::Done) {
                RequestStep::Send => match self.send().await {
                    Ok(response) => {
                        let decoder = Decoder::new(self.provider.origin(&self.model));
                        self.step = RequestStep::Read(Box::new((response, decoder)));
                    }
                    Err(error) => self.handle_failure(error, AttemptStage::Request, Vec::new()),
                },
                RequestStep::Wait(delay) => {
                    tokio::time::sleep(delay).await;
                    self.step = RequestStep::Send;
                }
                RequestStep::Read(reading) => self.read(reading).await,
                RequestStep::Fail(error) => return Some(Err(self.provider.redact_secrets(error))),
                RequestStep::Done => return None,
            }
        }
    }

    /// Sends the request. If the access token of a login is rejected, refreshes it and sends the
    /// request again, once.
    async fn send(&self) -> Result<reqwest::Response, ModelError> {
        let provider = self.provider.authorized().await?;
        let rejected = match self.send_as(&provider).await {
            Err(error) if error.status == Some(401) => error,
            answer => return answer,
        };
        match self.provider.reauthorized(&provider).await? {
            Some(provider) => self.send_as(&provider).await,
            None => Err(rejected),
        }
    }

    /// Sends the request with the key of `provider`, and redacts the key in an error.
    async fn send_as(&self, provider: &Provider) -> Result<reqwest::Response, ModelError> {
        let sent = self.send_with_key(provider).await;
        sent.map_err(|error| provider.redact_secrets(error))
    }

    async fn send_with_key(&self, provider: &Provider) -> Result<reqwest::Response, ModelError> {
        provider.require_key()?;
        provider.require_accepted_user()?;
        let request = self
            .http
            .post(resource_url(
                provider,
                prompt_resource_path(provider.wire_api),
            )?)
            .headers(request_headers(provider)?)
            .header("content-type", "application/json")
            .header("accept", "text/event-stream, application/json")
            .body(self.body.clone());
        // A local server may process a long prompt before it sends the headers of its response.
        let response = tokio::time::timeout(provider.stream_idle_timeout(), request.send()).await;
        let response = response.map_err(|_| processed(idle_timeout_error(provider)))?;
        let response = response.map_err(|error| match error.is_connect() {
            true => connection_error(provider, error),
            false => processed(connection_error(provider, error)),
        })?;
        check_response(response).await
    }

    async fn read(&mut self, mut reading: Box<(reqwest::Response, Decoder)>) {
        let (response, decoder) = &mut *reading;
        let mut timeout = self.provider.stream_idle_timeout();
        if decoder.may_end_here() {
            timeout = timeout.min(TRAILING_EVENTS_TIMEOUT);
        }
        let mut events = Vec::new();
        let result = match tokio::time::timeout(timeout, response.chunk()).await {
            Ok(Ok(Some(bytes))) => match decoder.feed(&bytes, &mut events) {
                Ok(()) if !decoder.needs_no_more_input() => {
                    self.ready_events.extend(events);
                    self.step = RequestStep::Read(reading);
                    return;
                }
                result => result.and_then(|()| decoder.finish(&mut events)),
            },
            Ok(Ok(None)) => decoder.finish(&mut events),
            // The answer is complete, even if the connection failed.
            Ok(Err(_)) | Err(_) if decoder.may_end_here() => decoder.finish(&mut events),
            Ok(Err(error)) => Err(connection_error(&self.provider, error)),
            Err(_) => Err(idle_timeout_error(&self.provider)),
        };
        match result {
            Ok(()) => self.ready_events.extend(events),
            Err(error) => self.handle_failure(processed(error), AttemptStage::Stream, events),
        }
    }

    /// Schedules a retry, or ends the request with the error. `events` were decoded before the
    /// failure; a retry discards them.
    fn handle_failure(&mut self, error: ModelError, stage: AttemptStage, events: Vec<ModelEvent>) {
        let left = match stage {
            AttemptStage::Request => &mut self.retries.request_retries_left,
            AttemptStage::Stream => &mut self.retries.stream_retries_left,
        };
        let delay = retry_delay(&error, self.retries.retries_made);
        let may_retry = self.policy.allows(&error) && !self.no_retry.get();
        if may_retry && *left > 0 && delay <= MAX_RETRY_DELAY {
            *left -= 1;
            self.retries.retries_made += 1;
            self.ready_events.push_back(ModelEvent::Retrying {
                error: self.provider.redact_secrets(error),
                delay,
            });
            self.step = RequestStep::Wait(delay);
        } else {
            self.ready_events.extend(events);
            self.step = RequestStep::Fail(error);
        }
    }
}

/// Returns the delay before the next attempt: what the provider asked for, else exponential
/// backoff, both with jitter.
fn retry_delay(error: &ModelError, made: u32) -> Duration {
    const BASE_DELAY: Duration = Duration::from_millis(200);
    const MAX_DELAY: Duration = Duration::from_secs(10);
    match error.retry_after {
        Some(delay) if !delay.is_zero() => delay + delay.mul_f64(0.1 * fastrand::f64()),
        _ => BASE_DELAY
            .saturating_mul(2u32.saturating_pow(made))
            .min(MAX_DELAY)
            .mul_f64(0.75 + 0.5 * fastrand::f64()),
    }
}

/// Returns the error of a request that the provider may have processed.
fn processed(error: ModelError) -> ModelError {
    ModelError {
        may_be_processed: true,
        ..error
    }
}

fn idle_timeout_error(provider: &Provider) -> ModelError {
    let seconds = provider.stream_idle_timeout().as_secs_f64();
    let name = &provider.name;
    ModelError::timeout(format!("provider `{name}` sent nothing for {seconds} s"))
}

impl Provider {
    /// Fails if the provider requires a key and none is set.
    pub(crate) fn require_key(&self) -> Result<(), ModelError> {
        match &self.env_key {
            Some(variable) if self.key.is_none() => {
                let message = format!("{variable} is not set: provider `{}` needs it", self.name);
                Err(ModelError::new(ModelErrorKind::Auth, message))
            }
            _ => Ok(()),
        }
    }

    /// Redacts the key and header values in an error. Some providers repeat them in messages.
    pub(crate) fn redact_secrets(&self, mut error: ModelError) -> ModelError {
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
                let seconds = retry_delay(&error, made as u32).as_secs_f64();
                assert!(
                    (0.75 * expected..=1.25 * expected).contains(&seconds),
                    "{made}: {seconds}"
                );
            }
        }
        error.retry_after = Some(Duration::from_secs(20));
        for _ in 0..50 {
            assert!((20.0..=22.0).contains(&retry_delay(&error, 3).as_secs_f64()));
        }
    }
}
