//! Checks the TypeScript declarations for scripts: `tsc --strict` accepts them, and they match the
//! globals and error codes.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use selvedge_protocol::ErrorCode;

const USE: &str = r#"
async function main() {
  const file = await tools.readFile({ path: "a", limit: 3 });
  const lines: number = file.totalLines;
  const found = await tools.fileSearch({ pattern: "*.ts" });
  const paths: string[] = found.map(f => f.path);
  const run = await tools.exec({ command: ["ls"], timeoutMs: 5 });
  const failed: boolean = run.exitCode !== 0;
  const issues: unknown = await tools.mcp.github.listIssues({});
  const same: unknown = await github.listIssues({});
  const byPosition: number = (await tools.readFile("a")).totalLines;
  const line: number = (await tools.exec("ls | head")).exitCode;
  const words: number = (await tools.exec(["ls"], { timeoutMs: 5 })).exitCode;
  // @ts-expect-error: the field is a string
  await tools.readFile(1);
  const url = new URL("../x", "https://example.com/a/b?q=1");
  url.searchParams.set("page", "2");
  const pairs: [string, string][] = [...url.searchParams];
  const bytes: Uint8Array = crypto.getRandomValues(new TextEncoder().encode(url.href));
  const decoded: string = new TextDecoder().decode(bytes) + crypto.randomUUID();
  queueMicrotask(() => text(same, byPosition, line, words, pairs, decoded));
  // @ts-expect-error: the field is required
  await tools.readFile({});
  // @ts-expect-error: there is no such field
  await tools.readFile({ path: "a", lines: 3 });
  // @ts-expect-error: there is no such tool
  await tools.readFiles({ path: "a" });
  // @ts-expect-error: results are frozen
  found.sort();
  // @ts-expect-error: results are frozen
  file.text = "changed";
  const copy = structuredClone(found);
  copy.sort();
  copy[0].path = "changed";
  await tools.exec({ command: paths.length > 0 ? Object.freeze(["ls"]) : copy.map((f) => f.path) });
  // @ts-expect-error: the context is read-only
  context.turnId = "x";
  const budget: number = context.sandbox.remainingToolBudget;
  store("k", { lines, paths, failed, issues, budget });
  text(load("k") ?? help("readFile"));
}
main();
"#;

#[test]
fn tsc_accepts_the_declarations() {
    let tsc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/node_modules/.bin/tsc");
    if !tsc.exists() {
        assert!(
            std::env::var_os("CI").is_none(),
            "TypeScript is not installed: run `make test`, which installs it"
        );
        eprintln!("skipped: TypeScript is not installed (`make test` installs it where npm is)");
        return;
    }
    let registry = support::registry(&Arc::default());
    let dir = tempfile::tempdir().unwrap();
    let text = selvedge_script::script_declarations(&registry);
    std::fs::write(dir.path().join("selvedge.d.ts"), text).unwrap();
    std::fs::write(dir.path().join("use.ts"), USE).unwrap();
    let output = Command::new(tsc)
        .args([
            "--strict",
            "--noEmit",
            "--target",
            "es2024",
            "--lib",
            "es2024",
            "selvedge.d.ts",
            "use.ts",
        ])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn every_global_is_declared() {
    let fixture = support::TestFixture::new();
    let names = fixture.value(
        "const capital = (n) => /^[A-Z]/.test(n) && n !== 'ALL_TOOLS';
        const strings = Reflect.ownKeys(globalThis).filter(n => typeof n === 'string');
        return strings.filter(n => !n.startsWith('__') && !capital(n))",
    );
    // Globals of ECMAScript, which TypeScript's library declares.
    let standard = [
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
    ];
    for name in names
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
    {
        let declared = ["const", "function"].iter().any(|word| {
            selvedge_script::GLOBAL_DECLARATIONS.contains(&format!("declare {word} {name}:"))
                || selvedge_script::GLOBAL_DECLARATIONS.contains(&format!("declare {word} {name}("))
                || selvedge_script::GLOBAL_DECLARATIONS.contains(&format!("declare {word} {name}<"))
        });
        assert!(
            declared || name == "tools" || standard.contains(&name),
            "globals.d.ts does not declare `{name}`"
        );
    }
}

#[test]
fn a_server_with_the_name_of_a_global_is_not_a_global() {
    let fixture = support::TestFixture::new();
    let names = fixture
        .value("return Reflect.ownKeys(globalThis).filter(name => typeof name === 'string')");
    let names: Vec<String> = serde_json::from_value(names).unwrap();
    assert!(names.len() > 60, "{names:?}");
    let words = ["class", "new", "await", "eval", "arguments"].map(str::to_owned);
    let free = ["github", "Linear", "workspace"].map(str::to_owned);
    let mut registry = selvedge_tools::Registry::new();
    for name in names.iter().chain(&words).chain(&free) {
        let name = format!("mcp.{name}.list");
        let list = selvedge_tools::tool(&name, "Lists.", |(): ()| async { Ok(()) });
        registry.register(list).unwrap();
    }
    let declared = selvedge_script::script_declarations(&registry);
    let is_declared =
        |name: &String| declared.contains(&format!("declare const {name}: typeof tools.mcp."));
    let taken: Vec<_> = names
        .iter()
        .chain(&words)
        .filter(|name| is_declared(name))
        .collect();
    assert!(taken.is_empty(), "{taken:?}");
    assert!(free.iter().all(is_declared), "{declared}");
}

#[test]
fn a_built_in_namespace_has_precedence_over_a_server_of_its_name() {
    let mut registry = selvedge_tools::Registry::new();
    for name in ["channels.list", "mcp.channels.list", "mcp.sessions.list"] {
        let list = selvedge_tools::tool(name, "Lists.", |(): ()| async { Ok(()) });
        registry.register(list).unwrap();
    }
    let declared = selvedge_script::script_declarations(&registry);
    let globals: Vec<&str> = declared
        .lines()
        .filter(|line| line.contains(": typeof tools."))
        .collect();
    assert_eq!(
        globals,
        [
            "declare const channels: typeof tools.channels;",
            "declare const sessions: typeof tools.mcp.sessions;",
        ]
    );
}

/// The enum, the guest's error classes, the declarations and `docs/errors.md` have the same codes.
#[test]
fn every_error_code_has_a_class_a_declaration_and_a_row_in_the_docs() {
    let codes: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    let fixture = support::TestFixture::new();
    let mut classes = fixture.value(
        "const isErrorClass = (c) => c?.prototype instanceof Error && /class/.test(String(c));
        return Reflect.ownKeys(globalThis).filter(n => isErrorClass(globalThis[n]))",
    );
    let mut sorted = codes.clone();
    sorted.sort_unstable();
    classes
        .as_array_mut()
        .unwrap()
        .sort_by_key(|name| name.to_string());
    assert_eq!(classes, serde_json::json!(sorted));
    let between = |text: &str, before: &str, after: &str| -> Vec<String> {
        let rows = text
            .lines()
            .filter_map(|line| line.strip_prefix(before)?.split_once(after));
        rows.map(|(name, _)| name.to_owned()).collect()
    };
    assert_eq!(
        between(
            &selvedge_script::GLOBAL_DECLARATIONS,
            "declare class ",
            " extends Error"
        ),
        codes
    );
    assert_eq!(
        between(include_str!("../../../docs/errors.md"), "| `", "`"),
        codes
    );
}
