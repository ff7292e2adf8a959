//! Secrets that stand below their name, as YAML has them: `password: |`, then lines that are indented further.

use std::borrow::Cow;

use crate::redact::{INSTEAD, Pattern};

/// A line that ends with the sign of a block, after a name that says that what follows is secret.
pub(crate) fn header(name: &str) -> String {
    format!(
        r#"(?i)^([ \t]*(?:-[ \t]+)*)["']?(?:{name})["']?[ \t]*:[ \t]*(?:[!&]\S+[ \t]+)*[|>][0-9+-]{{0,2}}[ \t]*(?:#.*)?$"#
    )
}

/// Puts one line in the place of each such block.
pub(crate) fn redact(text: &mut Cow<'_, str>, header: &Pattern) {
    if !text.contains(['|', '>']) {
        return;
    }
    let mut lines = text.split_inclusive('\n').peekable();
    let (mut kept, mut changed) = (String::new(), false);
    while let Some(line) = lines.next() {
        kept.push_str(line);
        let words = line.trim_end();
        // Most lines have no such sign, and are not looked at any closer.
        let Some(found) = may_be_header(words)
            .then(|| header.get().captures(words))
            .flatten()
        else {
            continue;
        };
        let depth = found
            .get(1)
            .map_or(0, |before| before.as_str().chars().count());
        let mut last = None;
        while let Some(inside) =
            lines.next_if(|next| next.trim().is_empty() || indentation(next) > depth)
        {
            last = Some(inside);
        }
        if let Some(last) = last {
            changed = true;
            kept.push_str(&format!("{}{INSTEAD}", " ".repeat(depth + 2)));
            kept.push_str(if last.ends_with('\n') { "\n" } else { "" });
        }
    }
    if changed {
        *text = Cow::Owned(kept);
    }
}

fn indentation(line: &str) -> usize {
    line.chars().take_while(|c| matches!(c, ' ' | '\t')).count()
}

fn may_be_header(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default().trim_end();
    let name = line
        .trim_end_matches(|c: char| c.is_ascii_digit() || c == '+' || c == '-')
        .strip_suffix(['|', '>']);
    name.is_some_and(|name| {
        name.trim_end().ends_with(':') || name.contains(": !") || name.contains(": &")
    })
}
