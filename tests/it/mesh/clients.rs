//! Common clients have the same results with and without the mesh, whether client, server or both
//! are meshed.

use mesh_test_support::require_root;

use super::manifests;
use crate::harness::mesh::Mesh;

/// Runs a client against the servers of a namespace and returns the reproducible part of its
/// output.
type Scenario = fn(&Mesh, client: &str, servers: &str) -> String;

const SCENARIOS: [(&str, Scenario); 9] = [
    ("curl", curl),
    ("wrk", wrk),
    ("h2load, HTTP/1", h2load_http1),
    ("h2load, HTTP/2", h2load_http2),
    ("etcdctl", etcdctl),
    ("etcdctl watch", etcdctl_watch),
    ("websockets", websockets),
    ("mariadb", mariadb),
    ("redis-benchmark", redis_benchmark),
];

#[test]
fn client_output_is_identical_with_and_without_mesh() {
    require_root!();
    let servers = |namespace: &str| {
        [
            manifests::client(namespace),
            manifests::web(namespace),
            manifests::redis(namespace),
            manifests::mariadb(namespace),
            manifests::etcd(namespace),
            manifests::websocket(namespace),
        ]
        .concat()
    };
    let plain = manifests::namespace("plain", false) + &servers("plain");
    let meshed = manifests::namespace("meshed", true) + &servers("meshed");
    let mesh = Mesh::up(&[("plain.yaml", &plain), ("meshed.yaml", &meshed)]);
    let mut wrong = Vec::new();
    for (name, run) in SCENARIOS {
        let expected = run(&mesh, "plain/client", "plain");
        println!("{name}: {expected}");
        for (client, servers) in [
            ("meshed/client", "meshed"),
            ("meshed/client", "plain"),
            ("plain/client", "meshed"),
        ] {
            let seen = run(&mesh, client, servers);
            if seen != expected {
                wrong.push(format!(
                    "{name} from {client} to {servers}\n  without the mesh: {expected}\n  seen: {seen}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Asserts that the runs above did not bypass the proxies.
    let secured = |pod: &str, needle: &str| {
        mesh.metrics(pod).iter().any(|line| {
            line.starts_with("tcp_open_total")
                && line.contains(needle)
                && line.contains("client_id=\"client.meshed.")
        })
    };
    for (pod, port) in [
        ("meshed/web", "8080"),
        ("meshed/redis", "6379"),
        ("meshed/mariadb", "3306"),
        ("meshed/etcd", "2379"),
        ("meshed/websocket", "8765"),
    ] {
        let needle = format!("target_port=\"{port}\"");
        assert!(
            secured(pod, &needle) || secured(pod, "target_port=\"4143\""),
            "no mutually authenticated connection reached {pod}"
        );
    }
}

/// The arguments of curl; `WEB` stands for the server.
const CURL: [&str; 15] = [
    "WEB/",
    "WEB/teapot",
    "WEB/empty",
    "WEB/absent -o /dev/null",
    "-L WEB/moved",
    "-I WEB/ -o /dev/null",
    // nginx responds to an HTTP/1.0 request with HTTP/1.1; through the mesh the response has the
    // version of the request.
    "-w '%{http_code} %{size_download}\\n' -0 WEB/",
    "WEB/large -o /dev/null",
    "-r 1000-1999 WEB/large -o /dev/null",
    "-H 'X-Test: a, b' -H 'Host: elsewhere.example' WEB/headers",
    "--http2-prior-knowledge WEB:81/",
    "--http2-prior-knowledge WEB:81/large -o /dev/null",
    "WEB/ WEB/teapot WEB/",
    "-H 'Transfer-Encoding: chunked' -d 'some body' -H 'Host: fixed.example' WEB/headers",
    "-H 'Expect: 100-continue' -d 'some body' -H 'Host: fixed.example' WEB/headers",
];

fn curl(mesh: &Mesh, client: &str, servers: &str) -> String {
    let show = "'%{http_code} %{http_version} %{size_download} %{num_redirects}\\n'";
    let run = |arguments: &str| {
        let arguments = arguments.replace("WEB", &format!("http://web.{servers}"));
        let script = format!("curl -sS -m 20 -w {show} {arguments}");
        mesh.exec(client, ["sh", "-c", &script])
    };
    CURL.map(run).concat()
}

fn wrk(mesh: &Mesh, client: &str, servers: &str) -> String {
    let line = format!("wrk -t1 -c16 -d2s http://web.{servers}/");
    let output = mesh.exec(client, line);
    let errors: Vec<&str> = output
        .lines()
        .filter(|line| line.contains("Socket errors") || line.contains("Non-2xx"))
        .collect();
    let served = output.lines().any(|line| line.contains("requests in"));
    format!("served: {served}, errors: {errors:?}")
}

fn h2load_http1(mesh: &Mesh, client: &str, servers: &str) -> String {
    let line = format!("h2load --h1 -n 4000 -c 16 http://web.{servers}/");
    h2load(mesh, client, &line)
}

fn h2load_http2(mesh: &Mesh, client: &str, servers: &str) -> String {
    let line = format!("h2load -p h2c -n 4000 -c 4 -m 16 http://web.{servers}:81/");
    h2load(mesh, client, &line)
}

fn h2load(mesh: &Mesh, client: &str, line: &str) -> String {
    let output = mesh.exec(client, line);
    let counts = output
        .lines()
        .filter(|line| line.starts_with("requests:") || line.starts_with("status codes:"));
    counts.collect::<Vec<_>>().join("; ")
}

fn etcdctl(mesh: &Mesh, client: &str, servers: &str) -> String {
    let script = format!(
        "export ETCDCTL_API=3; e=\"etcdctl --endpoints=http://etcd.{servers}:2379\"; \
         $e del --prefix k >/dev/null; for i in 1 2 3 4 5; do $e put k$i $(printf 'v%.0s' $(seq 1 $((i * 1000)))); done; \
         $e get --prefix k | md5sum; $e get k3 --print-value-only | wc -c; $e del k4; $e lease timetolive 123 2>&1; $e get k4 | wc -l"
    );
    mesh.exec(client, ["sh", "-c", &script])
}

/// gRPC streaming: twenty changes arrive on a stream while other calls make them.
fn etcdctl_watch(mesh: &Mesh, client: &str, servers: &str) -> String {
    let script = format!(
        "export ETCDCTL_API=3; e=\"etcdctl --endpoints=http://etcd.{servers}:2379\"; \
         now=$($e get k -w json | sed 's/.*\"revision\":\\([0-9]*\\).*/\\1/'); \
         (for i in $(seq 1 20); do $e put w$i $(printf 'x%.0s' $(seq 1 $((i * 100)))) >/dev/null; done) & \
         timeout 60 $e watch --prefix w --rev=$((now + 1)) | head -n 60 | md5sum; wait"
    );
    mesh.exec(client, ["sh", "-c", &script])
}

/// Messages of all sizes in both directions, fragments, pings, and a close with its reason.
fn websockets(mesh: &Mesh, client: &str, servers: &str) -> String {
    let script = "\
import asyncio, hashlib, sys, websockets
async def main():
    digest = hashlib.sha256()
    async with websockets.connect(sys.argv[1], max_size=None, compression=None) as socket:
        for size in [0, 1, 125, 126, 65535, 65536, 3000000]:
            for message in ['a' * size, bytes(size)]:
                await socket.send(message)
                echoed = await socket.recv()
                assert echoed == message, size
                digest.update(echoed if isinstance(echoed, bytes) else echoed.encode())
        await socket.send('part %d ' % n for n in range(100))
        digest.update((await socket.recv()).encode())
        await (await socket.ping())
        sent = asyncio.gather(*(socket.send(str(n)) for n in range(500)))
        got = [await socket.recv() for n in range(500)]
        await sent
        digest.update(' '.join(got).encode())
        await socket.close(4321, 'enough')
    print(digest.hexdigest(), socket.close_code, socket.close_reason)
asyncio.run(main())
";
    let url = format!("ws://websocket.{servers}/echo");
    mesh.exec(client, ["python3", "-c", script, &url])
}

fn mariadb(mesh: &Mesh, client: &str, servers: &str) -> String {
    let sql = "drop database if exists t; create database t; use t; create table a (i int primary key, b longtext); \
               insert into a select seq, repeat(char(65 + seq % 26), seq * 100) from seq_1_to_500; \
               select count(*), sum(length(b)), md5(group_concat(md5(b) order by i)) from a; \
               select length(repeat('x', 5000000)); select * from absent;";
    let login = format!("mariadb --no-defaults -h mariadb.{servers} -u root --skip-ssl");
    let script = format!("{login} -f -e \"{sql}\" 2>&1");
    mesh.exec(client, ["sh", "-c", &script])
}

fn redis_benchmark(mesh: &Mesh, client: &str, servers: &str) -> String {
    let host = format!("redis.{servers}");
    let commands = "ping,set,get,incr,lpush,mset";
    let line = format!("redis-benchmark -h {host} -t {commands} -n 2000 -c 20 -P 4 --csv");
    let output = mesh.exec(client, line);
    let tests: Vec<&str> = output
        .lines()
        .filter_map(|line| line.split(',').next())
        .collect();
    let big = format!(
        "redis-cli -h {host} flushall; head -c 1000000 /dev/zero | redis-cli -h {host} -x set big; redis-cli -h {host} get big | md5sum"
    );
    format!("{tests:?} {}", mesh.exec(client, ["sh", "-c", &big]))
}
