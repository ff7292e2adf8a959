//! Which proxies a server believes, and what their headers say about a request.

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue, header};
use ipnet::IpNet;

/// Addresses of proxies whose `X-Forwarded-*` headers count. Those of others are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// Text that is neither an address nor a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an IP address or network")]
pub struct ProxyAddressError(pub String);

/// How a request reached the first trusted proxy, or the server if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestOrigin {
    /// Address of the client.
    pub client: IpAddr,
    /// Whether a trusted proxy received the request over TLS.
    pub is_tls: bool,
}

impl TrustedProxies {
    /// Reads addresses and networks such as `10.0.0.1` and `10.0.0.0/8`.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, ProxyAddressError> {
        let parsed = texts.into_iter().map(|text| {
            let net = text.parse::<IpNet>().ok();
            let net = net.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
            net.ok_or_else(|| ProxyAddressError(text.to_owned()))
        });
        Ok(Self(parsed.collect::<Result<_, _>>()?))
    }

    fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|net| net.contains(&address))
    }

    /// Returns where a request came from. If `peer` is a trusted proxy, `Host` is replaced by
    /// `X-Forwarded-Host`. The forwarded headers are removed.
    pub fn resolve(&self, peer: IpAddr, headers: &mut HeaderMap) -> RequestOrigin {
        let mut origin = RequestOrigin {
            client: peer.to_canonical(),
            is_tls: false,
        };
        let forwarded = |name| {
            let values = headers.get_all(name).iter();
            let values = values.filter_map(|value: &HeaderValue| value.to_str().ok());
            let values = values.flat_map(|value| value.split(','));
            values
                .map(|value| value.trim().to_owned())
                .collect::<Vec<_>>()
        };
        let [clients, schemes, hosts] =
            ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"].map(forwarded);
        for name in ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"] {
            headers.remove(name);
        }
        if !self.contains(peer) {
            return origin;
        }
        // Each proxy adds the address that it saw; a client can add any before these.
        for address in clients
            .iter()
            .rev()
            .map_while(|text| text.parse::<IpAddr>().ok())
        {
            origin.client = address.to_canonical();
            if !self.contains(address) {
                break;
            }
        }
        origin.is_tls = schemes
            .last()
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
        if let Some(Ok(host)) = hosts.last().map(|host| HeaderValue::from_str(host)) {
            headers.insert(header::HOST, host);
        }
        origin
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn resolve(peer: &str, sent: &[(&'static str, &str)]) -> (String, bool, String) {
        let proxies = TrustedProxies::parse(["10.0.0.0/8", "::1", "192.0.2.7"]).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("inner"));
        for (name, value) in sent {
            headers.append(*name, value.parse().unwrap());
        }
        let origin = proxies.resolve(peer.parse().unwrap(), &mut headers);
        assert_eq!(headers.len(), 1);
        let host = headers[header::HOST].to_str().unwrap().to_owned();
        (origin.client.to_string(), origin.is_tls, host)
    }

    #[test]
    fn only_headers_of_trusted_proxies_count() {
        let sent = [
            ("x-forwarded-for", "203.0.113.9, 198.51.100.4"),
            ("x-forwarded-for", "10.1.1.1"),
            ("x-forwarded-proto", "HTTPS"),
            ("x-forwarded-host", "agents.example"),
        ];
        let believed = ("198.51.100.4".into(), true, "agents.example".into());
        for peer in ["10.2.3.4", "::1", "192.0.2.7", "::ffff:10.2.3.4"] {
            assert_eq!(resolve(peer, &sent), believed, "{peer}");
        }
        let other = ("192.0.2.8".into(), false, "inner".into());
        assert_eq!(resolve("192.0.2.8", &sent), other);
        let malformed = [("x-forwarded-for", "203.0.113.9, unknown")];
        let proxy = ("10.0.0.1".into(), false, "inner".into());
        assert_eq!(resolve("10.0.0.1", &malformed), proxy);
        assert_eq!(
            TrustedProxies::parse(["10.0.0.0/33"]),
            Err(ProxyAddressError("10.0.0.0/33".to_owned()))
        );
    }
}
