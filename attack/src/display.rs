//! Attacks by characters that a terminal obeys or does not show, in text that reaches a terminal
//! from outside. The characters are the rows of `data/display.tsv`; each is tried on every surface.

use anyhow::{Context, Result};
use serde_json::json;

use crate::approvals::unescape;
use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, observe};
use crate::model_server;
use crate::pty::Pty;

/// A place where outside text is printed. The function prepares the lab and returns the arguments
/// of the command that prints the text.
type Surface = fn(&Lab, &str) -> Result<Vec<String>>;

const SURFACES: &[(&str, Surface)] = &[
    ("error", error_message),
    ("unknown flag", unknown_flag),
    ("unknown command", unknown_command),
    ("invalid value of a flag", invalid_value),
    ("unknown value of a flag", unknown_value),
    ("script output", script_output),
    ("script log", script_log),
    ("JSON output", json_output),
    ("runs show", runs_show),
    ("mcp list", mcp_list),
    ("memory turn", memory_turn),
    ("sessions list", sessions_list),
    ("configuration warning", config_warning),
    ("answer", answer),
];

/// Returns one attempt per row and surface. It succeeds if a character of the row reaches the
/// terminal.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for row in include_str!("../data/display.tsv").lines() {
        if row.starts_with('#') {
            continue;
        }
        let (name, text) = row.split_once('\t').context("a row has two cells")?;
        let text = unescape(text)?;
        for (surface, prepare) in SURFACES {
            let (text, prepare) = (text.clone(), *prepare);
            let attempt = move |lab: &Lab| show(lab, &text, prepare);
            attempts.push(Attempt::new(format!("{surface}: {name}"), attempt));
        }
    }
    Ok(attempts)
}

/// Prints a text with the characters on a surface, between two words that must be printed.
fn show(lab: &Lab, characters: &str, prepare: Surface) -> Result<Verdict> {
    let text = format!("before{characters}after");
    let args = prepare(lab, &text)?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = Pty::start(lab, &args)?.finish()?;
    anyhow::ensure!(output.contains("before"), "nothing was shown: {output:?}");
    // Selvedge itself writes escape sequences for other colours and for spinners, each complete.
    let is_printed = |c: &char| match c {
        '\u{1b}' => ["\u{1b}[35;44m", "\u{1b}]0;", "\u{1b}[2J"]
            .iter()
            .any(|sequence| output.contains(sequence)),
        '\r' => output.contains("\rafter"),
        // Visible parts of the text, and the replacement of bytes that are not UTF-8.
        c if c.is_ascii_graphic() || *c == '❤' => false,
        // One selector after a heart is ordinary text.
        '\u{fe0f}' => output.matches('\u{fe0f}').count() > output.matches("❤\u{fe0f}").count(),
        c => output.contains(*c),
    };
    let printed: Vec<char> = characters.chars().filter(is_printed).collect();
    Ok(Verdict::held_if(
        printed.is_empty(),
        format!("{printed:?} reached the terminal: {output:?}"),
    ))
}

fn to_args<const N: usize>(args: [&str; N]) -> Result<Vec<String>> {
    Ok(args.map(str::to_owned).to_vec())
}

/// Characters that can be part of an argument. The system ends an argument at a null character.
fn in_argument(text: &str) -> String {
    text.replace('\0', "")
}

fn unknown_flag(_: &Lab, text: &str) -> Result<Vec<String>> {
    to_args(["run", &format!("--{}", in_argument(text))])
}

fn unknown_command(_: &Lab, text: &str) -> Result<Vec<String>> {
    to_args(["runs", &in_argument(text)])
}

fn invalid_value(_: &Lab, text: &str) -> Result<Vec<String>> {
    to_args(["run", "--timeout", &in_argument(text), "-e", "return 1"])
}

fn unknown_value(_: &Lab, text: &str) -> Result<Vec<String>> {
    to_args(["run", "--approval", &in_argument(text), "-e", "return 1"])
}

/// An error that names a file.
fn error_message(lab: &Lab, text: &str) -> Result<Vec<String>> {
    lab.write("bad.ts", format!("throw new Error({})", json!(text)))?;
    to_args(["run", "bad.ts"])
}

fn script_output(lab: &Lab, value: &str) -> Result<Vec<String>> {
    let value = json!(value);
    lab.write("out.ts", format!("text({value}); return {value}"))?;
    to_args(["run", "out.ts"])
}

fn script_log(lab: &Lab, message: &str) -> Result<Vec<String>> {
    let message = json!(message);
    let source = format!(
        "console.log({message}); console.error({message}); notify({message}); \
         try {{ await tools.readFile({{ path: {message} }}) }} catch {{}}"
    );
    lab.write("log.ts", source)?;
    to_args(["run", "log.ts"])
}

fn json_output(lab: &Lab, value: &str) -> Result<Vec<String>> {
    lab.write("out.ts", format!("return {}", json!(value)))?;
    to_args(["run", "--json", "out.ts"])
}

/// A recorded run whose error and arguments contain the text.
fn runs_show(lab: &Lab, message: &str) -> Result<Vec<String>> {
    let message = json!(message);
    let source = format!(
        "try {{ await tools.readFile({{ path: {message} }}) }} catch {{}} throw new Error({message})"
    );
    let (item, _) = lab.script(&source, &[])?;
    let id = item["id"].as_str().context("the run has no id")?;
    to_args(["runs", "show", id])
}

/// An MCP server that fails with the text.
fn mcp_list(lab: &Lab, text: &str) -> Result<Vec<String>> {
    lab.write("message", text)?;
    let message = lab.work().join("message");
    let config = format!(
        "[mcp_servers.odd]\ncommand = \"sh\"\nargs = [\"-c\", \"echo before >&2; cat {} >&2\"]\n",
        message.display()
    );
    std::fs::write(lab.home().join("config.toml"), config)?;
    to_args(["mcp", "list"])
}

/// An imported turn that contains the text.
fn memory_turn(lab: &Lab, text: &str) -> Result<Vec<String>> {
    let turn = json!({"session": "s", "turn": 1, "role": "user", "text": text});
    lab.write("turns.jsonl", format!("{turn}\n"))?;
    let imported = lab.run(&["memory", "import", "turns.jsonl"])?;
    anyhow::ensure!(imported.exit_code == Some(0), "{}", imported.output());
    to_args(["memory", "turn", "T-1", "--session", "s", "--level", "R"])
}

/// A session whose first message is the text.
fn sessions_list(lab: &Lab, text: &str) -> Result<Vec<String>> {
    model_server::configure(lab, "Done.")?;
    let seen = observe(lab.selvedge(&["exec", "-"]), text)?;
    anyhow::ensure!(seen.exit_code == Some(0), "{}", seen.output());
    to_args(["sessions", "list"])
}

/// A configuration of the user with an unknown key.
fn config_warning(lab: &Lab, key: &str) -> Result<Vec<String>> {
    let key: String = key
        .chars()
        .map(|c| match c {
            // TOML has no other way to write these.
            c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
            c => c.to_string(),
        })
        .collect();
    std::fs::write(lab.home().join("config.toml"), format!("\"{key}\" = 1\n"))?;
    to_args(["run", "-e", "return 1"])
}

/// A model's answer.
fn answer(lab: &Lab, text: &str) -> Result<Vec<String>> {
    model_server::configure(lab, text)?;
    to_args(["exec", "Say it"])
}
