//! Compiling arbitrary text ends with a script or with an error at a line of the text, never with a
//! panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_script::ScriptCompiler;

fuzz_target!(|source: &[u8]| {
    if let Err(error) = ScriptCompiler::default().compile_bytes(source, 20_480) {
        let lines = source.split(|byte| *byte == b'\n').count() as u32;
        assert!(
            error.line.is_none_or(|line| (1..=lines).contains(&line)),
            "{error:?}"
        );
    }
});
