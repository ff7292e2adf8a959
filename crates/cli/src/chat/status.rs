//! The status line: model, tokens, cost, remaining context, sandbox policy and session. In a narrow
//! terminal the least important fields are omitted.

use ratatui_core::text::{Line, Span};
use selvedge_protocol::{SandboxPolicy, Usage};
use unicode_width::UnicodeWidthStr;

use super::rows::truncate;
use super::theme::Theme;

/// The values of the status line.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatusLine {
    pub(crate) model: String,
    /// Tokens of the whole session.
    pub(crate) usage: Usage,
    /// Cost of the session in US dollars; `None` if the model's prices are unknown.
    pub(crate) cost: Option<f64>,
    /// Tokens of the last request and its answer.
    pub(crate) context_tokens: u64,
    /// The model's context window in tokens.
    pub(crate) context_window: u64,
    pub(crate) sandbox: SandboxPolicy,
    pub(crate) session_id: Option<String>,
}

impl StatusLine {
    /// Returns the unused share of the context window in percent.
    pub(crate) fn context_left_percent(&self) -> u64 {
        100 - (self.context_tokens.min(self.context_window) * 100)
            .checked_div(self.context_window)
            .unwrap_or(0)
    }

    pub(crate) fn render(&self, width: usize, theme: Theme) -> Line<'static> {
        let sandbox = match self.sandbox {
            SandboxPolicy::ReadOnly => "read-only",
            SandboxPolicy::WorkspaceWrite => "workspace-write",
            SandboxPolicy::DangerFullAccess => "full access",
        };
        let cost = self
            .cost
            .filter(|cost| *cost > 0.0)
            .map(|cost| format!("${cost:.2}"));
        // In display order, each with its priority; the lowest is omitted first.
        let mut fields = vec![
            (5, truncate(&self.model, 30)),
            (2, format_usage(&self.usage)),
            (3, cost.unwrap_or_default()),
            (4, format!("{}% left", self.context_left_percent())),
            (6, sandbox.to_owned()),
            (1, self.session_id.clone().unwrap_or_default()),
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
        Line::from(Span::styled(truncate(&text(&fields), width), theme.dim()))
    }
}

/// Formats the tokens of requests and answers, such as `12.3k in, 678 out`.
pub(crate) fn format_usage(usage: &Usage) -> String {
    let (input, output) = (usage.input_tokens, usage.output_tokens);
    format!("{} in, {} out", format_tokens(input), format_tokens(output))
}

/// Formats a number of tokens, such as `12.3k`.
pub(crate) fn format_tokens(tokens: u64) -> String {
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
        let status = StatusLine {
            model: "gpt-5.2-codex".into(),
            usage: Usage {
                input_tokens: 12_345,
                output_tokens: 678,
                ..Usage::default()
            },
            cost: Some(0.123),
            context_tokens: 30_000,
            context_window: 200_000,
            sandbox: SandboxPolicy::WorkspaceWrite,
            session_id: Some("ses_7k2m4x".into()),
        };
        let line = |width| status.render(width, Theme::Plain).to_string();
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
