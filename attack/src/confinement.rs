//! Attacks on the confinement of commands: unusual sockets with network access, locks that block
//! commands, and writes by commands that count as read-only.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, observe, script_item};

/// Socket families other than those of ordinary programs, with their numbers on Linux.
const FAMILIES: &[(&str, u32)] = &[
    ("AF_AX25", 3),
    ("AF_APPLETALK", 5),
    ("AF_KEY", 15),
    ("AF_PACKET", 17),
    ("AF_RDS", 21),
    ("AF_CAN", 29),
    ("AF_TIPC", 30),
    ("AF_BLUETOOTH", 31),
    ("AF_RXRPC", 33),
    ("AF_ALG", 38),
    ("AF_NFC", 39),
    ("AF_VSOCK", 40),
    ("AF_KCM", 41),
    ("AF_QIPCRTR", 42),
    ("AF_SMC", 43),
    ("AF_XDP", 44),
];

/// The number with which the system refuses an operation.
const EPERM: &str = "errno 1";

/// How long a command may take although something is locked.
const MAX_LOCKED_TIME: Duration = Duration::from_secs(20);

/// Returns the attempts.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut attempts: Vec<Attempt> = FAMILIES
        .iter()
        .flat_map(|(name, family)| {
            ["true", "false"].map(|network| {
                Attempt::new(format!("{name}, network {network}"), move |lab| {
                    open_socket(lab, *family, network)
                })
            })
        })
        .collect();
    attempts.push(Attempt::new("exclusive lock of a placeholder", |lab| {
        // A folder that looks like a placeholder, locked for as long as the command runs.
        lab.write(".git/x", "")?;
        std::fs::remove_file(lab.work().join(".git/x"))?;
        let script = "chmod 555 .git; exec 9< .git; flock -x 9; exec \"$@\"";
        let inner = lab.selvedge(&["run", "--json", "-"]);
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", script, "sh"])
            .arg(inner.get_program())
            .args(inner.get_args())
            .env("SELVEDGE_HOME", lab.home())
            .env("HOME", lab.home())
            .current_dir(lab.work());
        let source =
            "return (await tools.exec({ command: ['sh', '-c', 'echo started >&1; :'] })).stdout";
        let seen = observe(command, source)?;
        Ok(Verdict::held_if(
            seen.stdout.contains("started") && seen.elapsed < MAX_LOCKED_TIME,
            seen.output(),
        ))
    }));
    for line in PROTECTED_REDIRECTIONS {
        attempts.push(Attempt::new(format!("Landlock only: {line}"), |lab| {
            redirect_unasked(lab, line)
        }));
    }
    for (name, code) in [
        // Under `untrusted` this runs only if it counts as read-only, and then it cannot write.
        ("program of the workspace in PATH", "['ls']"),
        (
            "program of the workspace in PATH, in a shell",
            "['bash', '-c', 'ls']",
        ),
    ] {
        attempts.push(Attempt::new(name, move |lab| own_program(lab, code)));
    }
    Ok(attempts)
}

/// Commands that write protected files by redirections. If only Landlock confines commands, nothing
/// else protects these files.
const PROTECTED_REDIRECTIONS: &[&str] = &[
    "echo evil > .git/config",
    "cd .git; echo evil > config",
    "cd .git && echo evil >> config",
    "(cd .git; echo evil > config)",
    "{ cd .git; echo evil > config; }",
    "pushd .git; echo evil > config",
    "pushd .git > /dev/null; : > config",
    "cd .git/hooks; echo evil > pre-commit",
    "cd .git; cd hooks; echo evil > pre-commit",
    "cd sub; cd ../.git; echo evil > config",
    "cd ./sub/../.git; echo evil >| config",
    "cd .gi?; echo evil > config",
    "cd link; echo evil > config",
    "env -C .git sh -c 'echo evil > config'",
    "env --chdir=.git sh -c 'echo evil > config'",
    "bash -c 'cd .git; echo evil > config'",
    "bash -c \"bash -c 'cd .git; echo evil > config'\"",
    "x=$(cd .git; echo evil > config)",
    "if cd .git; then echo evil > config; fi",
    "for d in .git; do cd $d; echo evil > config; done",
    "f() { cd .git; }; f; echo evil > config",
    "cd .vscode; echo evil > tasks.json",
    "find .git -maxdepth 0 -execdir sh -c 'echo evil > .git/config' ;",
    "eval 'cd .git'; echo evil > config",
    "rm .g*t/config",
    "cd .git; rm conf*",
];

/// Runs a command that nothing approves. It must be refused before it starts.
fn redirect_unasked(lab: &Lab, line: &str) -> Result<Verdict> {
    for file in [".git/config", ".git/hooks/x", ".vscode/tasks.json", "sub/x"] {
        lab.write(file, "before")?;
    }
    std::os::unix::fs::symlink(".git", lab.work().join("link"))?;
    std::fs::write(
        lab.home().join("config.toml"),
        "weaker_confinement = \"landlock\"\n",
    )?;
    let source = format!(
        "return await tools.exec({{ command: ['bash', '-c', {}] }})",
        serde_json::to_string(line)?
    );
    let (item, seen) = lab.script(&source, &["--approval", "on-request"])?;
    Ok(Verdict::held_if(
        item["error"]["code"] == "ApprovalDeniedError",
        seen.output(),
    ))
}

fn open_socket(lab: &Lab, family: u32, network: &str) -> Result<Verdict> {
    std::fs::write(
        lab.home().join("config.toml"),
        format!("[sandbox_workspace_write]\nnetwork_access = {network}\n"),
    )?;
    let python = format!(
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); \
         attempt = lambda kind: (libc.socket({family}, kind, 0), 'errno %d' % ctypes.get_errno()); \
         print([attempt(kind) for kind in (1, 2, 3, 5)])"
    );
    let source = format!(
        "return (await tools.exec({{ command: ['python3', '-c', {}] }})).stdout",
        serde_json::to_string(&python)?
    );
    let (item, seen) = lab.script(&source, &["--approval", "never"])?;
    let output = item["output_json"]
        .as_str()
        .with_context(|| seen.output())?;
    let refused = output.matches(EPERM).count();
    Ok(Verdict::held_if(refused == 4, output))
}

/// Starts `ls` while `PATH` begins with a folder of the workspace, in which a script could have
/// written a program of that name.
fn own_program(lab: &Lab, argv: &str) -> Result<Verdict> {
    use std::os::unix::fs::PermissionsExt;
    lab.write(".venv/bin/ls", "#!/bin/sh\necho evil-program-ran\n")?;
    let program = lab.work().join(".venv/bin/ls");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let path = std::env::var("PATH").unwrap_or_default();
    for sandbox in ["danger-full-access", "workspace-write"] {
        let mut command = lab.selvedge(&[
            "run",
            "--json",
            "-",
            "--approval",
            "untrusted",
            "--sandbox",
            sandbox,
        ]);
        let folder = lab.work().join(".venv/bin");
        command.env("PATH", format!("{}:{path}", folder.display()));
        let source = format!("return await tools.exec({{ command: {argv} }})");
        let seen = observe(command, &source)?;
        script_item(&seen)?;
        if seen.output().contains("evil-program-ran") {
            return Ok(Verdict::Broken(format!("{sandbox}: {}", seen.output())));
        }
    }
    Ok(Verdict::Held)
}
