//! The slash commands and keys of the chat: their names, their help, and the parser for commands.

use std::sync::LazyLock;

use schemars::JsonSchema;
use selvedge_memory::ProposalDecision;
use selvedge_protocol::{ApprovalPolicy, ScriptMode};
use serde::de::DeserializeOwned;

/// A parsed slash command.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SlashCommand {
    Model(Option<String>),
    Approvals(Option<ApprovalPolicy>),
    Mode(Option<ScriptMode>),
    Diff,
    Compact,
    Continue(Option<String>),
    New,
    Runs,
    Mcp,
    Reasoning,
    Recalled,
    Memory(Option<(ProposalDecision, String)>),
    Status,
    Clear,
    Init,
    Review,
    Undo,
    Copy,
    Export(Option<String>),
    Expand,
    Trust(Option<String>),
    Help,
    Quit,
}

/// The usage of each command and its help line. `docs/terminal.md` is generated from this table.
pub(crate) const SLASH_COMMANDS: [(&str, &str); 23] = [
    ("/model [NAME]", "Show the model, or switch to NAME"),
    (
        "/approvals [POLICY]",
        "Show the approval policy, or switch to POLICY",
    ),
    (
        "/mode [MODE]",
        "Show whether scripts run, or switch to MODE",
    ),
    ("/diff", "Show what this session changed in the folder"),
    ("/compact", "Shorten the conversation to free context"),
    (
        "/continue [ID]",
        "List the sessions of this folder, or continue session ID",
    ),
    ("/new", "Start a new session"),
    ("/runs", "List the runs of this session"),
    ("/mcp", "Show the MCP servers and their state"),
    ("/reasoning", "Show the model's last reasoning"),
    ("/recalled", "Show what memory recalled for the last turn"),
    (
        "/memory [accept ID]",
        "Show what memory proposes, or decide about it",
    ),
    ("/status", "Show the model, the session and the permissions"),
    ("/clear", "Start a new session on an empty screen"),
    ("/init", "Let the model write AGENTS.md for this project"),
    ("/review", "Let the model review the uncommitted changes"),
    (
        "/undo",
        "Undo the file changes of the last turn that changed files",
    ),
    ("/copy", "Copy the last answer to the clipboard"),
    (
        "/export [FILE]",
        "Write the session to a new file, as Markdown",
    ),
    (
        "/expand",
        "Show the scripts and results of the last turn in full",
    ),
    (
        "/trust [yes]",
        "Show what the files of this folder set, or trust them",
    ),
    ("/help", "Show the commands and keys"),
    ("/quit", "Quit; `selvedge continue` reopens the session"),
];

/// Returns the command's name from its usage: `/model` for `/model [NAME]`.
pub(crate) fn command_name(usage: &str) -> &str {
    usage.split(' ').next().unwrap_or_default()
}

/// The approval policies, each with its name and what it does.
pub(crate) static APPROVAL_POLICIES: LazyLock<Vec<EnumChoice<ApprovalPolicy>>> =
    LazyLock::new(enum_choices);

/// The script modes, each with its name and what it does.
pub(crate) static SCRIPT_MODES: LazyLock<Vec<EnumChoice<ScriptMode>>> = LazyLock::new(enum_choices);

/// A value of an enumeration that is also a configuration key.
pub(crate) struct EnumChoice<T> {
    /// Name of the value in flags and files.
    pub(crate) name: String,
    /// Doc comment of the value, without its capital letter and its full stop.
    pub(crate) help: String,
    pub(crate) value: T,
}

/// Returns the values of an enumeration that is also a configuration key.
fn enum_choices<T: JsonSchema + DeserializeOwned>() -> Vec<EnumChoice<T>> {
    let schema = schemars::schema_for!(T).to_value();
    let values = schema["oneOf"].as_array().into_iter().flatten();
    let choices = values.filter_map(|value| {
        let help = value["description"].as_str()?.trim_end_matches('.');
        let mut rest = help.chars();
        let first = rest.next()?.to_lowercase();
        Some(EnumChoice {
            name: value["const"].as_str()?.to_owned(),
            help: first.chain(rest).collect(),
            value: serde_json::from_value(value["const"].clone()).ok()?,
        })
    });
    choices.collect()
}

/// Keys and what they do. `docs/terminal.md` is generated from this table.
pub(crate) const KEY_BINDINGS: [(&str, &str); 17] = [
    ("Enter", "Send; during a turn, queue for the next turn"),
    ("Alt-Enter, Ctrl-J, \\ Enter", "Insert a line break"),
    ("Up, Down", "Browse earlier messages"),
    ("Ctrl-R", "Search the earlier messages"),
    ("Ctrl-G", "Edit the message in $VISUAL or $EDITOR"),
    (
        "!COMMAND",
        "Run a command of your own; the model sees its output",
    ),
    (
        "@",
        "Complete a file name; an image is sent with the message",
    ),
    ("Ctrl-V", "Insert the image on the clipboard"),
    ("Tab", "Accept the completion"),
    ("Ctrl-T", "Show or hide the model's reasoning"),
    (
        "Ctrl-O",
        "Show the scripts and results of the last turn in full",
    ),
    ("Ctrl-L", "Draw the screen again"),
    ("Ctrl-Z", "Return to the shell; `fg` continues the chat"),
    ("Esc", "Stop the turn"),
    ("Ctrl-C", "Stop the turn, or clear the input; twice to quit"),
    ("Ctrl-D", "Quit if the input is empty"),
    ("Ctrl-A E K U W Y, Alt-B F D", "Edit as in a shell"),
];

/// Returns the name of a policy and what it does.
pub(crate) fn describe_policy(policy: ApprovalPolicy) -> (&'static str, &'static str) {
    describe_choice(&APPROVAL_POLICIES, policy)
}

/// Returns the name of a value and what it does.
pub(crate) fn describe_choice<T: PartialEq>(
    choices: &'static [EnumChoice<T>],
    value: T,
) -> (&'static str, &'static str) {
    let known = choices.iter().find(|choice| choice.value == value);
    known.map_or(("", ""), |choice| (&choice.name, &choice.help))
}

/// Whether the text is a slash command: one line that starts with `/` and is not a path.
pub(crate) fn is_command(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    text.starts_with('/') && !first[1..].contains('/') && !text.trim_end().contains('\n')
}

/// Whether the text is the command that ends the chat.
pub(crate) fn is_quit(text: &str) -> bool {
    matches!(text, "/quit" | "/exit")
}

fn parse_policy(word: String) -> Result<ApprovalPolicy, (String, String)> {
    parse_choice(&APPROVAL_POLICIES, "approval policy", &word)
}

fn parse_mode(word: String) -> Result<ScriptMode, (String, String)> {
    parse_choice(&SCRIPT_MODES, "script mode", &word)
}

/// Returns the value of this name. The error is a message and its hint.
fn parse_choice<T: Copy>(
    choices: &[EnumChoice<T>],
    what: &str,
    word: &str,
) -> Result<T, (String, String)> {
    let named = choices.iter().find(|choice| choice.name == word);
    named.map(|choice| choice.value).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|choice| choice.name.as_str()).collect();
        (
            format!("unknown {what} `{word}`"),
            format!("use one of {}", names.join(", ")),
        )
    })
}

/// Parses a slash command. The error is a message and its hint.
pub(crate) fn parse_command(text: &str) -> Result<SlashCommand, (String, String)> {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    let argument = words.next().map(str::to_owned);
    let usage = SLASH_COMMANDS
        .iter()
        .find(|(usage, _)| command_name(usage) == name);
    let usage = usage.map(|(usage, _)| *usage);
    if name == "/memory" {
        return parse_memory_command(argument.as_deref(), words.next(), words.next());
    }
    if words.next().is_some() || (argument.is_some() && usage == Some(name)) {
        let usage = usage.unwrap_or(name);
        let message = format!("too many arguments for {name}");
        if name == "/export" {
            let words: Vec<&str> = text.split_whitespace().skip(1).collect();
            return Err((message, format!("type /export {}", words.join("-"))));
        }
        return Err((message, format!("type {usage}")));
    }
    Ok(match name {
        "/model" => SlashCommand::Model(argument),
        "/approvals" => SlashCommand::Approvals(argument.map(parse_policy).transpose()?),
        "/mode" => SlashCommand::Mode(argument.map(parse_mode).transpose()?),
        "/diff" => SlashCommand::Diff,
        "/compact" => SlashCommand::Compact,
        // `/resume` is the earlier name of `/continue`.
        "/continue" | "/resume" => SlashCommand::Continue(argument),
        "/new" => SlashCommand::New,
        "/runs" => SlashCommand::Runs,
        "/mcp" => SlashCommand::Mcp,
        "/reasoning" => SlashCommand::Reasoning,
        "/recalled" => SlashCommand::Recalled,
        "/status" => SlashCommand::Status,
        "/clear" => SlashCommand::Clear,
        "/init" => SlashCommand::Init,
        "/review" => SlashCommand::Review,
        "/undo" => SlashCommand::Undo,
        "/copy" => SlashCommand::Copy,
        "/export" => SlashCommand::Export(argument),
        "/expand" => SlashCommand::Expand,
        "/trust" => SlashCommand::Trust(argument),
        "/help" => SlashCommand::Help,
        "/quit" | "/exit" => SlashCommand::Quit,
        other => {
            let mut names = SLASH_COMMANDS.iter().map(|(usage, _)| command_name(usage));
            let hint = match names.find(|name| name.starts_with(other) || other.starts_with(name)) {
                Some(name) => format!("did you mean {name}? type /help to list all commands"),
                None => "type /help to list all commands".to_owned(),
            };
            return Err((format!("unknown command {other}"), hint));
        }
    })
}

/// Parses the arguments of `/memory`.
fn parse_memory_command(
    verb: Option<&str>,
    id: Option<&str>,
    more: Option<&str>,
) -> Result<SlashCommand, (String, String)> {
    let decision = match (verb, id, more) {
        (None, ..) => return Ok(SlashCommand::Memory(None)),
        (Some("accept"), Some(_), None) => ProposalDecision::Accept,
        (Some("decline"), Some(_), None) => ProposalDecision::Decline,
        _ => {
            let message = "`/memory` takes no argument, `accept ID` or `decline ID`".to_owned();
            return Err((message, "type /memory to list the ids".to_owned()));
        }
    };
    let id = id.unwrap_or_default().to_owned();
    Ok(SlashCommand::Memory(Some((decision, id))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed_and_a_path_is_not_a_command() {
        assert_eq!(
            parse_command("/model gpt-5"),
            Ok(SlashCommand::Model(Some("gpt-5".into())))
        );
        assert_eq!(
            parse_command("/approvals never"),
            Ok(SlashCommand::Approvals(Some(ApprovalPolicy::Never)))
        );
        assert_eq!(
            parse_command("/memory decline les_1"),
            Ok(SlashCommand::Memory(Some((
                ProposalDecision::Decline,
                "les_1".into()
            ))))
        );
        assert!(parse_command("/memory accept").is_err());
        let (_, hint) = parse_command("/export my file.md").unwrap_err();
        assert_eq!(hint, "type /export my-file.md");
        assert!(
            is_command("/diff") && is_command("/nonsense") && !is_command("/etc/passwd is odd")
        );
        assert!(!is_command("/diff\nand more") && !is_command("a /diff"));
        for (usage, _) in SLASH_COMMANDS {
            assert!(parse_command(command_name(usage)).is_ok(), "{usage}");
        }
    }

    #[test]
    fn parse_errors_have_a_message_and_a_hint() {
        let error = |text| parse_command(text).unwrap_err();
        assert_eq!(error("/foo").0, "unknown command /foo");
        assert!(error("/mod").1.contains("did you mean /model?"));
        assert!(
            error("/approvals maybe")
                .1
                .contains("untrusted, on-request")
        );
        assert_eq!(
            error("/mode maybe"),
            (
                "unknown script mode `maybe`".into(),
                "use one of disabled, dry-run, enabled".into()
            )
        );
        assert_eq!(
            error("/diff now"),
            ("too many arguments for /diff".into(), "type /diff".into())
        );
    }
}
