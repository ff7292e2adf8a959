//! Name resolution that filters private addresses. A name is resolved once, and the connection uses
//! the checked address, so a name that resolves differently a moment later (DNS rebinding) has no
//! effect.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::{Reach, is_this_machine, reach};

/// Resolves host names.
pub trait Names: Send + Sync {
    /// Returns the IP addresses of a host name.
    fn resolve(&self, name: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system.
pub(crate) struct SystemNames;

impl Names for SystemNames {
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
pub(crate) struct Guarded {
    pub(crate) names: Arc<dyn Names>,
    /// Names that may resolve to any address.
    pub(crate) trusted: Arc<[String]>,
}

/// Why a name was not resolved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameError {
    #[error("`{name}` resolves to {address}, a private address")]
    Private { name: String, address: IpAddr },
    #[error("`{name}` has no address")]
    Nothing { name: String },
    #[error("cannot resolve host `{name}`: {error}")]
    Unknown { name: String, error: std::io::Error },
}

impl Guarded {
    /// Returns the addresses of a name that may be reached. Fails if there is none.
    pub(crate) async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, NameError> {
        let owned = || name.to_owned();
        let all = self
            .names
            .resolve(owned())
            .await
            .map_err(|error| NameError::Unknown {
                name: owned(),
                error,
            })?;
        let Some(first) = all.first().copied() else {
            return Err(NameError::Nothing { name: owned() });
        };
        let is_trusted = self
            .trusted
            .iter()
            .any(|trusted| trusted.eq_ignore_ascii_case(name));
        let may_reach = |ip: &IpAddr| match reach(*ip) {
            _ if is_trusted => true,
            Reach::Public => !is_this_machine(name),
            // `localhost` in a URL is visible, so such a URL already needed approval.
            Reach::Private => is_this_machine(name) && ip.to_canonical().is_loopback(),
            Reach::Never => false,
        };
        let reachable: Vec<IpAddr> = all.into_iter().filter(may_reach).collect();
        if reachable.is_empty() {
            return Err(NameError::Private {
                name: owned(),
                address: first,
            });
        }
        Ok(reachable)
    }
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            let addresses = resolver.look_up(name.as_str()).await?;
            Ok(Box::new(addresses.into_iter().map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        })
    }
}
