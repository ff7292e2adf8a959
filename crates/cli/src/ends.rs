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
    // Each by the name it has afterwards, unless it is gone then.
    let headings = (1..lines.len()).filter(|at| lines[*at].starts_with("+++ "));
    let names = headings.map(|at| at - usize::from(lines[at] == "+++ /dev/null"));
    let left_out = head.len()..head.len() + middle.len();
    let names = names.filter(|at| left_out.contains(at)).take(MAX_NAMES);
    let names: Vec<&str> = names.map(|at| lines[at]).collect();
    [
        told(head),
        vec![Shown::LeftOut(middle.len())],
        told(&names),
        told(tail),
    ]
    .concat()
}

fn told<'a>(lines: &[&'a str]) -> Vec<Shown<'a>> {
    lines.iter().map(|line| Shown::Line(line)).collect()
}

impl Shown<'_> {
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
        assert_eq!(
            shown("a\nb\nc\nd\nrm -rf x", 3),
            ["a", "b", "… 2 lines are not shown here", "rm -rf x"]
        );
        let diff = "--- a/x\n+++ b/x\n+1\n+2\n--- /dev/null\n+++ b/evil\n+3\n--- a/gone\n+++ /dev/null\n-4\n--- a/y\n+++ b/y\n+5\n";
        let told = [
            "--- a/x",
            "+++ b/x",
            "… 9 lines are not shown here",
            "+++ b/evil",
            "--- a/gone",
            "+++ b/y",
            "+5",
        ];
        assert_eq!(shown(diff, 4), told);
        // Wherever it is cut.
        for most in 2..12 {
            let shown = shown(diff, most);
            let told = |name: &str| shown.iter().any(|line| line == name);
            assert!(
                ["+++ b/x", "+++ b/evil", "--- a/gone", "+++ b/y"]
                    .into_iter()
                    .all(told),
                "{most}: {shown:?}"
            );
        }
    }
}
