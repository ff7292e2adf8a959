//! The error type of this crate.

use std::time::Duration;

use selvedge_protocol::{ModelErrorKind, TurnError};

/// Failure of a request to a provider.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct ModelError {
    /// Class of the failure, which decides whether it is retried and how it is reported.
    pub kind: ModelErrorKind,
    /// The provider's message if it sent one; one line.
    pub message: String,
    /// HTTP status of the response; `None` if there was no response or it was a success.
    pub status: Option<u16>,
    /// Delay before the next attempt that the provider asked for.
    pub retry_after: Option<Duration>,
    /// The provider's id of the request, for its support.
    pub request_id: Option<String>,
    /// Capability whose absence caused the failure. The same request without it may succeed.
    pub missing_capability: Option<ModelCapability>,
    /// Whether the provider may have processed the request, and charge for it: the connection
    /// failed after the request was sent, or the answer broke off.
    pub may_be_processed: bool,
}

impl From<ModelError> for TurnError {
    fn from(error: ModelError) -> Self {
        Self::new(error.kind, error.message)
    }
}

/// Capability that a model or server may not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelCapability {
    /// Tool definitions and calls.
    Tools,
    /// Images in the input.
    Images,
    /// Reasoning before the answer.
    Reasoning,
}

impl ModelError {
    /// Creates an error with a kind and a message only.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            status: None,
            retry_after: None,
            request_id: None,
            missing_capability: None,
            may_be_processed: false,
        }
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Protocol, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::InvalidRequest, message)
    }

    pub(crate) fn base_url(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::BaseUrl, message)
    }

    pub(crate) fn network(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Network, message)
    }

    pub(crate) fn timeout(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Timeout, message)
    }

    /// Whether the provider did not process the request, so that it charges nothing for it: it was
    /// not reached, it rejected the request, or it was overloaded. After other failures of the
    /// server, such as HTTP status 500 or 504, it may have processed it.
    pub fn is_unprocessed(&self) -> bool {
        let is_refusal = match self.status {
            None | Some(503 | 529) => true,
            Some(status) => (400..500).contains(&status) && !matches!(status, 408 | 409),
        };
        is_refusal && !self.may_be_processed
    }

    /// Whether the same request may succeed a little later.
    pub fn is_transient(&self) -> bool {
        use ModelErrorKind::{Network, Overloaded, Protocol, RateLimit, Server, Timeout};
        matches!(
            self.kind,
            RateLimit | Overloaded | Server | Network | Timeout | Protocol
        )
    }
}

impl From<crate::sse::EventTooLarge> for ModelError {
    fn from(_: crate::sse::EventTooLarge) -> Self {
        let limit = crate::sse::MAX_EVENT_BYTES >> 20;
        Self::protocol(format!("an event is larger than {limit} MB"))
    }
}
