//! `selvedge check`: what can be said of a script without running it.

use anyhow::Result;

use crate::Exit;
use crate::args::{CheckArgs, LimitArgs};
use crate::out::line;
use crate::run::{read_source, script_problem};
use crate::setup::Setup;

pub(crate) fn check(args: CheckArgs) -> Result<Exit> {
    let setup = Setup::new(&args.place)?;
    let (name, source) = read_source(Some(&args.file), None)?;
    let report = setup.harness(&LimitArgs::default())?.check(&source);
    if args.json {
        line(&serde_json::to_string(&report)?)?;
    } else {
        for error in &report.errors {
            script_problem(error, &name, &source).print();
        }
        if report.valid {
            line(&format!("ok: {} tool calls can be seen", report.calls.len()))?;
        }
        for call in &report.calls {
            line(&format!(
                "  line {:>3}  {}{}",
                call.line,
                call.tool,
                if call.read_only { "  (reads only)" } else { "" }
            ))?;
        }
    }
    Ok(if report.valid { Exit::Done } else { Exit::NotStarted })
}
