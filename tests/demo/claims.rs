//! The claims of the demo, one function each, which acts on the running system, measures the effect
//! and evaluates it.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use mesh_test_support::command::Words as _;
use serde_json::Value;

use super::capture::Capture;
use super::mesh::{Mesh, wait_until};

/// A statement about the mesh, the measurement, and whether the statement holds.
pub(crate) struct Claim {
    pub(crate) what: String,
    pub(crate) measured: String,
    pub(crate) holds: bool,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "   {}: {}",
            if self.holds { "holds" } else { "DOES NOT HOLD" },
            self.measured
        )
    }
}

/// The request path that the captures are searched for.
const MARKER: &str = "/marker-on-the-wire";
const WEB: &str = "http://web";

pub(crate) fn clear_text_without_mesh(mesh: &Mesh) -> anyhow::Result<Claim> {
    mesh.environment.up()?;
    let capture = Capture::start(mesh, "client", "tcp")?;
    request(mesh, MARKER)?;
    let captured = capture.finish(|captured| captured.count(b"HTTP/1.1 200 OK") > 0)?;
    let seen = captured.count(MARKER.as_bytes());
    Ok(Claim {
        what: "without the mesh, the request is readable on the wire".to_owned(),
        measured: format!(
            "{seen} occurrence(s) of {MARKER:?} in the packets, {} TLS records",
            captured.tls_records()
        ),
        holds: seen > 0,
    })
}

pub(crate) fn encrypted_in_mesh(mesh: &Mesh) -> anyhow::Result<Claim> {
    mesh.environment.enable_injection()?;
    let capture = Capture::start(mesh, "client", "tcp")?;
    request(mesh, MARKER)?;
    let captured = capture.finish(|captured| captured.tls_records() >= 4)?;
    let seen = captured.count(MARKER.as_bytes());
    Ok(Claim {
        what: "in the mesh, the same request is encrypted on the wire".to_owned(),
        measured: format!(
            "{seen} occurrences of {MARKER:?} in the packets, {} TLS records",
            captured.tls_records()
        ),
        holds: seen == 0,
    })
}

pub(crate) fn redirected(mesh: &Mesh) -> anyhow::Result<Claim> {
    let backends = mesh.pods("web-")?;
    let count = |pods: &Value| -> (u64, u64) {
        let of = |name: &str, verdict: &str| counter(pods, name, verdict);
        (
            of("client", "redirected"),
            backends.iter().map(|backend| of(backend, "steered")).sum(),
        )
    };
    let before = count(&mesh.json("diagnostics redirection -o json")?);
    // Each curl opens a new connection, which the client's agent must count.
    let connections = 20;
    for _ in 0..connections {
        request(mesh, "/")?;
    }
    let now = mesh.json("diagnostics redirection -o json")?;
    let after = count(&now);
    let tier = now["pods"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|pod| pod["pod"]["name"] == "client")
        .map_or("none", |pod| pod["tier"].as_str().unwrap_or("none"));
    let (out, steered) = (after.0 - before.0, after.1);
    Ok(Claim {
        what: "connections are redirected by eBPF".to_owned(),
        measured: format!(
            "tier {tier}; {out} of {connections} connections of the client sent to its proxy, {steered} connections given to the backends' proxies"
        ),
        holds: tier == "full" && out >= connections && steered > 0,
    })
}

/// Returns the number of a pod's connections with a verdict.
fn counter(redirection: &Value, pod: &str, verdict: &str) -> u64 {
    let pods = redirection["pods"].as_array().into_iter().flatten();
    let pod = pods.into_iter().find(|status| status["pod"]["name"] == pod);
    let counters = pod.and_then(|status| status["connections"].as_object());
    let matching = counters
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.contains(verdict));
    matching.filter_map(|(_, count)| count.as_u64()).sum()
}

pub(crate) fn identified(mesh: &Mesh) -> anyhow::Result<Claim> {
    let answer: Value = serde_json::from_str(&request(mesh, "/")?)
        .context("parse the backend's response as JSON")?;
    let client = answer["client"].as_str().unwrap_or_default().to_owned();
    let metrics = mesh.proxy_metrics("client")?;
    let server = metrics
        .iter()
        .filter(|line| line.starts_with("request_total") && line.contains("dst_service=\"web\""))
        .find_map(|line| label(line, "server_id"));
    let server = server.unwrap_or_default();
    let expect =
        |account: &str| format!("{account}.demo.serviceaccount.identity.linkerd.cluster.local");
    Ok(Claim {
        what: "client and server are authenticated".to_owned(),
        measured: format!("the server received {client:?}, the client verified {server:?}"),
        holds: client == expect("client") && server == expect("web"),
    })
}

/// The value of a label in a sample line.
fn label(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    Some(rest.split_once('"')?.0.to_owned())
}

pub(crate) fn spread(mesh: &Mesh) -> anyhow::Result<Claim> {
    let requests = 600;
    let parallel = "curl -s --fail --parallel --parallel-max 8";
    let output = mesh.exec("client", format!("{parallel} {WEB}/?[1-{requests}]"))?;
    let mut hits: BTreeMap<String, u32> = BTreeMap::new();
    for line in output.lines().filter(|line| line.starts_with('{')) {
        let answer: Value = serde_json::from_str(line)
            .with_context(|| format!("parse the backend's response as JSON: {line:?}"))?;
        *hits
            .entry(answer["backend"].as_str().unwrap_or("?").to_owned())
            .or_default() += 1;
    }
    let counts: Vec<String> = hits
        .iter()
        .map(|(backend, count)| format!("{backend}: {count}"))
        .collect();
    let total: u32 = hits.values().sum();
    Ok(Claim {
        what: "requests are spread over the backends".to_owned(),
        measured: format!("{total} of {requests} answered ({})", counts.join(", ")),
        holds: total == requests && hits.len() == 3,
    })
}

pub(crate) fn survives_dead_backend(mesh: &Mesh) -> anyhow::Result<Claim> {
    let requests = "20000";
    let line = format!("h2load --h1 -n {requests} -c 8 {WEB}/");
    let load = mesh
        .exec_command("client", line)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("start h2load")?;
    let victim = mesh
        .pods("web-")?
        .into_iter()
        .next()
        .context("there is a backend")?;
    // Kills the backend once it has served a part of the load.
    let served = || -> anyhow::Result<u64> {
        let metrics = mesh.proxy_metrics(&victim)?;
        let values = metrics
            .iter()
            .filter(|line| line.starts_with("request_total") && line.contains("srv_port=\"8080\""))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum::<f64>() as u64)
    };
    let before = served()?;
    wait_until("the backend serves the load", || {
        Ok((served()? > before + 200).then_some(()))
    })?;
    kill(mesh, &victim)?;
    let output = load.wait_with_output().context("wait for h2load")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .find(|line| line.starts_with("requests:"))
        .context("h2load counts requests")?;
    let statuses = text
        .lines()
        .find(|line| line.starts_with("status codes:"))
        .context("h2load counts statuses")?;
    Ok(Claim {
        what: "one backend killed under load, no request failed".to_owned(),
        measured: format!("{victim} killed; {line}; {statuses}"),
        holds: line.contains(&format!("{requests} succeeded, 0 failed, 0 errored"))
            && statuses.contains(&format!("{requests} 2xx")),
    })
}

/// Kills the application in a pod. It is the init process of its container, so that the shell that
/// sends the signal may be killed as well.
fn kill(mesh: &Mesh, pod: &str) -> anyhow::Result<()> {
    let mut command = mesh.exec_command(pod, ["sh", "-c", "kill -9 $(cat /data/nginx.pid)"]);
    let output = command.output().context("start a shell in the pod")?;
    let status = output.status;
    let died = status.signal() == Some(KILL) || status.code() == Some(128 + KILL);
    if !status.success() && !died {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("kill the application of {pod}: {status}, {stderr}");
    }
    Ok(())
}

const KILL: i32 = 9;

pub(crate) fn opaque(mesh: &Mesh) -> anyhow::Result<Claim> {
    let line = "redis-benchmark -h redis -t set,get -n 5000 -c 20 --csv";
    let output = mesh.exec("client", line)?;
    let rates: Vec<String> = output
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split(',').map(|field| field.trim_matches('"'));
            Some(format!("{} {}/s", fields.next()?, fields.next()?))
        })
        .collect();
    let metrics = mesh.proxy_metrics("redis")?;
    let secured = |line: &&String| {
        line.starts_with("tcp_open_total")
            && line.contains("target_port=\"6379\"")
            && line.contains("tls=\"true\"")
    };
    let identity = metrics
        .iter()
        .find(secured)
        .and_then(|line| label(line, "client_id"))
        .unwrap_or_default();
    Ok(Claim {
        what: "redis through the mesh as opaque TCP, mutually authenticated".to_owned(),
        measured: format!("{}; client {identity:?}", rates.join(", ")),
        holds: rates.len() == 2 && identity.starts_with("client.demo."),
    })
}

pub(crate) fn grpc(mesh: &Mesh) -> anyhow::Result<Claim> {
    let etcdctl = |args: &[&str]| {
        let program = "env ETCDCTL_API=3 etcdctl --endpoints=http://etcd:2379";
        mesh.exec("client", [program.words(), args.to_vec()].concat())
    };
    let put = etcdctl(&["put", "greeting", "hello over gRPC"])?;
    let got = etcdctl(&["get", "greeting", "--print-value-only"])?;
    let metrics = mesh.proxy_metrics("etcd")?;
    let calls = metrics
        .iter()
        .filter(|line| {
            line.starts_with("response_total")
                && line.contains("srv_port=\"2379\"")
                && line.contains("grpc_status=\"0\"")
                && line.contains("tls=\"true\"")
        })
        .count();
    Ok(Claim {
        what: "gRPC between unmodified programs".to_owned(),
        measured: format!(
            "put: {}, get: {:?}; {calls} series of successful calls over mutual TLS",
            put.trim(),
            got.trim()
        ),
        holds: put.trim() == "OK" && got.trim() == "hello over gRPC" && calls > 0,
    })
}

pub(crate) fn golden_numbers(mesh: &Mesh) -> anyhow::Result<Claim> {
    let table = mesh.run("stat --total")?;
    for line in table.lines() {
        println!("   {line}");
    }
    let stat = mesh.json("stat --total -o json")?;
    let workloads = stat["workloads"]
        .as_array()
        .context("stat lists workloads")?;
    let web = workloads
        .iter()
        .find(|row| row["workload"] == "deployment/web")
        .context("stat shows deployment/web")?;
    let (success, p99) = (web["successRate"].as_f64(), web["latencyMsP99"].as_f64());
    Ok(Claim {
        what: "latency and success rate per workload".to_owned(),
        measured: format!(
            "deployment/web: {} responses, success rate {:.4}, p99 {:.1} ms",
            web["responses"],
            success.unwrap_or(f64::NAN),
            p99.unwrap_or(f64::NAN)
        ),
        holds: success.is_some() && p99.is_some(),
    })
}

pub(crate) fn authorized(mesh: &Mesh, policies: &Path) -> anyhow::Result<Claim> {
    let policy = policies.join("only-redis-may-call-web.yaml");
    ensure!(
        status(mesh)? == "200",
        "requests are allowed before the policy"
    );
    let written = Instant::now();
    mesh.environment.add_policy(&policy)?;
    wait_until("the policy is in force", || {
        Ok((status(mesh)? == "403").then_some(()))
    })?;
    let closed = written.elapsed();
    mesh.environment.remove_policy(&policy)?;
    wait_until("requests are allowed again", || {
        Ok((status(mesh)? == "200").then_some(()))
    })?;
    Ok(Claim {
        what: "an AuthorizationPolicy is in force within a second".to_owned(),
        measured: format!(
            "403 after {} ms, 200 again once it was removed",
            closed.as_millis()
        ),
        holds: closed.as_secs() < 1,
    })
}

pub(crate) fn explained(mesh: &Mesh, policies: &Path) -> anyhow::Result<Claim> {
    let policy = policies.join("only-redis-may-call-web.yaml");
    mesh.environment.add_policy(&policy)?;
    let why = [
        "why",
        "demo/client",
        "web:80",
        "-o",
        "json",
        "--",
        "GET",
        "/",
    ];
    let report = wait_until("the refusal is explained", || {
        // The exit code is 1, because the request is refused.
        let report: Value = serde_json::from_str(&mesh.run_any_status(why)?)
            .context("meshctl why printed no JSON")?;
        Ok((report["verdict"]["outcome"] == "refused").then_some(report))
    })?;
    mesh.environment.remove_policy(&policy)?;
    let text = report["verdict"]["text"].as_str().unwrap_or_default();
    Ok(Claim {
        what: "`meshctl why` names the reason of a refusal".to_owned(),
        measured: text.to_owned(),
        holds: text.starts_with("refused by Server demo/web-http: ")
            && text.contains("client.demo."),
    })
}

/// Sends a request from the client and returns its status.
fn status(mesh: &Mesh) -> anyhow::Result<String> {
    let curl = "curl -s -o /dev/null -w %{http_code}";
    mesh.exec("client", format!("{curl} {WEB}/"))
}

/// Sends a request from the client and returns the response body.
fn request(mesh: &Mesh, path: &str) -> anyhow::Result<String> {
    mesh.exec("client", format!("curl -sS --fail {WEB}{path}"))
}
