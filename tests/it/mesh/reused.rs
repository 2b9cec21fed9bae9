//! A Service is deleted and another one gets its cluster IP, while a client uses the address.

use mesh_test_support::program::Program;
use mesh_test_support::require_root;

use super::manifests;
use crate::harness::mesh::Mesh;

/// Prints for each request to an address, on one connection as long as it stays open, the body of
/// its response or `failed`.
const CLIENT: &str = "\
import http.client, sys, time
connection = http.client.HTTPConnection(sys.argv[1], 80, timeout=2)
while True:
    try:
        connection.request('GET', '/')
        response = connection.getresponse()
        body = response.read().decode().strip()
        print(body if response.status == 200 else 'failed', flush=True)
    except (OSError, http.client.HTTPException):
        connection.close()
        print('failed', flush=True)
    time.sleep(0.02)
";

/// The response of `manifests::web`.
const OLD: &str = "hello";
const NEW: &str = "other";

/// The Service `other` with an address, and the application behind it.
fn other(address: &str) -> String {
    let script = format!(
        "\
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Length', '{}')
        self.end_headers()
        self.wfile.write(b'{NEW}')
http.server.ThreadingHTTPServer(('', 8080), Handler).serve_forever()
",
        NEW.len()
    );
    let server = manifests::python_server("app", "other", &script, ("http", 8080));
    server.replace(
        "selector: {app: other}",
        &format!("clusterIP: {address}\n  selector: {{app: other}}"),
    )
}

#[test]
fn client_of_a_deleted_service_never_reaches_its_pods_again() {
    require_root!();
    let app = manifests::namespace("app", true) + &manifests::client("app");
    let pod = manifests::web_replica("app", "web");
    let mesh = Mesh::up(&[
        ("app.yaml", &app),
        ("pod.yaml", &pod),
        ("service.yaml", &manifests::web_service("app")),
    ]);
    let found = mesh.exec("app/client", "getent ahostsv4 web");
    let address = found.split_whitespace().next().expect("web has an address");
    let client = mesh.start("app/client", ["python3", "-c", CLIENT, address]);
    next(&client, OLD, &[]);

    mesh.write("service.yaml", &configuration_only());
    mesh.meshctl("local apply");
    next(&client, "failed", &[OLD]);
    // The pod of the deleted Service goes on.
    let direct = format!("http://{}:8080/", mesh.address("app", "web"));
    assert_eq!(
        mesh.exec("app/client", format!("curl -sS {direct}")),
        "hello\n"
    );

    mesh.write("other.yaml", &other(address));
    mesh.meshctl("local apply");
    next(&client, NEW, &["failed"]);
    for _ in 0..50 {
        next(&client, NEW, &[]);
    }
}

/// Returns the ConfigMap that the pod `web` mounts, without the Service.
fn configuration_only() -> String {
    let all = manifests::web_service("app");
    let config = all.split_once("---\n").expect("two objects").0;
    config.to_owned()
}

/// Waits for this line, and until then for none but `before`.
fn next(client: &Program, line: &str, before: &[&str]) {
    loop {
        let next = client.next_line().expect("the client runs");
        if next == line {
            return;
        }
        assert!(
            before.contains(&&*next),
            "{next:?} before {line:?}:\n{}",
            client.log()
        );
    }
}
