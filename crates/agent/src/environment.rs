//! The section "Environment" of the system prompt: the folder, and what commands may do there.

use selvedge_protocol::{ApprovalPolicy, SandboxPolicy};

/// What a model has to know about the sandbox and the project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEnvironment {
    /// What commands and tools may write.
    pub sandbox: SandboxPolicy,
    /// Whether commands in the sandbox reach the network.
    pub network_access: bool,
    /// Names and paths that stay read-only in writable folders.
    pub protected_paths: Vec<String>,
    /// When calls need approval.
    pub approval: ApprovalPolicy,
    /// The date, such as 2026-11-17.
    pub date: String,
    /// The branch of git; `None` without a repository.
    pub branch: Option<String>,
}

impl AgentEnvironment {
    /// Returns what changes with time, such as the date. A session states it once, as it was when
    /// the session began, so that prompt caches remain valid.
    pub(crate) fn session_start_note(&self) -> String {
        let branch = self.branch.as_ref();
        let branch = branch.map(|branch| format!(" on git branch `{branch}`"));
        format!(
            "This session began on {}{}.",
            self.date,
            branch.unwrap_or_default()
        )
    }

    /// Returns the rules of the sandbox.
    fn rules(&self) -> String {
        let network = match self.network_access {
            true => "on",
            false => "off",
        };
        let protected = self.protected_paths.join(", ");
        let deletes = match self.approval {
            ApprovalPolicy::Never => "are denied",
            _ => "need approval",
        };
        let deletes =
            format!("Forced deletes (`rm -rf`, `find -delete`) {deletes}: prefer `rm -r`.");
        let rules = match self.sandbox {
            SandboxPolicy::ReadOnly => {
                "Sandbox: read-only. Nothing can be written, and commands have no network."
                    .to_owned()
            }
            SandboxPolicy::WorkspaceWrite => format!(
                "Sandbox: workspace-write. Writable: the working folder, $TMPDIR and /tmp, but \
                 never {protected}. Network of commands: {network}."
            ),
            SandboxPolicy::DangerFullAccess => {
                return format!(
                    "Sandbox: none. Commands may write everywhere and use the network; be \
                     careful. {deletes}"
                );
            }
        };
        let escalation = match self.approval {
            ApprovalPolicy::Never => "Nothing can be approved: stay within these limits.",
            ApprovalPolicy::Untrusted | ApprovalPolicy::OnRequest | ApprovalPolicy::OnFailure => {
                "If a command needs more (network, `git commit`), run it with \
                 `withEscalatedPermissions: true` and `justification: \"why\"`: the user decides."
            }
        };
        format!("{rules} {escalation} {deletes}")
    }
}

/// Returns the section; `None` if nothing is known.
pub(crate) fn environment_section(
    directory: &str,
    environment: Option<&AgentEnvironment>,
) -> Option<String> {
    if directory.is_empty() {
        return None;
    }
    let platform = std::env::consts::OS;
    let folder = format!("# Environment\n\nThe working folder is {directory} ({platform}).");
    Some(match environment {
        Some(environment) => format!("{folder} {}", environment.rules()),
        None => folder,
    })
}
