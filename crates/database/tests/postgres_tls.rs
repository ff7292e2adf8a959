//! Encrypted connections to a PostgreSQL cluster with certificates of an authority of its own, and
//! clusters that are a standby or have no notices. The tests start the clusters, if
//! `SELVEDGE_TEST_STORE` is set: then PostgreSQL is installed.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use selvedge_database::{Connection, DatabaseError, DatabaseErrorKind};

/// How many ports are tried: another program may take one before the server does.
const MAX_PORTS: usize = 5;

/// A cluster that listens on a port of this machine, and accepts encrypted connections only.
struct Cluster {
    folder: tempfile::TempDir,
    programs: PathBuf,
    port: u16,
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Creates the certificate of an authority, and one of it for `localhost`.
fn create_certificates(folder: &Path) {
    let extensions = "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n";
    std::fs::write(folder.join("extensions"), extensions).unwrap();
    for args in [
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem \
         -subj /CN=authority -days 2",
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key \
         -out server.csr -subj /CN=localhost",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem \
         -days 2 -extfile extensions",
    ] {
        let mut openssl = Command::new("openssl");
        run(openssl.args(args.split_whitespace()).current_dir(folder));
    }
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(folder.join("server.key"), private).unwrap();
}

impl Cluster {
    fn start() -> Self {
        let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/setup-postgres");
        let mut cluster = Self {
            folder: tempfile::tempdir().unwrap(),
            programs: run(&mut Command::new(setup)).into(),
            port: 0,
        };
        let folder = cluster.folder.path();
        create_certificates(folder);
        if is_root() {
            run(Command::new("chown").args(["-R", "postgres"]).arg(folder));
        }
        let options = ["-U", "selvedge", "-A", "trust", "--encoding=UTF8", "-N"];
        run(cluster.program("initdb").args(options));
        let rules = "hostssl all all 127.0.0.1/32 trust\n";
        std::fs::write(folder.join("data/pg_hba.conf"), rules).unwrap();
        let started = (0..MAX_PORTS).any(|_| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            cluster.port = listener.local_addr().unwrap().port();
            drop(listener);
            cluster.try_start_server()
        });
        assert!(started);
        cluster
    }

    /// Returns the cluster; `None` if there is no PostgreSQL to test with.
    fn start_if_installed() -> Option<Self> {
        std::env::var_os("SELVEDGE_TEST_STORE").map(|_| Self::start())
    }

    /// Starts the server. Fails if its port is used.
    fn try_start_server(&self) -> bool {
        let (path, port) = (self.folder.path().display(), self.port);
        let settings = format!(
            "-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={path} \
             -c fsync=off -c ssl=on -c ssl_cert_file={path}/server.pem \
             -c ssl_key_file={path}/server.key"
        );
        let mut start = self.program("pg_ctl");
        start
            .arg("-w")
            .arg("-l")
            .arg(self.folder.path().join("log"));
        start.args(["-o", &settings, "start"]);
        // The server would keep pipes open.
        let started = start.stdout(Stdio::null()).stderr(Stdio::null()).status();
        started.unwrap().success()
    }

    /// Starts the server again as a standby.
    fn restart_as_standby(&self) {
        let mut stop = self.program("pg_ctl");
        run(stop.args(["-w", "-m", "fast", "stop"]));
        let signal = self.folder.path().join("data/standby.signal");
        std::fs::write(&signal, "").unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(signal));
        }
        assert!(self.try_start_server());
    }

    /// Connects with the trusted certificate.
    fn connect_trusted(&self) -> Connection {
        let authority = self.folder.path().join("ca.pem");
        let trusted = format!("sslmode=require&sslrootcert={}", authority.display());
        self.connect("localhost", &trusted).unwrap()
    }

    /// Returns a program of PostgreSQL, which refuses to run as root.
    fn program(&self, name: &str) -> Command {
        let program = self.programs.join(name);
        let mut command = match is_root() {
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
                command.arg(program);
                command
            }
            false => Command::new(program),
        };
        let folder = self.folder.path();
        command.arg("-D").arg(folder.join("data"));
        command.current_dir(folder);
        command
    }

    fn connect(&self, host: &str, parameters: &str) -> Result<Connection, DatabaseError> {
        let port = self.port;
        let address = format!("postgres://selvedge@{host}:{port}/postgres?{parameters}");
        Connection::open_postgres(&address.parse()?)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut stop = self.program("pg_ctl");
        let _ = stop.args(["-m", "immediate", "stop"]).output();
    }
}

fn is_root() -> bool {
    run(Command::new("id").arg("-u")) == "0"
}

#[test]
fn the_certificate_of_a_database_must_have_its_name_and_a_trusted_authority() {
    let Some(cluster) = Cluster::start_if_installed() else {
        return;
    };
    let authority = cluster.folder.path().join("ca.pem");
    let trusted = format!("sslmode=require&sslrootcert={}", authority.display());
    let connection = cluster.connect("localhost", &trusted).unwrap();
    let sql = "SELECT CAST(ssl AS BIGINT) FROM (SELECT CASE WHEN ssl THEN 1 ELSE 0 END AS ssl
        FROM pg_stat_ssl WHERE pid = pg_backend_pid()) AS own";
    let encrypted: i64 = connection.query_row(sql, &[], |row| row.get(0)).unwrap();
    assert_eq!(encrypted, 1);
    for (host, parameters, why) in [
        ("localhost", "sslmode=require", "UnknownIssuer"),
        ("127.0.0.1", &*trusted, "not valid for name"),
        ("localhost", "sslmode=disable", "no encryption"),
    ] {
        let error = cluster.connect(host, parameters).unwrap_err().to_string();
        assert!(error.contains(why), "{host} {parameters}: {error}");
    }
}

#[test]
fn a_standby_is_unavailable_for_writes_until_it_is_promoted() {
    let Some(cluster) = Cluster::start_if_installed() else {
        return;
    };
    let connection = cluster.connect_trusted();
    connection
        .execute_batch("CREATE TABLE notes (id INTEGER PRIMARY KEY)")
        .unwrap();
    let write = |id: i64| {
        let transaction = connection.begin_write()?;
        transaction.execute("INSERT INTO notes (id) VALUES (?1)", &[&id])?;
        transaction.commit()
    };
    write(1).unwrap();
    cluster.restart_as_standby();
    let count = "SELECT count(*) FROM notes";
    let notes = || connection.query_row(count, &[], |row| row.get::<i64>(0));
    assert_eq!(notes().unwrap(), 1);
    for refused in [write(2), connection.check_server_is_writable()] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), DatabaseErrorKind::Unavailable, "{error}");
    }
    run(cluster.program("pg_ctl").args(["-w", "promote"]));
    connection.check_server_is_writable().unwrap();
    write(2).unwrap();
    assert_eq!(notes().unwrap(), 2);
}

#[test]
fn a_server_without_notices_takes_writes() {
    let Some(cluster) = Cluster::start_if_installed() else {
        return;
    };
    let remove =
        "SET allow_system_table_mods = on; DELETE FROM pg_proc WHERE proname = 'pg_notify'";
    cluster.connect_trusted().execute_batch(remove).unwrap();
    let connection = cluster.connect_trusted();
    let transaction = connection.begin_write().unwrap();
    transaction.notify("topic");
    transaction
        .execute("CREATE TABLE notes (id BIGINT)", &[])
        .unwrap();
    transaction.notify("topic");
    transaction.commit().unwrap();
    let count = "SELECT count(*) FROM notes";
    let notes = connection.query_row(count, &[], |row| row.get::<i64>(0));
    assert_eq!(notes.unwrap(), 0);
}
