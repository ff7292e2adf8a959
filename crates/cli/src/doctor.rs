//! `selvedge doctor`: what this machine gives, found out by trying.

use std::env::consts;
use std::time::Instant;

use anyhow::Result;
use selvedge_config::Severity;
use selvedge_confine::{Feature, Strength};
use selvedge_protocol::SandboxPolicy;
use serde::Serialize;

use crate::Exit;
use crate::args::{DoctorArgs, LimitArgs, ModelArgs};
use crate::out::line;
use crate::providers;
use crate::setup::{Setup, lenient_configuration};

#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    ok: bool,
    details: String,
}

impl Finding {
    fn new(what: &'static str, ok: bool, details: impl Into<String>) -> Self {
        Self {
            what,
            ok,
            details: details.into(),
        }
    }
}

pub(crate) fn doctor(args: DoctorArgs) -> Result<Exit> {
    let (version, os, arch) = (env!("CARGO_PKG_VERSION"), consts::OS, consts::ARCH);
    let details = format!("selvedge {version} on {os} {arch}");
    let mut findings = vec![Finding::new("version", true, details)];
    // A file with an error is left out: everything else can still be checked.
    let setup = lenient_configuration(&args.place).and_then(|(configuration, found)| {
        findings.extend(found.iter().map(|one| match one.severity {
            Severity::Warning => Finding::new("configuration", true, format!("warning: {one}")),
            Severity::Error => Finding::new("configuration", false, one.to_string()),
        }));
        Setup::of(configuration, &args.place)
    });
    match setup {
        Ok(setup) => {
            if findings.iter().all(|finding| finding.ok) {
                findings.push(configuration(&setup));
            }
            findings.extend(walls(&setup));
            findings.extend(confinement(&setup));
            findings.push(servers(&setup));
            findings.push(model(&setup));
        }
        Err(error) => findings.push(Finding::new("configuration", false, format!("{error:#}"))),
    }
    findings.push(memory());
    let well = findings.iter().all(|finding| finding.ok);
    if args.json {
        line(&serde_json::to_string_pretty(&findings)?)?;
    } else {
        for finding in &findings {
            let Finding { what, ok, details } = finding;
            let mark = if *ok { "✓" } else { "✗" };
            line(&format!("{mark} {what:<14} {details}"))?;
        }
    }
    Ok(if well { Exit::Done } else { Exit::Failed })
}

fn servers(setup: &Setup) -> Finding {
    let (ok, details) = match setup.server_settings() {
        Ok(servers) if servers.is_empty() => (true, "none configured".to_owned()),
        Ok(servers) => {
            let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
            let enabled = servers.iter().filter(|server| server.options.enabled);
            let faults = enabled.filter_map(|server| {
                let fault = server.fault.as_ref()?;
                Some(format!("; {} cannot be used: {fault}", server.name))
            });
            let (names, faults) = (names.join(", "), faults.collect::<String>());
            let details = format!("{names} (`selvedge mcp list` tries them){faults}");
            (faults.is_empty(), details)
        }
        Err(error) => (false, format!("{error:#}")),
    };
    Finding::new("MCP servers", ok, details)
}

fn configuration(setup: &Setup) -> Finding {
    let file = setup.home.as_ref().map(|home| home.join("config.toml"));
    let unknown_pack = setup.offers().err();
    let details = match (&unknown_pack, file) {
        (Some(error), _) => format!("{error:#}"),
        (None, Some(file)) if file.exists() => format!("{}", file.display()),
        (None, Some(file)) => format!("defaults ({} is not there)", file.display()),
        (None, None) => "defaults (no home folder)".to_owned(),
    };
    Finding::new("configuration", unknown_pack.is_none(), details)
}

/// Both walls, each tried with a script that runs into it.
fn walls(setup: &Setup) -> Vec<Finding> {
    let harness = setup.harness(&LimitArgs::default(), None);
    let Ok(runtime) = crate::run::runtime() else {
        return vec![Finding::new("sandbox", false, "cannot start a runtime")];
    };
    let started = Instant::now();
    let value = runtime.block_on(harness.run("return 1 + 1")).output_json;
    let first = started.elapsed();
    let harness = harness.clone().with_limits(selvedge_protocol::Limits {
        timeout_ms: 50,
        ..harness.limits().clone()
    });
    let realm = runtime.block_on(harness.run(
        "let open = 0; try { Object.prototype.x = 1; open++ } catch {} try { (() => {}).constructor('return 1')(); open++ } catch {} return open",
    ));
    let started = Instant::now();
    let endless = runtime.block_on(harness.run("[].reverse.call({ length: 2 ** 53 - 1 })"));
    let stopped = started.elapsed();
    vec![
        Finding::new(
            "sandbox",
            value.as_deref() == Some("2"),
            format!(
                "the first script took {:.1} ms, loading the engine included",
                first.as_secs_f64() * 1e3
            ),
        ),
        Finding::new(
            "wall one",
            realm.output_json.as_deref() == Some("0"),
            "the realm is frozen, and no code comes from strings".to_owned(),
        ),
        Finding::new(
            "wall two",
            endless.error.is_some_and(|error| {
                error.code == selvedge_protocol::ErrorCode::ScriptTimeoutError
            }),
            format!(
                "a builtin that never ends was stopped {:.0} ms after its deadline",
                (stopped.as_secs_f64() * 1e3 - 50.0).max(0.0)
            ),
        ),
    ]
}

/// The wall around commands, as far as this kernel lets us build it and the configuration wants it.
fn confinement(setup: &Setup) -> Vec<Finding> {
    let support = selvedge_confine::Support::probe();
    let strength = support.strength(setup.config.weaker_wall);
    let landlock = match &support.landlock {
        Feature::Present(version) => format!("Landlock ({version})"),
        Feature::Missing(_) => "no Landlock".to_owned(),
    };
    let words = match &strength {
        _ if setup.config.sandbox_mode == SandboxPolicy::DangerFullAccess => {
            "not confined: the configuration says so".to_owned()
        }
        Ok(Strength::Namespaces) => format!("confined by namespaces, {landlock} and seccomp"),
        Ok(Strength::SharedProc) => {
            format!("confined by namespaces, {landlock} and seccomp; they see other processes")
        }
        Ok(Strength::Bubblewrap(path)) => format!("confined by {} and seccomp", path.display()),
        Ok(Strength::Landlock) => format!("confined by {landlock} and seccomp alone"),
        Err(error) => format!("{error}; `weaker_wall` in the configuration accepts less"),
    };
    let mut findings = vec![Finding::new("commands", strength.is_ok(), words)];
    for (what, feature) in [
        ("namespaces", &support.namespaces),
        ("own /proc", &support.proc),
    ] {
        if let Feature::Missing(why) = feature {
            let details = format!("missing: {why}");
            findings.push(Finding::new(what, strength.is_ok(), details));
        }
    }
    findings
}

/// The model that would be asked. That there is none is no fault: scripts run without.
fn model(setup: &Setup) -> Finding {
    let chosen = crate::run::runtime().and_then(|runtime| {
        runtime.block_on(providers::choose(&setup.config, &ModelArgs::default()))
    });
    let details = match chosen {
        Ok(choice) => {
            format!(
                "{} of {}, not asked (`selvedge models test`)",
                choice.model.name, choice.provider.name
            )
        }
        Err(error) => format!("none: {error}"),
    };
    Finding::new("model", true, details)
}

fn memory() -> Finding {
    let bytes = selvedge_sandbox::machine_memory();
    let details = match bytes {
        Some(bytes) => format!("{} MB, half of it for scripts", bytes >> 20),
        None => "unknown; scripts share 2048 MB".to_owned(),
    };
    Finding::new("memory", true, details)
}
