//! `selvedge check`: checks a script or a command without running it.

use anyhow::Result;
use selvedge_mcp::Asked;
use selvedge_toolbox::{Safety, judge_command};
use serde_json::json;

use crate::Exit;
use crate::args::{CheckArgs, LimitArgs};
use crate::out::line;
use crate::run::{read_source, script_problem};
use crate::setup::Setup;

pub(crate) fn check(args: CheckArgs) -> Result<Exit> {
    if args.command {
        return check_command(&args);
    }
    let setup = Setup::new(&args.place)?.with_journal_if_possible(&args.place);
    let (name, source) = read_source(args.file.as_deref(), None)?;
    let servers = setup.servers(Asked::default())?;
    let tools = setup.all_tools()?;
    let harness = setup.harness(&LimitArgs::default(), None);
    let report = crate::run::runtime()?.block_on(async {
        servers.prepare_for(&harness, &source).await;
        let report = harness.with_tools(servers.onto(&tools)).check(&source);
        servers.stop().await;
        report
    });
    if args.json {
        line(&serde_json::to_string(&report)?)?;
    } else {
        for error in &report.errors {
            script_problem(error, &name, &source).print();
        }
        if report.valid {
            line(&format!("ok: {} tool calls found", report.calls.len()))?;
        }
        for call in &report.calls {
            line(&format!(
                "  line {:>3}  {}{}",
                call.line,
                call.tool,
                if call.read_only { "  (read-only)" } else { "" }
            ))?;
        }
    }
    Ok(if report.valid {
        Exit::Done
    } else {
        Exit::NotStarted
    })
}

fn check_command(args: &CheckArgs) -> Result<Exit> {
    let judgement = judge_command(&args.argv);
    let (text, reason) = match &judgement.safety {
        Safety::ReadOnly => ("needs no approval".to_owned(), None),
        Safety::Unknown { why } => (format!("needs approval: {why}"), Some(why)),
        Safety::Dangerous { why, .. } => (format!("dangerous: {why}"), Some(why)),
    };
    if args.json {
        let report = json!({
            "auto_approve": judgement.safety == Safety::ReadOnly,
            "dangerous": matches!(judgement.safety, Safety::Dangerous { .. }),
            "reason": reason,
            "commands": judgement.commands,
        });
        line(&report.to_string())?;
    } else {
        line(&text)?;
    }
    Ok(Exit::Done)
}
