//! Real commands that try to get out, made both ways, with a look at the outside afterwards. Each attempt is made
//! without the wall first: it must succeed there, or it would prove nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![cfg(target_os = "linux")]

mod support;

use std::os::unix::net::{UnixDatagram, UnixListener};

use selvedge_confine::{Feature, Support};
use selvedge_protocol::{ErrorCode, SandboxPolicy};
use selvedge_toolbox::CommandSettings;
use serde_json::{Value, json};
use support::{BOTH, Desk, both_ways};

/// A way out: a script for the shell, and how to see that it was taken.
struct Escape {
    name: &'static str,
    script: &'static str,
    taken: fn(&Desk, &Value) -> bool,
}

fn said(value: &Value, words: &str) -> bool {
    value["aggregatedOutput"].as_str().unwrap().contains(words)
}

const ESCAPES: &[Escape] = &[
    Escape {
        name: "writes outside",
        script: "echo escaped > ../outside/file.txt",
        taken: |desk, _| desk.read("outside/file.txt").contains("escaped"),
    },
    Escape {
        name: "writes through a link",
        script: "ln -s ../outside out && echo escaped > out/file.txt; mkdir -p a && ln -sf ../../outside/file.txt a/l && echo escaped >> a/l",
        taken: |desk, _| desk.read("outside/file.txt").contains("escaped"),
    },
    Escape {
        name: "makes a hard link to the outside",
        script: "ln ../outside/file.txt here && echo escaped > here",
        taken: |desk, _| desk.read("outside/file.txt").contains("escaped"),
    },
    Escape {
        name: "writes a hook",
        script: "echo escaped > .git/hooks/pre-commit; mv .git was; mkdir -p .git/hooks; echo escaped > .git/hooks/pre-commit",
        taken: |desk, _| desk.read("work/.git/hooks/pre-commit").contains("escaped"),
    },
    Escape {
        name: "writes our configuration",
        script: "mkdir -p .selvedge; echo escaped > .selvedge/config.toml",
        taken: |desk, _| desk.read("work/.selvedge/config.toml").contains("escaped"),
    },
    Escape {
        name: "reads the journal",
        script: "cat ../private/journal; find ../.. -maxdepth 4 -name journal 2>/dev/null | xargs cat",
        taken: |desk, value| said(value, desk.read("private/journal").trim()),
    },
    Escape {
        name: "reads our memory",
        script: "cat /proc/1/environ /proc/$PPID/environ; head -c 100 /proc/$PPID/maps; head -c 100 /proc/1/maps",
        taken: |_, value| said(value, "=") || said(value, "r-"),
    },
    Escape {
        name: "signals another process",
        script: "kill -0 $(cat ../outside/pid) && echo reached",
        taken: |_, value| said(value, "reached"),
    },
    Escape {
        name: "traces a process",
        script: "sleep 5 & python3 -c \"import ctypes,sys; print('traced' if ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0) == 0 else 'refused')\" $!",
        taken: |_, value| said(value, "traced"),
    },
    Escape {
        name: "opens a socket to the machine",
        script: "python3 -c \"import socket; socket.create_connection(('127.0.0.1', int(open('../outside/port').read())), 2); print('connected')\"",
        taken: |_, value| said(value, "connected"),
    },
    Escape {
        name: "talks to a named socket",
        script: "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect('s'); print('connected')\"",
        taken: |_, value| said(value, "connected"),
    },
    Escape {
        name: "sends a letter to a named socket",
        script: "python3 -c \"import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', 'letters'); print('sent')\"",
        taken: |_, value| said(value, "sent"),
    },
    Escape {
        name: "makes a program that runs as its owner",
        script: "python3 -c \"import os; os.umask(0); os.open('suid', os.O_CREAT | os.O_RDWR, 0o6755)\"",
        taken: |desk, _| {
            use std::os::unix::fs::PermissionsExt;
            desk.path("work/suid")
                .metadata()
                .is_ok_and(|file| file.permissions().mode() & 0o6000 != 0)
        },
    },
    Escape {
        name: "writes a hook in another folder that can be written",
        script: "mkdir -p ../more/.git/hooks; echo escaped > ../more/.git/hooks/pre-commit; mkdir -p ../more/.selvedge; echo escaped > ../more/.selvedge/config.toml",
        taken: |desk, _| {
            desk.read("more/.git/hooks/pre-commit").contains("escaped")
                || desk.read("more/.selvedge/config.toml").contains("escaped")
        },
    },
    Escape {
        name: "makes a repository in a folder that can be written",
        script: "mkdir -p ../empty/.git/hooks && echo escaped > ../empty/.git/hooks/pre-commit",
        taken: |desk, _| desk.read("empty/.git/hooks/pre-commit").contains("escaped"),
    },
    Escape {
        name: "shows our command line",
        script: "tr '\\0' '\\n' < /proc/1/cmdline | head -1; echo",
        taken: |_, value| !value["stdout"].as_str().unwrap().trim().is_empty(),
    },
    Escape {
        name: "fills memory that others see",
        script: "echo escaped > /dev/shm/$(basename $(cd ..; pwd))",
        taken: |desk, _| {
            let shared = std::path::Path::new("/dev/shm").join(desk.path("").file_name().unwrap());
            let taken = shared.exists();
            let _ = std::fs::remove_file(shared);
            taken
        },
    },
];

/// A desk with something to reach on the outside.
struct Neighbourhood {
    desk: Desk,
    _listener: std::net::TcpListener,
    _socket: UnixListener,
    _letters: UnixDatagram,
}

fn neighbourhood(sandbox: SandboxPolicy) -> Neighbourhood {
    let mut desk = Desk::new();
    desk.sandbox = sandbox;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    desk.write(
        "outside/port",
        listener.local_addr().unwrap().port().to_string(),
    );
    desk.write("outside/pid", std::process::id().to_string());
    let socket = UnixListener::bind(desk.path("work/s")).unwrap();
    let letters = UnixDatagram::bind(desk.path("work/letters")).unwrap();
    // Folders beside the workspace that can be written as well: one with a repository, one without.
    std::fs::create_dir_all(desk.path("more/.git/hooks")).unwrap();
    std::fs::create_dir(desk.path("empty")).unwrap();
    desk.writable_too = vec!["../more".into(), "../empty".into()];
    Neighbourhood {
        desk,
        _listener: listener,
        _socket: socket,
        _letters: letters,
    }
}

#[test]
fn nothing_gets_out() {
    for escape in ESCAPES {
        let args = json!({"command": ["sh", "-c", escape.script]});
        for way in BOTH {
            let open = neighbourhood(SandboxPolicy::DangerFullAccess);
            let ran = open.desk.call(way, "exec", &args);
            let value = ran.value.unwrap();
            assert!(
                (escape.taken)(&open.desk, &value),
                "without a wall it {} not: {value}",
                escape.name
            );
        }
        let mut ledgers = Vec::new();
        for sandbox in [SandboxPolicy::WorkspaceWrite, SandboxPolicy::ReadOnly] {
            for way in BOTH {
                let walled = neighbourhood(sandbox);
                let ran = walled.desk.call(way, "exec", &args);
                let value = ran
                    .value
                    .unwrap_or_else(|| panic!("{}: {:?}", escape.name, ran.error));
                assert!(
                    !(escape.taken)(&walled.desk, &value),
                    "{way:?} under {sandbox:?} it {}: {value}",
                    escape.name
                );
                assert!(
                    !walled.desk.path("work/.selvedge").exists(),
                    "{}: something is left behind",
                    escape.name
                );
                ledgers.push(ran.ledger);
            }
        }
        assert!(
            ledgers.windows(2).all(|two| two[0] == two[1]),
            "{}: {ledgers:#?}",
            escape.name
        );
    }
}

/// A workspace below a repository, all of it in a folder that can be written.
fn below_a_repository() -> Desk {
    let mut desk = Desk::new();
    desk.workspace = "repository/sub/pkg";
    std::fs::create_dir_all(desk.path("repository/sub/pkg")).unwrap();
    std::fs::create_dir_all(desk.path("repository/.git/hooks")).unwrap();
    desk.writable_too = vec![desk.path("repository")];
    desk
}

#[test]
fn a_repository_above_the_workspace_is_not_written() {
    let script = "echo x > ../../.git/hooks/a; mkdir -p ../.git; echo x > ../.git/a; mkdir -p .git; echo x > .git/a; echo x > ../fine";
    let hooks = [
        "repository/.git/hooks/a",
        "repository/sub/.git/a",
        "repository/sub/pkg/.git/a",
    ];
    let args = |_: &Desk| json!({"command": ["sh", "-c", script]});
    both_ways(below_a_repository, "exec", args, |desk, ran| {
        assert!(desk.path("repository/sub/fine").exists(), "{ran:?}");
        assert!(
            hooks.iter().all(|hook| !desk.path(hook).exists()),
            "{ran:?}"
        );
        assert!(
            !desk.path("repository/sub/.git").exists(),
            "something is left behind"
        );
    });
    // Whatever stands there, it is not waited for.
    let with_pipe = || {
        let desk = below_a_repository();
        let pipe = desk.path("repository/sub/.git");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(pipe)
                .status()
                .unwrap()
                .success()
        );
        desk
    };
    both_ways(with_pipe, "exec", args, |desk, ran| {
        assert!(desk.path("repository/sub/fine").exists(), "{ran:?}")
    });
    let open = || {
        let mut desk = below_a_repository();
        desk.sandbox = SandboxPolicy::DangerFullAccess;
        desk
    };
    both_ways(open, "exec", args, |desk, _| {
        assert!(hooks.iter().all(|hook| desk.path(hook).exists()))
    });
    // The tools that write files keep to it as well, in every repository below.
    let paths = [
        "../../.git/hooks/a",
        "../.git/a",
        ".git/a",
        "../../other/.git/a",
        "../../other/.selvedge/config.toml",
    ];
    for path in paths {
        let args = |_: &Desk| json!({"path": path, "content": "x"});
        both_ways(below_a_repository, "write_file", args, |_, ran| {
            assert!(
                ran.error
                    .as_ref()
                    .is_some_and(|(_, message)| message.contains("is protected")),
                "{path}: {ran:?}"
            );
        });
        both_ways(open, "write_file", args, |desk, _| {
            assert!(
                desk.path("repository/sub/pkg").join(path).exists(),
                "{path}"
            );
        });
    }
}

fn under(sandbox: SandboxPolicy) -> impl Fn() -> Desk {
    move || {
        let mut desk = Desk::new();
        desk.sandbox = sandbox;
        desk
    }
}

#[test]
fn terminals_are_behind_the_same_wall() {
    let cmd = "echo escaped > ../outside/file.txt; cat ../private/journal; echo x > .git/hooks/a; echo fine > fine";
    let args = |_: &Desk| json!({"cmd": cmd});
    both_ways(
        under(SandboxPolicy::WorkspaceWrite),
        "exec_command",
        args,
        |desk, ran| {
            let value = ran.value.as_ref().unwrap();
            assert!(
                !value["output"].as_str().unwrap().contains("hunter2"),
                "{value}"
            );
            assert_eq!(desk.read("outside/file.txt"), "outside\n");
            assert_eq!(desk.read("work/fine"), "fine\n");
            assert!(!desk.path("work/.git/hooks/a").exists());
        },
    );
    both_ways(
        under(SandboxPolicy::DangerFullAccess),
        "exec_command",
        args,
        |desk, ran| {
            assert!(
                ran.value.as_ref().unwrap()["output"]
                    .as_str()
                    .unwrap()
                    .contains("hunter2")
            );
            assert_eq!(desk.read("outside/file.txt"), "escaped\n");
            assert!(desk.path("work/.git/hooks/a").exists());
        },
    );
}

#[test]
fn the_workspace_and_temporary_folders_can_be_written() {
    both_ways(
        Desk::new,
        "exec",
        |_| json!({"command": ["sh", "-c", "mkdir -p a/b && echo x > a/b/c && t=$(mktemp) && echo y > $t && rm $t && echo done"]}),
        |desk, ran| {
            assert_eq!(
                ran.value.as_ref().unwrap()["stdout"],
                json!("done\n"),
                "{ran:?}"
            );
            assert_eq!(desk.read("work/a/b/c"), "x\n");
        },
    );
}

#[test]
fn a_folder_elsewhere_widens_nothing() {
    let args = |_: &Desk| json!({"command": ["sh", "-c", "pwd; echo escaped > file.txt"], "cwd": "../outside"});
    for (sandbox, left) in [
        (SandboxPolicy::WorkspaceWrite, "outside\n"),
        (SandboxPolicy::DangerFullAccess, "escaped\n"),
    ] {
        both_ways(under(sandbox), "exec", args, |desk, ran| {
            assert!(
                ran.value.as_ref().unwrap()["stdout"]
                    .as_str()
                    .unwrap()
                    .ends_with("/outside\n"),
                "{ran:?}"
            );
            assert_eq!(desk.read("outside/file.txt"), left, "{sandbox:?}");
        });
    }
}

#[test]
fn nothing_is_written_when_nothing_may_be() {
    let args = |_: &Desk| json!({"command": ["sh", "-c", "echo x > here; t=/tmp/selvedge-$$; echo x > $t && rm $t && echo temporary"]});
    both_ways(under(SandboxPolicy::ReadOnly), "exec", args, |desk, ran| {
        let value = ran.value.as_ref().unwrap();
        assert_eq!(
            (&value["sandboxDenied"], &value["stdout"]),
            (&json!(true), &json!("")),
            "{value}"
        );
        assert!(!desk.path("work/here").exists());
    });
    both_ways(
        under(SandboxPolicy::WorkspaceWrite),
        "exec",
        args,
        |desk, ran| {
            assert_eq!(
                ran.value.as_ref().unwrap()["stdout"],
                json!("temporary\n"),
                "{ran:?}"
            );
            assert!(desk.path("work/here").exists());
        },
    );
}

#[test]
fn no_secret_is_in_the_environment() {
    // The body runs in a process whose environment was made for it.
    if std::env::var_os("SELVEDGE_TEST_VISIBLE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "no_secret_is_in_the_environment"])
            .env("SELVEDGE_TEST_API_KEY", "hunter2-by-name")
            .env("SELVEDGE_TEST_PLAIN", "sk-proj-hunter2-by-its-looks")
            .env("SELVEDGE_TEST_PROVIDER", "hunter2-by-configuration")
            .env("SELVEDGE_TEST_VISIBLE", "seen")
            .status();
        return assert!(status.unwrap().success());
    }
    let desk = || {
        let desk = Desk::new();
        *desk.settings.lock().unwrap() = Some(CommandSettings {
            never_inherit: vec!["SELVEDGE_TEST_PROVIDER".into()],
            ..CommandSettings::default()
        });
        desk
    };
    both_ways(
        desk,
        "exec",
        |_| json!({"command": ["env"]}),
        |_, ran| {
            let value = ran.value.as_ref().unwrap();
            assert!(!said(value, "hunter2"), "{value}");
            assert!(said(value, "SELVEDGE_TEST_VISIBLE=seen"), "{value}");
        },
    );
}

#[test]
fn where_there_can_be_no_wall_nothing_runs() {
    let desk = || {
        let desk = Desk::new();
        let support = Support {
            namespaces: Feature::Missing("user namespaces are switched off".into()),
            proc: Feature::Missing("no".into()),
            landlock: Feature::Missing("no".into()),
            bubblewrap: None,
        };
        *desk.settings.lock().unwrap() = Some(CommandSettings {
            support: Some(support),
            ..Default::default()
        });
        desk
    };
    both_ways(
        desk,
        "exec",
        |_| json!({"command": ["touch", "ran"]}),
        |desk, ran| {
            let (code, message) = ran.error.as_ref().unwrap();
            assert_eq!(*code, ErrorCode::ToolExecutionError);
            assert!(
                message.contains("cannot be confined here: user namespaces are switched off"),
                "{message}"
            );
            assert!(!desk.path("work/ran").exists());
        },
    );
}

#[test]
fn this_machine_builds_the_whole_wall() {
    let support = Support::probe();
    assert!(
        matches!(support.namespaces, Feature::Present(_)),
        "{:?}",
        support.namespaces
    );
    assert!(
        matches!(support.landlock, Feature::Present(_)),
        "{:?}",
        support.landlock
    );
}
