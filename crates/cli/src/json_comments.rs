//! Adds a member to an object in JSON with comments, and keeps the rest of the text as it is. Hand
//! written because an edit by `serde_json` would remove the comments.

use serde_json::{Value, json};

/// Parses JSON that may have comments and trailing commas.
pub(crate) fn parse(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(&plain_json(text))
}

/// Adds `"name": value` to the object `key` of the file, which is created if it is missing. Returns
/// `None` if the file or `key` is not an object, or `key` has the member already.
pub(crate) fn with_member(text: &str, key: &str, name: &str, value: &Value) -> Option<String> {
    let plain = plain_json(text);
    let before: Value = serde_json::from_str(&plain).ok()?;
    let root = before.as_object()?;
    let (start, added, is_empty, indent) = match root.get(key) {
        None => (
            plain.find('{')?,
            json!({key: {name: value}}),
            root.is_empty(),
            "",
        ),
        Some(object) => {
            let members = object.as_object().filter(|all| !all.contains_key(name))?;
            let start = object_start(&plain, key)?;
            (start, json!({name: value}), members.is_empty(), "  ")
        }
    };
    let added = serde_json::to_string_pretty(&added).ok()?;
    // Without the braces around it.
    let lines: Vec<&str> = added.lines().collect();
    let lines = lines.get(1..lines.len().checked_sub(1)?)?.iter();
    let lines: Vec<String> = lines.map(|line| format!("\n{indent}{line}")).collect();
    let end = match is_empty {
        true => format!("\n{indent}"),
        false => ",".to_owned(),
    };
    let (head, tail) = text.split_at(start + 1);
    let after = format!("{head}{}{end}{tail}", lines.concat());
    let is_added = |file: Value| file[key][name] == *value;
    parse(&after).is_ok_and(is_added).then_some(after)
}

/// Returns the offset of the `{` of the object that is the last value of `key` in the outermost
/// object.
fn object_start(plain: &str, key: &str) -> Option<usize> {
    let mut depth = 0;
    let mut found = None;
    // The string that ended last, if it is directly below the outermost object.
    let mut last: Option<String> = None;
    let mut offset = 0;
    while let Some(c) = plain[offset..].chars().next() {
        match c {
            '"' => {
                let string = string_at(plain, offset);
                last = serde_json::from_str(string).ok().filter(|_| depth == 1);
                offset += string.len();
                continue;
            }
            '{' | '[' => {
                if c == '{' && depth == 1 && last.as_deref() == Some(key) {
                    found = Some(offset);
                }
                depth += 1;
            }
            '}' | ']' => depth -= 1,
            ',' => last = None,
            _ => {}
        }
        offset += c.len_utf8();
    }
    found
}

/// Returns the string literal that begins at `start`, with its quotes.
fn string_at(text: &str, start: usize) -> &str {
    let mut is_escaped = false;
    let end = text[start + 1..].find(|c: char| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    });
    match end {
        Some(end) => &text[start..start + end + 2],
        None => &text[start..],
    }
}

/// Replaces comments and trailing commas by spaces, so that all offsets stay.
fn plain_json(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut comma = None;
    let mut offset = 0;
    while let Some(c) = text[offset..].chars().next() {
        let rest = &text[offset..];
        let comment = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(inside) = rest.strip_prefix("/*") {
            inside.find("*/").map_or(rest.len(), |end| end + 4)
        } else {
            0
        };
        if comment > 0 {
            plain.push_str(&" ".repeat(comment));
            offset += comment;
            continue;
        }
        let part = match c {
            '"' => string_at(text, offset),
            _ => &rest[..c.len_utf8()],
        };
        match c {
            ',' => comma = Some(offset),
            '}' | ']' => {
                if let Some(comma) = comma.take() {
                    plain.replace_range(comma..comma + 1, " ");
                }
            }
            c if c.is_whitespace() => {}
            _ => comma = None,
        }
        plain.push_str(part);
        offset += part.len();
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_added_and_comments_stay() {
        let before = "// Zed settings\n//\n// see https://zed.dev\n{\n  \"theme\": \"a // b\", // mine\n  \
            /* { */ \"context_servers\": { \"other\": { \"command\": \"x\", }, },\n}\n";
        let value = json!({"command": "selvedge"});
        let after = with_member(before, "context_servers", "selvedge", &value).unwrap();
        assert_eq!(
            after,
            "// Zed settings\n//\n// see https://zed.dev\n{\n  \"theme\": \"a // b\", // mine\n  \
             /* { */ \"context_servers\": {\n    \"selvedge\": {\n      \"command\": \"selvedge\"\n    \
             }, \"other\": { \"command\": \"x\", }, },\n}\n"
        );
        assert_eq!(
            with_member(&after, "context_servers", "selvedge", &value),
            None
        );
        assert_eq!(parse(&after).unwrap()["theme"], "a // b");
    }

    #[test]
    fn a_missing_object_is_created() {
        let value = json!(1);
        let added = |before: &str| with_member(before, "servers", "a", &value);
        assert_eq!(
            added("{ // none\n}").unwrap(),
            "{\n  \"servers\": {\n    \"a\": 1\n  }\n // none\n}"
        );
        assert_eq!(
            added("{\"x\": {\"servers\": {}}} // end").unwrap(),
            "{\n  \"servers\": {\n    \"a\": 1\n  },\"x\": {\"servers\": {}}} // end"
        );
        assert_eq!(
            added("/* ü */ {\"servers\": {}}").unwrap(),
            "/* ü */ {\"servers\": {\n    \"a\": 1\n  }}"
        );
        assert_eq!(
            added("/*/ \" */ {\"servers\": {}}").unwrap(),
            "/*/ \" */ {\"servers\": {\n    \"a\": 1\n  }}"
        );
        for refused in ["[]", "{\"servers\": 1}", "{ /* open", "{\"a\" 1}", "\"{}\""] {
            assert_eq!(added(refused), None, "{refused}");
        }
    }
}
