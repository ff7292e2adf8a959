//! Measures searches in 20,000 files from a script, as a whole process, compared with ripgrep and
//! fd.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use selvedge_protocol::SandboxPolicy;
use selvedge_toolbox::{TurnDiffTracker, Workspace};

use crate::measure::{Samples, elapsed_ms};
use crate::table::BenchTable;

const FILES: usize = 20_000;
const ROUNDS: usize = 25;

pub(crate) fn measure(table: &mut BenchTable) -> Result<()> {
    let tree = create_tree()?;
    let ours = crate::selvedge_binary()?;
    let grep = "return (await tools.grepFiles({ pattern: 'needle_[0-9]+', limit: 100000 })).length";
    let rg = ["--no-heading", "--line-number", "needle_[0-9]+"];
    compare(table, "grepFiles", &ours, &tree, grep, &["rg"], &rg)?;
    let find = "return (await tools.fileSearch({ pattern: '**/*_7.rs', limit: 100000 })).length";
    compare(
        table,
        "fileSearch",
        &ours,
        &tree,
        find,
        &["fd", "fdfind"],
        &["--glob", "*_7.rs"],
    )?;
    measure_turn_diff(table, &tree)
}

/// Measures the turn diff around a command that may change any file.
fn measure_turn_diff(table: &mut BenchTable, tree: &Path) -> Result<()> {
    let workspace = Workspace::open(tree, SandboxPolicy::WorkspaceWrite, &[])?;
    let turn_diff = TurnDiffTracker::new(&workspace);
    let (mut before, mut after) = (Samples::default(), Samples::default());
    for _ in 0..5 {
        turn_diff.begin_turn();
        let start = Instant::now();
        turn_diff.before_command();
        before.extend([elapsed_ms(start)]);
        let start = Instant::now();
        let diff = turn_diff.diff();
        after.extend([elapsed_ms(start)]);
        anyhow::ensure!(
            diff.text.is_empty(),
            "the diff of an unchanged tree is not empty: {}",
            diff.text
        );
    }
    table.add_row(
        "turn diff over 20,000 files: before a command, after it",
        format!("{:.0} ms, {:.0} ms", before.p50(), after.p50()),
        "",
        "",
        true,
    );
    Ok(())
}

/// Measures a script and a program, which must find the same number of results. `names` are the
/// possible names of the program.
fn compare(
    table: &mut BenchTable,
    tool: &str,
    ours: &Path,
    tree: &Path,
    script: &str,
    names: &[&str],
    args: &[&str],
) -> Result<()> {
    let Some(program) = names
        .iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok())
    else {
        anyhow::bail!(
            "{} is not installed: install ripgrep and fd-find, and run `make bench`",
            names[0]
        );
    };
    let home = std::env::temp_dir().join("selvedge-bench-home");
    let (mut our_times, mut peer_times) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let output = Command::new(ours)
            .args(["run", "-q", "-e", script, "-C"])
            .arg(tree)
            .env("SELVEDGE_HOME", &home)
            .output()
            .context("cannot run selvedge")?;
        our_times.extend([elapsed_ms(start)]);
        let found = String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse::<usize>();
        let start = Instant::now();
        let output = Command::new(program)
            .args(args)
            .current_dir(tree)
            .output()?;
        peer_times.extend([elapsed_ms(start)]);
        let expected = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        anyhow::ensure!(
            found.as_ref().is_ok_and(|found| *found == expected),
            "{tool} found {found:?}, expected {expected}"
        );
    }
    let limit = 1.5 * peer_times.p50() + 30.0;
    table.add_row(
        &format!("`{tool}` over 20,000 files through `selvedge run`, whole process"),
        format!("{:.0} ms (p99 {:.0})", our_times.p50(), our_times.p99()),
        &format!(
            "{program} {:.0} ms (p99 {:.0}): ratio {:.2}",
            peer_times.p50(),
            peer_times.p99(),
            our_times.p50() / peer_times.p50()
        ),
        "≤ 1.5 × + 30 ms",
        our_times.p50() <= limit,
    );
    Ok(())
}

/// Creates a tree of small source files, unless an earlier run did.
fn create_tree() -> Result<PathBuf> {
    let tree = std::env::temp_dir().join(format!("selvedge-bench-tree-{FILES}"));
    if tree.join("done").exists() {
        return Ok(tree);
    }
    for n in 0..FILES {
        let folder = tree.join(format!("crate_{}/mod_{}", n / 1000, n / 50 % 20));
        if n % 50 == 0 {
            std::fs::create_dir_all(&folder)?;
        }
        let mut text = format!("// file {n}\n");
        for line in 0..40 {
            text.push_str(&format!(
                "pub fn function_{n}_{line}(x: u32) -> u32 {{ x.wrapping_mul({line}) }}\n"
            ));
        }
        if n % 100 == 0 {
            text.push_str(&format!("// needle_{n}\n"));
        }
        std::fs::write(folder.join(format!("file_{n}_{}.rs", n % 10)), text)?;
    }
    std::fs::write(tree.join("done"), "")?;
    Ok(tree)
}
