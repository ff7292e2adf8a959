//! Serves one MCP client over standard input and output.

use std::sync::Arc;

use crate::ScriptServerError;
use crate::script_server::ScriptServerSession;
use crate::script_server_config::ScriptServerConfig;

/// Serves until the client closes standard input, or `shutdown` resolves.
pub async fn serve_stdio(
    config: Arc<ScriptServerConfig>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ScriptServerError> {
    let server = rmcp::serve_server(
        ScriptServerSession::new(config),
        rmcp::transport::io::stdio_pipes(),
    );
    tokio::pin!(shutdown);
    let service = tokio::select! {
        service = server => service,
        () = &mut shutdown => return Ok(()),
    };
    let service = match service {
        Ok(service) => service,
        // The client closed standard input without sending a message.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(ScriptServerError::NotInitialized(error.to_string())),
    };
    let stop = service.cancellation_token();
    let waiting = service.waiting();
    tokio::pin!(waiting);
    tokio::select! {
        _ = &mut waiting => {}
        () = &mut shutdown => {
            stop.cancel();
            let _ = waiting.await;
        }
    }
    Ok(())
}
