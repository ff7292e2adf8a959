//! TLS of a server: a certificate chain and its key from files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// The certificate and key of a server. Clones share them.
#[derive(Clone)]
pub struct TlsSettings(Arc<RwLock<TlsAcceptor>>);

impl std::fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsSettings")
    }
}

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read as PEM.
    #[error("cannot read {}: {why}", path.display())]
    File {
        /// The file that cannot be read.
        path: PathBuf,
        /// The error of the reader.
        why: String,
    },
    /// The certificate and the key do not belong together, or are not supported.
    #[error("cannot use the certificate {}: {why}", path.display())]
    Certificate {
        /// The file of the certificate.
        path: PathBuf,
        /// The error of the TLS library.
        why: String,
    },
}

impl TlsSettings {
    /// Reads a certificate chain and its private key, both as PEM.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let acceptor = read_files(certificate, key)?;
        Ok(Self(Arc::new(RwLock::new(acceptor))))
    }

    /// Reads the files again, for later connections. If that fails, everything stays as it was.
    pub fn reload(&self, certificate: &Path, key: &Path) -> Result<(), TlsError> {
        let acceptor = read_files(certificate, key)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
        Ok(())
    }

    /// Returns what accepts a connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }
}

fn read_files(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let unreadable = |path: &Path, error: rustls::pki_types::pem::Error| TlsError::File {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(|chain| chain.collect::<Result<Vec<_>, _>>())
        .map_err(|error| unreadable(certificate, error))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
    let unusable = |error: rustls::Error| TlsError::Certificate {
        path: certificate.to_owned(),
        why: error.to_string(),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
