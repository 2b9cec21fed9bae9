//! Databases and their own clients, meshed and with one side unmeshed, without any configuration of
//! their protocols.

use std::path::Path;

use mesh_test_support::command::are_installed;
use mesh_test_support::program::Program;

use crate::harness::{Mesh, Pod, policies};

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
        let endpoint = policies::meshed(&server, port);
        mesh.control.service((SERVICE, port), "db", [endpoint]);
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
    if !are_installed(&["redis-server", "redis-benchmark"]) {
        return;
    }
    let Some(scene) = Scene::new(6379).await else {
        return;
    };
    let network = ["--protected-mode", "no", "--bind", "0.0.0.0"];
    let redis = [&["redis-server", "--save", ""][..], &network].concat();
    let _redis = scene.server.serve(6379, redis).await;
    for (pod, host) in scene.ways() {
        let load = "redis-benchmark -n 2000 -c 20 -d 1000 -t set,get,lpush --csv";
        let table = pod.run(format!("{load} -h {host}")).await;
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
    if !are_installed(&["mariadbd", "mariadb", "mariadb-install-db"]) {
        return;
    }
    let Some(scene) = Scene::new(3307).await else {
        return;
    };
    let files = tempfile::tempdir().unwrap();
    let _mariadb = mariadbd(&scene.server, files.path()).await;
    for (pod, host) in scene.ways() {
        let login = format!("mariadb --no-defaults --protocol=tcp -P 3307 -u root -h {host}");
        let query = "SELECT REPEAT('x', 300000), 6 * 7";
        let query = format!("{login} --batch --skip-column-names -e \"{query}\"");
        let row = pod.run(["sh", "-c", &query]).await;
        let expect = format!("{}\t42\n", "x".repeat(300_000));
        assert!(row == expect, "{} bytes", row.len());
    }
}

/// A server with an empty database, on a port that no default calls opaque.
async fn mariadbd(pod: &Pod, files: &Path) -> Program {
    let data = format!(
        "--no-defaults --user=root --datadir={}/data",
        files.display()
    );
    let install = "mariadb-install-db --auth-root-authentication-method=normal";
    pod.run(format!("{install} {data}")).await;
    let socket = format!("--socket={}/socket", files.display());
    let network = "--port=3307 --bind-address=0.0.0.0 --skip-networking=0 --skip-name-resolve";
    let server = format!("mariadbd {data} {socket} {network} --skip-grant-tables");
    pod.serve(3307, server).await
}
