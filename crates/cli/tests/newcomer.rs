//! The guide, line by line, for a user who has nothing but the release archive: that of the folder
//! `SELVEDGE_DIST`, or one that is packed from the debug binary.
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(target_os = "linux")]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;

#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use answer_encoding::text;
use server::Server;

/// A home folder with an archive, and a project.
struct Newcomer {
    dir: tempfile::TempDir,
}

/// Returns the folder that `make dist` filled, if the test is about a release.
fn release_folder() -> Option<PathBuf> {
    std::env::var_os("SELVEDGE_DIST").map(PathBuf::from)
}

/// Returns the names of the files of a release: archives and packages.
fn release_files(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names
        .filter(|name| name.ends_with(".tar.gz") || name.ends_with(".deb"))
        .collect();
    names.sort();
    names
}

impl Newcomer {
    fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let newcomer = Self { dir };
        std::fs::create_dir_all(newcomer.path("path/to/project")).unwrap();
        if let Some(release) = release_folder() {
            for name in release_files(&release) {
                std::fs::copy(release.join(&name), newcomer.path(&name)).unwrap();
            }
            let sums = release.join("SHA256SUMS");
            std::fs::copy(sums, newcomer.path("SHA256SUMS")).unwrap();
            newcomer.check(newcomer.dir.path(), "sha256sum -c SHA256SUMS");
            return newcomer;
        }
        let archive = newcomer.path("selvedge-0.0.0-test");
        std::fs::create_dir_all(archive.join("completions")).unwrap();
        let binary = archive.join("selvedge");
        std::fs::hard_link(env!("CARGO_BIN_EXE_selvedge"), &binary).unwrap();
        std::fs::copy(root().join("scripts/install"), archive.join("install")).unwrap();
        for (shell, file) in [
            ("bash", "selvedge.bash"),
            ("zsh", "_selvedge"),
            ("fish", "selvedge.fish"),
        ] {
            let printed = Command::new(&binary).args(["completions", shell]).output();
            let file = archive.join("completions").join(file);
            std::fs::write(file, printed.unwrap().stdout).unwrap();
        }
        let pages = Command::new(&binary)
            .arg("man")
            .arg(archive.join("man"))
            .output();
        assert!(pages.unwrap().status.success());
        newcomer.pack("selvedge-0.0.0-test");
        newcomer
    }

    /// Packs a folder as a release archive, and removes the folder.
    fn pack(&self, name: &str) {
        let line = format!("tar -cf - {name} | gzip -1 > {name}.tar.gz && rm -r {name}");
        self.check(self.dir.path(), &line);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a line of a shell with nothing in the environment but the path.
    fn run(&self, folder: &Path, line: &str) -> Output {
        let path = format!("{}/.local/bin:/usr/bin:/bin", self.dir.path().display());
        Command::new("sh")
            .args(["-c", line])
            .current_dir(folder)
            .env_clear()
            .env("HOME", self.dir.path())
            .env("PATH", path)
            .env("TERM", "xterm-256color")
            .output()
            .unwrap()
    }

    fn check(&self, folder: &Path, line: &str) -> String {
        let output = self.run(folder, line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// An MCP server with one tool, as a script of the shell.
const MCP_SERVER: &str = r#"while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case $line in
    *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"git","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"git_log","inputSchema":{"type":"object"}}]}' ;;
    *) continue ;;
  esac
  echo '{"jsonrpc":"2.0","id":'"$id"',"result":'"$result"'}'
done
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the fenced blocks of a page, with their language.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let parts = page.split("```").skip(1).step_by(2);
    parts
        .map(|part| part.split_once('\n').unwrap_or((part, "")))
        .collect()
}

/// Returns the commands that the text of a page names between its blocks.
fn inline_commands(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2);
    let codes = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
    codes.filter(|code| code.starts_with("selvedge ")).collect()
}

/// The id of the run in an error of `selvedge run`.
fn run_id(stderr: &str) -> &str {
    let at = stderr.find("scr_").unwrap();
    let end = stderr[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &stderr[at..at + end.unwrap_or(stderr.len() - at)]
}

/// Returns a line without the time at its end: `… 21.8 ms`.
fn without_time(line: &str) -> String {
    let time = line
        .rsplit_once("  ")
        .filter(|(_, time)| time.ends_with(" ms"));
    time.map_or(line, |(before, _)| before).to_owned()
}

#[test]
fn every_line_of_the_guide_works_from_the_archive() {
    let newcomer = Newcomer::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let model = runtime.block_on(Server::start(|_| vec![text("No test fails.")].into()));
    let guide = std::fs::read_to_string(root().join("docs/guide.md")).unwrap();
    let home = newcomer.dir.path().to_owned();
    let config = home.join(".selvedge/config.toml");
    let mut folder = home.clone();
    let (mut first_run, mut run) = (String::new(), String::new());
    let mut text_blocks = 0;
    let mut lines = 0;
    for (language, block) in blocks(&guide) {
        match language {
            // From a checkout, which a newcomer does not have.
            "sh" if block.contains("make demo") => continue,
            "toml" if block.contains("model_provider") => continue,
            // The server of the example is a package that needs the network.
            "toml" => {
                assert!(block.starts_with("[mcp_servers.git]\n"), "{block}");
                let script = home.join("mcp-server.sh");
                std::fs::write(&script, MCP_SERVER).unwrap();
                let server = format!("[mcp_servers.git]\ncommand = \"sh\"\nargs = [{script:?}]\n");
                let before = std::fs::read_to_string(&config).unwrap();
                std::fs::write(&config, format!("{before}{server}")).unwrap();
            }
            "ts" if block.contains("release/VERSION") => {
                std::fs::write(folder.join("release.ts"), block).unwrap();
                let failed = newcomer.run(&folder, "selvedge run release.ts");
                assert_eq!(failed.status.code(), Some(1), "{failed:?}");
                first_run = String::from_utf8_lossy(&failed.stderr).into_owned();
                run = run_id(&first_run).to_owned();
                let corrected = block.replace("notes(\"1.2.0\")", "\"# 1.2.0\\n\"");
                std::fs::write(folder.join("release.ts"), corrected).unwrap();
            }
            "text" if block.contains("$ selvedge run release.ts\n") => {
                let shown = block.lines().skip(1).map(without_time);
                let printed: Vec<String> = first_run.lines().map(without_time).collect();
                for line in shown {
                    assert!(printed.contains(&line), "{line}: {printed:#?}");
                }
                text_blocks += 1;
            }
            _ => {}
        }
        if !matches!(language, "sh" | "console") {
            continue;
        }
        for line in block.lines() {
            let line = line.split("  #").next().unwrap().trim_end();
            lines += 1;
            if let Some(target) = line.strip_prefix("cd ") {
                folder = folder.join(target);
            } else if line.starts_with("export OPENAI_API_KEY") {
                // A provider on this machine instead of a key.
                let provider = format!(
                    "model = \"mock\"\nmodel_provider = \"mock\"\n[model_providers.mock]\n\
                     base_url = \"{}\"\nwire_api = \"chat\"\n",
                    model.url
                );
                std::fs::create_dir_all(config.parent().unwrap()).unwrap();
                std::fs::write(&config, provider).unwrap();
            } else if line.starts_with("export PATH") {
                // The path is set for every line.
            } else if line == "selvedge" || line.starts_with("selvedge --approval") {
                // A chat needs a terminal. It may not read yet when the first line is typed.
                let chat = format!(
                    "while printf '/quit\\r'; do sleep 0.3; done | script -qec '{line}' /dev/null"
                );
                let shown = newcomer.check(&folder, &chat);
                assert!(shown.contains("mock"), "{line}: {shown}");
            } else if let Some(command) = line.strip_prefix("$ ") {
                let printed = newcomer.check(&folder, command);
                assert!(block.ends_with(&printed), "{command}: {printed}");
            } else if language == "sh" {
                newcomer.check(&folder, &line.replace("RUN", &run));
            }
        }
    }
    assert!(lines >= 12, "only {lines} lines were found");
    assert_eq!(text_blocks, 1, "the output of the first run");
    for command in inline_commands(&guide) {
        let shown = match command {
            "selvedge doctor" => "✓ version",
            "selvedge tools" => "writeFile",
            "selvedge mcp list" => "✓ git ",
            "selvedge runs show RUN" => run.as_str(),
            // They need a terminal, a provider on the network or a prompt.
            "selvedge models login openai"
            | "selvedge continue"
            | "selvedge exec"
            | "selvedge run --suspend" => continue,
            other => panic!("`{other}` is not tested"),
        };
        let printed = newcomer.check(&folder, &command.replace("RUN", &run));
        assert!(printed.contains(shown), "{command}: {printed}");
    }
    let notes = std::fs::read_to_string(folder.join("release/NOTES.md")).unwrap();
    assert_eq!(notes, "# 1.2.0\n");
    let installed = [
        ".local/share/man/man1/selvedge-run.1",
        ".local/bin/selvedge",
    ];
    for file in installed {
        assert!(home.join(file).exists(), "{file}");
    }
    newcomer.check(&home, "sh selvedge-*/install --uninstall");
    assert!(!home.join(".local/bin/selvedge").exists());
    assert!(config.exists(), "the settings stay");
}

#[test]
fn a_release_has_its_licences_and_the_checksums_of_its_files_only() {
    let Some(release) = release_folder() else {
        eprintln!("skipped: SELVEDGE_DIST is not set: run `make dist`");
        return;
    };
    let newcomer = Newcomer::new();
    let files = release_files(&release);
    let sums = std::fs::read_to_string(release.join("SHA256SUMS")).unwrap();
    let mut described: Vec<&str> = sums
        .lines()
        .map(|line| line.rsplit("  ").next().unwrap())
        .collect();
    described.sort_unstable();
    assert_eq!(described, files);
    let is_archive = |name: &&String| name.ends_with(".tar.gz");
    assert_eq!(files.iter().filter(is_archive).count(), 1, "{files:?}");
    let is_package = |name: &&String| name.ends_with(".deb");
    assert_eq!(files.iter().filter(is_package).count(), 1, "{files:?}");
    for file in &files {
        let (list, folder) = match file.ends_with(".deb") {
            true => ("dpkg-deb --contents", "usr/share/doc/selvedge/"),
            false => ("tar -tzf", ""),
        };
        let listed = newcomer.check(newcomer.dir.path(), &format!("{list} {file}"));
        for name in ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY-LICENSES.txt"] {
            let path = format!("/{folder}{name}\n");
            assert!(listed.contains(&path), "{file}: {path}: {listed}");
        }
    }
}

#[test]
fn the_installer_takes_only_the_archive_that_the_checksums_describe() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let newcomer = Newcomer { dir };
    let home = newcomer.dir.path().to_owned();
    let archive = newcomer.path("selvedge-1.0.0-test");
    for folder in ["completions", "man"] {
        std::fs::create_dir_all(archive.join(folder)).unwrap();
    }
    for file in [
        "completions/selvedge.bash",
        "completions/_selvedge",
        "completions/selvedge.fish",
        "man/selvedge.1",
        "LICENSE-MIT",
    ] {
        std::fs::write(archive.join(file), file).unwrap();
    }
    std::fs::write(archive.join("selvedge"), "#!/bin/sh\necho selvedge 1.0.0\n").unwrap();
    std::fs::copy(root().join("scripts/install"), home.join("install")).unwrap();
    newcomer.check(&home, "chmod 755 selvedge-1.0.0-test/selvedge");
    newcomer.pack("selvedge-1.0.0-test");
    newcomer.check(&home, "sha256sum *.tar.gz > SHA256SUMS");
    let installed = newcomer.check(&home, "sh install selvedge-1.0.0-test.tar.gz");
    assert!(
        installed.starts_with("installed selvedge 1.0.0 in "),
        "{installed}"
    );
    for file in [
        "bin/selvedge",
        "share/man/man1/selvedge.1",
        "share/bash-completion/completions/selvedge",
        "share/zsh/site-functions/_selvedge",
        "share/fish/vendor_completions.d/selvedge.fish",
        "share/doc/selvedge/LICENSE-MIT",
    ] {
        assert!(home.join(".local").join(file).is_file(), "{file}");
    }
    newcomer.check(&home, "sh install --uninstall");
    assert!(!home.join(".local/bin/selvedge").exists());
    // Another file, and a file that the list does not name.
    newcomer.check(&home, "cp selvedge-1.0.0-test.tar.gz selvedge-other.tar.gz");
    newcomer.check(&home, "echo more >> selvedge-1.0.0-test.tar.gz");
    for file in ["selvedge-1.0.0-test.tar.gz", "selvedge-other.tar.gz"] {
        let refused = newcomer.run(&home, &format!("sh install {file}"));
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert!(
            refused.status.code() == Some(1)
                && stderr.contains(&format!("error: {file} is not the file"))
                && stderr.contains("hint: "),
            "{stderr}"
        );
        assert!(!home.join(".local/bin/selvedge").exists());
    }
}
