//! However a message is split, the same blocks are found and no byte is lost.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_script::detect::{Detector, Segment, detect, merge};

fuzz_target!(|input: (String, Vec<u8>)| {
    let (text, cuts) = input;
    let whole = detect(&text);
    let mut detector = Detector::default();
    let mut segments = Vec::new();
    let mut rest = text.as_str();
    for cut in cuts {
        let at = (0..=usize::from(cut).min(rest.len())).rev().find(|at| rest.is_char_boundary(*at)).unwrap_or(0);
        segments.extend(detector.push(&rest[..at]));
        rest = &rest[at..];
    }
    segments.extend(detector.push(rest));
    segments.extend(detector.finish());
    assert_eq!(merge(segments), whole);
    let raw: String = whole
        .iter()
        .map(|segment| match segment {
            Segment::Text(text) => text.as_str(),
            Segment::Script(block) => &block.raw,
            Segment::Malformed { raw, .. } => raw,
        })
        .collect();
    assert_eq!(raw, text);
});
