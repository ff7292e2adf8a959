//! `selvedge completions` and `selvedge man`: what shells and manuals need, from the definition of
//! the command line.

use anyhow::Result;
use clap::CommandFactory;

use crate::CliStatus;
use crate::args::{CompletionsArgs, ManArgs, SelvedgeCli};
use crate::output::{print_bytes, print_line};
use crate::problem::Problem;

pub(crate) fn completions(args: &CompletionsArgs) -> Result<CliStatus> {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut SelvedgeCli::command(),
        "selvedge",
        &mut script,
    );
    print_bytes(&script)?;
    Ok(CliStatus::Success)
}

/// Prints the page of the command, or writes one page per command to a folder.
pub(crate) fn man(args: &ManArgs) -> Result<CliStatus> {
    let command = SelvedgeCli::command();
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        print_bytes(&page)?;
        return Ok(CliStatus::Success);
    };
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
    written.map_err(|error| {
        Problem::new(format!("cannot write to {}: {error}", folder.display()))
            .hint("pass a folder that is writable")
    })?;
    print_line(&format!("wrote the pages to {}", folder.display()))?;
    Ok(CliStatus::Success)
}
