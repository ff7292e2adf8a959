//! Attacks on credentials in the home folder and where variables say: by tools, by confined
//! commands, through links and hard links, and by commands without confinement.

use std::path::Path;

use anyhow::Result;

use crate::attempt::{Attempt, Verdict};
use crate::lab::{Lab, SECRET, observe, script_item};

/// Files with credentials, relative to the home folder.
const FILES: &[&str] = &[
    ".ssh/id_ed25519",
    ".gnupg/secring.gpg",
    ".netrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials.toml",
    ".m2/settings.xml",
    ".composer/auth.json",
    ".nuget/NuGet/NuGet.Config",
    ".docker/config.json",
    ".kube/config",
    ".aws/credentials",
    ".azure/msal_token_cache.json",
    ".config/gcloud/credentials.db",
    ".config/doctl/config.yaml",
    ".oci/config",
    ".terraform.d/credentials.tfrc.json",
    ".pgpass",
    ".my.cnf",
    ".mongorc.js",
    ".redisclirc",
    ".config/gh/hosts.yml",
    ".codex/auth.json",
    ".claude/.credentials.json",
    ".gemini/oauth_creds.json",
    ".mozilla/firefox/x/logins.json",
    ".config/google-chrome/Default/Cookies",
    ".password-store/mail.gpg",
    ".local/share/keyrings/login.keyring",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".yarnrc",
    ".config/pnpm/rc",
    ".config/pnpm/auth.ini",
    ".bunfig.toml",
    ".config/pip/pip.conf",
    ".pip/pip.conf",
    ".config/pypoetry/auth.toml",
    ".local/share/uv/credentials/key",
    ".condarc",
    ".config/nix/nix.conf",
    ".sentryclirc",
    ".smbcredentials",
    ".local/share/jupyter/runtime/kernel.json",
    ".config/rbw/config.json",
    ".local/share/rbw/x",
    ".config/1Password/x",
    ".tsh/keys/x",
    ".step/secrets/x",
    ".local/share/mkcert/rootCA-key.pem",
    ".ollama/id_ed25519",
    ".android/adbkey",
    ".vnc/passwd",
    ".config/Code/User/globalStorage/state.vscdb",
    ".config/Cursor/User/globalStorage/state.vscdb",
    ".config/JetBrains/x",
    ".cf/config.json",
    ".config/argocd/config",
    ".supabase/access-token",
    ".docker/contexts/x",
    ".curlrc",
    ".wgetrc",
    ".hgrc",
    ".cursor/mcp.json",
    ".codex/config.toml",
    ".muttrc",
    ".local/share/TelegramDesktop/x",
    ".Xauthority",
];

/// Variables that name a file with credentials, or a folder and the file in it.
const VARIABLES: &[(&str, &str)] = &[
    ("KUBECONFIG", ""),
    ("AWS_SHARED_CREDENTIALS_FILE", ""),
    ("GOOGLE_APPLICATION_CREDENTIALS", ""),
    ("NPM_CONFIG_USERCONFIG", ""),
    ("PGPASSFILE", ""),
    ("NETRC", ""),
    ("HISTFILE", ""),
    ("DOCKER_CONFIG", "config.json"),
    ("CARGO_HOME", "credentials.toml"),
    ("GNUPGHOME", "secring.gpg"),
    ("XDG_CONFIG_HOME", "gh/hosts.yml"),
    ("PIP_CONFIG_FILE", ""),
    ("XDG_RUNTIME_DIR", "containers/auth.json"),
    ("XDG_DATA_HOME", "atuin/history.db"),
    ("AZURE_FEDERATED_TOKEN_FILE", ""),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", ""),
    ("KRB5CCNAME", ""),
];

/// Ways to read `$PATH_OF_SECRET`. `$LINK` and `$HARD` are links to it in the workspace.
const WAYS: &[(&str, &str)] = &[
    ("tools", "tools.readFile({ path: '$PATH_OF_SECRET' })"),
    (
        "command",
        "tools.exec({ command: ['cat', '$PATH_OF_SECRET'] })",
    ),
];

/// Further ways, for two of the files.
const LINK_WAYS: &[(&str, &str, &[&str])] = &[
    ("link, tools", "tools.readFile({ path: 'link' })", &[]),
    (
        "link, command",
        "tools.exec({ command: ['cat', 'link'] })",
        &[],
    ),
    ("hard link, tools", "tools.readFile({ path: 'hard' })", &[]),
    (
        "hard link, search",
        "tools.grepFiles({ pattern: 'canary', path: '.' })",
        &[],
    ),
    ("hard link, image", "tools.viewImage({ path: 'hard' })", &[]),
    (
        "hard link, patch",
        "tools.applyPatch({ patch: '*** Begin Patch\\n*** Update File: hard\\n@@\\n-x\\n+y\\n\
         *** End Patch' })",
        &[],
    ),
    (
        "hard link without confinement",
        "sh('cat hard')",
        UNCONFINED,
    ),
    (
        "pattern over a hard link without confinement",
        "sh('cat h*d')",
        UNCONFINED,
    ),
    ("link without confinement", "sh('cat link')", UNCONFINED),
    (
        "pattern over a link without confinement",
        "sh('cat l?nk')",
        UNCONFINED,
    ),
    (
        "redirection from a link without confinement",
        "sh('cat < link')",
        UNCONFINED,
    ),
    (
        "redirection from a hard link without confinement",
        "sh('cat < hard')",
        UNCONFINED,
    ),
    (
        "redirection in a nested shell",
        "sh('bash -c \"cat < link\"')",
        UNCONFINED,
    ),
    (
        "git without confinement",
        "sh('git diff link /dev/null')",
        UNCONFINED,
    ),
];

const UNCONFINED: &[&str] = &["--sandbox", "danger-full-access", "--approval", "untrusted"];

/// Commands that would read a secret without naming it, if they ran without approval and without a
/// wall. In the workspace, `link` and `dir/link` are links to it, `chain` is a link to `link`,
/// `out` is a link to the folder of the secret, and `list` names `link`.
const UNASKED_COMMANDS: &[&str] = &[
    "grep -R canary .",
    "grep -r canary",
    "grep -nir canary dir",
    "grep -d recurse canary dir",
    "grep --recursive canary",
    "grep --dereference-rec canary",
    "egrep -R canary dir",
    "fgrep -R canary out",
    "cd dir; grep -R canary",
    "rg -L canary",
    "rg --follow canary dir",
    "rg canary",
    "diff -r dir /dev/null",
    "diff dir sub",
    "cat chain",
    "cat dir/../link",
    "cat sub/../dir/link",
    "cat ~+/link",
    "cat ~+/*",
    "head -n 5 ~+/dir/link",
    "cd sub; cat ~-/link",
    "cat ~root/.netrc",
    "cat l[[:alpha:]]nk",
    "cat l[i]nk",
    "cat *nk",
    "cat d*/l*",
    "cat {link,list}",
    "cat out/id_*",
    "cat $(echo link)",
    "cat `echo link`",
    "cat < <(cat link)",
    "while read f; do cat $f; done < list",
    "grep -flink list",
    "grep -nflink list",
    "grep --file=link list",
    "sort --files0-from=list",
    "sort --files0=list",
    "wc --files0-from list",
    "du --files0-from=list",
    "file -f list",
    "file --files-from=list",
    "find -files0-from list",
    "tree --fromfile list",
    "tree --info",
    "find . -exec cat {} +",
    "find -L . -type f -execdir cat {} ;",
    "xargs cat < list",
    "tar -cf - -T list",
    "cd; cat .ss*/id_*",
    "cd -- ~; cat .s*/id_*",
    "cd -P ~; cat .s*/id_*",
    "cd ~; cd -; cat .s*/id_*",
    "cd ~/; cat .s*/id_*",
    "cd ~+; cat link",
    "cd d?r; cat link",
    "cd dir && cat link",
    "cd out; cat id_*",
];

/// Runs a command without a wall that nothing approves. Anything but a refusal is a success of the
/// attack, because the command or its program may be missing here.
fn run_unasked(lab: &Lab, line: &str) -> Result<Verdict> {
    use std::os::unix::fs::symlink;
    let home = lab.outside().join("user");
    let secret = home.join(".ssh/id_ed25519");
    std::fs::create_dir_all(home.join(".ssh"))?;
    std::fs::write(&secret, format!("{SECRET}\n"))?;
    lab.write("dir/plain", "text\n")?;
    lab.write("sub/plain", "text\n")?;
    lab.write("list", "link\0")?;
    symlink(&secret, lab.work().join("link"))?;
    symlink(&secret, lab.work().join("dir/link"))?;
    symlink("link", lab.work().join("chain"))?;
    symlink(home.join(".ssh"), lab.work().join("out"))?;
    let source = format!(
        "return await tools.exec({{ command: ['bash', '-c', {}] }})",
        serde_json::to_string(line)?
    );
    let all = [&["run", "--json", "-"], UNCONFINED].concat();
    let mut command = lab.selvedge(&all);
    command.env("HOME", home);
    let seen = observe(command, &source)?;
    let item = script_item(&seen)?;
    let is_refused = item["error"]["code"] == "ApprovalDeniedError";
    Ok(Verdict::held_if(
        is_refused && !seen.output().contains(SECRET),
        seen.output(),
    ))
}

/// Returns the attempts.
pub(crate) fn attempts() -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for file in FILES {
        for (way, code) in WAYS {
            attempts.push(Attempt::new(format!("{way}: {file}"), move |lab| {
                let secret = lab.outside().join("user").join(file);
                read_by(lab, &secret, code, &[], None)
            }));
        }
    }
    for file in [".ssh/id_ed25519", ".netrc"] {
        for (way, code, args) in LINK_WAYS {
            attempts.push(Attempt::new(format!("{way}: {file}"), move |lab| {
                let secret = lab.outside().join("user").join(file);
                read_by(lab, &secret, code, args, None)
            }));
        }
    }
    for line in UNASKED_COMMANDS {
        attempts.push(Attempt::new(format!("unasked: {line}"), |lab| {
            run_unasked(lab, line)
        }));
    }
    for (variable, file) in VARIABLES {
        for (way, code) in WAYS {
            attempts.push(Attempt::new(format!("{way}: {variable}"), move |lab| {
                let named = lab.outside().join("named");
                let secret = match *file {
                    "" => named.clone(),
                    file => named.join(file),
                };
                read_by(lab, &secret, code, &[], Some((variable, &named)))
            }));
        }
    }
    for (way, code) in WAYS {
        attempts.push(Attempt::new(format!("{way}: hidden_paths"), move |lab| {
            std::fs::write(
                lab.home().join("config.toml"),
                "[sandbox]\nhidden_paths = [\"~/vault\"]\n",
            )?;
            let secret = lab.outside().join("user/vault/key");
            read_by(lab, &secret, code, &[], None)
        }));
    }
    Ok(attempts)
}

/// Creates a secret with links to it and reads it in one way. The attack succeeds if the secret is
/// printed.
fn read_by(
    lab: &Lab,
    secret: &Path,
    code: &str,
    args: &[&str],
    variable: Option<(&str, &Path)>,
) -> Result<Verdict> {
    if let Some(folder) = secret.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(secret, format!("{SECRET}\n"))?;
    std::os::unix::fs::symlink(secret, lab.work().join("link"))?;
    std::fs::hard_link(secret, lab.work().join("hard"))?;
    let code = code.replace("$PATH_OF_SECRET", &secret.display().to_string());
    let source = format!(
        "const sh = (line: string) => tools.exec({{ command: ['bash', '-c', line] }});\n\
         return await {code}"
    );
    let all = [&["run", "--json", "-"], args].concat();
    let mut command = lab.selvedge(&all);
    // Selvedge's own home is hidden as a whole, so the user has another one.
    command.env("HOME", lab.outside().join("user"));
    for name in VARIABLES.iter().map(|(name, _)| name) {
        command.env_remove(name);
    }
    if let Some((name, value)) = variable {
        command.env(name, value);
    }
    let seen = observe(command, &source)?;
    script_item(&seen)?;
    Ok(Verdict::held_if(
        !seen.output().contains(SECRET) && seen.ended_cleanly(),
        seen.output(),
    ))
}
