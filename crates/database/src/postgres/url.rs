//! The address of a PostgreSQL database.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode};

use crate::{DatabaseError, DatabaseErrorKind};

/// How long connecting to one host may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a lost connection stays unnoticed while nothing is sent.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// How long sent data may stay unacknowledged before the connection counts as lost.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);

/// The address of a PostgreSQL database: `postgres://user:password@host:port/database`.
///
/// The parameters are those of libpq. The certificate of the server is always verified if TLS is
/// used, with the certificates of the system or those of `sslrootcert`. Without `sslmode`, TLS is
/// required unless the host is this machine. Neither `Debug` nor `Display` shows the password.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    pub(crate) config: tokio_postgres::Config,
    /// A file with the certificates of authorities, in PEM format.
    pub(crate) root_certificates: Option<PathBuf>,
    label: String,
}

impl PostgresUrl {
    /// Returns whether a text begins as the address of a PostgreSQL database does.
    pub fn is_postgres(text: &str) -> bool {
        text.starts_with("postgres://") || text.starts_with("postgresql://")
    }

    /// Returns the address without user and password.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the same database with another default schema.
    pub fn with_schema(&self, schema: &str) -> Self {
        let mut other = self.clone();
        let search_path = format!("-csearch_path={schema}");
        let options = match other.config.get_options() {
            Some(options) => format!("{options} {search_path}"),
            None => search_path,
        };
        other.config.options(options);
        other.label = format!("{} (schema {schema})", self.label);
        other
    }
}

impl FromStr for PostgresUrl {
    type Err = DatabaseError;

    fn from_str(text: &str) -> Result<Self, DatabaseError> {
        let invalid = |why: &str| {
            let message = format!("not an address of a PostgreSQL database: {why}");
            DatabaseError::new(DatabaseErrorKind::Address, message)
        };
        if !Self::is_postgres(text) {
            return Err(invalid("it must begin with postgres://"));
        }
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut mode, mut root_certificates, mut others) = (None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value.to_owned()),
                Some(("sslrootcert", value)) => {
                    root_certificates = Some(PathBuf::from(percent_decode(value)));
                }
                _ => others.push(pair),
            }
        }
        // The error may quote the text, and with it the password.
        let mut config: tokio_postgres::Config = format!("{base}?{}", others.join("&"))
            .parse()
            .map_err(|_| invalid("a part of it cannot be read"))?;
        if config.get_hosts().is_empty() {
            return Err(invalid("it has no host"));
        }
        let is_local = config.get_hosts().iter().all(is_this_machine)
            && config.get_hostaddrs().iter().all(IpAddr::is_loopback);
        let mode = match mode.as_deref() {
            Some("disable") => SslMode::Disable,
            Some("require" | "verify-ca" | "verify-full") => SslMode::Require,
            None | Some("prefer" | "allow") if is_local => SslMode::Disable,
            None | Some("prefer" | "allow") => SslMode::Require,
            Some(_) => return Err(invalid("sslmode must be disable, require or verify-full")),
        };
        config.ssl_mode(mode).keepalives_idle(KEEPALIVE_IDLE);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(TCP_USER_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("selvedge");
        }
        Ok(Self {
            label: label(&config),
            config,
            root_certificates,
        })
    }
}

/// Returns whether a host is this machine.
fn is_this_machine(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

/// Returns hosts, ports and database of an address.
fn label(config: &tokio_postgres::Config) -> String {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate().map(|(index, host)| {
        let port = ports.get(index).or(ports.first()).unwrap_or(&5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            #[cfg(unix)]
            Host::Unix(folder) => format!("{}:{port}", folder.display()),
        }
    });
    let hosts: Vec<String> = hosts.collect();
    let database = config.get_dbname().or(config.get_user());
    format!(
        "postgres://{}/{}",
        hosts.join(","),
        database.unwrap_or_default()
    )
}

/// Decodes `%xx` in the value of a parameter.
fn percent_decode(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let escaped = (*first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({})", self.label)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<PostgresUrl, DatabaseError> {
        text.parse()
    }

    #[test]
    fn the_password_is_never_shown() {
        let url = parse("postgres://ann:s3cret@db.example:6432/work").unwrap();
        for shown in [url.to_string(), format!("{url:?}")] {
            assert!(shown.contains("db.example:6432/work"), "{shown}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        for wrong in [
            "postgres://ann:s3cret@db:port/x",
            "postgres://ann:s3cret@db/x?connect_timeout=s3cret",
            "postgres://ann:s3cret@db/x?sslmode=s3cret",
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_connection_to_another_machine_is_encrypted_by_default() {
        for (url, mode) in [
            ("postgres://u@db.example/x", SslMode::Require),
            ("postgres://u@db.example/x?sslmode=prefer", SslMode::Require),
            (
                "postgres://u@db.example/x?sslmode=disable",
                SslMode::Disable,
            ),
            ("postgres://u@127.0.0.1/x", SslMode::Disable),
            ("postgres://u@[::1]/x", SslMode::Disable),
            ("postgres://u@%2Ftmp%2Fsocket/x", SslMode::Disable),
            (
                "postgres://u@localhost/x?sslmode=verify-full",
                SslMode::Require,
            ),
            ("postgres://u@localhost,db.example/x", SslMode::Require),
        ] {
            assert_eq!(parse(url).unwrap().config.get_ssl_mode(), mode, "{url}");
        }
    }

    #[test]
    fn certificates_of_authorities_are_a_file() {
        let url = parse("postgres://u@db/x?sslrootcert=%2Fca%20file.pem&connect_timeout=2");
        let url = url.unwrap();
        assert_eq!(url.root_certificates, Some(PathBuf::from("/ca file.pem")));
        let timeout = url.config.get_connect_timeout();
        assert_eq!(timeout, Some(&Duration::from_secs(2)));
    }
}
