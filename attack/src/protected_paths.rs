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
    Ok(lab
        .script(&script(code), &["--approval", "never"])?
        .1
        .output())
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
