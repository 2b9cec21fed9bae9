//! Databases and their own clients, meshed and with one side unmeshed, without any configuration of
//! their protocols.

use std::path::Path;
use std::process::Command;

use crate::harness::{Mesh, Pod, Program, policies};

const SERVICE: [u8; 4] = [10, 96, 0, 1];

/// A server pod, a client pod, a Service between them, and an outsider.
struct Scene {
    _mesh: Mesh,
    server: Pod,
    client: Pod,
    outsider: Pod,
}

impl Scene {
    async fn new(port: u16) -> Option<Self> {
        let mesh = Mesh::new()?;
        let server = mesh.pod("server").meshed().await;
        let client = mesh.pod("client").meshed().await;
        let outsider = mesh.pod("outsider");
        mesh.control
            .outbound((SERVICE, port), policies::service("db", port));
        let endpoints = vec![policies::meshed(&server, port)];
        mesh.control
            .endpoints(&policies::authority("db", port), endpoints);
        Some(Self {
            _mesh: mesh,
            server,
            client,
            outsider,
        })
    }

    /// Who connects where: both meshed, then only the server.
    fn ways(&self) -> [(&Pod, String); 2] {
        let service = std::net::Ipv4Addr::from(SERVICE).to_string();
        [
            (&self.client, service),
            (&self.outsider, self.server.ip.to_string()),
        ]
    }
}

#[tokio::test]
async fn redis() {
    if !["redis-server", "redis-benchmark"]
        .into_iter()
        .all(Program::is_installed)
    {
        return;
    }
    let Some(scene) = Scene::new(6379).await else {
        return;
    };
    let mut redis = Command::new("redis-server");
    redis.args(["--save", "", "--protected-mode", "no", "--bind", "0.0.0.0"]);
    let _redis = Program::serve(&scene.server, 6379, redis).await;
    for (pod, host) in scene.ways() {
        let mut benchmark = Command::new("redis-benchmark");
        benchmark.args([
            "-h",
            &host,
            "-n",
            "2000",
            "-c",
            "20",
            "-d",
            "1000",
            "-t",
            "set,get,lpush",
            "--csv",
        ]);
        let table = Program::run(pod, benchmark).await;
        for test in ["SET", "GET", "LPUSH"] {
            assert!(table.contains(&format!("\"{test}\"")), "{table}");
        }
    }
    let meshed = [
        "tcp_open_total",
        "direction=\"inbound\"",
        "tls=\"true\"",
        "target_port=\"6379\"",
    ];
    assert!(scene.server.metric(&meshed).await >= 20.0);
}

#[tokio::test]
async fn mariadb() {
    if !["mariadbd", "mariadb", "mariadb-install-db"]
        .into_iter()
        .all(Program::is_installed)
    {
        return;
    }
    let Some(scene) = Scene::new(3307).await else {
        return;
    };
    let files = tempfile::tempdir().unwrap();
    let _mariadb = mariadbd(&scene.server, files.path()).await;
    for (pod, host) in scene.ways() {
        let mut client = Command::new("mariadb");
        client.args([
            "--no-defaults",
            "--protocol=tcp",
            "-P",
            "3307",
            "-u",
            "root",
            "-h",
            &host,
        ]);
        client.args([
            "--batch",
            "--skip-column-names",
            "-e",
            "SELECT REPEAT('x', 300000), 6 * 7",
        ]);
        let row = Program::run(pod, client).await;
        let expect = format!("{}\t42\n", "x".repeat(300_000));
        assert!(row == expect, "{} bytes", row.len());
    }
}

/// A server with an empty database, on a port that no default calls opaque.
async fn mariadbd(pod: &Pod, files: &Path) -> Program {
    let data = format!("--datadir={}", files.join("data").display());
    let mut install = Command::new("mariadb-install-db");
    install.args([
        "--no-defaults",
        "--user=root",
        "--auth-root-authentication-method=normal",
        &data,
    ]);
    Program::run(pod, install).await;
    let mut server = Command::new("mariadbd");
    server.args([
        "--no-defaults",
        "--user=root",
        "--skip-grant-tables",
        "--port=3307",
        &data,
    ]);
    server.args([
        "--bind-address=0.0.0.0",
        "--skip-networking=0",
        "--skip-name-resolve",
    ]);
    server.arg(format!("--socket={}", files.join("socket").display()));
    Program::serve(pod, 3307, server).await
}
