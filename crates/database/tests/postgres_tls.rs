//! Encrypted connections to a PostgreSQL cluster with certificates of an authority of its own. The
//! test starts the cluster, if `SELVEDGE_TEST_STORE` is set: then PostgreSQL is installed.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use selvedge_database::{Connection, DatabaseError};

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
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let cluster = Self {
            folder: tempfile::tempdir().unwrap(),
            programs: run(&mut Command::new(setup)).into(),
            port: listener.local_addr().unwrap().port(),
        };
        drop(listener);
        let folder = cluster.folder.path();
        create_certificates(folder);
        if is_root() {
            run(Command::new("chown").args(["-R", "postgres"]).arg(folder));
        }
        let options = ["-U", "selvedge", "-A", "trust", "--encoding=UTF8", "-N"];
        run(cluster.program("initdb").args(options));
        let rules = "hostssl all all 127.0.0.1/32 trust\n";
        std::fs::write(folder.join("data/pg_hba.conf"), rules).unwrap();
        let (path, port) = (folder.display(), cluster.port);
        let settings = format!(
            "-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={path} \
             -c fsync=off -c ssl=on -c ssl_cert_file={path}/server.pem \
             -c ssl_key_file={path}/server.key"
        );
        let mut start = cluster.program("pg_ctl");
        start.arg("-w").arg("-l").arg(folder.join("log"));
        start.args(["-o", &settings, "start"]);
        // The server would keep pipes open.
        let started = start.stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(started.unwrap().success());
        cluster
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
    if std::env::var_os("SELVEDGE_TEST_STORE").is_none() {
        return;
    }
    let cluster = Cluster::start();
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
