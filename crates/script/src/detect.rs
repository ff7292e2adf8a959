//! Finds script blocks in an assistant's text: `<tool-calls>…</tool-calls>` and
//! ```` ```ts tool-calls ```` fences. Works on a stream; how the text is split makes no difference.
//!
//! A block starts at column 0 of a line, at the top level of the Markdown document that the text
//! is (`top_level`); elsewhere it is text, and so is a tag in the middle of a line.
//! `</tool-calls>` ends a block where it ends a line. Text in `<think>` or similar marks is
//! reasoning, in which there are no blocks. A nested, unbalanced or unclosed block is reported as
//! malformed.

use crate::top_level::{LineContent, is_top_level_after};

/// A part of an assistant's message. All segments together are the message, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Text outside of blocks.
    Text(String),
    /// Reasoning, with its tags.
    Reasoning(String),
    /// A `</think>` without a start: all text before it is reasoning, whose opening tag was part of
    /// the prompt.
    EndOfReasoning(String),
    /// A script block.
    Script(ScriptBlock),
    /// A malformed script block.
    Malformed {
        /// The text of the block.
        raw: String,
        /// What is wrong, in one line.
        problem: String,
    },
}

impl Segment {
    /// Returns the text of the segment as it is in the message.
    pub fn raw(&self) -> &str {
        match self {
            Self::Text(raw) | Self::Reasoning(raw) | Self::EndOfReasoning(raw) => raw,
            Self::Script(block) => &block.raw,
            Self::Malformed { raw, .. } => raw,
        }
    }
}

/// A script block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptBlock {
    /// The script, without the markers.
    pub code: String,
    /// The block as it is in the message, with the markers.
    pub raw: String,
}

impl ScriptBlock {
    /// Returns the language that the block names: `js` or `ts`, which is also the language of a
    /// block that names none.
    pub fn language(&self) -> &'static str {
        let info = self.raw.trim_start_matches('`');
        match info.starts_with("js") || info.starts_with("javascript") {
            true => "js",
            false => "ts",
        }
    }
}

/// How a block is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockFormat {
    /// The tag `<tool-calls>`.
    Tag,
    /// ```` ```ts tool-calls ````, with this number of backticks.
    Fence(usize),
}

const OPEN_TAG: &str = "<tool-calls";
const CLOSE_TAG: &str = "</tool-calls>";
/// The marks between which models reason.
const REASONING_TAGS: [(&str, &str); 12] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<antThinking>", "</antThinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<|think|>", "<|/think|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("[THINK]", "[/THINK]"),
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
const FENCE_INFO_STRINGS: [&str; 4] = [
    "ts tool-calls",
    "typescript tool-calls",
    "js tool-calls",
    "javascript tool-calls",
];
/// Maximum number of markers whose place in the document is looked up, which takes time in
/// proportion to the text before them. Later markers are text.
const MAX_LOOKUPS: usize = 256;

/// Splits a complete message into segments.
pub fn detect(text: &str) -> Vec<Segment> {
    let mut detector = BlockDetector::default();
    let mut segments = detector.push(text);
    segments.extend(detector.finish());
    merge_text(segments)
}

/// Joins adjacent text and adjacent reasoning, so that segments are equal however the message was
/// streamed.
pub fn merge_text(segments: Vec<Segment>) -> Vec<Segment> {
    let mut merged: Vec<Segment> = Vec::new();
    for segment in segments {
        match (merged.last_mut(), segment) {
            (Some(Segment::Text(last)), Segment::Text(text)) => last.push_str(&text),
            (Some(Segment::Reasoning(last)), Segment::Reasoning(text)) => last.push_str(&text),
            (_, segment) => merged.push(segment),
        }
    }
    merged
}

/// Returns the text of a reasoning segment without its tags.
pub fn reasoning_text(raw: &str) -> &str {
    let mut text = raw;
    for (open, close) in REASONING_TAGS {
        text = text.strip_prefix(open).unwrap_or(text);
        text = text.strip_suffix(close).unwrap_or(text);
    }
    text.trim()
}

/// Finds blocks while the text arrives. Returns text as soon as it cannot be part of a marker.
#[derive(Debug)]
pub struct BlockDetector {
    text: String,
    /// End of the text that was returned as segments.
    emitted: usize,
    /// End of the text that was scanned.
    scanned: usize,
    /// Whether `scanned` is the start of a line.
    at_line_start: bool,
    /// Start of the current Markdown document: of the text, or the end of the last block.
    document: usize,
    /// Number of markers whose place was looked up.
    lookups: usize,
    place: DetectorPlace,
}

impl Default for BlockDetector {
    fn default() -> Self {
        Self {
            text: String::new(),
            emitted: 0,
            scanned: 0,
            at_line_start: true,
            document: 0,
            lookups: 0,
            place: DetectorPlace::Text,
        }
    }
}

/// What the detector is inside of.
#[derive(Debug)]
enum DetectorPlace {
    Text,
    /// Reasoning up to this tag.
    Reasoning(&'static str),
    Block(OpenBlock),
}

/// A block whose end has not been found yet. Offsets are in bytes.
#[derive(Debug)]
struct OpenBlock {
    format: BlockFormat,
    /// Start of the opening marker.
    start: usize,
    /// Start of the code.
    body: usize,
    /// Number of nested blocks that are not closed.
    depth: usize,
    problem: Option<&'static str>,
}

/// What is at the start of a line of text.
enum LineMarker {
    /// Not a marker.
    Nothing,
    /// Not decided: more text is needed.
    Incomplete,
    /// An opening marker of this length.
    Open {
        format: BlockFormat,
        len: usize,
        problem: Option<&'static str>,
    },
    /// A closing tag.
    Close,
    /// The start of reasoning up to this tag.
    Reasoning(&'static str),
    /// The end of reasoning that has no start: a tag of this length.
    EndOfReasoning(usize),
}

impl LineMarker {
    fn content(&self) -> LineContent {
        match self {
            Self::Reasoning(_) | Self::EndOfReasoning(_) => LineContent::Reasoning,
            _ => LineContent::Script,
        }
    }
}

impl BlockDetector {
    /// Adds text and returns the segments that are complete.
    pub fn push(&mut self, delta: &str) -> Vec<Segment> {
        self.text.push_str(delta);
        self.scan(false)
    }

    /// Whether a block has begun whose end has not been found yet.
    pub fn is_in_block(&self) -> bool {
        matches!(self.place, DetectorPlace::Block(_))
    }

    /// Ends the message and returns the remaining segments.
    pub fn finish(mut self) -> Vec<Segment> {
        let mut segments = self.scan(true);
        match std::mem::replace(&mut self.place, DetectorPlace::Text) {
            DetectorPlace::Block(inside) => {
                let what = match inside.format {
                    BlockFormat::Tag => {
                        "`<tool-calls>` is not closed: write `</tool-calls>` at the end of a line \
                         after the script"
                    }
                    BlockFormat::Fence(_) => {
                        "the ```ts tool-calls fence is not closed: \
                         write ``` on a line of its own after the script"
                    }
                };
                segments.push(Segment::Malformed {
                    raw: self.text[inside.start..].to_owned(),
                    problem: inside.problem.unwrap_or(what).to_owned(),
                });
            }
            DetectorPlace::Reasoning(_) => {
                self.emit(self.text.len(), Segment::Reasoning, &mut segments);
            }
            DetectorPlace::Text => self.emit(self.text.len(), Segment::Text, &mut segments),
        }
        segments
    }

    /// Scans the text that was not scanned yet. `last` says that no more text follows.
    fn scan(&mut self, last: bool) -> Vec<Segment> {
        let mut segments = Vec::new();
        loop {
            let advanced = match &self.place {
                DetectorPlace::Text => self.scan_text(last, &mut segments),
                DetectorPlace::Reasoning(close) => {
                    let close = *close;
                    self.scan_reasoning(close, last, &mut segments)
                }
                DetectorPlace::Block(_) => self.scan_block_line(last, &mut segments),
            };
            if !advanced {
                return segments;
            }
        }
    }

    /// Scans a line of text, or its rest. Returns false if more text is needed.
    fn scan_text(&mut self, last: bool, segments: &mut Vec<Segment>) -> bool {
        let start = self.scanned;
        if self.at_line_start {
            let marker = self.line_marker(start, last);
            let marker = match marker {
                LineMarker::Nothing | LineMarker::Incomplete => marker,
                found if self.is_top_level(start, found.content()) => found,
                _ => LineMarker::Nothing,
            };
            match marker {
                LineMarker::Incomplete => return false,
                LineMarker::Nothing => self.at_line_start = false,
                LineMarker::Open {
                    format,
                    len,
                    problem,
                } => {
                    self.emit(start, Segment::Text, segments);
                    self.scanned = (start + len).min(self.text.len());
                    self.place = DetectorPlace::Block(OpenBlock {
                        format,
                        start,
                        body: self.scanned,
                        depth: 0,
                        problem,
                    });
                    return true;
                }
                LineMarker::Close => {
                    self.emit(start, Segment::Text, segments);
                    let problem = "`</tool-calls>` has no matching `<tool-calls>` at the start of a \
                                   line before it";
                    self.end_document(start + CLOSE_TAG.len());
                    segments.push(Segment::Malformed {
                        raw: CLOSE_TAG.to_owned(),
                        problem: problem.to_owned(),
                    });
                    return true;
                }
                LineMarker::Reasoning(close) => {
                    self.emit(start, Segment::Text, segments);
                    self.place = DetectorPlace::Reasoning(close);
                    return true;
                }
                LineMarker::EndOfReasoning(len) => {
                    self.emit(start, Segment::Text, segments);
                    self.end_document(start + len);
                    let raw = self.text[start..start + len].to_owned();
                    segments.push(Segment::EndOfReasoning(raw));
                    return true;
                }
            }
        }
        let line_end = self.text[start..].find('\n');
        self.scanned = line_end.map_or(self.text.len(), |end| start + end + 1);
        self.emit(self.scanned, Segment::Text, segments);
        self.at_line_start = line_end.is_some();
        line_end.is_some()
    }

    /// Returns the marker at the start of a line of text.
    fn line_marker(&self, start: usize, last: bool) -> LineMarker {
        let rest = &self.text[start..];
        let line = rest.split('\n').next().unwrap_or(rest);
        let is_whole = last || line.len() < rest.len();
        if line.starts_with('`') {
            return fence_marker(line, is_whole);
        }
        if !line.starts_with(['<', '[', '◁']) {
            return match rest.is_empty() && !last {
                true => LineMarker::Incomplete,
                false => LineMarker::Nothing,
            };
        }
        let ends_with_tag = |tag: &str| {
            let after = line.strip_prefix(tag)?;
            after.trim().is_empty().then_some(is_whole)
        };
        match ends_with_tag(CLOSE_TAG) {
            Some(true) => return LineMarker::Close,
            Some(false) => return LineMarker::Incomplete,
            None => {}
        }
        for (open, close) in REASONING_TAGS {
            if line.starts_with(open) {
                return LineMarker::Reasoning(close);
            }
            match ends_with_tag(close).filter(|_| close != END_OF_MESSAGE) {
                Some(true) => return LineMarker::EndOfReasoning(close.len()),
                Some(false) => return LineMarker::Incomplete,
                None => {}
            }
        }
        if let Some(after) = line.strip_prefix(OPEN_TAG) {
            let open = |len, problem| LineMarker::Open {
                format: BlockFormat::Tag,
                len,
                problem,
            };
            match after.as_bytes().first() {
                Some(b'>') => return open(OPEN_TAG.len() + 1, None),
                Some(byte) if byte.is_ascii_whitespace() || *byte == b'/' => {
                    return open(OPEN_TAG.len(), Some("`<tool-calls>` takes no attributes"));
                }
                _ => {}
            }
        }
        let mut tags = REASONING_TAGS
            .iter()
            .flat_map(|(open, close)| [*open, *close]);
        let is_prefix = |tag: &str| tag.starts_with(line);
        let undecided = is_prefix(OPEN_TAG) || is_prefix(CLOSE_TAG) || tags.any(is_prefix);
        match undecided && !is_whole {
            true => LineMarker::Incomplete,
            false => LineMarker::Nothing,
        }
    }

    /// Returns whether a line that starts at `start` is at the top level of the document.
    fn is_top_level(&mut self, start: usize, content: LineContent) -> bool {
        let before = &self.text[self.document..start];
        if before.trim().is_empty() {
            return true;
        }
        self.lookups += 1;
        self.lookups <= MAX_LOOKUPS && is_top_level_after(before, content)
    }

    fn scan_reasoning(
        &mut self,
        close: &'static str,
        last: bool,
        segments: &mut Vec<Segment>,
    ) -> bool {
        if let Some(end) = self.text[self.scanned..].find(close) {
            let end = self.scanned + end + close.len();
            self.emit(end, Segment::Reasoning, segments);
            self.end_document(end);
            return true;
        }
        // Up to a possible start of the tag.
        let rest = &self.text[self.scanned..];
        let undecided = close.chars().next().and_then(|first| rest.rfind(first));
        let undecided = undecided.filter(|at| close.starts_with(&rest[*at..]));
        let safe = match undecided {
            Some(at) if !last => self.scanned + at,
            _ => self.text.len(),
        };
        self.scanned = safe;
        self.emit(safe, Segment::Reasoning, segments);
        false
    }

    /// Scans a line of a block. Returns false if more text is needed.
    fn scan_block_line(&mut self, last: bool, segments: &mut Vec<Segment>) -> bool {
        let DetectorPlace::Block(inside) = &mut self.place else {
            return false;
        };
        let start = self.scanned;
        let rest = &self.text[start..];
        let line_len = match rest.find('\n') {
            Some(end) => end,
            None if last && !rest.is_empty() => rest.len(),
            None => return false,
        };
        let line = &rest[..line_len];
        let is_first = inside.format == BlockFormat::Tag && start == inside.body;
        let opens_tag = !is_first && line.starts_with("<tool-calls>");
        let opens_fence = !is_first && script_fence_len(line).is_some();
        let (closes, end) = match inside.format {
            BlockFormat::Tag => {
                let trimmed = line.trim_end();
                (trimmed.ends_with(CLOSE_TAG), start + trimmed.len())
            }
            BlockFormat::Fence(len) => match closing_fence(line, len) {
                Some(end) => (true, start + end),
                None => (false, start),
            },
        };
        let nests = match inside.format {
            BlockFormat::Tag => opens_tag,
            BlockFormat::Fence(_) => opens_fence,
        };
        if opens_tag || (opens_fence && nests) {
            inside.problem = Some("a script block cannot contain another");
        }
        inside.depth += usize::from(nests);
        self.scanned = (start + line_len + 1).min(self.text.len());
        if !closes {
            return true;
        }
        if inside.depth > 0 {
            inside.depth -= 1;
            return true;
        }
        let raw = self.text[inside.start..end].to_owned();
        let body_end = match inside.format {
            BlockFormat::Tag => end - CLOSE_TAG.len(),
            BlockFormat::Fence(_) => start,
        };
        segments.push(match inside.problem {
            Some(problem) => Segment::Malformed {
                raw,
                problem: problem.to_owned(),
            },
            None => Segment::Script(ScriptBlock {
                code: block_code(&self.text[inside.body..body_end]),
                raw,
            }),
        });
        self.end_document(end);
        true
    }

    /// Continues with text after a block or reasoning that ends at `end`.
    fn end_document(&mut self, end: usize) {
        (self.emitted, self.scanned, self.document) = (end, end, end);
        self.at_line_start = false;
        self.place = DetectorPlace::Text;
    }

    fn emit(&mut self, until: usize, segment: fn(String) -> Segment, segments: &mut Vec<Segment>) {
        if until > self.emitted {
            segments.push(segment(self.text[self.emitted..until].to_owned()));
            self.emitted = until;
        }
    }
}

/// Returns the marker of a line that starts with a backtick.
fn fence_marker(line: &str, is_whole: bool) -> LineMarker {
    if let Some(ticks) = script_fence_len(line).filter(|_| is_whole) {
        return LineMarker::Open {
            format: BlockFormat::Fence(ticks),
            // With the line break.
            len: line.len() + 1,
            problem: None,
        };
    }
    let info = line.trim_start_matches('`');
    let mut infos = FENCE_INFO_STRINGS.iter();
    let possible = infos.any(|known| known.starts_with(info.trim_end()));
    match possible && !is_whole {
        true => LineMarker::Incomplete,
        false => LineMarker::Nothing,
    }
}

/// Returns the number of backticks of a line that opens a fenced script block.
fn script_fence_len(line: &str) -> Option<usize> {
    let info = line.trim_start_matches('`');
    let ticks = line.len() - info.len();
    (ticks >= 3 && FENCE_INFO_STRINGS.contains(&info.trim_end())).then_some(ticks)
}

/// Returns the end of the backticks in a line that closes a fence.
fn closing_fence(line: &str, len: usize) -> Option<usize> {
    let marks = line.trim_start_matches(' ');
    let indent = line.len() - marks.len();
    let after = marks.trim_start_matches('`');
    let ticks = marks.len() - after.len();
    (indent <= 3 && ticks >= len && after.trim().is_empty()).then_some(indent + ticks)
}

/// Returns the script without the line break after the opening marker and the whitespace before the
/// closing one.
fn block_code(body: &str) -> String {
    let body = body
        .strip_prefix("\r\n")
        .or_else(|| body.strip_prefix('\n'))
        .unwrap_or(body);
    body.trim_end().to_owned()
}
