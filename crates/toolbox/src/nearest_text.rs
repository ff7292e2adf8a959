//! The error of an edit whose text is not in the file: shows the most similar lines, and how they
//! differ.

use selvedge_text::{group_digits, truncate_chars};
use selvedge_tools::ToolError;

/// Maximum number of lines shown.
const MAX_SHOWN_LINES: usize = 8;

/// Maximum number of characters shown of a line.
const MAX_LINE_CHARS: usize = 160;

/// Comparisons of lines after which the search for similar lines stops.
const MAX_COMPARISONS: usize = 2_000_000;

/// Lines of the file, and how similar they are to the text of the edit.
struct NearestLines {
    /// Index of the first line.
    start: usize,
    count: usize,
    only_whitespace_differs: bool,
}

/// Returns the error for a text that does not occur in the file.
pub(crate) fn text_not_found_error(display_path: &str, file: &[u8], old: &str) -> ToolError {
    let file = String::from_utf8_lossy(file);
    let lines: Vec<&str> = file.lines().collect();
    let wanted: Vec<&str> = old.lines().collect();
    let mut message = format!("`old` was not found in {display_path}");
    if let Some(text) = without_line_numbers(&wanted) {
        message.push_str("; `old` contains line numbers; use `text` of readFile, not `numbered`");
        if file.contains(&text) {
            return ToolError::new(message);
        }
    }
    let Some(nearest) = find_nearest(&lines, &wanted) else {
        message.push_str(&format!("; {display_path} has no similar lines"));
        return ToolError::new(message).suggest("read the file again");
    };
    let (first, last) = (nearest.start + 1, nearest.start + nearest.count);
    let place = match nearest.count {
        1 => format!("line {}", group_digits(first)),
        _ => format!("lines {} to {}", group_digits(first), group_digits(last)),
    };
    message.push_str(&format!("; nearest match at {place}"));
    message.push_str(match nearest.only_whitespace_differs {
        true => ", which differs only in whitespace:",
        false => ":",
    });
    append_comparison(&mut message, &lines, &wanted, &nearest);
    ToolError::new(message).suggest("copy the text from readFile, or edit a smaller part")
}

/// Returns the text without the `L12: ` of each line, if all lines have it.
fn without_line_numbers(lines: &[&str]) -> Option<String> {
    let strip = |line: &&str| {
        let rest = line
            .strip_prefix('L')?
            .trim_start_matches(|c: char| c.is_ascii_digit());
        rest.strip_prefix(": ").map(str::to_owned)
    };
    let stripped: Option<Vec<String>> = lines.iter().map(strip).collect();
    stripped.map(|lines| lines.join("\n"))
}

/// Finds the lines that equal the text except for whitespace, else the most similar ones.
fn find_nearest(lines: &[&str], wanted: &[&str]) -> Option<NearestLines> {
    find_ignoring_whitespace(lines, wanted).or_else(|| find_similar(lines, wanted))
}

/// Finds the lines that contain the text if all whitespace is removed from both.
fn find_ignoring_whitespace(lines: &[&str], wanted: &[&str]) -> Option<NearestLines> {
    let remove_whitespace =
        |lines: &[&str]| -> String { lines.concat().split_whitespace().collect() };
    let wanted = remove_whitespace(wanted);
    if wanted.is_empty() {
        return None;
    }
    let condensed = remove_whitespace(lines);
    let from = condensed.find(&wanted)?;
    let to = from + wanted.len();
    // The lines in which the first and the last character are.
    let (mut end, mut start, mut last) = (0, None, 0);
    for (index, line) in lines.iter().enumerate() {
        end += line.split_whitespace().map(str::len).sum::<usize>();
        if start.is_none() && end > from {
            start = Some(index);
        }
        if end >= to {
            last = index;
            break;
        }
    }
    let start = start?;
    Some(NearestLines {
        start,
        count: last - start + 1,
        only_whitespace_differs: true,
    })
}

/// Finds as many lines as the text has, most of whose words are those of the text.
fn find_similar(lines: &[&str], wanted: &[&str]) -> Option<NearestLines> {
    let count = wanted.len().min(lines.len());
    if count == 0 || wanted.len() * lines.len() > MAX_COMPARISONS {
        return None;
    }
    let score = |start: usize| -> usize {
        let pairs = lines[start..].iter().zip(wanted);
        pairs
            .map(|(line, wanted)| similarity_percent(line, wanted))
            .sum()
    };
    let (start, best) = (0..=lines.len() - count)
        .map(|start| (start, score(start)))
        // If several places are equally similar, take the first.
        .max_by_key(|(start, score)| (*score, std::cmp::Reverse(*start)))?;
    (best >= 50 * wanted.len()).then_some(NearestLines {
        start,
        count,
        only_whitespace_differs: false,
    })
}

/// Returns the percentage of the wanted line's words and symbols that the line contains.
fn similarity_percent(line: &str, wanted: &str) -> usize {
    let mut tokens: Vec<&str> = tokens(line).collect();
    let (mut common, mut all) = (0, 0);
    for token in self::tokens(wanted) {
        all += token.len();
        if let Some(at) = tokens.iter().position(|other| *other == token) {
            tokens.swap_remove(at);
            common += token.len();
        }
    }
    match all {
        // An empty line is similar to an empty line.
        0 => 100 * usize::from(tokens.is_empty()),
        all => common * 100 / all,
    }
}

/// Splits a line into words and single symbols, without whitespace.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.split_inclusive(move |c: char| !is_word(c))
        .flat_map(move |part| {
            let word_end = part.trim_end_matches(move |c: char| !is_word(c)).len();
            [&part[..word_end], part[word_end..].trim()]
        })
        .filter(|token| !token.is_empty())
}

/// Appends lines of the file and the different lines of the text, starting one line before the
/// first difference.
fn append_comparison(
    message: &mut String,
    lines: &[&str],
    wanted: &[&str],
    nearest: &NearestLines,
) {
    let same_count = nearest.count == wanted.len();
    let differs =
        |index: usize| !same_count || wanted.get(index) != lines.get(nearest.start + index);
    let first = (0..nearest.count)
        .find(|index| differs(*index))
        .unwrap_or(0)
        .saturating_sub(1);
    for index in (first..nearest.count).take(MAX_SHOWN_LINES) {
        let number = nearest.start + index + 1;
        let line = truncate_chars(lines[nearest.start + index], MAX_LINE_CHARS);
        message.push_str(&format!("\n  file {number}: {line}"));
        if let Some(wanted) = wanted.get(index).filter(|_| same_count && differs(index)) {
            let pad = " ".repeat(number.to_string().len() + 1);
            let wanted = truncate_chars(wanted, MAX_LINE_CHARS);
            message.push_str(&format!("\n  old {pad}: {wanted}"));
        }
    }
}
