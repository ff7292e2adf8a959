//! The address on loopback to which a browser returns from an OAuth login.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Waits until the browser returns from a login that began at this URL: for its request to
/// `/callback` with the same `state`. Returns the path and the query. Other requests do not end the
/// login, because every web page can send them. The caller limits the time.
pub async fn wait_for_login_callback(
    listener: &TcpListener,
    authorization_url: &str,
) -> std::io::Result<String> {
    let state = state_of(authorization_url);
    loop {
        let (mut stream, _) = listener.accept().await?;
        // A connection that sends nothing must not block the login.
        let line =
            tokio::time::timeout(Duration::from_secs(5), read_request_line(&mut stream)).await;
        let line = line.ok().flatten().unwrap_or_default();
        let target = line.split(' ').nth(1).unwrap_or_default();
        let is_return = target.starts_with("/callback?")
            && state_of(&format!("http://127.0.0.1{target}")) == state;
        let (status, body) = match is_return {
            // The code is not exchanged yet, so the login may still fail.
            true => ("200 OK", "Return to Selvedge. You can close this page.\n"),
            false => ("404 Not Found", "This page belongs to no login.\n"),
        };
        let response = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
            Connection: close\r\n\r\n{body}",
            body.len()
        );
        // Fails if the browser has closed the connection, which does not matter here.
        let _ = stream.write_all(response.as_bytes()).await;
        if is_return {
            return Ok(target.to_owned());
        }
    }
}

/// Returns the parameter `state` of a URL.
fn state_of(url: &str) -> Option<String> {
    let url = url::Url::parse(url).ok()?;
    let mut parameters = url.query_pairs();
    let (_, state) = parameters.find(|(name, _)| name == "state")?;
    Some(state.into_owned())
}

async fn read_request_line(stream: &mut TcpStream) -> Option<String> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream.take(16 << 10));
    reader.read_line(&mut line).await.ok()?;
    Some(line)
}
