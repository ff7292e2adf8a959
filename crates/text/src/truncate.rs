//! Shorter versions of text, cut between characters.

use std::borrow::Cow;

/// At most this many characters, with `…` where some are left out.
pub fn with_ellipsis(text: &str, chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// At most this many bytes, then how many are left out.
pub fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes);
    format!("{}… ({} more bytes)", &text[..end], text.len() - end)
}

/// At most this many characters, with a blank for every control character, line breaks included.
pub fn one_line(text: &str, chars: usize) -> String {
    let blank = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(blank).take(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_fall_between_characters() {
        assert_eq!(with_ellipsis("äöü", 3), "äöü");
        assert_eq!(with_ellipsis("äöü", 2), "äö…");
        assert_eq!(shortened("äöü", 6), "äöü");
        assert_eq!(shortened("äöü", 3), "ä… (4 more bytes)");
        assert_eq!(one_line("a\nb\tc", 4), "a b ");
    }
}
