//! Replaces characters that would hide or reorder other text by visible ones.

use std::borrow::Cow;

/// Returns text in which control characters, invisible characters and characters that change its
/// direction are visible, so that code does what it seems to do. Line breaks and tabs stay.
pub(crate) fn visible_code(text: &str) -> Cow<'_, str> {
    visible(text, |c| is_direction_control(c) || is_invisible(c))
}

/// Returns text in which control characters and overrides of its direction are visible. Isolates
/// stay, which texts in Arabic and Hebrew use: they end with their paragraph.
pub(crate) fn visible_prose(text: &str) -> Cow<'_, str> {
    visible(text, |c| matches!(c, '\u{202a}'..='\u{202e}'))
}

fn is_direction_control(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

/// Whether a character has no width, or separates lines in code only.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}'
            | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
    )
}

fn visible(text: &str, is_hidden: fn(char) -> bool) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(|c| is_control(c) || is_hidden(c)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' if chars.peek() == Some(&'\n') => {}
            // The picture of a control character, such as ␛.
            '\0'..='\u{1f}' if is_control(c) => {
                shown.push(char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'));
            }
            '\u{7f}' => shown.push('\u{2421}'),
            c if is_control(c) || is_hidden(c) => {
                shown.push_str(&format!("[U+{:04X}]", u32::from(c)));
            }
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_visible() {
        assert_eq!(visible_code("a\r\nb\tc"), "a\nb\tc");
        assert_eq!(
            visible_code("\u{1b}[31m\u{202e}x\u{2066}"),
            "\u{241b}[31m[U+202E]x[U+2066]"
        );
        assert_eq!(
            visible_code("// a\u{2028}b\u{200b}c\u{e0041}"),
            "// a[U+2028]b[U+200B]c[U+E0041]"
        );
        assert_eq!(
            visible_prose("\u{2067}שלום\u{2069}"),
            "\u{2067}שלום\u{2069}"
        );
        assert_eq!(visible_prose("\u{202e}\u{9b}"), "[U+202E][U+009B]");
        assert!(matches!(visible_code("plain"), Cow::Borrowed(_)));
    }
}
