//! Bearer tokens in the headers of requests.

use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

/// Returns the bearer token of a request; `None` unless there is exactly one `Authorization`.
pub fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(sent), None) = (sent.next(), sent.next()) else {
        return None;
    };
    let (scheme, token) = sent.to_str().ok()?.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim())
        .filter(|token| !token.is_empty())
}

/// Compares in a time that does not depend on how much of the token is right.
pub fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    let (a, b) = (Sha256::digest(a), Sha256::digest(b));
    a.iter()
        .zip(b.iter())
        .fold(0, |difference, (a, b)| difference | (a ^ b))
        == 0
}
