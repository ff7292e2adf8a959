//! Pure functions on text that several crates need: secret detection, truncation, hidden
//! characters, numbers, hex, stemming and BM25. No I/O.

pub mod bm25;
mod json_len;
mod secrets;
mod stem;
mod truncate;
mod visible;

pub use json_len::{json_byte_len, json_string_len};
pub use secrets::{Redactor, is_secret_variable};
pub use stem::stem;
pub use truncate::{one_line, truncate_bytes, truncate_chars, truncate_middle};
pub use visible::{is_hidden, visible, visible_exact, visible_line};

/// Returns a count with its noun, as in `1 call` and `2 calls`. `noun` takes an `s` in the plural.
pub fn count_noun(count: impl TryInto<u64>, noun: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Returns a number with commas between its thousands: `11,320`.
pub fn group_digits(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Words that say nothing about the topic of a text.
const STOP_WORDS: [&str; 20] = [
    "a", "an", "and", "are", "as", "at", "by", "for", "from", "in", "is", "it", "of", "on", "or",
    "that", "the", "this", "to", "with",
];

/// Whether a lower-case word says nothing about the topic of a text, so that a search ignores it.
pub fn is_stop_word(word: &str) -> bool {
    word.len() <= 4 && STOP_WORDS.contains(&word)
}

/// Returns the bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
