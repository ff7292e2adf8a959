//! Parses URLs and classifies their hosts as public, private or blocked. Does not resolve names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::Url;
use selvedge_tools::ToolError;

/// Maximum length of a URL in bytes.
const MAX_URL_BYTES: usize = 8 * 1024;

/// Schemes that are recognized without `//`; other words before a colon are hosts.
const KNOWN_SCHEMES: [&str; 7] = [
    "http",
    "https",
    "javascript",
    "data",
    "mailto",
    "about",
    "file",
];

/// Whether an address is on the public internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AddressClass {
    /// An address on the public internet.
    Public,
    /// Loopback or a private network: needs approval.
    Private,
    /// Link-local (which includes cloud metadata services), multicast or reserved: refused.
    Blocked,
}

/// Parses a URL. Without a scheme, it is `http` for private hosts and `https` for others. The
/// fragment is removed.
pub(crate) fn parse_url(text: &str) -> Result<Url, ToolError> {
    let text = text.trim();
    let invalid = |reason: &str| {
        let shown: String = text.chars().take(200).collect();
        ToolError::new(format!("`{shown}` is not a valid URL: {reason}"))
            .suggest("write the full URL, such as https://example.com/page")
    };
    if text.len() > MAX_URL_BYTES {
        return Err(invalid(&format!("longer than {MAX_URL_BYTES} bytes")));
    }
    // `localhost:3000` looks like a scheme but is a host, so a scheme without `//` must be known.
    let has_scheme = text.contains("://")
        || text
            .split(':')
            .next()
            .is_some_and(|scheme| KNOWN_SCHEMES.contains(&scheme));
    let url = if has_scheme {
        Url::parse(text)
    } else {
        Url::parse(&format!("https://{text}"))
    };
    let mut url = url.map_err(|error| invalid(&error.to_string()))?;
    if !has_scheme && classify_url(&url) == AddressClass::Private {
        url = Url::parse(&format!("http://{text}")).map_err(|error| invalid(&error.to_string()))?;
    }
    check_url(&url).map_err(|reason| invalid(&reason))?;
    url.set_fragment(None);
    Ok(url)
}

/// Checks scheme, credentials and host of a URL. Also used for redirect targets.
pub(crate) fn check_url(url: &Url) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("`{}:` is neither http nor https", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "it contains a user name or password, which would be stored in the journal".to_owned(),
        );
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("it has no host".to_owned());
    }
    Ok(())
}

/// Returns the host, with the port if it is not the default. Approvals and rules use this form.
pub(crate) fn host_with_port(url: &Url) -> String {
    let name = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{name}:{port}"),
        None => name.to_owned(),
    }
}

/// Whether two hosts are one site: equal except for a leading `www.`.
pub(crate) fn is_same_site(first: &str, second: &str) -> bool {
    let bare = |host: &str| host.strip_prefix("www.").unwrap_or(host).to_owned();
    bare(first) == bare(second)
}

/// Whether a list of hosts contains the host of a URL. Entries are a name, a name with port, or
/// `*.example.com` for all hosts below a domain.
pub(crate) fn is_listed(hosts: &[String], url: &Url) -> bool {
    let (with_port, name) = (host_with_port(url), url.host_str().unwrap_or_default());
    hosts.iter().any(|entry| match entry.strip_prefix("*.") {
        Some(domain) => {
            url.port().is_none()
                && name
                    .strip_suffix(domain)
                    .is_some_and(|rest| rest.ends_with('.'))
        }
        None => entry.eq_ignore_ascii_case(&with_port),
    })
}

/// Classifies the host of a URL without resolving names.
pub(crate) fn classify_url(url: &Url) -> AddressClass {
    match url.host() {
        Some(url::Host::Ipv4(ip)) => classify_ip(IpAddr::V4(ip)),
        Some(url::Host::Ipv6(ip)) => classify_ip(IpAddr::V6(ip)),
        Some(url::Host::Domain(name)) if is_loopback_name(name) => AddressClass::Private,
        _ => AddressClass::Public,
    }
}

/// Whether a name is reserved for the loopback interface: `localhost` or below it.
pub(crate) fn is_loopback_name(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
}

/// Classifies an IP address.
pub(crate) fn classify_ip(ip: IpAddr) -> AddressClass {
    match ip {
        IpAddr::V4(ip) => classify_ipv4(ip),
        IpAddr::V6(ip) => classify_ipv6(ip),
    }
}

fn classify_ipv4(ip: Ipv4Addr) -> AddressClass {
    let [a, b, c, _] = ip.octets();
    if ip.is_loopback() || ip.is_private() || a == 100 && (64..128).contains(&b) {
        return AddressClass::Private;
    }
    let reserved = a == 0
        || a >= 240
        || ip.is_multicast()
        || ip.is_link_local()
        || ip.is_documentation()
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 88, 99)
        || a == 198 && (18..20).contains(&b);
    if reserved {
        AddressClass::Blocked
    } else {
        AddressClass::Public
    }
}

fn classify_ipv6(ip: Ipv6Addr) -> AddressClass {
    let parts = ip.segments();
    let v4 = |high: u16, low: u16| {
        classify_ipv4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
    };
    match parts {
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressClass::Private,
        // IPv4 inside IPv6: mapped, compatible, translated (NAT64) and 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low] => v4(high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => v4(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        // Unique local addresses.
        [first, ..] if first & 0xfe00 == 0xfc00 => AddressClass::Private,
        // Documentation, Teredo, benchmarking and similar ranges.
        [0x2001, second, ..] if second == 0xdb8 || second < 0x200 => AddressClass::Blocked,
        [0x3fff, second, ..] if second < 0x1000 => AddressClass::Blocked,
        // Global unicast.
        [first, ..] if (0x2000..0x4000).contains(&first) => AddressClass::Public,
        _ => AddressClass::Blocked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ip_addresses_are_public_private_or_blocked() {
        let cases = [
            (
                AddressClass::Public,
                "93.184.216.34 8.8.8.8 172.32.0.1 100.128.0.1 \
                 2606:2800:220:1::1 ::ffff:8.8.8.8 2002:808:808::1",
            ),
            (
                AddressClass::Private,
                "127.0.0.1 127.9.9.9 10.0.0.1 172.16.0.1 192.168.1.1 \
                 100.64.0.1 ::1 fd00::1 ::ffff:127.0.0.1",
            ),
            (
                AddressClass::Private,
                "::127.0.0.1 64:ff9b::a00:1 2002:7f00:1::",
            ),
            (
                AddressClass::Blocked,
                "0.0.0.0 0.1.2.3 169.254.169.254 224.0.0.1 255.255.255.255 \
                 198.18.0.1 192.0.2.1 240.0.0.1",
            ),
            (
                AddressClass::Blocked,
                ":: fe80::1 ff02::1 2001:db8::1 2001::1 \
                 ::ffff:169.254.169.254 fec0::1 100::1 64:ff9b:1::1",
            ),
        ];
        for (expected, addresses) in cases {
            for address in addresses.split(' ') {
                assert_eq!(classify_ip(address.parse().unwrap()), expected, "{address}");
            }
        }
    }

    #[test]
    fn unusual_spellings_of_an_address_are_classified() {
        for written in [
            "http://2130706433/",
            "http://0x7f.1/",
            "http://017700000001",
            "http://127.1",
            "http://[::1]:80/",
        ] {
            assert_eq!(
                classify_url(&parse_url(written).unwrap()),
                AddressClass::Private,
                "{written}"
            );
        }
        for written in [
            "localhost:3000/x",
            "http://LOCALHOST./",
            "http://app.localhost/",
            "http://１２７.0.0.1/",
        ] {
            assert_eq!(
                classify_url(&parse_url(written).unwrap()),
                AddressClass::Private,
                "{written}"
            );
        }
        assert_eq!(
            classify_url(&parse_url("http://169.254.169.254/latest/meta-data/").unwrap()),
            AddressClass::Blocked
        );
        assert_eq!(
            parse_url("localhost:3000/x").unwrap().as_str(),
            "http://localhost:3000/x"
        );
        assert_eq!(
            parse_url(" example.com/a?b#c ").unwrap().as_str(),
            "https://example.com/a?b"
        );
        for wrong in [
            "",
            "file:///etc/passwd",
            "ftp://x/",
            "https://",
            "javascript:alert(1)",
            "https://me:pw@host/",
        ] {
            assert!(parse_url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn host_rules_match_by_name_port_and_domain() {
        let hosts = ["docs.rs", "*.example.com", "localhost:3000"].map(str::to_owned);
        let listed = |written: &str| is_listed(&hosts, &parse_url(written).unwrap());
        assert!(
            listed("https://docs.rs/x")
                && listed("https://a.b.example.com")
                && listed("http://localhost:3000/")
        );
        for other in [
            "https://docs.rs:8443/",
            "https://example.com",
            "https://notexample.com",
            "http://localhost:3001/",
        ] {
            assert!(!listed(other), "{other}");
        }
        assert!(
            is_same_site("www.docs.rs", "docs.rs") && !is_same_site("docs.rs", "docs.rs.evil.com")
        );
    }
}
