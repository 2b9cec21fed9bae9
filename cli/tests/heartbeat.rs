//! `meshctl diagnostics heartbeat` against servers that play an API server and Prometheus.

#![expect(clippy::unwrap_used, reason = "failed set-up fails the test")]

use std::future::ready;
use std::net::SocketAddr;

use http::Request;
use hyper::body::Incoming;
use mesh_test_support::{installation, kube_api};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;

/// Returns the object at a path; `None` for a response of 404.
type Objects = Box<dyn Fn(&str) -> Option<Value> + Send + Sync>;

/// Serves HTTP/1 until the test ends.
async fn serve(objects: Objects) -> SocketAddr {
    let objects: &'static Objects = Box::leak(Box::new(objects));
    let respond =
        move |request: Request<Incoming>| ready(kube_api::found(objects(request.uri().path())));
    kube_api::start(respond).await
}

/// Returns the objects of a cluster with these values and this argument of the CronJob.
fn cluster(values: String, cron_job_url: Option<&'static str>) -> Objects {
    Box::new(move |path| {
        Some(match path {
            "/apis/batch/v1/namespaces/linkerd/cronjobs/linkerd-heartbeat" => {
                let args = json!(["heartbeat", format!("--url={}", cron_job_url?)]);
                let pod = json!({ "containers": [{ "name": "heartbeat", "args": args }] });
                let job = json!({ "spec": { "template": { "spec": pod } } });
                json!({
                    "apiVersion": "batch/v1", "kind": "CronJob",
                    "metadata": { "name": "linkerd-heartbeat", "namespace": "linkerd" },
                    "spec": { "schedule": "5 4 * * *", "jobTemplate": job },
                })
            }
            "/api/v1/nodes" => {
                let info = json!({
                    "architecture": "arm64", "bootID": "", "containerRuntimeVersion": "",
                    "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
                    "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
                });
                let node = json!({ "metadata": { "name": "a" }, "status": { "nodeInfo": info } });
                json!({ "apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": [node] })
            }
            _ => return installation::object(path, "linkerd", "0b7c-4d", &values),
        })
    })
}

/// Returns 12.4 for every query.
fn prometheus() -> Objects {
    Box::new(|path| {
        let samples = json!([{ "metric": {}, "value": [1, "12.4"] }]);
        let data = json!({ "resultType": "vector", "result": samples });
        (path == "/api/v1/query").then(|| json!({ "status": "success", "data": data }))
    })
}

/// Returns the JSON document of the command.
async fn heartbeat(objects: Objects) -> Value {
    let server = serve(objects).await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    kube_api::write_kubeconfig(&kubeconfig, server);
    let output = Command::new(env!("CARGO_BIN_EXE_meshctl"))
        .args(["diagnostics", "heartbeat", "-o", "json"])
        .env("KUBECONFIG", &kubeconfig)
        .env_remove("MESHCTL_LOCAL")
        .env_remove("LINKERD_NAMESPACE")
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn shown_request_is_what_the_controller_sends() {
    let prometheus = serve(prometheus()).await;
    let values = format!("linkerdVersion: 1.2.3\nprometheusUrl: http://{prometheus}\n");
    let shown = heartbeat(cluster(values, Some("https://a.example/mesh"))).await;
    assert_eq!(shown["sending"], "on", "{shown:#}");
    assert_eq!(shown["schedule"], "5 4 * * *");
    let memory = "max-mem-destination=12&max-mem-linkerd-proxy=12&max-mem-prometheus=12";
    let cpu = "p95-cpu-destination=12.400&p95-cpu-linkerd-proxy=12.400&p95-cpu-prometheus=12.400";
    assert_eq!(
        shown["request"],
        format!(
            "https://a.example/mesh?arch=arm64&ext-viz=1&install-time=1767225600\
             &k8s-version=v1.34.1&{memory}&meshed-pods=12&{cpu}&p99-handle-us=12\
             &proxy-injector-injections=12&service-profile-count=5&source=heartbeat\
             &total-rps=12&uuid=0b7c-4d&version=1.2.3"
        )
    );
}

#[tokio::test]
async fn installation_without_url_sends_nothing() {
    let shown = heartbeat(cluster("linkerdVersion: 1.2.3\n".to_owned(), None)).await;
    assert_eq!(shown["sending"], "off", "{shown:#}");
    assert_eq!(shown["reason"], "the value heartbeatUrl is empty");
    let remedy = shown["remedy"].as_str().unwrap();
    assert!(remedy.contains("--set heartbeatUrl="), "{remedy}");
    assert_eq!(shown.get("request"), None);
    let parameter = |name: &str| {
        let mut parameters = shown["parameters"].as_array().unwrap().iter();
        parameters.find(|it| it["name"] == name).unwrap()
    };
    assert_eq!(parameter("version")["value"], "1.2.3");
    assert_eq!(parameter("total-rps")["status"], "leftOut");
    assert_eq!(
        parameter("total-rps")["reason"],
        "the value prometheusUrl is empty"
    );
}

#[tokio::test]
async fn unreachable_prometheus_leaves_its_figures_unknown() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = closed.local_addr().unwrap();
    drop(closed);
    let values = format!("prometheusUrl: http://{addr}\n");
    let shown = heartbeat(cluster(values, None)).await;
    let parameters = shown["parameters"].as_array().unwrap();
    let unknown = parameters.iter().filter(|it| it["status"] == "unknown");
    assert_eq!(unknown.count(), 10, "{shown:#}");
}
