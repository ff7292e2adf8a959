//! `selvedge doctor`: what this machine gives, found out by trying.

use std::time::Instant;

use anyhow::Result;
use selvedge_confine::{Feature, Strength};
use serde::Serialize;

use crate::Exit;
use crate::args::{DoctorArgs, LimitArgs};
use crate::out::line;
use crate::setup::Setup;

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    ok: bool,
    details: String,
}

pub(crate) fn doctor(args: DoctorArgs) -> Result<Exit> {
    let mut findings = vec![Finding {
        what: "version",
        ok: true,
        details: format!(
            "selvedge {} on {} {}",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            std::env::consts::ARCH
        ),
    }];
    match Setup::new(&args.place) {
        Ok(setup) => {
            findings.push(configuration(&setup));
            findings.extend(walls(&setup));
        }
        Err(error) => findings.push(Finding { what: "configuration", ok: false, details: format!("{error:#}") }),
    }
    findings.extend(confinement());
    findings.push(memory());
    let well = findings.iter().all(|finding| finding.ok);
    if args.json {
        line(&serde_json::to_string_pretty(&findings)?)?;
    } else {
        for finding in &findings {
            line(&format!("{} {:<14} {}", if finding.ok { "✓" } else { "✗" }, finding.what, finding.details))?;
        }
    }
    Ok(if well { Exit::Done } else { Exit::Failed })
}

fn configuration(setup: &Setup) -> Finding {
    let file = setup.home.as_ref().map(|home| home.join("config.toml"));
    let details = match file {
        Some(file) if file.exists() => format!("{}", file.display()),
        Some(file) => format!("defaults ({} is not there)", file.display()),
        None => "defaults (no home folder)".to_owned(),
    };
    Finding { what: "configuration", ok: true, details }
}

/// Both walls, each tried with a script that runs into it.
fn walls(setup: &Setup) -> Vec<Finding> {
    let started = Instant::now();
    let harness = match setup.harness(&LimitArgs::default(), None) {
        Ok(harness) => harness,
        Err(error) => return vec![Finding { what: "sandbox", ok: false, details: format!("{error:#}") }],
    };
    let loaded = started.elapsed();
    let Ok(runtime) = crate::run::runtime() else {
        return vec![Finding { what: "sandbox", ok: false, details: "cannot start a runtime".to_owned() }];
    };
    let started = Instant::now();
    let value = runtime.block_on(harness.run("return 1 + 1")).output_json;
    let first = started.elapsed();
    let harness = harness.clone().with_limits(selvedge_protocol::Limits { timeout_ms: 50, ..harness.limits().clone() });
    let realm = runtime.block_on(harness.run(
        "let open = 0; try { Object.prototype.x = 1; open++ } catch {} try { (() => {}).constructor('return 1')(); open++ } catch {} return open",
    ));
    let started = Instant::now();
    let endless = runtime.block_on(harness.run("[].reverse.call({ length: 2 ** 53 - 1 })"));
    let stopped = started.elapsed();
    vec![
        Finding {
            what: "sandbox",
            ok: value.as_deref() == Some("2"),
            details: format!(
                "loaded in {:.1} ms, first script in {:.1} ms",
                loaded.as_secs_f64() * 1e3,
                first.as_secs_f64() * 1e3
            ),
        },
        Finding {
            what: "wall one",
            ok: realm.output_json.as_deref() == Some("0"),
            details: "the realm is frozen, and no code comes from strings".to_owned(),
        },
        Finding {
            what: "wall two",
            ok: endless.error.is_some_and(|error| error.code == selvedge_protocol::ErrorCode::ScriptTimeoutError),
            details: format!(
                "a builtin that never ends was stopped {:.0} ms after its deadline",
                (stopped.as_secs_f64() * 1e3 - 50.0).max(0.0)
            ),
        },
    ]
}

/// The wall around commands, as far as this kernel lets us build it.
fn confinement() -> Vec<Finding> {
    let support = selvedge_confine::Support::probe();
    let finding = |what, feature: &Feature| match feature {
        Feature::Present(details) => Finding { what, ok: true, details: details.clone() },
        Feature::Missing(why) => Finding { what, ok: false, details: format!("missing: {why}") },
    };
    let commands = match support.strength(None) {
        Ok(Strength::Namespaces) => "confined by namespaces, Landlock and seccomp".to_owned(),
        Ok(Strength::Bubblewrap(path)) => format!("confined by {} and seccomp", path.display()),
        Ok(Strength::Landlock) => "confined by Landlock and seccomp alone".to_owned(),
        Err(error) => format!("{error}; `weaker_wall` in the configuration accepts less"),
    };
    vec![
        Finding { what: "commands", ok: support.strength(None).is_ok(), details: commands },
        finding("namespaces", &support.namespaces),
        finding("landlock", &support.landlock),
    ]
}

fn memory() -> Finding {
    let bytes = selvedge_sandbox::machine_memory();
    let details = match bytes {
        Some(bytes) => format!("{} MB, half of it for scripts", bytes >> 20),
        None => "unknown; scripts share 2048 MB".to_owned(),
    };
    Finding { what: "memory", ok: true, details }
}
