//! `make attack`: runs every collected attack against a `selvedge` binary and prints a table. The
//! exit status is 1 if an attack succeeded or could not be tried.
//!
//! Each class of attacks is a module with a function `attempts`. A class with many similar cases
//! keeps them as rows of a file in `data/`.

mod approvals;
mod attempt;
mod display;
mod journal_version;
mod lab;
mod model_server;
mod pty;
mod scripts;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use attempt::Attempt;

/// Returns the attempts of a class.
type ClassFn = fn() -> Result<Vec<Attempt>>;

/// The classes of attacks, by their names for `--only`.
const CLASSES: &[(&str, ClassFn)] = &[
    ("scripts", scripts::attempts),
    ("approvals", approvals::attempts),
    ("display", display::attempts),
    ("journal_version", journal_version::attempts),
];

fn main() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (binary, only) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--binary", binary] => (binary, None),
        ["--binary", binary, "--only", class] => (binary, Some(class)),
        _ => anyhow::bail!("usage: selvedge-attack --binary FILE [--only CLASS]"),
    };
    let binary = PathBuf::from(binary)
        .canonicalize()
        .with_context(|| format!("cannot find {binary}"))?;
    let mut failures = Vec::new();
    let mut total = 0;
    println!("| class | attempts | succeeded | seconds |\n|---|---|---|---|");
    for (class, attempts) in CLASSES {
        if only.is_some_and(|only| only != *class) {
            continue;
        }
        let row = attempt::run_class(class, attempts()?, &binary);
        println!(
            "| {class} | {} | {} | {:.0} |",
            row.count,
            row.broken.len(),
            row.seconds
        );
        total += row.count;
        failures.extend(row.broken);
    }
    println!("| **all** | {total} | {} | |", failures.len());
    for failure in &failures {
        println!("\nattack succeeded: {failure}");
    }
    anyhow::ensure!(total > 0, "no attack was run");
    Ok(if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
