//! Code in colour. The grammars are loaded when the first piece of code is shown.

use std::sync::LazyLock;

use ratatui_core::style::Style;
use ratatui_core::text::Span;
use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxReference, SyntaxSet};

use super::look::Look;
use super::rows::{Row, clean};

/// More than this is shown without colour: it takes too long to look at every letter of it.
const MOST_BYTES: usize = 64 << 10;

static GRAMMARS: LazyLock<SyntaxSet> = LazyLock::new(SyntaxSet::load_defaults_newlines);

type StyleOf = fn(Look) -> Style;

/// How scopes of the grammars are drawn; the innermost that is known counts.
static STYLES: LazyLock<Vec<(Scope, StyleOf)>> = LazyLock::new(|| {
    let styles: [(&str, StyleOf); 12] = [
        ("comment", Look::quiet),
        ("string", Look::good),
        ("constant", Look::constant),
        ("keyword.operator.assignment", Look::keyword),
        ("keyword.control", Look::keyword),
        ("keyword.other", Look::keyword),
        ("storage", Look::keyword),
        ("variable.language", Look::constant),
        ("entity.name", Look::code),
        ("support.function", Look::code),
        ("variable.function", Look::code),
        ("entity.other.attribute-name", Look::code),
    ];
    styles
        .into_iter()
        .filter_map(|(name, style)| Some((Scope::new(name).ok()?, style)))
        .collect()
});

/// A row per line of code. What nobody knows the language of stays plain.
pub(crate) fn code(language: &str, text: &str, look: Look) -> Vec<Row> {
    let text = clean(text);
    let text = text.trim_end_matches('\n');
    let grammar = match look {
        Look::Colour if text.len() <= MOST_BYTES => grammar(language),
        _ => None,
    };
    let lines = match grammar {
        Some(grammar) => coloured(grammar, text, look),
        None => text
            .split('\n')
            .map(|line| vec![Span::raw(line.to_owned())])
            .collect(),
    };
    lines.into_iter().map(Row::spans).collect()
}

fn grammar(language: &str) -> Option<&'static SyntaxReference> {
    let word = language
        .split([',', ' ', '{'])
        .next()
        .unwrap_or_default()
        .to_lowercase();
    let name = match word.as_str() {
        "" | "text" | "txt" | "plain" | "console" => return None,
        // The grammars have no TypeScript of their own; what it adds reads well enough as JavaScript.
        "ts" | "tsx" | "jsx" | "typescript" | "mts" | "cts" | "mjs" | "javascript" => "js",
        "shell" | "zsh" => "sh",
        "rust" => "rs",
        "golang" => "go",
        other => other,
    };
    GRAMMARS.find_syntax_by_token(name)
}

fn coloured(grammar: &SyntaxReference, text: &str, look: Look) -> Vec<Vec<Span<'static>>> {
    let mut state = ParseState::new(grammar);
    let mut scopes = ScopeStack::new();
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let ended = format!("{line}\n");
        let Ok(changes) = state.parse_line(&ended, &GRAMMARS) else {
            lines.push(vec![Span::raw(line.to_owned())]);
            continue;
        };
        let mut spans: Vec<Span<'static>> = Vec::new();
        let mut from = 0;
        let mut add = |from: usize, to: usize, scopes: &ScopeStack| {
            let piece = line
                .get(from.min(line.len())..to.min(line.len()))
                .unwrap_or_default();
            if !piece.is_empty() {
                spans.push(Span::styled(piece.to_owned(), style(scopes, look)));
            }
        };
        for (at, change) in &changes {
            add(from, *at, &scopes);
            from = *at;
            if scopes.apply(change).is_err() {
                break;
            }
        }
        add(from, line.len(), &scopes);
        lines.push(spans);
    }
    lines
}

fn style(scopes: &ScopeStack, look: Look) -> Style {
    let known = |scope: &Scope| {
        STYLES
            .iter()
            .find(|(prefix, _)| prefix.is_prefix_of(*scope))
    };
    let innermost = scopes.as_slice().iter().rev().find_map(known);
    innermost.map_or_else(Style::new, |(_, style)| style(look))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str =
        "const n: number = 1; // one\n\nreturn await tools.readFile({ path: 'a' });";

    #[test]
    fn code_is_coloured_and_stays_what_it_was() {
        let rows = code("ts", SOURCE, Look::Colour);
        let lines: Vec<String> = rows.iter().map(Row::plain).collect();
        assert_eq!(lines.join("\n"), SOURCE);
        let styled = |words: &str| {
            rows.iter()
                .flat_map(|row| &row.body)
                .find(|span| span.content.contains(words))
        };
        assert_eq!(styled("one").unwrap().style, Look::Colour.quiet());
        assert_eq!(styled("const").unwrap().style, Look::Colour.keyword());
        assert_eq!(styled("1").unwrap().style, Look::Colour.constant());
    }

    #[test]
    fn without_colour_or_a_known_language_it_is_plain() {
        for (language, look) in [
            ("ts", Look::Plain),
            ("nothing-known", Look::Colour),
            ("", Look::Colour),
        ] {
            let rows = code(language, SOURCE, look);
            assert!(
                rows.iter()
                    .all(|row| row.body.iter().all(|span| span.style == Style::new())),
                "{language}"
            );
            assert_eq!(rows.len(), 3);
        }
    }
}
