//! The secrets of tokens. Only their hashes are stored.

use sha2::{Digest, Sha256};

/// How every secret begins, so that scanners recognise one.
const PREFIX: &str = "slv_";
/// Number of random bytes of a secret. A guess is hopeless, so a plain hash is enough.
const SECRET_BYTES: usize = 32;

/// The secret of a token, which a client sends as bearer token.
#[derive(Clone)]
pub struct TokenSecret(String);

/// The operating system returned no random bytes.
#[derive(Debug)]
pub struct TokenSecretError(String);

impl std::fmt::Display for TokenSecretError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot create a random token: {}", self.0)
    }
}

impl std::error::Error for TokenSecretError {}

impl TokenSecret {
    /// Returns a random secret.
    pub fn random() -> Result<Self, TokenSecretError> {
        let mut bytes = [0; SECRET_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| TokenSecretError(error.to_string()))?;
        Ok(Self(format!("{PREFIX}{}", selvedge_text::hex(&bytes))))
    }

    /// Returns the secret, to be shown once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the hash that is stored.
    pub fn hash(&self) -> [u8; 32] {
        hash_of(&self.0)
    }
}

impl std::fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenSecret(…)")
    }
}

/// Returns the hash of a secret that a client sent.
pub(crate) fn hash_of(secret: &str) -> [u8; 32] {
    Sha256::digest(format!("selvedge api token\n{secret}")).into()
}
