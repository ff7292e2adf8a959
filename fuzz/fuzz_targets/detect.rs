//! Blocks are found independently of how a message is split, and no byte is lost.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_script::detect::{BlockDetector, Segment, detect, merge_text};

fuzz_target!(|input: (String, Vec<u8>)| {
    let (text, cuts) = input;
    let whole = detect(&text);
    let mut detector = BlockDetector::default();
    let mut segments = Vec::new();
    let mut rest = text.as_str();
    for cut in cuts {
        let at = rest.floor_char_boundary(usize::from(cut));
        segments.extend(detector.push(&rest[..at]));
        rest = &rest[at..];
    }
    segments.extend(detector.push(rest));
    segments.extend(detector.finish());
    assert_eq!(merge_text(segments), whole);
    let raw: String = whole
        .iter()
        .map(|segment| match segment {
            Segment::Text(text) | Segment::Reasoning(text) => text.as_str(),
            Segment::EndOfReasoning(raw) => raw,
            Segment::Script(block) => &block.raw,
            Segment::Malformed { raw, .. } => raw,
        })
        .collect();
    assert_eq!(raw, text);
});
