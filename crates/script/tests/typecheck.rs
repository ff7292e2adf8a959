//! Compares the type check of scripts with `tsc` on a corpus: every mistake that it reports must be
//! one that `tsc` reports, too, and it must find most of those that `tsc` finds.
//!
//! The corpus: the scripts of `cases/`, of `docs/` and of `examples/`, and those of `typecheck/`.
//! `typecheck/README.md` describes the format of the latter.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "typecheck/corpus.rs"]
mod corpus;
#[path = "typecheck/reference.rs"]
mod reference;
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use corpus::{CorpusScript, Expectation, ScriptGroup};
use reference::{TscDiagnostic, diagnostics, is_installed};
use schemars::JsonSchema;
use selvedge_protocol::{ErrorCode, SandboxPolicy};
use selvedge_script::{Harness, ScriptCompiler};
use selvedge_tools::{Orchestrator, Registry, tool};
use serde::{Deserialize, Serialize};

/// A mistake that the type check reports.
#[derive(Debug, Clone)]
struct Finding {
    kind: String,
    line: u32,
    message: String,
    /// Whether it comes from inferred types. The pre-flight checks literals against the schema
    /// itself, which says more than the types do.
    is_inferred: bool,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct SearchArgs {
    query: String,
    limit: Option<u32>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct RecallArgs {
    handle: String,
    pointer: Option<String>,
}

#[derive(Serialize, JsonSchema, Default)]
struct RecalledValue {
    value: serde_json::Value,
    total: Option<u64>,
    truncated: bool,
}

#[derive(Serialize, JsonSchema)]
struct FoundTool {
    name: String,
    description: String,
    signature: String,
}

/// The built-in tools, `search`, and two tools of a server.
fn registry() -> Registry {
    let dir = tempfile::tempdir().unwrap();
    let workspace =
        selvedge_toolbox::Workspace::open(dir.path(), SandboxPolicy::ReadOnly, &[]).unwrap();
    let mut registry = Registry::new();
    selvedge_toolbox::Toolbox::new(workspace)
        .register(&mut registry)
        .unwrap();
    registry
        .register(tool("search", "Finds tools.", |_: SearchArgs| async {
            Ok(Vec::<FoundTool>::new())
        }))
        .unwrap();
    let recall = |_: RecallArgs| async { Ok(RecalledValue::default()) };
    registry
        .register(tool("recall", "Reads a result.", recall))
        .unwrap();
    for name in ["mcp.github.list_issues", "mcp.github.create_issue"] {
        let server_tool = tool(name, "Uses issues.", |args: serde_json::Value| async {
            Ok(args)
        });
        registry.register(server_tool).unwrap();
    }
    registry
}

fn findings(harness: &Harness, code: &str) -> Vec<Finding> {
    let report = harness.check(code.as_bytes());
    let found = report.errors.into_iter().filter_map(|error| {
        let mistake = error.metadata.get("mistake").cloned();
        let kind = match (&mistake, error.code) {
            (Some(kind), _) => kind.as_str().unwrap().to_owned(),
            (None, ErrorCode::ToolValidationError) => "argument".to_owned(),
            _ => return None,
        };
        Some(Finding {
            kind,
            line: error.line.unwrap_or(0),
            message: error.message,
            is_inferred: mistake.is_some(),
        })
    });
    found.collect()
}

/// Returns the scripts that compile: only these are checked. The text is what is compiled.
fn compiled(scripts: Vec<CorpusScript>) -> Vec<CorpusScript> {
    let compiler = ScriptCompiler::default();
    let compile = |script: CorpusScript| {
        let (compiled, _) = compiler.compile(&script.code, 64 << 10).ok()?;
        let code = compiled.source.to_string();
        Some(CorpusScript { code, ..script })
    };
    scripts.into_iter().filter_map(compile).collect()
}

fn harness(registry: Registry) -> Harness {
    Harness::with_lazy_runtime(Orchestrator::new(registry))
}

/// Numbers of a comparison.
#[derive(Debug, Default)]
struct Tally {
    scripts: usize,
    reported: usize,
    /// Reported mistakes that `tsc` or the corpus does not confirm.
    unconfirmed: Vec<String>,
    expected: usize,
    missed: Vec<String>,
}

impl Tally {
    fn compare(&mut self, script: &CorpusScript, found: &[Finding], known: &[TscDiagnostic]) {
        self.scripts += 1;
        let expected_line = match script.expectation {
            Expectation::Mistake { line, .. } => Some(line),
            _ => None,
        };
        for finding in found.iter().filter(|finding| finding.is_inferred) {
            self.reported += 1;
            let confirmed = known
                .iter()
                .any(|known| known.confirms(&finding.kind, finding.line))
                || expected_line == Some(finding.line);
            if !confirmed {
                let Finding {
                    kind,
                    line,
                    message,
                    ..
                } = finding;
                self.unconfirmed
                    .push(format!("{}:{line} {kind}: {message}", script.name));
            }
        }
        for known in known {
            let Some(kind) = known.kind else {
                continue;
            };
            self.expected += 1;
            let was_found = found
                .iter()
                .any(|finding| known.confirms(&finding.kind, finding.line));
            if !was_found {
                let TscDiagnostic {
                    line,
                    code,
                    message,
                    ..
                } = known;
                let name = &script.name;
                self.missed
                    .push(format!("{name}:{line} {kind} TS{code}: {message}"));
            }
        }
    }

    fn print(&self, title: &str) {
        eprintln!(
            "{title}: {} scripts, {} reported, {} unconfirmed, {} expected, {} missed: precision \
             {:.1} %, recall {:.1} %",
            self.scripts,
            self.reported,
            self.unconfirmed.len(),
            self.expected,
            self.missed.len(),
            self.precision() * 100.0,
            self.recall() * 100.0
        );
        self.unconfirmed
            .iter()
            .for_each(|line| eprintln!("  unconfirmed {line}"));
        self.missed
            .iter()
            .for_each(|line| eprintln!("  missed {line}"));
    }

    fn precision(&self) -> f64 {
        1.0 - self.unconfirmed.len() as f64 / self.reported.max(1) as f64
    }

    fn recall(&self) -> f64 {
        1.0 - self.missed.len() as f64 / self.expected.max(1) as f64
    }
}

#[test]
fn findings_agree_with_tsc() {
    if !is_installed() {
        return;
    }
    let scripts = compiled(corpus::all());
    let (mut tallies, mut total) = (BTreeMap::<ScriptGroup, Tally>::new(), 0);
    for (groups, registry) in [
        (
            &[ScriptGroup::Models][..],
            support::registry(&Arc::default()),
        ),
        (
            &[
                ScriptGroup::Docs,
                ScriptGroup::Written,
                ScriptGroup::Seeded,
                ScriptGroup::HeldOut,
            ],
            registry(),
        ),
    ] {
        let scripts: Vec<&CorpusScript> = scripts
            .iter()
            .filter(|script| groups.contains(&script.group))
            .collect();
        let known = diagnostics(&registry, &scripts);
        let harness = harness(registry);
        for (script, known) in scripts.into_iter().zip(known) {
            let Some(known) = known else {
                continue;
            };
            total += 1;
            let found = findings(&harness, &script.code);
            tallies
                .entry(script.group)
                .or_default()
                .compare(script, &found, &known);
        }
    }
    let (mut reported, mut wrong, mut expected, mut missed) = (0, 0, 0, 0);
    for (group, tally) in &tallies {
        tally.print(&format!("{group:?}"));
        reported += tally.reported;
        wrong += tally.unconfirmed.len();
        expected += tally.expected;
        missed += tally.missed.len();
    }
    let recall = 1.0 - f64::from(missed as u32) / f64::from(expected as u32);
    eprintln!(
        "{total} scripts: {reported} mistakes reported, {wrong} not confirmed by tsc; {missed} of \
         {expected} missed: precision {:.1} %, recall {:.1} %",
        (1.0 - f64::from(wrong as u32) / f64::from(reported as u32)) * 100.0,
        recall * 100.0
    );
    assert!(total >= 300, "{total} scripts");
    assert_eq!(wrong, 0, "reported mistakes that tsc does not confirm");
    assert!(recall >= 0.9, "recall {recall}");
}

#[test]
fn findings_in_mutated_scripts_agree_with_tsc() {
    if !is_installed() {
        return;
    }
    let scripts = compiled(corpus::mutations(&corpus::all()));
    let (registry, mut tally) = (registry(), Tally::default());
    let known = diagnostics(&registry, &scripts.iter().collect::<Vec<_>>());
    let harness = harness(registry);
    for (script, known) in scripts.iter().zip(known) {
        if let Some(known) = known {
            tally.compare(script, &findings(&harness, &script.code), &known);
        }
    }
    tally.print("mutated");
    assert!(tally.expected >= 500, "{} mistakes", tally.expected);
    assert!(
        tally.unconfirmed.is_empty(),
        "reported mistakes that tsc does not confirm"
    );
    assert!(tally.recall() >= 0.9, "recall {}", tally.recall());
}

/// Some attacks make `tsc` use all memory, so it does not judge them. They are no type mistakes.
#[test]
fn nothing_is_reported_in_hostile_scripts() {
    let harness = harness(support::registry(&Arc::default()));
    let scripts = corpus::all().into_iter();
    let hostile = scripts.filter(|script| script.group == ScriptGroup::Hostile);
    let mut reported = Vec::new();
    for script in compiled(hostile.collect()) {
        let found = findings(&harness, &script.code).into_iter();
        let inferred = found.filter(|finding| finding.is_inferred);
        reported.extend(inferred.map(|finding| format!("{}: {finding:?}", script.name)));
    }
    assert!(reported.is_empty(), "{reported:#?}");
}

/// Needs no `tsc`: the corpus says itself which scripts have a mistake, and where.
#[test]
fn scripts_without_mistakes_pass_and_seeded_mistakes_are_found() {
    let harness = harness(registry());
    let (mut wrong, mut missed, mut seeded) = (Vec::new(), Vec::new(), 0);
    for script in compiled(corpus::all()) {
        let found = findings(&harness, &script.code);
        match &script.expectation {
            Expectation::Unknown => {}
            Expectation::Fine => {
                let found = found.iter().map(|it| format!("{}: {it:?}", script.name));
                wrong.extend(found);
            }
            Expectation::Mistake { kind, line } => {
                seeded += 1;
                // A promise is wrong where it is used, which may be far below.
                let matches = |it: &Finding| match kind.as_str() {
                    "await" => it.kind == "await" && it.line >= *line,
                    _ => it.line.abs_diff(*line) <= 1,
                };
                if !found.iter().any(matches) {
                    missed.push(format!("{}: {kind} {line}, found {found:?}", script.name));
                }
            }
        }
    }
    wrong.iter().for_each(|line| eprintln!("wrong {line}"));
    missed.iter().for_each(|line| eprintln!("missed {line}"));
    assert!(
        wrong.is_empty(),
        "{} scripts are rejected without a mistake",
        wrong.len()
    );
    assert!(seeded >= 75, "{seeded} seeded mistakes");
    assert!(
        missed.len() * 10 <= seeded,
        "{} of {seeded} mistakes missed",
        missed.len()
    );
}

/// The position is that of the backtick that has to be escaped, not the start of the literal.
#[test]
fn an_unescaped_backtick_is_found_where_it_ends_the_template() {
    let harness = harness(registry());
    for (source, line, column) in [
        ("const a = `x ``y`` z`; return a", 1, 14),
        (
            "const doc = `\nRun it:\n```\nmake\n```\n`;\nreturn doc",
            3,
            1,
        ),
        // A word after the backtick is an error of the syntax.
        (
            "const doc = `\nRun it:\n```sh\nmake\n```\n`;\nreturn doc",
            3,
            4,
        ),
        ("return (`a` as string)`b`", 1, 23),
        ("return `a ${1} `.trim()``", 1, 24),
        ("return 'it is '`b`", 1, 16),
    ] {
        let errors = harness.check(source.as_bytes()).errors;
        let found = errors.iter().map(|error| (error.line, error.column));
        let found: Vec<_> = found.collect();
        assert_eq!(found, [(Some(line), Some(column))], "{source}: {errors:?}");
        assert_eq!(
            errors[0].suggestions[0], "escape the backtick: \\`",
            "{source}"
        );
    }
    for source in [
        "return 'a,b'.split`,`",
        "return String.raw`\\n`",
        "const tag = (s) => s[0]; return tag`a`",
    ] {
        let errors = harness.check(source.as_bytes()).errors;
        assert!(errors.is_empty(), "{source}: {errors:?}");
    }
}

/// The list's type needs the pushed value before that is evaluated for mistakes.
#[test]
fn the_type_of_a_pushed_value_does_not_hide_later_mistakes() {
    let harness = harness(registry());
    let script = r#"
async function collect() {
  const all = [];
  all.push(await list());
  const found = await list();
  return [all, found.nope];
}
const list = async () => { return tools.exec({ command: ["ls"] }); };
return await collect();
"#;
    let lines: Vec<u32> = findings(&harness, script)
        .iter()
        .map(|it| it.line)
        .collect();
    assert_eq!(lines, [6]);
}

#[test]
fn a_field_that_is_assigned_again_is_not_narrowed() {
    let harness = harness(registry());
    for path in ["o.a", "(o?.a)"] {
        let script = format!(
            r#"
const o: {{ a: {{ b: string | string[] }} }} = {{ a: {{ b: "x" }} }};
if (typeof {path}.b === "string") {{
  o.a = {{ b: ["y"] }};
  return {path}.b.map((x) => x.length);
}}
return o;
"#
        );
        let found = findings(&harness, &script);
        assert!(found.is_empty(), "{path}: {found:?}");
    }
}

/// Steps, depth and types are bounded: each of these takes milliseconds, and none ends the process.
#[test]
fn beyond_each_bound_a_type_is_unknown() {
    let harness = harness(registry());
    let findings = |source: String| harness.check(source.as_bytes()).errors.len();
    let fields = |count: usize| {
        let fields: String = (0..count).map(|i| format!("f{i}: 1, ")).collect();
        format!("const o = {{ {fields} }}; return o.missing;")
    };
    let union = |count: usize| {
        let options = (1..count).map(|i| format!("c > {i} ? {{ a{i}: 1 }} : "));
        let options: String = options.collect();
        format!("const c = Math.random(); const u = {options}{{ z: 1 }}; return u.missing;")
    };
    let depth = |count: usize| format!("return 'a'{}.missing;", ".trim()".repeat(count));
    assert_eq!([fields(128), union(24), depth(150)].map(findings), [1; 3]);
    assert_eq!([fields(129), union(25), depth(220)].map(findings), [0; 3]);
}

#[test]
fn the_message_names_the_field_the_nearest_name_and_the_fix() {
    let harness = harness(registry());
    for (source, message, suggestion) in [
        (
            "return (await tools.listDir({})).map((entry) => entry.path);",
            "; use `.entries`",
            "use `.entries.map`",
        ),
        (
            "const r = await tools.exec({ command: ['ls'] }); return r.output;",
            "; did you mean `stdout`?",
            "stdout",
        ),
        (
            "const r = tools.readFile({ path: 'a' }); return r.text;",
            "await",
            "await",
        ),
        (
            "const r = await tools.grepFiles({ pattern: 'a' }); r.sort(); return r;",
            "frozen",
            "toSorted",
        ),
    ] {
        let errors = harness.check(source.as_bytes()).errors;
        let [error] = &errors[..] else {
            panic!("{source}: {errors:?}");
        };
        assert_eq!(error.code, ErrorCode::ScriptTypeError);
        assert!(error.message.contains(message), "{source}: {error:?}");
        let text = format!("{} {}", error.message, error.suggestions.join(" "));
        assert!(text.contains(suggestion), "{source}: {error:?}");
    }
}

#[test]
fn types_that_double_use_up_no_bound() {
    let harness = harness(registry());
    let levels = |line: fn(usize) -> String| (0..60).map(line).collect::<String>();
    let spread = levels(|i| format!("const o{} = {{ ...o{i}, ...o{i} }};", i + 1));
    let lists = levels(|i| format!("const t{} = [t{i}, t{i}] as const;", i + 1));
    for source in [
        format!("const o0 = {{ a: 1, b: 2, c: 3 }}; {spread} return o60.missing;"),
        format!("const t0 = [1, 'a'] as const; {lists} return structuredClone(t60).missing;"),
    ] {
        let errors = harness.check(source.as_bytes()).errors;
        assert_eq!(errors.len(), 1, "{source}: {errors:?}");
    }
}

#[test]
fn scripts_made_to_be_costly_are_checked_within_bounds() {
    let harness = harness(registry());
    let lets = |n: usize| {
        let declared: String = (0..n).map(|i| format!("let v{i} = 0;")).collect();
        let assigned: String = (0..n)
            .map(|i| format!("v{i} = [v{}, v{}];", (i + 1) % n, (i + 7) % n))
            .collect();
        format!("{declared}{assigned}return v0.x;")
    };
    let nested = |open: &str, inner: &str, close: &str, n: usize| {
        format!(
            "const x = {}{inner}{}; return x;",
            open.repeat(n),
            close.repeat(n)
        )
    };
    let chain: String = (0..600)
        .map(|i| format!("const c{i} = [c{}];", i + 1))
        .collect();
    let union: String = (0..400).map(|i| format!("u = {{ f{i}: u }};")).collect();
    let alias: String = (0..300)
        .map(|i| format!("type T{i} = {{ a: T{}; b: T{i}[] }};", i + 1))
        .collect();
    let functions: String = (0..300)
        .map(|i| {
            format!(
                "const f{i} = (x) => f{}(f{}(x));",
                (i + 1) % 300,
                (i + 2) % 300
            )
        })
        .collect();
    for source in [
        lets(100),
        nested("[", "1", "]", 2000),
        nested("(a) => ", "1", "", 800),
        nested("[1].map((a) => ", "a", ")", 400),
        nested("(1 ? ", "2", " : 3)", 400),
        nested("{ a: ", "1", " }", 1000),
        format!("{chain}return c0[0][0].x;"),
        format!("let u = {{}}; {union} return u.x;"),
        format!("{alias}declare const t: T0; const v: T0 = t; return v.a.a.a.c;"),
        format!("{functions}return f0(1);"),
        "const r = await tools.exec({ command: [] });".to_owned() + &"r.stdout.x;".repeat(1000),
    ] {
        let report = harness.check(source.as_bytes());
        assert!(report.errors.len() <= 50, "{}", report.errors.len());
    }
}
