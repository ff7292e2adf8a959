//! The last line: who is asked, what it took, how much room is left, what may be changed. In a narrow window the least
//! important goes first.

use ratatui_core::text::{Line, Span};
use selvedge_protocol::{SandboxPolicy, Usage};
use unicode_width::UnicodeWidthStr;

use super::look::Look;
use super::rows::short;

#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    pub(crate) model: String,
    /// Of the whole session.
    pub(crate) usage: Usage,
    /// Where prices are known.
    pub(crate) cost: Option<f64>,
    /// Tokens of the last request and its answer.
    pub(crate) context: u64,
    /// Tokens the model can hold.
    pub(crate) window: u64,
    pub(crate) sandbox: SandboxPolicy,
    pub(crate) session: Option<String>,
}

impl Status {
    /// How much of the context is left, in percent.
    pub(crate) fn left(&self) -> u64 {
        100 - (self.context.min(self.window) * 100)
            .checked_div(self.window)
            .unwrap_or(0)
    }

    pub(crate) fn line(&self, width: usize, look: Look) -> Line<'static> {
        let sandbox = match self.sandbox {
            SandboxPolicy::ReadOnly => "read-only",
            SandboxPolicy::WorkspaceWrite => "workspace-write",
            SandboxPolicy::DangerFullAccess => "full access",
        };
        let Usage {
            input_tokens,
            output_tokens,
            ..
        } = self.usage;
        let cost = self
            .cost
            .filter(|cost| *cost > 0.0)
            .map(|cost| format!("${cost:.2}"));
        // In the order they are shown, each with how important it is.
        let mut facts = vec![
            (5, short(&self.model, 30)),
            (
                2,
                format!("{} in, {} out", count(input_tokens), count(output_tokens)),
            ),
            (3, cost.unwrap_or_default()),
            (4, format!("{}% left", self.left())),
            (6, sandbox.to_owned()),
            (1, self.session.clone().unwrap_or_default()),
        ];
        facts.retain(|(_, fact)| !fact.is_empty());
        let text = |facts: &[(u8, String)]| {
            let words: Vec<&str> = facts.iter().map(|(_, fact)| fact.as_str()).collect();
            format!("  {}", words.join(" · "))
        };
        while facts.len() > 1 && text(&facts).width() > width {
            let least = facts.iter().map(|(weight, _)| *weight).min();
            facts.retain(|(weight, _)| Some(*weight) != least);
        }
        Line::from(Span::styled(short(&text(&facts), width), look.quiet()))
    }
}

pub(crate) fn count(tokens: u64) -> String {
    match tokens {
        0..1000 => tokens.to_string(),
        1000..100_000 => format!("{:.1}k", tokens as f64 / 1000.0),
        100_000..1_000_000 => format!("{}k", tokens / 1000),
        _ => format!("{:.1}M", tokens as f64 / 1_000_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_narrow_window_the_least_important_goes_first() {
        let status = Status {
            model: "gpt-5.2-codex".into(),
            usage: Usage {
                input_tokens: 12_345,
                output_tokens: 678,
                ..Usage::default()
            },
            cost: Some(0.123),
            context: 30_000,
            window: 200_000,
            sandbox: SandboxPolicy::WorkspaceWrite,
            session: Some("ses_7k2m4x".into()),
        };
        let line = |width| status.line(width, Look::Plain).to_string();
        assert_eq!(
            line(90),
            "  gpt-5.2-codex · 12.3k in, 678 out · $0.12 · 85% left · workspace-write · ses_7k2m4x"
        );
        assert_eq!(
            line(60),
            "  gpt-5.2-codex · $0.12 · 85% left · workspace-write"
        );
        assert_eq!(line(40), "  gpt-5.2-codex · workspace-write");
        assert_eq!(line(10), "  workspa…");
    }
}
