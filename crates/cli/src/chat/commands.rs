//! What can be said to the chat itself: a word behind a slash.

use selvedge_protocol::ApprovalPolicy;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Command {
    Model(Option<String>),
    Approvals(Option<ApprovalPolicy>),
    Diff,
    Compact,
    Resume(Option<String>),
    New,
    Runs,
    Mcp,
    Thinking,
    Help,
    Quit,
}

/// How each command is used, and what it does.
pub(crate) const ALL: [(&str, &str); 11] = [
    (
        "/model [NAME]",
        "which model is asked, or another one from now on",
    ),
    (
        "/approvals [POLICY]",
        "when you are asked, or another policy from now on",
    ),
    ("/diff", "what this session changed in the folder"),
    ("/compact", "make the conversation shorter, to have room"),
    ("/resume [ID]", "go on with an earlier session"),
    ("/new", "begin a new session"),
    ("/runs", "what ran in this session"),
    ("/mcp", "the MCP servers, and how they are doing"),
    ("/thinking", "what was thought last"),
    ("/help", "the keys and commands"),
    ("/quit", "leave; the session stays"),
];

/// The name of a command, of how it is used.
pub(crate) fn name_of(usage: &str) -> &str {
    usage.split(' ').next().unwrap_or_default()
}

pub(crate) const POLICIES: [(&str, &str, ApprovalPolicy); 4] = [
    (
        "untrusted",
        "whatever is not known to be harmless is asked for",
        ApprovalPolicy::Untrusted,
    ),
    (
        "on-request",
        "what needs more than the sandbox allows is asked for",
        ApprovalPolicy::OnRequest,
    ),
    (
        "on-failure",
        "what the sandbox stopped is asked for",
        ApprovalPolicy::OnFailure,
    ),
    (
        "never",
        "nothing is asked; what would have to be is refused",
        ApprovalPolicy::Never,
    ),
];

pub(crate) const KEYS: [(&str, &str); 9] = [
    ("Enter", "send; while a turn runs, for the next one"),
    ("Alt-Enter, Ctrl-J, \\ Enter", "a new line"),
    ("Up, Down", "what was asked before"),
    ("@", "a file of this folder"),
    ("Tab", "take what is offered"),
    ("Ctrl-T", "show thoughts, or fold them"),
    ("Ctrl-C", "stop the turn; else clear the line; twice: leave"),
    ("Ctrl-D", "leave, when nothing is typed"),
    ("Ctrl-A E K U W Y, Alt-B F D", "as in a shell"),
];

/// The name of a policy, and what it means.
pub(crate) fn about_policy(policy: ApprovalPolicy) -> (&'static str, &'static str) {
    let known = POLICIES.iter().find(|(.., own)| *own == policy);
    known.map_or(("", ""), |(name, meaning, _)| (name, meaning))
}

/// Whether a text is meant for the chat: a path is not.
pub(crate) fn is_command(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    text.starts_with('/') && !first[1..].contains('/') && !text.trim_end().contains('\n')
}

fn policy(word: String) -> Result<ApprovalPolicy, (String, String)> {
    let named = POLICIES.iter().find(|(name, ..)| *name == word);
    named.map(|(.., policy)| *policy).ok_or_else(|| {
        let names = POLICIES.map(|(name, ..)| name).join(", ");
        (
            format!("there is no policy `{word}`"),
            format!("there are {names}"),
        )
    })
}

/// What a text asks of the chat; else one line that says what is wrong, and what to do.
pub(crate) fn parse(text: &str) -> Result<Command, (String, String)> {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    let argument = words.next().map(str::to_owned);
    let usage = ALL.iter().find(|(usage, _)| name_of(usage) == name);
    let usage = usage.map(|(usage, _)| *usage);
    if words.next().is_some() || (argument.is_some() && usage == Some(name)) {
        let usage = usage.unwrap_or(name).to_owned();
        return Err((format!("too many words behind {name}"), usage));
    }
    Ok(match name {
        "/model" => Command::Model(argument),
        "/approvals" => Command::Approvals(argument.map(policy).transpose()?),
        "/diff" => Command::Diff,
        "/compact" => Command::Compact,
        "/resume" => Command::Resume(argument),
        "/new" => Command::New,
        "/runs" => Command::Runs,
        "/mcp" => Command::Mcp,
        "/thinking" => Command::Thinking,
        "/help" => Command::Help,
        "/quit" | "/exit" => Command::Quit,
        other => {
            let mut names = ALL.iter().map(|(usage, _)| name_of(usage));
            let hint = match names.find(|name| name.starts_with(other) || other.starts_with(name)) {
                Some(name) => format!("did you mean {name}? /help lists all"),
                None => "/help lists what there is".to_owned(),
            };
            return Err((format!("there is no command {other}"), hint));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_understood_and_a_path_is_none() {
        assert_eq!(
            parse("/model gpt-5"),
            Ok(Command::Model(Some("gpt-5".into())))
        );
        assert_eq!(
            parse("/approvals never"),
            Ok(Command::Approvals(Some(ApprovalPolicy::Never)))
        );
        assert!(
            is_command("/diff") && is_command("/nonsense") && !is_command("/etc/passwd is odd")
        );
        assert!(!is_command("/diff\nand more") && !is_command("a /diff"));
        for (usage, _) in ALL {
            assert!(parse(name_of(usage)).is_ok(), "{usage}");
        }
    }

    #[test]
    fn what_is_not_understood_says_why_and_what_to_do() {
        let wrong = |text| parse(text).unwrap_err();
        assert_eq!(wrong("/foo").0, "there is no command /foo");
        assert!(wrong("/mod").1.contains("did you mean /model?"));
        assert!(
            wrong("/approvals maybe")
                .1
                .contains("untrusted, on-request")
        );
        assert_eq!(
            wrong("/diff now"),
            ("too many words behind /diff".into(), "/diff".into())
        );
    }
}
