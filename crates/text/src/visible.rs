//! Makes characters visible that a reader cannot see: control characters, invisible characters and
//! characters that change the direction of text.
//!
//! Such a character is shown as its escape, for example `\u{202e}`. Ordinary text stays as it is: a
//! joiner between two emoji or between two letters of a script that needs joiners, and a variation
//! selector after the emoji or ideograph that it selects, are kept by [`visible`].

use std::borrow::Cow;

/// Returns the text with every hidden character made visible, except line breaks and tabs, and
/// joiners and variation selectors where ordinary text has them.
pub fn visible(text: &str) -> Cow<'_, str> {
    escape(text, is_ordinary)
}

/// Returns the text as [`visible`] does, in one line: a line break becomes `⏎`.
pub fn visible_line(text: &str) -> Cow<'_, str> {
    match visible(text) {
        text if !text.contains('\n') => text,
        text => Cow::Owned(text.replace('\n', "⏎")),
    }
}

/// Returns the text with every hidden character made visible, except line breaks and tabs, and
/// every blank other than a space, such as U+00A0. For text whose exact characters matter, such as
/// a command that a person approves.
pub fn visible_exact(text: &str) -> Cow<'_, str> {
    let is_blank = |c: char| !c.is_ascii() && c.is_whitespace();
    let escaped = escape(text, |_, _, _| false);
    if !escaped.contains(is_blank) {
        return escaped;
    }
    let mut out = String::with_capacity(escaped.len() + 16);
    for c in escaped.chars() {
        match is_blank(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Returns whether a character is hidden: a control character other than a line break or tab, an
/// invisible character, or one that changes the direction of the text around it.
pub fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        // The ASCII characters, most of any text, need no further comparison.
        ' '..='~' => false,
        _ => c.is_control() || is_default_ignorable(c) || is_blank_or_format(c),
    }
}

/// Escapes the hidden characters, except those for which `keep` returns true. It gets the
/// characters before and after.
fn escape(text: &str, keep: impl Fn(Option<char>, char, Option<char>) -> bool) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut before = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if is_hidden(c) && !keep(before, c, chars.peek().copied()) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        before = Some(c);
    }
    Cow::Owned(out)
}

/// Returns whether ordinary text has this hidden character between these two.
fn is_ordinary(before: Option<char>, c: char, after: Option<char>) -> bool {
    let (Some(before), after) = (before, after.unwrap_or(' ')) else {
        return false;
    };
    match c {
        '\u{200d}' if ends_emoji(before) && is_emoji(after) => true,
        '\u{200c}' | '\u{200d}' => uses_joiners(before) && uses_joiners(after),
        '\u{fe0e}' | '\u{fe0f}' if after == '\u{20e3}' => matches!(before, '0'..='9' | '#' | '*'),
        '\u{fe0e}' | '\u{fe0f}' => is_emoji(before),
        '\u{fe00}'..='\u{fe0d}' | '\u{e0100}'..='\u{e01ef}' => is_ideograph(before),
        _ => false,
    }
}

/// The property `Default_Ignorable_Code_Point` of Unicode 17: characters without a glyph, among
/// them zero-width characters, joiners, bidirectional controls, variation selectors, tags, the
/// soft hyphen and the Hangul fillers.
fn is_default_ignorable(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Further characters that are not seen: line and paragraph separators, interlinear annotation,
/// the controls of Egyptian hieroglyphs, the Khitan filler, and symbols that are blank.
fn is_blank_or_format(c: char) -> bool {
    matches!(
        c,
        '\u{2028}'..='\u{2029}'
            | '\u{2800}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{16fe4}'
            | '\u{1d159}'
    )
}

/// Returns whether a character can be an emoji, or a symbol with an emoji form.
fn is_emoji(c: char) -> bool {
    matches!(
        c,
        '\u{a9}' | '\u{ae}'
            | '\u{203c}'
            | '\u{2049}'
            | '\u{2122}'
            | '\u{2139}'
            | '\u{2190}'..='\u{21ff}'
            | '\u{2300}'..='\u{23ff}'
            | '\u{24c2}'
            | '\u{25a0}'..='\u{27bf}'
            | '\u{2900}'..='\u{297f}'
            | '\u{2b00}'..='\u{2bff}'
            | '\u{3030}'
            | '\u{303d}'
            | '\u{3297}'
            | '\u{3299}'
            | '\u{1f000}'..='\u{1faff}'
    )
}

/// Returns whether a character can stand before the joiner of an emoji sequence.
fn ends_emoji(c: char) -> bool {
    is_emoji(c) || c == '\u{fe0f}'
}

/// Returns whether a letter belongs to a script in which joiners are part of the spelling: Arabic,
/// Syriac, the scripts of India and South-East Asia, Mongolian.
fn uses_joiners(c: char) -> bool {
    c.is_alphanumeric() && is_joiner_script(c) || is_joiner_mark(c)
}

fn is_joiner_script(c: char) -> bool {
    matches!(
        c,
        '\u{620}'..='\u{6ff}'
            | '\u{710}'..='\u{77f}'
            | '\u{8a0}'..='\u{dff}'
            | '\u{1000}'..='\u{109f}'
            | '\u{1780}'..='\u{17b3}'
            | '\u{1820}'..='\u{18aa}'
            | '\u{fb50}'..='\u{fdff}'
    )
}

/// The viramas of the scripts of India and South-East Asia, after which a joiner decides the form
/// of a cluster.
fn is_joiner_mark(c: char) -> bool {
    matches!(
        c,
        '\u{94d}'
            | '\u{9cd}'
            | '\u{a4d}'
            | '\u{acd}'
            | '\u{b4d}'
            | '\u{bcd}'
            | '\u{c4d}'
            | '\u{ccd}'
            | '\u{d4d}'
            | '\u{dca}'
            | '\u{1039}'..='\u{103a}' | '\u{17d2}'
    )
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_text_stays_as_it_is() {
        for text in [
            "plain ASCII\n\twith a tab",
            "Zoë, cafe\u{301}, naïve, Ελλάδα, Москва",
            "שלום עולם, مرحبا بالعالم",
            "می\u{200c}خواهم",
            "क्\u{200d}ष, ශ්\u{200d}රී",
            "漢字 かな カナ 한국어　全角",
            "葛\u{e0100}",
            "👩\u{200d}🚀 👩🏽\u{200d}💻 ❤\u{fe0f}\u{200d}🔥 ❤\u{fe0f} 1\u{fe0f}\u{20e3} 🇩🇪",
        ] {
            assert_eq!(visible(text), text, "{text:?}");
        }
    }

    #[test]
    fn hidden_characters_become_escapes() {
        for (text, shown) in [
            ("a\u{1b}[2Jb\r", "a\\u{1b}[2Jb\\r"),
            ("\u{9b}31m\u{7f}\0", "\\u{9b}31m\\u{7f}\\u{0}"),
            (
                "a\u{200b}b\u{feff}\u{2060}",
                "a\\u{200b}b\\u{feff}\\u{2060}",
            ),
            ("\u{202e}cod.exe\u{2066}", "\\u{202e}cod.exe\\u{2066}"),
            ("a\u{61c}\u{200e}\u{200f}b", "a\\u{61c}\\u{200e}\\u{200f}b"),
            ("a\u{e0041}\u{e007f}", "a\\u{e0041}\\u{e007f}"),
            ("l\u{ad}s\u{34f}", "l\\u{ad}s\\u{34f}"),
            (
                "\u{3164}\u{115f}\u{ffa0}\u{2800}",
                "\\u{3164}\\u{115f}\\u{ffa0}\\u{2800}",
            ),
            ("a\u{2028}b\u{2029}c", "a\\u{2028}b\\u{2029}c"),
            (
                "\u{fff9}a\u{fffa}b\u{fffb}",
                "\\u{fff9}a\\u{fffa}b\\u{fffb}",
            ),
            // Joiners and variation selectors outside ordinary text.
            ("rm\u{200d} \u{200c}x", "rm\\u{200d} \\u{200c}x"),
            ("a\u{fe0f}", "a\\u{fe0f}"),
            ("❤\u{fe0f}\u{fe0f}\u{e0101}", "❤\u{fe0f}\\u{fe0f}\\u{e0101}"),
            ("👩\u{200d}x", "👩\\u{200d}x"),
        ] {
            assert_eq!(visible(text), shown, "{text:?}");
        }
    }

    #[test]
    fn exact_text_has_no_exceptions_and_a_line_has_no_line_breaks() {
        assert_eq!(visible_exact("👩\u{200d}🚀\nb"), "👩\\u{200d}🚀\nb");
        assert_eq!(
            visible_exact("ls\u{a0}-la\u{3000}x"),
            "ls\\u{a0}-la\\u{3000}x"
        );
        assert_eq!(visible("10\u{a0}km"), "10\u{a0}km");
        assert_eq!(visible_line("a\nb\r\nc"), "a⏎b\\r⏎c");
        assert!(matches!(visible_line("a b"), Cow::Borrowed("a b")));
    }

    #[test]
    fn shown_text_stays_the_same_when_it_is_shown_again() {
        let every: String = ('\0'..='\u{fffff}').collect();
        for show in [visible, visible_line, visible_exact] {
            let once = show(&every).into_owned();
            assert!(!visible_exact(&once).contains('\u{202e}'));
            assert_eq!(show(&once), once);
        }
    }
}
