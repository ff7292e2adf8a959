//! Finds script blocks in an assistant's text: `<tool-calls>…</tool-calls>` and
//! ```` ```ts tool-calls ```` fences. Works on a stream; how the text is split makes no difference.
//!
//! A tag directly after a backtick is text about the syntax and stays text. A nested, unbalanced or
//! unclosed block is reported as malformed.

/// A part of an assistant's message. All segments together are the message, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Text outside of blocks.
    Text(String),
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

/// A script block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptBlock {
    /// The script, without the markers.
    pub code: String,
    /// The block as it is in the message, with the markers.
    pub raw: String,
}

/// How a block is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockFormat {
    /// The tag `<tool-calls>`.
    Tag,
    /// ```` ```ts tool-calls ````.
    Fence,
}

const OPEN_TAG: &str = "<tool-calls";
const CLOSE_TAG: &str = "</tool-calls>";
const FENCE: &str = "```";
const FENCE_INFO_STRINGS: [&str; 4] = [
    "ts tool-calls",
    "typescript tool-calls",
    "js tool-calls",
    "javascript tool-calls",
];

/// Splits a complete message into segments.
pub fn detect(text: &str) -> Vec<Segment> {
    let mut detector = BlockDetector::default();
    let mut segments = detector.push(text);
    segments.extend(detector.finish());
    merge_text(segments)
}

/// Joins adjacent text segments, so that segments are equal however the message was streamed.
pub fn merge_text(segments: Vec<Segment>) -> Vec<Segment> {
    let mut merged: Vec<Segment> = Vec::new();
    for segment in segments {
        match (merged.last_mut(), segment) {
            (Some(Segment::Text(last)), Segment::Text(text)) => last.push_str(&text),
            (_, segment) => merged.push(segment),
        }
    }
    merged
}

/// Finds blocks while the text arrives. Returns text as soon as it cannot be part of a marker.
#[derive(Debug, Default)]
pub struct BlockDetector {
    text: String,
    /// End of the text that was returned as segments.
    emitted: usize,
    /// End of the text that was scanned.
    scanned: usize,
    open_block: Option<OpenBlock>,
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

/// What is at a position of the text.
enum BlockMarker {
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
}

impl BlockMarker {
    fn opening(format: BlockFormat, len: usize) -> Self {
        Self::Open {
            format,
            len,
            problem: None,
        }
    }

    fn incomplete_if(unknown: bool) -> Self {
        if unknown {
            Self::Incomplete
        } else {
            Self::Nothing
        }
    }
}

impl BlockDetector {
    /// Adds text and returns the segments that are complete.
    pub fn push(&mut self, delta: &str) -> Vec<Segment> {
        self.text.push_str(delta);
        self.scan(false)
    }

    /// Ends the message and returns the remaining segments.
    pub fn finish(mut self) -> Vec<Segment> {
        let mut segments = self.scan(true);
        if let Some(inside) = self.open_block.take() {
            let what = match inside.format {
                BlockFormat::Tag => {
                    "`<tool-calls>` is not closed: write `</tool-calls>` after the script"
                }
                BlockFormat::Fence => {
                    "the ```ts tool-calls fence is not closed: \
                     write ``` on a line of its own after the script"
                }
            };
            segments.push(Segment::Malformed {
                raw: self.text[inside.start..].to_owned(),
                problem: inside.problem.unwrap_or(what).to_owned(),
            });
        } else {
            self.emit_text(self.text.len(), &mut segments);
        }
        segments
    }

    /// Scans the text that was not scanned yet. `last` says that no more text follows.
    fn scan(&mut self, last: bool) -> Vec<Segment> {
        let mut segments = Vec::new();
        while let Some(step) = self.text[self.scanned..].find(['<', '`', '\n']) {
            let at = self.scanned + step;
            let mark = match self.open_block.as_ref().map(|inside| inside.format) {
                None => self.marker_outside_block(at, last),
                Some(BlockFormat::Tag) => self.tag_marker(at, last),
                Some(BlockFormat::Fence) => self.marker_in_fence(at, last),
            };
            match mark {
                BlockMarker::Incomplete => {
                    self.scanned = at;
                    break;
                }
                BlockMarker::Nothing => self.scanned = at + 1,
                BlockMarker::Open {
                    format,
                    len,
                    problem,
                } => self.begin_block(at, format, len, problem, &mut segments),
                BlockMarker::Close => self.end_block(at, &mut segments),
            }
        }
        if self.open_block.is_none() {
            let mut safe = self.text.len();
            if !last {
                // Up to the first byte that may be part of a marker.
                let undecided = self.text[self.scanned..].find(['<', '`', '\n']);
                safe = undecided.map_or(safe, |step| self.scanned + step);
                self.scanned = safe;
            }
            self.emit_text(safe, &mut segments);
        }
        segments
    }

    fn marker_outside_block(&self, at: usize, last: bool) -> BlockMarker {
        match self.text.as_bytes()[at] {
            b'<' => self.tag_marker(at, last),
            b'`' if self.at_line_start(at) => self.fence_marker(at, last),
            _ => BlockMarker::Nothing,
        }
    }

    fn tag_marker(&self, at: usize, last: bool) -> BlockMarker {
        let rest = &self.text[at..];
        // After a backtick the tag is quoted as text. A script, however, may end with a backtick.
        let quoted = self.text[..at].ends_with('`');
        if !rest.starts_with('<') || (quoted && self.open_block.is_none()) {
            return BlockMarker::Nothing;
        }
        if rest.starts_with(CLOSE_TAG) {
            return BlockMarker::Close;
        }
        if !last && (OPEN_TAG.starts_with(rest) || CLOSE_TAG.starts_with(rest)) {
            return BlockMarker::Incomplete;
        }
        if !rest.starts_with(OPEN_TAG) || quoted {
            return BlockMarker::Nothing;
        }
        match rest.as_bytes().get(OPEN_TAG.len()) {
            None => BlockMarker::Incomplete,
            Some(b'>') => BlockMarker::opening(BlockFormat::Tag, OPEN_TAG.len() + 1),
            Some(byte) if byte.is_ascii_whitespace() || *byte == b'/' => BlockMarker::Open {
                format: BlockFormat::Tag,
                len: OPEN_TAG.len(),
                problem: Some("`<tool-calls>` takes no attributes"),
            },
            Some(_) => BlockMarker::Nothing,
        }
    }

    fn fence_marker(&self, at: usize, last: bool) -> BlockMarker {
        let rest = &self.text[at..];
        let Some(info) = rest.strip_prefix(FENCE) else {
            return BlockMarker::incomplete_if(!last && FENCE.starts_with(rest));
        };
        let Some(end) = info.find('\n') else {
            let mut infos = FENCE_INFO_STRINGS.iter();
            let possible = infos.any(|other| other.starts_with(info.trim_end()));
            return BlockMarker::incomplete_if(!last && possible);
        };
        match FENCE_INFO_STRINGS.contains(&info[..end].trim_end()) {
            true => BlockMarker::opening(BlockFormat::Fence, FENCE.len() + end + 1),
            false => BlockMarker::Nothing,
        }
    }

    /// Finds the end of a fence, or a nested block.
    fn marker_in_fence(&self, at: usize, last: bool) -> BlockMarker {
        let rest = &self.text[at..];
        match rest.as_bytes()[0] {
            b'`' if self.at_line_start(at) => {
                let Some(line) = rest.strip_prefix(FENCE) else {
                    return BlockMarker::incomplete_if(!last && FENCE.starts_with(rest));
                };
                match line.find('\n') {
                    Some(end) if line[..end].trim().is_empty() => BlockMarker::Close,
                    Some(end) if FENCE_INFO_STRINGS.contains(&line[..end].trim_end()) => {
                        BlockMarker::opening(BlockFormat::Fence, FENCE.len() + end + 1)
                    }
                    None if last && line.trim().is_empty() => BlockMarker::Close,
                    found => BlockMarker::incomplete_if(!last && found.is_none()),
                }
            }
            b'<' => match self.tag_marker(at, last) {
                // A closing tag in a fence is part of the script.
                BlockMarker::Close => BlockMarker::Nothing,
                mark => mark,
            },
            _ => BlockMarker::Nothing,
        }
    }

    fn begin_block(
        &mut self,
        at: usize,
        format: BlockFormat,
        len: usize,
        problem: Option<&'static str>,
        segments: &mut Vec<Segment>,
    ) {
        self.scanned = at + len;
        match &mut self.open_block {
            Some(inside) => {
                if inside.format == format {
                    inside.depth += 1;
                }
                inside.problem = Some("a script block cannot contain another");
            }
            None => {
                self.emit_text(at, segments);
                self.open_block = Some(OpenBlock {
                    format,
                    start: at,
                    body: at + len,
                    depth: 0,
                    problem,
                });
            }
        }
    }

    fn end_block(&mut self, at: usize, segments: &mut Vec<Segment>) {
        let Some(inside) = &mut self.open_block else {
            self.emit_text(at, segments);
            self.scanned = at + CLOSE_TAG.len();
            self.emitted = self.scanned;
            let problem = "`</tool-calls>` has no matching `<tool-calls>` before it";
            segments.push(Segment::Malformed {
                raw: CLOSE_TAG.to_owned(),
                problem: problem.to_owned(),
            });
            return;
        };
        let len = match inside.format {
            BlockFormat::Tag => CLOSE_TAG.len(),
            BlockFormat::Fence => FENCE.len(),
        };
        self.scanned = at + len;
        if inside.depth > 0 {
            inside.depth -= 1;
            return;
        }
        let raw = self.text[inside.start..self.scanned].to_owned();
        segments.push(match inside.problem {
            Some(problem) => Segment::Malformed {
                raw,
                problem: problem.to_owned(),
            },
            None => Segment::Script(ScriptBlock {
                code: block_code(&self.text[inside.body..at]),
                raw,
            }),
        });
        self.emitted = self.scanned;
        self.open_block = None;
    }

    fn emit_text(&mut self, until: usize, segments: &mut Vec<Segment>) {
        if until > self.emitted {
            segments.push(Segment::Text(self.text[self.emitted..until].to_owned()));
            self.emitted = until;
        }
    }

    fn at_line_start(&self, at: usize) -> bool {
        self.text[..at].is_empty() || self.text[..at].ends_with('\n')
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Vec<String> {
        let name = |segment: &Segment| match segment {
            Segment::Text(text) => format!("text:{text}"),
            Segment::Script(block) => format!("script:{}", block.code),
            Segment::Malformed { problem, .. } => format!("bad:{problem}"),
        };
        detect(text).iter().map(name).collect()
    }

    #[test]
    fn blocks_are_separated_from_text() {
        assert_eq!(
            shape("a <tool-calls>\nreturn 1\n</tool-calls> b"),
            ["text:a ", "script:return 1", "text: b"]
        );
        assert_eq!(
            shape("x\n```ts tool-calls\nreturn 2\n```\ny"),
            ["text:x\n", "script:return 2", "text:\ny"]
        );
        assert_eq!(
            shape("<tool-calls>1</tool-calls>and<tool-calls>2</tool-calls>"),
            ["script:1", "text:and", "script:2"]
        );
        assert_eq!(
            shape("```ts\nconst a = 1\n```\n"),
            ["text:```ts\nconst a = 1\n```\n"]
        );
        assert_eq!(
            shape("write `<tool-calls>` around it"),
            ["text:write `<tool-calls>` around it"]
        );
        assert_eq!(
            shape("<tool-calls>return `x`</tool-calls>."),
            ["script:return `x`", "text:."]
        );
        assert_eq!(
            shape("a < b <tool-callsX> ``` <"),
            ["text:a < b <tool-callsX> ``` <"]
        );
        assert_eq!(
            shape("```ts tool-calls\nconst t = `a\n``b`\n```"),
            ["script:const t = `a\n``b`"]
        );
    }

    #[test]
    fn malformed_blocks_are_reported() {
        assert_eq!(
            shape("<tool-calls>a<tool-calls>b</tool-calls>c</tool-calls>d"),
            ["bad:a script block cannot contain another", "text:d"]
        );
        assert!(shape("x <tool-calls>return 1")[1].starts_with("bad:`<tool-calls>` is not closed"));
        assert!(
            shape("```ts tool-calls\nreturn 1")[0]
                .starts_with("bad:the ```ts tool-calls fence is not closed")
        );
        assert_eq!(
            shape("x </tool-calls> y")[1],
            "bad:`</tool-calls>` has no matching `<tool-calls>` before it"
        );
        assert!(
            shape("<tool-calls id='1'>x</tool-calls>")[0]
                .starts_with("bad:`<tool-calls>` takes no attributes")
        );
        assert!(
            shape("```ts tool-calls\n<tool-calls>\n```\n")[0].starts_with("bad:a script block")
        );
    }

    #[test]
    fn the_result_does_not_depend_on_how_the_text_is_split() {
        let texts = [
            "a <tool-calls>\nreturn `</x>`\n</tool-calls> b ```ts tool-calls no\n\
             ```ts tool-calls\nlet ü = 1\n```\r\nend",
            "```typescript tool-calls  \r\nreturn 1\r\n```",
            "<tool-calls>a<tool-calls>b</tool-calls>c</tool-calls></tool-calls>`<tool-calls>`",
            "``` ``\n```t\n```ts\n```ts tool-call\n```ts tool-calls",
            "<tool-calls>return `a`</tool-calls>x `</tool-calls>`",
            "<tool-calls",
            "x<tool-calls>y</tool-call",
            "```ts tool-calls\na\n````\n```x\n```",
        ];
        for text in texts {
            let whole = detect(text);
            let cuts: Vec<usize> = text.char_indices().map(|(index, _)| index).collect();
            for first in &cuts {
                for second in cuts.iter().filter(|second| *second >= first) {
                    let mut detector = BlockDetector::default();
                    let mut segments = detector.push(&text[..*first]);
                    segments.extend(detector.push(&text[*first..*second]));
                    segments.extend(detector.push(&text[*second..]));
                    segments.extend(detector.finish());
                    assert_eq!(
                        merge_text(segments),
                        whole,
                        "{text:?} split at {first} and {second}"
                    );
                }
            }
            let raw: String = whole
                .iter()
                .map(|segment| match segment {
                    Segment::Text(text) => text.as_str(),
                    Segment::Script(block) => &block.raw,
                    Segment::Malformed { raw, .. } => raw,
                })
                .collect();
            assert_eq!(raw, text);
        }
    }
}
