//! Computes the hunks of a unified diff between two texts.

use std::time::{Duration, Instant};

use similar::{Algorithm, DiffOp, capture_diff_slices_deadline, group_diff_ops};

/// Number of unchanged lines shown around a change.
const CONTEXT_LINES: usize = 3;

/// Time limit for finding the shortest diff of one file; afterwards a longer diff is accepted.
const FILE_DIFF_TIME_LIMIT: Duration = Duration::from_millis(500);

/// Numbers of added and removed lines.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LineCounts {
    pub(super) added: usize,
    pub(super) removed: usize,
}

/// Appends the hunks between two texts to `out`. After `deadline`, the diff may not be the
/// shortest.
pub(super) fn write_hunks(
    before: &[u8],
    after: &[u8],
    deadline: Instant,
    out: &mut String,
) -> LineCounts {
    let lines = |text| <[u8]>::split_inclusive(text, |byte| *byte == b'\n').collect::<Vec<_>>();
    let (before, after) = (lines(before), lines(after));
    let deadline = deadline.min(Instant::now() + FILE_DIFF_TIME_LIMIT);
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &before, &after, Some(deadline));
    let mut counts = LineCounts::default();
    for hunk in group_diff_ops(ops, CONTEXT_LINES) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else {
            continue;
        };
        let range = |start: usize, end: usize| match end - start {
            // An empty range has the number of the line before it.
            0 => format!("{start},0"),
            1 => format!("{}", start + 1),
            count => format!("{},{count}", start + 1),
        };
        let old = range(first.old_range().start, last.old_range().end);
        let new = range(first.new_range().start, last.new_range().end);
        out.push_str(&format!("@@ -{old} +{new} @@\n"));
        for op in hunk {
            if let DiffOp::Equal { .. } = op {
                push_lines(' ', &before[op.old_range()], out);
                continue;
            }
            push_lines('-', &before[op.old_range()], out);
            push_lines('+', &after[op.new_range()], out);
            counts.removed += op.old_range().len();
            counts.added += op.new_range().len();
        }
    }
    counts
}

fn push_lines(sign: char, lines: &[&[u8]], out: &mut String) {
    for line in lines {
        out.push(sign);
        out.push_str(&String::from_utf8_lossy(line));
        if !line.ends_with(b"\n") {
            out.push_str("\n\\ No newline at end of file\n");
        }
    }
}
