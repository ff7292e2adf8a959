//! Where credentials are stored: files and folders of the home folder, and the variables that move
//! them. Caches and package registries are not listed, so that builds keep working.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Files and folders with credentials, relative to the home folder.
pub(crate) const HOME_CREDENTIALS: &[&str] = &[
    // Keys and passwords.
    ".ssh",
    ".gnupg",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".gnome2/keyrings",
    ".netrc",
    "_netrc",
    ".authinfo",
    ".authinfo.gpg",
    ".vault-token",
    ".config/op",
    ".config/Bitwarden",
    ".config/Bitwarden CLI",
    ".config/keepassxc",
    ".config/sops",
    ".config/age",
    ".config/rbw",
    ".local/share/rbw",
    ".cache/rbw",
    ".config/lpass",
    ".local/share/lpass",
    ".config/1Password",
    ".tsh",
    ".step",
    ".local/share/mkcert",
    ".ollama/id_ed25519",
    ".android/adbkey",
    ".putty",
    ".vnc",
    ".chef",
    ".config/cosign",
    ".Xauthority",
    ".config/goa-1.0",
    ".minisign",
    ".msmtprc",
    ".fetchmailrc",
    ".mbsyncrc",
    ".offlineimaprc",
    ".muttrc",
    ".config/mutt",
    ".config/neomutt",
    ".electrum",
    ".bitcoin/wallet.dat",
    ".ethereum/keystore",
    ".config/solana/id.json",
    "Library/Keychains",
    "Library/Application Support/1Password",
    // Version control.
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh",
    ".config/hub",
    ".config/glab-cli",
    ".config/tea",
    ".subversion/auth",
    ".hgrc",
    // Package managers.
    ".npmrc",
    ".yarnrc",
    ".config/pnpm/rc",
    ".config/pnpm/auth.ini",
    ".bunfig.toml",
    ".config/pip/pip.conf",
    ".pip/pip.conf",
    ".config/pypoetry/auth.toml",
    ".local/share/uv/credentials",
    ".condarc",
    ".config/nix/nix.conf",
    ".yarnrc.yml",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".local/share/gem/credentials",
    ".bundle/config",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".sbt/.credentials",
    ".ivy2/.credentials",
    ".composer/auth.json",
    ".config/composer/auth.json",
    ".nuget/NuGet/NuGet.Config",
    ".pub-cache/credentials.json",
    ".config/dart/pub-credentials.json",
    ".hex/hex.config",
    ".cpanm/credentials",
    ".pause",
    ".curlrc",
    ".wgetrc",
    // Containers and clusters.
    ".docker/config.json",
    ".docker/cloud",
    ".docker/contexts",
    ".docker/machine",
    ".config/containers/auth.json",
    ".kube",
    ".config/helm/registry",
    ".config/helm/repositories.yaml",
    ".config/argocd",
    ".rancher",
    ".minikube/profiles",
    ".talos",
    // Clouds and services.
    ".aws",
    ".azure",
    ".config/gcloud",
    ".boto",
    ".s3cfg",
    ".oci",
    ".bluemix",
    ".aliyun",
    ".tccli",
    ".config/doctl",
    ".config/hcloud",
    ".config/linode-cli",
    ".config/scw",
    ".config/openstack",
    ".cf",
    ".mc",
    ".circleci",
    ".config/neonctl",
    ".supabase",
    ".config/heroku",
    ".config/netlify",
    ".config/stripe",
    ".config/ngrok",
    ".ngrok2",
    ".config/rclone",
    ".config/configstore",
    ".config/.wrangler",
    ".wrangler",
    ".cloudflared",
    ".fly",
    ".railway",
    ".local/share/com.vercel.cli",
    ".config/fastly",
    ".terraform.d/credentials.tfrc.json",
    ".terraformrc",
    ".pulumi/credentials.json",
    ".databrickscfg",
    ".snowsql",
    ".snowflake",
    ".config/snowflake",
    ".dbt/profiles.yml",
    ".kaggle",
    ".sentryclirc",
    ".smbcredentials",
    ".local/share/jupyter/runtime",
    ".huggingface/token",
    ".cache/huggingface/token",
    ".cache/huggingface/stored_tokens",
    // Databases.
    ".pgpass",
    ".pg_service.conf",
    ".my.cnf",
    ".mylogin.cnf",
    ".mongorc.js",
    ".mongodb",
    ".redisclirc",
    ".cassandra",
    ".influxdbv2",
    ".config/pgcli",
    ".config/mycli",
    ".myclirc",
    ".config/usql",
    ".local/share/DBeaverData",
    // Agents.
    ".codex/auth.json",
    ".codex/config.toml",
    ".cursor/mcp.json",
    ".claude.json",
    ".claude/.credentials.json",
    ".gemini/oauth_creds.json",
    ".gemini/google_accounts.json",
    ".gemini/settings.json",
    ".qwen/oauth_creds.json",
    ".config/github-copilot",
    ".config/goose/secrets.yaml",
    ".local/share/opencode/auth.json",
    ".local/share/amp/secrets.json",
    ".continue/.env",
    ".aider.conf.yml",
    ".config/io.datasette.llm/keys.json",
    // Browsers, editors and messengers.
    ".config/Code/User/globalStorage",
    ".config/Cursor/User/globalStorage",
    ".config/JetBrains",
    ".config/Element",
    ".local/share/TelegramDesktop",
    ".mozilla",
    ".thunderbird",
    ".librewolf",
    ".config/google-chrome",
    ".config/google-chrome-beta",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".config/Signal",
    ".config/Slack",
    ".config/discord",
    ".purple",
    "snap/firefox",
    "snap/chromium",
    ".var/app/org.mozilla.firefox",
    ".var/app/com.google.Chrome",
    ".var/app/org.chromium.Chromium",
    "Library/Cookies",
    "Library/Safari",
    "Library/Application Support/Firefox",
    "Library/Application Support/Google/Chrome",
    "Library/Application Support/Chromium",
    "Library/Application Support/BraveSoftware",
    "Library/Application Support/Microsoft Edge",
    // Histories of shells and interpreters: people type secrets into them.
    ".bash_history",
    ".bash_sessions",
    ".zsh_history",
    ".zsh_sessions",
    ".zhistory",
    ".histfile",
    ".sh_history",
    ".ksh_history",
    ".local/share/fish/fish_history",
    ".local/share/nushell",
    ".config/nushell/history.txt",
    ".config/nushell/history.sqlite3",
    ".local/share/atuin",
    ".python_history",
    ".ipython/profile_default/history.sqlite",
    ".node_repl_history",
    ".irb_history",
    ".pry_history",
    ".local/share/pry/pry_history",
    ".php_history",
    ".Rhistory",
    ".julia/logs/repl_history.jl",
    ".ghc/ghci_history",
    ".scala_history",
    ".utop-history",
    ".gdb_history",
    ".psql_history",
    ".mysql_history",
    ".mariadb_history",
    ".sqlite_history",
    ".duckdb_history",
    ".rediscli_history",
    ".dbshell",
    ".lesshst",
    ".viminfo",
];

/// Variables that name a credential file or folder, and the files in it. `""` is the path itself.
const CREDENTIAL_VARIABLES: &[(&str, &[&str])] = &[
    ("KUBECONFIG", &[""]),
    ("PIP_CONFIG_FILE", &[""]),
    ("XDG_RUNTIME_DIR", &["containers/auth.json"]),
    ("AWS_SHARED_CREDENTIALS_FILE", &[""]),
    ("AWS_CONFIG_FILE", &[""]),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", &[""]),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &[""]),
    ("AZURE_FEDERATED_TOKEN_FILE", &[""]),
    // The value is a list in form: `FILE:` and a path.
    ("KRB5CCNAME", &[""]),
    ("KRB5_KTNAME", &[""]),
    ("XAUTHORITY", &[""]),
    ("GOOGLE_APPLICATION_CREDENTIALS", &[""]),
    (
        "CLOUDSDK_CONFIG",
        &[
            "credentials.db",
            "access_tokens.db",
            "legacy_credentials",
            "application_default_credentials.json",
        ],
    ),
    (
        "AZURE_CONFIG_DIR",
        &[
            "accessTokens.json",
            "msal_token_cache.json",
            "msal_token_cache.bin",
            "service_principal_entries.json",
            "azureProfile.json",
        ],
    ),
    ("OCI_CLI_CONFIG_FILE", &[""]),
    ("BOTO_CONFIG", &[""]),
    ("RCLONE_CONFIG", &[""]),
    ("TF_CLI_CONFIG_FILE", &[""]),
    ("TERRAFORM_CONFIG", &[""]),
    ("PULUMI_HOME", &["credentials.json"]),
    ("DATABRICKS_CONFIG_FILE", &[""]),
    ("DBT_PROFILES_DIR", &["profiles.yml"]),
    ("HF_TOKEN_PATH", &[""]),
    ("HF_HOME", &["token", "stored_tokens"]),
    ("KAGGLE_CONFIG_DIR", &["kaggle.json"]),
    ("DOCKER_CONFIG", &["config.json"]),
    ("REGISTRY_AUTH_FILE", &[""]),
    ("HELM_REGISTRY_CONFIG", &[""]),
    ("TALOSCONFIG", &[""]),
    ("NPM_CONFIG_USERCONFIG", &[""]),
    ("npm_config_userconfig", &[""]),
    ("CARGO_HOME", &["credentials", "credentials.toml"]),
    ("COMPOSER_HOME", &["auth.json"]),
    ("GRADLE_USER_HOME", &["gradle.properties"]),
    ("BUNDLE_USER_CONFIG", &[""]),
    ("PUB_CACHE", &["credentials.json"]),
    ("NETRC", &[""]),
    ("PGPASSFILE", &[""]),
    ("PGSERVICEFILE", &[""]),
    ("MYSQL_TEST_LOGIN_FILE", &[""]),
    ("GNUPGHOME", &[""]),
    ("PASSWORD_STORE_DIR", &[""]),
    ("SOPS_AGE_KEY_FILE", &[""]),
    ("ANSIBLE_VAULT_PASSWORD_FILE", &[""]),
    ("GH_CONFIG_DIR", &["hosts.yml"]),
    ("GLAB_CONFIG_DIR", &["config.yml"]),
    ("CODEX_HOME", &["auth.json"]),
    ("CLAUDE_CONFIG_DIR", &[".credentials.json", ".claude.json"]),
    ("GEMINI_CONFIG_DIR", &["oauth_creds.json"]),
    ("HISTFILE", &[""]),
    ("LESSHISTFILE", &[""]),
    ("PYTHON_HISTORY", &[""]),
    ("NODE_REPL_HISTORY", &[""]),
    ("PSQL_HISTORY", &[""]),
    ("MYSQL_HISTFILE", &[""]),
    ("SQLITE_HISTORY", &[""]),
    ("REDISCLI_HISTFILE", &[""]),
];

/// Folders of the home folder that a variable can move, with that variable.
const MOVED_FOLDERS: [(&str, &str); 4] = [
    (".config/", "XDG_CONFIG_HOME"),
    (".local/share/", "XDG_DATA_HOME"),
    (".local/state/", "XDG_STATE_HOME"),
    (".cache/", "XDG_CACHE_HOME"),
];

/// Returns the paths of all credential stores, whether they exist or not. `variable` looks up an
/// environment variable. A relative value is relative to `cwd`.
pub(crate) fn credential_paths(
    home: Option<&Path>,
    cwd: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Vec<PathBuf> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let mut paths: Vec<PathBuf> = home
        .into_iter()
        .flat_map(|home| HOME_CREDENTIALS.iter().map(|name| home.join(name)))
        .collect();
    for (folder, name) in MOVED_FOLDERS {
        let moved = variable(name).map(|value| cwd.join(value));
        let inside = HOME_CREDENTIALS
            .iter()
            .filter_map(|path| path.strip_prefix(folder));
        paths.extend(
            moved
                .into_iter()
                .flat_map(|moved| inside.clone().map(move |rest| moved.join(rest))),
        );
    }
    for (name, files) in CREDENTIAL_VARIABLES {
        // `KUBECONFIG` is a list.
        let values = variable(name).map(|value| std::env::split_paths(&value).collect::<Vec<_>>());
        for value in values.into_iter().flatten() {
            let path = cwd.join(value);
            paths.extend(files.iter().map(|file| match *file {
                "" => path.clone(),
                file => path.join(file),
            }));
        }
    }
    // A folder above the workspace or the home folder is not hidden, because that would hide the
    // workspace. Neither is `/dev/null`, which people use to turn off a history.
    let is_too_wide = |path: &PathBuf| {
        cwd.starts_with(path)
            || home.is_some_and(|home| home.starts_with(path))
            || path.starts_with("/dev")
    };
    paths.retain(|path| !is_too_wide(path));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_variables(variables: &[(&str, &str)]) -> Vec<PathBuf> {
        credential_paths(Some(Path::new("/home/me")), Path::new("/project"), |name| {
            let found = variables.iter().find(|(variable, _)| *variable == name)?;
            Some(found.1.into())
        })
    }

    #[test]
    fn variables_move_credentials() {
        let paths = with_variables(&[
            ("KUBECONFIG", "/k/one:/k/two"),
            ("CARGO_HOME", "/cargo"),
            ("XDG_CONFIG_HOME", "/xdg"),
            ("NETRC", "secrets/netrc"),
        ]);
        for expected in [
            "/home/me/.ssh",
            "/home/me/.config/gh",
            "/k/one",
            "/k/two",
            "/cargo/credentials.toml",
            "/xdg/gh",
            "/project/secrets/netrc",
        ] {
            assert!(paths.contains(&expected.into()), "{expected}");
        }
        assert!(
            !paths.contains(&"/cargo".into()),
            "builds need the registry"
        );
    }

    #[test]
    fn a_variable_cannot_hide_the_workspace() {
        let unchanged = with_variables(&[]);
        for (name, value) in [
            ("GNUPGHOME", "/"),
            ("GNUPGHOME", "/project"),
            ("KUBECONFIG", "."),
            ("PASSWORD_STORE_DIR", "/home/me"),
            ("HISTFILE", "/dev/null"),
            ("HISTFILE", ""),
        ] {
            assert_eq!(
                with_variables(&[(name, value)]),
                unchanged,
                "{name}={value}"
            );
        }
    }
}
