//! Shortens a long text to its first and last lines. The end is always shown, because a harmful
//! part could be hidden there.

/// A line of a shortened text, or the number of omitted lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExcerptLine<'a> {
    Line(&'a str),
    /// Number of lines omitted here.
    Omitted(usize),
}

/// Returns at most `max_lines` lines from both ends of a text.
pub(crate) fn excerpt(text: &str, max_lines: usize) -> Vec<ExcerptLine<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() <= max_lines {
        return to_excerpt_lines(&lines);
    }
    let tail = max_lines / 2;
    let (head, rest) = lines.split_at(max_lines - tail);
    let (middle, tail) = rest.split_at(rest.len() - tail);
    [
        to_excerpt_lines(head),
        vec![ExcerptLine::Omitted(middle.len())],
        to_excerpt_lines(tail),
    ]
    .concat()
}

fn to_excerpt_lines<'a>(lines: &[&'a str]) -> Vec<ExcerptLine<'a>> {
    lines.iter().map(|line| ExcerptLine::Line(line)).collect()
}

impl ExcerptLine<'_> {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Line(line) => (*line).to_owned(),
            Self::Omitted(lines) => {
                format!("… {} omitted", selvedge_text::count_noun(*lines, "line"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_shown() {
        let shown = |text: &str, max| {
            excerpt(text, max)
                .iter()
                .map(ExcerptLine::text)
                .collect::<Vec<_>>()
        };
        assert_eq!(shown("a\nb\nc\n", 3), ["a", "b", "c"]);
        assert_eq!(
            shown("a\nb\nc\nd\nrm -rf x", 3),
            ["a", "b", "… 2 lines omitted", "rm -rf x"]
        );
    }
}
