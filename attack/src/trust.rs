//! Attacks by a project's configuration: starting a program, changing a setting or sending a secret
//! before the user trusts the folder, or without the question naming it.

use anyhow::Result;

use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, observe};
use crate::pty::Pty;

/// Text at the end of the question.
const QUESTION_END: &str = "Trust this folder from now on?";

/// The prompt after the options of the question.
const PROMPT: &str = "\n> ";

/// A project's server that leaves a mark when it is started.
const MARKING_SERVER: &str =
    r#"{"mcpServers": {"mark": {"command": "sh", "args": ["-c", "touch marked"]}}}"#;

/// What a user may type or paste at the question without meaning to trust the folder.
const NO_ANSWERS: [&str; 20] = [
    "",
    "y",
    "Y",
    "yes",
    "n",
    "no",
    "yes please",
    " 1",
    "1.",
    "11",
    "stop it, step 1",
    "3",
    "\u{1b}[A",
    "\u{202e}1",
    "\u{1b}[200~1\u{1b}[201~",
    "\u{1b}[200~y\u{1b}[201~",
    "\u{1b}[200~\u{1b}[201~1",
    "\u{1b}[200~a\n1\n1\n\u{1b}[201~",
    "\u{1b}[200~1\u{7f}\u{15}\n1\u{1b}[201~",
    "a\n1",
];

/// Commands that could start a project's servers, besides the chat.
const COMMANDS: [&[&str]; 7] = [
    &["run", "-e", "return await tools.mcp.mark.x()"],
    &["check", "script.ts"],
    &["tools"],
    &["tools", "--json"],
    &["doctor"],
    &["mcp", "list"],
    &["mcp", "serve"],
];

/// Returns the attempts of this class. Each row of `data/trust.tsv` is a file of a project, and a
/// text that the question must contain.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for row in include_str!("../data/trust.tsv").lines().skip(1) {
        let cells: Vec<String> = row.split('\t').map(str::to_owned).collect();
        let [name, file, content, shown] = <[String; 4]>::try_from(cells)
            .map_err(|cells| anyhow::anyhow!("a row has four cells: {cells:?}"))?;
        attempts.push(Attempt::new(format!("not named: {name}"), move |lab| {
            lab.write(&file, content.replace("\\n", "\n"))?;
            let output = ask(lab, &["tools"], |terminal| terminal.type_text("2\n"))?;
            let question = output.split(QUESTION_END).next().unwrap_or_default();
            Ok(Verdict::held_if(question.contains(&shown), output))
        }));
    }
    for args in COMMANDS {
        attempts.push(Attempt::new(
            format!("untrusted: {}", args.join(" ")),
            move |lab| {
                lab.write(".mcp.json", MARKING_SERVER)?;
                lab.write("script.ts", "return await tools.mcp.mark.x()")?;
                let seen = lab.run(args)?;
                Ok(not_marked(lab, &seen.output()))
            },
        ));
    }
    for answer in NO_ANSWERS {
        attempts.push(Attempt::new(format!("answered {answer:?}"), move |lab| {
            lab.write(".mcp.json", MARKING_SERVER)?;
            let output = ask(lab, &["mcp", "list"], |terminal| {
                let seen = terminal.position();
                terminal.type_text(&format!("{answer}\n"))?;
                // Either the prompt comes again, or the folder is trusted.
                terminal.wait_for(seen, &[PROMPT, "mark"])?;
                terminal.type_text("2\n")
            })?;
            Ok(not_marked(lab, &output))
        }));
    }
    attempts.push(Attempt::new("replaced while the question is open", |lab| {
        lab.write(
            ".mcp.json",
            r#"{"mcpServers": {"shown": {"command": "true"}}}"#,
        )?;
        let output = ask(lab, &["mcp", "list"], |terminal| {
            lab.write(".mcp.json", MARKING_SERVER)?;
            terminal.type_text("1\n")
        })?;
        // The changed file needs a decision of its own.
        let later = lab.run(&["mcp", "list"])?;
        Ok(not_marked(lab, &format!("{output}{}", later.output())))
    }));
    attempts.push(Attempt::new("answered before the question", |lab| {
        lab.write(".mcp.json", MARKING_SERVER)?;
        let mut terminal = Pty::start(lab, &["mcp", "list"])?;
        terminal.type_text("1\n1\n1\n")?;
        terminal.wait_for(0, &[PROMPT])?;
        terminal.type_text("2\n")?;
        let output = terminal.finish()?;
        Ok(not_marked(lab, &output))
    }));
    attempts.push(Attempt::new("changed after it was trusted", |lab| {
        lab.write(
            ".mcp.json",
            r#"{"mcpServers": {"shown": {"command": "true"}}}"#,
        )?;
        lab.run(&["tools", "--trust"])?;
        lab.write(".mcp.json", MARKING_SERVER)?;
        let seen = lab.run(&["mcp", "list"])?;
        Ok(not_marked(lab, &seen.output()))
    }));
    attempts.push(Attempt::new("a trusted file in another folder", |lab| {
        lab.write(".mcp.json", MARKING_SERVER)?;
        lab.write("sub/.mcp.json", MARKING_SERVER)?;
        let mut trusting = lab.selvedge(&["tools", "--trust"]);
        trusting.current_dir(lab.work().join("sub"));
        observe(trusting, "")?;
        let _ = std::fs::remove_file(lab.work().join("sub/marked"));
        let seen = lab.run(&["mcp", "list"])?;
        Ok(not_marked(lab, &seen.output()))
    }));
    Ok(attempts)
}

fn not_marked(lab: &Lab, output: &str) -> Verdict {
    Verdict::held_if(!lab.work().join("marked").exists(), output)
}

/// Runs a command in a terminal, answers its question, and returns its output.
fn ask(lab: &Lab, args: &[&str], answer: impl FnOnce(&mut Pty) -> Result<()>) -> Result<String> {
    let mut terminal = Pty::start(lab, args)?;
    terminal.wait_for(0, &[PROMPT])?;
    anyhow::ensure!(
        terminal.output().contains(QUESTION_END),
        "no question came: {}",
        terminal.output()
    );
    answer(&mut terminal)?;
    terminal.finish()
}
