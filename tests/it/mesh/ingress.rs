//! Ingress controllers in ingress mode: reverse proxies that name the Service of a request in
//! `l5d-dst-override`, and whose connections go elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use mesh_test_support::command::are_installed;
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use serde_json::Value;
use xtask::workspace::find_program;

use super::manifests;
use crate::harness::mesh::Mesh;

const HEADER: &str = "l5d-dst-override";

/// The Service that the controllers name. Their connections go to the Service `decoy`.
const NAMED: &str = "web.app.svc.cluster.local:80";

/// `/named` sets the header and `/direct` removes it, whatever the client has sent. All requests
/// share connections to the decoy.
const NGINX: &str = "\
daemon off;
master_process off;
pid /data/nginx.pid;
error_log /dev/stderr warn;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path /data/body;
  proxy_temp_path /data/proxy;
  fastcgi_temp_path /data/fastcgi;
  uwsgi_temp_path /data/uwsgi;
  scgi_temp_path /data/scgi;
  upstream decoy { server decoy.app.svc.cluster.local; keepalive 4; }
  server {
    listen 8080;
    proxy_http_version 1.1;
    location = /named {
      proxy_set_header Connection \"\";
      proxy_set_header Host $http_host;
      proxy_set_header l5d-dst-override web.app.svc.cluster.local:80;
      proxy_pass http://decoy;
    }
    location = /direct {
      proxy_set_header Connection \"\";
      proxy_set_header Host $http_host;
      proxy_set_header l5d-dst-override \"\";
      proxy_pass http://decoy;
    }
  }
}
";

/// The same.
const HAPROXY: &str = "\
defaults
  mode http
  timeout connect 10s
  timeout client 60s
  timeout server 60s
frontend edge
  bind :8080
  http-request set-header l5d-dst-override web.app.svc.cluster.local:80 if { path /named }
  http-request del-header l5d-dst-override if { path /direct }
  default_backend decoy
backend decoy
  http-reuse always
  server decoy decoy.app.svc.cluster.local:80
";

/// The same. An empty value removes a header.
const TRAEFIK: &str = "\
http:
  routers:
    named: {rule: Path(`/named`), service: decoy, middlewares: [named]}
    direct: {rule: Path(`/direct`), service: decoy, middlewares: [direct]}
  middlewares:
    named: {headers: {customRequestHeaders: {l5d-dst-override: 'web.app.svc.cluster.local:80'}}}
    direct: {headers: {customRequestHeaders: {l5d-dst-override: ''}}}
  services:
    decoy: {loadBalancer: {servers: [{url: 'http://decoy.app.svc.cluster.local'}]}}
";

/// An ingress controller.
struct Controller {
    name: &'static str,
    /// Name of the file of its configuration in `/etc/edge`.
    file: &'static str,
    config: &'static str,
    command: &'static str,
}

/// Traefik, which need not be installed, is the last.
const CONTROLLERS: [Controller; 3] = [
    Controller {
        name: "nginx",
        file: "nginx.conf",
        config: NGINX,
        command: "nginx -e /dev/stderr -c /etc/edge/nginx.conf",
    },
    Controller {
        name: "haproxy",
        file: "haproxy.cfg",
        config: HAPROXY,
        command: "haproxy -db -f /etc/edge/haproxy.cfg",
    },
    Controller {
        name: "traefik",
        file: "traefik.yaml",
        config: TRAEFIK,
        command: "traefik --entrypoints.web.address=:8080 --providers.file.filename=/etc/edge/traefik.yaml --global.checknewversion=false",
    },
];

/// Answers each request with its own name and the request's header fields, as JSON.
const SERVER: &str = "\
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        fields = {name.lower(): value for name, value in self.headers.items()}
        body = json.dumps({'server': sys.argv[1], 'fields': fields}).encode() + b'\\n'
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(('', 8080), Handler).serve_forever()
";

/// Two replicas of the named Service, and the decoy.
fn servers() -> String {
    let replica = |app: &str, name: &str| {
        let command = ["python3", "/etc/server/server.py", name];
        let volumes = "    volumeMounts: [{name: script, mountPath: /etc/server}]\n  volumes: [{name: script, configMap: {name: server}}]\n";
        manifests::pod_of(app, "app", name, &command, &[("http", 8080)], volumes)
    };
    let service = |name: &str| manifests::service("app", name, &[("http", 80, 8080)]);
    let script = manifests::config_map("app", "server", "server.py", SERVER);
    let objects = [
        manifests::namespace("app", true),
        script,
        service("web"),
        service("decoy"),
        replica("web", "web-1"),
        replica("web", "web-2"),
        replica("decoy", "decoy"),
    ];
    objects.concat()
}

/// The controllers, and a client outside of the mesh.
fn edge(controllers: &[Controller]) -> String {
    let objects_of = |controller: &Controller| {
        let Controller {
            name,
            file,
            config,
            command,
        } = controller;
        let command: Vec<&str> = command.split(' ').collect();
        let volumes = format!(
            "    volumeMounts: [{{name: config, mountPath: /etc/edge}}, {{name: data, mountPath: /data}}]\n  volumes:\n  - {{name: config, configMap: {{name: {name}}}}}\n  - {{name: data, emptyDir: {{}}}}\n"
        );
        manifests::config_map("edge", name, file, config)
            + &manifests::pod("edge", name, &command, &[("http", 8080)], &volumes)
            + &manifests::service("edge", name, &[("http", 80, 8080)])
    };
    let controllers: String = controllers.iter().map(objects_of).collect();
    let objects = [
        manifests::namespace("edge", true).replace("enabled", "ingress"),
        controllers,
        manifests::namespace("outside", false),
        manifests::client("outside"),
    ];
    objects.concat()
}

/// The requests that the servers received.
struct Received {
    /// Requests by server.
    servers: BTreeMap<String, usize>,
    /// The values of header fields, by name.
    fields: BTreeMap<String, BTreeSet<String>>,
}

/// Sends requests to a path of a controller, each with the header that a client outside must not
/// have a say in.
fn send(mesh: &Mesh, controller: &str, path: &str, count: usize) -> Result<Received, String> {
    let url = format!("http://{controller}.edge.svc.cluster.local/{path}?[1-{count}]");
    let fields = format!("-H host:shop.example -H {HEADER}:client.outside.svc.cluster.local:80");
    let output = mesh.exec("outside/client", format!("curl -sS -m 60 {fields} {url}"));
    let mut received = Received {
        servers: BTreeMap::new(),
        fields: BTreeMap::new(),
    };
    for line in output.lines() {
        let answer: Value = serde_json::from_str(line).map_err(|_not_json| output.clone())?;
        let server = answer["server"].as_str().expect("a name").to_owned();
        *received.servers.entry(server).or_default() += 1;
        for (name, value) in answer["fields"].as_object().expect("fields") {
            let value = value.as_str().expect("a text").to_owned();
            received
                .fields
                .entry(name.clone())
                .or_default()
                .insert(value);
        }
    }
    Ok(received)
}

#[test]
fn ingress_controllers_reach_the_services_that_they_name_with_identity_and_balancing() {
    const REQUESTS: usize = 200;
    require_root!();
    if !are_installed(&["nginx", "haproxy"]) {
        return;
    }
    // Debian has no package of Traefik; `go build ./cmd/traefik` in its module makes it.
    let has_traefik = find_program("traefik").is_some();
    let controllers = if has_traefik {
        &CONTROLLERS[..]
    } else {
        &CONTROLLERS[..2]
    };
    let mesh = Mesh::up(&[
        ("servers.yaml", &servers()),
        ("edge.yaml", &edge(controllers)),
    ]);
    for Controller {
        name: controller, ..
    } in controllers
    {
        eventually(&format!("{controller} reaches {NAMED}"), || {
            let received = send(&mesh, controller, "named", 1)?;
            let is_named = !received.servers.contains_key("decoy");
            is_named
                .then_some(())
                .ok_or("the decoy answered".to_owned())
        });
        let named = send(&mesh, controller, "named", REQUESTS).expect("JSON");
        let direct = send(&mesh, controller, "direct", REQUESTS).expect("JSON");
        println!("{controller}: {:?} {:?}", named.servers, direct.servers);

        let servers: Vec<&str> = named.servers.keys().map(String::as_str).collect();
        assert_eq!(servers, ["web-1", "web-2"], "by {controller}");
        assert_eq!(named.servers.values().sum::<usize>(), REQUESTS);
        let least = named.servers.values().min();
        assert!(least >= Some(&(REQUESTS / 5)), "{:?}", named.servers);
        assert_eq!(direct.servers, [("decoy".to_owned(), REQUESTS)].into());

        // The server's proxy took the identity from the certificate of mutual TLS.
        let identity = format!("{controller}.edge.serviceaccount.identity.linkerd.cluster.local");
        for received in [&named, &direct] {
            let values = |name: &str| received.fields.get(name).cloned().unwrap_or_default();
            assert_eq!(values("l5d-client-id"), [identity.clone()].into());
            assert_eq!(values("host"), ["shop.example".to_owned()].into());
            assert_eq!(values(HEADER), BTreeSet::new(), "by {controller}");
        }
        let opened = mesh.metrics(&format!("edge/{controller}"));
        for server in ["web-1", "web-2", "decoy"] {
            let id = format!("server_id=\"{server}.app.");
            let is_secured = opened.iter().any(|line| {
                line.starts_with("tcp_open_total{")
                    && line.contains("direction=\"outbound\"")
                    && line.contains("tls=\"true\"")
                    && line.contains(&id)
            });
            assert!(is_secured, "no mutual TLS of {controller} with {server}");
        }
    }
}
