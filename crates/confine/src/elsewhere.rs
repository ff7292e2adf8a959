//! Starting a command where there are no namespaces: a session of its own, killed as a group, behind
//! Seatbelt on macOS.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process;

use crate::child::Child;
use crate::support::Support;
use crate::{Command, ConfineError, Stdio, Wall};

pub(crate) fn spawn(
    mut command: Command,
    wall: &Wall,
    support: &Support,
) -> Result<Child, ConfineError> {
    if let Wall::Confined(confinement) = wall {
        support.strength(confinement.weaker)?;
        let profile = crate::seatbelt::profile(confinement);
        let mut argv = vec!["/usr/bin/sandbox-exec".into(), "-p".into(), profile.into()];
        argv.append(&mut command.argv);
        command.argv = argv;
    }
    let Some((program, arguments)) = command.argv.split_first() else {
        return Err(ConfineError::Invalid("there is no program to run".into()));
    };
    let system = |doing| move |error| ConfineError::System { doing, error };
    let mut spawning = process::Command::new(program);
    spawning
        .args(arguments)
        .current_dir(&command.cwd)
        .env_clear()
        .envs(command.env.iter().cloned())
        .process_group(0);
    match command.stdio {
        Stdio::Streams {
            stdin,
            stdout,
            stderr,
        } => {
            spawning.stdin(stdin).stdout(stdout).stderr(stderr);
        }
        Stdio::Terminal(tty) => {
            let copy = |tty: &OwnedFd| tty.try_clone().map_err(system("connecting its streams"));
            spawning.stdin(copy(&tty)?).stdout(copy(&tty)?).stderr(tty);
        }
    }
    let program = program.to_string_lossy().into_owned();
    let mut running = spawning
        .spawn()
        .map_err(|error| ConfineError::Program { program, error })?;
    let (ended, mut tell_end) = io::pipe().map_err(system("making a pipe"))?;
    let (gone, still_there) = io::pipe().map_err(system("making a pipe"))?;
    let (leash_there, leash) = io::pipe().map_err(system("making a pipe"))?;
    // As long as we live; nothing here outlives us but what left its group.
    let hold = command.hold;
    let group = running.id() as libc::pid_t;
    std::thread::spawn(move || {
        let status = running.wait().map(ExitStatusExt::into_raw).unwrap_or(0);
        let _ = tell_end.write_all(&status.to_ne_bytes());
        // Whether others are left cannot be told here, so it is said that they are.
        let _ = tell_end.write_all(&1i32.to_ne_bytes());
    });
    std::thread::spawn(move || {
        // Ends when the other end is closed.
        let _ = io::copy(&mut { leash_there }, &mut io::sink());
        // SAFETY: no memory is handed over; the group is the command's own.
        unsafe { libc::killpg(group, libc::SIGKILL) };
        drop((hold, still_there));
    });
    Ok(Child {
        ended,
        gone: gone.into(),
        leash: Some(leash),
        init: None,
        #[cfg(target_os = "linux")]
        own_pids: false,
        #[cfg(target_os = "linux")]
        stack: None,
        #[cfg(target_os = "linux")]
        placeholders: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// What is not Seatbelt about this works on any Unix, and is tried wherever tests run.
    #[test]
    fn a_command_runs_and_its_group_ends_with_it() {
        let start = |script: &str| {
            let (reader, writer) = io::pipe().unwrap();
            let command = Command {
                argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
                cwd: "/".into(),
                env: vec![("PATH".into(), "/usr/bin:/bin".into())],
                stdio: Stdio::Streams {
                    stdin: std::fs::File::open("/dev/null").unwrap().into(),
                    stdout: writer.try_clone().unwrap().into(),
                    stderr: writer.into(),
                },
                hold: None,
            };
            (
                spawn(command, &Wall::None, &Support::probe()).unwrap(),
                reader,
            )
        };
        let (mut child, mut reader) = start("echo out; exit 7");
        let mut out = String::new();
        reader.read_to_string(&mut out).unwrap();
        assert_eq!(
            (out.as_str(), child.end().unwrap().exit.code()),
            ("out\n", 7)
        );
        let (mut child, mut reader) = start("sleep 600 & echo up; wait");
        let mut up = [0; 3];
        reader.read_exact(&mut up).unwrap();
        child.kill();
        out.clear();
        // Ends only when everybody has closed it.
        reader.read_to_string(&mut out).unwrap();
    }
}
