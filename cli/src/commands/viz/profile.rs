//! `meshctl viz profile --tap`: creates a ServiceProfile from live requests.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_core::tap::{TapDirection, TapEvent, TapEventKind};
use mesh_core::units::parse_duration;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::clients::tap::TapQuery;
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::mesh::tap::TapStream;
use crate::output;
use crate::output::manifests::{self, ManifestFormat};
use crate::resource::Resource;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The Service that the profile is for
    #[arg(value_name = "SERVICE")]
    service: String,
    /// Resource whose received requests become routes: KIND/NAME
    #[arg(long, value_name = "RESOURCE")]
    tap: String,
    /// How long to tap
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    tap_duration: Duration,
    /// Maximum number of routes; the tap ends when it is reached
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    tap_route_limit: u16,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

const HELP: &str = "\
Each method and path without its query becomes a route. Write a pattern instead of the parts of
a path that vary before you apply the result.

Examples:
  meshctl viz profile --tap deploy/web -n shop web
  meshctl viz profile --tap deploy/web -n shop --tap-duration 1m web | kubectl apply -f -";

/// A method and a path without query.
type Route = (String, String);

pub(super) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mesh = Mesh::find(global).await?;
    let scope = mesh.scope(global);
    let namespace = scope.namespace().unwrap_or(mesh.default_namespace());
    let query = TapQuery::new(&Resource::parse(&args.tap)?, namespace)?;
    let mut stream = TapStream::start(&mesh, &query).await?;
    let mut routes = BTreeSet::new();
    let end = Instant::now() + args.tap_duration;
    while routes.len() < usize::from(args.tap_route_limit) {
        match timeout_at(end, stream.next()).await {
            Ok(Ok(Some(event))) => routes.extend(route(&event)),
            Ok(Ok(None)) | Err(_) => break,
            Ok(Err(error)) => return Err(error),
        }
    }
    drop(stream);
    if routes.is_empty() {
        return Err(Failure::TimedOut(format!(
            "{query} received no requests within {} s; --tap-duration sets a longer time",
            args.tap_duration.as_secs()
        ))
        .into());
    }
    let domain = mesh.cluster_domain().await;
    let name = format!("{}.{namespace}.svc.{domain}", args.service);
    let profile = profile(&name, namespace, &routes);
    output::text(&manifests::render(&[profile], args.output)?)
}

/// Returns the route of a request that the tapped pod receives.
fn route(event: &TapEvent) -> Option<Route> {
    let TapEventKind::Request { method, path, .. } = &event.kind else {
        return None;
    };
    let path = path.split('?').next().unwrap_or_default();
    (event.context.direction == TapDirection::Inbound)
        .then(|| (method.to_string(), path.to_owned()))
}

fn profile(name: &str, namespace: &str, routes: &BTreeSet<Route>) -> Value {
    let route = |(method, path): &Route| {
        json!({
            "name": format!("{method} {path}"),
            "condition": {"method": method, "pathRegex": regex::escape(path)},
        })
    };
    json!({
        "apiVersion": "linkerd.io/v1alpha2",
        "kind": "ServiceProfile",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"routes": routes.iter().map(route).collect::<Vec<_>>()},
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Method;
    use mesh_core::labels::Labels;
    use mesh_core::tap::{TapContext, TapStreamId};

    use super::*;

    fn event(direction: TapDirection, path: &str) -> TapEvent {
        let context = TapContext {
            direction,
            source: "10.0.0.1:5000".parse().unwrap(),
            source_labels: Labels::default(),
            destination: "10.0.0.2:80".parse().unwrap(),
            destination_labels: Labels::default(),
            route_labels: Labels::default(),
        };
        TapEvent {
            context: Arc::new(context),
            id: TapStreamId { base: 1, stream: 2 },
            kind: TapEventKind::Request {
                method: Method::GET,
                scheme: "http".to_owned(),
                authority: "web".to_owned(),
                path: path.to_owned(),
                headers: None,
            },
        }
    }

    #[test]
    fn received_requests_are_routes_without_query() {
        let inbound = |path: &str| route(&event(TapDirection::Inbound, path));
        let routes: BTreeSet<Route> = ["/b.json?x=1", "/b.json?x=2", "/a"]
            .into_iter()
            .filter_map(inbound)
            .collect();
        let profile = profile("web.shop.svc.cluster.local", "shop", &routes);
        let expect = json!([
            {"name": "GET /a", "condition": {"method": "GET", "pathRegex": "/a"}},
            {"name": "GET /b.json", "condition": {"method": "GET", "pathRegex": r"/b\.json"}},
        ]);
        assert_eq!(profile["spec"]["routes"], expect);
        assert_eq!(route(&event(TapDirection::Outbound, "/a")), None);
    }

    #[test]
    fn pattern_of_a_route_matches_its_path_only() {
        let path = "/a+b/(c)";
        let routes = BTreeSet::from([("GET".to_owned(), path.to_owned())]);
        let profile = profile("web.shop.svc.cluster.local", "shop", &routes);
        let pattern = &profile["spec"]["routes"][0]["condition"]["pathRegex"];
        let pattern = regex::Regex::new(pattern.as_str().unwrap()).unwrap();
        assert!(pattern.is_match(path));
        assert!(!pattern.is_match("/aab/c"));
    }
}
