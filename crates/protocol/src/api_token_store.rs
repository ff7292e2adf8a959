//! The interface to the tokens of clients.

use async_trait::async_trait;

use crate::{ApiToken, ServerStoreError, TokenScope};

/// A token to create.
#[derive(Debug, Clone, PartialEq)]
pub struct NewApiToken {
    /// Name of the token.
    pub name: String,
    /// Hash of the secret.
    pub secret_hash: [u8; 32],
    /// What the token may be used for.
    pub scopes: Vec<TokenScope>,
    /// Folders that the token can reach.
    pub workspaces: Vec<String>,
    /// When the token expires, in milliseconds since 1970.
    pub expires_ms: Option<i64>,
    /// What its turns may cost in all.
    pub max_cost: Option<f64>,
}

/// Stores the tokens of clients. It promises:
///
/// - No secret is stored, only its hash.
/// - Names are unique, and no workspace of a valid token lies in a workspace of another one, also
///   if two are created at the same time.
/// - A token that was revoked is refused by every server with its next look at the store, and stays
///   in the list.
/// - The secret of a login is valid once, whichever server it is sent to.
/// - What a future that returned `Ok` has changed survives a crash of this process.
#[async_trait]
pub trait ApiTokenStore: Send + Sync {
    /// Creates a token. Fails if another one has its name, and if one of its workspaces lies in
    /// another workspace of a valid token: agents in the outer one could replace the inner one with
    /// a link.
    async fn create_token(&self, token: NewApiToken) -> Result<ApiToken, ServerStoreError>;
    /// Returns all tokens, the newest first.
    async fn tokens(&self) -> Result<Vec<ApiToken>, ServerStoreError>;
    /// Returns whether the tokens can be read, and the database takes writes.
    async fn is_available(&self) -> bool;
    /// Returns the token with this hash of its secret, also if it is expired or revoked.
    async fn token_by_hash(&self, hash: [u8; 32]) -> Result<Option<ApiToken>, ServerStoreError>;
    /// Revokes a token by its name or id. A revoked token stays in the list.
    async fn revoke_token(&self, name: &str) -> Result<ApiToken, ServerStoreError>;
    /// Stores the hash of a secret with which a browser can log in once until a time, in
    /// milliseconds since 1970.
    async fn create_login(&self, hash: [u8; 32], expires_ms: i64) -> Result<(), ServerStoreError>;
    /// Uses up the secret of a login. Returns whether it was valid.
    async fn take_login(&self, hash: [u8; 32]) -> Result<bool, ServerStoreError>;
}
