//! The globals of scripts, and the tools that can be called through them.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use selvedge_protocol::ErrorCode;
use selvedge_tools::{Registry, declarations};

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

/// Globals of ECMAScript and of the sandbox that [`GLOBAL_DECLARATIONS`] does not declare.
const STANDARD_GLOBALS: &str = "\
AggregateError Array ArrayBuffer AsyncDisposableStack BigInt BigInt64Array BigUint64Array Boolean \
DataView Date DisposableStack Error EvalError FinalizationRegistry Float16Array Float32Array \
Float64Array Function Infinity Int16Array Int32Array Int8Array Iterator JSON Map Math NaN Number \
Object Promise Proxy RangeError ReferenceError Reflect RegExp Set String SuppressedError Symbol \
SyntaxError TypeError URIError Uint16Array Uint32Array Uint8Array Uint8ClampedArray WeakMap WeakRef \
WeakSet __race decodeURI decodeURIComponent encodeURI encodeURIComponent escape globalThis isFinite \
isNaN parseFloat parseInt tools undefined unescape";

/// Words that cannot name a variable.
const RESERVED_WORDS: &str = "\
arguments await break case catch class const continue debugger default delete do else enum eval \
export extends false finally for function if implements import in instanceof interface let new null \
package private protected public return static super switch this throw true try typeof var void \
while with yield";

/// Whether a name is a global of every script or a reserved word, whatever tools are registered.
pub(crate) fn is_reserved_name(name: &str) -> bool {
    static RESERVED: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
        let prefixes = ["declare const ", "declare function ", "declare class "];
        let lines = GLOBAL_DECLARATIONS
            .lines()
            .filter_map(|line| prefixes.iter().find_map(|prefix| line.strip_prefix(prefix)));
        let declared = lines.filter_map(|rest| rest.split([':', '(', '<', ' ']).next());
        let other = STANDARD_GLOBALS.split(' ').chain(RESERVED_WORDS.split(' '));
        declared.chain(other).collect()
    });
    RESERVED.contains(name)
}

/// Returns the namespace of the tools that a global holds: empty for `tools`, `mcp.github` for the
/// MCP server `github`. `None` if the name is another global or is not defined.
///
/// This is the one place that maps globals to tools. A script that declares a variable of that name
/// means its variable.
pub(crate) fn tool_namespace(global: &str, registry: &Registry) -> Option<String> {
    if global == "tools" {
        return Some(String::new());
    }
    let namespace = format!("mcp.{global}");
    let is_server = !is_reserved_name(global) && registry.is_namespace(&namespace);
    is_server.then_some(namespace)
}

/// Returns the MCP servers that are globals, sorted by name.
pub(crate) fn server_globals(registry: &Registry) -> Vec<String> {
    let servers = registry.child_names("mcp.").into_iter();
    servers
        .filter(|name| tool_namespace(name, registry).is_some_and(|space| !space.is_empty()))
        .collect()
}

/// Returns the TypeScript declarations of everything a script can use: the tools, the MCP servers
/// and the other globals. `tsc --strict` accepts them.
pub fn script_declarations(registry: &Registry) -> String {
    let mut text = declarations(registry);
    for server in server_globals(registry) {
        text.push_str(&format!(
            "declare const {server}: typeof tools.mcp.{server};\n"
        ));
    }
    text + &GLOBAL_DECLARATIONS
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
