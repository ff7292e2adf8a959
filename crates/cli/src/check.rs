//! `selvedge check`: checks a script or a command without running it.

use anyhow::Result;
use selvedge_mcp::ServerRequestHandlers;
use selvedge_protocol::SandboxPolicy;
use selvedge_text::count_noun;
use selvedge_toolbox::CommandSafety;
use selvedge_tools::{PolicyVerdict, apply_policy};
use serde_json::json;

use crate::CliStatus;
use crate::args::{CheckArgs, ScriptLimitArgs};
use crate::output::{print_json_text, print_line};
use crate::problem::Problem;
use crate::run::{read_source, script_problem};
use crate::servers::{wait_for_servers, warn_of_start_failures};
use crate::setup::CliSetup;

pub(crate) fn check(args: CheckArgs) -> Result<CliStatus> {
    if args.command {
        return check_command(&args);
    }
    let setup = CliSetup::new(&args.workspace)?.with_journal_if_possible(&args.workspace);
    let (name, source) = read_source(args.file.as_deref(), None, "")?;
    let servers = setup.servers(ServerRequestHandlers::default())?;
    let tools = setup.built_in_tools()?;
    let harness = setup.harness(&ScriptLimitArgs::default(), None);
    let (report, failures) = crate::run::runtime()?.block_on(async {
        let starting = servers.ensure_catalogues_for_script(&harness, &source);
        let failures = wait_for_servers(&servers, starting).await;
        let report = harness
            .with_tools(servers.script_registry(&tools))
            .check(&source);
        servers.stop().await;
        (report, failures)
    });
    if args.json {
        print_json_text(&serde_json::to_string(&report)?)?;
    } else {
        for error in &report.errors {
            script_problem(error, &name, &source).print();
        }
        if report.valid {
            let calls = count_noun(report.calls.len(), "tool call");
            print_line(&format!("ok: {calls} found"))?;
        }
        for call in &report.calls {
            print_line(&format!(
                "  line {:>3}  {}{}",
                call.line,
                call.tool,
                match (&call.unavailable, call.read_only) {
                    (Some(_), _) => "  (not checked: the server is unavailable)",
                    (None, true) => "  (read-only)",
                    (None, false) => "",
                }
            ))?;
        }
    }
    warn_of_start_failures(&failures);
    Ok(if report.valid {
        CliStatus::Success
    } else {
        CliStatus::NotStarted
    })
}

/// Reports the class of a command, and what `selvedge run` would do with it under the policy and
/// the sandbox of these flags.
fn check_command(args: &CheckArgs) -> Result<CliStatus> {
    let setup = CliSetup::new(&args.workspace)?;
    let classification = setup.toolbox.commands.classify_command(&args.argv);
    let (class, reason) = match &classification.safety {
        CommandSafety::ReadOnly => ("read-only", None),
        CommandSafety::Unknown { reason } => ("unknown", Some(reason)),
        CommandSafety::Dangerous { reason, .. } => ("dangerous", Some(reason)),
    };
    let tools = setup.built_in_tools()?;
    let exec = tools
        .get("exec")
        .ok_or_else(|| Problem::new("the tool pack has no exec").hint("pass another --pack"))?;
    let risk = exec.tool.risk(&json!({"command": args.argv}));
    let (policy, sandbox) = (setup.config.approval_policy, setup.config.sandbox_mode);
    let (policy_name, sandbox_name) = (json!(policy), json!(sandbox));
    let (policy_name, sandbox_name) = (
        policy_name.as_str().unwrap_or_default(),
        sandbox_name.as_str().unwrap_or_default(),
    );
    let (verdict, consequence) = match apply_policy(policy, risk) {
        PolicyVerdict::Run => (
            "runs",
            format!("runs without approval under `{policy_name}`"),
        ),
        PolicyVerdict::Ask { .. } => (
            "needs-approval",
            format!("needs approval under `{policy_name}`"),
        ),
        PolicyVerdict::Deny { .. } => ("denied", format!("is denied under `{policy_name}`")),
    };
    let place = match sandbox {
        SandboxPolicy::DangerFullAccess => "not confined".to_owned(),
        _ => format!("confined to `{sandbox_name}`"),
    };
    if args.json {
        let report = json!({
            "class": class,
            "auto_approve": classification.safety == CommandSafety::ReadOnly,
            "dangerous": matches!(classification.safety, CommandSafety::Dangerous { .. }),
            "reason": reason,
            "commands": classification.commands,
            "approval_policy": policy,
            "sandbox_mode": sandbox,
            "verdict": verdict,
        });
        print_json_text(&report.to_string())?;
    } else {
        let reason = reason
            .map(|reason| format!("{reason}; "))
            .unwrap_or_default();
        print_line(&format!("{class}: {reason}{consequence}, {place}"))?;
    }
    Ok(CliStatus::Success)
}
