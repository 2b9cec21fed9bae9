//! Streams between the proxy and OpenSSL's `s_client` and `s_server`.

use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream};

use super::stream::{local, noise};
use super::{TestCa, identity, peer};
use crate::tls::Purpose::Traffic;
use crate::tls::{CertificateRequest, Credentials, client, server};
use crate::transport::Io;
use crate::transport::tls::buffers::SLOT_COUNT;

/// OpenSSL's names of the supported suites.
const SUITES: [&str; 3] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

/// A running `openssl`.
struct OpenSsl {
    process: Process,
    stdin: pipe::Sender,
    stdout: BufReader<pipe::Receiver>,
}

/// A process that is killed on drop.
struct Process {
    child: Child,
    _directory: TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `openssl` with a certificate for `name`.
fn openssl(ca: &TestCa, name: &str, arguments: &[&str]) -> OpenSsl {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let request = CertificateRequest::new(&identity(name)).unwrap();
    let certificate = file("certificate", &ca.sign(request.der()).leaf);
    let key = file("key", request.to_pkcs8().unwrap().as_ref());
    let anchors = file("anchors", ca.pem.as_bytes());
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (lines, out) = std::io::pipe().unwrap();
    let mut child = Command::new("stdbuf")
        // The server acknowledges commands by printf.
        .args(["-o0", "openssl"])
        .args(arguments)
        .args(["-certform", "DER", "-cert", &path(&certificate)])
        .args(["-keyform", "DER", "-key", &path(&key)])
        .args(["-CAfile", &path(&anchors), "-tls1_3"])
        .stdin(Stdio::piped())
        .stdout(out.try_clone().unwrap())
        // Without `-quiet`, tests distinguish its messages from received data by their lines.
        .stderr(if arguments.contains(&"-quiet") {
            Stdio::null()
        } else {
            out.into()
        })
        .spawn()
        .expect("openssl is needed (Debian package openssl)");
    let stdin = OwnedFd::from(child.stdin.take().unwrap());
    OpenSsl {
        stdin: pipe::Sender::from_owned_fd(stdin).unwrap(),
        stdout: BufReader::new(pipe::Receiver::from_owned_fd(lines.into()).unwrap()),
        process: Process {
            child,
            _directory: directory,
        },
    }
}

/// Starts OpenSSL as the client of the proxy.
async fn accept(ca: &TestCa, arguments: &[&str]) -> (Io, OpenSsl) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let own: Arc<Credentials> = ca.credentials("server.test");
    let mut all = vec!["s_client", "-connect", &addr, "-servername", "server.test"];
    all.extend(arguments);
    let openssl = openssl(ca, "client.test", &all);
    let (tcp, _) = listener.accept().await.unwrap();
    let (stream, info) = server::terminate(Io::plain(tcp), &own, false, Traffic)
        .await
        .unwrap();
    assert_eq!(info.id, Some(identity("client.test")));
    (stream, openssl)
}

/// Starts OpenSSL as the server of the proxy.
async fn dial(ca: &TestCa, arguments: &[&str]) -> (Io, OpenSsl) {
    // s_server cannot choose a free port.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let addr = format!("127.0.0.1:{port}");
    let mut all = vec!["s_server", "-accept", &addr, "-Verify", "3"];
    all.extend(arguments);
    let mut openssl = openssl(ca, "server.test", &all);
    let tcp = loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
            Ok(tcp) => break tcp,
            Err(_) => {
                assert!(
                    openssl.process.child.try_wait().unwrap().is_none(),
                    "s_server ended"
                );
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        }
    };
    let own = ca.credentials("client.test");
    let (stream, _) = client::connect(Io::plain(tcp), &own, &peer("server.test"), false, Traffic)
        .await
        .unwrap();
    (stream, openssl)
}

/// The proxy returns the bytes that OpenSSL sends, in both directions concurrently.
async fn echo(stream: Io, openssl: OpenSsl) {
    const LENGTH: usize = 5 << 20;
    let OpenSsl {
        mut stdin,
        mut stdout,
        process: _process,
    } = openssl;
    let bytes = noise(1, LENGTH);
    let send = async {
        stdin.write_all(&bytes).await.unwrap();
        stdin.flush().await.unwrap();
        stdin
    };
    let receive = async {
        let mut back = vec![0; LENGTH];
        stdout.read_exact(&mut back).await.unwrap();
        assert!(back == bytes);
    };
    let proxy = async {
        let mut stream = stream;
        let mut some = vec![0; 100_000];
        let mut left = LENGTH;
        while left > 0 {
            let n = stream.read(&mut some).await.unwrap();
            assert!(n > 0);
            stream.write_all(&some[..n]).await.unwrap();
            left -= n;
        }
        stream.flush().await.unwrap();
        stream
    };
    let (_stdin, (), mut stream) = tokio::join!(send, receive, proxy);
    stream.shutdown().await.unwrap();
    // OpenSSL responds to close_notify with its own.
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[test]
fn bulk_is_carried_with_every_suite_in_both_roles() {
    let ca = TestCa::new();
    for suite in SUITES {
        let arguments = ["-quiet", "-ciphersuites", suite];
        local(async {
            let (stream, openssl) = accept(&ca, &arguments).await;
            echo(stream, openssl).await;
        });
        local(async {
            let (stream, openssl) = dial(&ca, &arguments).await;
            echo(stream, openssl).await;
        });
    }
}

/// The command `K` makes OpenSSL update its key and request an update, `k` only update its key.
async fn update_keys(mut stream: Io, mut openssl: OpenSsl) {
    // The proxy updates its key at the limit as well.
    let records = stream.sealable().unwrap();
    records.set_record_limit(SLOT_COUNT as u64 + 2);
    for round in 0..12 {
        let command = if round % 2 == 0 { "K\n" } else { "k\n" };
        let word = format!("word-{round}\n");
        openssl.stdin.write_all(command.as_bytes()).await.unwrap();
        openssl.stdin.flush().await.unwrap();
        // OpenSSL takes it for a command only when a read returns nothing else. Client and server
        // acknowledge it with different messages.
        line_with(&mut openssl, &["KEYUPDATE", "SSL_do_handshake -> 1"]).await;
        openssl.stdin.write_all(word.as_bytes()).await.unwrap();
        openssl.stdin.flush().await.unwrap();
        let mut received = vec![0; word.len()];
        stream.read_exact(&mut received).await.unwrap();
        assert_eq!(received, word.as_bytes());
        stream.write_all(&received).await.unwrap();
        stream.flush().await.unwrap();
        line_with(&mut openssl, &[word.trim_end()]).await;
    }
}

/// Waits until OpenSSL prints a line that contains one of the `words`.
async fn line_with(openssl: &mut OpenSsl, words: &[&str]) {
    loop {
        let mut line = Vec::new();
        let read = openssl.stdout.read_until(b'\n', &mut line).await.unwrap();
        assert!(read > 0, "openssl ended");
        let line = String::from_utf8_lossy(&line);
        if words.iter().any(|word| line.contains(word)) {
            return;
        }
    }
}

#[test]
fn openssl_key_updates_are_followed_and_answered() {
    let ca = TestCa::new();
    local(async {
        let (stream, openssl) = accept(&ca, &[]).await;
        update_keys(stream, openssl).await;
    });
    local(async {
        let (stream, openssl) = dial(&ca, &[]).await;
        update_keys(stream, openssl).await;
    });
}
