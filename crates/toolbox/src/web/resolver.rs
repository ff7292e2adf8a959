//! Name resolution that filters private addresses. A name is resolved once, and the connection uses
//! the checked address, so a name that resolves differently a moment later (DNS rebinding) has no
//! effect.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::{AddressClass, classify_ip, is_loopback_name};

/// Resolves host names.
pub trait NameResolver: Send + Sync {
    /// Returns the IP addresses of a host name.
    fn resolve(&self, name: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system.
pub(crate) struct SystemNameResolver;

impl NameResolver for SystemNameResolver {
    fn resolve(&self, name: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
        async move {
            Ok(tokio::net::lookup_host((name, 0))
                .await?
                .map(|address| address.ip())
                .collect())
        }
        .boxed()
    }
}

/// A resolver that returns only public addresses, except for trusted names and `localhost`.
#[derive(Clone)]
pub(crate) struct FilteringResolver {
    pub(crate) inner: Arc<dyn NameResolver>,
    /// Names that may resolve to any address.
    pub(crate) trusted_names: Arc<[String]>,
}

/// Why a name was not resolved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("`{name}` resolves to {address}, a private address")]
    Private { name: String, address: IpAddr },
    #[error("`{name}` has no address")]
    NoAddress { name: String },
    #[error("cannot resolve host `{name}`: {error}")]
    LookupFailed { name: String, error: std::io::Error },
}

impl FilteringResolver {
    /// Returns the addresses of a name that may be reached. Fails if there is none.
    pub(crate) async fn resolve_allowed(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let owned = || name.to_owned();
        let all =
            self.inner
                .resolve(owned())
                .await
                .map_err(|error| ResolveError::LookupFailed {
                    name: owned(),
                    error,
                })?;
        let Some(first) = all.first().copied() else {
            return Err(ResolveError::NoAddress { name: owned() });
        };
        let is_trusted = self
            .trusted_names
            .iter()
            .any(|trusted| trusted.eq_ignore_ascii_case(name));
        let may_reach = |ip: &IpAddr| match classify_ip(*ip) {
            _ if is_trusted => true,
            AddressClass::Public => !is_loopback_name(name),
            // `localhost` in a URL is visible, so such a URL already needed approval.
            AddressClass::Private => is_loopback_name(name) && ip.to_canonical().is_loopback(),
            AddressClass::Blocked => false,
        };
        let reachable: Vec<IpAddr> = all.into_iter().filter(may_reach).collect();
        if reachable.is_empty() {
            return Err(ResolveError::Private {
                name: owned(),
                address: first,
            });
        }
        Ok(reachable)
    }
}

impl Resolve for FilteringResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            let addresses = resolver.resolve_allowed(name.as_str()).await?;
            Ok(Box::new(addresses.into_iter().map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        })
    }
}
