//! Builds the environment of commands: removes secrets from the inherited variables.

use std::collections::BTreeMap;
use std::ffi::OsString;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use selvedge_protocol::{EnvironmentPolicy, InheritedVariables};
use selvedge_tools::ToolError;

/// The variables that commands inherit with `InheritedVariables::Core`.
const CORE_VARIABLES: [&str; 12] = [
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP", "TZ",
    "USER",
];

/// Keeps `git` from starting programs that a repository's configuration names, and from prompting.
const SAFE_GIT_VARIABLES: [(&str, &str); 6] = [
    ("GIT_PAGER", "cat"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_CONFIG_COUNT", "1"),
    ("GIT_CONFIG_KEY_0", "core.fsmonitor"),
    ("GIT_CONFIG_VALUE_0", "false"),
];

/// The variables of a command, or why they cannot be decided.
type BuiltEnvironment = Result<Vec<(OsString, OsString)>, ToolError>;

/// Builds environments according to a policy.
#[derive(Debug)]
pub(crate) struct EnvironmentBuilder {
    policy: EnvironmentPolicy,
    /// Names of variables that commands never get, whatever the policy says.
    never_inherit: Vec<String>,
    exclude: Result<GlobSet, globset::Error>,
    include: Result<GlobSet, globset::Error>,
}

impl EnvironmentBuilder {
    pub(crate) fn new(policy: EnvironmentPolicy, never: Vec<String>) -> Self {
        let (exclude, include) = (glob_set(&policy.exclude), glob_set(&policy.include_only));
        Self {
            exclude,
            include,
            policy,
            never_inherit: never,
        }
    }

    /// Returns the environment of a command: the filtered variables of this process, then those
    /// that the policy sets, then those of the call. Later ones override earlier ones. Fails if a
    /// pattern of the policy is invalid.
    pub(crate) fn build(&self, call_env: &BTreeMap<String, String>) -> BuiltEnvironment {
        self.build_from(std::env::vars_os(), call_env)
    }

    fn build_from(
        &self,
        inherited: impl Iterator<Item = (OsString, OsString)>,
        call_env: &BTreeMap<String, String>,
    ) -> BuiltEnvironment {
        let policy = &self.policy;
        let exclude = self.exclude.as_ref().map_err(invalid_pattern)?;
        let include = self.include.as_ref().map_err(invalid_pattern)?;
        let keep = |name: &str, value: &str| {
            (match policy.inherit {
                InheritedVariables::All => true,
                InheritedVariables::Core => CORE_VARIABLES.contains(&name),
                InheritedVariables::None => false,
            }) && (policy.ignore_default_excludes
                || !selvedge_text::is_secret_variable(name, value))
                && !exclude.is_match(name)
                && (policy.include_only.is_empty() || include.is_match(name))
        };
        let mut env: BTreeMap<OsString, OsString> = inherited
            .filter(|(name, value)| keep(&name.to_string_lossy(), &value.to_string_lossy()))
            .collect();
        env.extend(SAFE_GIT_VARIABLES.map(|(name, value)| (name.into(), value.into())));
        env.extend(
            policy
                .set
                .iter()
                .chain(call_env)
                .map(|(name, value)| (name.into(), value.into())),
        );
        env.retain(|name, _| {
            !self
                .never_inherit
                .iter()
                .any(|never| name == never.as_str())
        });
        Ok(env.into_iter().collect())
    }
}

/// Builds a set of case-insensitive patterns.
fn glob_set(patterns: &[String]) -> Result<GlobSet, globset::Error> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(GlobBuilder::new(pattern).case_insensitive(true).build()?);
    }
    set.build()
}

fn invalid_pattern(error: &globset::Error) -> ToolError {
    ToolError::new(format!("invalid environment policy: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(policy: &EnvironmentPolicy, call_env: &[(&str, &str)]) -> Vec<String> {
        let inherited = [
            ("PATH", "/bin"),
            ("HOME", "/home/me"),
            ("OPENAI_API_KEY", "x"),
            ("my_secret", "x"),
            ("GITHUB_TOKEN", "x"),
            ("INNOCENT", "sk-proj-abcdefghijklmnop"),
            ("UPLOAD", "pypi-AgEIcHlwaS5vcmcCJDAwMDA"),
            ("HOOK", "whsec_abcdefghijklmnopqrstuv"),
            ("MAIL", "SG.abcdefghijklmnop1234.abcdefghijklmnopqrstuv"),
            ("DATABASE_URL", "postgres://me:pw@host/db"),
            ("PLAIN_URL", "https://host/path@x:y"),
            ("SSH_AUTH_SOCK", "/tmp/agent"),
            ("DB_PASS", "x"),
            ("MYSQL_PWD", "x"),
            ("STORAGE", "DefaultEndpointsProtocol=https;AccountKey=abc"),
            ("CARGO_HOME", "/cargo"),
            ("PROVIDER", "x"),
        ];
        let call_env = call_env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let env = EnvironmentBuilder::new(policy.clone(), vec!["PROVIDER".into()]).build_from(
            inherited.iter().map(|(n, v)| (n.into(), v.into())),
            &call_env,
        );
        env.unwrap()
            .into_iter()
            .map(|(name, _)| name.into_string().unwrap())
            .filter(|name| !name.starts_with("GIT_"))
            .collect()
    }

    #[test]
    fn secrets_are_not_inherited() {
        let policy = EnvironmentPolicy::default();
        assert_eq!(
            names(&policy, &[]),
            ["CARGO_HOME", "HOME", "PATH", "PLAIN_URL"]
        );
        assert_eq!(
            names(&policy, &[("PROVIDER", "y"), ("NEW", "1")]),
            ["CARGO_HOME", "HOME", "NEW", "PATH", "PLAIN_URL"]
        );
    }

    #[test]
    fn the_policy_filters_the_other_variables() {
        let policy = |change: fn(&mut EnvironmentPolicy)| {
            let mut policy = EnvironmentPolicy::default();
            change(&mut policy);
            policy
        };
        assert_eq!(
            names(&policy(|p| p.inherit = InheritedVariables::Core), &[]),
            ["HOME", "PATH"]
        );
        assert_eq!(
            names(&policy(|p| p.inherit = InheritedVariables::None), &[]),
            [""; 0]
        );
        assert_eq!(
            names(&policy(|p| p.exclude = vec!["c*".into()]), &[]),
            ["HOME", "PATH", "PLAIN_URL"]
        );
        assert_eq!(
            names(&policy(|p| p.include_only = vec!["PATH".into()]), &[]),
            ["PATH"]
        );
        let all = names(&policy(|p| p.ignore_default_excludes = true), &[]);
        assert!(
            all.contains(&"OPENAI_API_KEY".to_owned()) && !all.contains(&"PROVIDER".to_owned())
        );
    }
}
