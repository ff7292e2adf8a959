//! TLS for connections to PostgreSQL, with rustls.
//!
//! It is hand-written, because the crate `tokio-postgres-rustls` parses certificates for channel
//! binding and needs a second set of ASN.1 crates for it. Without channel binding, the name of the
//! server in its certificate is what ties a login to the connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;

use crate::postgres::url::PostgresUrl;
use crate::{DatabaseError, DatabaseErrorKind};

/// Makes encrypted connections to the hosts of an address.
#[derive(Clone)]
pub(crate) struct PostgresTls(Arc<ClientConfig>);

/// Encrypts one connection to a host.
pub(crate) struct HostTls {
    config: Arc<ClientConfig>,
    host: String,
}

/// An encrypted connection.
pub(crate) struct EncryptedStream<S>(tokio_rustls::client::TlsStream<S>);

impl PostgresTls {
    /// Trusts the authorities of `sslrootcert`, or those of the system.
    pub(crate) fn new(url: &PostgresUrl) -> Result<Self, DatabaseError> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            DatabaseError::new(DatabaseErrorKind::Address, format!("{what}: {error}"))
        };
        let mut roots = RootCertStore::empty();
        match &url.root_certificates {
            Some(path) => {
                let what = format!("cannot read the certificates {}", path.display());
                let certificates =
                    CertificateDer::pem_file_iter(path).map_err(|error| failed(&what, &error))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| failed(&what, &error))?;
                    roots
                        .add(certificate)
                        .map_err(|error| failed(&what, &error))?;
                }
            }
            None => {
                // Certificates of the system that cannot be read are not trusted.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed("cannot set up TLS", &error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

impl<S> MakeTlsConnect<S> for PostgresTls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = EncryptedStream<S>;
    type TlsConnect = HostTls;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<HostTls> {
        Ok(HostTls {
            config: self.0.clone(),
            host: host.to_owned(),
        })
    }
}

impl<S> TlsConnect<S> for HostTls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = EncryptedStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<EncryptedStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            let connected = TlsConnector::from(self.config).connect(name, stream).await;
            connected.map(EncryptedStream)
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> tokio_postgres::tls::TlsStream for EncryptedStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for EncryptedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for EncryptedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
