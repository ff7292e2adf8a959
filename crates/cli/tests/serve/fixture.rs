//! A workspace with a model on loopback, a token and a server.

use crate::server::{Asked, Reply, Server};
use crate::support::TestWorkspace;
use crate::support::api::{ALL_SCOPES, ApiClient, ApiServer, create_token};

pub struct ServeFixture {
    pub workspace: TestWorkspace,
    pub model: Server,
    pub secret: String,
    _runtime: tokio::runtime::Runtime,
}

impl ServeFixture {
    pub fn new(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::with_config("", script)
    }

    /// Creates a workspace with further lines of configuration, and a token with all scopes.
    pub fn with_config(
        more: &str,
        script: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let model = runtime.block_on(Server::start(script));
        let workspace = TestWorkspace::new();
        workspace.config(&config_text(&model.url, more));
        let secret = create_token(&workspace, &[&["all"], &ALL_SCOPES[..]].concat());
        Self {
            workspace,
            model,
            secret,
            _runtime: runtime,
        }
    }

    /// Appends tables to the configuration.
    pub fn add_config(&self, tables: &str) {
        let path = self.workspace.home().join("config.toml");
        let config = std::fs::read_to_string(path).unwrap();
        self.workspace.config(&format!("{config}\n{tables}"));
    }

    /// Starts a server with an access log, and returns a client with the token and the log's path.
    pub fn start_with_log(&self) -> (ApiServer, ApiClient, std::path::PathBuf) {
        let log = self.workspace.home().join("access.log");
        let path = log.to_str().unwrap();
        let args = ["--log", path, "serve", "--addr", "127.0.0.1:0"];
        let server = ApiServer::listen(self.workspace.command(&args));
        let client = server.client(&self.secret);
        (server, client, log)
    }

    /// Creates another folder, and returns it with the secret of a token for it.
    pub fn other_workspace(&self, name: &str) -> (std::path::PathBuf, String) {
        let folder = self.workspace.work().with_file_name(name);
        std::fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let args = [name, "--workspace", folder.to_str().unwrap()];
        let secret = create_token(&self.workspace, &[&args, &ALL_SCOPES[..]].concat());
        (folder, secret)
    }

    /// Starts a server, and returns a client with the token.
    pub fn start(&self) -> (ApiServer, ApiClient) {
        let server = ApiServer::start(&self.workspace);
        let client = server.client(&self.secret);
        (server, client)
    }
}

/// Returns a configuration whose model is at a URL. `more` may begin with top-level keys.
pub fn config_text(url: &str, more: &str) -> String {
    // The models of most tests read whole requests, which must not quote other sessions.
    let memory = match more.contains("memory.scope") {
        true => "",
        false => "memory.scope = \"session\"\n",
    };
    format!(
        "model = \"mock\"\nmodel_provider = \"mock\"\n{memory}{more}\n[model_providers.mock]\n\
         base_url = \"{url}\"\nwire_api = \"chat\"\n"
    )
}
