//! Manifests of pods with third-party programs.

use mesh_test_support::command::Words as _;

/// A namespace, in the mesh or not.
pub(crate) fn namespace(name: &str, meshed: bool) -> String {
    let inject = if meshed { "enabled" } else { "disabled" };
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n  annotations:\n    linkerd.io/inject: {inject}\n---\n"
    )
}

/// A pod to run clients in.
pub(crate) fn client(namespace: &str) -> String {
    pod(namespace, "client", &["sleep", "infinity"], &[], "")
}

/// The namespace `app` in the mesh, with a client and a server.
pub(crate) fn app() -> String {
    namespace("app", true) + &client("app") + &web("app")
}

/// nginx: HTTP/1 on 8080, HTTP/2 without TLS on 8081.
pub(crate) fn web(namespace: &str) -> String {
    web_service(namespace) + &web_replica(namespace, "web")
}

/// The Service and the configuration of nginx, without a pod.
pub(crate) fn web_service(namespace: &str) -> String {
    let config = "\
daemon off;
master_process off;
pid /data/nginx.pid;
error_log /dev/stderr warn;
worker_rlimit_nofile 20000;
events { worker_connections 16384; }
http {
  access_log off;
  client_body_temp_path /data/body;
  proxy_temp_path /data/proxy;
  fastcgi_temp_path /data/fastcgi;
  uwsgi_temp_path /data/uwsgi;
  scgi_temp_path /data/scgi;
  keepalive_requests 1000000;
  absolute_redirect off;
  client_max_body_size 0;
  server {
    listen 8080;
    listen [::]:8080;
    listen 8081 http2;
    default_type text/plain;
    root /data;
    location = / { return 200 \"hello\\n\"; }
    location = /teapot { return 418 \"short and stout\\n\"; }
    location = /empty { return 204; }
    location = /broken { return 500; }
    location = /moved { return 302 /; }
    location = /headers { return 200 \"$request_method $http_x_test $http_host\\n\"; }
  }
}
";
    config_map(namespace, "web", "nginx.conf", config)
        + &service(namespace, "web", &[("http", 80, 8080), ("h2c", 81, 8081)])
}

/// One pod of nginx behind the Service `web`, with a name of its own.
pub(crate) fn web_replica(namespace: &str, name: &str) -> String {
    let setup = "head -c 3000000 /dev/zero | tr '\\\\0' 'x' > /data/large && exec nginx -e /dev/stderr -c /etc/web/nginx.conf";
    web_pod(namespace, name, setup)
}

/// The same, whose container keeps running for four seconds after nginx has stopped, like an
/// application that flushes data. The proxy receives SIGTERM only afterwards.
pub(crate) fn web_replica_with_slow_shutdown(namespace: &str, name: &str) -> String {
    let setup = "nginx -e /dev/stderr -c /etc/web/nginx.conf & trap \"kill $!; sleep 4; exit 0\" TERM; wait";
    web_pod(namespace, name, setup)
}

fn web_pod(namespace: &str, name: &str, setup: &str) -> String {
    let volumes = "    volumeMounts: [{name: config, mountPath: /etc/web}, {name: data, mountPath: /data}]\n  volumes:\n  - {name: config, configMap: {name: web}}\n  - {name: data, emptyDir: {}}\n";
    let ports = [("http", 8080), ("h2c", 8081)];
    let command = ["sh", "-c", setup];
    pod_of("web", namespace, name, &command, &ports, volumes)
}

/// WebSocket by Python's library: an echo server on 8765.
pub(crate) fn websocket(namespace: &str) -> String {
    let script = "\
import asyncio, websockets
async def echo(socket):
    async for message in socket:
        await socket.send(message)
async def main():
    async with websockets.serve(echo, None, 8765, max_size=None, compression=None):
        await asyncio.Future()
asyncio.run(main())
";
    python_server(namespace, "websocket", script, ("ws", 8765))
}

/// An HTTP server that responds to `/MILLISECONDS` after that time.
pub(crate) fn sleeper(namespace: &str) -> String {
    let script = "\
import asyncio
async def respond(reader, writer):
    while True:
        try:
            head = await reader.readuntil(b'\\r\\n\\r\\n')
        except asyncio.IncompleteReadError:
            return writer.close()
        await asyncio.sleep(int(head.split()[1].lstrip(b'/')) / 1000)
        writer.write(b'HTTP/1.1 204 No Content\\r\\n\\r\\n')
        await writer.drain()
async def main():
    async with await asyncio.start_server(respond, None, 8080) as server:
        await server.serve_forever()
asyncio.run(main())
";
    python_server(namespace, "sleeper", script, ("http", 8080))
}

/// A pod that runs a script of Python, and a Service with its port as 80.
pub(crate) fn python_server(
    namespace: &str,
    name: &str,
    script: &str,
    port: (&str, u16),
) -> String {
    let volumes = format!(
        "    volumeMounts: [{{name: script, mountPath: /etc/script}}]\n  volumes: [{{name: script, configMap: {{name: {name}}}}}]\n"
    );
    let command = ["python3", "/etc/script/server.py"];
    config_map(namespace, name, "server.py", script)
        + &pod(namespace, name, &command, &[port], &volumes)
        + &service(namespace, name, &[(port.0, 80, port.1)])
}

/// A ConfigMap of one file.
pub(crate) fn config_map(namespace: &str, name: &str, file: &str, content: &str) -> String {
    let content = serde_json::Value::from(content);
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\ndata: {{{file}: {content}}}\n---\n"
    )
}

pub(crate) fn redis(namespace: &str) -> String {
    let network = "redis-server --port 6379 --bind * -::* --protected-mode no --dir /data";
    let command = [network.words(), vec!["--save", ""]].concat();
    pod(namespace, "redis", &command, &[("redis", 6379)], DATA)
        + &service(namespace, "redis", &[("redis", 6379, 6379)])
}

/// MariaDB has a server-first protocol: its handshake must reach the client before the client sends
/// bytes. It counts readiness probes as errors of their source, which is the pod itself behind a
/// proxy, and would reject all connections after a hundred.
pub(crate) fn mariadb(namespace: &str) -> String {
    let setup = "mariadb-install-db --no-defaults --user=root --datadir=/data/db --skip-test-db >/dev/null && \
                 exec mariadbd --no-defaults --user=root --datadir=/data/db --socket=/data/db.sock --port=3306 --bind-address=* --skip-grant-tables --max-connect-errors=4294967295";
    let command = ["sh", "-c", setup];
    pod(namespace, "mariadb", &command, &[("mysql", 3306)], DATA)
        + &service(namespace, "mariadb", &[("mysql", 3306, 3306)])
}

/// gRPC.
pub(crate) fn etcd(namespace: &str) -> String {
    let url = format!("http://etcd.{namespace}.svc.cluster.local:2379");
    let command = [
        "etcd",
        "--data-dir=/data/etcd",
        "--log-level=error",
        "--listen-client-urls=http://0.0.0.0:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        &format!("--advertise-client-urls={url}"),
    ];
    pod(namespace, "etcd", &command, &[("grpc", 2379)], DATA)
        + &service(namespace, "etcd", &[("grpc", 2379, 2379)])
}

const DATA: &str =
    "    volumeMounts: [{name: data, mountPath: /data}]\n  volumes: [{name: data, emptyDir: {}}]\n";

/// A pod of one container, with a ServiceAccount of its own; ready when its first port accepts
/// connections.
pub(crate) fn pod(
    namespace: &str,
    name: &str,
    command: &[&str],
    ports: &[(&str, u16)],
    rest: &str,
) -> String {
    pod_of(name, namespace, name, command, ports, rest)
}

/// The same, of the Service `app`.
pub(crate) fn pod_of(
    app: &str,
    namespace: &str,
    name: &str,
    command: &[&str],
    ports: &[(&str, u16)],
    rest: &str,
) -> String {
    let command = serde_json::to_string(command).expect("strings are JSON");
    let listed: Vec<String> = ports
        .iter()
        .map(|(name, port)| format!("{{name: {name}, containerPort: {port}}}"))
        .collect();
    let probe = ports.first().map_or(String::new(), |(_, port)| {
        format!("    readinessProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1}}\n")
    });
    format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {namespace}}}\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  labels: {{app: {app}}}\nspec:\n  serviceAccountName: {name}\n  containers:\n  \
         - name: {name}\n    image: {name}:test\n    command: {command}\n    ports: [{}]\n{probe}{rest}---\n",
        listed.join(", ")
    )
}

pub(crate) fn service(namespace: &str, name: &str, ports: &[(&str, u16, u16)]) -> String {
    let listed: Vec<String> = ports
        .iter()
        .map(|(name, port, target)| format!("{{name: {name}, port: {port}, targetPort: {target}}}"))
        .collect();
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  selector: {{app: {name}}}\n  ports: [{}]\n---\n",
        listed.join(", ")
    )
}
