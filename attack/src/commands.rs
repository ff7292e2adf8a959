//! Attacks on the judgement of commands: commands that run programs or write although they look
//! read-only. The rows of `data/commands.tsv` must never need no approval. A selection is also run,
//! without confinement and under the policy `untrusted`, next to programs that leave a mark.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::attempt::{Attempt, Verdict};
use crate::lab::Lab;

/// Rows whose script is also run: those that try to make `ls` mean `./5/ls`, or to call that.
const RUN_IF_CONTAINS: [&str; 2] = ["PATH", "./5/ls"];

/// The folder with programs that leave a mark, as a command could create it.
const EVIL_FOLDER: &str = "5";

/// Returns two attempts per row: the verdict, and for a selection the run.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    let rows = include_str!("../data/commands.tsv")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for row in rows {
        let (kind, command) = row.split_once('\t').with_context(|| row.to_owned())?;
        let argv: Vec<String> = match kind {
            "bash" => ["bash", "-c", command].map(str::to_owned).to_vec(),
            "words" => command.split(' ').map(str::to_owned).collect(),
            kind => anyhow::bail!("{kind} is neither bash nor words"),
        };
        let judged = argv.clone();
        attempts.push(Attempt::new(format!("judge {row}"), move |lab| {
            let report = judge(lab, &judged)?;
            Ok(Verdict::held_if(
                report["auto_approve"] == false,
                report.to_string(),
            ))
        }));
        if RUN_IF_CONTAINS.iter().any(|text| command.contains(text)) {
            attempts.push(Attempt::new(format!("run {row}"), move |lab| {
                run_without_wall(lab, &argv)
            }));
        }
    }
    Ok(attempts)
}

/// Returns the report of `selvedge check --command`.
pub(crate) fn judge(lab: &Lab, argv: &[String]) -> Result<Value> {
    let words = argv.iter().map(String::as_str);
    let args: Vec<&str> = ["check", "--command", "--json", "--"]
        .into_iter()
        .chain(words)
        .collect();
    let seen = lab.run(&args)?;
    serde_json::from_str(&seen.stdout).with_context(|| seen.output())
}

/// Runs a command that no one approves. The attack succeeds if a program leaves a mark.
fn run_without_wall(lab: &Lab, argv: &[String]) -> Result<Verdict> {
    let mark = lab.outside().join("mark");
    let program = format!("#!/bin/sh\necho ran >> '{}'\n", mark.display());
    for path in [&*format!("{EVIL_FOLDER}/ls"), "f"] {
        lab.write(path, &program)?;
        let path = lab.work().join(path);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    let source = format!(
        "return await tools.exec({{ command: {} }})",
        serde_json::to_string(argv)?
    );
    let (_, seen) = lab.script(
        &source,
        &["--approval", "untrusted", "--sandbox", "danger-full-access"],
    )?;
    Ok(Verdict::held_if(
        !mark.exists() && seen.ended_cleanly(),
        seen.output(),
    ))
}
