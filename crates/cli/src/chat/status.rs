//! The status line: model, tokens, cost, remaining context, sandbox policy and session. In a narrow
//! terminal the least important fields are left out.

use ratatui_core::text::{Line, Span};
use selvedge_protocol::{SandboxPolicy, Usage};
use unicode_width::UnicodeWidthStr;

use super::look::Look;
use super::rows::short;

/// The values of the status line.
#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    pub(crate) model: String,
    /// Tokens of the whole session.
    pub(crate) usage: Usage,
    /// Cost of the session in US dollars; `None` if the model's prices are unknown.
    pub(crate) cost: Option<f64>,
    /// Tokens of the last request and its answer.
    pub(crate) context: u64,
    /// The model's context window in tokens.
    pub(crate) window: u64,
    pub(crate) sandbox: SandboxPolicy,
    pub(crate) session: Option<String>,
}

impl Status {
    /// Returns the unused share of the context window in percent.
    pub(crate) fn left(&self) -> u64 {
        100 - (self.context.min(self.window) * 100)
            .checked_div(self.window)
            .unwrap_or(0)
    }

    pub(crate) fn line(&self, width: usize, theme: Look) -> Line<'static> {
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
        // In display order, each with its priority; the lowest is left out first.
        let mut fields = vec![
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
        fields.retain(|(_, field)| !field.is_empty());
        let text = |fields: &[(u8, String)]| {
            let texts: Vec<&str> = fields.iter().map(|(_, field)| field.as_str()).collect();
            format!("  {}", texts.join(" · "))
        };
        while fields.len() > 1 && text(&fields).width() > width {
            let lowest = fields.iter().map(|(priority, _)| *priority).min();
            fields.retain(|(priority, _)| Some(*priority) != lowest);
        }
        Line::from(Span::styled(short(&text(&fields), width), theme.quiet()))
    }
}

/// Formats a number of tokens, such as `12.3k`.
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
    fn a_narrow_status_line_drops_the_least_important_fields() {
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
