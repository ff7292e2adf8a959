//! Keys of providers and of the journal in a real Secret Service: GNOME Keyring on a bus of its
//! own.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::keys::log_in;
use super::{ModelListServer, ModelsOutput, ModelsWorkspace, chat, command_output, own};

/// How long the keyring may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A keyring that is unlocked, or one that was unlocked before and is locked now.
#[derive(Clone, Copy, PartialEq)]
enum KeyringLock {
    Unlocked,
    Locked,
}

/// A bus with a keyring. Both end when it is dropped.
struct TestKeyring {
    bus: Child,
    keyring: Child,
    address: String,
    folder: TempDir,
}

impl Drop for TestKeyring {
    fn drop(&mut self) {
        for child in [&mut self.keyring, &mut self.bus] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether the programs are installed. In CI a missing one is a failure.
fn has_keyring() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let exists = |name: &&str| folders.iter().any(|folder| folder.join(name).exists());
    let programs = ["dbus-daemon", "dbus-send", "gnome-keyring-daemon"];
    let missing = programs.iter().find(|name| !exists(name));
    let Some(missing) = missing else {
        return true;
    };
    assert!(
        std::env::var_os("CI").is_none(),
        "{missing} is not installed: run scripts/setup-tests"
    );
    eprintln!("skipped: {missing} is not installed: run scripts/setup-tests");
    false
}

/// A bus that starts no services: it would start a second keyring, without the password, for a
/// request that comes before the first one is ready.
const BUS_CONFIG: &str = r#"<busconfig>
  <type>session</type>
  <listen>unix:tmpdir=/tmp</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"#;

impl TestKeyring {
    fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), KeyringLock::Unlocked)
    }

    /// Starts a keyring whose files are in a folder.
    fn start_in(folder: TempDir, lock: KeyringLock) -> Self {
        let config = folder.path().join("bus.conf");
        std::fs::write(&config, BUS_CONFIG).unwrap();
        let mut bus = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--print-address=1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut address = String::new();
        let mut output = BufReader::new(bus.stdout.take().unwrap());
        output.read_line(&mut address).unwrap();
        let address = address.trim().to_owned();
        let unlock: &[&str] = match lock {
            KeyringLock::Unlocked => &["--unlock"],
            KeyringLock::Locked => &[],
        };
        let mut command = Command::new("gnome-keyring-daemon");
        let keyring = command
            .args(["--foreground", "--components=secrets"])
            .args(unlock)
            .env("DBUS_SESSION_BUS_ADDRESS", &address)
            .env("HOME", folder.path())
            .env("XDG_DATA_HOME", folder.path())
            .env("XDG_RUNTIME_DIR", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut keyring = keyring.unwrap();
        // The password that unlocks it. Its end says that it is complete.
        let mut input = keyring.stdin.take().unwrap();
        input.write_all(b"password").unwrap();
        drop(input);
        let started = Self {
            bus,
            keyring,
            address,
            folder,
        };
        started.wait_until_ready();
        started
    }

    /// Waits until the keyring has a default collection.
    fn wait_until_ready(&self) {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let mut send = Command::new("dbus-send");
            let output = send
                .args([
                    "--session",
                    "--print-reply",
                    "--dest=org.freedesktop.secrets",
                ])
                .args([
                    "/org/freedesktop/secrets",
                    "org.freedesktop.Secret.Service.ReadAlias",
                ])
                .arg("string:default")
                .env("DBUS_SESSION_BUS_ADDRESS", &self.address)
                .output();
            let output = output.unwrap();
            let answer = String::from_utf8_lossy(&output.stdout).into_owned();
            if answer.contains("/org/freedesktop/secrets/collection/") {
                return;
            }
            assert!(Instant::now() < deadline, "no keyring: {output:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the keyring, and starts it again without its password.
    fn lock(mut self) -> Self {
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        drop(self);
        Self::start_in(folder, KeyringLock::Locked)
    }

    fn environment(&self) -> [(&str, &str); 1] {
        [("DBUS_SESSION_BUS_ADDRESS", &self.address)]
    }

    /// Whether a file of the keyring contains a text.
    fn stores_plainly(&self, text: &str) -> bool {
        let files = std::fs::read_dir(self.folder.path().join("keyrings")).unwrap();
        let mut files = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
        files.any(|bytes| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        })
    }
}

/// Runs a command with the keyring.
fn run(workspace: &ModelsWorkspace, keyring: &TestKeyring, args: &[&str]) -> ModelsOutput {
    let mut command = workspace.command(args);
    command.envs(keyring.environment()).stdin(Stdio::null());
    command_output(command.spawn().unwrap())
}

#[test]
fn a_key_is_stored_in_the_keyring_and_not_in_a_file() {
    if !has_keyring() {
        return;
    }
    let keyring = TestKeyring::start();
    let server = ModelListServer::start(chat);
    let workspace = own(&server, "env_key = \"OWN_KEY\"");
    let file = workspace.0.path().join("credentials.json");
    // A key that was stored before the machine had a keyring.
    assert_eq!(log_in(&workspace, "sk-in-the-file", &[]).status, 0);
    let listed = run(
        &workspace,
        &keyring,
        &["models", "list", "--provider", "own"],
    );
    let place = format!("2 models, key from {}\n", file.display());
    assert!(listed.out.contains(&place), "{listed:?}");

    let seen = log_in(&workspace, "sk-in-the-keyring", &keyring.environment());
    assert_eq!(
        (seen.status, seen.err.as_str()),
        (0, "stored the key of own in the system keyring\n"),
        "{seen:?}"
    );
    assert!(!file.exists(), "the earlier key is still in the file");
    assert!(!keyring.stores_plainly("sk-in-the-keyring"));
    assert_eq!(run(&workspace, &keyring, &["models", "test"]).status, 0);
    let asked = server.asked();
    assert!(
        asked
            .last()
            .unwrap()
            .contains("authorization: bearer sk-in-the-keyring"),
        "{asked:?}"
    );
    let listed = run(
        &workspace,
        &keyring,
        &["models", "list", "--provider", "own"],
    );
    let place = "2 models, key from the system keyring\n";
    assert!(listed.out.contains(place), "{listed:?}");
    let args = ["models", "list", "--provider", "own", "--json"];
    let listed = run(&workspace, &keyring, &args);
    assert_eq!(listed.json()[0]["key"]["place"], "keyring");
    let doctor = run(&workspace, &keyring, &["doctor"]);
    for line in [
        "✓ keyring        the system keyring answers\n",
        "can be reached; its key is from the system keyring; run `selvedge models test`",
    ] {
        assert!(doctor.out.contains(line), "{line}: {}", doctor.out);
    }
    // Another process of the user, without the keyring, has no key.
    assert_eq!(workspace.run(&["test"], &[]).status, 2);

    let seen = run(&workspace, &keyring, &["models", "logout", "own"]);
    assert_eq!(seen.err, "deleted the key of own from the system keyring\n");
    let seen = run(&workspace, &keyring, &["models", "logout", "own"]);
    assert_eq!(seen.err, "note: no key of own is stored\n");
    assert_eq!(run(&workspace, &keyring, &["models", "test"]).status, 2);
}

#[test]
fn a_locked_keyring_is_reported_before_the_question() {
    if !has_keyring() {
        return;
    }
    let keyring = TestKeyring::start();
    let server = ModelListServer::start(chat);
    let workspace = own(&server, "env_key = \"OWN_KEY\"");
    let seen = log_in(&workspace, "sk-own", &keyring.environment());
    assert_eq!(seen.status, 0, "{seen:?}");
    let keyring = keyring.lock();
    let doctor = run(&workspace, &keyring, &["doctor"]);
    let line = "! keyring        the system keyring is locked; unlock the keyring to use its keys";
    assert!(doctor.out.contains(line), "{}", doctor.out);
    let mut command = workspace.command(&["models", "login", "own"]);
    // Standard input stays open: a command that waited for the key would not end.
    command.envs(keyring.environment()).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let input = child.stdin.take();
    let seen = command_output(child);
    drop(input);
    assert_eq!(seen.status, 2, "{seen:?}");
    assert!(
        seen.err
            .starts_with("error: cannot use the system keyring: "),
        "{seen:?}"
    );
    assert!(
        seen.err
            .ends_with("hint: start and unlock the keyring, or run `export OWN_KEY=KEY`\n"),
        "{seen:?}"
    );
    // The key is not stored elsewhere instead.
    assert!(!workspace.0.path().join("credentials.json").exists());
    let seen = run(&workspace, &keyring, &["models", "test"]);
    assert_eq!(seen.status, 2, "{seen:?}");
    assert!(server.asked().is_empty(), "{:?}", server.asked());
}

/// Whether a file of the journal contains a text.
fn journal_contains(home: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(home).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let mut files = files.filter(|path| path.to_string_lossy().contains("journal"));
    files.any(|path| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    })
}

#[test]
fn the_journal_is_encrypted_with_a_key_of_the_keyring() {
    if !has_keyring() {
        return;
    }
    let keyring = TestKeyring::start();
    let workspace = ModelsWorkspace::new("journal.encrypt = true");
    let home = workspace.0.path();
    let script = "console.log('zebra-in-the-journal')";
    let seen = run(&workspace, &keyring, &["run", "-e", script]);
    assert_eq!(seen.status, 0, "{seen:?}");
    let listed = run(&workspace, &keyring, &["runs", "list", "--json"]);
    let id = listed.json()[0]["id"].as_str().unwrap().to_owned();
    let shown = run(&workspace, &keyring, &["runs", "show", &id, "--json"]);
    assert!(shown.out.contains("zebra-in-the-journal"), "{shown:?}");
    assert!(!journal_contains(home, "zebra-in-the-journal"));
    // A journal without encryption contains the text.
    let plain = ModelsWorkspace::new("");
    assert_eq!(run(&plain, &keyring, &["run", "-e", script]).status, 0);
    assert!(journal_contains(plain.0.path(), "zebra-in-the-journal"));
    // Without the keyring nothing is recorded in plain text.
    let mut command = workspace.command(&["runs", "show", &id]);
    let seen = command_output(command.stdin(Stdio::null()).spawn().unwrap());
    assert!(
        seen.status == 2
            && seen
                .err
                .starts_with("error: no system keyring is running\n"),
        "{seen:?}"
    );
}
