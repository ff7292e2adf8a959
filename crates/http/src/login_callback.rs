//! The address on loopback to which a browser returns from an OAuth login.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Waits for the browser's request to `/callback`, and returns its path and query. The caller
/// limits the time.
pub async fn wait_for_login_callback(listener: &TcpListener) -> std::io::Result<String> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        // A connection that sends nothing must not block the login.
        let line =
            tokio::time::timeout(Duration::from_secs(5), read_request_line(&mut stream)).await;
        let line = line.ok().flatten().unwrap_or_default();
        let target = line.split(' ').nth(1).unwrap_or_default();
        let (status, body) = match target.starts_with("/callback?") {
            true => ("200 OK", "You are logged in. You can close this page.\n"),
            false => ("404 Not Found", "Not found.\n"),
        };
        let response = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
            Connection: close\r\n\r\n{body}",
            body.len()
        );
        // Fails if the browser has closed the connection, which does not matter here.
        let _ = stream.write_all(response.as_bytes()).await;
        if target.starts_with("/callback?") {
            return Ok(target.to_owned());
        }
    }
}

async fn read_request_line(stream: &mut TcpStream) -> Option<String> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream.take(16 << 10));
    reader.read_line(&mut line).await.ok()?;
    Some(line)
}
