//! New ids for runs, calls, requests and documents, and the current time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Returns a new id such as `scr_7k2m9q4v8x1c3b5n`: a prefix for the kind, and 80 random bits.
pub fn new_id(prefix: &str) -> String {
    format!(
        "{prefix}_{}",
        random_bytes().map(encode_char).iter().collect::<String>()
    )
}

/// Returns a new document key such as `F7K2M9Q4`. It is short because models read and write it, and
/// starts with a letter so that it is never taken for a number.
pub fn new_document_key() -> String {
    let tail: String = random_bytes().map(encode_char).iter().take(7).collect();
    format!("F{}", tail.to_uppercase())
}

fn encode_char(byte: u8) -> char {
    char::from(ALPHABET[usize::from(byte % 32)])
}

fn random_bytes() -> [u8; 16] {
    let mut bytes = [0u8; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // Without a source of randomness, ids still differ by the time.
        bytes = since_epoch().as_nanos().to_le_bytes();
    }
    bytes
}

/// Returns the time since the Unix epoch.
pub fn since_epoch() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

/// Returns the current Unix time in milliseconds.
pub fn now_ms() -> i64 {
    since_epoch().as_millis() as i64
}
