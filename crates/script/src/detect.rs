//! Finds script blocks in an assistant's text: `<tool-calls>…</tool-calls>` and ```` ```ts tool-calls ````
//! fences. Works on a stream of deltas; how the text was split makes no difference.
//!
//! A tag directly behind a backtick is somebody writing about the syntax, and stays text. Whatever is
//! nested, unbalanced or unclosed is reported, never guessed at.

/// A piece of an assistant's message. All pieces together are the message, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Words.
    Text(String),
    /// A script.
    Script(Block),
    /// Something that looks like a script block and is not one.
    Malformed {
        /// The text it spans.
        raw: String,
        /// What is wrong, in one line.
        problem: String,
    },
}

/// A script block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The script.
    pub code: String,
    /// The block as it stood in the message, markers included.
    pub raw: String,
}

/// How a block is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockFormat {
    /// `<tool-calls>`.
    Tag,
    /// ```` ```ts tool-calls ````.
    Fence,
}

const OPEN: &str = "<tool-calls";
const CLOSE: &str = "</tool-calls>";
const FENCE: &str = "```";
const FENCE_INFO: [&str; 4] = [
    "ts tool-calls",
    "typescript tool-calls",
    "js tool-calls",
    "javascript tool-calls",
];

/// All segments of a whole message.
pub fn detect(text: &str) -> Vec<Segment> {
    let mut detector = Detector::default();
    let mut segments = detector.push(text);
    segments.extend(detector.finish());
    merge(segments)
}

/// Joins neighbouring texts, so that segments compare equal however they were streamed.
pub fn merge(segments: Vec<Segment>) -> Vec<Segment> {
    let mut merged: Vec<Segment> = Vec::new();
    for segment in segments {
        match (merged.last_mut(), segment) {
            (Some(Segment::Text(last)), Segment::Text(text)) => last.push_str(&text),
            (_, segment) => merged.push(segment),
        }
    }
    merged
}

/// Finds blocks while the text arrives. Text comes out as soon as it cannot be part of a marker.
#[derive(Debug, Default)]
pub struct Detector {
    text: String,
    /// Everything before has been handed out.
    taken: usize,
    /// Everything before has been looked at.
    seen: usize,
    inside: Option<Inside>,
}

/// The block being read.
#[derive(Debug)]
struct Inside {
    format: BlockFormat,
    /// Where the marker begins.
    start: usize,
    /// Where the code begins.
    body: usize,
    /// Blocks opened inside it and not closed.
    depth: usize,
    problem: Option<&'static str>,
}

/// What stands at a place.
enum Mark {
    /// Nothing of ours.
    Nothing,
    /// Too little text to tell.
    Unknown,
    /// An opening marker of this length.
    Open {
        format: BlockFormat,
        len: usize,
        problem: Option<&'static str>,
    },
    /// A closing tag.
    Close,
}

impl Mark {
    fn open(format: BlockFormat, len: usize) -> Self {
        Self::Open {
            format,
            len,
            problem: None,
        }
    }

    fn unknown_if(unknown: bool) -> Self {
        if unknown {
            Self::Unknown
        } else {
            Self::Nothing
        }
    }
}

impl Detector {
    /// Takes the next piece of text.
    pub fn push(&mut self, delta: &str) -> Vec<Segment> {
        self.text.push_str(delta);
        self.scan(false)
    }

    /// The message is over.
    pub fn finish(mut self) -> Vec<Segment> {
        let mut segments = self.scan(true);
        if let Some(inside) = self.inside.take() {
            let what = match inside.format {
                BlockFormat::Tag => {
                    "`<tool-calls>` is not closed: write `</tool-calls>` after the script"
                }
                BlockFormat::Fence => {
                    "the ```ts tool-calls fence is not closed: write ``` on a line of its own after the script"
                }
            };
            segments.push(Segment::Malformed {
                raw: self.text[inside.start..].to_owned(),
                problem: inside.problem.unwrap_or(what).to_owned(),
            });
        } else {
            self.take_text(self.text.len(), &mut segments);
        }
        segments
    }

    fn scan(&mut self, last: bool) -> Vec<Segment> {
        let mut segments = Vec::new();
        while let Some(step) = self.text[self.seen..].find(['<', '`', '\n']) {
            let at = self.seen + step;
            let mark = match self.inside.as_ref().map(|inside| inside.format) {
                None => self.mark_outside(at, last),
                Some(BlockFormat::Tag) => self.mark_tag(at, last),
                Some(BlockFormat::Fence) => self.mark_in_fence(at, last),
            };
            match mark {
                Mark::Unknown => {
                    self.seen = at;
                    break;
                }
                Mark::Nothing => self.seen = at + 1,
                Mark::Open {
                    format,
                    len,
                    problem,
                } => self.open(at, format, len, problem, &mut segments),
                Mark::Close => self.close(at, &mut segments),
            }
        }
        if self.inside.is_none() {
            let mut safe = self.text.len();
            if !last {
                // Up to the first byte that may still turn out to be part of a marker.
                let undecided = self.text[self.seen..].find(['<', '`', '\n']);
                safe = undecided.map_or(safe, |step| self.seen + step);
                self.seen = safe;
            }
            self.take_text(safe, &mut segments);
        }
        segments
    }

    fn mark_outside(&self, at: usize, last: bool) -> Mark {
        match self.text.as_bytes()[at] {
            b'<' => self.mark_tag(at, last),
            b'`' if self.at_line_start(at) => self.mark_fence(at, last),
            _ => Mark::Nothing,
        }
    }

    fn mark_tag(&self, at: usize, last: bool) -> Mark {
        let rest = &self.text[at..];
        // Behind a backtick somebody writes about the syntax; but a script may end in one.
        let excused = self.text[..at].ends_with('`');
        if !rest.starts_with('<') || (excused && self.inside.is_none()) {
            return Mark::Nothing;
        }
        if rest.starts_with(CLOSE) {
            return Mark::Close;
        }
        if !last && (OPEN.starts_with(rest) || CLOSE.starts_with(rest)) {
            return Mark::Unknown;
        }
        if !rest.starts_with(OPEN) || excused {
            return Mark::Nothing;
        }
        match rest.as_bytes().get(OPEN.len()) {
            None => Mark::Unknown,
            Some(b'>') => Mark::open(BlockFormat::Tag, OPEN.len() + 1),
            Some(byte) if byte.is_ascii_whitespace() || *byte == b'/' => Mark::Open {
                format: BlockFormat::Tag,
                len: OPEN.len(),
                problem: Some("`<tool-calls>` takes no attributes"),
            },
            Some(_) => Mark::Nothing,
        }
    }

    fn mark_fence(&self, at: usize, last: bool) -> Mark {
        let rest = &self.text[at..];
        let Some(info) = rest.strip_prefix(FENCE) else {
            return Mark::unknown_if(!last && FENCE.starts_with(rest));
        };
        let Some(end) = info.find('\n') else {
            let mut words = FENCE_INFO.iter();
            let possible = words.any(|word| word.starts_with(info.trim_end()));
            return Mark::unknown_if(!last && possible);
        };
        match FENCE_INFO.contains(&info[..end].trim_end()) {
            true => Mark::open(BlockFormat::Fence, FENCE.len() + end + 1),
            false => Mark::Nothing,
        }
    }

    /// Inside a fence: its end, or a block where none may be.
    fn mark_in_fence(&self, at: usize, last: bool) -> Mark {
        let rest = &self.text[at..];
        match rest.as_bytes()[0] {
            b'`' if self.at_line_start(at) => {
                let Some(line) = rest.strip_prefix(FENCE) else {
                    return Mark::unknown_if(!last && FENCE.starts_with(rest));
                };
                match line.find('\n') {
                    Some(end) if line[..end].trim().is_empty() => Mark::Close,
                    Some(end) if FENCE_INFO.contains(&line[..end].trim_end()) => {
                        Mark::open(BlockFormat::Fence, FENCE.len() + end + 1)
                    }
                    None if last && line.trim().is_empty() => Mark::Close,
                    found => Mark::unknown_if(!last && found.is_none()),
                }
            }
            b'<' => match self.mark_tag(at, last) {
                // A closing tag in a fence is just text of the script.
                Mark::Close => Mark::Nothing,
                mark => mark,
            },
            _ => Mark::Nothing,
        }
    }

    fn open(
        &mut self,
        at: usize,
        format: BlockFormat,
        len: usize,
        problem: Option<&'static str>,
        segments: &mut Vec<Segment>,
    ) {
        self.seen = at + len;
        match &mut self.inside {
            Some(inside) => {
                if inside.format == format {
                    inside.depth += 1;
                }
                inside.problem = Some("a script block cannot stand inside another");
            }
            None => {
                self.take_text(at, segments);
                self.inside = Some(Inside {
                    format,
                    start: at,
                    body: at + len,
                    depth: 0,
                    problem,
                });
            }
        }
    }

    fn close(&mut self, at: usize, segments: &mut Vec<Segment>) {
        let Some(inside) = &mut self.inside else {
            self.take_text(at, segments);
            self.seen = at + CLOSE.len();
            self.taken = self.seen;
            let problem = "`</tool-calls>` closes nothing: no `<tool-calls>` stands before it";
            segments.push(Segment::Malformed {
                raw: CLOSE.to_owned(),
                problem: problem.to_owned(),
            });
            return;
        };
        let len = match inside.format {
            BlockFormat::Tag => CLOSE.len(),
            BlockFormat::Fence => FENCE.len(),
        };
        self.seen = at + len;
        if inside.depth > 0 {
            inside.depth -= 1;
            return;
        }
        let raw = self.text[inside.start..self.seen].to_owned();
        segments.push(match inside.problem {
            Some(problem) => Segment::Malformed {
                raw,
                problem: problem.to_owned(),
            },
            None => Segment::Script(Block {
                code: code(&self.text[inside.body..at]),
                raw,
            }),
        });
        self.taken = self.seen;
        self.inside = None;
    }

    fn take_text(&mut self, until: usize, segments: &mut Vec<Segment>) {
        if until > self.taken {
            segments.push(Segment::Text(self.text[self.taken..until].to_owned()));
            self.taken = until;
        }
    }

    fn at_line_start(&self, at: usize) -> bool {
        self.text[..at].is_empty() || self.text[..at].ends_with('\n')
    }
}

/// The script without the line break after the opening marker and the blanks before the closing one.
fn code(body: &str) -> String {
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
    fn blocks_and_the_text_around_them() {
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
    fn what_is_not_well_formed_is_an_error() {
        assert_eq!(
            shape("<tool-calls>a<tool-calls>b</tool-calls>c</tool-calls>d"),
            ["bad:a script block cannot stand inside another", "text:d"]
        );
        assert!(shape("x <tool-calls>return 1")[1].starts_with("bad:`<tool-calls>` is not closed"));
        assert!(
            shape("```ts tool-calls\nreturn 1")[0]
                .starts_with("bad:the ```ts tool-calls fence is not closed")
        );
        assert!(shape("x </tool-calls> y")[1].starts_with("bad:`</tool-calls>` closes nothing"));
        assert!(
            shape("<tool-calls id='1'>x</tool-calls>")[0]
                .starts_with("bad:`<tool-calls>` takes no attributes")
        );
        assert!(
            shape("```ts tool-calls\n<tool-calls>\n```\n")[0].starts_with("bad:a script block")
        );
    }

    #[test]
    fn how_the_text_was_split_makes_no_difference() {
        let texts = [
            "a <tool-calls>\nreturn `</x>`\n</tool-calls> b ```ts tool-calls no\n```ts tool-calls\nlet ü = 1\n```\r\nend",
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
                    let mut detector = Detector::default();
                    let mut segments = detector.push(&text[..*first]);
                    segments.extend(detector.push(&text[*first..*second]));
                    segments.extend(detector.push(&text[*second..]));
                    segments.extend(detector.finish());
                    assert_eq!(
                        merge(segments),
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
