//! Measures a script from its text to its result: compiling, pre-flight, a run, the journal, and
//! the whole process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use selvedge_script::{Harness, ScriptCompiler};
use selvedge_tools::{Orchestrator, Registry};

use crate::measure::{Samples, elapsed_ms};
use crate::peers;
use crate::table::BenchTable;

pub(crate) fn measure(table: &mut BenchTable) -> Result<()> {
    measure_compile(table)?;
    measure_preflight(table)?;
    measure_type_check(table)?;
    measure_run(table)?;
    measure_journal(table)?;
    measure_process(table)
}

/// Generates 20 KB of typical TypeScript. Each seed gives a different text.
fn sample_script(seed: usize) -> String {
    let part = "
interface Item { path: string; score: number; tags?: string[] }
enum Grade { Low, Mid = 5, High }
async function inspectN(items: Item[], limit: number = 10): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const item of items.filter((i): i is Item => i.score > 0.5).slice(0, limit)) {
    const level = item.score > 0.9 ? Grade.High : Grade.Mid;
    counts[item.path] = (counts[item.path] ?? 0) + level;
    if (item.tags?.some(tag => /^te?st-(?<n>\\d+)$/u.test(tag))) console.log(`tagged ${item.path}`);
  }
  return Object.fromEntries(Object.entries(counts).toSorted(([, a], [, b]) => b - a)) as Record<string, number>;
}
";
    let mut text = format!("// {seed}\n");
    let mut n = 0;
    while text.len() + part.len() + 8 < 20_480 {
        text.push_str(
            &part
                .replace("inspectN", &format!("inspect{n}"))
                .replace("Item", &format!("Item{n}"))
                .replace("Grade", &format!("Grade{n}")),
        );
        n += 1;
    }
    text
}

fn measure_compile(table: &mut BenchTable) -> Result<()> {
    let (mut cold, mut cached) = (Samples::default(), Samples::default());
    let compiler = ScriptCompiler::default();
    let mut bytes = 0;
    for seed in 0..400 {
        let source = sample_script(seed);
        bytes = source.len();
        let start = Instant::now();
        let (_, hit) = compiler
            .compile(&source, 20_480)
            .map_err(|error| anyhow::anyhow!(error.message))?;
        cold.extend([elapsed_ms(start)]);
        anyhow::ensure!(!hit, "a new script was in the cache");
        let start = Instant::now();
        let (_, hit) = compiler
            .compile(&source, 20_480)
            .map_err(|error| anyhow::anyhow!(error.message))?;
        cached.extend([elapsed_ms(start)]);
        anyhow::ensure!(hit, "the compiled script was not in the cache");
    }
    table.add_row(
        &format!(
            "parse + check + transform of {} KB TypeScript, cold / cached",
            bytes / 1000
        ),
        format!(
            "{:.2} ms (p99 {:.2}) / {:.3} ms (p99 {:.3})",
            cold.p50(),
            cold.p99(),
            cached.p50(),
            cached.p99()
        ),
        "",
        "≤ 1 ms / ≤ 0.02 ms",
        cold.p50() <= 1.0 && cached.p50() <= 0.02,
    );
    Ok(())
}

/// Measures the check of 20 calls against their schemas, in a compiled script.
fn measure_preflight(table: &mut BenchTable) -> Result<()> {
    let read = selvedge_tools::tool("read_lines", "Reads.", |args: ReadLinesArgs| async move {
        Ok(args.path.len() + args.limit.unwrap_or(0))
    });
    let harness = Harness::new(Orchestrator::new(Registry::new().with(read)?))?;
    let source = "await tools.readLines({ path: 'a', limit: 3 });\n".repeat(20);
    let mut samples = Samples::default();
    for _ in 0..1000 {
        let start = Instant::now();
        let report = harness.check(source.as_bytes());
        samples.extend([elapsed_ms(start)]);
        anyhow::ensure!(
            report.valid && report.calls.len() == 20,
            "{:?}",
            report.errors
        );
    }
    table.add_row(
        "pre-flight: 20 calls against their schemas",
        format!("{:.3} ms (p99 {:.3})", samples.p50(), samples.p99()),
        "",
        "≤ 0.5 ms",
        samples.p50() <= 0.5,
    );
    Ok(())
}

/// Measures the check of a compiled script of 100 lines with the built-in tools. The registry is
/// new each time, so that nothing of the check is cached, and the script is parsed again.
fn measure_type_check(table: &mut BenchTable) -> Result<()> {
    let part = r#"
const hitsN = await tools.grepFiles({ pattern: "TODO", include: "*.rs", limit: 500 });
const pathsN = [...new Set(hitsN.filter((hit) => hit.line > 3).map((hit) => hit.path))];
const filesN = await Promise.all(pathsN.map((path) => tools.readFile({ path })));
const rowsN: { path: string; lines: number }[] = [];
for (const [i, file] of filesN.entries()) {
  if (file.truncated) continue;
  const longest = file.text.split("\n").reduce((a, b) => (a.length > b.length ? a : b), "");
  rowsN.push({ path: pathsN[i], lines: file.totalLines + longest.length });
}
const runN = await tools.exec({ command: ["wc", "-l", ...rowsN.map((row) => row.path)] });
if (runN.exitCode !== 0) text(`${runN.stderr} ${rowsN.toSorted((a, b) => a.lines - b.lines)[0]?.path}`);
"#;
    let source: String = (0..9).map(|n| part.replace('N', &n.to_string())).collect();
    let dir = tempfile::tempdir()?;
    let workspace = selvedge_toolbox::Workspace::open(
        dir.path(),
        selvedge_protocol::SandboxPolicy::ReadOnly,
        &[],
    )?;
    let mut registry = Registry::new();
    selvedge_toolbox::Toolbox::new(workspace).register(&mut registry)?;
    let harness = Harness::with_lazy_runtime(Orchestrator::new(registry.clone()));
    let mut samples = Samples::default();
    for _ in 0..1000 {
        let mut changed = registry.clone();
        changed.add_alias("changed", "exec");
        let harness = harness.clone().with_tools(changed);
        let start = Instant::now();
        let report = harness.check(source.as_bytes());
        samples.extend([elapsed_ms(start)]);
        anyhow::ensure!(report.valid, "{:?}", report.errors);
    }
    let lines = source.lines().count();
    let per_100_lines = samples.p50() * 100.0 / lines as f64;
    table.add_row(
        "type check: 100 lines, with parsing and pre-flight",
        format!(
            "{per_100_lines:.3} ms (p99 of {lines} lines: {:.3})",
            samples.p99()
        ),
        "",
        "≤ 0.5 ms",
        per_100_lines <= 0.5,
    );
    Ok(())
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct ReadLinesArgs {
    path: String,
    limit: Option<usize>,
}

/// Measures a one-line script in this process.
fn measure_run(table: &mut BenchTable) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let add = selvedge_tools::tool("noop", "Does nothing.", |_: ()| async { Ok(1) });
    let harness = Harness::new(Orchestrator::new(Registry::new().with(add)?))?;
    let mut samples = Samples::default();
    for i in 0..1000 {
        let source = format!("const n: number = {i}; return n + 1");
        let start = Instant::now();
        let output = runtime.block_on(harness.run(&source));
        samples.extend([elapsed_ms(start)]);
        anyhow::ensure!(output.error.is_none(), "{:?}", output.error);
    }
    table.add_row(
        "a one-line script through the harness: compile, pre-flight, run, result",
        format!("{:.3} ms (p99 {:.3})", samples.p50(), samples.p99()),
        "",
        "",
        true,
    );
    Ok(())
}

/// Runs in the journal that is listed.
const JOURNAL_RUNS: u32 = 10_000;

/// Measures what the journal adds to a tool call.
fn measure_journal(table: &mut BenchTable) -> Result<()> {
    const CALLS: usize = 100;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let home = std::env::temp_dir().join(format!("selvedge-bench-journal-{}", std::process::id()));
    let journal = selvedge_journal::Journal::open(&home)?;
    let noop = || selvedge_tools::tool("noop", "Does nothing.", |_: ReadLinesArgs| async { Ok(1) });
    let limits = selvedge_protocol::Limits {
        max_tool_calls: 1000,
        ..Default::default()
    };
    let without = Orchestrator::new(Registry::new().with(noop())?);
    let with = without.clone().with_ledger(journal.clone());
    let harnesses = [without, with].map(|orchestrator| {
        Harness::new(orchestrator).map(|harness| harness.with_limits(limits.clone()))
    });
    let source =
        format!("for (let i = 0; i < {CALLS}; i++) await tools.noop({{ path: 'file' + i }})");
    let mut samples = [Samples::default(), Samples::default()];
    for _ in 0..60 {
        for (harness, samples) in harnesses.iter().zip(&mut samples) {
            let harness = harness
                .as_ref()
                .map_err(|error| anyhow::anyhow!("{error}"))?;
            let start = Instant::now();
            let output = runtime.block_on(harness.run(&source));
            samples.extend([elapsed_ms(start) / CALLS as f64]);
            anyhow::ensure!(output.error.is_none(), "{:?}", output.error);
        }
    }
    let added = samples[1].p50() - samples[0].p50();
    table.add_row(
        "journal, added to one tool call",
        format!(
            "{added:.3} ms ({:.3} with, {:.3} without)",
            samples[1].p50(),
            samples[0].p50()
        ),
        "",
        "≤ 0.1 ms",
        added <= 0.1,
    );
    let harness = harnesses[1]
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    for _ in 0..JOURNAL_RUNS {
        let source = "for (const path of ['a', 'b', 'c']) await tools.noop({ path })";
        let output = runtime.block_on(harness.run(source));
        anyhow::ensure!(output.error.is_none(), "{:?}", output.error);
    }
    measure_listing(table, &journal, &home)?;
    drop(journal);
    Ok(std::fs::remove_dir_all(&home)?)
}

/// Measures listing a full journal, in this process and with `selvedge runs list`.
fn measure_listing(
    table: &mut BenchTable,
    journal: &selvedge_journal::Journal,
    home: &Path,
) -> Result<()> {
    let command = crate::selvedge_binary()?;
    let limit = JOURNAL_RUNS.to_string();
    let (mut in_process, mut by_command) = (Samples::default(), Samples::default());
    for _ in 0..10 {
        let start = Instant::now();
        let runs = journal
            .runs(&selvedge_journal::RunFilter {
                limit: Some(JOURNAL_RUNS),
                ..Default::default()
            })?
            .len();
        in_process.extend([elapsed_ms(start)]);
        let start = Instant::now();
        let output = Command::new(&command)
            .args(["runs", "list", "--json", "--limit", &limit])
            .env("SELVEDGE_HOME", home)
            .stdin(Stdio::null())
            .output()?;
        by_command.extend([elapsed_ms(start)]);
        let printed = serde_json::from_slice::<Vec<serde_json::Value>>(&output.stdout)?.len();
        anyhow::ensure!(
            (runs, printed) == (JOURNAL_RUNS as usize, JOURNAL_RUNS as usize),
            "{runs} and {printed} runs"
        );
    }
    table.add_row(
        "list a journal of 10,000 runs with three calls each",
        format!(
            "{:.1} ms (p99 {:.1}); `runs list --json` {:.1} ms",
            in_process.p50(),
            in_process.p99(),
            by_command.p50()
        ),
        "",
        "≤ 50 ms",
        in_process.p50() <= 50.0 && by_command.p50() <= 50.0,
    );
    Ok(())
}

/// Measures whole processes that print 1.
fn measure_process(table: &mut BenchTable) -> Result<()> {
    let ours = crate::selvedge_binary()?;
    let deno = peers::bench_folder().join("node_modules/.bin/deno");
    let mut commands: Vec<(&str, PathBuf, &[&str])> = vec![
        ("selvedge", ours, &["run", "-e", "return 1"]),
        ("node", "node".into(), &["-e", "console.log(1)"]),
    ];
    if Command::new(&deno)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        commands.push(("deno", deno.canonicalize()?, &["eval", "console.log(1)"]));
    }
    let home = std::env::temp_dir().join("selvedge-bench-home");
    let mut samples = vec![Samples::default(); commands.len()];
    for _ in 0..40 {
        for ((name, program, args), samples) in commands.iter().zip(&mut samples) {
            let start = Instant::now();
            let output = Command::new(program)
                .args(*args)
                .env("SELVEDGE_HOME", &home)
                .stdin(Stdio::null())
                .output();
            samples.extend([elapsed_ms(start)]);
            let output = output.with_context(|| format!("cannot run {name}"))?;
            anyhow::ensure!(
                output.status.success() && output.stdout == b"1\n",
                "unexpected output of {name}: {output:?}"
            );
        }
    }
    let peers: Vec<String> = commands[1..]
        .iter()
        .zip(&samples[1..])
        .map(|((name, ..), peer)| {
            format!(
                "{name} {:.0} ms (p99 {:.0}): ratio 1/{:.1}",
                peer.p50(),
                peer.p99(),
                peer.p50() / samples[0].p50()
            )
        })
        .collect();
    table.add_row(
        "`selvedge run -e 'return 1'`, whole process",
        format!("{:.1} ms (p99 {:.1})", samples[0].p50(), samples[0].p99()),
        &peers.join("; "),
        "≤ 15 ms, ≤ 1/2 of deno",
        samples[0].p50() <= 15.0
            && samples
                .get(2)
                .is_some_and(|deno| samples[0].p50() <= deno.p50() / 2.0),
    );
    Ok(())
}
