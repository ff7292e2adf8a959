//! Commands are killed at the end of their lease, also if the process that started them is stopped.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use selvedge_confine::{
    Child, ChildCommand, ChildStdio, CommandLease, ConfineError, Confinement, ConfinementMode,
    ConfinementSupport, spawn,
};

/// How long a test waits for what must happen.
const TIMEOUT: Duration = Duration::from_secs(30);
/// What the system offers. Finding it out may take longer than a lease lasts.
static SUPPORT: LazyLock<ConfinementSupport> = LazyLock::new(ConfinementSupport::probe);
/// Names the lease test that a copy of this program runs, in its environment.
const MODE_VARIABLE: &str = "LEASE_TEST_MODE";

fn start(
    seconds: &str,
    mode: &ConfinementMode,
    lease: &'static CommandLease,
) -> Result<Child, ConfineError> {
    let null = || {
        std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
    };
    let script = format!("sleep {seconds} & sleep {seconds}");
    let command = ChildCommand {
        argv: ["sh", "-c", &script].map(Into::into).into(),
        cwd: "/".into(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        stdio: ChildStdio::Streams {
            stdin: null().unwrap().into(),
            stdout: null().unwrap().into(),
            stderr: null().unwrap().into(),
        },
        keep_open_fd: None,
        lease: Some(lease),
    };
    spawn(command, mode, &SUPPORT)
}

fn modes() -> [(&'static str, ConfinementMode); 2] {
    let confined = ConfinementMode::Confined(Confinement::default());
    [
        ("unconfined", ConfinementMode::Unconfined),
        ("confined", confined),
    ]
}

/// Returns how many processes have an argument.
fn count_processes(argument: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let has_argument = |path: &Path| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|word| word == argument.as_bytes())
    };
    processes
        .filter(|process| has_argument(&process.path()))
        .count()
}

fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_command_runs_as_long_as_its_lease_is_extended_and_is_then_killed() {
    for (name, mode) in modes() {
        let lease = CommandLease::new();
        let refused = start("71001", &mode, lease);
        assert!(matches!(refused, Err(ConfineError::LeaseEnded)), "{name}");
        lease.extend_to(CommandLease::now() + Duration::from_secs(60));
        let mut child = start("71001", &mode, lease).unwrap();
        // An earlier end has no effect.
        lease.extend_to(CommandLease::now() + Duration::from_millis(1));
        wait_until("the command starts", || count_processes("71001") == 2);
        drop(child);
        let lease = CommandLease::new();
        let begin = CommandLease::now();
        lease.extend_to(begin + Duration::from_secs(1));
        child = start("71002", &mode, lease).unwrap();
        lease.extend_to(begin + Duration::from_secs(3));
        let error = child.wait_exit().unwrap_err().to_string();
        assert!(error.contains("could not reach its database"), "{error}");
        let ran = CommandLease::now() - begin;
        assert!(ran >= Duration::from_secs(3), "{name}: {ran:?}");
        wait_until("all processes of the command exit", || {
            count_processes("71002") == 0
        });
    }
}

#[test]
fn a_command_of_a_stopped_process_is_killed_at_the_end_of_its_lease() {
    for (name, _) in modes() {
        let mut stopped = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "the_stopped_process"])
            .env(MODE_VARIABLE, name)
            .spawn()
            .unwrap();
        let argument = format!("7200{}", name.len());
        wait_until("the command starts", || count_processes(&argument) == 2);
        let pid = stopped.id().to_string();
        let signal = |signal: &str| {
            let sent = Command::new("kill").args([signal, &pid]).status();
            assert!(sent.unwrap().success());
        };
        signal("-STOP");
        wait_until("the command is killed", || count_processes(&argument) == 0);
        // The process is still there, and did not kill the command.
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        assert!(state.contains(") T "), "{state}");
        signal("-KILL");
        stopped.wait().unwrap();
    }
}

/// Starts a command and extends its lease, until it is killed.
#[test]
fn the_stopped_process() {
    let Ok(wanted) = std::env::var(MODE_VARIABLE) else {
        return;
    };
    let (name, mode) = modes()
        .into_iter()
        .find(|(name, _)| *name == wanted)
        .unwrap();
    LazyLock::force(&SUPPORT);
    let lease = CommandLease::new();
    let extend = || lease.extend_to(CommandLease::now() + Duration::from_secs(2));
    extend();
    let _child = start(&format!("7200{}", name.len()), &mode, lease).unwrap();
    loop {
        extend();
        std::thread::sleep(Duration::from_millis(100));
    }
}
