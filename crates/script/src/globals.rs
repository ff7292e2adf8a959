//! The globals of scripts.

use std::collections::{HashMap, HashSet};
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

/// Returns the fields of a global object, such as `context`, if its declaration lists them.
pub(crate) fn global_fields(name: &str) -> Option<&'static [&'static str]> {
    static FIELDS: LazyLock<HashMap<&'static str, Vec<&'static str>>> = LazyLock::new(|| {
        let objects = GLOBAL_DECLARATIONS.split("\ndeclare const ").skip(1);
        let objects = objects.filter_map(|text| text.split_once(": {\n"));
        let fields = objects.map(|(name, body)| {
            let lines = body.lines().take_while(|line| *line != "};");
            let fields = lines.filter_map(|line| {
                let field = line.strip_prefix("  ")?;
                let field = field.strip_prefix("readonly ").unwrap_or(field);
                let end = field.find(|c: char| !c.is_alphanumeric())?;
                (end > 0).then(|| &field[..end])
            });
            (name, fields.collect())
        });
        fields.filter(|(name, _)| !name.contains(' ')).collect()
    });
    FIELDS.get(name).map(Vec::as_slice)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_the_context_are_known() {
        let fields = global_fields("context").unwrap();
        assert!(fields.contains(&"workingDirectory") && fields.contains(&"emitProgress"));
        assert!(!fields.contains(&"timeoutMs"), "{fields:?}");
        assert_eq!(global_fields("console"), None);
    }
}
