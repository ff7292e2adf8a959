//! Builds the environment of commands: removes secrets from the inherited variables.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

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

/// What keeps `git` from starting programs for a command that runs because it is read-only. The
/// values override the configuration of the repository. What cannot be overridden is checked by
/// `repository.rs`.
const READ_ONLY_GIT_SETTINGS: [(&str, &str); 9] = [
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.pager", "cat"),
    // Otherwise `git` uses the settings of every repository that a commit names as a submodule.
    ("diff.submodule", "short"),
    ("log.showSignature", "false"),
    ("protocol.allow", "never"),
    // A folder of the workspace can look like a repository.
    ("safe.bareRepository", "explicit"),
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
];
const READ_ONLY_GIT_VARIABLES: [(&str, &str); 5] = [
    ("GIT_ALLOW_PROTOCOL", "none"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_PAGER", "cat"),
    ("PAGER", "cat"),
];

/// Variables with folders in which programs and libraries are searched.
const SEARCH_PATH_VARIABLES: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];
/// Variables that name folders to work in. No program executes what is there.
const WORK_VARIABLES: [&str; 6] = ["HOME", "OLDPWD", "PWD", "TEMP", "TMP", "TMPDIR"];
/// Variables whose value is executed or loaded before the program.
const STARTUP_VARIABLES: [&str; 5] = [
    "BASH_ENV",
    "DYLD_INSERT_LIBRARIES",
    "ENV",
    "LD_AUDIT",
    "LD_PRELOAD",
];

/// The variables of a command, or why they cannot be decided.
pub(crate) type BuiltEnvironment = Result<Vec<(OsString, OsString)>, ToolError>;

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

    /// Returns the environment of a command that runs because it is read-only. No variable refers
    /// to a path for which `is_writable` holds, except `WORK_VARIABLES`, so that program names
    /// resolve to installed programs. `git` starts no programs.
    pub(crate) fn build_read_only(&self, is_writable: impl Fn(&Path) -> bool) -> BuiltEnvironment {
        let mut env: BTreeMap<OsString, OsString> =
            self.build(&BTreeMap::new())?.into_iter().collect();
        env.retain(|name, value| {
            let name = name.to_string_lossy();
            let mut paths = std::env::split_paths(value);
            SEARCH_PATH_VARIABLES.contains(&&*name)
                || WORK_VARIABLES.contains(&&*name)
                || !STARTUP_VARIABLES.contains(&&*name)
                    && !paths.any(|path| path.is_absolute() && is_writable(&path))
        });
        drop_writable_folders(&mut env, is_writable);
        env.extend(READ_ONLY_GIT_VARIABLES.map(|(name, value)| (name.into(), value.into())));
        let settings = READ_ONLY_GIT_SETTINGS.iter().enumerate();
        env.extend(settings.flat_map(|(at, (key, value))| {
            [
                (format!("GIT_CONFIG_KEY_{at}").into(), key.into()),
                (format!("GIT_CONFIG_VALUE_{at}").into(), value.into()),
            ]
        }));
        let count = READ_ONLY_GIT_SETTINGS.len().to_string();
        env.insert("GIT_CONFIG_COUNT".into(), count.into());
        Ok(env.into_iter().collect())
    }

    /// Returns the environment of a command that runs unconfined because a rule allows it. Program
    /// names resolve to no program in a folder for which `is_writable` holds.
    pub(crate) fn build_for_rule(&self, is_writable: impl Fn(&Path) -> bool) -> BuiltEnvironment {
        let mut env: BTreeMap<OsString, OsString> =
            self.build(&BTreeMap::new())?.into_iter().collect();
        env.retain(|name, value| {
            let is_safe = |path: &Path| path.is_absolute() && !is_writable(path);
            !STARTUP_VARIABLES.iter().any(|startup| name == startup)
                || std::env::split_paths(value).all(|path| is_safe(&path))
        });
        drop_writable_folders(&mut env, is_writable);
        Ok(env.into_iter().collect())
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

/// Removes relative folders, and folders for which `is_writable` holds, from `PATH` and the like.
fn drop_writable_folders(
    env: &mut BTreeMap<OsString, OsString>,
    is_writable: impl Fn(&Path) -> bool,
) {
    for name in SEARCH_PATH_VARIABLES {
        if let Some(path) = env.get_mut(OsStr::new(name)) {
            let folders = std::env::split_paths(path)
                .filter(|folder| folder.is_absolute() && !is_writable(folder));
            *path = std::env::join_paths(folders).unwrap_or_default();
        }
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
            ("DBPW", "x"),
            ("LDAP_BIND_PW", "x"),
            ("MASTER_PW", "x"),
            ("HTTP_AUTHORIZATION", "x"),
            ("BEARER", "x"),
            ("MNEMONIC", "x"),
            ("AWS_SESSION", "x"),
            ("KUBECONFIG_DATA", "x"),
            ("ORACLE", "scott/tiger@db"),
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
    fn a_read_only_command_finds_no_program_in_a_writable_folder() {
        let policy = EnvironmentPolicy {
            set: [
                ("PATH", "/project/.venv/bin:.:/usr/bin:bin::/bin"),
                ("BASH_ENV", "env"),
                ("GIT_PAGER", "evil"),
                ("HOME", "/project"),
                ("LD_LIBRARY_PATH", "/project/lib:/lib"),
                ("LD_PRELOAD", "evil.so"),
                ("RIPGREP_CONFIG_PATH", "/project/.ripgreprc"),
                ("WANTED", "/usr/share"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            ..EnvironmentPolicy::default()
        };
        let builder = EnvironmentBuilder::new(policy, vec![]);
        let env: BTreeMap<_, _> = builder
            .build_read_only(|folder| folder.starts_with("/project"))
            .unwrap()
            .into_iter()
            .map(|(name, value)| (name.into_string().unwrap(), value.into_string().unwrap()))
            .collect();
        assert_eq!(env["PATH"], "/usr/bin:/bin");
        assert_eq!(env["GIT_PAGER"], "cat");
        assert_eq!(env["LD_LIBRARY_PATH"], "/lib");
        assert_eq!((&*env["HOME"], &*env["WANTED"]), ("/project", "/usr/share"));
        for dropped in ["BASH_ENV", "LD_PRELOAD", "RIPGREP_CONFIG_PATH"] {
            assert!(!env.contains_key(dropped), "{dropped}");
        }
        let count: usize = env["GIT_CONFIG_COUNT"].parse().unwrap();
        assert!((0..count).all(|at| env.contains_key(&format!("GIT_CONFIG_KEY_{at}"))));
        assert!(!env.contains_key(&format!("GIT_CONFIG_KEY_{count}")));
        let mut keys = (0..count).map(|at| &*env[&format!("GIT_CONFIG_KEY_{at}")]);
        assert!(keys.by_ref().eq(READ_ONLY_GIT_SETTINGS.map(|(key, _)| key)));
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
