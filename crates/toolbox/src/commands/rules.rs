//! Rules of a [`CommandRunner`]: which commands run without approval, and which rule the answer
//! "always" adds.

use std::path::PathBuf;
use std::sync::PoisonError;

use selvedge_protocol::RuleScope;

use super::{CommandRule, CommandRules, CommandRunner, is_git, patch_args};
use crate::command_request::CommandRequest;
use crate::command_safety::{
    classify_command, consists_of_ruled_commands, is_covered_by_rules, rule_prefix,
};
use crate::rewritable_files::names_rewritable_file;

impl CommandRunner {
    /// Returns the programs of a command as its words name them.
    fn programs(request: &CommandRequest) -> Vec<String> {
        let commands = classify_command(&request.argv).commands;
        let inner = commands
            .into_iter()
            .filter_map(|words| words.into_iter().next());
        inner.chain(request.argv.first().cloned()).collect()
    }

    /// Returns a note for the approval if confined commands could have written a program that this
    /// command runs unconfined. Empty otherwise.
    pub(super) fn writable_program_note(&self, request: &CommandRequest) -> String {
        let env = self
            .inner
            .environment
            .build(&request.env)
            .unwrap_or_default();
        let path = env.into_iter().find(|(name, _)| name == "PATH");
        let folders: Vec<PathBuf> = path
            .iter()
            .flat_map(|(_, path)| std::env::split_paths(path))
            .collect();
        let cwd = self.cwd(request);
        let find = |program: &String| {
            if program.contains('/') {
                return Some(cwd.join(program));
            }
            let mut found = folders.iter().map(|folder| cwd.join(folder).join(program));
            found.find(|path| path.is_file())
        };
        let programs = Self::programs(request);
        let mut paths = programs.iter().filter_map(find);
        let writable = paths.find(|path| self.is_in_writable_folder(path));
        writable.map_or_else(String::new, |path| {
            let path = path.display().to_string();
            format!(
                ": {}, which confined commands can change",
                path.escape_debug()
            )
        })
    }

    /// Returns whether a rule allows the command to run unconfined. Then its environment finds no
    /// program in a writable folder.
    pub(super) fn is_unconfined_by_rule(&self, request: &CommandRequest) -> bool {
        let rules = self.rules().unconfined;
        let cwd = self.cwd(request);
        let is_writable = |program: &String| {
            self.confines_commands()
                && program.contains('/')
                && self.is_in_writable_folder(&cwd.join(program))
        };
        request.run_unconfined
            && self.can_have_rule(request)
            && consists_of_ruled_commands(&request.argv, &rules)
            && !Self::programs(request).iter().any(is_writable)
    }

    fn rules(&self) -> CommandRules {
        let rules = self.inner.rules.lock();
        rules.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether a rule allows the command. Rules apply only in the root of the workspace and
    /// without added variables: otherwise the same words may run another program.
    pub(super) fn is_allowed_by_rule(&self, request: &CommandRequest) -> bool {
        if request.run_unconfined {
            return self.is_unconfined_by_rule(request);
        }
        let rules = self.rules();
        let is_covered = |argv: &[String]| {
            is_covered_by_rules(argv, &rules.unconfined)
                || is_covered_by_rules(argv, &rules.confined)
        };
        // A `git` next to a command with a rule is read-only only if the repository is harmless.
        let runs_uncovered_git = || {
            let commands = classify_command(&request.argv).commands;
            commands
                .iter()
                .any(|words| is_git(words) && !is_covered(words))
        };
        self.can_have_rule(request)
            && is_covered(&request.argv)
            && !(runs_uncovered_git() && self.why_repository_may_run_programs().is_some())
    }

    fn can_have_rule(&self, request: &CommandRequest) -> bool {
        request.env.is_empty() && self.is_at_workspace_root(request)
    }

    /// Returns the rule that the answer "always" would add for this command. `None` if no rule is
    /// possible, or if it would allow an unconfined program that a confined command can rewrite.
    pub(super) fn rule_for(&self, request: &CommandRequest) -> Option<CommandRule> {
        let prefix = rule_prefix(&request.argv)
            .filter(|_| self.can_have_rule(request) && patch_args(request).is_none())?;
        let covers_all =
            || consists_of_ruled_commands(&request.argv, std::slice::from_ref(&prefix));
        let is_rewritable = || {
            !self.writable_program_note(request).is_empty()
                || names_rewritable_file(&self.inner.workspace, &self.cwd(request), &prefix)
        };
        if request.run_unconfined && (!covers_all() || is_rewritable()) {
            return None;
        }
        Some(CommandRule {
            prefix,
            unconfined: request.run_unconfined,
        })
    }

    /// Adds the rule for this command, so that such commands run without approval, and saves it
    /// unless it ends with the process.
    pub(crate) fn add_rule(&self, request: &CommandRequest, scope: RuleScope) {
        let Some(rule) = self.rule_for(request) else {
            return;
        };
        let mut rules = self
            .inner
            .rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let list = if rule.unconfined {
            &mut rules.unconfined
        } else {
            &mut rules.confined
        };
        if !list.contains(&rule.prefix) {
            list.push(rule.prefix.clone());
            if let Some(save) = &self.inner.settings.save_rule
                && scope != RuleScope::Process
            {
                save(&rule, scope);
            }
        }
    }
}
