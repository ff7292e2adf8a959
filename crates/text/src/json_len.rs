//! Lengths of texts as JSON.

/// Returns the number of bytes of a text as a JSON string, without its quotes.
pub fn json_string_len(text: &str) -> usize {
    text.bytes().map(json_byte_len).sum()
}

/// Returns the number of bytes that a byte of a text takes in a JSON string.
pub fn json_byte_len(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_count_as_they_are_written() {
        for (text, bytes) in [
            ("a", 1),
            ("\"\n", 4),
            ("\u{8}\u{c}", 4),
            ("\u{1}", 6),
            ("ü", 2),
        ] {
            assert_eq!(json_string_len(text), bytes, "{text:?}");
        }
    }
}
