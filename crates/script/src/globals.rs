//! The globals of scripts.

use std::collections::HashSet;
use std::sync::LazyLock;

use selvedge_protocol::ErrorCode;

/// TypeScript declarations of everything a script can use besides `tools`.
pub static GLOBAL_DECLARATIONS: LazyLock<String> = LazyLock::new(|| {
    let classes = ErrorCode::ALL.iter().map(|code| {
        format!(
            "declare class {code} extends Error {{}}\ninterface {code} extends ToolError {{}}\n"
        )
    });
    std::iter::once(include_str!("globals.d.ts").to_owned())
        .chain(classes)
        .collect()
});

/// Lower-case globals of ECMAScript. Capitalized ones are recognized by their first letter.
const STANDARD_GLOBALS: [&str; 14] = [
    "globalThis",
    "undefined",
    "parseInt",
    "parseFloat",
    "isNaN",
    "isFinite",
    "decodeURI",
    "decodeURIComponent",
    "encodeURI",
    "encodeURIComponent",
    "escape",
    "unescape",
    "arguments",
    "tools",
];

/// Whether a name is a global of every script, whatever tools are registered.
pub(crate) fn is_global(name: &str) -> bool {
    static DECLARED: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
        let prefixes = ["declare const ", "declare function ", "declare class "];
        let lines = GLOBAL_DECLARATIONS
            .lines()
            .filter_map(|line| prefixes.iter().find_map(|prefix| line.strip_prefix(prefix)));
        lines
            .filter_map(|rest| rest.split([':', '(', '<', ' ']).next())
            .collect()
    });
    name.starts_with(|c: char| c.is_uppercase())
        || STANDARD_GLOBALS.contains(&name)
        || DECLARED.contains(name)
}
