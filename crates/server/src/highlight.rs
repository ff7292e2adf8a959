//! Syntax highlighting as HTML. The grammars are loaded when code is first shown.

use std::sync::LazyLock;
use std::time::Instant;

use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxReference, SyntaxSet};

use crate::render::{push_escaped, push_span};

/// Longer code is shown without colour, because highlighting it takes too long.
const MAX_HIGHLIGHT_BYTES: usize = 64 << 10;
/// Code with a longer line is shown without colour, in bytes.
const MAX_HIGHLIGHT_LINE: usize = 4 << 10;

static GRAMMARS: LazyLock<SyntaxSet> = LazyLock::new(SyntaxSet::load_defaults_newlines);

/// Classes of the grammars' scopes. The innermost scope that matches decides.
static SCOPE_CLASSES: LazyLock<Vec<(Scope, &'static str)>> = LazyLock::new(|| {
    let classes = [
        ("comment", "comment"),
        ("string", "string"),
        ("constant", "constant"),
        ("keyword.operator.assignment", "keyword"),
        ("keyword.control", "keyword"),
        ("keyword.other", "keyword"),
        ("storage", "keyword"),
        ("variable.language", "constant"),
        ("entity.name", "name"),
        ("support.function", "name"),
        ("variable.function", "name"),
        ("entity.other.attribute-name", "name"),
    ];
    classes
        .into_iter()
        .filter_map(|(scope, class)| Some((Scope::new(scope).ok()?, class)))
        .collect()
});

/// Loads the grammars, if they are not loaded.
pub(crate) fn load_grammars() {
    LazyLock::force(&GRAMMARS);
}

/// Returns code as HTML in which comments, strings and the like have a class. Code in an unknown
/// language and the rest after `deadline` have none.
pub(crate) fn highlight_code(language: &str, text: &str, deadline: Instant) -> String {
    let mut html = String::with_capacity(text.len() * 2);
    let is_short = text.len() <= MAX_HIGHLIGHT_BYTES
        && text
            .split('\n')
            .all(|line| line.len() <= MAX_HIGHLIGHT_LINE);
    match find_grammar(language).filter(|_| is_short) {
        Some(grammar) => push_highlighted(&mut html, grammar, text, deadline),
        None => push_escaped(&mut html, text),
    }
    html
}

fn find_grammar(language: &str) -> Option<&'static SyntaxReference> {
    let token = language.split([',', ' ', '{']).next().unwrap_or_default();
    let name = match token.to_lowercase().as_str() {
        "" | "text" | "txt" | "plain" | "console" => return None,
        // There is no grammar for TypeScript; the one for JavaScript comes close enough.
        "ts" | "tsx" | "jsx" | "typescript" | "mts" | "cts" | "mjs" | "javascript" => "js".into(),
        "shell" | "zsh" => "sh".into(),
        "rust" => "rs".into(),
        "golang" => "go".into(),
        other => other.to_owned(),
    };
    GRAMMARS.find_syntax_by_token(&name)
}

fn push_highlighted(html: &mut String, grammar: &SyntaxReference, text: &str, deadline: Instant) {
    let mut state = ParseState::new(grammar);
    let mut scopes = ScopeStack::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            html.push('\n');
        }
        if Instant::now() > deadline {
            push_escaped(html, line);
            continue;
        }
        let Ok(changes) = state.parse_line(&format!("{line}\n"), &GRAMMARS) else {
            push_escaped(html, line);
            continue;
        };
        let mut start = 0;
        for (offset, change) in &changes {
            push_part(html, line, start..*offset, &scopes);
            start = *offset;
            if scopes.apply(change).is_err() {
                break;
            }
        }
        push_part(html, line, start..line.len(), &scopes);
    }
}

/// Appends a part of a line with the class of its scopes. The line break is not part of the line.
fn push_part(html: &mut String, line: &str, range: std::ops::Range<usize>, scopes: &ScopeStack) {
    let (start, end) = (range.start.min(line.len()), range.end.min(line.len()));
    let text = line.get(start..end).unwrap_or_default();
    if text.is_empty() {
        return;
    }
    let known = |scope: &Scope| {
        let mut classes = SCOPE_CLASSES.iter();
        classes.find(|(prefix, _)| prefix.is_prefix_of(*scope))
    };
    match scopes.as_slice().iter().rev().find_map(known) {
        Some((_, class)) => push_span(html, class, text),
        None => push_escaped(html, text),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SOURCE: &str = "const n = 1; // <one>\n\nreturn await f({ path: 'a' });";

    #[test]
    fn code_has_classes_and_no_markup_of_its_own() {
        let later = Instant::now() + Duration::from_secs(60);
        let html = highlight_code("ts", SOURCE, later);
        assert!(
            html.contains("<span class=\"keyword\">const</span>"),
            "{html}"
        );
        assert!(
            html.contains("&lt;one&gt;") && !html.contains("<one>"),
            "{html}"
        );
        assert_eq!(html.matches('\n').count(), 2);
    }

    #[test]
    fn code_is_plain_after_the_deadline_or_in_an_unknown_language() {
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        let long = format!("// {}", "x".repeat(MAX_HIGHLIGHT_LINE));
        for (language, text, deadline) in [
            ("ts", SOURCE, now),
            ("no-such-language", SOURCE, later),
            ("ts", &long, later),
        ] {
            assert!(!highlight_code(language, text, deadline).contains("<span"));
        }
    }
}
