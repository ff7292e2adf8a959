//! Which values of `Host` and `Origin` a server accepts, so that a page of another site cannot use
//! it through the browser of a user.

use std::net::SocketAddr;

use axum::http::request::Parts;
use axum::http::uri::Authority;
use http::{HeaderName, HeaderValue, header};

/// Host names that requests may use: the loopback names, the bound address and further names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHosts(Vec<String>);

/// Why a request is refused because of its `Host` or `Origin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostRefusal {
    /// The request names no host, several hosts, or a user.
    #[error("a request must have one Host and at most one Origin, without a user name")]
    Malformed,
    /// The host is not one of the server.
    #[error("the Host is not one of this server")]
    ForeignHost,
    /// The request comes from a page of another site.
    #[error("the Origin is not one of this server")]
    ForeignOrigin,
}

impl AllowedHosts {
    /// Returns the loopback names, the bound address unless it means every address, and `more`.
    pub fn new(bound: SocketAddr, more: impl IntoIterator<Item = String>) -> Self {
        let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        if !bound.ip().is_loopback() && !bound.ip().is_unspecified() {
            hosts.push(bound.ip().to_string());
        }
        hosts.extend(more);
        Self(hosts)
    }

    /// Returns the host names.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Returns the origins of the hosts, with `*` for any port.
    pub fn origins(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|host| {
            let host = if host.contains(':') && !host.starts_with('[') {
                format!("[{host}]")
            } else {
                host.clone()
            };
            [format!("http://{host}:*"), format!("https://{host}:*")]
        })
    }

    /// Checks that a request is plain ([`Self::use_target_host`]) and names an allowed host and
    /// origin.
    pub fn check(&self, parts: &mut Parts) -> Result<(), HostRefusal> {
        Self::use_target_host(parts)?;
        let host = text_of(parts, header::HOST).ok_or(HostRefusal::Malformed)?;
        if !self.allows(host) {
            return Err(HostRefusal::ForeignHost);
        }
        if !parts.headers.contains_key(header::ORIGIN) {
            return Ok(());
        }
        let origin = text_of(parts, header::ORIGIN).and_then(|origin| {
            let (scheme, authority) = origin.split_once("://")?;
            ["http", "https"].contains(&scheme).then_some(authority)
        });
        match origin.is_some_and(|authority| self.allows(authority)) {
            true => Ok(()),
            false => Err(HostRefusal::ForeignOrigin),
        }
    }

    /// Checks that a request has at most one `Host` and one `Origin`, both without a user name, and
    /// replaces `Host` by the host in the target, which has precedence.
    pub fn use_target_host(parts: &mut Parts) -> Result<(), HostRefusal> {
        let is_plain = |name| {
            let mut values = parts.headers.get_all(name).iter();
            let first = values
                .next()
                .is_none_or(|value| !value.as_bytes().contains(&b'@'));
            first && values.next().is_none()
        };
        let target = parts.uri.authority();
        let has_user = target.is_some_and(|target| target.as_str().contains('@'));
        if !is_plain(header::HOST) || !is_plain(header::ORIGIN) || has_user {
            return Err(HostRefusal::Malformed);
        }
        let target = target.map(|host| HeaderValue::from_str(host.as_str()));
        if let Some(Ok(host)) = target {
            parts.headers.insert(header::HOST, host);
        }
        Ok(())
    }

    /// Returns whether the host of `host:port` is allowed. The port is not compared, because a
    /// proxy may listen on another one.
    fn allows(&self, authority: &str) -> bool {
        let Ok(authority) = authority.parse::<Authority>() else {
            return false;
        };
        let host = authority.host().trim_matches(['[', ']']);
        let mut names = self.0.iter().map(|name| name.trim_matches(['[', ']']));
        names.any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// Returns the host of an `http` or `https` URL.
pub fn host_of_url(url: &str) -> Option<String> {
    let url: http::Uri = url.parse().ok()?;
    let is_web = matches!(url.scheme_str(), Some("http" | "https"));
    url.host().filter(|_| is_web).map(str::to_owned)
}

fn text_of(parts: &Parts, name: HeaderName) -> Option<&str> {
    parts.headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::http::Request;

    use super::*;

    fn check(headers: &[(&str, &str)], target: &str) -> Result<(), HostRefusal> {
        let hosts = AllowedHosts::new("10.0.0.5:80".parse().unwrap(), ["agents.example".into()]);
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        hosts.check(&mut request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn only_own_hosts_and_origins_are_allowed() {
        for host in [
            "localhost:7420",
            "127.0.0.1",
            "[::1]:7420",
            "10.0.0.5",
            "Agents.Example:443",
        ] {
            assert_eq!(check(&[("Host", host)], "/"), Ok(()), "{host}");
        }
        let own = ("Host", "localhost");
        assert_eq!(
            check(&[own, ("Origin", "https://agents.example")], "/"),
            Ok(())
        );
        for origin in [
            "null",
            "https://evil.example",
            "file://localhost",
            "localhost",
        ] {
            let refused = check(&[own, ("Origin", origin)], "/");
            assert_eq!(refused, Err(HostRefusal::ForeignOrigin), "{origin}");
        }
        for host in ["evil.example", "localhost.evil.example", "10.0.0.6"] {
            let refused = check(&[("Host", host)], "/");
            assert_eq!(refused, Err(HostRefusal::ForeignHost), "{host}");
        }
        let in_target = check(&[own], "http://evil.example/");
        assert_eq!(in_target, Err(HostRefusal::ForeignHost));
        for headers in [
            &[][..],
            &[own, own],
            &[("Host", "user@localhost")],
            &[own, ("Origin", "https://a"), ("Origin", "https://b")],
        ] {
            assert_eq!(check(headers, "/"), Err(HostRefusal::Malformed));
        }
    }
}
