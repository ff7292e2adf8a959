//! Both ends of a long text: what is to be overlooked would stand last.

/// A line of a long text, or of what stands in for those that are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shown<'a> {
    Line(&'a str),
    /// How many lines are left out here.
    LeftOut(usize),
}

/// Names of files in what is left out, at most.
const MAX_NAMES: usize = 50;

/// At most so many lines of a text from its two ends. Of a diff, the names of files that are left out are told, too.
pub(crate) fn ends(text: &str, most: usize) -> Vec<Shown<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() <= most {
        return lines.into_iter().map(Shown::Line).collect();
    }
    let tail = most / 2;
    let (head, rest) = lines.split_at(most - tail);
    let (middle, tail) = rest.split_at(rest.len() - tail);
    let names: Vec<&str> = middle.iter().copied().filter(|line| line.starts_with("+++ ")).take(MAX_NAMES).collect();
    [told(head), vec![Shown::LeftOut(middle.len())], told(&names), told(tail)].concat()
}

fn told<'a>(lines: &[&'a str]) -> Vec<Shown<'a>> {
    lines.iter().map(|line| Shown::Line(line)).collect()
}

impl Shown<'_> {
    /// As a line of its own.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Line(line) => (*line).to_owned(),
            Self::LeftOut(lines) => format!("… {lines} lines are not shown here"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_shown_and_no_file_is_left_out() {
        let shown = |text: &str, most| ends(text, most).iter().map(Shown::text).collect::<Vec<_>>();
        assert_eq!(shown("a\nb\nc\n", 3), ["a", "b", "c"]);
        assert_eq!(shown("a\nb\nc\nd\nrm -rf x", 3), ["a", "b", "… 2 lines are not shown here", "rm -rf x"]);
        let diff = "--- a/x\n+++ b/x\n+1\n+2\n--- /dev/null\n+++ b/evil\n+3\n--- a/y\n+++ b/y\n+4\n";
        let told = ["--- a/x", "+++ b/x", "… 6 lines are not shown here", "+++ b/evil", "+++ b/y", "+4"];
        assert_eq!(shown(diff, 4), told);
    }
}
