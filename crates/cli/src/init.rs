//! `selvedge init`: writes an AGENTS.md with what the files of the folder say about building and
//! testing.

use std::path::Path;

use anyhow::Result;

use crate::CliStatus;
use crate::args::ProjectInitArgs;
use crate::output::print_line;
use crate::problem::Problem;
use crate::setup::working_directory;

/// Files of build tools, and the commands that they imply.
const BUILD_FILES: [(&str, &[&str]); 7] = [
    ("Makefile", &["make", "make test"]),
    (
        "Cargo.toml",
        &["cargo build", "cargo test", "cargo clippy --all-targets"],
    ),
    ("package.json", &["npm install", "npm test"]),
    ("pyproject.toml", &["python3 -m pytest"]),
    ("go.mod", &["go build ./...", "go test ./..."]),
    ("pom.xml", &["mvn verify"]),
    ("build.gradle", &["./gradlew build"]),
];

pub(crate) fn init(args: &ProjectInitArgs) -> Result<CliStatus> {
    let folder = working_directory(args.directory.as_deref())?;
    let file = folder.join("AGENTS.md");
    let written = std::fs::File::create_new(&file)
        .and_then(|mut file| std::io::Write::write_all(&mut file, starter(&folder).as_bytes()));
    written.map_err(|error| {
        let problem = Problem::new(format!("cannot write {}: {error}", file.display()));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                problem.hint("run `selvedge`, and type /init to let the model improve it")
            }
            _ => problem.hint("pass -C a folder that is writable"),
        }
    })?;
    print_line(&format!("wrote {}", file.display()))?;
    eprint_line!("hint: run `selvedge`, and type /init to let the model complete it");
    Ok(CliStatus::Success)
}

/// Returns the text of the file for a folder.
fn starter(folder: &Path) -> String {
    let present = BUILD_FILES
        .iter()
        .filter(|(file, _)| folder.join(file).is_file());
    let commands: String = present
        .flat_map(|(_, commands)| commands.iter())
        .map(|command| format!("- `{command}`\n"))
        .collect();
    let commands = match commands.is_empty() {
        true => "- (how to build and test)\n".to_owned(),
        false => commands,
    };
    format!(
        "# Guide for agents\n\n## Build and test\n\n{commands}\n## Conventions\n\n- (names, style, \
         what a change needs before it is done)\n\n## Do not touch\n\n- (generated files, \
         vendored code, secrets)\n"
    )
}

#[cfg(test)]
mod tests {
    use super::starter;

    #[test]
    fn the_commands_follow_from_the_files() {
        let folder = tempfile::tempdir().unwrap();
        assert!(starter(folder.path()).contains("- (how to build and test)"));
        std::fs::write(folder.path().join("go.mod"), "").unwrap();
        std::fs::write(folder.path().join("Makefile"), "").unwrap();
        let text = starter(folder.path());
        assert!(
            text.contains("- `make test`\n- `go build ./...`\n"),
            "{text}"
        );
    }
}
