//! `meshctl diagnostics profile`.

use std::collections::BTreeMap;

use mesh_core::endpoint::{Endpoint, ProtocolHint};
use mesh_core::meta::Meta;
use mesh_core::profile::{Profile, ProfileRoute, RequestMatch, ResponseMatch};
use serde::Serialize;
use serde_json::{Value, json};

use super::query_source::QuerySource;
use crate::mesh::{Mesh, controllers};
use crate::output;
use crate::output::manifests::{self, ManifestFormat};

const EXAMPLES: &str = "\
`profileRef` is the ServiceProfile that decides; without it, the profile is the default one.

Examples:
  meshctl diagnostics profile web.shop.svc.cluster.local:80
  meshctl diagnostics profile 10.96.0.10:80 --token '{\"ns\":\"shop\"}' -o yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// NAME.NAMESPACE.svc.cluster.local:PORT, IP:PORT, or a name outside the cluster
    target: String,
    #[command(flatten)]
    source: QuerySource,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Json)]
    output: ManifestFormat,
}

/// A profile with the field names of the API of proxies. Absent fields are omitted.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(skip_serializing_if = "Option::is_none")]
    fully_qualified_name: Option<String>,
    opaque_protocol: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_budget: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dst_overrides: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_ref: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile_ref: Option<Value>,
}

pub(super) async fn run(mesh: &Mesh, args: &Args) -> anyhow::Result<()> {
    let query = args.source.query(mesh, "");
    let profile = controllers::profile(&query, &args.target).await?;
    let document = serde_json::to_value(document(&profile))?;
    output::text(&manifests::render(&[document], args.output)?)
}

fn document(profile: &Profile) -> Document {
    let budget = profile.retry_budget.map(|budget| {
        json!({
            "retryRatio": decimal(budget.ratio),
            "minRetriesPerSecond": budget.min_per_second,
            "ttl": format!("{:?}", budget.ttl),
        })
    });
    let overrides = profile.overrides.iter();
    Document {
        fully_qualified_name: profile.fqn.as_deref().map(str::to_owned),
        opaque_protocol: profile.opaque,
        routes: profile.routes.iter().map(route).collect(),
        retry_budget: budget,
        dst_overrides: overrides
            .map(|dst| json!({ "authority": &*dst.authority, "weight": dst.weight }))
            .collect(),
        endpoint: profile.endpoint.as_ref().map(endpoint),
        parent_ref: profile.parent.as_ref().map(meta),
        profile_ref: profile.source.as_ref().map(meta),
    }
}

/// Returns a number that is printed as it was written: 0.2 as an `f64` has more digits.
fn decimal(number: f32) -> Value {
    let parsed = number.to_string().parse::<f64>();
    parsed.map_or(Value::Null, Value::from)
}

fn route(route: &ProfileRoute) -> Value {
    let classes: Vec<Value> = route
        .response_classes
        .iter()
        .map(|class| {
            json!({ "condition": response(&class.condition), "isFailure": class.is_failure })
        })
        .collect();
    let mut object = json!({
        "metricsLabels": route.labels,
        "condition": request(&route.condition),
        "isRetryable": route.retryable,
    });
    if !classes.is_empty() {
        object["responseClasses"] = classes.into();
    }
    if let Some(timeout) = route.timeout {
        object["timeout"] = format!("{timeout:?}").into();
    }
    object
}

fn request(condition: &RequestMatch) -> Value {
    let list = |parts: &[RequestMatch]| parts.iter().map(request).collect::<Vec<_>>();
    match condition {
        RequestMatch::All(parts) => json!({ "all": list(parts) }),
        RequestMatch::Any(parts) => json!({ "any": list(parts) }),
        RequestMatch::Not(part) => json!({ "not": request(part) }),
        RequestMatch::Path(regex) => json!({ "pathRegex": regex.as_str() }),
        RequestMatch::Method(method) => json!({ "method": method.as_str() }),
    }
}

fn response(condition: &ResponseMatch) -> Value {
    let list = |parts: &[ResponseMatch]| parts.iter().map(response).collect::<Vec<_>>();
    match condition {
        ResponseMatch::All(parts) => json!({ "all": list(parts) }),
        ResponseMatch::Any(parts) => json!({ "any": list(parts) }),
        ResponseMatch::Not(part) => json!({ "not": response(part) }),
        ResponseMatch::Status { min, max } => json!({ "status": { "min": min, "max": max } }),
    }
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let labels: BTreeMap<_, _> = endpoint.labels.iter().collect();
    let mut object = json!({
        "address": endpoint.addr.to_string(),
        "weight": endpoint.weight,
        "metricLabels": labels,
    });
    if let Some(tls) = &endpoint.tls {
        object["tlsIdentity"] = tls.id.to_string().into();
    }
    match endpoint.hint {
        ProtocolHint::Unknown => {}
        ProtocolHint::Http2 => object["protocolHint"] = "h2".into(),
        ProtocolHint::Opaque => object["protocolHint"] = "opaque".into(),
    }
    if let Some(port) = endpoint.opaque_transport_port {
        object["opaqueTransportPort"] = port.into();
    }
    object
}

fn meta(meta: &Meta) -> Value {
    let mut object = json!({
        "group": meta.group(),
        "kind": meta.kind(),
        "namespace": meta.namespace(),
        "name": meta.name(),
    });
    if let Some(port) = meta.port() {
        object["port"] = port.into();
    }
    object
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mesh_core::meta::Resource;
    use mesh_core::profile::{ResponseClass, WeightedAuthority};
    use mesh_core::resilience::RetryBudget;
    use mesh_core::route::AnchoredRegex;

    use super::*;

    #[test]
    fn profile_is_printed_with_the_object_that_decides() {
        let path = RequestMatch::Path(AnchoredRegex::new("/a").unwrap());
        let get = RequestMatch::Method(http::Method::GET);
        let status = ResponseMatch::Status { min: 500, max: 599 };
        let source = Resource::new("linkerd.io", "ServiceProfile", "shop", "web.shop.svc");
        let profile = Profile {
            fqn: Some("web.shop.svc".into()),
            routes: [ProfileRoute {
                condition: RequestMatch::All(vec![
                    RequestMatch::Any(vec![path]),
                    RequestMatch::Not(Box::new(get)),
                ]),
                response_classes: vec![ResponseClass {
                    condition: ResponseMatch::Not(Box::new(status)),
                    is_failure: true,
                }],
                labels: [("route".to_owned(), "a".to_owned())].into(),
                retryable: true,
                timeout: Some(Duration::from_millis(1_500)),
            }]
            .into(),
            retry_budget: Some(RetryBudget {
                ttl: Duration::from_secs(10),
                min_per_second: 10,
                ratio: 0.2,
            }),
            overrides: vec![WeightedAuthority {
                authority: "b:80".into(),
                weight: 10_000,
            }],
            source: Some(Meta::Resource(source)),
            ..Profile::default()
        };
        let document = serde_json::to_value(document(&profile)).unwrap();
        let text = manifests::render(&[document], ManifestFormat::Yaml).unwrap();
        assert_eq!(
            text,
            "\
---
dstOverrides:
- authority: b:80
  weight: 10000
fullyQualifiedName: web.shop.svc
opaqueProtocol: false
profileRef:
  group: linkerd.io
  kind: ServiceProfile
  name: web.shop.svc
  namespace: shop
retryBudget:
  minRetriesPerSecond: 10
  retryRatio: 0.2
  ttl: 10s
routes:
- condition:
    all:
    - any:
      - pathRegex: /a
    - not:
        method: GET
  isRetryable: true
  metricsLabels:
    route: a
  responseClasses:
  - condition:
      not:
        status:
          max: 599
          min: 500
    isFailure: true
  timeout: 1.5s
"
        );
    }

    #[test]
    fn endpoint_of_an_address_is_printed() {
        let profile = Profile {
            opaque: true,
            endpoint: Some(Endpoint::plain("10.1.0.1:25".parse().unwrap())),
            ..Profile::default()
        };
        let expect = json!({
            "opaqueProtocol": true,
            "endpoint": {"address": "10.1.0.1:25", "weight": 10000, "metricLabels": {}},
        });
        assert_eq!(serde_json::to_value(document(&profile)).unwrap(), expect);
    }
}
