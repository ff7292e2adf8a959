//! Attacks that change files which other programs execute later: editor, agent, hook and prompt
//! configuration, by tools and by confined commands, directly and in roundabout ways.

use anyhow::{Context, Result};

use crate::attempt::{Attempt, Verdict};
use crate::lab::Lab;

/// A file in each protected folder or of each protected name.
const FILES: &[&str] = &[
    ".git/hooks/pre-commit",
    ".selvedge/config.toml",
    ".claude/settings.json",
    ".codex/config.toml",
    ".cursor/mcp.json",
    ".devcontainer/devcontainer.json",
    ".envrc",
    ".fleet/run.json",
    ".gemini/settings.json",
    ".husky/pre-commit",
    ".idea/workspace.xml",
    ".mcp.json",
    ".vscode/tasks.json",
    ".windsurf/mcp.json",
    ".zed/tasks.json",
    ".hg/hgrc",
    ".jj/repo/config.toml",
    ".kiro/settings/mcp.json",
    ".opencode/command/x.md",
];

/// Ways to write a file. `$FILE` is the file, `$TOP` its first part, `$UPPER` the file with the
/// first part in capitals. `sh` runs a script in a confined command.
const WAYS: &[(&str, &str)] = &[
    (
        "write_file",
        "await tools.writeFile({ path: '$FILE', content: 'evil' })",
    ),
    (
        "write_file in capitals",
        "await tools.writeFile({ path: '$UPPER', content: 'evil' })",
    ),
    (
        "write_file below a folder",
        "await tools.writeFile({ path: 'nested/$FILE', content: 'evil' })",
    ),
    (
        "patch",
        "await tools.applyPatch({ patch: '*** Begin Patch\\n*** Add File: $FILE\\n+evil\\n\
         *** End Patch' })",
    ),
    (
        "patch that renames",
        "await tools.writeFile({ path: 'innocent', content: 'evil\\n' }); await tools.applyPatch({ \
         patch: '*** Begin Patch\\n*** Update File: innocent\\n*** Move to: $FILE\\n@@\\n\
         -evil\\n+evil2\\n*** End Patch' })",
    ),
    (
        "command",
        "await sh('mkdir -p $(dirname $FILE); echo evil > $FILE')",
    ),
    (
        "command that renames",
        "await sh('mkdir -p x/$(dirname $FILE); echo evil > x/$FILE; mv -T x/$TOP $TOP')",
    ),
    (
        "command through a link",
        "await sh('ln -s . here; mkdir -p here/$(dirname $FILE); echo evil > here/$FILE')",
    ),
    (
        "write_file through a link",
        "await sh('ln -s . here'); await tools.writeFile({ path: 'here/$FILE', content: 'evil' })",
    ),
    (
        "command that links",
        "await sh('mkdir -p x/$(dirname $FILE); echo evil > x/$FILE; ln -s x/$TOP $TOP')",
    ),
];

/// Returns the attempts: every file directly, and two files in every way.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for (at, file) in FILES.iter().enumerate() {
        for (way, code) in WAYS {
            let is_direct = ["write_file", "patch", "command"].contains(way);
            if is_direct || at % 5 == 2 {
                attempts.push(Attempt::new(format!("{way}: {file}"), |lab| {
                    write_by(lab, file, code)
                }));
            }
        }
    }
    for (name, code) in IN_MISSING_FOLDER {
        attempts.push(Attempt::new(format!("missing folder: {name}"), |lab| {
            let config = "[sandbox]\nprotected_paths = [\"conf/deep/tasks.json\"]\n";
            std::fs::write(lab.home().join("config.toml"), config)?;
            let output = run(lab, code)?;
            let path = lab.work().join("conf/deep/tasks.json");
            let is_written = std::fs::read_to_string(path).is_ok();
            Ok(Verdict::held_if(!is_written, output))
        }));
    }
    for (name, links, code) in LINK_CHAINS {
        attempts.push(Attempt::new(format!("chain of links: {name}"), |lab| {
            through_links(lab, links, code)
        }));
    }
    for (name, prepare, code) in LINKED {
        attempts.push(Attempt::new(*name, move |lab| {
            lab.write("settings/tasks.json", "before")?;
            let path = lab.work().join(".vscode");
            std::os::unix::fs::symlink(prepare, path)?;
            let output = run(lab, code)?;
            let changed = std::fs::read_to_string(lab.work().join("settings/tasks.json"))?;
            Ok(Verdict::held_if(changed == "before", output))
        }));
    }
    attempts.push(Attempt::new("dot files of the home folder", |lab| {
        let code = "await sh('echo evil > .bashrc'); await tools.writeFile({ path: '.profile', \
                    content: 'evil' })";
        let mut command = lab.selvedge(&["run", "--json", "-"]);
        command.env("HOME", lab.work());
        let seen = crate::lab::observe(command, &script(code))?;
        crate::lab::script_item(&seen)?;
        let is_written = [".bashrc", ".profile"]
            .iter()
            .any(|file| lab.work().join(file).exists());
        Ok(Verdict::held_if(!is_written, seen.output()))
    }));
    Ok(attempts)
}

/// Attacks on a `.vscode` that is a link to a folder of the workspace: name, target, script.
const LINKED: &[(&str, &str, &str)] = &[
    (
        "write_file to the target of a link",
        "settings",
        "await tools.writeFile({ path: 'settings/tasks.json', content: 'evil' })",
    ),
    (
        "edit_file to the target of a link",
        "settings",
        "await tools.editFile({ path: 'settings/tasks.json', old: 'before', new: 'evil' })",
    ),
    (
        "edit_file through a link",
        "settings",
        "await tools.editFile({ path: '.vscode/tasks.json', old: 'before', new: 'evil' })",
    ),
    (
        "command that writes to the target of a link",
        "settings",
        "await sh('echo evil > settings/tasks.json')",
    ),
    (
        "command that replaces the target of a link",
        "settings",
        "await sh('mkdir x; echo evil > x/tasks.json; rm -r settings; mv x settings')",
    ),
];

/// Attacks on a protected path whose folders do not exist: name and script.
const IN_MISSING_FOLDER: &[(&str, &str)] = &[
    (
        "command",
        "await sh('mkdir -p conf/deep; echo evil > conf/deep/tasks.json')",
    ),
    (
        "command that renames",
        "await sh('mkdir -p x/deep; echo evil > x/deep/tasks.json; mv -T x conf')",
    ),
    (
        "command that links",
        "await sh('mkdir -p x/deep; echo evil > x/deep/tasks.json; ln -s x conf')",
    ),
    (
        "write_file",
        "await tools.writeFile({ path: 'conf/deep/tasks.json', content: 'evil' })",
    ),
    (
        "patch",
        "await tools.applyPatch({ patch: '*** Begin Patch\\n*** Add File: conf/deep/tasks.json\\n\
         +evil\\n*** End Patch' })",
    ),
];

/// Name, links with their targets, script.
type LinkChain = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
);

/// Attacks on a protected name that leads to its files through several links. The files are
/// `settings/tasks.json`; `evil/tasks.json` is prepared.
const LINK_CHAINS: &[LinkChain] = &[
    (
        "command that replaces the second link",
        &[(".vscode", "second"), ("second", "settings")],
        "await sh('ln -sfn evil second')",
    ),
    (
        "command that renames the second link",
        &[(".vscode", "second"), ("second", "settings")],
        "await sh('mv second away; mv evil second')",
    ),
    (
        "command that replaces the third link",
        &[
            (".vscode", "second"),
            ("second", "sub/third"),
            ("sub/third", "../settings"),
        ],
        "await sh('rm sub/third; ln -s ../evil sub/third')",
    ),
    (
        "command that renames a folder with a link",
        &[
            (".vscode", "second"),
            ("second", "sub/third"),
            ("sub/third", "../settings"),
        ],
        "await sh('mv sub away; mkdir sub; ln -s ../evil sub/third')",
    ),
    (
        "command that replaces a folder that is a link",
        &[(".vscode", "folder/settings"), ("folder", ".")],
        "await sh('rm folder; mkdir folder; mv evil folder/settings')",
    ),
    (
        "patch that deletes the second link",
        &[(".vscode", "second"), ("second", "settings")],
        "await tools.applyPatch({ patch: '*** Begin Patch\\n*** Delete File: second\\n\
         *** End Patch' }); await sh('ln -s evil second')",
    ),
    (
        "command that replaces a link in the name of a repository",
        &[("repository", "settings")],
        "await sh('ln -sfn evil repository')",
    ),
];

/// Creates links and a prepared folder, runs a script, and compares what is found by the protected
/// name.
fn through_links(lab: &Lab, links: &[(&str, &str)], code: &str) -> Result<Verdict> {
    lab.write("settings/tasks.json", "before")?;
    lab.write("evil/tasks.json", "evil")?;
    lab.write("sub/x", "")?;
    for (link, target) in links {
        std::os::unix::fs::symlink(target, lab.work().join(link))?;
    }
    let mut file = lab.work().join(".vscode/tasks.json");
    if links[0].0 == "repository" {
        lab.write(".git", "gitdir: repository\n")?;
        file = lab.work().join("repository/tasks.json");
    }
    anyhow::ensure!(std::fs::read_to_string(&file)? == "before", "no such link");
    let output = run(lab, code)?;
    let found = std::fs::read_to_string(file).unwrap_or_default();
    Ok(Verdict::held_if(found == "before", output))
}

fn write_by(lab: &Lab, file: &str, code: &str) -> Result<Verdict> {
    let top = file.split('/').next().context("a file has a name")?;
    let upper = file.replacen(top, &top.to_ascii_uppercase(), 1);
    let code = code
        .replace("$FILE", file)
        .replace("$TOP", top)
        .replace("$UPPER", &upper);
    let output = run(lab, &code)?;
    let nested = format!("nested/{file}");
    let written = [file, &upper, &nested]
        .into_iter()
        .find(|file| std::fs::read_to_string(lab.work().join(file)).is_ok());
    Ok(Verdict::held_if(
        written.is_none(),
        format!("{written:?}: {output}"),
    ))
}

/// Runs a script in which a failed step is not an error.
fn run(lab: &Lab, code: &str) -> Result<String> {
    let (item, seen) = lab.script(&script(code), &["--approval", "never"])?;
    anyhow::ensure!(!item.is_null(), "it crashed: {}", seen.output());
    Ok(seen.output())
}

fn script(code: &str) -> String {
    let steps = code
        .split("; await ")
        .map(|step| step.trim_start_matches("await "))
        .map(|step| format!("try {{ await {step} }} catch (error) {{ log(String(error)) }}\n"));
    format!(
        "const log = console.log;\n\
         const sh = (line: string) => tools.exec({{ command: ['sh', '-c', line] }});\n{}",
        steps.collect::<String>()
    )
}
