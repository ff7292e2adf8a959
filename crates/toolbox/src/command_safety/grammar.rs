//! Parses a shell script with the bash grammar: finds every simple command at any depth, and
//! whether the script is more than plain commands.

use tree_sitter::{Node, Parser};

use super::shell_script::ParsedShellScript;
use super::tokenize::{ShellToken, split_words, tokenize};
use super::words::{CodeOrigin, CommandInput, SimpleCommand};

/// The deepest nesting of syntax nodes that is visited.
const MAX_NODE_DEPTH: usize = 100;

/// Syntax nodes of plain commands, except the ends of lines.
const PLAIN_NODES: &str = "program list pipeline command command_name word number string string_content \
    raw_string concatenation comment redirected_statement file_redirect file_descriptor \
    test_command && || ; | \" > >> >& <";

/// Other syntax nodes, and what a script with them does.
const OTHER_NODES: &[(&str, &str)] = &[
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
pub(super) fn parse_with_grammar(text: &str) -> Option<ParsedShellScript> {
    let mut parser = Parser::new();
    parser
        .set_language(&tree_sitter_bash::LANGUAGE.into())
        .ok()?;
    let tree = parser
        .parse(text, None)
        .filter(|tree| !tree.root_node().has_error())?;
    let mut walk = TreeWalk {
        text,
        script: ParsedShellScript::default(),
    };
    walk.visit(tree.root_node(), &CommandInput::default(), 0);
    Some(walk.script)
}

/// Visits the syntax nodes and collects the parts of the script.
struct TreeWalk<'a> {
    text: &'a str,
    script: ParsedShellScript,
}

impl TreeWalk<'_> {
    fn visit(&mut self, node: Node<'_>, input: &CommandInput, level: usize) {
        self.note_node(node);
        if level > MAX_NODE_DEPTH {
            self.script.not_plain_reason = Some("is nested too deeply");
            // The rest is still checked, split at its operators.
            return self
                .script
                .commands
                .extend(tokenize(self.node_text(node)).commands());
        }
        match node.kind() {
            "command" => self.visit_command(node, input, level),
            "pipeline" => _ = self.visit_pipeline(node, input.clone(), level),
            "redirected_statement" => self.visit_redirected(node, input, level),
            "function_definition" => self.visit_function(node, level),
            "test_command" => self.visit_test(node, level),
            _ => self.visit_children(node, input, level),
        }
    }

    fn visit_children(&mut self, node: Node<'_>, input: &CommandInput, level: usize) {
        for child in node.children(&mut node.walk()) {
            self.visit(child, input, level + 1);
        }
    }

    fn visit_command(&mut self, node: Node<'_>, input: &CommandInput, level: usize) {
        let mut words = Vec::new();
        let mut input = input.clone();
        for child in node.children(&mut node.walk()) {
            match child.kind() {
                "variable_assignment" | "file_redirect" | "heredoc_redirect" => {}
                "herestring_redirect" => input = self.here_string(child),
                _ => words.extend(split_words(self.node_text(child))),
            }
        }
        if !words.is_empty() {
            self.script.commands.push(SimpleCommand { words, input });
        }
        self.visit_children(node, &CommandInput::default(), level);
    }

    /// Visits the stages of a pipeline. Each reads the output of the one before. Returns the output
    /// of the last one.
    fn visit_pipeline(
        &mut self,
        node: Node<'_>,
        mut input: CommandInput,
        level: usize,
    ) -> CommandInput {
        self.note_node(node);
        for stage in node.children(&mut node.walk()) {
            let before = self.script.commands.len();
            self.visit(stage, &input, level + 1);
            if stage.is_named() {
                input = stage_output(&self.script.commands[before..]);
            }
        }
        input
    }

    fn visit_redirected(&mut self, node: Node<'_>, input: &CommandInput, level: usize) {
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
                    input.text = body.map(|body| self.node_text(body).into());
                }
                _ => {}
            }
        }
        for part in parts {
            let before = self.script.commands.len();
            match part.kind() {
                // `cat <<END | sh`: the rest of the line is a child of the redirection node.
                "heredoc_redirect" => {
                    self.note_node(part);
                    for child in part.children(&mut part.walk()) {
                        match child.kind() {
                            "pipeline" => _ = self.visit_pipeline(child, input.clone(), level + 1),
                            _ => self.visit(child, &CommandInput::default(), level + 1),
                        }
                    }
                }
                _ => self.visit(part, &input, level + 1),
            }
            if self.script.commands.len() > before {
                input = stage_output(&self.script.commands[before..]);
            }
        }
    }

    fn read_origin(&self, node: Node<'_>) -> Option<CodeOrigin> {
        tokenize(self.node_text(node))
            .tokens
            .iter()
            .find_map(|token| match token {
                ShellToken::Redirect("<", Some(word)) => word.origin,
                _ => None,
            })
    }

    fn here_string(&self, node: Node<'_>) -> CommandInput {
        let text = self
            .node_text(node)
            .trim_start_matches(|c: char| c == '<' || c.is_ascii_digit());
        split_words(text)
            .first()
            .map(CommandInput::from_word)
            .unwrap_or_default()
    }

    fn visit_function(&mut self, node: Node<'_>, level: usize) {
        let before = self.script.commands.len();
        self.visit_children(node, &CommandInput::default(), level);
        let name = node
            .child_by_field_name("name")
            .map(|name| self.node_text(name))
            .unwrap_or_default();
        let again = self.script.commands[before..]
            .iter()
            .any(|simple| simple.program() == name);
        let background = tokenize(self.node_text(node))
            .tokens
            .contains(&ShellToken::Operator("&"));
        self.script.is_fork_bomb |= again && background;
    }

    /// Visits a test. `[ … ]` is a simple command, `[[ … ]]` is not.
    fn visit_test(&mut self, node: Node<'_>, level: usize) {
        let text = self.node_text(node);
        if text.starts_with("[[") || text.starts_with("((") {
            self.script.not_plain_reason = self.script.not_plain_reason.or(Some("has a condition"));
            return self.visit_children(node, &CommandInput::default(), level);
        }
        self.script
            .commands
            .push(SimpleCommand::new(split_words(text)));
        let before = self.script.not_plain_reason;
        self.visit_children(node, &CommandInput::default(), level);
        // The nodes inside are the words of the command. Expansions in them are marked in the
        // words.
        self.script.not_plain_reason = before;
    }

    /// Records the reason if a node is not part of a plain command.
    fn note_node(&mut self, node: Node<'_>) {
        let kind = node.kind();
        let plain = kind == "\n" || PLAIN_NODES.split(' ').any(|plain| plain == kind);
        if self.script.not_plain_reason.is_none() && !plain {
            let known = OTHER_NODES
                .iter()
                .find(|(name, _)| *name == kind)
                .map(|(_, why)| *why);
            self.script.not_plain_reason = Some(known.unwrap_or("is more than plain commands"));
        }
    }

    fn node_text(&self, node: Node<'_>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }
}

/// Returns the combined output of the commands of one stage.
fn stage_output(stage: &[SimpleCommand]) -> CommandInput {
    let outputs: Vec<CommandInput> = stage.iter().map(SimpleCommand::output).collect();
    CommandInput {
        origin: outputs.iter().find_map(|output| output.origin),
        text: outputs.iter().rev().find_map(|output| output.text.clone()),
    }
}
