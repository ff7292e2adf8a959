//! Attacks around the confinement: files that git obeys outside of `.git`, rules for unconfined
//! commands, names that are not text, and trees that make checks slow.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, SECRET, observe, script_item};

/// Files that git or a protected folder refers to: how the workspace came about, and the file.
const REFERRED_FILES: &[(&str, &str)] = &[
    (
        "git init -q --bare .bare; echo 'gitdir: ./.bare' > .git",
        ".bare/config",
    ),
    (
        "git init -q --bare .bare; echo 'gitdir: ./.bare' > .git",
        ".bare/hooks/pre-commit",
    ),
    (
        "git init -q --bare .bare; mkdir main; echo 'gitdir: ../.bare' > main/.git",
        ".bare/hooks/pre-commit",
    ),
    (
        "git init -q --bare 'repo '; printf 'gitdir: ./repo \n' > .git",
        "repo /hooks/pre-commit",
    ),
    ("echo 'gitdir: ./later' > .git", "later/config"),
    (
        "mkdir common link; echo ../common > link/commondir; echo 'gitdir: ./link' > .git",
        "common/hooks/pre-commit",
    ),
    (
        "git init -q .; git config core.hooksPath tools/hooks; mkdir -p tools/hooks",
        "tools/hooks/pre-commit",
    ),
    ("git init -q .; git config core.hooksPath .", "pre-commit"),
    (
        "git init -q .; git config include.path ../shared; touch shared",
        "shared",
    ),
    (
        "git init -q .; mkdir hooks; touch hooks/x; ln -s ../../hooks/x .git/hooks/pre-commit",
        "hooks/x",
    ),
    (
        "mkdir .vscode tools; touch tools/t.json; ln -s ../tools/t.json .vscode/tasks.json",
        "tools/t.json",
    ),
];

/// Ways to write `$FILE`.
const WRITES: &[(&str, &str)] = &[
    (
        "write_file",
        "await tools.writeFile({ path: '$FILE', content: 'evil' })",
    ),
    (
        "patch",
        "await tools.applyPatch({ patch: '*** Begin Patch\\n*** Add File: $FILE\\n+evil\\n\
         *** End Patch' })",
    ),
    (
        "command",
        "await tools.exec({ command: ['sh', '-c', 'd=$(dirname \"$FILE\"); mkdir -p \"$d\"; \
         echo evil > \"$FILE\"'] })",
    ),
];

/// Commands that an unconfined rule for `id -u` must not cover.
const BESIDE_A_RULE: &[&str] = &[
    "['bash', '-c', 'id -u; cat $SECRET']",
    "['bash', '-c', 'id -u; grep -r canary $OUTSIDE']",
    "['bash', '-c', 'cat $SECRET | id -u; head -1 $SECRET']",
    "['bash', '-c', 'id -u && ls $OUTSIDE && cat $SECRET']",
];

/// Variables with secrets, by their names or values.
const SECRET_VARIABLES: &[(&str, &str)] = &[
    ("LDAP_BIND_PW", SECRET),
    ("MASTER_PW", SECRET),
    ("DBPW", SECRET),
    ("HTTP_AUTHORIZATION", SECRET),
    ("BEARER", SECRET),
    ("MNEMONIC", SECRET),
    ("AWS_SESSION", SECRET),
    ("KUBECONFIG_DATA", SECRET),
    ("ORACLE", "scott/canary-5b1f-outside-the-workspace@db"),
];

/// Pipes in a repository on which git would wait.
const PIPES: &[&str] = &[
    "rm .git/config; mkfifo .git/config",
    "rm -f .git/index; mkfifo .git/index",
    "mkfifo .git/commondir",
    "mkfifo more; git config include.path ../more",
];

/// How long a run may take although the workspace is hostile.
const MAX_HOSTILE_TIME: Duration = Duration::from_secs(20);

/// Returns the attempts.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for (setup, file) in REFERRED_FILES {
        for (way, code) in WRITES {
            attempts.push(Attempt::new(
                format!("{way}: {file} after {setup}"),
                |lab| write_referred(lab, setup, file, code),
            ));
        }
    }
    for command in BESIDE_A_RULE {
        attempts.push(Attempt::new(format!("rule: {command}"), move |lab| {
            let secret = lab.outside().join("secret").display().to_string();
            let outside = lab.outside().display().to_string();
            let command = command.replace("$SECRET", &secret);
            let command = command.replace("$OUTSIDE", &outside);
            beside_a_rule(lab, &command)
        }));
    }
    attempts.push(Attempt::new("rule: program of the workspace", |lab| {
        beside_a_rule(lab, "['id', '-u']")
    }));
    for (name, value) in SECRET_VARIABLES {
        attempts.push(Attempt::new(format!("variable {name}"), move |lab| {
            let mut command = lab.selvedge(&["run", "--json", "-"]);
            command.env(name, value);
            let source = "return (await tools.exec({ command: ['sh', '-c', 'env | rev'] })).stdout";
            let seen = observe(command, source)?;
            script_item(&seen)?;
            let reversed: String = SECRET.chars().rev().collect();
            Ok(Verdict::held_if(
                !seen.stdout.contains(&reversed),
                seen.output(),
            ))
        }));
    }
    for setup in PIPES {
        attempts.push(Attempt::new(format!("pipe: {setup}"), move |lab| {
            prepare(lab, &format!("git init -q .; {setup}"))?;
            let source = "return (await tools.exec({ command: ['git', 'status'] })).exitCode";
            let (_, seen) = lab.script(source, &["--approval", "untrusted"])?;
            Ok(Verdict::held_if(
                seen.elapsed < Duration::from_secs(8) && seen.ended_cleanly(),
                format!("{:?} {}", seen.elapsed, seen.output()),
            ))
        }));
    }
    attempts.push(Attempt::new("socket with a name that is not text", |lab| {
        reach_socket(lab, b"odd\xff.sock")
    }));
    attempts.push(Attempt::new(
        "socket with a line break in its name",
        |lab| reach_socket(lab, b"a\nb.sock"),
    ));
    attempts.push(Attempt::new("four chains of 1,900 nested folders", |lab| {
        prepare(
            lab,
            "python3 -c \"\nimport os\ntop = os.getcwd()\nfor name in 'abcd':\n\
             \x20os.chdir(top)\n for _ in range(1900):\n  os.mkdir(name); os.chdir(name)\n\"",
        )?;
        in_time(lab)
    }));
    attempts.push(Attempt::new(
        "many ignore files with several links",
        |lab| {
            prepare(
                lab,
                "echo x > .gitignore; for i in $(seq 2000); do mkdir d$i; ln .gitignore d$i/; done
             mkdir -p ../home/.ssh; cd ../home/.ssh; seq 5000 | xargs touch",
            )?;
            in_time(lab)
        },
    ));
    Ok(attempts)
}

/// Runs a shell script of the attacker in the workspace, before Selvedge is started.
fn prepare(lab: &Lab, script: &str) -> Result<()> {
    let done = Command::new("sh")
        .args(["-c", script])
        .env("HOME", lab.home())
        .current_dir(lab.work())
        .output()?;
    ensure!(done.status.success(), "{script}: {done:?}");
    Ok(())
}

fn write_referred(lab: &Lab, setup: &str, file: &str, code: &str) -> Result<Verdict> {
    prepare(lab, setup)?;
    let step = code.replace("$FILE", file);
    let source = format!("try {{ {step} }} catch (error) {{ console.log(String(error)) }}");
    let (_, seen) = lab.script(&source, &["--approval", "never"])?;
    let text = std::fs::read_to_string(lab.work().join(file));
    let is_written = text.is_ok_and(|text| text.contains("evil"));
    Ok(Verdict::held_if(!is_written, seen.output()))
}

/// Runs a command unconfined where a rule allows `id -u` and a program `id` is in the workspace.
fn beside_a_rule(lab: &Lab, command: &str) -> Result<Verdict> {
    let config = "allow_commands_unconfined = [[\"id\", \"-u\"]]\n";
    std::fs::write(lab.home().join("config.toml"), config)?;
    lab.write("bin/id", format!("#!/bin/sh\necho {SECRET}\n"))?;
    let program = lab.work().join("bin/id");
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755))?;
    let mut selvedge = lab.selvedge(&["run", "--json", "-"]);
    let path = std::env::var("PATH").unwrap_or_default();
    selvedge.env("PATH", format!("{}/bin:{path}", lab.work().display()));
    let source = format!(
        "return await tools.exec({{ command: {command}, withEscalatedPermissions: true }})"
    );
    let seen = observe(selvedge, &source)?;
    script_item(&seen)?;
    Ok(Verdict::held_if(
        !seen.stdout.contains(SECRET),
        seen.output(),
    ))
}

/// Connects to an ordinary socket from a confined command, while another socket has this name.
fn reach_socket(lab: &Lab, name: &[u8]) -> Result<Verdict> {
    let config = "[sandbox_workspace_write]\nunix_sockets = true\n";
    std::fs::write(lab.home().join("config.toml"), config)?;
    let odd = lab.outside().join(OsStr::from_bytes(name));
    let plain = lab.outside().join("plain.sock");
    let _odd = UnixListener::bind(&odd)?;
    let _plain = UnixListener::bind(&plain)?;
    let code = "import os, socket, sys\n\
        for name in os.listdir(sys.argv[1].encode()):\n\
        \x20   if not name.endswith(b'.sock'): continue\n\
        \x20   s = socket.socket(socket.AF_UNIX)\n\
        \x20   try: s.connect(os.path.join(sys.argv[1].encode(), name)); print('reached', name)\n\
        \x20   except OSError as e: print('refused', e)\n";
    let argv = ["python3", "-c", code, &lab.outside().display().to_string()].map(str::to_owned);
    let source = format!(
        "return await tools.exec({{ command: {} }})",
        serde_json::to_string(&argv)?
    );
    let (_, seen) = lab.script(&source, &["--approval", "never"])?;
    ensure!(
        seen.stdout.contains("refused") || seen.stdout.contains("reached"),
        "python3 did not run: {}",
        seen.output()
    );
    Ok(Verdict::held_if(
        !seen.stdout.contains("reached"),
        seen.output(),
    ))
}

/// Searches the workspace and runs a command.
fn in_time(lab: &Lab) -> Result<Verdict> {
    let source = "await tools.fileSearch({ query: 'x' });
        return (await tools.exec({ command: ['true'] })).exitCode";
    let (_, seen) = lab.script(source, &["--approval", "never"])?;
    Ok(Verdict::held_if(
        seen.elapsed < MAX_HOSTILE_TIME && seen.ended_cleanly(),
        format!("{:?} {}", seen.elapsed, seen.output()),
    ))
}
