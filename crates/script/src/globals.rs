//! The globals of scripts, and the tools that can be called through them.

use std::collections::{BTreeSet, HashMap, HashSet};
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

/// Members of every object, and `then`, which would make `await tools` a call.
const OBJECT_MEMBERS: &str = "\
__defineGetter__ __defineSetter__ __lookupGetter__ __lookupSetter__ __proto__ constructor \
hasOwnProperty isPrototypeOf propertyIsEnumerable prototype then toLocaleString toString valueOf";

/// Namespaces of built-in tools that are globals: `workspace.query` is `tools.workspace.query`. A
/// call of such a tool must not be dropped: see [`is_of_built_in_namespace`].
const BUILT_IN_NAMESPACES: [&str; 3] = ["workspace", "sessions", "channels"];

/// Whether a tool belongs to a namespace that is a global, by its name in scripts.
pub(crate) fn is_of_built_in_namespace(js_name: &str) -> bool {
    let namespace = js_name.split_once('.').map(|(namespace, _)| namespace);
    namespace.is_some_and(|namespace| BUILT_IN_NAMESPACES.contains(&namespace))
}

/// Whether scripts with these tools use a name for something else than a further tool: a global, a
/// reserved word, a member of every object, or a namespace of tools.
pub fn is_script_name(name: &str, registry: &Registry) -> bool {
    is_reserved_name(name)
        || OBJECT_MEMBERS.split(' ').any(|member| member == name)
        || BUILT_IN_NAMESPACES.contains(&name)
        || name == "mcp"
        || registry.is_namespace(name)
        || tool_namespace(name, registry).is_some()
}

/// Returns how scripts call a tool: `tools.readFile`, `workspace.query`.
pub fn callable_name(js_name: &str) -> String {
    match is_of_built_in_namespace(js_name) {
        true => js_name.to_owned(),
        false => format!("tools.{js_name}"),
    }
}

/// Returns the namespace of the tools that a global holds: empty for `tools`, `workspace` for
/// `workspace`, `mcp.github` for the MCP server `github`. `None` if the name is another global or
/// not defined. A namespace of built-in tools has precedence over a server of that name.
///
/// This is the one place that maps globals to tools. A script that declares a variable of that name
/// means its variable.
pub(crate) fn tool_namespace(global: &str, registry: &Registry) -> Option<String> {
    if global == "tools" {
        return Some(String::new());
    }
    if BUILT_IN_NAMESPACES.contains(&global) && registry.is_namespace(global) {
        return Some(global.to_owned());
    }
    let namespace = format!("mcp.{global}");
    let is_server = !is_reserved_name(global) && registry.is_namespace(&namespace);
    is_server.then_some(namespace)
}

/// Returns the path below `tools` that a path below another global means: `mcp.github.listIssues`
/// for `github.listIssues`. `None` if the global holds no tools.
pub(crate) fn path_below_tools(path: &str, registry: &Registry) -> Option<String> {
    let (global, rest) = path
        .split_once('.')
        .map_or((path, None), |(global, rest)| (global, Some(rest)));
    let namespace = tool_namespace(global, registry)?;
    let parts = [Some(namespace.as_str()), rest].into_iter().flatten();
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    Some(parts.join("."))
}

/// Returns the MCP servers that are globals, sorted by name.
pub(crate) fn server_globals(registry: &Registry) -> Vec<String> {
    let servers = registry.child_names("mcp.").into_iter();
    let is_server = |name: &String| {
        tool_namespace(name, registry).is_some_and(|space| space.starts_with("mcp."))
    };
    servers.filter(is_server).collect()
}

/// Returns the TypeScript declarations of everything a script can use: the tools, the globals that
/// hold tools and the other globals. `tsc --strict` accepts them.
pub fn script_declarations(registry: &Registry) -> String {
    let mut text = declarations(registry);
    let built_in = BUILT_IN_NAMESPACES.iter().map(|name| (*name).to_owned());
    let globals: BTreeSet<String> = built_in.chain(server_globals(registry)).collect();
    for global in globals {
        if let Some(namespace) = tool_namespace(&global, registry) {
            text.push_str(&format!(
                "declare const {global}: typeof tools.{namespace};\n"
            ));
        }
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
