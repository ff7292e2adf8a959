//! `selvedge doctor`: checks the configuration, the sandbox, the confinement of commands, the MCP
//! servers, the models, the keyring and git on this machine.

use std::collections::HashSet;
use std::env::consts;
use std::io::ErrorKind::{FileTooLarge, NotFound, QuotaExceeded, StorageFull};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::join_all;
use selvedge_config::Severity;
use selvedge_confine::{ConfinementBackend, FeatureSupport};
use selvedge_journal::JournalLocation;
use selvedge_models::{ModelError, Provider};
use selvedge_protocol::{ModelErrorKind, SandboxPolicy};
use selvedge_server::{HostedCheck, HostedCheckState};
use serde::Serialize;
use serde_json::json;
use tokio::time::error::Elapsed;

use crate::CliStatus;
use crate::args::{DoctorArgs, ModelChoiceArgs, ScriptLimitArgs};
use crate::keyring::KeyringState;
use crate::output::{print_json_text, print_marked};
use crate::problem::Problem;
use crate::providers::{self, ModelChoice};
use crate::serve_errors::names_server_files;
use crate::setup::{CliSetup, load_configuration_with_diagnostics};
use crate::stored_keys::KeyStore;

/// The answer of a provider to a request for its models, or that it took too long.
type ListedModels = Result<Result<Vec<String>, ModelError>, Elapsed>;

/// Time limit of a provider for its answer.
const MODEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Result of one check.
#[derive(Debug)]
struct DoctorFinding {
    what: &'static str,
    status: FindingStatus,
    details: String,
}

/// How a check ended. The names are part of the JSON output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum FindingStatus {
    Passed,
    /// Nothing was checked, because the check would start programs.
    NotChecked,
    Warning,
    Failed,
}

impl DoctorFinding {
    fn new(what: &'static str, ok: bool, details: impl Into<String>) -> Self {
        let status = match ok {
            true => FindingStatus::Passed,
            false => FindingStatus::Failed,
        };
        Self {
            what,
            status,
            details: details.into(),
        }
    }

    fn has_passed(&self) -> bool {
        self.status != FindingStatus::Failed
    }

    fn to_json(&self) -> serde_json::Value {
        json!({
            "what": self.what,
            "ok": self.has_passed(),
            "status": self.status,
            "details": self.details,
        })
    }
}

pub(crate) fn doctor(args: DoctorArgs) -> Result<CliStatus> {
    let (version, os, arch) = (env!("CARGO_PKG_VERSION"), consts::OS, consts::ARCH);
    let details = format!("selvedge {version} on {os} {arch}");
    let mut findings = vec![DoctorFinding::new("version", true, details)];
    // A file with an error is ignored, so that everything else is still checked.
    let setup = load_configuration_with_diagnostics(&args.workspace).and_then(
        |(configuration, diagnostics)| {
            let findings_of_files = diagnostics.iter().map(|one| match one.severity {
                Severity::Warning => DoctorFinding {
                    what: "configuration",
                    status: FindingStatus::Warning,
                    details: format!("warning: {one}"),
                },
                Severity::Error => DoctorFinding::new("configuration", false, one.to_string()),
            });
            findings.extend(findings_of_files);
            CliSetup::from_config_and_flags(configuration, &args.workspace)
        },
    );
    match setup {
        Ok(setup) => {
            if findings.iter().all(DoctorFinding::has_passed) {
                findings.push(check_configuration(&setup));
            }
            findings.extend(check_setup(&setup));
        }
        Err(error) => findings.push(DoctorFinding::new(
            "configuration",
            false,
            format!("{error:#}"),
        )),
    }
    findings.extend(selvedge_config::home().map(|home| check_folder(&home)));
    findings.push(check_keyring());
    findings.push(check_git(selvedge_toolbox::system_git()));
    findings.push(check_memory());
    let all_ok = findings.iter().all(DoctorFinding::has_passed);
    if args.json {
        let findings: Vec<_> = findings.iter().map(DoctorFinding::to_json).collect();
        print_json_text(&serde_json::to_string_pretty(&findings)?)?;
    } else {
        for finding in &findings {
            let DoctorFinding {
                what,
                status,
                details,
            } = finding;
            let (mark, colour) = match status {
                FindingStatus::Passed => ("✓", "32"),
                FindingStatus::NotChecked => ("–", "2"),
                FindingStatus::Warning => ("!", "33"),
                FindingStatus::Failed => ("✗", "31"),
            };
            print_marked(mark, colour, &format!("{what:<14} {details}"))?;
        }
    }
    Ok(if all_ok {
        CliStatus::Success
    } else {
        CliStatus::Failed
    })
}

/// Checks what the configuration of a folder selects.
fn check_setup(setup: &CliSetup) -> Vec<DoctorFinding> {
    let mut findings = check_sandbox(setup);
    findings.extend(check_confinement(setup));
    findings.push(check_servers(setup));
    findings.extend(check_journal(setup));
    findings.extend(check_models(setup));
    findings
}

/// Checks a folder for the agent server, on a thread that may block. Clients do not see details
/// that name other files of the server.
pub(crate) fn check_for_server(setup: &CliSetup, folder: &str) -> Vec<HostedCheck> {
    let mut findings = check_setup(setup);
    findings.push(check_memory());
    let checks = findings.into_iter().map(|finding| HostedCheck {
        what: finding.what.to_owned(),
        state: match finding.status {
            FindingStatus::Passed => HostedCheckState::Passed,
            FindingStatus::NotChecked => HostedCheckState::NotChecked,
            FindingStatus::Warning => HostedCheckState::Warning,
            FindingStatus::Failed => HostedCheckState::Failed,
        },
        details: shown_details(&finding, folder),
    });
    checks.collect()
}

/// Returns what clients see of a finding: its details up to the first that names other files of the
/// server.
fn shown_details(finding: &DoctorFinding, folder: &str) -> String {
    let parts = finding.details.split("; ");
    let shown = parts.take_while(|part| !names_server_files(part, folder));
    let shown: Vec<&str> = shown.collect();
    match (shown.is_empty(), finding.status) {
        (false, _) => shown.join("; "),
        (true, FindingStatus::Passed) => "no problem was found".to_owned(),
        (true, _) => {
            "run `selvedge doctor` on the machine of the server for the details".to_owned()
        }
    }
}

fn check_servers(setup: &CliSetup) -> DoctorFinding {
    let (status, details) = match setup.server_settings() {
        Ok(servers) if servers.is_empty() => (FindingStatus::Passed, "none configured".to_owned()),
        Ok(servers) => {
            let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
            let enabled = servers.iter().filter(|server| server.options.enabled);
            let faults = enabled.filter_map(|server| {
                let fault = server.config_error.as_ref()?;
                let (name, reason, hint) = (&server.name, &fault.reason, &fault.hint);
                Some(format!("; {name} cannot be used: {reason}; {hint}"))
            });
            let (names, faults) = (names.join(", "), faults.collect::<String>());
            let details =
                format!("{names}; not started: run `selvedge mcp list` to start them{faults}");
            let status = match faults.is_empty() {
                true => FindingStatus::NotChecked,
                false => FindingStatus::Failed,
            };
            (status, details)
        }
        Err(error) => (FindingStatus::Failed, format!("{error:#}")),
    };
    DoctorFinding {
        what: "MCP servers",
        status,
        details,
    }
}

/// Opens the journal, if there is one.
fn check_journal(setup: &CliSetup) -> Option<DoctorFinding> {
    let home = setup.home.as_ref()?;
    let location = crate::journal::journal_location(home, &setup.config.journal);
    let database = location.as_ref().ok().and_then(JournalLocation::database);
    let file = home.join("journal.sqlite");
    if location.is_ok() && database.is_none() && !file.exists() {
        return None;
    }
    let name = database.map_or_else(|| file.display().to_string(), ToString::to_string);
    // SQLite opens a file that cannot be written, too. Checked before the journal is open, because
    // closing the file would release the locks of the process.
    let writable = match &database {
        Some(_) => Ok(()),
        None => std::fs::File::options().append(true).open(&file).map(drop),
    };
    let opened = writable
        .map_err(|error| {
            Problem::new(format!("cannot write {}: {error}", file.display()))
                .hint("make it writable, or set SELVEDGE_HOME to another folder")
                .into()
        })
        .and_then(|()| crate::journal::open_journal(home, &setup.config.journal));
    let details = match &opened {
        Ok(_) => format!("{name} can be written"),
        Err(error) => {
            let problem = Problem::from_error(error);
            let hints = problem.hints().iter().map(|hint| format!("; {hint}"));
            format!("{problem}{}", hints.collect::<String>())
        }
    };
    Some(DoctorFinding::new("journal", opened.is_ok(), details))
}

fn check_configuration(setup: &CliSetup) -> DoctorFinding {
    let file = setup.home.as_ref().map(|home| home.join("config.toml"));
    let unknown_pack = setup.tool_filter().err();
    let details = match (&unknown_pack, file) {
        (Some(error), _) => format!("{error:#}"),
        (None, Some(file)) if file.exists() => format!("{}", file.display()),
        (None, Some(file)) => format!("defaults ({} does not exist)", file.display()),
        (None, None) => "defaults (no home folder)".to_owned(),
    };
    DoctorFinding::new("configuration", unknown_pack.is_none(), details)
}

/// Runs a script, one that tries to change the realm, and one that never ends.
fn check_sandbox(setup: &CliSetup) -> Vec<DoctorFinding> {
    let harness = setup.harness(&ScriptLimitArgs::default(), None);
    let Ok(runtime) = crate::run::runtime() else {
        return vec![DoctorFinding::new(
            "sandbox",
            false,
            "cannot start the async runtime",
        )];
    };
    let started = Instant::now();
    let first = runtime.block_on(harness.run("return 1 + 1"));
    let first_ms = started.elapsed().as_secs_f64() * 1e3;
    let realm = runtime.block_on(harness.run(
        "let open = 0; try { Object.prototype.x = 1; open++ } catch {} \
         try { (() => {}).constructor('return 1')(); open++ } catch {} return open",
    ));
    // Only the endless script has the short limit: on a busy machine it ends any script.
    let harness = harness.clone().with_limits(selvedge_protocol::Limits {
        timeout_ms: 50,
        ..harness.limits().clone()
    });
    let started = Instant::now();
    let endless = runtime.block_on(harness.run("[].reverse.call({ length: 2 ** 53 - 1 })"));
    let late_ms = (started.elapsed().as_secs_f64() * 1e3 - 50.0).max(0.0);
    let runs = first.output_json.as_deref() == Some("2");
    let is_frozen = realm.output_json.as_deref() == Some("0");
    let is_stopped = endless
        .error
        .is_some_and(|error| error.code == selvedge_protocol::ErrorCode::ScriptTimeoutError);
    let sandbox = match first.error {
        Some(error) => error.message,
        None => format!("ran a script in {first_ms:.1} ms, including the start of the engine"),
    };
    let realm = match (is_frozen, realm.error) {
        (true, _) => "built-ins are frozen, and no code can be created from strings".to_owned(),
        (false, Some(error)) => format!("not checked: {}", error.message),
        (false, None) => "a script could change built-ins or create code from strings".to_owned(),
    };
    let deadline = match is_stopped {
        true => format!("stopped an endless built-in {late_ms:.0} ms after its deadline"),
        false => "an endless built-in was not stopped at its deadline".to_owned(),
    };
    vec![
        DoctorFinding::new("sandbox", runs, sandbox),
        DoctorFinding::new("realm", is_frozen, realm),
        DoctorFinding::new("deadline", is_stopped, deadline),
    ]
}

/// Reports the confinement of commands that this kernel and the configuration allow.
fn check_confinement(setup: &CliSetup) -> Vec<DoctorFinding> {
    let support = selvedge_confine::ConfinementSupport::probe();
    let strength = support.strongest_backend(setup.config.weaker_confinement);
    let landlock = match &support.landlock {
        FeatureSupport::Present(version) => format!("Landlock ({version})"),
        FeatureSupport::Missing(_) => "no Landlock".to_owned(),
    };
    let details = match &strength {
        _ if setup.config.sandbox_mode == SandboxPolicy::DangerFullAccess => {
            "not confined: sandbox_mode is danger-full-access".to_owned()
        }
        Ok(ConfinementBackend::Namespaces) => {
            format!("confined by namespaces, {landlock} and seccomp")
        }
        Ok(ConfinementBackend::SharedProc) => {
            format!("confined by namespaces, {landlock} and seccomp; other processes are visible")
        }
        Ok(ConfinementBackend::Bubblewrap(path)) => {
            format!("confined by {} and seccomp", path.display())
        }
        Ok(ConfinementBackend::Landlock) => format!("confined by {landlock} and seccomp only"),
        Err(error) => {
            format!(
                "{error}; install bwrap, or set `weaker_confinement = \"landlock\"` in config.toml"
            )
        }
    };
    let status = match &strength {
        _ if setup.config.sandbox_mode == SandboxPolicy::DangerFullAccess => FindingStatus::Warning,
        Ok(_) => FindingStatus::Passed,
        Err(_) => FindingStatus::Failed,
    };
    let mut findings = vec![DoctorFinding {
        what: "commands",
        status,
        details,
    }];
    for (what, feature) in [
        ("namespaces", &support.namespaces),
        ("private /proc", &support.private_proc),
    ] {
        if let FeatureSupport::Missing(why) = feature {
            findings.push(DoctorFinding {
                what,
                status: match strength {
                    Ok(_) => FindingStatus::Warning,
                    Err(_) => FindingStatus::Failed,
                },
                details: format!("missing: {why}"),
            });
        }
    }
    findings
}

/// Checks the model that agents would use, and those that the configuration names for environments
/// and for the memory.
fn check_models(setup: &CliSetup) -> Vec<DoctorFinding> {
    let config = &setup.config;
    let environments = config.environments.values().map(|environment| {
        Ok(ModelChoiceArgs {
            model: environment.model.clone(),
            provider: environment.model_provider.clone(),
        })
    });
    let memory = config.memory.model.iter();
    let memory = memory.map(|name| providers::split_model_name(config, name));
    let default = std::iter::once(Ok(ModelChoiceArgs::default()));
    let checks = default
        .chain(environments)
        .chain(memory)
        .map(|args| async move {
            let choice = providers::choose_model_without_asking(config, &args?).await?;
            let client = choice.client()?;
            let listed = tokio::time::timeout(MODEL_TIMEOUT, client.list_models()).await;
            anyhow::Ok((choice, listed))
        });
    let mut findings: Vec<DoctorFinding> = match crate::run::runtime() {
        Ok(runtime) => {
            let checked = runtime.block_on(join_all(checks)).into_iter();
            checked.map(model_finding).collect()
        }
        Err(error) => vec![model_finding(Err(error))],
    };
    // Several settings may name the same model.
    let mut known = HashSet::new();
    findings.retain(|finding| known.insert(finding.details.clone()));
    findings
}

/// Describes a model and the answer of its provider to a request for its models, which costs
/// nothing. No model is not a failure: scripts need none.
fn model_finding(checked: Result<(ModelChoice, ListedModels)>) -> DoctorFinding {
    let (choice, listed) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            let problem = Problem::from_error(&error);
            let hint = problem.hints().first();
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            return DoctorFinding {
                what: "model",
                status: FindingStatus::Warning,
                details: format!("{problem}{hint}"),
            };
        }
    };
    let (model, provider) = (&choice.model.name, &choice.provider.name);
    let address = choice.provider.address();
    let failure = match listed {
        Ok(Ok(names)) if !providers::may_offer_model(&names, model) => {
            return DoctorFinding {
                what: "model",
                status: FindingStatus::Warning,
                details: format!(
                    "{model} is not in the list of {provider} at {address}; run `selvedge models \
                     list --provider {provider}`"
                ),
            };
        }
        Ok(Ok(_)) => None,
        Ok(Err(error)) => match error.kind {
            ModelErrorKind::Network | ModelErrorKind::Auth | ModelErrorKind::Quota => Some(
                crate::models::request_problem(&choice.provider, error.kind, &error.message, None),
            ),
            // It answered. Not every provider lists its models.
            _ => None,
        },
        Err(_) => {
            let seconds = MODEL_TIMEOUT.as_secs();
            Some(Problem::new(format!(
                "{provider} did not answer within {seconds} s"
            )))
        }
    };
    let details = match &failure {
        None => {
            let place = key_place(&choice.provider);
            format!(
                "{model} of {provider} at {address} can be reached{place}; run `selvedge models \
                 test` to ask the model"
            )
        }
        Some(problem) => {
            let hints = problem.hints().iter().map(|hint| format!("; {hint}"));
            let hints = hints.collect::<String>();
            format!("{model} of {provider} at {address} cannot be used: {problem}{hints}")
        }
    };
    DoctorFinding::new("model", failure.is_none(), details)
}

/// Says where the key of a provider is; empty if it has none.
fn key_place(provider: &Provider) -> String {
    let found = providers::find_key(provider).ok().flatten();
    let place = found.map(|found| format!("; its key is from {}", found.origin.describe()));
    place.unwrap_or_default()
}

/// Asks the system keyring for an entry, and says where keys are stored.
fn check_keyring() -> DoctorFinding {
    let unusable = |problem: Problem| {
        let hints = problem.hints().iter().map(|hint| format!("; {hint}"));
        let hints = hints.collect::<String>();
        let details = format!("{problem}{hints}, or export keys such as OPENAI_API_KEY");
        (FindingStatus::Warning, details)
    };
    let (status, details) = match crate::keyring::state() {
        KeyringState::Usable => (
            FindingStatus::Passed,
            "the system keyring answers".to_owned(),
        ),
        KeyringState::Locked => unusable(
            Problem::new("the system keyring is locked").hint("unlock the keyring to use its keys"),
        ),
        KeyringState::Missing => match KeyStore::new_file() {
            Ok(store) => {
                let place = store.describe();
                let details = format!("no system keyring is running; keys are stored in {place}");
                (FindingStatus::Warning, details)
            }
            Err(problem) => unusable(problem),
        },
        KeyringState::Unusable(problem) => unusable(problem.hint("unlock the keyring")),
    };
    DoctorFinding {
        what: "keyring",
        status,
        details,
    }
}

/// Runs `git --version`, if the system has git. Sessions in worktrees need it.
fn check_git(git: Option<&Path>) -> DoctorFinding {
    let run = |git: &Path| {
        let mut command = std::process::Command::new(git);
        let command = command.arg("--version").stdin(std::process::Stdio::null());
        command.output()
    };
    let missing = || Err(NotFound.into());
    let (status, details) = match git.map_or_else(missing, run) {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            (FindingStatus::Passed, version)
        }
        Ok(output) => (
            FindingStatus::Warning,
            format!("`git --version` failed: {}", output.status),
        ),
        Err(error) => {
            let why = match error.kind() {
                NotFound => "git is not installed".to_owned(),
                _ => format!("cannot run git: {error}"),
            };
            let details = format!("{why}; install git to use worktrees");
            (FindingStatus::Warning, details)
        }
    };
    DoctorFinding {
        what: "git",
        status,
        details,
    }
}

/// Writes a file to Selvedge's folder, and removes it. If there is no folder yet, writes to the one
/// in which it would be created.
fn check_folder(home: &Path) -> DoctorFinding {
    let existing = home.ancestors().find(|folder| folder.exists());
    let probe = existing
        .unwrap_or(home)
        .join(format!(".selvedge-doctor-{}", std::process::id()));
    let written = std::fs::write(&probe, [0; 4096]);
    // If it was not created, there is nothing to remove.
    let _ = std::fs::remove_file(&probe);
    let home = home.display();
    let details = match &written {
        Ok(()) => format!("{home} is writable"),
        Err(error) => {
            let advice = match error.kind() {
                StorageFull | QuotaExceeded | FileTooLarge => "free disk space",
                _ => "set SELVEDGE_HOME to a writable folder",
            };
            format!("cannot write to {home}: {error}; {advice}")
        }
    };
    DoctorFinding::new("folder", written.is_ok(), details)
}

fn check_memory() -> DoctorFinding {
    let bytes = selvedge_sandbox::total_memory_bytes();
    let details = match bytes {
        Some(bytes) => format!("{} MB; scripts may use half of it", bytes >> 20),
        None => "unknown; scripts may use 2048 MB".to_owned(),
    };
    DoctorFinding::new("memory", true, details)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_broken_git_are_warnings() {
        let checked = |git: Option<&str>| {
            let DoctorFinding {
                status, details, ..
            } = check_git(git.map(Path::new));
            assert_eq!(status, FindingStatus::Warning, "{details}");
            details
        };
        assert_eq!(
            checked(None),
            "git is not installed; install git to use worktrees"
        );
        #[cfg(target_os = "linux")]
        assert_eq!(
            checked(Some("/bin/false")),
            "`git --version` failed: exit status: 1"
        );
    }
}
