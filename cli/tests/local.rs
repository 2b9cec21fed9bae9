//! `meshctl local` on the real machine: pods without a mesh, which need only this program and
//! Debian packages. Needs root, CNI plugins, nginx and curl; the tests are skipped where one is
//! missing. Every node has a unique name and is taken down even when the test fails.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "failed set-up fails the test; a skipped test prints the reason"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mesh_local::host;
use mesh_local::node_paths::NodePaths;
use mesh_test_support::command::{output_text, run, text};

const WEB: &str = r#"
kind: ConfigMap
metadata: {name: web}
data:
  nginx.conf: |
    daemon off;
    pid /data/pid;
    events {}
    http {
      access_log off;
      server { listen 8080; listen [::]:8080; location / { return 200 "$hostname $remote_addr\n"; } }
    }
---
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: nginx
        command: [nginx, -e, /dev/stderr, -c, /etc/web/nginx.conf]
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/web}, {name: data, mountPath: /data}]
      volumes: [{name: config, configMap: {name: web}}, {name: data, emptyDir: {}}]
---
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ipFamilyPolicy: PreferDualStack, ports: [{name: http, port: 80, targetPort: http}]}
---
kind: Service
metadata: {name: pods}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 8080}]}
---
kind: Service
metadata: {name: empty}
spec: {selector: {app: gone}, ports: [{port: 80}]}
---
kind: Pod
metadata: {name: client}
spec:
  serviceAccountName: tester
  initContainers:
  - {name: first, command: [sh, -c, 'echo began > /shared/mark'], volumeMounts: [{name: shared, mountPath: /shared}]}
  containers:
  - name: client
    command: [sleep, infinity]
    securityContext: {runAsUser: 1234}
    env: [{name: WHERE, value: '$(IP) $(GONE)'}, {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}, {name: AGAIN, value: '$(IP)'}]
    volumeMounts: [{name: shared, mountPath: /shared}, {name: token, mountPath: /var/run/secrets/tokens}]
  volumes:
  - {name: shared, emptyDir: {medium: Memory}}
  - {name: token, projected: {sources: [{serviceAccountToken: {path: token, audience: me}}]}}
"#;

/// A node with a directory of manifests; taken down when dropped.
struct Node {
    name: String,
    directory: tempfile::TempDir,
}

impl Node {
    fn new(name: &str, manifests: &str) -> Self {
        let node = Self {
            name: format!("{name}-{}", std::process::id()),
            directory: tempfile::tempdir().unwrap(),
        };
        node.write(manifests);
        node
    }

    fn write(&self, manifests: &str) {
        fs::write(self.directory.path().join("all.yaml"), manifests).unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_meshctl"))
            .arg("local")
            .args(args)
            .env("MESHCTL_LOCAL", &self.name)
            .output()
            .unwrap()
    }

    /// Runs a command that must succeed and returns its standard output.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let (shown, log) = (output_text(&output), self.paths().daemon_log());
        let log = fs::read_to_string(log).unwrap_or_default();
        assert!(output.status.success(), "{args:?}: {shown}\n{log}");
        text(&output.stdout)
    }

    fn up(&self) {
        let directory = self.directory.path().display().to_string();
        self.ok(&["up", &directory, "--no-mesh"]);
    }

    fn shell(&self, pod: &str, script: &str) -> String {
        self.ok(&["exec", pod, "--", "sh", "-c", script])
    }

    fn paths(&self) -> NodePaths {
        NodePaths::new(self.name.parse().unwrap())
    }

    /// Returns the state that the node has left on the machine: directories, nftables tables and
    /// mounts.
    fn traces(&self) -> Vec<PathBuf> {
        let paths = self.paths();
        let cgroup = paths.cgroup(&host::cgroup2().unwrap());
        let mut traces = vec![paths.state().to_owned(), cgroup];
        traces.retain(|path| path.exists());
        let tables = run("nft list tables");
        if tables.contains(&paths.nft_table()) {
            traces.push(paths.nft_table().into());
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let state = paths.state().display().to_string();
        traces.extend(
            mounts
                .lines()
                .filter(|line| line.contains(&state))
                .map(PathBuf::from),
        );
        traces
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let output = self.run(&["down"]);
        if !output.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Returns whether the machine can run these tests; prints the reason if not.
fn can_run() -> bool {
    let missing = |program: &str| !mesh_local::command::exists(program);
    let reason = match host::check() {
        Err(error) => error.to_string(),
        Ok(()) if missing("nginx") || missing("curl") => "nginx and curl are required".to_owned(),
        Ok(()) if !Path::new("/usr/lib/cni/ptp").exists() => "CNI plugins are required".to_owned(),
        Ok(()) => return true,
    };
    println!("skipped: {reason}");
    false
}

#[test]
fn pods_reach_services_by_name() {
    if !can_run() {
        return;
    }
    let node = Node::new("it-pods", WEB);
    node.up();
    let status = node.ok(&["status"]);
    assert_eq!(status.matches("1/1").count(), 3, "{status}");

    // All backends of a Service respond under its name and see the client's own address.
    let ip = node.shell("client", "printf %s $AGAIN");
    let answers = node.shell(
        "client",
        "for i in $(seq 30); do curl -s -4 http://web/; done",
    );
    let mut lines: Vec<&str> = answers.lines().collect();
    assert_eq!(lines.len(), 30, "{answers}");
    assert!(
        lines.iter().all(|line| line.ends_with(&ip)),
        "{ip}: {answers}"
    );
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 2, "{answers}");
    if host::has_ipv6() {
        let answer = node.shell("client", "curl -s -6 http://web.default.svc.cluster.local/");
        assert!(answer.contains("fd6d:"), "{answer}");
    }
    // The name of a headless Service resolves to its pods; a Service without pods refuses
    // connections; a pod reaches itself through its Service.
    let pods = node.shell(
        "client",
        "getent ahostsv4 pods | cut -d' ' -f1 | sort -u | wc -l",
    );
    assert_eq!(pods.trim(), "2");
    let refused = node.shell("client", "curl -s -m 20 http://empty/ || echo $?");
    assert_eq!(refused.trim(), "7", "not refused immediately");
    let first = lines[0].split(' ').next().unwrap();
    let own =
        "for i in $(seq 30); do curl -s -4 -m 5 http://web/ || echo lost; done; hostname; ls /run";
    let own = node.shell(first, own);
    assert!(
        !own.contains("lost") && own.trim().ends_with(first),
        "{own}"
    );

    // The process has the user, files, variables and token of the manifest.
    let facts = node.shell("client", "id -u; cat /shared/mark; printf '%s\\n' \"$WHERE\"; cat /var/run/secrets/tokens/token | tr . '\\n' | wc -l");
    assert_eq!(
        facts.lines().collect::<Vec<_>>()[..2],
        ["1234", "began"],
        "{facts}"
    );
    assert!(facts.contains("$(IP) $(GONE)"), "{facts}");
    assert!(
        node.paths()
            .objects()
            .join("pod_default_client.yaml")
            .exists()
    );

    // Scale down, then break one manifest: the other objects stay as they were.
    node.write(&WEB.replace("replicas: 2", "replicas: 1"));
    let status = node.ok(&["apply"]);
    assert_eq!(status.matches("1/1").count(), 2, "{status}");
    node.write(&WEB.replace("replicas: 2", "replicas: many"));
    let output = node.run(&["apply"]);
    assert_eq!(output.status.code(), Some(65));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("all.yaml:") && stderr.contains("Deployment default/web: spec.replicas"),
        "{stderr}"
    );
    assert_eq!(node.ok(&["status"]).matches("1/1").count(), 2);

    node.ok(&["down"]);
    assert_eq!(node.traces(), [] as [PathBuf; 0]);
}

#[test]
fn up_and_down_clean_up_after_a_killed_node() {
    if !can_run() {
        return;
    }
    let node = Node::new("it-crash", WEB);
    for next in ["up", "down"] {
        node.up();
        let cgroup = node.paths().cgroup(&host::cgroup2().unwrap()).join("node");
        let processes = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
        for pid in processes.lines() {
            let pid = nix::unistd::Pid::from_raw(pid.parse().unwrap());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        let output = node.run(&["status"]);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        assert!(node.traces().len() > 3, "{:?}", node.traces());
        if next == "down" {
            node.ok(&["down"]);
        }
    }
    assert_eq!(node.traces(), [] as [PathBuf; 0]);
}

#[test]
fn exited_containers_restart_and_failures_are_reported() {
    if !can_run() {
        return;
    }
    let pod = |name: &str, rest: &str| {
        format!(
            "---\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers: [{{name: c, {rest}}}]\n"
        )
    };
    let manifests = [
        pod("again", "command: [sh, -c, 'echo turn; exit 3']"),
        pod("absent", "command: [no-such-program]"),
        pod("sick", "command: [sleep, infinity], livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 1}"),
        // Restarting pods are ready for moments, possibly all at the same time; this one never is.
        pod("late", "command: [sleep, infinity], readinessProbe: {exec: {command: ['false']}, periodSeconds: 1}"),
        pod("well", "command: [sleep, infinity], readinessProbe: {exec: {command: [test, -e, /etc/hosts]}, periodSeconds: 1}"),
        pod("once", "command: ['true']").replace("spec:\n", "spec:\n  restartPolicy: Never\n"),
    ]
    .concat();
    let node = Node::new("it-restart", &manifests);
    let directory = node.directory.path().display().to_string();
    // The command names the pods that do not become ready, and the reasons.
    let output = node.run(&["up", &directory, "--no-mesh", "--timeout", "10s"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("no-such-program"), "{stderr}");
    assert!(stderr.contains("liveness probe failed"), "{stderr}");
    assert!(stderr.contains("default/late"), "{stderr}");
    assert!(!stderr.contains("not ready: default/well"), "{stderr}");
    let status = node.ok(&["status"]);
    let line = |name: &str| {
        let name = format!(" {name} ");
        let found = status.lines().find(|line| line.contains(&name));
        found.unwrap_or_default().to_owned()
    };
    assert!(line("well").contains("1/1"), "{status}");
    assert!(line("once").contains("Completed"), "{status}");
    let turns = node.ok(&["logs", "again"]).lines().count();
    assert!(turns >= 2, "{turns}");
}
