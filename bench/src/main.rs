//! `make bench`: measures every performance target in one run. Measurements of the peers are
//! interleaved, so that load from other programs affects all. Prints a Markdown table; `--write
//! FILE` also writes it into a file.

mod agent;
mod commands;
mod documents;
mod mcp;
mod measure;
mod mock_agent;
mod models;
mod peers;
mod sandbox;
mod scripts;
mod search;
mod server;
mod table;
mod tokens;

use anyhow::Result;

type MeasureFn = fn(&mut table::BenchTable) -> Result<()>;

/// The groups of measurements, by their names for `--only`.
const BENCHMARKS: [(&str, MeasureFn); 9] = [
    ("sandbox", sandbox::measure),
    ("scripts", scripts::measure),
    ("commands", commands::measure),
    ("search", search::measure),
    ("documents", documents::measure),
    ("mcp", mcp::measure),
    ("models", models::measure),
    ("agent", agent::measure),
    ("server", server::measure),
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (file, only) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (None, None),
        ["tokens"] => return tokens::main(),
        ["server", load] => return server::main(load, None),
        ["server", load, sessions] => return server::main(load, Some(sessions)),
        ["--write", file] => (Some(file), None),
        ["--only", part] if BENCHMARKS.iter().any(|(name, _)| *name == part) => (None, Some(part)),
        _ => anyhow::bail!(
            "usage: selvedge-bench [tokens | server LOAD [SESSIONS] | --write FILE | \
             --only sandbox|scripts|commands|search|documents|mcp|models|agent|server]"
        ),
    };
    let mut table = table::BenchTable::default();
    for (name, measure) in BENCHMARKS {
        if only.is_none_or(|only| only == name) {
            measure(&mut table)?;
        }
    }
    let text = table.render();
    print!("{text}");
    if let Some(file) = file {
        table::write_table(file, &text)?;
        eprintln!("wrote {file}");
    }
    Ok(())
}

/// Returns the path of the `selvedge` binary, which is built into the folder of this program.
fn selvedge_binary() -> Result<std::path::PathBuf> {
    let program = std::env::current_exe()?.with_file_name("selvedge");
    anyhow::ensure!(
        program.exists(),
        "selvedge is not built: run `cargo build --release -p selvedge`"
    );
    Ok(program)
}
