//! `make attack`: runs every collected attack against a `selvedge` binary and prints a table. The
//! exit status is 1 if an attack succeeded or could not be tried.
//!
//! Each class of attacks is a module with a function `attempts`. A class with many similar cases
//! keeps them as rows of a file in `data/`.

mod approvals;
mod attempt;
mod commands;
mod confinement;
mod credential_theft;
mod credentials;
mod discovery;
mod display;
mod front_end;
mod git;
mod hostile_http;
mod hostile_server;
mod implicit_reads;
mod journal_version;
mod lab;
mod loopback;
mod mcp_client;
mod mcp_http;
mod mcp_tools;
mod model_server;
mod protected_paths;
mod pty;
mod quoted_blocks;
mod recording_model;
mod scripts;
mod surroundings;
mod trust;
mod web_pages;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use attempt::Attempt;

/// A name for `--only`, and the function that returns the attempts.
type AttackClass = (&'static str, fn() -> Result<Vec<Attempt>>);

/// The classes of attacks.
const CLASSES: &[AttackClass] = &[
    ("approvals", approvals::attempts),
    ("commands", commands::attempts),
    ("confinement", confinement::attempts),
    ("credential_theft", credential_theft::attempts),
    ("credentials", credentials::attempts),
    ("discovery", discovery::attempts),
    ("display", display::attempts),
    ("front_end", front_end::attempts),
    ("git", git::attempts),
    ("hostile_http", hostile_http::attempts),
    ("hostile_server", hostile_server::attempts),
    ("implicit_reads", implicit_reads::attempts),
    ("journal_version", journal_version::attempts),
    ("mcp_http", mcp_http::attempts),
    ("mcp_tools", mcp_tools::attempts),
    ("protected_paths", protected_paths::attempts),
    ("quoted_blocks", quoted_blocks::attempts),
    ("scripts", scripts::attempts),
    ("surroundings", surroundings::attempts),
    ("trust", trust::attempts),
    ("web_pages", web_pages::attempts),
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
    let (mut total, mut broken) = (0, 0);
    println!("| class | attempts | succeeded | not tried | seconds |\n|---|---|---|---|---|");
    for (class, attempts) in CLASSES {
        if only.is_some_and(|only| only != *class) {
            continue;
        }
        let row = attempt::run_class(class, attempts()?, &binary);
        println!(
            "| {class} | {} | {} | {} | {:.0} |",
            row.count,
            row.broken.len(),
            row.not_tried.len(),
            row.seconds
        );
        total += row.count;
        broken += row.broken.len();
        failures.extend(row.broken);
        failures.extend(row.not_tried);
    }
    let not_tried = failures.len() - broken;
    println!("| **all** | {total} | {broken} | {not_tried} | |");
    for failure in &failures {
        println!("\nfailed: {failure}");
    }
    anyhow::ensure!(total > 0, "no attack was run");
    Ok(if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
