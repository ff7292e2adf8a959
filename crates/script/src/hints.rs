//! What to write instead of things that work elsewhere and not here.

/// Names authors reach for that are not there.
const ABSENT: &[(&str, &str)] = &[
    ("fetch", "there is no network here: use a tool such as `tools.fetchUrl`, see help()"),
    ("require", "there are no modules here: everything a script can use is in help()"),
    ("process", "there is no process here: `context` tells the working directory, tools reach the rest"),
    ("Buffer", "use Uint8Array, or atob() and btoa() for base64"),
    ("URL", "there is no URL class here: split the text with a regular expression"),
    ("URLSearchParams", "there is no URLSearchParams here: use encodeURIComponent and join"),
    ("TextEncoder", "there is no TextEncoder here: work with strings"),
    ("TextDecoder", "there is no TextDecoder here: work with strings"),
    ("Intl", "there is no Intl here: format with toFixed, padStart and regular expressions"),
    ("setInterval", "use a loop with `await new Promise(r => setTimeout(r, ms))`"),
    ("setImmediate", "use setTimeout or await"),
    ("crypto", "there is no crypto here: Math.random() is seeded for each run"),
    ("Worker", "there are no threads here: run calls side by side with Promise.all"),
    ("fs", "there is no fs here: use the file tools, see help()"),
    ("path", "there is no path module here: join with template strings"),
    ("window", "there is no browser here"),
    ("document", "there is no browser here"),
    ("module", "write `return value` to give a value back"),
    ("exports", "write `return value` to give a value back"),
    ("__dirname", "use `context.workingDirectory`"),
    ("__filename", "a script has no file: use `context.workingDirectory`"),
    ("global", "the global object is `globalThis`, and it is frozen"),
    ("eval", "write the code itself"),
    ("Function", "write the function itself"),
];

/// A suggestion for an error the engine threw, if one is known.
pub(crate) fn for_engine_error(name: &str, message: &str) -> Option<String> {
    if name == "ReferenceError" {
        let missing = message.strip_suffix(" is not defined")?.trim_matches('\'');
        return ABSENT.iter().find(|(absent, _)| *absent == missing).map(|(_, instead)| (*instead).to_owned());
    }
    if name == "TypeError" {
        if message.contains("read-only") || message.contains("not extensible") || message.contains("cannot delete") {
            return Some("tool results, `context` and built-ins are frozen: copy first, as in {...x, field: value}, [...list] or structuredClone(x)".to_owned());
        }
        if message.contains("not a function") {
            return Some(
                "look at the value with console.log, or at the tool's result type with help(\"name\")".to_owned(),
            );
        }
        if message.contains("of undefined") || message.contains("of null") {
            return Some("a value is missing: was a call not awaited, or does the result have another shape? help(\"name\") shows it".to_owned());
        }
    }
    None
}
