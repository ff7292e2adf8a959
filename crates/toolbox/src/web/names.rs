//! What names stand for: asked once, judged, and connected to as judged. A name that stands for something else a
//! moment later makes no difference.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::{Reach, is_this_machine, reach};

/// Knows what names stand for.
pub trait Names: Send + Sync {
    /// The addresses of a name.
    fn resolve(&self, name: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>>;
}

/// What the system says.
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

/// Names, without those that stand for addresses which are nobody's business.
#[derive(Clone)]
pub(crate) struct Guarded {
    pub(crate) names: Arc<dyn Names>,
    /// Names that may stand for anything.
    pub(crate) trusted: Arc<[String]>,
}

/// A name that stands for an address which is nobody's business.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameError {
    #[error("`{name}` stands for {address}, a private address")]
    Private { name: String, address: IpAddr },
    #[error("`{name}` stands for no address")]
    Nothing { name: String },
    #[error("cannot find out what `{name}` stands for: {error}")]
    Unknown { name: String, error: std::io::Error },
}

impl Guarded {
    /// The addresses a name may be reached at.
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
        let trusted = self
            .trusted
            .iter()
            .any(|trusted| trusted.eq_ignore_ascii_case(name));
        let may = |ip: &IpAddr| match reach(*ip) {
            _ if trusted => true,
            Reach::Public => !is_this_machine(name),
            // Whoever asks for this machine by its name was seen to do so.
            Reach::Private => is_this_machine(name) && ip.to_canonical().is_loopback(),
            Reach::Never => false,
        };
        let reachable: Vec<IpAddr> = all.into_iter().filter(may).collect();
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
        let guarded = self.clone();
        Box::pin(async move {
            let addresses = guarded.look_up(name.as_str()).await?;
            Ok(Box::new(addresses.into_iter().map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        })
    }
}
