//! The systemd unit and the container file in `contrib/`: their command lines start a server that
//! writes an access log.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::answer_encoding::text;
use crate::fixture::ServeFixture;
use crate::recovery::wait_until;
use crate::support::api::ApiServer;

fn contrib_file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// Returns the rest of the line that begins with a word.
fn line_after<'a>(text: &'a str, word: &str) -> &'a str {
    let mut rests = text.lines().filter_map(|line| line.strip_prefix(word));
    rests.next().unwrap_or_else(|| panic!("no {word}: {text}"))
}

/// Starts a server with a command line whose home is a fixed folder, on a free port. Checks that a
/// request is in the log.
fn check_command_line(args: &[String], home: &str) {
    let fixture = ServeFixture::new(|_| vec![text("hello")].into());
    let own_home = fixture.workspace.home().display().to_string();
    let mut log = None;
    let mut own_args: Vec<String> = Vec::new();
    for arg in args {
        let mut arg = arg.replace(home, &own_home);
        if own_args.last().is_some_and(|last| last == "--addr") {
            assert!(arg.ends_with(":7420"), "{arg}");
            arg = "127.0.0.1:0".to_owned();
        }
        if own_args.last().is_some_and(|last| last == "--log") {
            assert!(arg.starts_with(&own_home), "{arg}");
            log = Some(PathBuf::from(&arg));
        }
        own_args.push(arg);
    }
    let log = log.unwrap_or_else(|| panic!("no access log: {args:?}"));
    let words: Vec<&str> = own_args.iter().map(String::as_str).collect();
    let server = ApiServer::listen(fixture.workspace.command(&words));
    let client = server.client(&fixture.secret);
    assert_eq!(client.get("/readyz").status, 200);
    wait_until("the request is in the log", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("/readyz"))
    });
}

#[test]
fn the_command_line_of_the_unit_starts_a_server_with_a_log() {
    let unit = contrib_file("selvedge.service");
    let mut words = line_after(&unit, "ExecStart=").split(' ');
    assert_eq!(words.next(), Some("%h/.cargo/bin/selvedge"));
    let args: Vec<String> = words.map(str::to_owned).collect();
    check_command_line(&args, "%h/.selvedge");
    // The log that is rotated is the one of the unit.
    let rotated = contrib_file("selvedge.logrotate");
    assert!(args.contains(&"%h/.selvedge/serve.log".to_owned()));
    assert!(rotated.contains("/.selvedge/serve.log {"), "{rotated}");
}

#[test]
fn the_command_line_of_the_container_starts_a_server_with_a_log() {
    let file = contrib_file("Containerfile");
    let words =
        |word: &str| -> Vec<String> { serde_json::from_str(line_after(&file, word)).unwrap() };
    assert_eq!(words("ENTRYPOINT "), ["tini", "--", "selvedge"]);
    check_command_line(&words("CMD "), line_after(&file, "ENV SELVEDGE_HOME="));
}

#[test]
fn systemd_understands_the_unit() {
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("selvedge.service");
    let program = env!("CARGO_BIN_EXE_selvedge");
    let text = contrib_file("selvedge.service");
    std::fs::write(&unit, text.replace("%h/.cargo/bin/selvedge", program)).unwrap();
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(&unit)
        .output();
    let Ok(verified) = verify else {
        assert!(
            std::env::var_os("CI").is_none(),
            "systemd-analyze is not installed"
        );
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(verified.status.success(), "{said}");
    assert!(!said.contains("selvedge.service"), "{said}");
}
