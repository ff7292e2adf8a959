//! Serving the program that started us, over standard input and output.

use std::sync::Arc;

use crate::ServeError;
use crate::serve::{Offer, ScriptServer};

/// Serves until the client closes our input, or `end` comes.
pub async fn serve_stdio(
    offer: Arc<Offer>,
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let server = rmcp::serve_server(ScriptServer::new(offer), rmcp::transport::io::stdio_pipes());
    tokio::pin!(end);
    let service = tokio::select! {
        service = server => service,
        () = &mut end => return Ok(()),
    };
    let service = match service {
        Ok(service) => service,
        // Nobody ever spoke to us.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(ServeError::NotInitialized(error.to_string())),
    };
    let stop = service.cancellation_token();
    let waiting = service.waiting();
    tokio::pin!(waiting);
    tokio::select! {
        _ = &mut waiting => {}
        () = &mut end => {
            stop.cancel();
            let _ = waiting.await;
        }
    }
    Ok(())
}
