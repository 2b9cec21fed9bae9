//! Packet captures: tcpdump in a pod's network namespace, on the pod's interface.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context, bail};

use super::mesh::Mesh;

/// A running capture of the pod's traffic.
pub(crate) struct Capture {
    child: Child,
    /// Output of tcpdump. Unbounded: a capture of one request is a few kilobytes.
    pieces: Receiver<Vec<u8>>,
}

/// The captured bytes, packet headers included.
#[derive(Default)]
pub(crate) struct Captured {
    bytes: Vec<u8>,
}

impl Capture {
    /// Starts to capture `filter` and returns once tcpdump listens.
    pub(crate) fn start(mesh: &Mesh, pod: &str, filter: &str) -> anyhow::Result<Self> {
        // To standard output, unbuffered, since a container has its own file system.
        let command = ["tcpdump", "-i", "eth0", "-U", "-s", "0", "-w", "-", filter];
        let mut child = mesh
            .exec_command(pod, command)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start tcpdump")?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut stdout = stdout.context("tcpdump has a standard output")?;
        let mut lines = BufReader::new(stderr.context("tcpdump has a standard error")?).lines();
        let listens = lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.contains("listening on"));
        if !listens {
            bail!("tcpdump in pod {pod} did not start to listen");
        }
        // Drains the pipe, so that tcpdump never blocks on it.
        std::thread::spawn(move || lines.for_each(drop));
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            let mut piece = vec![0; 65536];
            while let Ok(length @ 1..) = stdout.read(&mut piece) {
                if sender.send(piece[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, pieces })
    }

    /// Waits until the capture is complete, stops it and returns it.
    pub(crate) fn finish(
        mut self,
        is_complete: impl Fn(&Captured) -> bool,
    ) -> anyhow::Result<Captured> {
        let mut captured = Captured::default();
        super::mesh::wait_until("the packets reached the capture", || {
            captured.bytes.extend(self.pieces.try_iter().flatten());
            Ok(is_complete(&captured).then_some(()))
        })?;
        self.child.kill().context("kill tcpdump")?;
        self.child.wait().context("wait for tcpdump")?;
        Ok(captured)
    }
}

impl Captured {
    pub(crate) fn count(&self, pattern: &[u8]) -> usize {
        self.bytes
            .windows(pattern.len())
            .filter(|window| *window == pattern)
            .count()
    }

    /// TLS 1.3 records of application data; three bytes also occur by chance, but not by the dozen
    /// in a few packets.
    pub(crate) fn tls_records(&self) -> usize {
        self.count(&[0x17, 0x03, 0x03])
    }
}
