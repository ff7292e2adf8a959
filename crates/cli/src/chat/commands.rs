//! What can be said to the chat itself: a word behind a slash.

use selvedge_protocol::ApprovalPolicy;

/// A word behind a slash, understood.
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

/// One command, for help and completion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About {
    pub(crate) name: &'static str,
    pub(crate) takes: &'static str,
    pub(crate) what: &'static str,
}

/// All of them.
pub(crate) const ALL: [About; 11] = [
    About {
        name: "/model",
        takes: "[NAME]",
        what: "which model is asked, or another one from now on",
    },
    About {
        name: "/approvals",
        takes: "[POLICY]",
        what: "when you are asked, or another policy from now on",
    },
    About {
        name: "/diff",
        takes: "",
        what: "what this session changed in the folder",
    },
    About {
        name: "/compact",
        takes: "",
        what: "make the conversation shorter, to have room",
    },
    About {
        name: "/resume",
        takes: "[ID]",
        what: "go on with an earlier session",
    },
    About {
        name: "/new",
        takes: "",
        what: "begin a new session",
    },
    About {
        name: "/runs",
        takes: "",
        what: "what ran in this session",
    },
    About {
        name: "/mcp",
        takes: "",
        what: "the MCP servers, and how they are doing",
    },
    About {
        name: "/thinking",
        takes: "",
        what: "what was thought last",
    },
    About {
        name: "/help",
        takes: "",
        what: "the keys and commands",
    },
    About {
        name: "/quit",
        takes: "",
        what: "leave; the session stays",
    },
];

/// The policies, for completion.
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

/// The keys, for help.
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

/// A policy by its name.
pub(crate) fn policy_name(policy: ApprovalPolicy) -> &'static str {
    POLICIES
        .iter()
        .find(|(.., own)| *own == policy)
        .map_or("", |(name, ..)| name)
}

/// Whether a text is meant for the chat: a path is not.
pub(crate) fn is_command(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    text.starts_with('/') && !first[1..].contains('/') && !text.trim_end().contains('\n')
}

/// What a text asks of the chat; else one line that says what is wrong, and what to do.
pub(crate) fn parse(text: &str) -> Result<Command, (String, String)> {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    let argument = words.next().map(str::to_owned);
    let takes = ALL.iter().find(|about| about.name == name);
    if words.next().is_some()
        || (argument.is_some() && takes.is_some_and(|about| about.takes.is_empty()))
    {
        let takes = takes.map_or("", |about| about.takes);
        return Err((
            format!("too many words behind {name}"),
            format!("{name} {takes}").trim_end().to_owned(),
        ));
    }
    Ok(match name {
        "/model" => Command::Model(argument),
        "/approvals" => match argument {
            None => Command::Approvals(None),
            Some(word) => match POLICIES.iter().find(|(name, ..)| *name == word) {
                Some((.., policy)) => Command::Approvals(Some(*policy)),
                None => {
                    let names: Vec<&str> = POLICIES.iter().map(|(name, ..)| *name).collect();
                    return Err((
                        format!("there is no policy `{word}`"),
                        format!("there are {}", names.join(", ")),
                    ));
                }
            },
        },
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
            let near = ALL
                .iter()
                .find(|about| about.name.starts_with(other) || other.starts_with(about.name));
            let hint = match near {
                Some(about) => format!("did you mean {}? /help lists all", about.name),
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
        for about in ALL {
            assert!(parse(about.name).is_ok(), "{}", about.name);
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
