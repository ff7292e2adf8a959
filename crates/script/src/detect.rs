//! Finds script blocks in an assistant's text: `<tool-calls>…</tool-calls>` and
//! ```` ```ts tool-calls ```` fences. Works on a stream; how the text is split makes no difference.
//!
//! A block starts at column 0 of a line, at the top level of the Markdown document that the text
//! is (`top_level`); elsewhere it is text, and so is a tag in the middle of a line.
//! `</tool-calls>` ends a block where it ends a line. Text in `<think>` or similar marks is
//! reasoning, in which there are no blocks. A nested, unbalanced or unclosed block is reported as
//! malformed.

use std::borrow::Cow;
use std::ops::Range;

use crate::reasoning_marks::{
    MARK_STARTS, ReasoningKind, ReasoningMark, find_end, has_no_start, mark_at,
};
use crate::top_level::{LineContent, LinePlace, place_after};

pub use crate::reasoning_marks::reasoning_text;

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
    /// Reasoning up to the end of this kind.
    Reasoning(ReasoningKind),
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
    problem: Option<Cow<'static, str>>,
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
        problem: Option<Cow<'static, str>>,
    },
    /// A closing tag.
    Close,
    /// The start of reasoning.
    Reasoning(ReasoningKind),
    /// An end of reasoning, which may have no start: a mark of this length.
    EndOfReasoning(ReasoningKind, usize),
}

impl LineMarker {
    fn content(&self) -> LineContent {
        match self {
            Self::Reasoning(_) | Self::EndOfReasoning(..) => LineContent::Reasoning,
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
                    problem: inside.problem.unwrap_or(what.into()).into_owned(),
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
                DetectorPlace::Reasoning(kind) => {
                    let kind = *kind;
                    self.scan_reasoning(kind, last, &mut segments)
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
            match self.line_marker_in_place(start, last) {
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
                LineMarker::Reasoning(kind) => {
                    self.emit(start, Segment::Text, segments);
                    self.place = DetectorPlace::Reasoning(kind);
                    return true;
                }
                LineMarker::EndOfReasoning(_, len) => {
                    self.end_reasoning(start, len, segments);
                    return true;
                }
            }
        }
        let line_end = self.text[start..].find('\n');
        let end = line_end.map_or(self.text.len(), |end| start + end + 1);
        match self.reasoning_end_in_line(start..end, last) {
            LineMarker::EndOfReasoning(_, len) => {
                let at = start + self.text[start..end].trim_end().len() - len;
                self.end_reasoning(at, len, segments);
                return true;
            }
            LineMarker::Incomplete => {
                let marks = self.text[start..end].rfind(MARK_STARTS);
                self.scanned = start + marks.unwrap_or(0);
                self.emit(self.scanned, Segment::Text, segments);
                return false;
            }
            _ => {}
        }
        self.scanned = end;
        self.emit(self.scanned, Segment::Text, segments);
        self.at_line_start = line_end.is_some();
        line_end.is_some()
    }

    /// Returns the marker at the start of a line, unless its place in the document makes it text.
    fn line_marker_in_place(&mut self, start: usize, last: bool) -> LineMarker {
        let mut marker = self.line_marker(start, last);
        if matches!(marker, LineMarker::Nothing | LineMarker::Incomplete) {
            return marker;
        }
        match (self.place_of_line(start, marker.content()), &mut marker) {
            (LinePlace::TopLevel, _) => marker,
            (_, LineMarker::EndOfReasoning(kind, _)) if self.has_no_start(*kind, start) => marker,
            (LinePlace::Unclear(name), LineMarker::Open { problem, .. }) => {
                let what = format!(
                    "the block may be a quotation: `<{name}>` before it has no end tag. If the \
                     block has to run, answer with the block alone"
                );
                problem.get_or_insert(what.into());
                marker
            }
            (LinePlace::Unclear(_), _) => marker,
            (LinePlace::Quoted, _) => LineMarker::Nothing,
        }
    }

    /// Returns the end of reasoning at the end of a line, if it has no start.
    fn reasoning_end_in_line(&mut self, line: Range<usize>, last: bool) -> LineMarker {
        let text = &self.text[line.clone()];
        let Some(at) = text.rfind(MARK_STARTS) else {
            return LineMarker::Nothing;
        };
        let is_whole = last || text.ends_with('\n');
        match mark_at(&text[at..]) {
            ReasoningMark::Incomplete if !is_whole => LineMarker::Incomplete,
            ReasoningMark::Close { kind, len }
                if kind.can_start_in_prompt() && text[at + len..].trim().is_empty() =>
            {
                match is_whole {
                    false => LineMarker::Incomplete,
                    true if self.has_no_start(kind, line.start + at) => {
                        LineMarker::EndOfReasoning(kind, len)
                    }
                    true => LineMarker::Nothing,
                }
            }
            _ => LineMarker::Nothing,
        }
    }

    /// Returns whether an end of reasoning at this place has no start in the document.
    fn has_no_start(&mut self, kind: ReasoningKind, at: usize) -> bool {
        self.lookups += 1;
        self.lookups > MAX_LOOKUPS || has_no_start(&self.text[self.document..at], kind)
    }

    /// Reports an end of reasoning without a start.
    fn end_reasoning(&mut self, at: usize, len: usize, segments: &mut Vec<Segment>) {
        self.emit(at, Segment::Text, segments);
        self.end_document(at + len);
        let raw = self.text[at..at + len].to_owned();
        segments.push(Segment::EndOfReasoning(raw));
    }

    /// Returns the marker at the start of a line of text.
    fn line_marker(&self, start: usize, last: bool) -> LineMarker {
        let rest = &self.text[start..];
        let line = rest.split('\n').next().unwrap_or(rest);
        let is_whole = last || line.len() < rest.len();
        if line.starts_with('`') {
            return fence_marker(line, is_whole);
        }
        if !line.starts_with(MARK_STARTS) {
            return match rest.is_empty() && !last {
                true => LineMarker::Incomplete,
                false => LineMarker::Nothing,
            };
        }
        if let Some(after) = line.strip_prefix(CLOSE_TAG)
            && after.trim().is_empty()
        {
            return match is_whole {
                true => LineMarker::Close,
                false => LineMarker::Incomplete,
            };
        }
        match mark_at(line) {
            ReasoningMark::Open(kind) => return LineMarker::Reasoning(kind),
            ReasoningMark::Close { kind, len } if kind.can_start_in_prompt() => {
                return LineMarker::EndOfReasoning(kind, len);
            }
            ReasoningMark::Incomplete if !is_whole => return LineMarker::Incomplete,
            _ => {}
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
                    let problem = "`<tool-calls>` takes no attributes";
                    return open(OPEN_TAG.len(), Some(problem.into()));
                }
                _ => {}
            }
        }
        let is_prefix = |tag: &str| tag.starts_with(line);
        match (is_prefix(OPEN_TAG) || is_prefix(CLOSE_TAG)) && !is_whole {
            true => LineMarker::Incomplete,
            false => LineMarker::Nothing,
        }
    }

    /// Returns the place of a line that starts at `start` in the document.
    fn place_of_line(&mut self, start: usize, content: LineContent) -> LinePlace {
        let before = &self.text[self.document..start];
        if before.trim().is_empty() {
            return LinePlace::TopLevel;
        }
        self.lookups += 1;
        match self.lookups <= MAX_LOOKUPS {
            true => place_after(before, content),
            false => LinePlace::Quoted,
        }
    }

    fn scan_reasoning(
        &mut self,
        kind: ReasoningKind,
        last: bool,
        segments: &mut Vec<Segment>,
    ) -> bool {
        match find_end(&self.text[self.scanned..], kind) {
            Ok(end) => {
                let end = self.scanned + end;
                self.emit(end, Segment::Reasoning, segments);
                self.end_document(end);
                true
            }
            Err(certain) => {
                self.scanned = match last {
                    true => self.text.len(),
                    false => self.scanned + certain,
                };
                self.emit(self.scanned, Segment::Reasoning, segments);
                false
            }
        }
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
            inside.problem = Some("a script block cannot contain another".into());
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
        segments.push(match inside.problem.take() {
            Some(problem) => Segment::Malformed {
                raw,
                problem: problem.into_owned(),
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
