//! Lone surrogates: JavaScript strings can contain them, Unicode text cannot.

/// Replaces escaped lone surrogates in JSON text by U+FFFD.
pub(crate) fn replace_lone_surrogates(json: &str) -> std::borrow::Cow<'_, str> {
    if !json.contains("\\ud") {
        return json.into();
    }
    let bytes = json.as_bytes();
    let unit = |at: usize| -> Option<u16> {
        let hex = (bytes.get(at)? == &b'\\' && bytes.get(at + 1)? == &b'u')
            .then(|| json.get(at + 2..at + 6))??;
        u16::from_str_radix(hex, 16).ok()
    };
    let mut out = String::with_capacity(json.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            let end = json[at..].find('\\').map_or(json.len(), |step| at + step);
            out.push_str(&json[at..end]);
            at = end;
            continue;
        }
        let width = match unit(at) {
            Some(0xD800..=0xDBFF) if matches!(unit(at + 6), Some(0xDC00..=0xDFFF)) => 12,
            Some(0xD800..=0xDFFF) => {
                out.push_str("\\ufffd");
                at += 6;
                continue;
            }
            Some(_) => 6,
            None => 2,
        };
        let end = (at + width).min(json.len());
        out.push_str(json.get(at..end).unwrap_or_default());
        at = end;
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::replace_lone_surrogates;

    #[test]
    fn lone_surrogates_become_replacement_characters() {
        for (given, expected) in [
            (r#"["\ud83d\ude00"]"#, r#"["\ud83d\ude00"]"#),
            (r#"["\ud83d"]"#, r#"["\ufffd"]"#),
            (
                r#"["a\ude00\ud83db\\ud800"]"#,
                r#"["a\ufffd\ufffdb\\ud800"]"#,
            ),
            (r#"["\\\ud800"]"#, r#"["\\\ufffd"]"#),
            (r#"["ü\ud800"]"#, r#"["ü\ufffd"]"#),
        ] {
            assert_eq!(replace_lone_surrogates(given), expected);
            serde_json::from_str::<serde_json::Value>(&replace_lone_surrogates(given)).unwrap();
        }
    }
}
