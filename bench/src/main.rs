//! `make bench`: every number the project promises, measured in one run, with the peers interleaved so
//! that a noisy machine is noisy for all. Prints a Markdown table; `--write FILE` keeps it.

mod agent;
mod commands;
mod loopback;
mod mcp;
mod measure;
mod models;
mod peers;
mod sandbox;
mod scripts;
mod search;
mod table;
mod tokens;

use anyhow::Result;

type Measure = fn(&mut table::Table) -> Result<()>;

const PARTS: [(&str, Measure); 7] = [
    ("sandbox", sandbox::measure),
    ("scripts", scripts::measure),
    ("commands", commands::measure),
    ("search", search::measure),
    ("mcp", mcp::measure),
    ("models", models::measure),
    ("agent", agent::measure),
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (file, only) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (None, None),
        ["tokens"] => return tokens::main(),
        ["--write", file] => (Some(file), None),
        ["--only", part] if PARTS.iter().any(|(name, _)| *name == part) => (None, Some(part)),
        _ => anyhow::bail!(
            "usage: selvedge-bench [tokens | --write FILE | --only sandbox|scripts|commands|search|mcp|models|agent]"
        ),
    };
    let mut table = table::Table::default();
    for (name, measure) in PARTS {
        if only.is_none_or(|only| only == name) {
            measure(&mut table)?;
        }
    }
    let text = table.render();
    print!("{text}");
    if let Some(file) = file {
        table::keep(file, &text)?;
        eprintln!("kept in {file}");
    }
    Ok(())
}

/// The command, built beside this program.
fn ours() -> Result<std::path::PathBuf> {
    let program = std::env::current_exe()?.with_file_name("selvedge");
    anyhow::ensure!(
        program.exists(),
        "build the command first: cargo build --release -p selvedge"
    );
    Ok(program)
}
