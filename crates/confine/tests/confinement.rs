//! Runs real commands with and without confinement, and checks their effects outside the
//! confinement.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use selvedge_confine::{
    Child, ChildCommand, ChildStdio, CommandExit, ConfineError, Confinement, ConfinementMode,
    ConfinementSupport, ExitReason, FeatureSupport, NetworkAccess, WeakerConfinement, spawn,
};

struct CommandResult {
    exit: ExitReason,
    out: String,
}

fn command(argv: &[&str], cwd: &Path, out: OwnedFd) -> ChildCommand {
    ChildCommand {
        argv: argv.iter().map(Into::into).collect(),
        cwd: cwd.to_owned(),
        env: vec![("PATH".into(), std::env::var_os("PATH").unwrap_or_default())],
        stdio: ChildStdio::Streams {
            stdin: std::fs::File::open("/dev/null").unwrap().into(),
            stdout: out.try_clone().unwrap(),
            stderr: out,
        },
        keep_open_fd: None,
        lease: None,
    }
}

fn start(argv: &[&str], cwd: &Path, mode: &ConfinementMode) -> (Child, std::io::PipeReader) {
    start_with(argv, cwd, mode, &ConfinementSupport::probe())
}

fn start_with(
    argv: &[&str],
    cwd: &Path,
    mode: &ConfinementMode,
    support: &ConfinementSupport,
) -> (Child, std::io::PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    (
        spawn(command(argv, cwd, writer.into()), mode, support).unwrap(),
        reader,
    )
}

fn run(argv: &[&str], cwd: &Path, mode: &ConfinementMode) -> CommandResult {
    finish(start(argv, cwd, mode))
}

fn finish((mut child, mut reader): (Child, std::io::PipeReader)) -> CommandResult {
    let mut out = String::new();
    reader.read_to_string(&mut out).unwrap();
    CommandResult {
        exit: child.wait_exit().unwrap().reason,
        out,
    }
}

fn sh(script: &str, cwd: &Path, mode: &ConfinementMode) -> CommandResult {
    run(&["sh", "-c", script], cwd, mode)
}

/// A temporary folder with a workspace in `work`, a file outside it and a secret.
struct TestFolders {
    _dir: tempfile::TempDir,
    root: PathBuf,
    work: PathBuf,
}

fn test_folders() -> TestFolders {
    // Not below /tmp, which is often writable: these folders must be outside the writable ones.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = dir.path().canonicalize().unwrap();
    let work = root.join("work");
    std::fs::create_dir_all(work.join(".git/hooks")).unwrap();
    std::fs::create_dir_all(root.join("secret")).unwrap();
    std::fs::write(root.join("secret/key"), "hunter2").unwrap();
    std::fs::write(root.join("outside"), "before").unwrap();
    TestFolders {
        _dir: dir,
        root,
        work,
    }
}

fn confined(folders: &TestFolders) -> ConfinementMode {
    ConfinementMode::Confined(Confinement {
        writable: vec![folders.work.clone()],
        protected: vec![folders.work.join(".git"), folders.work.join(".selvedge")],
        hidden: vec![folders.root.join("secret")],
        ..Confinement::default()
    })
}

/// Checks that a command changed neither the file outside the workspace nor the hooks of Git.
fn assert_outside_and_hooks_unchanged(folders: &TestFolders, output: &str) {
    assert_eq!(
        std::fs::read_to_string(folders.root.join("outside")).unwrap(),
        "before"
    );
    let hooks = std::fs::read_dir(folders.work.join(".git/hooks")).unwrap();
    assert_eq!(hooks.count(), 0, "{output}");
}

#[test]
fn a_confined_command_can_write_only_its_writable_folders() {
    let folders = test_folders();
    let attempts = "
        echo ok > fine; mkdir -p sub/deep; echo ok > sub/deep/fine
        echo x > ../outside; echo x > .git/hooks/pre-commit
        mkdir .selvedge/x; rmdir .selvedge; mv .git old
        ln -s ../outside link; echo x > link
        cat ../secret/key; ls ../secret; echo y >/dev/null; echo z > /dev/shm/z && cat /dev/shm/z
        mount -t tmpfs none /mnt; echo x > /proc/sys/kernel/hostname; touch /etc/x; umount .git
    ";
    let ran = sh(attempts, &folders.work, &confined(&folders));
    assert!(folders.work.join("sub/deep/fine").exists(), "{}", ran.out);
    assert_outside_and_hooks_unchanged(&folders, &ran.out);
    assert!(folders.work.join(".git").exists() && !folders.work.join("old").exists());
    assert!(
        !folders.work.join(".selvedge").exists(),
        "a placeholder was not removed"
    );
    assert!(
        !ran.out.contains("hunter2") && ran.out.contains("\nz\n"),
        "{}",
        ran.out
    );
    assert!(!Path::new("/dev/shm/z").exists() && !Path::new("/etc/x").exists());

    // The same attempts succeed without confinement: it is the confinement that stops them.
    sh(
        "echo x > ../outside; echo x > .git/hooks/pre-commit; cat ../secret/key > seen",
        &folders.work,
        &ConfinementMode::Unconfined,
    );
    assert_eq!(
        std::fs::read_to_string(folders.root.join("outside")).unwrap(),
        "x\n"
    );
    assert!(
        folders.work.join(".git/hooks/pre-commit").exists() && folders.work.join("seen").exists()
    );
}

#[test]
fn a_folder_above_a_hidden_path_cannot_be_renamed() {
    let folders = test_folders();
    std::fs::create_dir_all(folders.work.join("home/.config/gh")).unwrap();
    std::fs::write(folders.work.join("home/.config/gh/token"), "hunter2").unwrap();
    let mode = ConfinementMode::Confined(Confinement {
        writable: vec![folders.work.clone()],
        hidden: vec![folders.work.join("home/.config/gh")],
        ..Confinement::default()
    });
    let ran = sh(
        "mv home/.config home/c; mv home h; find . -name token | xargs cat",
        &folders.work,
        &mode,
    );
    assert!(!ran.out.contains("hunter2"), "{}", ran.out);
    assert!(
        folders.work.join("home/.config/gh/token").exists(),
        "{}",
        ran.out
    );
}

const CONNECT: &str = "
import socket, sys
port, path = int(sys.argv[1]), sys.argv[2]
def attempt(name, make):
    try: make(); print(name, 'yes')
    except OSError as error: print(name, 'no', error.errno)
attempt('tcp', lambda: socket.create_connection(('127.0.0.1', port), 2))
attempt('unix', lambda: socket.socket(socket.AF_UNIX).connect(path))
def send(kind): socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b'hello', path + '.dgram')
attempt('pair', lambda: send(socket.SOCK_DGRAM))
attempt('raw pair', lambda: send(socket.SOCK_RAW))
def own_pair():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM); here.send(b'hello')
attempt('own pair', own_pair)
attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt('vsock', lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
def own():
    server = socket.create_server(('127.0.0.1', 0))
    socket.create_connection(server.getsockname(), 2)
attempt('own', own)
";

#[test]
fn a_confined_command_has_a_private_network() {
    let folders = test_folders();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let _unix = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let _datagrams = std::os::unix::net::UnixDatagram::bind(dir.path().join("s.dgram")).unwrap();
    let argv = ["python3", "-c", CONNECT, &port, socket.to_str().unwrap()];
    let ran = run(&argv, &folders.work, &confined(&folders));
    for name in ["tcp", "unix", "pair", "raw pair", "packet", "vsock"] {
        assert!(
            ran.out.contains(&format!("\n{name} no")) || ran.out.starts_with(&format!("{name} no")),
            "{}",
            ran.out
        );
    }
    assert!(
        ran.out.contains("own yes") && ran.out.contains("own pair yes"),
        "{}",
        ran.out
    );
    let open = run(&argv, &folders.work, &ConfinementMode::Unconfined);
    for name in ["tcp", "unix", "pair", "raw pair"] {
        assert!(open.out.contains(&format!("{name} yes")), "{}", open.out);
    }
}

#[test]
fn a_confined_command_cannot_see_or_signal_other_processes() {
    let folders = test_folders();
    let mut foreign = std::process::Command::new("sleep")
        .arg("60")
        .env("FOREIGN", "hunter2")
        .spawn()
        .unwrap();
    let pid = foreign.id();
    let script = format!(
        "kill -9 {pid}; cat /proc/{pid}/environ; cat /proc/1/environ /proc/1/mem /proc/1/cmdline
        ls /proc | grep -c '^[0-9]'"
    );
    let ran = sh(&script, &folders.work, &confined(&folders));
    assert!(
        foreign.try_wait().unwrap().is_none(),
        "the foreign process was killed"
    );
    assert!(!ran.out.contains("hunter2"), "{}", ran.out);
    // The init process shares the parent's memory. It must be hidden, or it would show the parent's
    // command line.
    assert!(
        !ran.out.contains(&std::env::args().next().unwrap()),
        "{}",
        ran.out
    );
    let seen: usize = ran.out.lines().last().unwrap().parse().unwrap();
    assert!(seen < 8, "{}", ran.out);
    foreign.kill().unwrap();
    foreign.wait().unwrap();
}

#[cfg(target_arch = "x86_64")]
#[test]
fn unusual_socket_families_are_refused_with_and_without_network() {
    // AF_PACKET, AF_ALG, AF_VSOCK and AF_XDP, then AF_INET and AF_NETLINK.
    const CALLS: &str = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for family in (17, 38, 40, 44, 2, 16):
    kind = {16: 3, 38: 5}.get(family, 1)
    opened = libc.socket(family, kind, 0)
    print(family, 'opened' if opened >= 0 else ctypes.get_errno())
";
    let folders = test_folders();
    for network in [NetworkAccess::Off, NetworkAccess::On] {
        let ConfinementMode::Confined(confinement) = confined(&folders) else {
            unreachable!()
        };
        let mode = ConfinementMode::Confined(Confinement {
            network,
            ..confinement
        });
        let ran = run(&["python3", "-c", CALLS], &folders.work, &mode);
        assert_eq!(
            ran.out, "17 1\n38 1\n40 1\n44 1\n2 opened\n16 opened\n",
            "{network:?}"
        );
    }
}

#[test]
fn dangerous_system_calls_are_denied() {
    const CALLS: &str = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, number, *args):
    done = libc.syscall(number, *args)
    print(name, done, ctypes.get_errno())
attempt('ptrace', 101, 0, 0, 0, 0)
attempt('unshare', 272, 0x10000000)
attempt('clone', 56, 0x10000000 | 17, 0, 0, 0, 0)
attempt('clone3', 435, 0, 0)
attempt('io_uring', 425, 1, 0)
attempt('bpf', 321, 0, 0, 0)
attempt('x32', 0x40000000 + 39)
print(open('/proc/self/status').read())
";
    let folders = test_folders();
    let ran = run(
        &["python3", "-c", CALLS],
        &folders.work,
        &confined(&folders),
    );
    let out = &ran.out;
    for refused in [
        "ptrace -1 1",
        "unshare -1 1",
        "clone -1 1",
        "bpf -1 1",
        "clone3 -1 38",
        "io_uring -1 38",
        "x32 -1 38",
    ] {
        assert!(out.contains(refused), "{refused} is not in\n{out}");
    }
    assert!(
        out.contains("NoNewPrivs:\t1") && out.contains("Seccomp:\t2"),
        "{out}"
    );
    assert!(
        out.contains("CapEff:\t0000000000000000") && out.contains("CapBnd:\t0000000000000000"),
        "{out}"
    );
}

#[test]
fn killing_a_command_kills_everything_it_started() {
    let folders = test_folders();
    for mode in [confined(&folders), ConfinementMode::Unconfined] {
        // A grandchild in its own session, which killing the process group would not reach. The
        // pipe is closed when it has exited.
        let script = "setsid sh -c 'echo up; exec sleep 600' & wait";
        let (mut child, mut reader) = start(&["sh", "-c", script], &folders.work, &mode);
        let mut up = [0; 3];
        reader.read_exact(&mut up).unwrap();
        let started = Instant::now();
        child.kill();
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "it took {:?}",
            started.elapsed()
        );
    }
}

#[test]
fn a_command_has_exited_although_its_background_processes_still_run() {
    let folders = test_folders();
    for mode in [confined(&folders), ConfinementMode::Unconfined] {
        let (mut child, mut reader) = start(
            &["sh", "-c", "sleep 600 & echo started; exit 7"],
            &folders.work,
            &mode,
        );
        assert_eq!(
            child.wait_exit().unwrap(),
            CommandExit {
                reason: ExitReason::Code(7),
                has_background_processes: true,
                network_denied: matches!(mode, ConfinementMode::Confined(_)).then_some(false),
            }
        );
        drop(child);
        let mut out = String::new();
        reader.read_to_string(&mut out).unwrap();
        assert_eq!(out, "started\n");
    }
}

#[test]
fn exit_codes_and_signals_are_reported() {
    let folders = test_folders();
    assert_eq!(
        sh("exit 3", &folders.work, &confined(&folders)).exit,
        ExitReason::Code(3)
    );
    assert_eq!(
        sh("kill -TERM $$", &folders.work, &confined(&folders)).exit,
        ExitReason::Signal(15)
    );
    assert_eq!(ExitReason::Signal(15).code(), 143);
}

#[test]
fn errors_say_why_a_command_cannot_start() {
    let folders = test_folders();
    let attempt =
        |argv: &[&str], cwd: &Path, support: &ConfinementSupport, mode: &ConfinementMode| {
            let (_reader, writer) = std::io::pipe().unwrap();
            spawn(command(argv, cwd, writer.into()), mode, support)
                .map(drop)
                .unwrap_err()
        };
    let support = ConfinementSupport::probe();
    let mode = confined(&folders);
    let error = attempt(&["no-such-program"], &folders.work, &support, &mode);
    assert!(matches!(error, ConfineError::Program { .. }), "{error}");
    let error = attempt(&["true"], &folders.root.join("nowhere"), &support, &mode);
    assert!(
        matches!(error, ConfineError::WorkingDirectory { .. }),
        "{error}"
    );
    assert!(matches!(
        attempt(&[], &folders.work, &support, &mode),
        ConfineError::Invalid(_)
    ));

    let no_support = ConfinementSupport {
        namespaces: FeatureSupport::Missing("forbidden".into()),
        private_proc: FeatureSupport::Missing("forbidden".into()),
        landlock: FeatureSupport::Missing("forbidden".into()),
        bubblewrap: None,
    };
    let error = attempt(&["true"], &folders.work, &no_support, &mode);
    assert!(
        error
            .to_string()
            .contains("cannot confine the command on this machine: forbidden"),
        "{error}"
    );

    let linked = folders.root.join("linked");
    std::fs::create_dir(&linked).unwrap();
    std::os::unix::fs::symlink("missing", linked.join(".git")).unwrap();
    let mode = ConfinementMode::Confined(Confinement {
        writable: vec![linked.clone()],
        protected: vec![linked.join(".git")],
        ..Confinement::default()
    });
    assert!(
        attempt(&["true"], &linked, &support, &mode)
            .to_string()
            .contains("symbolic link")
    );
}

#[test]
fn a_protected_link_cannot_be_replaced() {
    let folders = test_folders();
    let link = folders.work.join(".vscode");
    std::fs::create_dir(folders.work.join("settings")).unwrap();
    std::fs::write(folders.work.join("settings/tasks.json"), "before").unwrap();
    std::os::unix::fs::symlink("settings", &link).unwrap();
    let mode = ConfinementMode::Confined(Confinement {
        writable: vec![folders.work.clone()],
        protected: vec![link.clone(), folders.work.join("settings")],
        ..Confinement::default()
    });
    for attack in [
        "rm .vscode",
        "mv .vscode x",
        "ln -sfn /etc .vscode",
        "mkdir x; mv -T x .vscode",
        "echo evil > .vscode/tasks.json",
        "echo evil > settings/tasks.json",
        "mv settings x",
    ] {
        let ran = sh(attack, &folders.work, &mode);
        assert_ne!(ran.exit.code(), 0, "{attack}: {}", ran.out);
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("settings"));
        let text = std::fs::read_to_string(link.join("tasks.json")).unwrap();
        assert_eq!(text, "before", "{attack}");
    }
    let ran = sh("cat .vscode/tasks.json", &folders.work, &mode);
    assert_eq!(ran.out, "before");
}

#[test]
fn landlock_alone_is_used_only_if_the_configuration_accepts_it() {
    let folders = test_folders();
    let support = ConfinementSupport {
        namespaces: FeatureSupport::Missing("forbidden".into()),
        bubblewrap: None,
        ..ConfinementSupport::probe()
    };
    assert!(support.strongest_backend(None).is_err());
    let mode = ConfinementMode::Confined(Confinement {
        writable: vec![folders.work.clone()],
        accepted_weaker: Some(WeakerConfinement::Landlock),
        network: NetworkAccess::Off,
        ..Confinement::default()
    });
    let script = "echo ok > fine; echo x > ../outside
        python3 -c 'import socket; socket.socket()' 2>&1 | tail -1";
    let out = finish(start_with(
        &["sh", "-c", script],
        &folders.work,
        &mode,
        &support,
    ))
    .out;
    assert!(folders.work.join("fine").exists(), "{out}");
    assert_eq!(
        std::fs::read_to_string(folders.root.join("outside")).unwrap(),
        "before"
    );
    assert!(out.contains("PermissionError"), "{out}");
}

#[test]
fn bubblewrap_enforces_the_same_policy() {
    let folders = test_folders();
    let bwrap = PathBuf::from("/usr/bin/bwrap");
    if !bwrap.exists() {
        assert!(std::env::var_os("CI").is_none(), "bwrap is not installed");
        eprintln!("skipped: bwrap is not installed");
        return;
    }
    let support = ConfinementSupport {
        namespaces: FeatureSupport::Missing("forbidden".into()),
        bubblewrap: Some(bwrap),
        ..ConfinementSupport::probe()
    };
    let script = "echo ok > fine; echo x > ../outside; echo x > .git/hooks/a
        cat ../secret/key; mkdir .selvedge/x
        python3 -c 'import ctypes; print(\"ptrace\", ctypes.CDLL(None).ptrace(0, 0, 0, 0))'
        exit 5";
    let ran = finish(start_with(
        &["sh", "-c", script],
        &folders.work,
        &confined(&folders),
        &support,
    ));
    assert_eq!(ran.exit, ExitReason::Code(5), "{}", ran.out);
    assert!(folders.work.join("fine").exists(), "{}", ran.out);
    assert_outside_and_hooks_unchanged(&folders, &ran.out);
    assert!(
        !ran.out.contains("hunter2") && ran.out.contains("ptrace -1"),
        "{}",
        ran.out
    );
    assert!(!folders.work.join(".selvedge").exists());
}

/// A hidden folder with a hidden folder, a hidden file, a protected folder and a socket in it.
#[test]
fn paths_below_a_hidden_folder_are_hidden_with_it() {
    let folders = test_folders();
    let home = folders.root.join("home");
    std::fs::create_dir_all(home.join(".aws")).unwrap();
    std::fs::create_dir_all(home.join("repository/.git")).unwrap();
    std::fs::write(home.join(".aws/key"), "hunter2").unwrap();
    std::fs::write(home.join(".netrc"), "hunter2").unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(home.join("socket")).unwrap();
    let mode = ConfinementMode::Confined(Confinement {
        writable: vec![folders.work.clone(), home.clone()],
        protected: vec![folders.work.join(".git"), home.join("repository/.git")],
        hidden: vec![
            home.clone(),
            home.join(".aws"),
            home.join(".netrc"),
            home.join(".ssh"),
        ],
        ..Confinement::default()
    });
    let script = "echo ok > fine; ls -A ../home; cat ../home/.aws/key ../home/.netrc
        mkdir ../home/.ssh; touch .git/x";
    let mut supports = vec![ConfinementSupport::probe()];
    let bwrap = PathBuf::from("/usr/bin/bwrap");
    if bwrap.exists() {
        supports.push(ConfinementSupport {
            namespaces: FeatureSupport::Missing("forbidden".into()),
            bubblewrap: Some(bwrap),
            ..ConfinementSupport::probe()
        });
    }
    for support in supports {
        let ran = finish(start_with(
            &["sh", "-c", script],
            &folders.work,
            &mode,
            &support,
        ));
        assert!(folders.work.join("fine").exists(), "{}", ran.out);
        assert!(!ran.out.contains("hunter2"), "{}", ran.out);
        assert!(!home.join(".ssh").exists() && !folders.work.join(".git/x").exists());
        std::fs::remove_file(folders.work.join("fine")).unwrap();
    }
}

/// Placeholders of other commands come and go at paths that this command hides.
#[test]
fn a_hidden_folder_may_be_removed_while_a_command_starts() {
    let folders = test_folders();
    let hidden = folders.root.join("comes-and-goes");
    let mode = ConfinementMode::Confined(Confinement {
        writable: vec![folders.work.clone()],
        hidden: vec![hidden.clone()],
        ..Confinement::default()
    });
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = std::fs::create_dir(&hidden);
                let _ = std::fs::remove_dir(&hidden);
            }
        });
        let support = ConfinementSupport::probe();
        let exits: Vec<Result<ExitReason, String>> = (0..100)
            .map(|_| {
                let (reader, writer) = std::io::pipe().unwrap();
                let started = spawn(
                    command(&["true"], &folders.work, writer.into()),
                    &mode,
                    &support,
                );
                let child = started.map_err(|error| error.to_string())?;
                Ok(finish((child, reader)).exit)
            })
            .collect();
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(exits, vec![Ok(ExitReason::Code(0)); 100]);
    });
}

#[test]
fn a_missing_hidden_path_cannot_be_created() {
    let folders = test_folders();
    let mode = ConfinementMode::Confined(Confinement {
        writable: vec![folders.root.clone()],
        hidden: vec![
            folders.root.join("home-to-be"),
            folders.root.join("config/gh/token"),
        ],
        ..Confinement::default()
    });
    let attempts = "mkdir -p home-to-be && echo x > home-to-be/config
        mkdir -p config/gh && echo x > config/gh/token; echo ok > fine";
    let ran = sh(attempts, &folders.root, &mode);
    assert!(folders.root.join("fine").exists(), "{}", ran.out);
    assert!(
        !folders.root.join("home-to-be").exists() && !folders.root.join("config").exists(),
        "{}",
        ran.out
    );
    sh(attempts, &folders.root, &ConfinementMode::Unconfined);
    assert!(
        folders.root.join("home-to-be/config").exists()
            && folders.root.join("config/gh/token").exists()
    );
}

#[test]
fn a_protected_path_that_cannot_be_created_is_no_error() {
    let folders = test_folders();
    // Files cannot be created in /proc, as in a folder of another user.
    let mode = ConfinementMode::Confined(Confinement {
        writable: vec![folders.work.clone()],
        protected: vec!["/proc/.git".into(), folders.work.join(".git")],
        ..Confinement::default()
    });
    let ran = sh("echo ran; echo x > .git/x", &folders.work, &mode);
    assert!(
        ran.out.contains("ran") && !folders.work.join(".git/x").exists(),
        "{}",
        ran.out
    );
}

#[test]
fn a_shared_proc_is_used_only_if_the_configuration_accepts_it() {
    let folders = test_folders();
    let support = ConfinementSupport {
        private_proc: FeatureSupport::Missing("masked".into()),
        bubblewrap: None,
        ..ConfinementSupport::probe()
    };
    assert!(support.strongest_backend(None).is_err());
    assert_eq!(
        support
            .strongest_backend(Some(WeakerConfinement::SharedProc))
            .unwrap(),
        selvedge_confine::ConfinementBackend::SharedProc
    );
    let ConfinementMode::Confined(confinement) = confined(&folders) else {
        panic!()
    };
    let mode = ConfinementMode::Confined(Confinement {
        accepted_weaker: Some(WeakerConfinement::SharedProc),
        ..confinement
    });
    let script =
        "echo ok > fine; echo x > ../outside; cat ../secret/key; cat /proc/1/environ; exit 4";
    let ran = finish(start_with(
        &["sh", "-c", script],
        &folders.work,
        &mode,
        &support,
    ));
    assert_eq!(ran.exit, ExitReason::Code(4), "{}", ran.out);
    assert!(
        folders.work.join("fine").exists() && !ran.out.contains("hunter2"),
        "{}",
        ran.out
    );
    assert_eq!(
        std::fs::read_to_string(folders.root.join("outside")).unwrap(),
        "before"
    );
}

#[test]
fn magic_links_of_proc_do_not_lead_past_the_mounts() {
    let folders = test_folders();
    // Open descriptors of the parent, which the command must not reach.
    let _open: Vec<std::fs::File> = (0..20)
        .map(|_| std::fs::File::open(&folders.work).unwrap())
        .collect();
    let attempt = |cwd: &str, program: &str| {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let argv = [
            program,
            "-c",
            "echo x >> .git/config; cat ../secret/key; ls -d ../outside",
        ];
        let spawned = spawn(
            command(&argv, Path::new(cwd), writer.into()),
            &confined(&folders),
            &ConfinementSupport::probe(),
        );
        let mut out = String::new();
        if let Ok(mut child) = spawned {
            reader.read_to_string(&mut out).unwrap();
            child.wait_exit().unwrap();
        }
        assert!(!out.contains("hunter2"), "in {cwd} with {program}: {out}");
        assert!(
            !folders.work.join(".git/config").exists(),
            "in {cwd} with {program}: {out}"
        );
    };
    for fd in 0..40 {
        attempt(&format!("/proc/self/fd/{fd}"), "sh");
        attempt(
            "/",
            &format!("/proc/self/fd/{fd}/../../../../../../../../bin/sh"),
        );
    }
    for cwd in [
        "/proc/self/cwd",
        "/proc/self/root",
        "/proc/1/root",
        "/proc/1/cwd",
        "/proc/thread-self/cwd",
    ] {
        attempt(cwd, "sh");
    }
}

#[test]
fn a_command_cannot_change_the_limits_of_the_init_process() {
    const CHANGE_LIMIT: &str = "
import os, resource
try: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)); print('changed')
except OSError as error: print('refused', error.errno)
if os.fork() == 0:
    if os.fork() == 0: os._exit(0)
    os._exit(0)
print('up', flush=True)
import time; time.sleep(600)
";
    let folders = test_folders();
    let (mut child, mut reader) = start(
        &["python3", "-c", CHANGE_LIMIT],
        &folders.work,
        &confined(&folders),
    );
    let mut seen = String::new();
    while !seen.contains("up") {
        let mut byte = [0];
        reader.read_exact(&mut byte).unwrap();
        seen.push(byte[0] as char);
    }
    assert!(seen.contains("refused 1"), "{seen}");
    let started = Instant::now();
    child.kill();
    reader.read_to_string(&mut seen).unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "it took {:?}",
        started.elapsed()
    );
}

#[test]
fn a_confined_command_cannot_create_setuid_or_setgid_files() {
    use std::os::unix::fs::PermissionsExt;
    // Tries every system call that sets a file's mode with the set-user-id and the set-group-id
    // bit.
    const MAKE: &str = "
import ctypes, os, stat
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, make):
    for bit in (stat.S_ISUID, stat.S_ISGID):
        os.umask(0)
        path = name + oct(bit)
        try: make(path, 0o755 | bit); print(name, 'done')
        except OSError as error: print(name, 'no', error.errno)
        if os.path.exists(path) and os.stat(path).st_mode & 0o6000: print(name, 'LEFT')
def done(result):
    if result < 0: raise OSError(ctypes.get_errno(), 'refused')
    return result
def chmod(path, mode): open(path, 'w').close(); os.chmod(path, mode)
def unnamed(path, mode):
    fd = os.open('.', os.O_TMPFILE | os.O_RDWR, mode)
    done(libc.linkat(-100, f'/proc/self/fd/{fd}'.encode(), -100, path.encode(), 0x400))
class How(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ('flags', 'mode', 'resolve')]
def openat2(path, mode):
    how = How(os.O_CREAT | os.O_RDWR, mode, 0)
    done(libc.syscall(437, -100, path.encode(), ctypes.byref(how), 24))
attempt('chmod', chmod)
attempt('openat', lambda path, mode: os.open(path, os.O_CREAT | os.O_RDWR, mode))
attempt('unnamed', unnamed)
attempt('openat2', openat2)
attempt('mknodat', lambda path, mode: os.mknod(path, mode | stat.S_IFREG))
import platform
if platform.machine() == 'x86_64':
    create = os.O_CREAT | os.O_RDWR
    attempt('open', lambda path, mode: done(libc.syscall(2, path.encode(), create, mode)))
    attempt('creat', lambda path, mode: done(libc.syscall(85, path.encode(), mode)))
    node = lambda mode: mode | stat.S_IFREG
    attempt('mknod', lambda path, mode: done(libc.syscall(133, path.encode(), node(mode), 0)))
open('plain', 'w').close(); os.chmod('plain', 0o755)
os.close(os.open('private', os.O_CREAT | os.O_RDWR, 0o600)); print('fine')
";
    let names: &[&str] = match cfg!(target_arch = "x86_64") {
        true => &[
            "chmod", "openat", "unnamed", "openat2", "mknodat", "open", "creat", "mknod",
        ],
        false => &["chmod", "openat", "unnamed", "openat2", "mknodat"],
    };
    let confined_folders = test_folders();
    let ran = run(
        &["python3", "-c", MAKE],
        &confined_folders.work,
        &confined(&confined_folders),
    );
    assert!(
        !ran.out.contains("LEFT") && ran.out.contains("fine"),
        "{}",
        ran.out
    );
    for name in names {
        assert_eq!(
            ran.out.matches(&format!("{name} no")).count(),
            2,
            "{name}: {}",
            ran.out
        );
    }
    for entry in std::fs::read_dir(&confined_folders.work).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(
            entry.metadata().unwrap().permissions().mode() & 0o6000,
            0,
            "{:?}",
            entry.path()
        );
    }
    // Without confinement every system call creates such a file.
    let unconfined_folders = test_folders();
    let ran = run(
        &["python3", "-c", MAKE],
        &unconfined_folders.work,
        &ConfinementMode::Unconfined,
    );
    for name in names {
        assert!(
            ran.out.contains(&format!("{name} LEFT")),
            "{name}: {}",
            ran.out
        );
    }
}

#[test]
fn a_placeholder_is_shared_and_contains_no_other_placeholder() {
    let folders = test_folders();
    let mode = ConfinementMode::Confined(Confinement {
        writable: vec![folders.root.clone()],
        hidden: vec![
            folders.root.join("home/.cargo/credentials"),
            folders.root.join("home/.cargo/credentials.toml"),
        ],
        ..Confinement::default()
    });
    let (mut child, mut reader) = start(&["sh", "-c", "echo up; sleep 600"], &folders.root, &mode);
    let mut up = [0; 3];
    reader.read_exact(&mut up).unwrap();
    assert_eq!(
        std::fs::read_dir(folders.root.join("home"))
            .unwrap()
            .count(),
        0
    );
    // A second command shares the placeholder and runs longer than the first.
    let (mut second, mut second_reader) =
        start(&["sh", "-c", "echo up; sleep 600"], &folders.root, &mode);
    second_reader.read_exact(&mut up).unwrap();
    child.kill();
    drop(child);
    assert!(
        folders.root.join("home").exists(),
        "the placeholder was removed while a command used it"
    );
    second.kill();
    drop(second);
    assert!(
        !folders.root.join("home").exists(),
        "the placeholder was not removed"
    );
}

/// The placeholder of the folder above, which another command uses, is not a real folder.
#[test]
fn a_path_below_the_placeholder_of_another_command_is_protected() {
    let folders = test_folders();
    let mode = ConfinementMode::Confined(Confinement {
        writable: vec![folders.work.clone()],
        protected: vec![folders.work.join("deploy/key")],
        ..Confinement::default()
    });
    let (mut child, mut reader) = start(&["sh", "-c", "echo up; sleep 600"], &folders.work, &mode);
    let mut up = [0; 3];
    reader.read_exact(&mut up).unwrap();
    let attempts = "chmod 755 deploy; echo x > deploy/key; rmdir deploy; mkdir -p deploy/key";
    let ran = sh(attempts, &folders.work, &mode);
    assert!(!folders.work.join("deploy/key").exists(), "{}", ran.out);
    child.kill();
    drop(child);
    assert!(!folders.work.join("deploy").exists(), "{}", ran.out);
}

#[test]
fn a_placeholder_exists_until_the_last_command_that_uses_it_ends() {
    let folders = test_folders();
    let mode = confined(&folders);
    let (mut child, mut reader) = start(&["sh", "-c", "echo up; sleep 600"], &folders.work, &mode);
    let mut up = [0; 3];
    reader.read_exact(&mut up).unwrap();
    assert!(folders.work.join(".selvedge").exists());
    // A second command ends while the first one runs.
    sh("true", &folders.work, &mode);
    assert!(
        folders.work.join(".selvedge").exists(),
        "the placeholder was removed while a command used it"
    );
    child.kill();
    drop(child);
    assert!(!folders.work.join(".selvedge").exists());
}

#[test]
fn a_socket_in_a_folder_of_another_user_does_not_prevent_commands() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let folders = test_folders();
    let private = folders.root.join("private");
    std::fs::create_dir(&private).unwrap();
    let socket = private.join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700)).unwrap();
    // Only root can give a folder to another user.
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root {
        return;
    }
    chown(&private, Some(65534), Some(65534)).unwrap();
    let look = format!("ls {} && echo reached; echo ran", socket.display());
    let result = sh(&look, &folders.work, &confined(&folders));
    assert!(result.out.ends_with("ran\n"), "{}", result.out);
    assert!(!result.out.contains("reached"), "{}", result.out);
}
