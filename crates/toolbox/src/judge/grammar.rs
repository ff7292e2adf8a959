//! Parses a shell script with the bash grammar: finds every simple command at any depth, and
//! whether the script is more than plain commands.

use tree_sitter::{Node, Parser};

use super::cut::{Token, cut, words_of};
use super::shell::Script;
use super::words::{Input, Origin, Simple};

/// The deepest nesting of syntax nodes that is visited.
const MAX_LEVELS: usize = 100;

/// Syntax nodes of plain commands, except the ends of lines.
const PLAIN: &str = "program list pipeline command command_name word number string string_content \
    raw_string concatenation comment redirected_statement file_redirect file_descriptor \
    test_command && || ; | \" > >> >& <";

/// Other syntax nodes, and what a script with them does.
const BEYOND: &[(&str, &str)] = &[
    ("simple_expansion", "uses a variable"),
    ("expansion", "uses a variable"),
    ("arithmetic_expansion", "evaluates arithmetic"),
    ("ansi_c_string", "has an escaped string"),
    ("command_substitution", "runs a command inside a word"),
    ("process_substitution", "runs a command inside a word"),
    ("variable_assignment", "sets a variable"),
    ("declaration_command", "sets a variable"),
    ("subshell", "groups commands"),
    ("compound_statement", "groups commands"),
    ("function_definition", "defines a function"),
    ("heredoc_redirect", "has a here-document"),
    ("herestring_redirect", "has a here-string"),
    ("if_statement", "has a condition"),
    ("case_statement", "has a condition"),
    ("for_statement", "has a loop"),
    ("while_statement", "has a loop"),
    ("&", "runs a command in the background"),
];

/// Parses a script. `None` if it has a syntax error.
pub(super) fn read(text: &str) -> Option<Script> {
    let mut parser = Parser::new();
    parser
        .set_language(&tree_sitter_bash::LANGUAGE.into())
        .ok()?;
    let tree = parser
        .parse(text, None)
        .filter(|tree| !tree.root_node().has_error())?;
    let mut walk = Walk {
        text,
        script: Script::default(),
    };
    walk.node(tree.root_node(), &Input::default(), 0);
    Some(walk.script)
}

/// Visits the syntax nodes and collects the parts of the script.
struct Walk<'a> {
    text: &'a str,
    script: Script,
}

impl Walk<'_> {
    fn node(&mut self, node: Node<'_>, input: &Input, level: usize) {
        self.note(node);
        if level > MAX_LEVELS {
            self.script.beyond = Some("is nested too deeply");
            // The rest is still checked, split at its operators.
            return self
                .script
                .commands
                .extend(cut(self.slice(node)).commands());
        }
        match node.kind() {
            "command" => self.command(node, input, level),
            "pipeline" => _ = self.pipeline(node, input.clone(), level),
            "redirected_statement" => self.redirected(node, input, level),
            "function_definition" => self.function(node, level),
            "test_command" => self.test(node, level),
            _ => self.children(node, input, level),
        }
    }

    fn children(&mut self, node: Node<'_>, input: &Input, level: usize) {
        for child in node.children(&mut node.walk()) {
            self.node(child, input, level + 1);
        }
    }

    fn command(&mut self, node: Node<'_>, input: &Input, level: usize) {
        let mut words = Vec::new();
        let mut input = input.clone();
        for child in node.children(&mut node.walk()) {
            match child.kind() {
                "variable_assignment" | "file_redirect" | "heredoc_redirect" => {}
                "herestring_redirect" => input = self.here_string(child),
                _ => words.extend(words_of(self.slice(child))),
            }
        }
        if !words.is_empty() {
            self.script.commands.push(Simple { words, input });
        }
        self.children(node, &Input::default(), level);
    }

    /// Visits the stages of a pipeline. Each reads the output of the one before. Returns the output
    /// of the last one.
    fn pipeline(&mut self, node: Node<'_>, mut input: Input, level: usize) -> Input {
        self.note(node);
        for stage in node.children(&mut node.walk()) {
            let before = self.script.commands.len();
            self.node(stage, &input, level + 1);
            if stage.is_named() {
                input = output_of(&self.script.commands[before..]);
            }
        }
        input
    }

    fn redirected(&mut self, node: Node<'_>, input: &Input, level: usize) {
        let mut input = input.clone();
        let parts: Vec<Node<'_>> = node.children(&mut node.walk()).collect();
        for part in &parts {
            match part.kind() {
                "herestring_redirect" => input = self.here_string(*part),
                // `sh < <(curl …)`
                "file_redirect" => input.origin = input.origin.or(self.read_origin(*part)),
                "heredoc_redirect" => {
                    let body = part
                        .children(&mut part.walk())
                        .find(|child| child.kind() == "heredoc_body");
                    input.text = body.map(|body| self.slice(body).into());
                }
                _ => {}
            }
        }
        for part in parts {
            let before = self.script.commands.len();
            match part.kind() {
                // `cat <<END | sh`: the rest of the line is a child of the redirection node.
                "heredoc_redirect" => {
                    self.note(part);
                    for child in part.children(&mut part.walk()) {
                        match child.kind() {
                            "pipeline" => _ = self.pipeline(child, input.clone(), level + 1),
                            _ => self.node(child, &Input::default(), level + 1),
                        }
                    }
                }
                _ => self.node(part, &input, level + 1),
            }
            if self.script.commands.len() > before {
                input = output_of(&self.script.commands[before..]);
            }
        }
    }

    fn read_origin(&self, node: Node<'_>) -> Option<Origin> {
        cut(self.slice(node))
            .tokens
            .iter()
            .find_map(|token| match token {
                Token::Redirect("<", Some(word)) => word.origin,
                _ => None,
            })
    }

    fn here_string(&self, node: Node<'_>) -> Input {
        let text = self
            .slice(node)
            .trim_start_matches(|c: char| c == '<' || c.is_ascii_digit());
        words_of(text)
            .first()
            .map(Input::from_word)
            .unwrap_or_default()
    }

    fn function(&mut self, node: Node<'_>, level: usize) {
        let before = self.script.commands.len();
        self.children(node, &Input::default(), level);
        let name = node
            .child_by_field_name("name")
            .map(|name| self.slice(name))
            .unwrap_or_default();
        let again = self.script.commands[before..]
            .iter()
            .any(|simple| simple.program() == name);
        let background = cut(self.slice(node)).tokens.contains(&Token::Operator("&"));
        self.script.fork_bomb |= again && background;
    }

    /// Visits a test. `[ … ]` is a simple command, `[[ … ]]` is not.
    fn test(&mut self, node: Node<'_>, level: usize) {
        let text = self.slice(node);
        if text.starts_with("[[") || text.starts_with("((") {
            self.script.beyond = self.script.beyond.or(Some("has a condition"));
            return self.children(node, &Input::default(), level);
        }
        self.script.commands.push(Simple::new(words_of(text)));
        let before = self.script.beyond;
        self.children(node, &Input::default(), level);
        // The nodes inside are the words of the command. Expansions in them are marked in the
        // words.
        self.script.beyond = before;
    }

    /// Records the reason if a node is not part of a plain command.
    fn note(&mut self, node: Node<'_>) {
        let kind = node.kind();
        let plain = kind == "\n" || PLAIN.split(' ').any(|plain| plain == kind);
        if self.script.beyond.is_none() && !plain {
            let known = BEYOND
                .iter()
                .find(|(name, _)| *name == kind)
                .map(|(_, why)| *why);
            self.script.beyond = Some(known.unwrap_or("is more than plain commands"));
        }
    }

    fn slice(&self, node: Node<'_>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }
}

/// Returns the combined output of the commands of one stage.
fn output_of(stage: &[Simple]) -> Input {
    let outputs: Vec<Input> = stage.iter().map(Simple::output).collect();
    Input {
        origin: outputs.iter().find_map(|output| output.origin),
        text: outputs.iter().rev().find_map(|output| output.text.clone()),
    }
}
