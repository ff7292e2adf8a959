//! Starts commands on systems without namespaces: in their own process group, which is killed as a
//! whole. On macOS confined commands run under Seatbelt.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process;

use crate::child::Child;
use crate::support::ConfinementSupport;
use crate::{ChildCommand, ChildStdio, ConfineError, ConfinementMode};

pub(crate) fn spawn(
    mut command: ChildCommand,
    mode: &ConfinementMode,
    support: &ConfinementSupport,
) -> Result<Child, ConfineError> {
    if let ConfinementMode::Confined(confinement) = mode {
        support.strongest_backend(confinement.accepted_weaker)?;
        let profile = crate::seatbelt::seatbelt_profile(confinement);
        let mut argv = vec!["/usr/bin/sandbox-exec".into(), "-p".into(), profile.into()];
        argv.append(&mut command.argv);
        command.argv = argv;
    }
    let Some((program, arguments)) = command.argv.split_first() else {
        return Err(ConfineError::Invalid("the command is empty".into()));
    };
    let system = |doing| {
        move |error| ConfineError::System {
            operation: doing,
            error,
        }
    };
    let mut builder = process::Command::new(program);
    builder
        .args(arguments)
        .current_dir(&command.cwd)
        .env_clear()
        .envs(command.env.iter().cloned())
        .process_group(0);
    match command.stdio {
        ChildStdio::Streams {
            stdin,
            stdout,
            stderr,
        } => {
            builder.stdin(stdin).stdout(stdout).stderr(stderr);
        }
        ChildStdio::Terminal(tty) => {
            let copy = |tty: &OwnedFd| {
                tty.try_clone()
                    .map_err(system("connect the standard streams"))
            };
            builder.stdin(copy(&tty)?).stdout(copy(&tty)?).stderr(tty);
        }
    }
    let program = program.to_string_lossy().into_owned();
    let mut running = builder
        .spawn()
        .map_err(|error| ConfineError::Program { program, error })?;
    let (exit_reader, mut exit_writer) = io::pipe().map_err(system("create a pipe"))?;
    let (tree_exit_reader, tree_exit_writer) = io::pipe().map_err(system("create a pipe"))?;
    let (liveness_reader, liveness_writer) = io::pipe().map_err(system("create a pipe"))?;
    // Held only while this process lives, because there is no init process. Only processes that
    // left the group outlive this process.
    let hold = command.keep_open_fd;
    let group = running.id() as libc::pid_t;
    std::thread::spawn(move || {
        let status = running.wait().map(ExitStatusExt::into_raw).unwrap_or(0);
        let _ = exit_writer.write_all(&status.to_ne_bytes());
        // Whether other processes of the group still run is not known, so assume that they do.
        let _ = exit_writer.write_all(&1i32.to_ne_bytes());
        // Whether the command tried to reach the network is not known either.
        let _ = exit_writer.write_all(&[0xff; 8]);
    });
    std::thread::spawn(move || {
        // Returns when the `Child` is dropped and its end of the pipe is closed.
        let _ = io::copy(&mut { liveness_reader }, &mut io::sink());
        // SAFETY: `killpg` takes only numbers; the group was created for this command.
        unsafe { libc::killpg(group, libc::SIGKILL) };
        drop((hold, tree_exit_writer));
    });
    Ok(Child {
        exit_pipe: exit_reader,
        tree_exit_fd: tree_exit_reader.into(),
        liveness_pipe: Some(liveness_writer),
        init_pid: None,
        #[cfg(target_os = "linux")]
        has_pid_namespace: false,
        #[cfg(target_os = "linux")]
        stack: None,
        #[cfg(target_os = "linux")]
        placeholders: crate::placeholder::Placeholders::default(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Everything except Seatbelt works on any Unix, so this test runs on Linux too.
    #[test]
    fn a_command_runs_and_killing_it_kills_its_process_group() {
        let start = |script: &str| {
            let (reader, writer) = io::pipe().unwrap();
            let command = ChildCommand {
                argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
                cwd: "/".into(),
                env: vec![("PATH".into(), "/usr/bin:/bin".into())],
                stdio: ChildStdio::Streams {
                    stdin: std::fs::File::open("/dev/null").unwrap().into(),
                    stdout: writer.try_clone().unwrap().into(),
                    stderr: writer.into(),
                },
                keep_open_fd: None,
                lease: None,
            };
            (
                spawn(
                    command,
                    &ConfinementMode::Unconfined,
                    &ConfinementSupport::probe(),
                )
                .unwrap(),
                reader,
            )
        };
        let (mut child, mut reader) = start("echo out; exit 7");
        let mut out = String::new();
        reader.read_to_string(&mut out).unwrap();
        assert_eq!(
            (out.as_str(), child.wait_exit().unwrap().reason.code()),
            ("out\n", 7)
        );
        let (mut child, mut reader) = start("sleep 600 & echo up; wait");
        let mut up = [0; 3];
        reader.read_exact(&mut up).unwrap();
        child.kill();
        out.clear();
        // Returns only when every process of the group has closed the pipe.
        reader.read_to_string(&mut out).unwrap();
    }
}
