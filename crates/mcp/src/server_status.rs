//! The status of a configured MCP server.

/// Status of a server, for `mcp list`.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// Name of the server in the configuration.
    pub name: String,
    /// Whether the server can be used.
    pub state: ServerState,
    /// Reason why the server failed or is disabled.
    pub reason: Option<String>,
    /// What the user can do about a failure.
    pub hint: Option<String>,
    /// Name and version that the server reports.
    pub identity: Option<String>,
    /// Tools that scripts can call, by their names on the server.
    pub tools: Vec<String>,
    /// Duration of the last start in milliseconds; `None` if this process has not started it.
    pub start_ms: Option<f64>,
    /// Round-trip time of a ping in milliseconds; `None` if the server is not ready.
    pub latency_ms: Option<f64>,
    /// Protocol violations and advice, one line each.
    pub notes: Vec<String>,
}

/// Whether a server can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ServerState {
    /// No call has needed the server yet.
    #[serde(rename = "not started")]
    NotStarted,
    /// The server was started and has not listed its tools yet.
    Starting,
    /// The server is connected.
    Ready,
    /// The server cannot be started, or its connection ended.
    Failed,
    /// The configuration disables the server, or it is Selvedge itself.
    Disabled,
}

impl ServerState {
    /// Returns the state as it is spelled in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "not started",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Disabled => "disabled",
        }
    }
}
