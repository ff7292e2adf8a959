//! Attacks by files that are read without being named: a repository brings instructions,
//! configuration and ignore files that are links, pipes, devices or endless. None may disclose a
//! file outside of the project, block, or use memory without a limit.

use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, SECRET, observe};
use crate::recording_model::{RecordingModel, SEARCHED};

/// How long a command may take.
const MAX_PROCESS_TIME: Duration = Duration::from_secs(20);

/// Memory that a command may use, in kilobytes.
const MAX_MEMORY_KB: u64 = 1_000_000;

/// Value of an environment variable that `/proc/self/environ` would disclose.
const ENVIRONMENT_CANARY: &str = "canary-77aa-of-the-environment";

/// Files of a project that are read implicitly, relative to the workspace.
const PROJECT_FILES: [&str; 9] = [
    "AGENTS.md",
    ".gitignore",
    ".ignore",
    ".git/info/exclude",
    ".git",
    "sub/.gitignore",
    ".mcp.json",
    ".selvedge",
    ".selvedge/config.toml",
];

/// Files of the user that are read implicitly, relative to Selvedge's home.
const USER_FILES: [&str; 4] = ["config.toml", "rules.toml", "trusted", ".gitconfig"];

/// Commands that load the files of a project.
const COMMANDS: [&[&str]; 7] = [
    &[
        "run",
        "-e",
        "return await tools.grepFiles({ pattern: 'x' })",
    ],
    &["check", "-C", ".", "script.ts"],
    &["tools"],
    &["doctor"],
    &["mcp", "serve"],
    &["mcp", "list"],
    &["mcp", "install", "--client", "claude-code"],
];

/// What a hostile file is.
#[derive(Debug, Clone, Copy)]
enum HostileFile {
    LinkToSecret,
    RelativeLinkToSecret,
    LinkToLinkToSecret,
    LinkToEnvironment,
    LinkToZero,
    LinkToOpenFile,
    LinkLoop,
    LinkToNothing,
    Pipe,
    Socket,
    Folder,
    Huge,
    HardLinkToCredential,
    Device,
}

impl HostileFile {
    const ALL: [Self; 14] = [
        Self::LinkToSecret,
        Self::RelativeLinkToSecret,
        Self::LinkToLinkToSecret,
        Self::LinkToEnvironment,
        Self::LinkToZero,
        Self::LinkToOpenFile,
        Self::LinkLoop,
        Self::LinkToNothing,
        Self::Pipe,
        Self::Socket,
        Self::Folder,
        Self::Huge,
        Self::HardLinkToCredential,
        Self::Device,
    ];

    fn create(self, lab: &Lab, path: &Path) -> Result<()> {
        let secret = lab.outside().join("secret");
        match self {
            Self::LinkToSecret => symlink(secret, path)?,
            Self::RelativeLinkToSecret => symlink(relative_outside(lab, path)?, path)?,
            Self::LinkToLinkToSecret => {
                symlink(secret, lab.work().join("between"))?;
                symlink(lab.work().join("between"), path)?;
            }
            Self::LinkToEnvironment => symlink("/proc/self/environ", path)?,
            Self::LinkToZero => symlink("/dev/zero", path)?,
            Self::LinkToOpenFile => symlink("/proc/self/fd/0", path)?,
            Self::LinkLoop => symlink(path, path)?,
            Self::LinkToNothing => symlink(lab.outside().join("missing"), path)?,
            Self::Pipe => run("mkfifo", &[path])?,
            Self::Socket => drop(UnixListener::bind(path)?),
            Self::Folder => std::fs::create_dir(path)?,
            Self::Huge => std::fs::File::create(path)?.set_len(64 << 30)?,
            Self::HardLinkToCredential => {
                let credential = lab.home().join(".ssh/id_ed25519");
                std::fs::create_dir_all(lab.home().join(".ssh"))?;
                std::fs::write(&credential, SECRET)?;
                std::fs::hard_link(credential, path)?;
            }
            Self::Device => run(
                "mknod",
                &[path, Path::new("c"), Path::new("1"), Path::new("5")],
            )?,
        }
        Ok(())
    }
}

/// Returns the attempts of this class.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    // Only root can create a device or give away a file.
    let is_root = std::fs::metadata("/proc/self")?.uid() == 0;
    let mut attempts = Vec::new();
    for file in PROJECT_FILES {
        for kind in HostileFile::ALL {
            if matches!(kind, HostileFile::Device) && !is_root {
                continue;
            }
            attempts.push(Attempt::new(format!("{file} is {kind:?}"), move |lab| {
                place(lab, kind, &lab.work().join(file))?;
                ask_model(lab, |command| command)
            }));
        }
    }
    for file in USER_FILES {
        for kind in [
            HostileFile::Pipe,
            HostileFile::LinkToZero,
            HostileFile::Folder,
        ] {
            attempts.push(Attempt::new(
                format!("{file} of the user is {kind:?}"),
                move |lab| {
                    place(lab, kind, &lab.home().join(file))?;
                    judge(with_secret(lab, &["tools"]), None)
                },
            ));
        }
    }
    for args in COMMANDS {
        for kind in [HostileFile::Pipe, HostileFile::LinkToZero] {
            attempts.push(Attempt::new(
                format!("{} with {kind:?}", args.join(" ")),
                move |lab| {
                    lab.write("script.ts", "return 1")?;
                    for file in [
                        "AGENTS.md",
                        ".gitignore",
                        ".mcp.json",
                        ".selvedge/config.toml",
                    ] {
                        place(lab, kind, &lab.work().join(file))?;
                    }
                    judge(with_secret(lab, args), None)
                },
            ));
        }
    }
    attempts.extend(documents_of_strangers(is_root));
    attempts.extend(instructions_of_others(is_root));
    attempts.extend(rules_that_take_long());
    Ok(attempts)
}

/// Documents that are no regular files of the workspace, or whose front matter takes long.
fn documents_of_strangers(is_root: bool) -> Vec<Attempt> {
    let query = |lab: &Lab| {
        let script = "return [await workspace.query({}), await workspace.query('canary')]";
        judge(with_secret(lab, &["run", "-e", script]), None)
    };
    let kinds = HostileFile::ALL.into_iter();
    let kinds = kinds.filter(|kind| is_root || !matches!(kind, HostileFile::Device));
    let mut attempts: Vec<Attempt> = kinds
        .map(|kind| {
            Attempt::new(format!("a document is {kind:?}"), move |lab| {
                place(lab, kind, &lab.work().join("issues/1.md"))?;
                query(lab)
            })
        })
        .collect();
    attempts.push(Attempt::new(
        "a folder of documents is a link",
        move |lab| {
            let (secret, folder) = (lab.outside().join("secret"), lab.work().join("issues"));
            std::fs::rename(secret, lab.outside().join("1.md"))?;
            symlink(lab.outside(), folder)?;
            query(lab)
        },
    ));
    let aliases = |at: usize| {
        let names = vec![format!("*a{}", at - 1); 9];
        format!("a{at}: &a{at} [{}]\n", names.join(", "))
    };
    let bombs: [(&str, String); 4] = [
        (
            "aliases",
            format!("a0: &a0 x\n{}", (1..30).map(aliases).collect::<String>()),
        ),
        ("lists", format!("a: {}\n", "[".repeat(60_000))),
        (
            "mappings",
            (0..300)
                .map(|at| format!("{}a:\n", " ".repeat(at)))
                .collect(),
        ),
        (
            "fields",
            (0..6_000).map(|at| format!("f{at}: {at}\n")).collect(),
        ),
    ];
    attempts.extend(bombs.map(|(name, yaml)| {
        Attempt::new(format!("front matter with many {name}"), move |lab| {
            for at in 0..100 {
                lab.write(
                    &format!("issues/{at}.md"),
                    format!("---\n{yaml}---\ntext\n"),
                )?;
            }
            query(lab)
        })
    }));
    attempts
}

/// Instructions that belong to another project, to another user, or to a credential.
fn instructions_of_others(is_root: bool) -> Vec<Attempt> {
    let mut attempts = vec![
        Attempt::new("the home folder's instructions link to a key", |lab| {
            lab.write(".ssh/id_ed25519", SECRET)?;
            symlink(".ssh/id_ed25519", lab.work().join("AGENTS.md"))?;
            let home = lab.work();
            ask_model(lab, |command| command.env("HOME", home))
        }),
        Attempt::new("instructions of the repository above link outside", |lab| {
            lab.write(".git/HEAD", "ref: refs/heads/main\n")?;
            lab.write("sub/a.txt", "")?;
            symlink(lab.outside().join("secret"), lab.work().join("AGENTS.md"))?;
            let below = lab.work().join("sub");
            ask_model(lab, |command| command.current_dir(below))
        }),
        Attempt::new("instructions above a folder without a repository", |lab| {
            std::fs::write(lab.work().join("../AGENTS.md"), SECRET)?;
            ask_model(lab, |command| command)
        }),
        Attempt::new("the folder of the project file is a link", |lab| {
            lab.write("inside/AGENTS.md", "text")?;
            std::fs::rename(
                lab.outside().join("secret"),
                lab.outside().join("AGENTS.md"),
            )?;
            symlink(lab.outside(), lab.work().join("sub"))?;
            symlink("sub/AGENTS.md", lab.work().join("AGENTS.md"))?;
            ask_model(lab, |command| command)
        }),
    ];
    attempts.push(Attempt::new("an empty .git above", |lab| {
        std::fs::create_dir(lab.work().join("../.git"))?;
        symlink(lab.outside().join("secret"), lab.work().join("AGENTS.md"))?;
        ask_model(lab, |command| command)
    }));
    if is_root {
        attempts.push(Attempt::new("another user's repository above", |lab| {
            let above = lab.work().join("..");
            std::fs::create_dir(above.join(".git"))?;
            std::fs::write(above.join(".git/HEAD"), "ref: refs/heads/main\n")?;
            chown(above.join(".git"), Some(54321), Some(54321))?;
            std::fs::write(above.join("AGENTS.md"), SECRET)?;
            ask_model(lab, |command| command)
        }));
    }
    attempts
}

/// Ignore rules whose compilation or matching is slow.
fn rules_that_take_long() -> Vec<Attempt> {
    let bombs: [(&str, String); 4] = [
        ("many stars", "*a*b*c*d*e*f*g*h\n".repeat(3500)),
        ("many classes", "[a-z][!a-z]?{a,b,c}**/x\n".repeat(2500)),
        ("one long line", format!("{}\n", "?*".repeat(30_000))),
        (
            "nested alternatives",
            format!("{}a{}\n", "{a,".repeat(2000), "}".repeat(2000)),
        ),
    ];
    let attempt = |(name, rules): (&str, String)| {
        Attempt::new(format!("ignore rules with {name}"), move |lab| {
            for folder in ["", "a/", "b/", "c/", "d/", "e/", "f/", "g/", "h/", "i/"] {
                lab.write(&format!("{folder}.gitignore"), &rules)?;
                lab.write(&format!("{folder}{}.txt", "a".repeat(200)), "")?;
            }
            ask_model(lab, |command| command)
        })
    };
    bombs.into_iter().map(attempt).collect()
}

/// Creates a hostile file, its folder, and what makes the file be read.
fn place(lab: &Lab, kind: HostileFile, path: &Path) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    kind.create(lab, path)
        .with_context(|| format!("cannot create {}", path.display()))
}

/// Returns a relative path from the folder of `path` to the secret.
fn relative_outside(lab: &Lab, path: &Path) -> Result<PathBuf> {
    let folder = path.parent().context("a file is in a folder")?;
    let depth = folder.strip_prefix(lab.work())?.components().count() + 1;
    Ok(PathBuf::from("../".repeat(depth)).join("outside/secret"))
}

/// Runs `selvedge exec`, and compares what reached the model.
fn ask_model(lab: &Lab, change: impl FnOnce(&mut Command) -> &mut Command) -> Result<Verdict> {
    let model = RecordingModel::start(lab)?;
    let mut command = with_secret(lab, &["exec", "-q", "Say done."]);
    change(&mut command);
    judge(command, Some(&model))
}

/// Returns a command with a secret in its environment.
fn with_secret(lab: &Lab, args: &[&str]) -> Command {
    let mut command = lab.selvedge(args);
    command.env("LAB_CANARY", ENVIRONMENT_CANARY);
    command
}

fn judge(command: Command, model: Option<&RecordingModel>) -> Result<Verdict> {
    let seen = observe(command, "")?;
    let requests = model.map(RecordingModel::requests).unwrap_or_default();
    let everything = format!("{requests}{}", seen.output());
    let is_disclosed = [SECRET, ENVIRONMENT_CANARY]
        .iter()
        .any(|canary| everything.contains(canary));
    let is_in_time = seen.ended_cleanly() && seen.elapsed < MAX_PROCESS_TIME;
    if model.is_some() && is_in_time {
        let was_searched = requests.contains("Say done.") && requests.contains(SEARCHED);
        ensure!(was_searched, "the model was not asked: {}", seen.output());
    }
    let is_small = seen.peak_memory_kb < MAX_MEMORY_KB;
    let (elapsed, memory) = (seen.elapsed, seen.peak_memory_kb >> 10);
    Ok(Verdict::held_if(
        !is_disclosed && is_in_time && is_small,
        format!(
            "disclosed: {is_disclosed}, {elapsed:?}, {memory} MB: {}",
            seen.output()
        ),
    ))
}

fn run(program: &str, args: &[&Path]) -> Result<()> {
    let status = Command::new(program).args(args).status()?;
    ensure!(status.success(), "{program} failed");
    Ok(())
}
