//! `cargo xtask test --suites gateway-api`: the Gateway API's conformance tests for meshes, on a
//! cluster, with a mesh that is installed for them.
//!
//! `bench/gateway-api/go.mod` pins the tests and their versions. Their application is Istio's echo
//! server. Its image is made here, since the cluster may have no registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::Installation;
use serde_json::json;
use xtask::docker_archive::Layer;
use xtask::{binaries, cluster, command, stage};

use crate::go_program::{self, GoProgram};
use crate::suites::DIRECTORY;
use crate::suites::outcome::{Case, Outcome};

const TESTS: &str = "sigs.k8s.io/gateway-api/conformance";
const ECHO_VERSION: &str = "v0.0.0-20260827124520-eed52ebb66ad";
const ECHO_CLIENT: GoProgram = GoProgram {
    package: "istio.io/istio/pkg/test/echo/cmd/client",
    version: ECHO_VERSION,
    directory: "istio-echo-client",
    name: "client",
};
const ECHO_SERVER: GoProgram = GoProgram {
    package: "istio.io/istio/pkg/test/echo/cmd/server",
    version: ECHO_VERSION,
    directory: "istio-echo-server",
    name: "server",
};

const PROFILES: &str = "MESH-HTTP,MESH-GRPC";

/// The core features and the extended ones that the mesh claims, by their names in the tests. No
/// test of a feature listed here is exempt.
const FEATURES: [&str; 19] = [
    "Mesh",
    "HTTPRoute",
    "GRPCRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteMethodMatching",
    "HTTPRouteParentRefPort",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteResponseHeaderModification",
    "MeshClusterIPMatching",
    "MeshConsumerRoute",
    "MeshHTTPRouteBackendRequestHeaderModification",
    "MeshHTTPRouteNamedRouteRule",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
];

/// Longer than all tests together when each waits until its routes are in effect.
const TIMEOUT: &str = "20m";

#[derive(Debug, clap::Args)]
pub(crate) struct GatewayApiOptions {
    /// Use the existing program of the conformance tests
    #[arg(long)]
    no_build: bool,
}

/// Runs the tests on the cluster that is given, which has the mesh's images and no mesh. A failed
/// test sets the exit status and is not an error.
pub(crate) fn run(root: &Path, options: &GatewayApiOptions) -> anyhow::Result<ExitCode> {
    let Some(context) = cluster::given() else {
        bail!(
            "gateway-api needs a cluster: set {} to the context of one on which nothing of the mesh is installed",
            cluster::CONTEXT_VARIABLE
        );
    };
    let tools = root.join(DIRECTORY);
    let results = tools.join("results");
    fs::create_dir_all(&results).with_context(|| format!("create {}", results.display()))?;
    let module = Module::of(root);
    let program = tools.join("gateway-api.test");
    if !options.no_build {
        stage::run("gateway-api", "the conformance tests", || {
            module.compile(&program)
        })?;
    } else if !program.exists() {
        bail!(
            "--no-build: {} does not exist; leave the option out once",
            program.display()
        );
    }
    for go in [&ECHO_CLIENT, &ECHO_SERVER] {
        go.install(&tools)?;
    }
    stage::run("echo", "the application of the tests", || {
        let archive = echo_image(&tools, &module.echo_reference()?)?;
        cluster::load(&context, &[archive])
    })?;
    let kubeconfig = results.join("gateway-api.kubeconfig");
    write_kubeconfig(&context, &kubeconfig)?;

    let meshctl = binaries::directory(root, true).join("meshctl");
    let cluster = Cluster::new(context, meshctl);
    let _mesh = stage::run("mesh", "into the cluster", || {
        anyhow::Ok(Installation::by_helm(&cluster, &[]))
    })?;
    let outcome = stage::run("gateway-api", "the mesh on a cluster", || {
        run_tests(&program, &kubeconfig, &results)
    })?;
    outcome.print(root, "gateway-api", "cluster", None);
    Ok(if outcome.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn run_tests(program: &Path, kubeconfig: &Path, results: &Path) -> anyhow::Result<Outcome> {
    let report = results.join("gateway-api.yaml");
    let log = results.join("gateway-api.log");
    // A report of an earlier run must not be taken for one of this run.
    let _removed = fs::remove_file(&report);
    let mut tests = Command::new(program);
    tests
        .args(["-test.run", "^TestConformance$", "-test.v"])
        .args(["-test.timeout", TIMEOUT])
        .args(["-conformance-profiles", PROFILES])
        .args(["-supported-features", &FEATURES.join(",")])
        .args(["-namespace-annotations", "linkerd.io/inject=enabled"])
        .args(["-organization", "mesh", "-project", "mesh"])
        .args(["-url", "https://mesh.example", "-contact", "none"])
        .args(["-version", concat!("v", env!("CARGO_PKG_VERSION"))])
        .arg("-report-output")
        .arg(&report)
        .env("KUBECONFIG", kubeconfig);
    let finished = command::observe("gateway-api", &mut tests, |_| ())?;
    fs::write(&log, finished.lines.join("\n"))
        .with_context(|| format!("write {}", log.display()))?;
    let cases = read(&finished.lines, &log);
    if cases.is_empty() {
        bail!(
            "the conformance tests ran no test ({}); their output is in {}",
            finished.status,
            log.display()
        );
    }
    Ok(Outcome::new(cases, report))
}

/// The Go module that pins the tests.
struct Module {
    directory: PathBuf,
}

impl Module {
    fn of(root: &Path) -> Self {
        Self {
            directory: root.join("bench/gateway-api"),
        }
    }

    fn go(&self) -> Command {
        let mut go = Command::new("go");
        go.current_dir(&self.directory).env("CGO_ENABLED", "0");
        go
    }

    fn compile(&self, program: &Path) -> anyhow::Result<()> {
        go_program::require_go("the conformance tests")?;
        let mut go = self.go();
        go.args(["test", "-c", "-mod=readonly", "-o"]).arg(program);
        command::run("go test -c", go.arg(TESTS))
    }

    /// Returns the image that the manifests of the tests use.
    fn echo_reference(&self) -> anyhow::Result<String> {
        let mut go = self.go();
        go.args(["list", "-m", "-f", "{{.Dir}}", TESTS]);
        let directory = command::captured_stdout(&mut go).context("find the tests' module")?;
        let manifests = Path::new(directory.trim()).join("mesh/manifests.yaml");
        let manifests = fs::read_to_string(&manifests)
            .with_context(|| format!("read {}", manifests.display()))?;
        image_of(&manifests).context("the manifests of the tests do not use exactly one image")
    }
}

/// Returns the only image of manifests.
fn image_of(manifests: &str) -> Option<String> {
    let mut images = manifests
        .lines()
        .filter_map(|line| line.trim().strip_prefix("image: "));
    let image = images.next()?;
    images
        .all(|other| other == image)
        .then(|| image.trim().to_owned())
}

/// Makes the image of Istio's echo server. The manifests pass it the paths of a certificate.
fn echo_image(tools: &Path, reference: &str) -> anyhow::Result<PathBuf> {
    let archive = tools.join("istio-echo.tar");
    let certified = rcgen::generate_simple_self_signed(["echo".to_owned()])
        .context("issue the certificate of the echo server")?;
    let mut layer = Layer::create(&archive)?;
    for go in [&ECHO_CLIENT, &ECHO_SERVER] {
        let program = go.path(tools);
        let content = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
        layer.file(&format!("usr/local/bin/{}", go.name), 0o755, &content)?;
    }
    layer.file("cert.crt", 0o644, certified.cert.pem().as_bytes())?;
    let key = certified.signing_key.serialize_pem();
    layer.file("cert.key", 0o644, key.as_bytes())?;
    let config = json!({
        "Env": ["PATH=/usr/local/bin"], "Entrypoint": ["/usr/local/bin/server"],
    });
    layer.write_image(&archive, reference, &config)?;
    Ok(archive)
}

/// Writes a kubeconfig with this current context: the tests use the current one.
fn write_kubeconfig(context: &str, path: &Path) -> anyhow::Result<()> {
    let mut kubectl = Command::new("kubectl");
    kubectl.args(["config", "view", "--minify", "--raw", "--context", context]);
    let config = command::captured_stdout(&mut kubectl)
        .with_context(|| format!("kubectl has no context {context}"))?;
    fs::write(path, config).with_context(|| format!("write {}", path.display()))
}

/// Parses the results of tests from the output of `go test -v`: those below `TestConformance`, not
/// their own subtests. Tests of other profiles are skipped by the suite, and left out.
fn read(lines: &[String], log: &Path) -> Vec<Case> {
    lines
        .iter()
        .filter_map(|line| {
            let result = line.strip_prefix("    --- ")?;
            let (result, test) = result.split_once(": TestConformance/")?;
            let (name, _seconds) = test.split_once(' ')?;
            let passed = match result {
                "PASS" => true,
                "FAIL" => false,
                _ => return None,
            };
            Some(Case {
                name: name.to_owned(),
                passed,
                message: if passed {
                    String::new()
                } else {
                    format!("see {}", log.display())
                },
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_tests_are_parsed_without_subtests_and_skipped_tests() {
        let output = "\
=== RUN   TestConformance
--- FAIL: TestConformance (108.75s)
    --- PASS: TestConformance/MeshFrontend (1.03s)
    --- FAIL: TestConformance/MeshPorts (0.03s)
        --- FAIL: TestConformance/MeshPorts/0_request_to_'/redirect' (30.00s)
    --- SKIP: TestConformance/GatewayStaticAddresses (0.00s)
FAIL";
        let lines: Vec<String> = output.lines().map(str::to_owned).collect();
        let cases = read(&lines, Path::new("/log"));
        let seen: Vec<_> = cases
            .iter()
            .map(|case| (case.name.as_str(), case.passed, case.message.as_str()))
            .collect();
        assert_eq!(
            seen,
            [("MeshFrontend", true, ""), ("MeshPorts", false, "see /log")]
        );
    }

    #[test]
    fn image_of_manifests_is_unambiguous() {
        let manifests = "      - name: echo\n        image: a/echo:v1\n        image: a/echo:v1\n";
        assert_eq!(image_of(manifests).as_deref(), Some("a/echo:v1"));
        assert_eq!(image_of(&manifests.replacen(":v1", ":v2", 1)), None);
        assert_eq!(image_of("kind: Service"), None);
    }
}
