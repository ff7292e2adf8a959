//! What can go wrong with an answer, as classes somebody can act on.

use std::time::Duration;

use selvedge_protocol::{ModelErrorKind, TurnError};

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct ModelError {
    /// What to do about it depends on this.
    pub kind: ModelErrorKind,
    /// One line, in the provider's own words where it had any.
    pub message: String,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
    /// How long the provider asks to wait.
    pub retry_after: Option<Duration>,
    /// The provider's name for the request, to ask its support about.
    pub request_id: Option<String>,
    /// What the model or server cannot do, where that is why it said no: the same without it may work.
    pub lacks: Option<Ability>,
}

impl From<ModelError> for TurnError {
    fn from(error: ModelError) -> Self {
        Self::new(error.kind, error.message)
    }
}

/// Something that not every model or server can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ability {
    /// Take tool definitions and make calls.
    Tools,
    /// Look at images.
    Images,
    /// Think before it answers.
    Reasoning,
}

impl ModelError {
    /// An error with nothing but a kind and a message.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            status: None,
            retry_after: None,
            request_id: None,
            lacks: None,
        }
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Protocol, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::InvalidRequest, message)
    }

    pub(crate) fn network(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Network, message)
    }

    /// Whether the same request may work a little later.
    pub fn is_passing(&self) -> bool {
        use ModelErrorKind::{Network, Overloaded, Protocol, RateLimit, Server};
        matches!(
            self.kind,
            RateLimit | Overloaded | Server | Network | Protocol
        )
    }
}

impl From<crate::sse::TooLarge> for ModelError {
    fn from(_: crate::sse::TooLarge) -> Self {
        let most = crate::sse::MAX_EVENT_BYTES >> 20;
        Self::protocol(format!("an event is larger than {most} MB"))
    }
}
