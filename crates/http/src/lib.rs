//! Parts that every HTTP server of Selvedge shares: connections with limits and time-outs, TLS,
//! checks of `Host` and `Origin`, and bearer tokens. The routes belong to the callers.
// Only the program that uses this crate writes to the standard streams.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod bearer;
mod connections;
mod hosts;
mod listener;
mod login_callback;
mod proxies;
mod tls;

pub use bearer::{bearer_token, constant_time_eq};
pub use connections::{HttpConnection, HttpConnectionLimits, TooManyConnections, open_file_limit};
pub use hosts::{AllowedHosts, HostRefusal, host_of_url};
pub use listener::{HttpBindError, HttpListener};
pub use login_callback::wait_for_login_callback;
pub use proxies::{ProxyAddressError, RequestOrigin, TrustedProxies};
pub use tls::{TlsError, TlsSettings};
