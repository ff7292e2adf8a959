//! The fixture of the tests, and the tests by subject.

mod layers;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::answer_encoding::text;
use super::server::{Asked, Reply, Server};

/// A home with a provider on loopback, and folders beside it.
pub struct OfflineFixture {
    pub dir: TempDir,
    pub server: Server,
    _runtime: tokio::runtime::Runtime,
}

impl OfflineFixture {
    /// `memory` is the table `[memory]` of the configuration.
    pub fn new(memory: &str, model: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start(model));
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let fixture = Self {
            dir,
            server,
            _runtime: runtime,
        };
        fixture.folder("home");
        let config = format!(
            "model = \"mock\"\nmodel_provider = \"mock\"\n\
             [model_providers.mock]\nbase_url = \"{}\"\nwire_api = \"chat\"\n\
             [memory]\n{memory}\n",
            fixture.server.url
        );
        std::fs::write(fixture.folder("home").join("config.toml"), config).unwrap();
        fixture
    }

    /// A fixture without a model of its memory.
    pub fn by_rules() -> Self {
        Self::new("", |_| vec![text("Hello.")].into())
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        let folder = self.dir.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    pub fn command(&self, folder: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .current_dir(self.folder(folder))
            .env("SELVEDGE_HOME", self.folder("home"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command, and returns its exit code, standard output and standard error.
    pub fn run(&self, folder: &str, args: &[&str]) -> (i32, String, String) {
        let output = self.command(folder, args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        (output.status.code().unwrap(), out, err)
    }

    /// Runs a command that succeeds, and returns its standard output.
    pub fn out(&self, folder: &str, args: &[&str]) -> String {
        let (status, out, err) = self.run(folder, args);
        assert_eq!(status, 0, "{args:?}: {err}");
        out
    }

    /// Runs a command that prints JSON.
    pub fn json(&self, folder: &str, args: &[&str]) -> Value {
        serde_json::from_str(&self.out(folder, args)).unwrap()
    }
}
