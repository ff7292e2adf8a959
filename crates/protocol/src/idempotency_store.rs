//! The interface to the answers to repeated requests.

use async_trait::async_trait;

use crate::ServerStoreError;

/// An answer to a request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReply {
    /// The HTTP status.
    pub status: u16,
    /// Type of the body.
    pub content_type: String,
    /// The body that the client received.
    pub body: String,
}

/// What is known of a request with an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepeatedRequest {
    /// The request is new, or the process that handled it was killed.
    New,
    /// The request was answered like this.
    Answered(StoredReply),
    /// A running process handles the request.
    InProgress,
    /// Running processes handle as many requests of the token as possible.
    TooMany,
    /// The key was used for another request.
    OtherRequest,
}

/// Stores the answers to requests with an idempotency key. It promises:
///
/// - Of several requests with the same key, one is handled at a time, at whichever servers they
///   arrive. If its server dies, the next one is.
/// - A request that was answered is not handled again, but gets the same answer for at least a day,
///   as long as the token has not sent too many others since.
/// - A key that was used for another request is refused.
#[async_trait]
pub trait IdempotencyStore: Send + Sync {
    /// Reserves a key for a request with this digest, unless it was used before.
    async fn begin_request(
        &self,
        token: &str,
        key: &str,
        digest: [u8; 32],
    ) -> Result<RepeatedRequest, ServerStoreError>;
    /// Stores the answer of a request that was reserved; `None` frees the key.
    async fn end_request(
        &self,
        token: &str,
        key: &str,
        reply: Option<StoredReply>,
    ) -> Result<(), ServerStoreError>;
}
