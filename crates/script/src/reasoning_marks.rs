//! The marks between which models reason. Case and spaces inside of a tag make no difference.

/// Elements in which models reason, in lower case.
const REASONING_ELEMENTS: [&str; 6] = [
    "antthinking",
    "reasoning",
    "seed:think",
    "think",
    "thinking",
    "thought",
];

/// Other marks in lower case: the opening and the closing one.
const OTHER_MARKS: [(&str, &str); 8] = [
    ("<|think|>", "<|/think|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|start_thinking|>", "<|end_thinking|>"),
    ("<|channel>thought", "<channel|>"),
    ("[think]", "[/think]"),
    ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis<|message|>", END_OF_MESSAGE),
    (
        "<|start|>assistant<|channel|>analysis<|message|>",
        END_OF_MESSAGE,
    ),
];

/// Ends a message of the format with channels. Without a start it says nothing about the text
/// before it, which can be the final answer.
const END_OF_MESSAGE: &str = "<|end|>";

/// The characters with which marks begin.
pub(crate) const MARK_STARTS: [char; 3] = ['<', '[', '◁'];

/// Maximum length of a tag, in bytes.
const MAX_TAG_BYTES: usize = 1_000;

/// A kind of reasoning, as its end says: the name of an element, or a closing mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReasoningKind(&'static str);

impl ReasoningKind {
    /// Whether the end of this kind without a start means that the text before it is reasoning.
    pub(crate) fn can_start_in_prompt(self) -> bool {
        self.0 != END_OF_MESSAGE
    }
}

/// What is at the start of a text. Lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReasoningMark {
    /// Not a mark.
    None,
    /// Not decided: more text is needed.
    Incomplete,
    Open(ReasoningKind),
    Close {
        kind: ReasoningKind,
        len: usize,
    },
}

/// Returns the mark at the start of a text.
pub(crate) fn mark_at(text: &str) -> ReasoningMark {
    let starts_with = |mark: &str| {
        let start = text.get(..mark.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(mark))
    };
    let is_prefix = |mark: &str| {
        let start = mark.get(..text.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(text))
    };
    for (open, close) in OTHER_MARKS {
        let kind = ReasoningKind(close);
        if starts_with(open) {
            return ReasoningMark::Open(kind);
        }
        if starts_with(close) {
            let len = close.len();
            return ReasoningMark::Close { kind, len };
        }
    }
    let mut marks = OTHER_MARKS.iter();
    match tag_at(text) {
        ReasoningMark::None if marks.any(|(open, close)| is_prefix(open) || is_prefix(close)) => {
            ReasoningMark::Incomplete
        }
        tag => tag,
    }
}

/// Returns the tag of a reasoning element at the start of a text.
fn tag_at(text: &str) -> ReasoningMark {
    let Some(inside) = text.strip_prefix('<') else {
        return ReasoningMark::None;
    };
    let spaces = |c: char| c == ' ' || c == '\t';
    let inside = inside.trim_start_matches(spaces);
    let (is_end, name) = match inside.strip_prefix('/') {
        Some(rest) => (true, rest.trim_start_matches(spaces)),
        None => (false, inside),
    };
    let name_len = name.find(|c: char| !c.is_ascii_alphabetic() && c != ':');
    let Some(name_len) = name_len else {
        let name = name.to_ascii_lowercase();
        let mut names = REASONING_ELEMENTS.iter();
        return match names.any(|known| known.starts_with(&name)) {
            true => ReasoningMark::Incomplete,
            false => ReasoningMark::None,
        };
    };
    let (name, rest) = name.split_at(name_len);
    let mut names = REASONING_ELEMENTS.iter();
    let Some(name) = names.find(|known| known.eq_ignore_ascii_case(name)) else {
        return ReasoningMark::None;
    };
    let ends_at = match is_end {
        true => rest.find(|c: char| !spaces(c)),
        false if rest.starts_with('>') => Some(0),
        false if rest.starts_with(spaces) => rest.find(['>', '<', '\n']),
        false => return ReasoningMark::None,
    };
    match ends_at {
        None if text.len() < MAX_TAG_BYTES => ReasoningMark::Incomplete,
        Some(at) if rest[at..].starts_with('>') => {
            let kind = ReasoningKind(name);
            let len = text.len() - rest.len() + at + 1;
            match is_end {
                true => ReasoningMark::Close { kind, len },
                false => ReasoningMark::Open(kind),
            }
        }
        _ => ReasoningMark::None,
    }
}

/// Returns the marks of a text, with their places.
fn marks(text: &str) -> impl Iterator<Item = (usize, ReasoningMark)> + '_ {
    let starts = text.match_indices(MARK_STARTS);
    starts.map(|(at, _)| (at, mark_at(&text[at..])))
}

/// Returns whether reasoning begins in the text and does not end there.
pub(crate) fn has_open_reasoning(text: &str) -> bool {
    let mut open = Vec::new();
    for (_, mark) in marks(text) {
        match mark {
            ReasoningMark::Open(kind) if !open.contains(&kind) => open.push(kind),
            ReasoningMark::Close { kind, .. } => open.retain(|open| *open != kind),
            _ => {}
        }
    }
    !open.is_empty()
}

/// Returns whether an end of this kind after the text has no start in it.
pub(crate) fn has_no_start(text: &str, kind: ReasoningKind) -> bool {
    let starts = |depth: usize, (_, mark)| match mark {
        ReasoningMark::Open(open) if open == kind => depth + 1,
        ReasoningMark::Close { kind: close, .. } if close == kind => depth.saturating_sub(1),
        _ => depth,
    };
    marks(text).fold(0, starts) == 0
}

/// Returns the end of reasoning of this kind, or how much of the text is certainly reasoning.
pub(crate) fn find_end(text: &str, kind: ReasoningKind) -> Result<usize, usize> {
    for (at, mark) in marks(text) {
        match mark {
            ReasoningMark::Close { kind: close, len } if close == kind => return Ok(at + len),
            ReasoningMark::Incomplete => return Err(at),
            _ => {}
        }
    }
    Err(text.len())
}

/// Returns the text of reasoning without its marks.
pub fn reasoning_text(raw: &str) -> &str {
    let mut text = raw;
    if let ReasoningMark::Open(kind) = mark_at(raw) {
        let mut opens = OTHER_MARKS.iter().map(|(open, close)| (*open, *close));
        let len = opens.find_map(|(open, close)| {
            let start = raw.get(..open.len())?;
            (close == kind.0 && start.eq_ignore_ascii_case(open)).then_some(open.len())
        });
        let len = len.or_else(|| raw.find('>').map(|at| at + 1));
        text = &raw[len.unwrap_or(0)..];
    }
    if let Some(at) = text.rfind(MARK_STARTS)
        && let ReasoningMark::Close { len, .. } = mark_at(&text[at..])
        && at + len == text.len()
    {
        text = &text[..at];
    }
    text.trim()
}
