//! Pure functions on text that several crates need: secret detection, truncation, hidden
//! characters, hex, stemming and BM25. No I/O.

pub mod bm25;
mod secrets;
mod stem;
mod truncate;
mod visible;

pub use secrets::{Redactor, is_secret_variable};
pub use stem::stem;
pub use truncate::{one_line, truncate_bytes, truncate_chars, truncate_middle};
pub use visible::{is_hidden, visible, visible_exact, visible_line};

/// Returns the bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
