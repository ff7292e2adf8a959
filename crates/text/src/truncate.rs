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

/// Returns at most this many bytes of the text: its beginning and its end, with the number of
/// omitted bytes between them. If there is no room for that number, returns only the beginning.
pub fn truncate_middle(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let note = |omitted: usize| format!("\n… {omitted} bytes omitted …\n");
    let Some(kept) = bytes.checked_sub(note(text.len()).len()) else {
        return text[..text.floor_char_boundary(bytes)].to_owned();
    };
    let head = text.floor_char_boundary(kept * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - (kept - kept * 2 / 3));
    format!("{}{}{}", &text[..head], note(tail - head), &text[tail..])
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
        let long = format!("START{}END", "ü".repeat(500));
        let middle = truncate_middle(&long, 100);
        assert!(middle.len() <= 100 && middle.len() > 90, "{middle}");
        assert!(
            middle.starts_with("START") && middle.ends_with("END"),
            "{middle}"
        );
        assert_eq!(truncate_middle(&long, 6), "START");
        assert_eq!(one_line("a\nb\tc", 4), "a b ");
    }
}
