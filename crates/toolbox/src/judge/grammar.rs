//! Reading a shell script with its grammar: every simple command in it, however deep, and whether there is more to it
//! than plain commands.

use tree_sitter::{Node, Parser};

use super::cut::{Token, cut, words_of};
use super::shell::Script;
use super::words::{Input, Origin, Simple};

/// Levels of brackets, loops and the like that are walked.
const MAX_LEVELS: usize = 100;

/// Nodes of the grammar that plain commands have, besides the ends of lines.
const PLAIN: &str = "program list pipeline command command_name word number string string_content raw_string concatenation \
    comment redirected_statement file_redirect file_descriptor test_command && || ; | \" > >> >& <";

/// What else there can be, in words.
const BEYOND: &[(&str, &str)] = &[
    ("simple_expansion", "it uses a variable"),
    ("expansion", "it uses a variable"),
    ("arithmetic_expansion", "it computes a word"),
    ("ansi_c_string", "it has an escaped string"),
    ("command_substitution", "it runs a command inside a word"),
    ("process_substitution", "it runs a command inside a word"),
    ("variable_assignment", "it sets a variable"),
    ("declaration_command", "it sets a variable"),
    ("subshell", "it groups commands"),
    ("compound_statement", "it groups commands"),
    ("function_definition", "it defines a function"),
    ("heredoc_redirect", "it has a here-document"),
    ("herestring_redirect", "it has a here-document"),
    ("if_statement", "it branches"),
    ("case_statement", "it branches"),
    ("for_statement", "it loops"),
    ("while_statement", "it loops"),
    ("&", "it leaves a command running in the background"),
];

/// Reads a script; `None` if the grammar finds an error in it.
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

struct Walk<'a> {
    text: &'a str,
    script: Script,
}

impl Walk<'_> {
    fn node(&mut self, node: Node<'_>, input: &Input, level: usize) {
        self.note(node);
        if level > MAX_LEVELS {
            self.script.beyond = Some("it is nested too deeply");
            // Cut at its operators, the rest is still looked at.
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

    /// Walks the stages, each of which reads what the one before it writes. Returns what the last one writes.
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
                // `cat <<END | sh`: what follows on the line stands inside the redirection.
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

    /// `[ … ]` is a command like others, `[[ … ]]` is not.
    fn test(&mut self, node: Node<'_>, level: usize) {
        let text = self.slice(node);
        if text.starts_with("[[") || text.starts_with("((") {
            self.script.beyond = self.script.beyond.or(Some("it branches"));
            return self.children(node, &Input::default(), level);
        }
        self.script.commands.push(Simple::new(words_of(text)));
        let before = self.script.beyond;
        self.children(node, &Input::default(), level);
        // Its operators are words, which both readings have; what is more than words shows as an open one.
        self.script.beyond = before;
    }

    fn note(&mut self, node: Node<'_>) {
        let kind = node.kind();
        let plain = kind == "\n" || PLAIN.split(' ').any(|plain| plain == kind);
        if self.script.beyond.is_none() && !plain {
            let known = BEYOND
                .iter()
                .find(|(name, _)| *name == kind)
                .map(|(_, why)| *why);
            self.script.beyond = Some(known.unwrap_or("it is more than plain commands"));
        }
    }

    fn slice(&self, node: Node<'_>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }
}

/// What the commands of one stage write, taken together.
fn output_of(stage: &[Simple]) -> Input {
    let outputs: Vec<Input> = stage.iter().map(Simple::output).collect();
    Input {
        origin: outputs.iter().find_map(|output| output.origin),
        text: outputs.iter().rev().find_map(|output| output.text.clone()),
    }
}
