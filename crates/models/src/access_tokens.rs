//! Access tokens of a provider with an OAuth login. They change while a client lives, so they are
//! asked for before each request.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::{ModelError, Provider, Secret};

/// Supplies access tokens, and refreshes them.
pub trait AccessTokenSource: Send + Sync {
    /// Returns a token that has not expired.
    fn access_token(&self) -> BoxFuture<'_, Result<Secret, ModelError>>;

    /// Returns another token than the one that the provider rejected.
    fn renew_token(&self, rejected: Secret) -> BoxFuture<'_, Result<Secret, ModelError>>;
}

/// A shared [`AccessTokenSource`]. Two are equal if they are the same.
#[derive(Clone)]
pub struct AccessTokens(Arc<dyn AccessTokenSource>);

impl AccessTokens {
    /// Shares a source.
    pub fn new(source: impl AccessTokenSource + 'static) -> Self {
        Self(Arc::new(source))
    }
}

impl fmt::Debug for AccessTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl PartialEq for AccessTokens {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Provider {
    /// Returns the provider with the headers for the next request: with a login, those of the
    /// current access token.
    pub(crate) async fn authorized(&self) -> Result<Cow<'_, Self>, ModelError> {
        match &self.access_tokens {
            Some(tokens) => Ok(Cow::Owned(self.with_token(tokens.0.access_token().await?))),
            None => Ok(Cow::Borrowed(self)),
        }
    }

    /// Returns the provider with a new access token, after the one of `rejected` was refused.
    /// `None` if the provider has no login.
    pub(crate) async fn reauthorized(&self, rejected: &Self) -> Result<Option<Self>, ModelError> {
        let (Some(tokens), Some(key)) = (&self.access_tokens, &rejected.key) else {
            return Ok(None);
        };
        let token = tokens.0.renew_token(key.clone()).await?;
        Ok(Some(self.with_token(token)))
    }

    fn with_token(&self, token: Secret) -> Self {
        Self {
            key: Some(token),
            ..self.clone()
        }
    }
}
