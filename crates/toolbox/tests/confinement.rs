//! Runs real commands that try to escape from the confinement, as structured calls and from
//! scripts. Each attempt must succeed without confinement first, or the test would prove nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![cfg(target_os = "linux")]

mod support;

use std::os::unix::net::{UnixDatagram, UnixListener};

use selvedge_confine::{ConfinementSupport, FeatureSupport};
use selvedge_protocol::{EnvironmentPolicy, ErrorCode, SandboxPolicy};
use selvedge_toolbox::CommandSettings;
use serde_json::{Value, json};
use support::{BOTH, TestToolbox, both_ways};

/// An attempt to escape: a shell script, and a check whether it succeeded.
struct Escape {
    name: &'static str,
    script: &'static str,
    succeeded: fn(&TestToolbox, &Value) -> bool,
}

fn printed(value: &Value, text: &str) -> bool {
    value["aggregatedOutput"].as_str().unwrap().contains(text)
}

const ESCAPES: &[Escape] = &[
    Escape {
        name: "writes outside the workspace",
        script: "echo escaped > ../outside/file.txt",
        succeeded: |fixture, _| fixture.read("outside/file.txt").contains("escaped"),
    },
    Escape {
        name: "writes through a link",
        script: "ln -s ../outside out && echo escaped > out/file.txt
            mkdir -p a && ln -sf ../../outside/file.txt a/l && echo escaped >> a/l",
        succeeded: |fixture, _| fixture.read("outside/file.txt").contains("escaped"),
    },
    Escape {
        name: "creates a hard link to a file outside",
        script: "ln ../outside/file.txt here && echo escaped > here",
        succeeded: |fixture, _| fixture.read("outside/file.txt").contains("escaped"),
    },
    Escape {
        name: "writes a git hook",
        script: "echo escaped > .git/hooks/pre-commit; mv .git was; mkdir -p .git/hooks
            echo escaped > .git/hooks/pre-commit",
        succeeded: |fixture, _| {
            fixture
                .read("work/.git/hooks/pre-commit")
                .contains("escaped")
        },
    },
    Escape {
        name: "writes the project configuration",
        script: "mkdir -p .selvedge; echo escaped > .selvedge/config.toml",
        succeeded: |fixture, _| {
            fixture
                .read("work/.selvedge/config.toml")
                .contains("escaped")
        },
    },
    Escape {
        name: "reads the journal",
        script: "cat ../private/journal
            find ../.. -maxdepth 4 -name journal 2>/dev/null | xargs cat",
        succeeded: |fixture, value| printed(value, fixture.read("private/journal").trim()),
    },
    Escape {
        name: "reads the memory of the parent",
        script: "cat /proc/1/environ /proc/$PPID/environ
            head -c 100 /proc/$PPID/maps; head -c 100 /proc/1/maps",
        succeeded: |_, value| printed(value, "=") || printed(value, "r-"),
    },
    Escape {
        name: "signals another process",
        script: "kill -0 $(cat ../outside/pid) && echo reached",
        succeeded: |_, value| printed(value, "reached"),
    },
    Escape {
        name: "traces a process",
        script: "sleep 5 & python3 -c \"import ctypes, sys
result = ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0)
print('traced' if result == 0 else 'refused')\" $!",
        succeeded: |_, value| printed(value, "traced"),
    },
    Escape {
        name: "connects to a port of the host",
        script: "python3 -c \"import socket
port = int(open('../outside/port').read())
socket.create_connection(('127.0.0.1', port), 2); print('connected')\"",
        succeeded: |_, value| printed(value, "connected"),
    },
    Escape {
        name: "connects to a Unix socket",
        script: "python3 -c \"import socket
s = socket.socket(socket.AF_UNIX); s.connect('s'); print('connected')\"",
        succeeded: |_, value| printed(value, "connected"),
    },
    Escape {
        name: "sends a datagram to a Unix socket",
        script: "python3 -c \"import socket
pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
pair[0].sendto(b'x', 'datagrams'); print('sent')\"",
        succeeded: |_, value| printed(value, "sent"),
    },
    Escape {
        name: "creates a set-user-id file",
        script: "python3 -c \"import os
os.umask(0); os.open('suid', os.O_CREAT | os.O_RDWR, 0o6755)\"",
        succeeded: |fixture, _| {
            use std::os::unix::fs::PermissionsExt;
            fixture
                .path("work/suid")
                .metadata()
                .is_ok_and(|file| file.permissions().mode() & 0o6000 != 0)
        },
    },
    Escape {
        name: "writes a git hook in another writable folder",
        script: "mkdir -p ../more/.git/hooks; echo escaped > ../more/.git/hooks/pre-commit
            mkdir -p ../more/.selvedge; echo escaped > ../more/.selvedge/config.toml",
        succeeded: |fixture, _| {
            fixture
                .read("more/.git/hooks/pre-commit")
                .contains("escaped")
                || fixture
                    .read("more/.selvedge/config.toml")
                    .contains("escaped")
        },
    },
    Escape {
        name: "creates a repository in a writable folder",
        script: "mkdir -p ../empty/.git/hooks && echo escaped > ../empty/.git/hooks/pre-commit",
        succeeded: |fixture, _| {
            fixture
                .read("empty/.git/hooks/pre-commit")
                .contains("escaped")
        },
    },
    Escape {
        name: "shows the command line of the parent",
        script: "tr '\\0' '\\n' < /proc/1/cmdline | head -1; echo",
        succeeded: |_, value| !value["stdout"].as_str().unwrap().trim().is_empty(),
    },
    Escape {
        name: "writes to the shared memory of the host",
        script: "echo escaped > /dev/shm/$(basename $(cd ..; pwd))",
        succeeded: |fixture, _| {
            let shared =
                std::path::Path::new("/dev/shm").join(fixture.path("").file_name().unwrap());
            let succeeded = shared.exists();
            let _ = std::fs::remove_file(shared);
            succeeded
        },
    },
];

/// A workspace with targets outside it for the attempts.
struct EscapeTargets {
    fixture: TestToolbox,
    _listener: std::net::TcpListener,
    _socket: UnixListener,
    _datagrams: UnixDatagram,
}

fn escape_targets(sandbox: SandboxPolicy) -> EscapeTargets {
    let mut fixture = TestToolbox::new();
    fixture.sandbox = sandbox;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    fixture.write(
        "outside/port",
        listener.local_addr().unwrap().port().to_string(),
    );
    fixture.write("outside/pid", std::process::id().to_string());
    let socket = UnixListener::bind(fixture.path("work/s")).unwrap();
    let datagrams = UnixDatagram::bind(fixture.path("work/datagrams")).unwrap();
    // Further writable folders: one with a repository, one without.
    std::fs::create_dir_all(fixture.path("more/.git/hooks")).unwrap();
    std::fs::create_dir(fixture.path("empty")).unwrap();
    fixture.writable_too = vec!["../more".into(), "../empty".into()];
    EscapeTargets {
        fixture,
        _listener: listener,
        _socket: socket,
        _datagrams: datagrams,
    }
}

#[test]
fn confined_commands_cannot_escape() {
    for escape in ESCAPES {
        let args = json!({"command": ["sh", "-c", escape.script]});
        for way in BOTH {
            let unconfined = escape_targets(SandboxPolicy::DangerFullAccess);
            let ran = unconfined.fixture.call(way, "exec", &args);
            let value = ran.value.unwrap();
            assert!(
                (escape.succeeded)(&unconfined.fixture, &value),
                "without confinement it should succeed: {}: {value}",
                escape.name
            );
        }
        let mut ledgers = Vec::new();
        for sandbox in [SandboxPolicy::WorkspaceWrite, SandboxPolicy::ReadOnly] {
            for way in BOTH {
                let confined = escape_targets(sandbox);
                let ran = confined.fixture.call(way, "exec", &args);
                let value = ran
                    .value
                    .unwrap_or_else(|| panic!("{}: {:?}", escape.name, ran.error));
                assert!(
                    !(escape.succeeded)(&confined.fixture, &value),
                    "{way:?} under {sandbox:?}: {}: {value}",
                    escape.name
                );
                assert!(
                    !confined.fixture.path("work/.selvedge").exists(),
                    "{}: a placeholder was not removed",
                    escape.name
                );
                // The exit code depends on the sandbox.
                let records = ran.ledger.into_iter().map(|mut record| {
                    record.exit_code = None;
                    record
                });
                ledgers.push(records.collect::<Vec<_>>());
            }
        }
        // Both ways record the same under each sandbox.
        assert!(
            ledgers.windows(2).all(|two| two[0] == two[1]),
            "{}: {ledgers:#?}",
            escape.name
        );
    }
}

/// A workspace in a subfolder of a writable repository.
fn below_a_repository() -> TestToolbox {
    let mut fixture = TestToolbox::new();
    fixture.workspace = "repository/sub/pkg";
    std::fs::create_dir_all(fixture.path("repository/sub/pkg")).unwrap();
    std::fs::create_dir_all(fixture.path("repository/.git/hooks")).unwrap();
    fixture.writable_too = vec![fixture.path("repository")];
    fixture
}

#[test]
fn the_git_folders_above_the_workspace_are_protected() {
    let script = "echo x > ../../.git/hooks/a; mkdir -p ../.git; echo x > ../.git/a
        mkdir -p .git; echo x > .git/a; echo x > ../fine";
    let hooks = [
        "repository/.git/hooks/a",
        "repository/sub/.git/a",
        "repository/sub/pkg/.git/a",
    ];
    let args = |_: &TestToolbox| json!({"command": ["sh", "-c", script]});
    both_ways(below_a_repository, "exec", args, |fixture, ran| {
        assert!(fixture.path("repository/sub/fine").exists(), "{ran:?}");
        assert!(
            hooks.iter().all(|hook| !fixture.path(hook).exists()),
            "{ran:?}"
        );
        assert!(
            !fixture.path("repository/sub/.git").exists(),
            "a placeholder was not removed"
        );
    });
    // A pipe in place of `.git` does not block.
    let with_pipe = || {
        let fixture = below_a_repository();
        let pipe = fixture.path("repository/sub/.git");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(pipe)
                .status()
                .unwrap()
                .success()
        );
        fixture
    };
    both_ways(with_pipe, "exec", args, |fixture, ran| {
        assert!(fixture.path("repository/sub/fine").exists(), "{ran:?}")
    });
    let unconfined = || {
        let mut fixture = below_a_repository();
        fixture.sandbox = SandboxPolicy::DangerFullAccess;
        fixture
    };
    both_ways(unconfined, "exec", args, |fixture, _| {
        assert!(hooks.iter().all(|hook| fixture.path(hook).exists()))
    });
    // The same holds for the tools that write files, in every repository below the writable folder.
    let paths = [
        "../../.git/hooks/a",
        "../.git/a",
        ".git/a",
        "../../other/.git/a",
        "../../other/.selvedge/config.toml",
    ];
    for path in paths {
        let args = |_: &TestToolbox| json!({"path": path, "content": "x"});
        both_ways(below_a_repository, "write_file", args, |_, ran| {
            assert!(
                ran.error
                    .as_ref()
                    .is_some_and(|(_, message)| message.contains("is protected")),
                "{path}: {ran:?}"
            );
        });
        both_ways(unconfined, "write_file", args, |fixture, _| {
            assert!(
                fixture.path("repository/sub/pkg").join(path).exists(),
                "{path}"
            );
        });
    }
}

fn under(sandbox: SandboxPolicy) -> impl Fn() -> TestToolbox {
    move || {
        let mut fixture = TestToolbox::new();
        fixture.sandbox = sandbox;
        fixture
    }
}

#[test]
fn commands_in_terminals_are_confined_too() {
    let cmd = "echo escaped > ../outside/file.txt; cat ../private/journal
        echo x > .git/hooks/a; echo fine > fine";
    let args = |_: &TestToolbox| json!({"cmd": cmd});
    both_ways(
        under(SandboxPolicy::WorkspaceWrite),
        "exec_command",
        args,
        |fixture, ran| {
            let value = ran.value.as_ref().unwrap();
            assert!(
                !value["output"].as_str().unwrap().contains("hunter2"),
                "{value}"
            );
            assert_eq!(fixture.read("outside/file.txt"), "outside\n");
            assert_eq!(fixture.read("work/fine"), "fine\n");
            assert!(!fixture.path("work/.git/hooks/a").exists());
        },
    );
    both_ways(
        under(SandboxPolicy::DangerFullAccess),
        "exec_command",
        args,
        |fixture, ran| {
            assert!(
                ran.value.as_ref().unwrap()["output"]
                    .as_str()
                    .unwrap()
                    .contains("hunter2")
            );
            assert_eq!(fixture.read("outside/file.txt"), "escaped\n");
            assert!(fixture.path("work/.git/hooks/a").exists());
        },
    );
}

#[test]
fn the_workspace_and_temporary_folders_can_be_written() {
    both_ways(
        TestToolbox::new,
        "exec",
        |_| {
            let script = "mkdir -p a/b && echo x > a/b/c && t=$(mktemp) && echo y > $t && rm $t \
                && echo done";
            json!({"command": ["sh", "-c", script]})
        },
        |fixture, ran| {
            assert_eq!(
                ran.value.as_ref().unwrap()["stdout"],
                json!("done\n"),
                "{ran:?}"
            );
            assert_eq!(fixture.read("work/a/b/c"), "x\n");
        },
    );
}

#[test]
fn a_working_folder_outside_the_workspace_is_not_writable() {
    let args = |_: &TestToolbox| {
        let script = "pwd; echo escaped > file.txt";
        json!({"command": ["sh", "-c", script], "cwd": "../outside"})
    };
    for (sandbox, content) in [
        (SandboxPolicy::WorkspaceWrite, "outside\n"),
        (SandboxPolicy::DangerFullAccess, "escaped\n"),
    ] {
        both_ways(under(sandbox), "exec", args, |fixture, ran| {
            assert!(
                ran.value.as_ref().unwrap()["stdout"]
                    .as_str()
                    .unwrap()
                    .ends_with("/outside\n"),
                "{ran:?}"
            );
            assert_eq!(fixture.read("outside/file.txt"), content, "{sandbox:?}");
        });
    }
}

#[test]
fn the_read_only_policy_prevents_all_writes() {
    let script = "echo x > here; t=/tmp/selvedge-$$; echo x > $t && rm $t && echo temporary";
    let args = |_: &TestToolbox| json!({"command": ["sh", "-c", script]});
    both_ways(
        under(SandboxPolicy::ReadOnly),
        "exec",
        args,
        |fixture, ran| {
            let value = ran.value.as_ref().unwrap();
            assert_eq!(
                (&value["sandboxDenied"], &value["stdout"]),
                (&json!(true), &json!("")),
                "{value}"
            );
            assert!(!fixture.path("work/here").exists());
        },
    );
    both_ways(
        under(SandboxPolicy::WorkspaceWrite),
        "exec",
        args,
        |fixture, ran| {
            assert_eq!(
                ran.value.as_ref().unwrap()["stdout"],
                json!("temporary\n"),
                "{ran:?}"
            );
            assert!(fixture.path("work/here").exists());
        },
    );
}

#[test]
fn secrets_are_removed_from_the_environment() {
    // The body runs in a child process with a prepared environment.
    if std::env::var_os("SELVEDGE_TEST_VISIBLE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "secrets_are_removed_from_the_environment"])
            .env("SELVEDGE_TEST_API_KEY", "hunter2-by-name")
            .env("SELVEDGE_TEST_PLAIN", "sk-proj-hunter2-by-its-looks")
            .env("SELVEDGE_TEST_PROVIDER", "hunter2-by-configuration")
            .env("SELVEDGE_TEST_VISIBLE", "seen")
            .status();
        return assert!(status.unwrap().success());
    }
    let fixture = || {
        let fixture = TestToolbox::new();
        *fixture.settings.lock().unwrap() = Some(CommandSettings {
            never_inherit: vec!["SELVEDGE_TEST_PROVIDER".into()],
            ..CommandSettings::default()
        });
        fixture
    };
    both_ways(
        fixture,
        "exec",
        |_| json!({"command": ["env"]}),
        |_, ran| {
            let value = ran.value.as_ref().unwrap();
            assert!(!printed(value, "hunter2"), "{value}");
            assert!(printed(value, "SELVEDGE_TEST_VISIBLE=seen"), "{value}");
        },
    );
}

#[test]
fn an_invalid_pattern_of_the_environment_policy_refuses_commands() {
    let fixture = || {
        let fixture = TestToolbox::new();
        *fixture.settings.lock().unwrap() = Some(CommandSettings {
            environment: EnvironmentPolicy {
                exclude: vec!["[a".into()],
                ..EnvironmentPolicy::default()
            },
            ..CommandSettings::default()
        });
        fixture
    };
    both_ways(
        fixture,
        "exec",
        |_| json!({"command": ["env"]}),
        |_, ran| {
            let (_, failure) = ran.error.as_ref().unwrap();
            assert!(
                failure.contains("invalid environment policy") && failure.contains("[a"),
                "{failure}"
            );
        },
    );
}

#[test]
fn without_support_for_confinement_no_command_runs() {
    let fixture = || {
        let fixture = TestToolbox::new();
        let support = ConfinementSupport {
            namespaces: FeatureSupport::Missing("user namespaces are switched off".into()),
            private_proc: FeatureSupport::Missing("no".into()),
            landlock: FeatureSupport::Missing("no".into()),
            bubblewrap: None,
        };
        *fixture.settings.lock().unwrap() = Some(CommandSettings {
            support: Some(support),
            ..Default::default()
        });
        fixture
    };
    both_ways(
        fixture,
        "exec",
        |_| json!({"command": ["touch", "ran"]}),
        |fixture, ran| {
            let (code, message) = ran.error.as_ref().unwrap();
            assert_eq!(*code, ErrorCode::ToolExecutionError);
            let expected =
                "cannot confine the command on this machine: user namespaces are switched off";
            assert!(message.contains(expected), "{message}");
            assert!(!fixture.path("work/ran").exists());
        },
    );
}

#[test]
fn this_machine_supports_full_confinement() {
    let support = ConfinementSupport::probe();
    assert!(
        matches!(support.namespaces, FeatureSupport::Present(_)),
        "{:?}",
        support.namespaces
    );
    assert!(
        matches!(support.landlock, FeatureSupport::Present(_)),
        "{:?}",
        support.landlock
    );
}
