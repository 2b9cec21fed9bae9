//! TopRoutes: the requests of an object by route of the ServiceProfiles of its Services.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mesh_api::linkerd2::viz::route_table::Row;
use mesh_api::linkerd2::viz::top_routes_request::Outbound;
use mesh_api::linkerd2::viz::{BasicStats, RouteTable, TopRoutesRequest};
use mesh_objects::inventory::{Inventory, Selection};
use mesh_objects::model::{Detail, ListedKind, ListedObject, Name, ProfileDetail, Selector};

use super::resource::{Target, TargetKind, parse_selector};
use super::samples::{Measure, Measurement, Metric, add_requests, latency_queries};
use crate::metrics::{Family, Grouping, Matchers, Query, TimeWindow, quote_regex};

/// A valid request.
#[derive(Clone, Debug)]
pub(super) struct RoutesRequest {
    pub(super) target: Target,
    pub(super) selector: Selector,
    pub(super) window: TimeWindow,
    to: Option<Target>,
}

/// A profile whose routes a table shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    /// The name of the profile, which is an authority without port.
    name: String,
    /// The name that the table shows for the Service.
    shown: String,
    routes: Vec<String>,
}

/// The name of the route of requests that match no other one.
const DEFAULT_ROUTE: &str = "[DEFAULT]";

/// The profiles of one table; each has its name in the query.
const MAX_PROFILES: usize = 500;

impl RoutesRequest {
    pub(super) fn parse(request: &TopRoutesRequest) -> Result<Self, String> {
        let selector = request.selector.as_ref();
        let Some(resource) = selector.and_then(|selector| selector.resource.as_ref()) else {
            return Err("TopRoutes request missing Selector Resource".to_owned());
        };
        let to = match &request.outbound {
            Some(Outbound::ToResource(to)) => Some(Target::parse(to)?),
            Some(Outbound::None(_)) | None => None,
        };
        let kind = &resource.r#type;
        if to.is_some() && (kind == "service" || kind == "authority") {
            return Err(format!(
                "The {kind} resource type is not supported with 'to' queries"
            ));
        }
        if kind == "authority" {
            return Err("Authority cannot be the target of a routes query; try using an authority in the --to flag instead".to_owned());
        }
        Ok(Self {
            target: Target::parse(resource)?,
            selector: parse_selector(
                selector.map_or("", |selector| selector.label_selector.as_str()),
            )?,
            window: TimeWindow::parse(&request.time_window).map_err(|error| error.to_string())?,
            to,
        })
    }

    /// Returns the profiles of the `to` resource's Services; without `to`, of the object's
    /// Services.
    pub(super) fn profiles(
        &self,
        inventory: &Inventory,
        object: &Arc<ListedObject>,
        cluster_domain: &str,
    ) -> Vec<Profile> {
        let client = &*self.target.namespace;
        let all = Selector::default();
        let objects: Vec<_> = match &self.to {
            None => vec![object],
            Some(Target {
                kind: TargetKind::Authority,
                name,
                ..
            }) => {
                return profiles_of_authority(inventory, client, name);
            }
            Some(Target {
                kind: TargetKind::Object(kind),
                namespace,
                name,
            }) => inventory
                .select(Selection {
                    kind: *kind,
                    namespace,
                    name,
                    labels: &all,
                })
                .collect(),
        };
        let services: BTreeSet<&Name> = objects
            .into_iter()
            .flat_map(|object| inventory.services(object))
            .map(|service| &service.name)
            .take(MAX_PROFILES)
            .collect();
        let profile = |service: &Name| {
            let name = format!(
                "{}.{}.svc.{cluster_domain}",
                service.name, service.namespace
            );
            // The client's profile of a Service takes precedence over the profile in the Service's
            // namespace.
            let found = [client, &*service.namespace]
                .into_iter()
                .find_map(|namespace| profile_detail(inventory, &Name::new(namespace, &name)));
            Profile {
                shown: service.name.to_string(),
                routes: found.map(|it| it.routes.clone()).unwrap_or_default(),
                name,
            }
        };
        services.into_iter().map(profile).collect()
    }

    /// Returns the queries for the table of an object with this name.
    pub(super) fn queries(&self, name: &str, profiles: &[Profile]) -> Vec<Measure> {
        let target = Target {
            name: name.to_owned(),
            ..self.target.clone()
        };
        let direction = match self.to {
            Some(_) => "outbound",
            None => "inbound",
        };
        let mut matchers = target.matchers().equal("direction", direction);
        if !profiles.is_empty() {
            let names: Vec<String> = profiles.iter().map(|it| quote_regex(&it.name)).collect();
            matchers = matchers.regex("dst", format!(r"({})(:\d+)?", names.join("|")));
        }
        let mut queries = vec![(
            Metric::Requests,
            self.requests(&matchers, Family::RouteResponses),
        )];
        if self.to.is_some() {
            let query = self.requests(&matchers, Family::ActualRouteResponses);
            queries.push((Metric::ActualRequests, query));
        }
        queries.extend(latency_queries(
            &matchers,
            Family::RouteLatency,
            &self.window,
            &Grouping::of(&["dst", "rt_route"]),
        ));
        queries
    }

    fn requests(&self, matchers: &Matchers, family: Family) -> Query {
        let by = Grouping::of(&["rt_route", "dst", "classification"]);
        matchers.increase(family, &self.window, &by)
    }

    /// Returns the table of an object with a row for each route, also without requests.
    pub(super) fn table(
        &self,
        name: &str,
        profiles: &[Profile],
        results: Vec<Measurement>,
    ) -> RouteTable {
        let mut rows: BTreeMap<(String, String), Row> = BTreeMap::new();
        for profile in profiles {
            let named = profile
                .routes
                .iter()
                .map(|route| (route.as_str(), route.as_str()));
            for (route, shown) in named.chain([("", DEFAULT_ROUTE)]) {
                let row = Row {
                    route: shown.to_owned(),
                    authority: profile.shown.clone(),
                    stats: Some(BasicStats::default()),
                    ..Row::default()
                };
                rows.insert((profile.name.clone(), route.to_owned()), row);
            }
        }
        for (metric, samples) in results {
            for sample in samples {
                let dst = sample.label("dst");
                let authority = dst.split(':').next().unwrap_or_default();
                let key = (authority.to_owned(), sample.label("rt_route").to_owned());
                // Samples of routes that a profile had until recently are omitted.
                if let Some(row) = rows.get_mut(&key) {
                    row.time_window = self.window.to_string();
                    add_requests(row.stats.get_or_insert_default(), metric, &sample);
                }
            }
        }
        RouteTable {
            rows: rows.into_values().collect(),
            resource: format!("{}/{name}", self.target.kind.resource_type()),
        }
    }
}

/// Returns the profile of an authority, or all profiles of the namespace for an empty one.
fn profiles_of_authority(inventory: &Inventory, namespace: &str, authority: &str) -> Vec<Profile> {
    let labels = Selector::default();
    let selection = Selection {
        kind: ListedKind::ServiceProfile,
        namespace,
        name: authority,
        labels: &labels,
    };
    let profiles = inventory.select(selection).take(MAX_PROFILES);
    let profile = |object: &ListedObject| Profile {
        name: object.name.name.to_string(),
        shown: object.name.name.to_string(),
        routes: match &object.detail {
            Detail::Profile(detail) => detail.routes.clone(),
            _ => Vec::new(),
        },
    };
    profiles.map(|object| profile(object)).collect()
}

pub(super) fn profile_detail<'a>(
    inventory: &'a Inventory,
    name: &Name,
) -> Option<&'a ProfileDetail> {
    match &inventory.get(ListedKind::ServiceProfile, name)?.detail {
        Detail::Profile(detail) => Some(detail),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mesh_api::linkerd2::viz::{Resource, ResourceSelection};
    use mesh_cluster::prometheus::Sample;

    use super::*;

    fn resource(kind: &str, name: &str) -> Resource {
        Resource {
            namespace: "shop".to_owned(),
            r#type: kind.to_owned(),
            name: name.to_owned(),
        }
    }

    fn parse(resource: Option<Resource>, to: Option<Resource>) -> Result<RoutesRequest, String> {
        RoutesRequest::parse(&TopRoutesRequest {
            selector: Some(ResourceSelection {
                resource,
                label_selector: String::new(),
            }),
            time_window: "1m".to_owned(),
            outbound: to.map(Outbound::ToResource),
        })
    }

    fn profiles() -> Vec<Profile> {
        ["web", "api"]
            .map(|name| Profile {
                name: format!("{name}.shop.svc.cluster.local"),
                shown: name.to_owned(),
                routes: vec!["GET /a".to_owned()],
            })
            .into()
    }

    #[test]
    fn queries_have_text_of_linkerd() {
        let queries = |request: &RoutesRequest| -> Vec<String> {
            let queries = request.queries("web-1", &profiles());
            queries
                .into_iter()
                .map(|(_, query)| query.to_string())
                .collect()
        };
        let dst = r#"dst=~"(web\\.shop\\.svc\\.cluster\\.local|api\\.shop\\.svc\\.cluster\\.local)(:\\d+)?""#;
        let expect = |matchers: &str, actual: bool| {
            let mut expect = vec![format!(
                "sum(increase(route_response_total{matchers}[1m])) by (rt_route, dst, classification)"
            )];
            if actual {
                expect.push(format!(
                    "sum(increase(route_actual_response_total{matchers}[1m])) by (rt_route, dst, classification)"
                ));
            }
            for quantile in ["0.5", "0.95", "0.99"] {
                expect.push(format!(
                    "histogram_quantile({quantile}, sum(irate(route_response_latency_ms_bucket{matchers}[1m])) by (le, dst, rt_route))"
                ));
            }
            expect
        };
        let inbound = parse(Some(resource("deployment", "")), None).unwrap();
        assert_eq!(
            queries(&inbound),
            expect(
                &format!(r#"{{deployment="web-1", direction="inbound", {dst}, namespace="shop"}}"#),
                false
            )
        );
        let to = Some(resource("service", "web"));
        let outbound = parse(Some(resource("pod", "")), to).unwrap();
        assert_eq!(
            queries(&outbound),
            expect(
                &format!(r#"{{direction="outbound", {dst}, namespace="shop", pod="web-1"}}"#),
                true
            )
        );
    }

    #[test]
    fn invalid_requests_have_errors_of_linkerd() {
        for (from, to, expect) in [
            (None, None, "TopRoutes request missing Selector Resource"),
            (
                Some(resource("service", "web")),
                Some(resource("service", "api")),
                "The service resource type is not supported with 'to' queries",
            ),
            (
                Some(resource("authority", "web")),
                None,
                "Authority cannot be the target of a routes query; try using an authority in the --to flag instead",
            ),
        ] {
            assert_eq!(parse(from, to).unwrap_err(), expect);
        }
    }

    #[test]
    fn table_has_row_for_each_route_and_the_default() {
        let request = parse(Some(resource("deployment", "web")), None).unwrap();
        let sample = |route: &str, dst: &str, value| Sample {
            labels: [
                ("rt_route", route),
                ("dst", dst),
                ("classification", "success"),
            ]
            .map(|(label, value)| (label.to_owned(), value.to_owned()))
            .into(),
            time: 0.0,
            value,
        };
        let results = vec![(
            Metric::Requests,
            vec![
                sample("GET /a", "web.shop.svc.cluster.local:8080", 3.0),
                sample("GET /a", "web.shop.svc.cluster.local:9090", 4.0),
                sample("", "api.shop.svc.cluster.local", 1.0),
                sample("GET /gone", "api.shop.svc.cluster.local", 9.0),
            ],
        )];
        let table = request.table("web", &profiles(), results);
        assert_eq!(table.resource, "deployment/web");
        let rows: Vec<_> = table
            .rows
            .iter()
            .map(|row| {
                let count = row.stats.unwrap().success_count;
                (row.authority.as_str(), row.route.as_str(), count)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("api", "[DEFAULT]", 1),
                ("api", "GET /a", 0),
                ("web", "[DEFAULT]", 0),
                ("web", "GET /a", 7),
            ]
        );
    }
}
