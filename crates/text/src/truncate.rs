//! Truncation of text, always between characters.

use std::borrow::Cow;

/// Returns at most this many characters of the text, followed by `…` if any are omitted.
pub fn truncate_chars(text: &str, chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// Returns at most this many bytes of the text, followed by the number of omitted bytes.
pub fn truncate_bytes(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes);
    format!("{}… ({} more bytes)", &text[..end], text.len() - end)
}

/// Returns at most this many characters of the text. Control characters, including line breaks,
/// become spaces.
pub fn one_line(text: &str, chars: usize) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(printable).take(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_truncated_between_characters() {
        assert_eq!(truncate_chars("äöü", 3), "äöü");
        assert_eq!(truncate_chars("äöü", 2), "äö…");
        assert_eq!(truncate_bytes("äöü", 6), "äöü");
        assert_eq!(truncate_bytes("äöü", 3), "ä… (4 more bytes)");
        assert_eq!(one_line("a\nb\tc", 4), "a b ");
    }
}
