//! Measures what confinement adds to starting a command.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Result;
use selvedge_confine::{Confinement, ConfinementMode, ConfinementSupport};

use crate::measure::{Samples, elapsed_ms};
use crate::table::BenchTable;

pub(crate) fn measure(table: &mut BenchTable) -> Result<()> {
    let work = std::env::temp_dir().join("selvedge-bench-work");
    std::fs::create_dir_all(work.join(".git"))?;
    let work = work.canonicalize()?;
    let home = std::env::home_dir().unwrap_or_default();
    let confinement = ConfinementMode::Confined(Confinement {
        writable: vec![work.clone(), "/tmp".into()],
        protected: vec![work.join(".git"), work.join(".selvedge")],
        hidden: [".ssh", ".aws", ".gnupg", ".kube", ".selvedge"]
            .map(|name| home.join(name))
            .to_vec(),
        ..Confinement::default()
    });
    let support = ConfinementSupport::probe();
    let bubblewrap = Some(std::path::Path::new("/usr/bin/bwrap")).filter(|path| path.exists());
    let (mut bare, mut confined, mut bwrap) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..200 {
        let start = Instant::now();
        let status = Command::new("/bin/true")
            .current_dir(&work)
            .stdout(Stdio::null())
            .status()?;
        bare.extend([elapsed_ms(start)]);
        anyhow::ensure!(status.success(), "/bin/true failed");
        let start = Instant::now();
        let null = || {
            std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/null")
        };
        let command = selvedge_confine::ChildCommand {
            argv: vec!["/bin/true".into()],
            cwd: work.clone(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            stdio: selvedge_confine::ChildStdio::Streams {
                stdin: null()?.into(),
                stdout: null()?.into(),
                stderr: null()?.into(),
            },
            keep_open_fd: None,
            lease: None,
        };
        let mut child = selvedge_confine::spawn(command, &confinement, &support)?;
        anyhow::ensure!(
            child.wait_exit()?.reason.code() == 0,
            "/bin/true failed when confined"
        );
        confined.extend([elapsed_ms(start)]);
        drop(child);
        if let Some(program) = &bubblewrap {
            let start = Instant::now();
            let folder = work.display().to_string();
            let options = [
                "--ro-bind",
                "/",
                "/",
                "--dev",
                "/dev",
                "--proc",
                "/proc",
                "--bind",
                &folder,
                &folder,
            ];
            let status = Command::new(program)
                .args(options)
                .args(["--unshare-all", "--", "/bin/true"])
                .status()?;
            bwrap.extend([elapsed_ms(start)]);
            anyhow::ensure!(status.success(), "bwrap failed");
        }
    }
    let added = confined.p50() - bare.p50();
    let mut peer = format!("bare spawn {:.1} ms (p99 {:.1})", bare.p50(), bare.p99());
    if bubblewrap.is_some() {
        peer.push_str(&format!(
            "; bwrap {:.1} ms (p99 {:.1})",
            bwrap.p50(),
            bwrap.p99()
        ));
    }
    table.add_row(
        "`true`, confined by namespaces, Landlock and seccomp",
        format!(
            "{:.1} ms (p99 {:.1}): {added:.1} ms more",
            confined.p50(),
            confined.p99()
        ),
        &peer,
        "≤ 5 ms more than a bare spawn",
        added <= 5.0,
    );
    Ok(())
}
