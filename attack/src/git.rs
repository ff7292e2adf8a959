//! Attacks by a repository: its configuration, hooks and submodules try to run a program when a
//! read-only `git` command runs without approval, with confinement and without.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, observe};

/// Text that the attacker's program prints.
const MARK: &str = "evil-program-ran";

/// Ways of a repository to run a program: a name, and the commands that prepare it after a first
/// commit with the files `a.txt` and `b.evil`. `$EVIL` is the program, `$OUT` a folder outside.
const REPOSITORIES: &[(&str, &str)] = &[
    (
        "clean filter",
        "git config filter.evil.clean $EVIL; echo '*.evil filter=evil' > .gitattributes",
    ),
    (
        "process filter",
        "git config filter.evil.process $EVIL; echo '*.evil filter=evil' > .gitattributes",
    ),
    (
        "smudge filter",
        "git config filter.evil.smudge $EVIL; echo '*.evil filter=evil' > .gitattributes",
    ),
    (
        "filter of .git/info/attributes",
        "git config filter.evil.clean $EVIL; mkdir -p .git/info; \
         echo '*.evil filter=evil' > .git/info/attributes",
    ),
    (
        "filter in an included file",
        "printf '[filter \"evil\"]\\nclean = %s\\n' $EVIL > extra; \
         git config include.path ../extra; echo '*.evil filter=evil' > .gitattributes",
    ),
    (
        "filter in a conditionally included file",
        "printf '[filter \"evil\"]\\nclean = %s\\n' $EVIL > $OUT/extra; \
         git config includeIf.onbranch:**.path $OUT/extra; \
         echo '*.evil filter=evil' > .gitattributes",
    ),
    (
        "filter in the configuration of a work tree",
        "git config extensions.worktreeConfig true; git config --worktree filter.evil.clean $EVIL; \
         echo '*.evil filter=evil' > .gitattributes",
    ),
    ("external diff", "git config diff.external $EVIL"),
    (
        "diff driver",
        "git config diff.evil.command $EVIL; echo '*.evil diff=evil' > .gitattributes",
    ),
    (
        "text conversion",
        "git config diff.evil.textconv $EVIL; echo '*.evil diff=evil' > .gitattributes",
    ),
    (
        "text conversion of a committed attribute",
        "git config diff.evil.textconv $EVIL; echo '*.evil diff=evil' > .gitattributes; \
         git add -A; git commit -qm attributes; echo more > b.evil",
    ),
    (
        "pager",
        "git config core.pager $EVIL; git config pager.log $EVIL",
    ),
    ("file system monitor", "git config core.fsmonitor $EVIL"),
    (
        "hook post-index-change",
        "cp $EVIL .git/hooks/post-index-change; touch a.txt",
    ),
    (
        "hooks in another folder",
        "mkdir hooks; cp $EVIL hooks/post-index-change; git config core.hooksPath hooks; \
         touch a.txt",
    ),
    (
        "configured hook",
        "git config hook.evil.command $EVIL; git config hook.evil.event post-index-change; \
         touch a.txt",
    ),
    (
        "signatures in the log",
        "git config log.showSignature true; git config gpg.program $EVIL; $SIGN",
    ),
    (
        "signatures in a format",
        "git config format.pretty '%G?'; git config gpg.program $EVIL; $SIGN",
    ),
    (
        "signatures by ssh",
        "git config log.showSignature true; git config gpg.format ssh; \
         git config gpg.ssh.program $EVIL; $SIGN",
    ),
    (
        "lazy fetch",
        "git config extensions.partialClone origin; git config remote.origin.url $OUT; \
         git config remote.origin.promisor true; git config remote.origin.uploadpack $EVIL; \
         git config core.repositoryFormatVersion 1; rm -f .git/objects/*/*",
    ),
    (
        "remote helper",
        "git config extensions.partialClone origin; \
         git config remote.origin.url \"ext::$EVIL x\"; git config protocol.ext.allow always; \
         git config remote.origin.promisor true; git config core.repositoryFormatVersion 1; \
         rm -f .git/objects/*/*",
    ),
    (
        "alias of a command",
        "git config alias.status \"!$EVIL\"; git config alias.diff \"!$EVIL\"",
    ),
    (
        "submodule with a filter",
        "git init -q sub; cd sub; echo x > c.evil; git add c.evil; git commit -qm sub; cd ..; \
         git add sub 2>/dev/null; git commit -qm with-sub; cd sub; \
         git config filter.evil.clean $EVIL; echo '*.evil filter=evil' > .gitattributes; \
         echo y > c.evil",
    ),
    (
        "submodule with a monitor",
        "git init -q sub; cd sub; echo x > c.evil; git add c.evil; git commit -qm sub; cd ..; \
         git add sub 2>/dev/null; git commit -qm with-sub; \
         git -C sub config core.fsmonitor $EVIL",
    ),
    (
        "bare repository at the root",
        "mv .git/* .; rm -r .git; git config --file config core.bare false; \
         git config --file config core.worktree .; git config --file config core.fsmonitor $EVIL; \
         git config --file config diff.external $EVIL",
    ),
    (
        "repository elsewhere",
        "mv .git $OUT/repository; echo \"gitdir: $OUT/repository\" > .git; \
         git config diff.external $EVIL",
    ),
    (
        "work tree elsewhere",
        "git config core.worktree $OUT; git config diff.external $EVIL",
    ),
    (
        "external diff of a submodule that only the history names",
        "git init -q s; (cd s; git commit -q --allow-empty -m 0; echo 1 > f; git add f; \
         git commit -qm 1; git config diff.external \"$EVIL\"); \
         for c in $(git -C s rev-parse HEAD~1 HEAD); do git update-index --add --cacheinfo \
         160000,$c,s; git commit -qm x; done; git rm -q --cached s; git commit -qm y; \
         git config diff.submodule diff",
    ),
];

/// Commands that run without approval in a harmless repository.
const COMMANDS: &[&str] = &[
    "git status",
    "git diff",
    "git log -p",
    "git show",
    "git log",
];

const SANDBOXES: [&str; 2] = ["danger-full-access", "workspace-write"];

/// Returns one attempt per repository and sandbox, and one that checks that a harmless repository
/// needs no approval: otherwise the others would prove nothing.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for (name, setup) in REPOSITORIES {
        for sandbox in SANDBOXES {
            attempts.push(Attempt::new(format!("{name}, {sandbox}"), move |lab| {
                prepare(lab, setup)?;
                let output = run(lab, sandbox)?;
                let has_run = output.contains(MARK) || lab.outside().join("ran").exists();
                Ok(Verdict::held_if(!has_run, output))
            }));
        }
    }
    attempts.push(Attempt::new("harmless repository", |lab| {
        prepare(lab, "git config user.name other")?;
        let output = run(lab, "danger-full-access")?;
        let succeeded = output.matches("exit 0").count();
        ensure!(succeeded == COMMANDS.len(), "{output}");
        Ok(Verdict::Held)
    }));
    Ok(attempts)
}

/// Creates a repository with a commit and a change, then runs the attacker's commands in it.
fn prepare(lab: &Lab, setup: &str) -> Result<()> {
    let out = lab.outside();
    let evil = out.join("evil");
    let program = format!(
        "#!/bin/sh\necho {MARK}\necho {MARK} >&2\necho x > '{}/ran'\n",
        out.display()
    );
    std::fs::write(&evil, program)?;
    std::fs::set_permissions(&evil, std::fs::Permissions::from_mode(0o755))?;
    // A commit with a signature, which nothing has to be able to check.
    let sign = "tree=$(git write-tree); printf 'tree %s\\nauthor a <a> 0 +0000\\ncommitter a <a> 0 \
                +0000\\ngpgsig -----BEGIN PGP SIGNATURE-----\\n \\n x\\n -----END PGP \
                SIGNATURE-----\\n\\nsigned\\n' $tree > commit; \
                git update-ref HEAD $(git hash-object -t commit -w commit); rm commit";
    let script = format!(
        "set -e; git init -q -b main .; git config user.name a; git config user.email a; \
         echo a > a.txt; echo b > b.evil; git add a.txt b.evil; git commit -qm first; \
         echo c > b.evil; {}",
        setup.replace("$SIGN", sign)
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .current_dir(lab.work())
        .env("HOME", lab.home())
        .env("GIT_AUTHOR_NAME", "a")
        .env("GIT_AUTHOR_EMAIL", "a")
        .env("GIT_COMMITTER_NAME", "a")
        .env("GIT_COMMITTER_EMAIL", "a")
        .env("EVIL", &evil)
        .env("OUT", &out);
    let seen = observe(command, "")?;
    ensure!(seen.exit_code == Some(0), "{}", seen.output());
    // The preparation itself may have run the program.
    let _ = std::fs::remove_file(out.join("ran"));
    Ok(())
}

/// Runs the commands, which no one approves, and returns everything they printed.
fn run(lab: &Lab, sandbox: &str) -> Result<String> {
    let source = format!(
        "const seen: string[] = [];
         for (const command of {}) {{
             try {{
                 const ran = await tools.exec({{ command: command.split(' ') }});
                 seen.push(`exit ${{ran.exitCode}}\n${{ran.stdout}}${{ran.stderr}}`);
             }} catch (error) {{ seen.push(String(error)) }}
         }}
         return seen",
        serde_json::to_string(COMMANDS)?
    );
    let args = ["--approval", "untrusted", "--sandbox", sandbox];
    let (item, seen) = lab.script(&source, &args)?;
    let printed = item["output_json"].as_str().unwrap_or_default();
    Ok(format!("{printed}{}", seen.stderr))
}
