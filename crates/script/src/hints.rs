//! Suggestions for errors of the engine: what to write instead of code that works in Node or a
//! browser but not in the sandbox.

use selvedge_tools::{Registry, similar_names};

use crate::compile::CompiledScript;
use crate::globals::callable_name;

/// Hint for a backtick inside a template literal.
pub(crate) const ESCAPE_BACKTICK_HINT: &str = "escape the backtick: \\`";

/// Globals of Node, browsers and Python that scripts do not have, and what to use instead: names
/// separated by spaces, a colon, the hint.
const UNAVAILABLE_GLOBALS: &str = "\
fetch axios: scripts have no network: use a tool, see help()
require: scripts cannot load modules: help() lists what they can use
process: there is no process here: use context.workingDirectory, exit() and text()
Buffer: use TextEncoder and TextDecoder for bytes, or atob() and btoa() for base64
Intl: there is no Intl here: use toLocaleString, toLocaleDateString or toFixed
setInterval: use a loop with `await new Promise(r => setTimeout(r, ms))`
setImmediate: use setTimeout or await
Worker: there are no threads here: run calls side by side with Promise.all
fs: there is no fs here: use the file tools, see help()
AbortController AbortSignal: use Promise.race([tools.a(…), timeout]), which cancels the call that loses
clearInterval: there is no setInterval here: use a loop with \
`await new Promise(r => setTimeout(r, ms))`
print: use console.log(v) or text(v)
len: this is TypeScript: use list.length
None: this is TypeScript: use null
True: this is TypeScript: use true
False: this is TypeScript: use false
Deno: there is no Deno here: tools reach files and commands, see help()
Bun: there is no Bun here: tools reach files and commands, see help()
_: there is no lodash here: use Object.groupBy, toSorted, flatMap and the like
path: there is no path module here: join with template strings
window document: there is no browser here
module exports: write `return value` to return a value
__dirname: use `context.workingDirectory`
__filename: a script has no file: use `context.workingDirectory`
global: the global object is `globalThis`, and it is frozen
eval: write the code itself
Function: write the function itself
";

/// Returns the hint for a global that scripts do not have.
fn replacement_hint(name: &str) -> Option<&'static str> {
    UNAVAILABLE_GLOBALS.lines().find_map(|line| {
        let (names, instead) = line.split_once(": ")?;
        let mut names = names.split(' ');
        names.any(|absent| absent == name).then_some(instead)
    })
}

/// Whether a name is a global of Node, browsers or Python that scripts do not have.
pub(crate) fn is_unavailable_global(name: &str) -> bool {
    replacement_hint(name).is_some()
}

/// Returns a suggestion for an error of the engine, if there is one.
pub(crate) fn for_engine_error(
    name: &str,
    message: &str,
    at: Option<(u32, u32)>,
    compiled: &CompiledScript,
    registry: &Registry,
) -> Option<String> {
    match name {
        "ReferenceError" => {
            let missing = message.strip_suffix(" is not defined")?.trim_matches('\'');
            Some(for_missing_name(missing, compiled, registry))
        }
        "SyntaxError" => Some(
            "JSON.parse was given text that is not JSON; tool results are already parsed"
                .to_owned(),
        ),
        "TypeError" => for_type_error(message, at, compiled),
        _ => None,
    }
}

fn for_missing_name(missing: &str, compiled: &CompiledScript, registry: &Registry) -> String {
    if let Some(instead) = replacement_hint(missing) {
        return instead.to_owned();
    }
    if missing.len() > 80 {
        return "declare it, or see help()".to_owned();
    }
    if let Some(tool) = registry.get(missing) {
        return format!("did you mean `{}`?", callable_name(&tool.spec.js_name));
    }
    if registry.is_namespace(missing) {
        return format!("did you mean `tools.{missing}`?");
    }
    if let Some(near) =
        similar_names(missing, compiled.declared_names.iter().map(String::as_str)).first()
    {
        return format!("did you mean `{near}`?");
    }
    if compiled.source.contains(&format!("{missing} =")) {
        return format!("declare it: `let {missing} = …`");
    }
    format!("declare `{missing}`, or see help()")
}

fn for_type_error(
    message: &str,
    at: Option<(u32, u32)>,
    compiled: &CompiledScript,
) -> Option<String> {
    let has = |parts: [&str; 3]| parts.iter().any(|part| message.contains(part));
    if message.contains("not extensible")
        && at.is_some_and(|at| expression_at(compiled, at).starts_with("globalThis"))
    {
        let hint = "the global object is frozen: declare a variable with `let` or `const`";
        return Some(hint.to_owned());
    }
    if has(["read-only", "not extensible", "could not delete"]) {
        let hint = "tool results, `context`, `tools` and built-ins are frozen: copy first, as in \
                    {...x, field: value}, [...list] or structuredClone(x)";
        return Some(hint.to_owned());
    }
    if message.contains("not a function") {
        let what = at.map(|at| expression_at(compiled, at));
        let what = what.filter(|what| !what.is_empty());
        let what = what.map_or_else(|| "it".to_owned(), |what| format!("`{what}`"));
        return Some(format!(
            "{what} is not a function: print the value with console.log, or see a tool's result \
             type with help(\"name\")"
        ));
    }
    if message.contains("not iterable") {
        let hint = "a list is needed here: await the call that returns it; use Object.entries(x) \
                    for an object, Promise.all([a, b]) for several promises";
        return Some(hint.to_owned());
    }
    if has(["of undefined", "of null", "undefined or null"]) {
        let hint = "a value is missing: await the call that returns it, and compare its type in \
                    help(\"name\")";
        return Some(hint.to_owned());
    }
    None
}

/// Returns the name or member expression at a position of the script.
fn expression_at(compiled: &CompiledScript, (line, column): (u32, u32)) -> String {
    let text = compiled
        .source
        .lines()
        .nth((line as usize).saturating_sub(1));
    let chars: Vec<char> = text.unwrap_or_default().chars().collect();
    let part = |c: &char| c.is_alphanumeric() || "_$.?".contains(*c);
    let at = (column as usize).saturating_sub(1).min(chars.len());
    let before = chars[..at].iter().rposition(|c| !part(c));
    let start = before.map_or(0, |before| before + 1);
    let after = chars[at..].iter().position(|c| !part(c));
    let end = after.map_or(chars.len(), |after| at + after);
    chars[start..end]
        .iter()
        .collect::<String>()
        .trim_matches(['.', '?'])
        .to_owned()
}
