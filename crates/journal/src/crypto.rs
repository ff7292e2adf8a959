//! Key derivation, keyed hashes and encryption.

use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::JournalError;

/// The size of a nonce of XChaCha20-Poly1305, in bytes.
pub(crate) const NONCE_BYTES: usize = 24;

/// Derives from `key` the key for one purpose (HKDF-SHA-256).
#[allow(clippy::expect_used)]
fn derive_key(key: &[u8; 32], purpose: &str) -> [u8; 32] {
    let mut derived = [0; 32];
    Hkdf::<Sha256>::new(None, key)
        .expand(purpose.as_bytes(), &mut derived)
        .expect("HKDF-SHA-256 expands to up to 8160 bytes");
    derived
}

/// A keyed hash (HMAC-SHA-256).
#[derive(Clone)]
pub(crate) struct KeyedHash(Hmac<Sha256>);

impl KeyedHash {
    #[allow(clippy::expect_used)]
    pub(crate) fn new(key: &[u8; 32], purpose: &str) -> Self {
        let key = derive_key(key, purpose);
        Self(hmac::KeyInit::new_from_slice(&key).expect("HMAC takes a key of any length"))
    }

    /// Returns the hash of the concatenated parts.
    pub(crate) fn hash(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut hmac = self.0.clone();
        for part in parts {
            hmac.update(part);
        }
        hmac.finalize().into_bytes().into()
    }
}

/// Authenticated encryption (XChaCha20-Poly1305). The nonce is stored before the ciphertext.
#[derive(Clone)]
pub(crate) struct Cipher(XChaCha20Poly1305);

impl Cipher {
    pub(crate) fn new(key: &[u8; 32], purpose: &str) -> Self {
        Self(XChaCha20Poly1305::new(&derive_key(key, purpose).into()))
    }

    pub(crate) fn encrypt(
        &self,
        nonce: &[u8; NONCE_BYTES],
        bytes: &[u8],
    ) -> Result<Vec<u8>, JournalError> {
        let encrypted = self.0.encrypt(&XNonce::from(*nonce), bytes);
        let encrypted =
            encrypted.map_err(|_| JournalError::Damaged("cannot encrypt a value".into()))?;
        Ok([&nonce[..], &encrypted].concat())
    }

    /// Fails with [`JournalError::WrongKey`] if the bytes were modified or encrypted with another
    /// key.
    pub(crate) fn decrypt(&self, encrypted: &[u8]) -> Result<Vec<u8>, JournalError> {
        let (nonce, encrypted) = encrypted
            .split_first_chunk::<NONCE_BYTES>()
            .ok_or(JournalError::WrongKey)?;
        self.0
            .decrypt(&XNonce::from(*nonce), encrypted)
            .map_err(|_| JournalError::WrongKey)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn keys_derived_for_different_purposes_differ() {
        let key = [7; 32];
        assert_ne!(derive_key(&key, "one"), derive_key(&key, "two"));
        let (one, two) = (Cipher::new(&key, "one"), Cipher::new(&key, "two"));
        let encrypted = one.encrypt(&[1; NONCE_BYTES], b"text").unwrap();
        assert_eq!(one.decrypt(&encrypted).unwrap(), b"text");
        assert!(matches!(
            two.decrypt(&encrypted),
            Err(JournalError::WrongKey)
        ));
        for cut in [0, NONCE_BYTES - 1, NONCE_BYTES, encrypted.len() - 1] {
            let decrypted = one.decrypt(&encrypted[..cut]);
            assert!(matches!(decrypted, Err(JournalError::WrongKey)), "{cut}");
        }
    }
}
