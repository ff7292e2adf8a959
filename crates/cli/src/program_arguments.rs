//! Arguments and variables of an MCP server that name what agents can write. Interpreters execute
//! such files, and MCP servers are not confined.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use selvedge_config::McpServer;
use selvedge_toolbox::writable_place;

use crate::argument_text::{file_urls_decoded, with_values};

/// Options whose folder interpreters and package runners execute, in lower case.
const CODE_OPTIONS: [&str; 24] = [
    "c",
    "cd",
    "class-path",
    "classpath",
    "cp",
    "cwd",
    "dir",
    "directory",
    "e",
    "editable",
    "from",
    "i",
    "import",
    "m",
    "module-path",
    "p",
    "package",
    "prefix",
    "project",
    "r",
    "require",
    "with",
    "with-editable",
    "workspace",
];
/// Options after which a word names the server. The word after another option may be its value.
const OPTIONS_BEFORE_SERVER: [&str; 7] = [
    "--",
    "--offline",
    "--quiet",
    "--silent",
    "--yes",
    "-q",
    "-y",
];
/// Programs that find a server by its name, and the words before this name.
const PACKAGE_RUNNERS: [(&str, &[&str]); 11] = [
    ("bun", &["x"]),
    ("bunx", &[]),
    ("npm", &["exec"]),
    ("npm", &["x"]),
    ("npx", &[]),
    ("pipx", &["run"]),
    ("pnpm", &["dlx"]),
    ("pnpx", &[]),
    ("uv", &["tool", "run"]),
    ("uvx", &[]),
    ("yarn", &["dlx"]),
];
/// Programs that run the text after `-c` as a command of a shell.
const SHELLS: [&str; 14] = [
    "ash", "bash", "csh", "dash", "fish", "flock", "ksh", "mksh", "runuser", "script", "sh", "su",
    "tcsh", "zsh",
];
/// What a shell replaces in a command.
const REPLACED_BY_SHELL: [char; 7] = ['$', '`', '*', '?', '[', '{', '~'];
/// Variables with folders that are checked otherwise, or in which programs execute nothing.
const OTHER_VARIABLES: [&str; 6] = [
    "PATH",
    "SSH_AUTH_SOCK",
    "TEMP",
    "TMP",
    "TMPDIR",
    "XAUTHORITY",
];

/// Variables that every server inherits and that are part of paths.
const ALWAYS_INHERITED: [&str; 4] = ["HOME", "LOGNAME", "TMPDIR", "USER"];

/// Why a server is not started with its arguments and variables.
#[derive(Debug)]
pub(crate) enum UnsafeArgument {
    /// They name this path, which agents can write or create.
    Path(PathBuf),
    /// They have this command of a shell, which replaces a part of it.
    ShellText(String),
}

/// Returns what makes the arguments and variables of a program unsafe: a path that agents can write
/// or create. `folder` is where the program starts. A folder is accepted as data after the name of
/// the server, as in `npx -y server-filesystem DIR`, unless agents can replace the folder itself:
/// they could put a program in its place.
pub(crate) fn unsafe_argument(
    server: &McpServer,
    folder: &Path,
    may_write: &dyn Fn(&Path) -> bool,
) -> Option<UnsafeArgument> {
    let env = variables_of(server);
    let value_of = |name: &str| {
        let is_inherited = ALWAYS_INHERITED.contains(&name);
        let inherited = || std::env::var(name).ok();
        let configured = env.get(name).cloned();
        configured.or_else(|| is_inherited.then(inherited).flatten())
    };
    let is_replaceable = |path: &PathBuf| is_replaceable(path, may_write);
    let command = server.command.as_deref().unwrap_or_default();
    let mut words = ServerWords::new(command, &server.args);
    for arg in &server.args {
        let role = words.role_of_next(arg);
        let text = with_values(arg, &value_of);
        if role == ArgumentRole::ShellText && text.contains(REPLACED_BY_SHELL) {
            return Some(UnsafeArgument::ShellText(arg.clone()));
        }
        let is_data_folder = |path: &Path| {
            let is_fixed = |above| writable_place(above, may_write).is_none();
            path.is_dir() && path.parent().is_some_and(is_fixed)
        };
        let is_data = |text: &str| is_data_folder(&folder.join(text));
        let value = text.split_once('=').map(|(_, value)| value);
        if role == ArgumentRole::Data && (is_data(&text) || value.is_some_and(is_data)) {
            continue;
        }
        let paths = [arg, &text].into_iter();
        let paths = paths.flat_map(|text| named_paths(text, folder));
        let mut executed = paths.filter(|path| role != ArgumentRole::Data || !is_data_folder(path));
        if let Some(path) = executed.find(is_replaceable) {
            return Some(UnsafeArgument::Path(path));
        }
    }
    let checked = |name: &str| !OTHER_VARIABLES.contains(&name);
    let mut values = env.iter().filter(|(name, _)| checked(name));
    let path = values.find_map(|(_, value)| named_paths(value, folder).find(is_replaceable));
    path.map(UnsafeArgument::Path)
}

/// Returns the configured variables of a server, and those that it inherits by name.
fn variables_of(server: &McpServer) -> BTreeMap<String, String> {
    let inherited = server.env_vars.iter().filter_map(|name| {
        let value = std::env::var_os(name)?;
        Some((name.clone(), value.to_string_lossy().into_owned()))
    });
    let configured = server.env.clone().into_iter();
    inherited.chain(configured).collect()
}

/// Returns whether agents can write a path, or create it if it does not exist.
fn is_replaceable(path: &Path, may_write: &dyn Fn(&Path) -> bool) -> bool {
    // Without a writable place on the way, agents do not create what is missing.
    let is_unsafe = |place: PathBuf| may_write(&place) || place.symlink_metadata().is_ok();
    writable_place(path, may_write).is_some_and(is_unsafe)
}

/// What an argument is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArgumentRole {
    /// A command that a shell reads.
    ShellText,
    /// An argument of the server: a folder in it is data.
    Data,
    /// Any other, which may be executed.
    Other,
}

/// The words of a command line that were read so far.
struct ServerWords<'a> {
    /// Number of words before the name of the server; `None` if the command does not find servers
    /// by name.
    words_before_name: Option<usize>,
    /// Whether the command can run a text as a command of a shell.
    runs_shell: bool,
    /// Whether a shell read its option for such a text: the text may be any later word.
    is_shell_text: bool,
    runs_python: bool,
    /// Whether the name of the server was read.
    is_named: bool,
    before: &'a str,
}

impl<'a> ServerWords<'a> {
    fn new(command: &str, args: &[String]) -> Self {
        let program = file_name(command);
        let is_used = |(name, words): &&(&str, &[&str])| {
            let mut pairs = args.iter().zip(*words);
            *name == program && args.len() >= words.len() && pairs.all(|(arg, word)| arg == word)
        };
        let runner = PACKAGE_RUNNERS.iter().find(is_used);
        let mut words = Self {
            words_before_name: runner.map(|(_, words)| words.len()),
            runs_shell: runner.is_some(),
            is_shell_text: false,
            runs_python: false,
            is_named: false,
            before: "",
        };
        words.notice_program(command);
        words
    }

    /// Returns the role of the next argument.
    fn role_of_next(&mut self, arg: &'a str) -> ArgumentRole {
        let before = std::mem::replace(&mut self.before, arg);
        let is_shell_option = ["--call", "--command"].contains(&before)
            || before.starts_with('-') && !before.starts_with("--") && before.contains('c')
            || ["--call=", "--command="]
                .iter()
                .any(|option| arg.starts_with(option));
        let has_shell_text = self.runs_shell && is_shell_option;
        self.is_shell_text |= has_shell_text && self.words_before_name.is_none();
        let role = if has_shell_text || self.is_shell_text {
            ArgumentRole::ShellText
        } else if self.is_named && !is_code_option(arg) && !is_code_option(before) {
            ArgumentRole::Data
        } else {
            ArgumentRole::Other
        };
        self.notice_program(arg);
        self.is_named |= match self.words_before_name {
            Some(0) => {
                let is_value = before.starts_with('-')
                    && !before.contains('=')
                    && !OPTIONS_BEFORE_SERVER.contains(&before);
                !arg.starts_with('-') && !is_value
            }
            Some(_) => false,
            None => before == "-m" && self.runs_python,
        };
        self.words_before_name = self.words_before_name.map(|left| left.saturating_sub(1));
        role
    }

    /// Remembers an interpreter, which another program may start.
    fn notice_program(&mut self, word: &str) {
        let name = file_name(word);
        self.runs_shell |= SHELLS.contains(&name);
        self.runs_python |= name.starts_with("python");
    }
}

fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Whether the value of an option is a folder of programs. A path directly after a short option,
/// such as `-I/lib`, counts as well.
fn is_code_option(arg: &str) -> bool {
    let Some(name) = arg.strip_prefix('-') else {
        return false;
    };
    let name = name.trim_start_matches('-');
    match name.split_once('=') {
        Some((name, _)) => CODE_OPTIONS.contains(&&*name.to_lowercase()),
        None => name.contains('/') || CODE_OPTIONS.contains(&&*name.to_lowercase()),
    }
}

/// Returns the paths that a text may be or contain, whether they exist or not: after `=`, in a
/// list, in a `file:` URL, or as a word of a shell command.
fn named_paths(text: &str, folder: &Path) -> impl Iterator<Item = PathBuf> {
    let mut names = Vec::new();
    let decoded = text.split_whitespace().chain([text]);
    let decoded: Vec<String> = decoded.filter_map(file_urls_decoded).collect();
    // A shell joins what is quoted with what follows.
    let unquoted = text.replace(['\'', '"', '\\'], "");
    let texts = [text, &unquoted].into_iter();
    for text in texts.chain(decoded.iter().map(String::as_str)) {
        let is_end = |c: char| c.is_whitespace() || "=:,;@'\"`()<>|&{}[]".contains(c);
        let parts = text.split(is_end);
        let absolute = parts.clone();
        let absolute = absolute.filter_map(|part| part.find('/').map(|start| &part[start..]));
        // A path may contain any of these characters.
        let ends = text.char_indices().filter(|(_, c)| is_end(*c));
        let rests = ends.map(|(at, c)| &text[at + c.len_utf8()..]);
        let words = std::iter::once(text).chain(parts).chain(rests);
        let words = words.chain(absolute).filter(|name| may_leave(name, folder));
        names.extend(words.map(|name| folder.join(name)));
    }
    names.into_iter()
}

/// Returns whether a name may lead out of a folder, which agents cannot write.
fn may_leave(name: &str, folder: &Path) -> bool {
    let mut parts = Path::new(name).components();
    match parts.find(|part| *part != Component::CurDir) {
        Some(Component::RootDir | Component::ParentDir) => true,
        // A link, or a folder on the way to `..`.
        Some(first) => folder.join(first).symlink_metadata().is_ok(),
        None => false,
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_that_are_executed_must_not_be_writable() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (open, safe) = (root.join("open"), root.join("safe"));
        for folder in [&open, &safe] {
            std::fs::create_dir(folder).unwrap();
            for name in ["run.py", "with space.js"] {
                std::fs::write(folder.join(name), "").unwrap();
            }
        }
        std::fs::create_dir(open.join("folder")).unwrap();
        std::os::unix::fs::symlink(open.join("run.py"), safe.join("link.py")).unwrap();
        std::os::unix::fs::symlink(&open, safe.join("lib")).unwrap();
        let may_write = |path: &Path| path.starts_with(&open);
        let check = |line: &[&str], env: &[(&str, &str)]| {
            let fill = |text: &str| {
                let text = text.replace("OPEN", open.to_str().unwrap());
                let text = text.replace("ROOT", root.to_str().unwrap());
                text.replace("SAFE", safe.to_str().unwrap())
            };
            let env = env.iter();
            let server = McpServer {
                command: line.first().map(|command| fill(command)),
                args: line.iter().skip(1).map(|arg| fill(arg)).collect(),
                env: env
                    .map(|(name, value)| ((*name).to_owned(), fill(value)))
                    .collect(),
                ..McpServer::default()
            };
            unsafe_argument(&server, &safe, &may_write).is_some()
        };
        for line in [
            &["python3", "OPEN/run.py"][..],
            &["python3", "-u", "OPEN/run.py"],
            &["python3", "OPEN/../open/run.py"],
            &["python3", "SAFE/../open/run.py"],
            &["python3", "../open/run.py"],
            &["python3", "SAFE/link.py"],
            &["python3", "link.py"],
            &["python3", "./lib/later.py"],
            &["python3", "lib/run.py"],
            &["node", "OPEN/with space.js"],
            &["node", "OPEN/with%20space.js"],
            &["python3", "OPEN/missing.py"],
            &["python3", "OPEN/missing/later.py"],
            &["python3", "OPEN/missing/../../safe/run.py"],
            &["node", "--import=OPEN/run.py"],
            &["node", "--import=file://OPEN/run.py"],
            &["node", "--import=file://OPEN/with%20space.js"],
            &["node", "--import=FILE://localhostOPEN/with%20space.js"],
            &["node", "file:SAFE/%2e%2e/open/run.js"],
            &["x", "--opt=a=OPEN/run.py"],
            &["ruby", "-rOPEN/run.py"],
            &["java", "-javaagent:OPEN/run.py"],
            &["java", "@OPEN/run.py"],
            &["sh", "-c", "exec python3 'OPEN/run.py' good"],
            &["sh", "-c", "cd OPEN;./run"],
            &["java", "-cp", "SAFE/run.py:OPEN/run.py"],
            &["python3", "-m", "server", "--plugin", "OPEN/run.py"],
            &["python3", "OPEN"],
            &["python3", "SAFE/lib"],
            &["uv", "--directory", "OPEN", "run", "server"],
            &["uv", "run", "--directory", "OPEN", "server"],
            &["uv", "run", "--directory=OPEN", "server"],
            &["npm", "exec", "--prefix", "OPEN"],
            &["npx", "--prefix", "OPEN", "server"],
            &["make", "run", "-C", "OPEN"],
            &["ruby", "run", "-IOPEN", "server"],
            // A folder that agents can replace.
            &["npx", "-y", "server", "OPEN/folder"],
            &["npx", "-y", "server", "--plugin=OPEN/folder"],
            &["python3", "-m", "server", "OPEN/folder"],
            // A word that is not the name of the server.
            &["python3", "-W", "ignore", "OPEN"],
            &["python3", "-u", "-X", "dev", "OPEN"],
            &["node", "--loader", "name", "OPEN"],
            &["env", "python3", "OPEN"],
            &["timeout", "600", "python3", "OPEN"],
            &["sh", "SAFE/wrap.sh", "run", "OPEN"],
            &["uvx", "--index-strategy", "first-index", "OPEN"],
            &["pipx", "run", "OPEN"],
            &["npm", "exec", "OPEN"],
            &["uv", "run", "server", "OPEN"],
        ] {
            assert!(check(line, &[]), "{line:?}");
        }
        for line in [
            &["sh", "-c", "cd ~/open && exec python3 run.py"][..],
            &["sh", "-c", "exec python3 $HOME/open/run.py"],
            &["env", "bash", "-lc", "exec python3 \"${HOME}\"/open/run.py"],
            &["sh", "-c", "exec python3 $HOME/$CODE/run.py"],
            &["sh", "-c", "exec python3 ~/'open'/run.py"],
            &["python3", "~/open/run.py"],
            &["python3", "$HOME/open"],
            // What the shell makes of it is not known.
            &["sh", "-c", "exec python3 ROOT/op*/run.py"],
            &["sh", "-c", "exec python3 ROOT/o[a-z]en/run.p?"],
            &["bash", "-c", "exec python3 ROOT/{opus,safe}/run.py"],
            &["bash", "-c", "-l", "exec python3 $OTHER/run.py"],
            &["sh", "-c", "--", "exec python3 $OTHER/run.py"],
            &["script", "-qc", "exec python3 $OTHER/run.py", "/dev/null"],
            &["fish", "--command=exec python3 $OTHER/run.py"],
            &["sh", "-c", "exec python3 ~agent/run.py"],
            &["sh", "-c", "exec python3 $OTHER/run.py"],
            &["sh", "-c", "exec python3 ${CODE%x}"],
            &["sh", "-c", "exec python3 `cat path`"],
        ] {
            assert!(
                check(line, &[("HOME", "ROOT"), ("CODE", "open")]),
                "{line:?}"
            );
            let words = line.iter().map(|word| word.replace(REPLACED_BY_SHELL, ""));
            let words: Vec<String> = words.collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert!(!check(&words, &[]), "{words:?}");
        }
        for line in [
            &["server"][..],
            &["python3", "SAFE/run.py"],
            &["python3", "run.py"],
            &["python3", "SAFE/missing.py"],
            &["python3", "SAFE/missing/later.py"],
            &["python3", "-c", "print('$')"],
            &["sh", "-c", "exec python3 ~/run.py"],
            &["npx", "-y", "server-filesystem", "OPEN"],
            &["npx", "-y", "@scope/server-filesystem", "SAFE", "OPEN"],
            &["npx", "--yes", "--", "server-filesystem", "OPEN"],
            &["/usr/bin/npx", "--package=server", "server", "OPEN"],
            &["npx", "-p", "server", "server", "OPEN"],
            &["npm", "exec", "--", "server-filesystem", "OPEN"],
            &["bunx", "server", "--root=OPEN"],
            &["uvx", "mcp-server-git", "--repository", "OPEN"],
            &[
                "uv",
                "tool",
                "run",
                "mcp-server-git",
                "--repository",
                "OPEN",
            ],
            &["pipx", "run", "server", "OPEN"],
            &["python3", "-m", "server", "OPEN"],
            &["env", "python3.12", "-W", "ignore", "-m", "server", "OPEN"],
        ] {
            assert!(!check(line, &[("HOME", "SAFE")]), "{line:?}");
        }
        for (name, value, is_refused) in [
            ("NODE_OPTIONS", "--require OPEN/run.py", true),
            ("NODE_OPTIONS", "--require=OPEN/run.py", true),
            ("NODE_OPTIONS", "--import=file://OPEN/with%20space.js", true),
            (
                "NODE_OPTIONS",
                "--import=file://localhostSAFE/a.mjs --import=file://localhostOPEN/with%20space.js",
                true,
            ),
            ("NODE_PATH", "OPEN/build/lib", true),
            ("PYTHONPATH", "OPEN", true),
            ("PYTHONPATH", "SAFE:OPEN", true),
            ("BASH_ENV", "SAFE/link.py", true),
            ("LD_PRELOAD", "OPEN/run.py SAFE/run.py", true),
            ("PYTHONPATH", "SAFE", false),
            ("PATH", "OPEN", false),
            ("TMPDIR", "OPEN", false),
            ("SSH_AUTH_SOCK", "OPEN/agent", false),
            ("MODE", "fast", false),
        ] {
            let line = ["server"];
            assert_eq!(check(&line, &[(name, value)]), is_refused, "{name}={value}");
        }
    }
}
