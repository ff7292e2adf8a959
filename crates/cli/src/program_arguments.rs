//! Arguments and variables of an MCP server that name what agents can write. Interpreters execute
//! such files, and MCP servers are not confined.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use selvedge_toolbox::writable_place;

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
const OPTIONS_BEFORE_SERVER: [&str; 4] = ["--", "--yes", "-m", "-y"];
/// Variables with folders that are checked otherwise, or in which programs execute nothing.
const OTHER_VARIABLES: [&str; 4] = ["PATH", "TEMP", "TMP", "TMPDIR"];

/// Returns the first path in the arguments and variables of a program that agents can write, or
/// create if it is absolute. `folder` is where the program starts. A folder is accepted as data
/// after a word that names the server, as in `npx -y server-filesystem DIR`.
pub(crate) fn writable_argument(
    args: &[String],
    env: &BTreeMap<String, String>,
    folder: &Path,
    may_write: &dyn Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let is_replaceable = |path: &PathBuf| {
        let missing_in = path.parent().filter(|_| !path.exists());
        writable_place(missing_in.unwrap_or(path), may_write).is_some()
    };
    let (mut is_named, mut before) = (false, "");
    for arg in args {
        let paths = named_paths(arg, folder);
        let is_data = is_named && !is_code_option(arg) && !is_code_option(before);
        let mut executed = paths.iter().filter(|path| !(is_data && path.is_dir()));
        if let Some(path) = executed.find(|path| is_replaceable(path)) {
            return Some(path.clone());
        }
        let is_value = before.starts_with('-')
            && !before.contains('=')
            && !OPTIONS_BEFORE_SERVER.contains(&before);
        is_named |= !arg.starts_with('-') && !is_value && paths.is_empty();
        before = arg;
    }
    let checked = |name: &str| !OTHER_VARIABLES.contains(&name);
    let mut values = env.iter().filter(|(name, _)| checked(name));
    values.find_map(|(_, value)| named_paths(value, folder).into_iter().find(is_replaceable))
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

/// Returns the paths that a text is or contains, if they exist or are absolute: after `=`, in a
/// list, in a `file:` URL, or as a word of a shell command.
fn named_paths(text: &str, folder: &Path) -> Vec<PathBuf> {
    let is_end = |c: char| c.is_whitespace() || "=:,;@'\"`()<>|&{}[]".contains(c);
    let parts = text.split(is_end);
    let absolute = parts
        .clone()
        .filter_map(|part| part.find('/').map(|start| &part[start..]));
    // A path may contain any of these characters.
    let ends = text.char_indices().filter(|(_, c)| is_end(*c));
    let rests = ends.map(|(at, c)| &text[at + c.len_utf8()..]);
    let words = std::iter::once(text).chain(parts).chain(rests);
    // An absolute path in a folder that exists may be created later.
    let words = words.filter(|name| folder.join(name).exists() || has_folder(Path::new(name)));
    let absolute = absolute.filter(|name| Path::new(name).exists());
    let names = words.chain(absolute).filter(|name| !name.is_empty());
    names.map(|name| folder.join(name)).collect()
}

fn has_folder(path: &Path) -> bool {
    path.is_absolute() && path.parent().is_some_and(Path::is_dir)
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
        std::os::unix::fs::symlink(open.join("run.py"), safe.join("link.py")).unwrap();
        std::os::unix::fs::symlink(&open, safe.join("lib")).unwrap();
        let may_write = |path: &Path| path.starts_with(&open);
        let check = |args: &[&str], env: &[(&str, &str)]| {
            let fill = |text: &str| {
                let text = text.replace("OPEN", open.to_str().unwrap());
                text.replace("SAFE", safe.to_str().unwrap())
            };
            let args: Vec<String> = args.iter().map(|arg| fill(arg)).collect();
            let env = env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), fill(value)));
            writable_argument(&args, &env.collect(), &safe, &may_write).is_some()
        };
        for args in [
            &["OPEN/run.py"][..],
            &["-u", "OPEN/run.py"],
            &["OPEN/../open/run.py"],
            &["SAFE/../open/run.py"],
            &["../open/run.py"],
            &["SAFE/link.py"],
            &["link.py"],
            &["lib/run.py"],
            &["OPEN/with space.js"],
            &["OPEN/missing.py"],
            &["--import=OPEN/run.py"],
            &["--import=file://OPEN/run.py"],
            &["--opt=a=OPEN/run.py"],
            &["-rOPEN/run.py"],
            &["-javaagent:OPEN/run.py"],
            &["@OPEN/run.py"],
            &["-c", "exec python3 'OPEN/run.py' good"],
            &["-c", "cd OPEN;./run"],
            &["-cp", "SAFE/run.py:OPEN/run.py"],
            &["-m", "server", "--plugin", "OPEN/run.py"],
            &["OPEN"],
            &["SAFE/lib"],
            &["--directory", "OPEN", "run", "server"],
            &["run", "--directory", "OPEN", "server"],
            &["run", "--directory=OPEN", "server"],
            &["exec", "--prefix", "OPEN"],
            &["run", "-C", "OPEN"],
            &["run", "-IOPEN", "server"],
            &["-W", "ignore", "OPEN"],
            &["-u", "-X", "dev", "OPEN"],
            &["--loader", "name", "OPEN"],
        ] {
            assert!(check(args, &[]), "{args:?}");
        }
        for args in [
            &[][..],
            &["SAFE/run.py"],
            &["run.py"],
            &["SAFE/missing.py"],
            &["OPEN/missing/later.py"],
            &["-y", "server-filesystem", "OPEN"],
            &["-y", "@scope/server-filesystem", "SAFE", "OPEN"],
            &["mcp-server-git", "--repository", "OPEN"],
            &["-m", "server", "OPEN"],
            &["-W", "ignore", "-m", "server", "OPEN"],
            &["--yes", "--", "server-filesystem", "OPEN"],
            &["--package=server", "server", "OPEN"],
            &["-p", "server", "server", "OPEN"],
        ] {
            assert!(!check(args, &[]), "{args:?}");
        }
        for (name, value, is_refused) in [
            ("NODE_OPTIONS", "--require OPEN/run.py", true),
            ("NODE_OPTIONS", "--require=OPEN/run.py", true),
            ("PYTHONPATH", "OPEN", true),
            ("PYTHONPATH", "SAFE:OPEN", true),
            ("BASH_ENV", "SAFE/link.py", true),
            ("LD_PRELOAD", "OPEN/run.py SAFE/run.py", true),
            ("PYTHONPATH", "SAFE", false),
            ("PATH", "OPEN", false),
            ("TMPDIR", "OPEN", false),
            ("MODE", "fast", false),
        ] {
            assert_eq!(check(&[], &[(name, value)]), is_refused, "{name}={value}");
        }
    }
}
