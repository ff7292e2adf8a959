//! `make bench`: every number the project promises, measured in one run, with the peers interleaved so
//! that a noisy machine is noisy for all. Prints a Markdown table; `--write FILE` keeps it.

mod measure;
mod peers;
mod sandbox;
mod scripts;
mod table;

use anyhow::Result;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let file = match (args.next().as_deref(), args.next()) {
        (Some("--write"), Some(file)) => Some(file),
        (None, _) => None,
        _ => anyhow::bail!("usage: selvedge-bench [--write FILE]"),
    };
    let mut table = table::Table::default();
    sandbox::measure(&mut table)?;
    scripts::measure(&mut table)?;
    let text = table.render();
    print!("{text}");
    if let Some(file) = file {
        table::keep(&file, &text)?;
        eprintln!("kept in {file}");
    }
    Ok(())
}
