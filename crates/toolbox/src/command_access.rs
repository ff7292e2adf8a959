//! What a command may access, as it follows from the judgement of its call.

use selvedge_tools::CallContext;

/// What the confinement of a command allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandAccess {
    /// What the sandbox policy allows.
    Full,
    /// Reading only: nothing can be written, and there is no network.
    ReadOnly,
}

impl CommandAccess {
    /// Returns the access of a call. It follows from how the call was judged before it was allowed
    /// to run: what a command does in between must not change it.
    pub(crate) fn of_call(call: &CallContext) -> Self {
        match call.read_only {
            true => Self::ReadOnly,
            false => Self::Full,
        }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::collections::BTreeMap;

    use selvedge_confine::ChildStdio;
    use selvedge_protocol::SandboxPolicy;

    use super::*;
    use crate::command_request::CommandRequest;
    use crate::{CommandRunner, CommandSettings, TurnDiffTracker, Workspace};

    #[test]
    fn a_call_that_was_judged_read_only_can_write_nothing_whatever_its_command_is() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
        let diff = TurnDiffTracker::new(&workspace);
        let runner = CommandRunner::new(&workspace, &diff, CommandSettings::default());
        for (access, is_written) in [
            (CommandAccess::ReadOnly, false),
            (CommandAccess::Full, true),
        ] {
            let (reader, writer) = std::io::pipe().unwrap();
            let request = CommandRequest {
                argv: vec!["touch".to_owned(), "written".to_owned()],
                cwd: None,
                env: BTreeMap::new(),
                run_unconfined: false,
            };
            let stdio = ChildStdio::Streams {
                stdin: reader.into(),
                stdout: writer.try_clone().unwrap().into(),
                stderr: writer.into(),
            };
            let mut child = runner.spawn(&request, access, stdio).unwrap();
            child.wait_exit().unwrap();
            assert_eq!(
                dir.path().join("written").exists(),
                is_written,
                "{access:?}"
            );
        }
    }
}
