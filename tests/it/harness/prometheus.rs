//! Debian's Prometheus, with a configuration of the test.

use std::net::SocketAddr;

use mesh_test_support::command::{command, succeed};
use mesh_test_support::eventually::eventually;
use mesh_test_support::http;
use mesh_test_support::network::free_address;
use mesh_test_support::program::Program;
use serde_json::Value;

/// Killed when the test ends.
pub(crate) struct Prometheus {
    address: SocketAddr,
    _program: Program,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    /// Starts a Prometheus with this configuration and waits until it responds.
    pub(crate) fn start(configuration: &str) -> Self {
        Self::start_with(configuration, &[])
    }

    /// As [`Prometheus::start`], with further flags.
    pub(crate) fn start_with(configuration: &str, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        let file = path("prometheus.yml");
        std::fs::write(&file, configuration).expect("a configuration");
        let address = free_address();
        let mut line = command([
            "prometheus",
            &format!("--config.file={file}"),
            &format!("--storage.tsdb.path={}", path("data")),
            &format!("--web.listen-address={address}"),
            "--log.level=error",
        ]);
        line.args(flags);
        let prometheus = Self {
            address,
            _program: Program::start(&mut line),
            _directory: directory,
        };
        eventually("Prometheus responds", || {
            let response = http::request(address, "GET /-/ready").ok()?;
            let (status, _) = http::status_and_body(&response)?;
            (status == 200).then_some(())
        });
        prometheus
    }

    /// Evaluates an expression and returns the result, or Prometheus' error.
    pub(crate) fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let url = format!("http://{}/api/v1/query", self.address);
        let argument = format!("query={expression}");
        let body = succeed(&mut command([
            "curl",
            "-sS",
            "--data-urlencode",
            &argument,
            &url,
        ]));
        let response: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
        match response["data"]["result"].as_array() {
            Some(result) => Ok(result.clone()),
            None => Err(response["error"].to_string()),
        }
    }

    /// Returns the first number of the result.
    pub(crate) fn number(&self, expression: &str) -> Option<f64> {
        let result = self.query(expression).ok()?;
        result.first()?["value"][1].as_str()?.parse().ok()
    }
}
