//! Syntax highlighting. The grammars are loaded when code is first shown.

use std::sync::LazyLock;

use ratatui_core::style::Style;
use ratatui_core::text::Span;
use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxReference, SyntaxSet};

use super::rows::{StyledRow, sanitize};
use super::theme::Theme;

/// Longer code is shown without colour, because highlighting it takes too long.
const MAX_HIGHLIGHT_BYTES: usize = 64 << 10;

static GRAMMARS: LazyLock<SyntaxSet> = LazyLock::new(SyntaxSet::load_defaults_newlines);

type ThemeStyleFn = fn(Theme) -> Style;

/// Styles of the grammars' scopes. The innermost scope that matches decides.
static SCOPE_STYLES: LazyLock<Vec<(Scope, ThemeStyleFn)>> = LazyLock::new(|| {
    let styles: [(&str, ThemeStyleFn); 12] = [
        ("comment", Theme::dim),
        ("string", Theme::success),
        ("constant", Theme::constant),
        ("keyword.operator.assignment", Theme::keyword),
        ("keyword.control", Theme::keyword),
        ("keyword.other", Theme::keyword),
        ("storage", Theme::keyword),
        ("variable.language", Theme::constant),
        ("entity.name", Theme::code),
        ("support.function", Theme::code),
        ("variable.function", Theme::code),
        ("entity.other.attribute-name", Theme::code),
    ];
    styles
        .into_iter()
        .filter_map(|(name, style)| Some((Scope::new(name).ok()?, style)))
        .collect()
});

/// Returns one row per line of code. Code in an unknown language is not coloured.
pub(crate) fn highlight_code(language: &str, text: &str, theme: Theme) -> Vec<StyledRow> {
    let text = sanitize(text);
    let text = text.trim_end_matches('\n');
    let grammar = match theme {
        Theme::Colour if text.len() <= MAX_HIGHLIGHT_BYTES => find_grammar(language),
        _ => None,
    };
    let lines = match grammar {
        Some(grammar) => highlight_lines(grammar, text, theme),
        None => text
            .split('\n')
            .map(|line| vec![Span::raw(line.to_owned())])
            .collect(),
    };
    lines.into_iter().map(StyledRow::spans).collect()
}

fn find_grammar(language: &str) -> Option<&'static SyntaxReference> {
    let token = language
        .split([',', ' ', '{'])
        .next()
        .unwrap_or_default()
        .to_lowercase();
    let name = match token.as_str() {
        "" | "text" | "txt" | "plain" | "console" => return None,
        // There is no grammar for TypeScript; the one for JavaScript comes close enough.
        "ts" | "tsx" | "jsx" | "typescript" | "mts" | "cts" | "mjs" | "javascript" => "js",
        "shell" | "zsh" => "sh",
        "rust" => "rs",
        "golang" => "go",
        other => other,
    };
    GRAMMARS.find_syntax_by_token(name)
}

fn highlight_lines(grammar: &SyntaxReference, text: &str, theme: Theme) -> Vec<Vec<Span<'static>>> {
    let mut state = ParseState::new(grammar);
    let mut scopes = ScopeStack::new();
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let with_newline = format!("{line}\n");
        let Ok(changes) = state.parse_line(&with_newline, &GRAMMARS) else {
            lines.push(vec![Span::raw(line.to_owned())]);
            continue;
        };
        let mut spans: Vec<Span<'static>> = Vec::new();
        let mut start = 0;
        let mut push = |start: usize, end: usize, scopes: &ScopeStack| {
            let text = line
                .get(start.min(line.len())..end.min(line.len()))
                .unwrap_or_default();
            if !text.is_empty() {
                spans.push(Span::styled(
                    text.to_owned(),
                    style_for_scopes(scopes, theme),
                ));
            }
        };
        for (offset, change) in &changes {
            push(start, *offset, &scopes);
            start = *offset;
            if scopes.apply(change).is_err() {
                break;
            }
        }
        push(start, line.len(), &scopes);
        lines.push(spans);
    }
    lines
}

fn style_for_scopes(scopes: &ScopeStack, theme: Theme) -> Style {
    let known = |scope: &Scope| {
        SCOPE_STYLES
            .iter()
            .find(|(prefix, _)| prefix.is_prefix_of(*scope))
    };
    let innermost = scopes.as_slice().iter().rev().find_map(known);
    innermost.map_or_else(Style::new, |(_, style)| style(theme))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str =
        "const n: number = 1; // one\n\nreturn await tools.readFile({ path: 'a' });";

    #[test]
    fn code_is_coloured_and_its_text_is_unchanged() {
        let rows = highlight_code("ts", SOURCE, Theme::Colour);
        let lines: Vec<String> = rows.iter().map(StyledRow::plain).collect();
        assert_eq!(lines.join("\n"), SOURCE);
        let styled = |text: &str| {
            rows.iter()
                .flat_map(|row| &row.body)
                .find(|span| span.content.contains(text))
        };
        assert_eq!(styled("one").unwrap().style, Theme::Colour.dim());
        assert_eq!(styled("const").unwrap().style, Theme::Colour.keyword());
        assert_eq!(styled("1").unwrap().style, Theme::Colour.constant());
    }

    #[test]
    fn code_is_plain_without_colour_or_a_known_language() {
        for (language, theme) in [
            ("ts", Theme::Plain),
            ("no-such-language", Theme::Colour),
            ("", Theme::Colour),
        ] {
            let rows = highlight_code(language, SOURCE, theme);
            assert!(
                rows.iter()
                    .all(|row| row.body.iter().all(|span| span.style == Style::new())),
                "{language}"
            );
            assert_eq!(rows.len(), 3);
        }
    }
}
