//! Real commands behind the wall, and what the outside looks like afterwards.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use selvedge_confine::{
    Child, Command, ConfineError, Confinement, End, Exit, Feature, Network, Stdio, Support, Wall,
    WeakerWall, spawn,
};

struct Ran {
    exit: Exit,
    out: String,
}

fn command(argv: &[&str], cwd: &Path, out: OwnedFd) -> Command {
    Command {
        argv: argv.iter().map(Into::into).collect(),
        cwd: cwd.to_owned(),
        env: vec![("PATH".into(), std::env::var_os("PATH").unwrap_or_default())],
        stdio: Stdio::Streams {
            stdin: std::fs::File::open("/dev/null").unwrap().into(),
            stdout: out.try_clone().unwrap(),
            stderr: out,
        },
        hold: None,
    }
}

fn start(argv: &[&str], cwd: &Path, wall: &Wall) -> (Child, std::io::PipeReader) {
    start_with(argv, cwd, wall, &Support::probe())
}

fn start_with(
    argv: &[&str],
    cwd: &Path,
    wall: &Wall,
    support: &Support,
) -> (Child, std::io::PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    (
        spawn(command(argv, cwd, writer.into()), wall, support).unwrap(),
        reader,
    )
}

fn run(argv: &[&str], cwd: &Path, wall: &Wall) -> Ran {
    finish(start(argv, cwd, wall))
}

fn finish((mut child, mut reader): (Child, std::io::PipeReader)) -> Ran {
    let mut out = String::new();
    reader.read_to_string(&mut out).unwrap();
    Ran {
        exit: child.end().unwrap().exit,
        out,
    }
}

fn sh(script: &str, cwd: &Path, wall: &Wall) -> Ran {
    run(&["sh", "-c", script], cwd, wall)
}

struct Place {
    _dir: tempfile::TempDir,
    root: PathBuf,
    work: PathBuf,
}

fn place() -> Place {
    // Not below /tmp, which is often writable: outside must be outside.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = dir.path().canonicalize().unwrap();
    let work = root.join("work");
    std::fs::create_dir_all(work.join(".git/hooks")).unwrap();
    std::fs::create_dir_all(root.join("secret")).unwrap();
    std::fs::write(root.join("secret/key"), "hunter2").unwrap();
    std::fs::write(root.join("outside"), "before").unwrap();
    Place {
        _dir: dir,
        root,
        work,
    }
}

fn confined(place: &Place) -> Wall {
    Wall::Confined(Confinement {
        writable: vec![place.work.clone()],
        protected: vec![place.work.join(".git"), place.work.join(".selvedge")],
        hidden: vec![place.root.join("secret")],
        ..Confinement::default()
    })
}

#[test]
fn a_confined_command_writes_only_where_it_may() {
    let place = place();
    let attempts = "
        echo ok > fine; mkdir -p sub/deep; echo ok > sub/deep/fine
        echo x > ../outside; echo x > .git/hooks/pre-commit; mkdir .selvedge/x; rmdir .selvedge; mv .git old
        ln -s ../outside link; echo x > link
        cat ../secret/key; ls ../secret; echo y >/dev/null; echo z > /dev/shm/z && cat /dev/shm/z
        mount -t tmpfs none /mnt; echo x > /proc/sys/kernel/hostname; touch /etc/x; umount .git
    ";
    let ran = sh(attempts, &place.work, &confined(&place));
    assert!(place.work.join("sub/deep/fine").exists(), "{}", ran.out);
    assert_eq!(
        std::fs::read_to_string(place.root.join("outside")).unwrap(),
        "before"
    );
    assert_eq!(
        std::fs::read_dir(place.work.join(".git/hooks"))
            .unwrap()
            .count(),
        0,
        "{}",
        ran.out
    );
    assert!(place.work.join(".git").exists() && !place.work.join("old").exists());
    assert!(
        !place.work.join(".selvedge").exists(),
        "a placeholder was left behind"
    );
    assert!(
        !ran.out.contains("hunter2") && ran.out.contains("\nz\n"),
        "{}",
        ran.out
    );
    assert!(!Path::new("/dev/shm/z").exists() && !Path::new("/etc/x").exists());

    // The same attempts succeed without the wall: it is the wall that stops them.
    sh(
        "echo x > ../outside; echo x > .git/hooks/pre-commit; cat ../secret/key > seen",
        &place.work,
        &Wall::None,
    );
    assert_eq!(
        std::fs::read_to_string(place.root.join("outside")).unwrap(),
        "x\n"
    );
    assert!(place.work.join(".git/hooks/pre-commit").exists() && place.work.join("seen").exists());
}

#[test]
fn what_lies_deeper_in_a_writable_folder_cannot_be_moved_away() {
    let place = place();
    std::fs::create_dir_all(place.work.join("home/.config/gh")).unwrap();
    std::fs::write(place.work.join("home/.config/gh/token"), "hunter2").unwrap();
    let wall = Wall::Confined(Confinement {
        writable: vec![place.work.clone()],
        hidden: vec![place.work.join("home/.config/gh")],
        ..Confinement::default()
    });
    let ran = sh(
        "mv home/.config home/c; mv home h; find . -name token | xargs cat",
        &place.work,
        &wall,
    );
    assert!(!ran.out.contains("hunter2"), "{}", ran.out);
    assert!(
        place.work.join("home/.config/gh/token").exists(),
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
attempt('pair', lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'hello', path + '.dgram'))
attempt('raw pair', lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendto(b'hello', path + '.dgram'))
def own_pair():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM); here.send(b'hello')
attempt('own pair', own_pair)
attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt('vsock', lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
def own():
    server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname(), 2)
attempt('own', own)
";

#[test]
fn a_confined_command_has_a_network_of_its_own() {
    let place = place();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let _unix = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let _letters = std::os::unix::net::UnixDatagram::bind(dir.path().join("s.dgram")).unwrap();
    let argv = ["python3", "-c", CONNECT, &port, socket.to_str().unwrap()];
    let ran = run(&argv, &place.work, &confined(&place));
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
    let open = run(&argv, &place.work, &Wall::None);
    for name in ["tcp", "unix", "pair", "raw pair"] {
        assert!(open.out.contains(&format!("{name} yes")), "{}", open.out);
    }
}

#[test]
fn a_confined_command_sees_and_touches_no_other_process() {
    let place = place();
    let mut foreign = std::process::Command::new("sleep")
        .arg("60")
        .env("FOREIGN", "hunter2")
        .spawn()
        .unwrap();
    let pid = foreign.id();
    let script = format!(
        "kill -9 {pid}; cat /proc/{pid}/environ; cat /proc/1/environ /proc/1/mem /proc/1/cmdline; ls /proc | grep -c '^[0-9]'"
    );
    let ran = sh(&script, &place.work, &confined(&place));
    assert!(foreign.try_wait().unwrap().is_none(), "it was killed");
    assert!(!ran.out.contains("hunter2"), "{}", ran.out);
    // The init shares our memory, and is not seen: our own command line is nobody's business.
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
fn dangerous_system_calls_are_refused() {
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
    let place = place();
    let ran = run(&["python3", "-c", CALLS], &place.work, &confined(&place));
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
fn everything_a_command_started_ends_with_it() {
    let place = place();
    for wall in [confined(&place), Wall::None] {
        // A grandchild in a session of its own, which no group would reach; the pipe tells when it is gone.
        let script = "setsid sh -c 'echo up; exec sleep 600' & wait";
        let (mut child, mut reader) = start(&["sh", "-c", script], &place.work, &wall);
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
fn a_command_ends_although_what_it_left_behind_goes_on() {
    let place = place();
    for wall in [confined(&place), Wall::None] {
        let (mut child, mut reader) = start(
            &["sh", "-c", "sleep 600 & echo started; exit 7"],
            &place.work,
            &wall,
        );
        assert_eq!(
            child.end().unwrap(),
            End {
                exit: Exit::Code(7),
                left_behind: true
            }
        );
        drop(child);
        let mut out = String::new();
        reader.read_to_string(&mut out).unwrap();
        assert_eq!(out, "started\n");
    }
}

#[test]
fn ends_are_told_as_they_were() {
    let place = place();
    assert_eq!(
        sh("exit 3", &place.work, &confined(&place)).exit,
        Exit::Code(3)
    );
    assert_eq!(
        sh("kill -TERM $$", &place.work, &confined(&place)).exit,
        Exit::Signal(15)
    );
    assert_eq!(Exit::Signal(15).code(), 143);
}

#[test]
fn what_cannot_start_says_why() {
    let place = place();
    let attempt = |argv: &[&str], cwd: &Path, support: &Support, wall: &Wall| {
        let (_reader, writer) = std::io::pipe().unwrap();
        spawn(command(argv, cwd, writer.into()), wall, support)
            .map(drop)
            .unwrap_err()
    };
    let support = Support::probe();
    let wall = confined(&place);
    let error = attempt(&["no-such-program"], &place.work, &support, &wall);
    assert!(matches!(error, ConfineError::Program { .. }), "{error}");
    let error = attempt(&["true"], &place.root.join("nowhere"), &support, &wall);
    assert!(
        matches!(error, ConfineError::WorkingDirectory { .. }),
        "{error}"
    );
    assert!(matches!(
        attempt(&[], &place.work, &support, &wall),
        ConfineError::Invalid(_)
    ));

    let nothing = Support {
        namespaces: Feature::Missing("forbidden".into()),
        proc: Feature::Missing("forbidden".into()),
        landlock: Feature::Missing("forbidden".into()),
        bubblewrap: None,
    };
    let error = attempt(&["true"], &place.work, &nothing, &wall);
    assert!(
        error
            .to_string()
            .contains("cannot be confined here: forbidden"),
        "{error}"
    );

    let linked = place.root.join("linked");
    std::fs::create_dir(&linked).unwrap();
    std::os::unix::fs::symlink(place.work.join(".git"), linked.join(".git")).unwrap();
    let wall = Wall::Confined(Confinement {
        writable: vec![linked.clone()],
        protected: vec![linked.join(".git")],
        ..Confinement::default()
    });
    assert!(
        attempt(&["true"], &linked, &support, &wall)
            .to_string()
            .contains("symbolic link")
    );
}

#[test]
fn the_weaker_wall_is_only_built_when_it_was_named() {
    let place = place();
    let support = Support {
        namespaces: Feature::Missing("forbidden".into()),
        bubblewrap: None,
        ..Support::probe()
    };
    assert!(support.strength(None).is_err());
    let wall = Wall::Confined(Confinement {
        writable: vec![place.work.clone()],
        weaker: Some(WeakerWall::Landlock),
        network: Network::Off,
        ..Confinement::default()
    });
    let script = "echo ok > fine; echo x > ../outside; python3 -c 'import socket; socket.socket()' 2>&1 | tail -1";
    let out = finish(start_with(
        &["sh", "-c", script],
        &place.work,
        &wall,
        &support,
    ))
    .out;
    assert!(place.work.join("fine").exists(), "{out}");
    assert_eq!(
        std::fs::read_to_string(place.root.join("outside")).unwrap(),
        "before"
    );
    assert!(out.contains("PermissionError"), "{out}");
}

#[test]
fn bubblewrap_builds_the_same_wall() {
    let place = place();
    let bwrap = PathBuf::from("/usr/bin/bwrap");
    if !bwrap.exists() {
        assert!(std::env::var_os("CI").is_none(), "bwrap is not installed");
        eprintln!("bwrap is not installed: not tried");
        return;
    }
    let support = Support {
        namespaces: Feature::Missing("forbidden".into()),
        bubblewrap: Some(bwrap),
        ..Support::probe()
    };
    let script = "echo ok > fine; echo x > ../outside; echo x > .git/hooks/a; cat ../secret/key; mkdir .selvedge/x
        python3 -c 'import ctypes; print(\"ptrace\", ctypes.CDLL(None).ptrace(0, 0, 0, 0))'; exit 5";
    let ran = finish(start_with(
        &["sh", "-c", script],
        &place.work,
        &confined(&place),
        &support,
    ));
    assert_eq!(ran.exit, Exit::Code(5), "{}", ran.out);
    assert!(place.work.join("fine").exists(), "{}", ran.out);
    assert_eq!(
        std::fs::read_to_string(place.root.join("outside")).unwrap(),
        "before"
    );
    assert_eq!(
        std::fs::read_dir(place.work.join(".git/hooks"))
            .unwrap()
            .count(),
        0,
        "{}",
        ran.out
    );
    assert!(
        !ran.out.contains("hunter2") && ran.out.contains("ptrace -1"),
        "{}",
        ran.out
    );
    assert!(!place.work.join(".selvedge").exists());
}

/// A hidden folder with a hidden folder, a hidden file, a protected folder and a socket in it.
#[test]
fn paths_below_a_hidden_folder_are_hidden_with_it() {
    let place = place();
    let home = place.root.join("home");
    std::fs::create_dir_all(home.join(".aws")).unwrap();
    std::fs::create_dir_all(home.join("repository/.git")).unwrap();
    std::fs::write(home.join(".aws/key"), "hunter2").unwrap();
    std::fs::write(home.join(".netrc"), "hunter2").unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(home.join("socket")).unwrap();
    let wall = Wall::Confined(Confinement {
        writable: vec![place.work.clone(), home.clone()],
        protected: vec![place.work.join(".git"), home.join("repository/.git")],
        hidden: vec![
            home.clone(),
            home.join(".aws"),
            home.join(".netrc"),
            home.join(".ssh"),
        ],
        ..Confinement::default()
    });
    let script = "echo ok > fine; ls -A ../home; cat ../home/.aws/key ../home/.netrc; mkdir ../home/.ssh; touch .git/x";
    let mut supports = vec![Support::probe()];
    let bwrap = PathBuf::from("/usr/bin/bwrap");
    if bwrap.exists() {
        supports.push(Support {
            namespaces: Feature::Missing("forbidden".into()),
            bubblewrap: Some(bwrap),
            ..Support::probe()
        });
    }
    for support in supports {
        let ran = finish(start_with(
            &["sh", "-c", script],
            &place.work,
            &wall,
            &support,
        ));
        assert!(place.work.join("fine").exists(), "{}", ran.out);
        assert!(!ran.out.contains("hunter2"), "{}", ran.out);
        assert!(!home.join(".ssh").exists() && !place.work.join(".git/x").exists());
        std::fs::remove_file(place.work.join("fine")).unwrap();
    }
}

#[test]
fn what_is_hidden_and_missing_cannot_be_made() {
    let place = place();
    let wall = Wall::Confined(Confinement {
        writable: vec![place.root.clone()],
        hidden: vec![
            place.root.join("home-to-be"),
            place.root.join("config/gh/token"),
        ],
        ..Confinement::default()
    });
    let attempts = "mkdir -p home-to-be && echo x > home-to-be/config; mkdir -p config/gh && echo x > config/gh/token; echo ok > fine";
    let ran = sh(attempts, &place.root, &wall);
    assert!(place.root.join("fine").exists(), "{}", ran.out);
    assert!(
        !place.root.join("home-to-be").exists() && !place.root.join("config").exists(),
        "{}",
        ran.out
    );
    sh(attempts, &place.root, &Wall::None);
    assert!(
        place.root.join("home-to-be/config").exists()
            && place.root.join("config/gh/token").exists()
    );
}

#[test]
fn where_nothing_can_be_made_nothing_needs_protection() {
    let place = place();
    // As in a folder that is somebody else's: /proc lets nobody make anything.
    let wall = Wall::Confined(Confinement {
        writable: vec![place.work.clone()],
        protected: vec!["/proc/.git".into(), place.work.join(".git")],
        ..Confinement::default()
    });
    let ran = sh("echo ran; echo x > .git/x", &place.work, &wall);
    assert!(
        ran.out.contains("ran") && !place.work.join(".git/x").exists(),
        "{}",
        ran.out
    );
}

#[test]
fn a_container_that_hides_parts_of_proc_is_accepted_by_name() {
    let place = place();
    let support = Support {
        proc: Feature::Missing("masked".into()),
        bubblewrap: None,
        ..Support::probe()
    };
    assert!(support.strength(None).is_err());
    assert_eq!(
        support.strength(Some(WeakerWall::SharedProc)).unwrap(),
        selvedge_confine::Strength::SharedProc
    );
    let Wall::Confined(confinement) = confined(&place) else {
        panic!()
    };
    let wall = Wall::Confined(Confinement {
        weaker: Some(WeakerWall::SharedProc),
        ..confinement
    });
    let script =
        "echo ok > fine; echo x > ../outside; cat ../secret/key; cat /proc/1/environ; exit 4";
    let ran = finish(start_with(
        &["sh", "-c", script],
        &place.work,
        &wall,
        &support,
    ));
    assert_eq!(ran.exit, Exit::Code(4), "{}", ran.out);
    assert!(
        place.work.join("fine").exists() && !ran.out.contains("hunter2"),
        "{}",
        ran.out
    );
    assert_eq!(
        std::fs::read_to_string(place.root.join("outside")).unwrap(),
        "before"
    );
}

#[test]
fn no_link_of_the_kernels_leads_past_the_mounts() {
    let place = place();
    // A folder of the parent's that is open, as the parent of a command may well have some.
    let _open: Vec<std::fs::File> = (0..20)
        .map(|_| std::fs::File::open(&place.work).unwrap())
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
            &confined(&place),
            &Support::probe(),
        );
        let mut out = String::new();
        if let Ok(mut child) = spawned {
            reader.read_to_string(&mut out).unwrap();
            child.end().unwrap();
        }
        assert!(!out.contains("hunter2"), "in {cwd} with {program}: {out}");
        assert!(
            !place.work.join(".git/config").exists(),
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
fn the_init_cannot_be_unhooked() {
    const UNHOOK: &str = "
import os, resource
try: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)); print('unhooked')
except OSError as error: print('refused', error.errno)
if os.fork() == 0:
    if os.fork() == 0: os._exit(0)
    os._exit(0)
print('up', flush=True)
import time; time.sleep(600)
";
    let place = place();
    let (mut child, mut reader) = start(&["python3", "-c", UNHOOK], &place.work, &confined(&place));
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
fn no_program_with_anothers_rights_is_left_behind() {
    use std::os::unix::fs::PermissionsExt;
    // Every call that gives a file its mode, with one that would run as its owner, and one as its group.
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
class How(ctypes.Structure): _fields_ = [('flags', ctypes.c_uint64), ('mode', ctypes.c_uint64), ('resolve', ctypes.c_uint64)]
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
    attempt('open', lambda path, mode: done(libc.syscall(2, path.encode(), os.O_CREAT | os.O_RDWR, mode)))
    attempt('creat', lambda path, mode: done(libc.syscall(85, path.encode(), mode)))
    attempt('mknod', lambda path, mode: done(libc.syscall(133, path.encode(), mode | stat.S_IFREG, 0)))
open('plain', 'w').close(); os.chmod('plain', 0o755); os.close(os.open('private', os.O_CREAT | os.O_RDWR, 0o600)); print('fine')
";
    let names: &[&str] = match cfg!(target_arch = "x86_64") {
        true => &[
            "chmod", "openat", "unnamed", "openat2", "mknodat", "open", "creat", "mknod",
        ],
        false => &["chmod", "openat", "unnamed", "openat2", "mknodat"],
    };
    let here = place();
    let ran = run(&["python3", "-c", MAKE], &here.work, &confined(&here));
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
    for entry in std::fs::read_dir(&here.work).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(
            entry.metadata().unwrap().permissions().mode() & 0o6000,
            0,
            "{:?}",
            entry.path()
        );
    }
    // Without the wall every one of them is left.
    let open = place();
    let ran = run(&["python3", "-c", MAKE], &open.work, &Wall::None);
    for name in names {
        assert!(
            ran.out.contains(&format!("{name} LEFT")),
            "{name}: {}",
            ran.out
        );
    }
}

#[test]
fn a_placeholder_holds_no_other() {
    let place = place();
    let wall = Wall::Confined(Confinement {
        writable: vec![place.root.clone()],
        hidden: vec![
            place.root.join("home/.cargo/credentials"),
            place.root.join("home/.cargo/credentials.toml"),
        ],
        ..Confinement::default()
    });
    let (mut child, mut reader) = start(&["sh", "-c", "echo up; sleep 600"], &place.root, &wall);
    let mut up = [0; 3];
    reader.read_exact(&mut up).unwrap();
    assert_eq!(
        std::fs::read_dir(place.root.join("home")).unwrap().count(),
        0
    );
    // Another command finds it there, and needs it longer than the first.
    let (mut second, mut second_reader) =
        start(&["sh", "-c", "echo up; sleep 600"], &place.root, &wall);
    second_reader.read_exact(&mut up).unwrap();
    child.kill();
    drop(child);
    assert!(
        place.root.join("home").exists(),
        "the one who still needs it lost it"
    );
    second.kill();
    drop(second);
    assert!(!place.root.join("home").exists(), "it is left behind");
}

#[test]
fn placeholders_go_whatever_the_mask_says_and_stay_while_somebody_needs_them() {
    let place = place();
    let wall = confined(&place);
    let (mut child, mut reader) = start(&["sh", "-c", "echo up; sleep 600"], &place.work, &wall);
    let mut up = [0; 3];
    reader.read_exact(&mut up).unwrap();
    assert!(place.work.join(".selvedge").exists());
    // Another command ends while this one runs.
    sh("true", &place.work, &wall);
    assert!(
        place.work.join(".selvedge").exists(),
        "the one who still needs it lost it"
    );
    child.kill();
    drop(child);
    assert!(!place.work.join(".selvedge").exists());
}
