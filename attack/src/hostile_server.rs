//! Attacks by an MCP server that the user configured: schemas, names, lists and results that take
//! time or memory without end. Every command has to end soon, with little memory.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, Observation, observe};

/// A command that takes longer than this is stopped by the attack, in effect.
const MAX_TIME: Duration = Duration::from_secs(30);

/// A command that uses more memory than this harms the machine.
const MAX_MEMORY_KB: u64 = 700_000;

/// Schemas that the server can have, as `data/hostile_server.py` names them.
const SCHEMAS: [&str; 9] = [
    "allOf",
    "anyOf",
    "oneOf",
    "prefixItems",
    "fields",
    "chain",
    "self",
    "wide",
    "enum",
];

pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    const CALL: &str = "return await tools.mcp.hostile.act({ a: { x: { y: 1 } } }).then(() => 1, \
                        e => e.message)";
    let mut all = Vec::new();
    for schema in SCHEMAS {
        for args in [&["tools", "--ts"][..], &["tools", "--json"], &["tools"]] {
            let name = format!("the schema {schema} in `{}`", args.join(" "));
            all.push(Attempt::new(name, move |lab| {
                configure(lab, schema)?;
                Ok(is_cheap(&lab.run(args)?))
            }));
        }
        let name = format!("the schema {schema} in a call");
        all.push(Attempt::new(name, move |lab| {
            configure(lab, schema)?;
            script(lab, CALL)
        }));
        let name = format!("the schema {schema} in a check");
        all.push(Attempt::new(name, move |lab| {
            configure(lab, schema)?;
            lab.write("script.ts", CALL)?;
            lab.run(&["tools"])?;
            Ok(is_cheap(&lab.run(&["check", "script.ts"])?))
        }));
    }
    for how in ["long name", "same names", "large list"] {
        for args in [&["tools"][..], &["tools", "--ts"], &["mcp", "list"]] {
            let name = format!("{how} in `{}`", args.join(" "));
            all.push(Attempt::new(name, move |lab| {
                configure(lab, how)?;
                Ok(is_cheap(&lab.run(args)?))
            }));
        }
    }
    for (how, source) in [
        (
            "endless pages",
            "return await tools.listMcpResources({}).then(() => 1, e => e.message)",
        ),
        (
            "endless pages of one server",
            "return await tools.listMcpResources({ server: 'hostile' }).then(() => 1, \
             e => e.message)",
        ),
        ("many values", CALL),
        ("many requests", CALL),
    ] {
        all.push(Attempt::new(how, move |lab| {
            configure(lab, how)?;
            script(lab, source)
        }));
    }
    Ok(all)
}

/// Configures the hostile server as the user's own.
fn configure(lab: &Lab, how: &str) -> Result<()> {
    let program = lab.outside().join("server.py");
    std::fs::write(&program, include_str!("../data/hostile_server.py"))?;
    let args = json!([program, how]);
    // A JSON list is valid TOML.
    let server = format!(
        "[mcp_servers.hostile]\ncommand = \"python3\"\nargs = {args}\ntool_timeout_sec = 10\n"
    );
    std::fs::write(lab.home().join("config.toml"), server)?;
    Ok(())
}

fn script(lab: &Lab, source: &str) -> Result<Verdict> {
    let command = lab.selvedge(&["run", "--json", "--timeout", "40s", "-"]);
    let seen = observe(command, source)?;
    let lines = seen.stderr.lines().count();
    Ok(match is_cheap(&seen) {
        Verdict::Held if lines > 1000 => Verdict::Broken(format!("{lines} lines were printed")),
        verdict => verdict,
    })
}

fn is_cheap(seen: &Observation) -> Verdict {
    let kept =
        seen.ended_cleanly() && seen.elapsed < MAX_TIME && seen.peak_memory_kb < MAX_MEMORY_KB;
    let output: String = seen.stderr.chars().take(1000).collect();
    Verdict::held_if(
        kept,
        format!("{:?}, {} KB: {output}", seen.elapsed, seen.peak_memory_kb),
    )
}
