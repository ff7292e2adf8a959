//! Names for runs, calls and requests.

/// A new id such as `scr_7k2m9q4v8x1c3b5n`: a prefix that says what it names and 80 random bits.
pub fn new_id(prefix: &str) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut bytes = [0u8; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // Without a source of randomness the clock still tells two ids apart.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes = now.as_nanos().to_le_bytes();
    }
    let tail: String = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect();
    format!("{prefix}_{tail}")
}
