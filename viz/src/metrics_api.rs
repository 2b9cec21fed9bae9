//! `linkerd2.viz.Api`: statistics of objects for `linkerd viz` and the dashboard, from Prometheus
//! or from scrapes of the proxies.
//!
//! An invalid request gets an error within the response, as in Linkerd. An object that does not
//! exist, or a Prometheus that does not respond, is an error of the call.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use mesh_api::linkerd2::viz::api_server::Api;
use mesh_api::linkerd2::viz::{
    AuthzRequest, AuthzResponse, CheckResult, CheckStatus, EdgesRequest, EdgesResponse,
    GatewaysRequest, GatewaysResponse, GatewaysTable, ListPodsRequest, ListPodsResponse,
    ListServicesRequest, ListServicesResponse, Resource, ResourceError, ResourceSelection,
    SelfCheckRequest, SelfCheckResponse, Service, StatSummaryRequest, StatSummaryResponse,
    StatTable, TopRoutesRequest, TopRoutesResponse, authz_response, edges_response,
    gateways_response, stat_summary_response, top_routes_response,
};
use mesh_cluster::calls::{Calls, Method};
use mesh_cluster::prometheus::Sample;
use mesh_objects::inventory::{Inventory, Selection};
use mesh_objects::model::{ListedKind, ListedObject, Name, Selector};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status, async_trait};

use self::pods::PodsRequest;
use self::resource::{Target, TargetKind};
use self::routes::{Profile, RoutesRequest};
use self::stat::StatRequest;
use crate::metrics::{MetricsSource, Query, SourceError, TimeWindow};

mod authz;
mod edges;
mod gateways;
mod pods;
mod resource;
mod routes;
mod samples;
mod stat;

pub(crate) use self::resource::parse_selector;
pub(crate) use self::samples::{Measure, Measurement, Metric, Stats, latency_queries};

/// The settings of the service.
#[derive(Clone, Debug)]
pub struct MetricsApiSettings {
    pub cluster_domain: String,
    /// Pods of this control plane count as meshed.
    pub control_namespace: String,
    /// The namespaces whose pods are not listed.
    pub ignored_namespaces: Vec<String>,
    /// Where the objects come from, in the words of the self-check.
    pub objects: &'static str,
}

#[derive(Debug)]
pub struct MetricsApiService {
    // Locked while objects are selected and while a batch of changes is applied.
    inventory: Arc<Mutex<Inventory>>,
    /// Without it, only pods and Services are listed.
    source: Option<MetricsSource>,
    settings: MetricsApiSettings,
    /// Limits concurrent calls, which hold their results in memory.
    permits: Semaphore,
    methods: Methods,
}

#[derive(Debug)]
struct Methods {
    stat_summary: Method,
    edges: Method,
    gateways: Method,
    top_routes: Method,
    list_pods: Method,
    list_services: Method,
    self_check: Method,
    authz: Method,
}

/// Why a call has no result.
#[derive(Debug)]
enum Failure {
    /// The request is invalid, which the response states.
    Request(String),
    Call(Status),
}

/// The objects of a table. A row has some 200 bytes, and clients accept 4 MiB.
const MAX_OBJECTS: usize = 10_000;

/// The objects of TopRoutes. Each has its own queries.
const MAX_ROUTE_OBJECTS: usize = 500;

/// The objects of TopRoutes whose queries run concurrently.
const CONCURRENT_ROUTE_OBJECTS: usize = 8;

/// Concurrent calls. The dashboard sends some ten at a time.
const MAX_CALLS: usize = 32;

/// How long a call waits for others.
const CALL_WAIT: Duration = Duration::from_secs(10);

impl MetricsApiService {
    pub fn new(
        inventory: Arc<Mutex<Inventory>>,
        source: Option<MetricsSource>,
        settings: MetricsApiSettings,
        calls: &Calls,
    ) -> Self {
        let method = |name| calls.method("linkerd2.viz.Api", name);
        Self {
            inventory,
            source,
            settings,
            permits: Semaphore::new(MAX_CALLS),
            methods: Methods {
                stat_summary: method("StatSummary"),
                edges: method("Edges"),
                gateways: method("Gateways"),
                top_routes: method("TopRoutes"),
                list_pods: method("ListPods"),
                list_services: method("ListServices"),
                self_check: method("SelfCheck"),
                authz: method("Authz"),
            },
        }
    }

    /// Counts a call, which waits while too many others are in progress.
    async fn respond<T>(
        &self,
        method: &Method,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        let result = match tokio::time::timeout(CALL_WAIT, self.permits.acquire()).await {
            Ok(Ok(_permit)) => call.await,
            _ => Err(Status::resource_exhausted(format!(
                "{MAX_CALLS} calls are in progress, which is the limit"
            ))),
        };
        method.count(result).map(Response::new)
    }

    async fn query(&self, query: &Query) -> Result<Vec<Sample>, Status> {
        let Some(source) = &self.source else {
            return Err(Status::failed_precondition(
                "No prometheus instance to connect",
            ));
        };
        source.query(query).await.map_err(|error| match error {
            SourceError::Prometheus(error) => Status::unavailable(error.to_string()),
            SourceError::Proxies(error) => Status::invalid_argument(error.to_string()),
        })
    }

    /// Runs queries concurrently.
    async fn measure(&self, queries: Vec<Measure>) -> Result<Vec<Measurement>, Status> {
        let queries = queries.into_iter().map(|(metric, query)| async move {
            let samples = self.query(&query).await?;
            Ok::<_, Status>((metric, samples))
        });
        try_join_all(queries).await
    }

    /// Checks that results for the window are not necessarily empty.
    async fn check_window(&self, window: &TimeWindow) -> Result<(), Failure> {
        match &self.source {
            Some(source) => source.check_window(window).await.map_err(Failure::Request),
            None => Ok(()),
        }
    }

    /// Returns the selected objects. A name that is not the name of an object is an error, unless
    /// `any` of several kinds is selected.
    fn select(
        &self,
        target: &Target,
        labels: &Selector,
        limit: usize,
        any: bool,
    ) -> Result<Vec<Arc<ListedObject>>, Failure> {
        let TargetKind::Object(kind) = target.kind else {
            return Ok(Vec::new());
        };
        let selection = Selection {
            kind,
            namespace: &target.namespace,
            name: &target.name,
            labels,
        };
        let inventory = self.inventory.lock();
        let objects: Vec<_> = inventory
            .select(selection)
            .take(limit + 1)
            .cloned()
            .collect();
        if objects.len() > limit {
            return Err(Failure::Request(format!(
                "more than {limit} objects of the type {} are selected; select a namespace or a name",
                kind.resource_type()
            )));
        }
        if objects.is_empty() && !target.name.is_empty() && !any {
            let group = match kind.group() {
                "" => String::new(),
                group => format!(".{group}"),
            };
            return Err(Failure::Call(Status::not_found(format!(
                "{}{group} {:?} not found",
                kind.resource_type(),
                target.name
            ))));
        }
        Ok(objects)
    }

    async fn stat_summary(
        &self,
        request: &StatSummaryRequest,
    ) -> Result<stat_summary_response::Ok, Failure> {
        let request = StatRequest::parse(request).map_err(Failure::Request)?;
        let tables = request
            .targets
            .iter()
            .map(|target| self.stat_table(&request, target));
        let (checked, tables) =
            tokio::join!(self.check_window(&request.window), try_join_all(tables));
        checked?;
        Ok(stat_summary_response::Ok {
            stat_tables: tables?,
        })
    }

    async fn stat_table(
        &self,
        request: &StatRequest,
        target: &Target,
    ) -> Result<StatTable, Failure> {
        let domain = &self.settings.cluster_domain;
        let plan = request.plan(target, domain);
        // Services are counted by their requests, and may be in other clusters.
        let from_requests = matches!(
            target.kind,
            TargetKind::Authority | TargetKind::Object(ListedKind::Service)
        );
        let objects = if from_requests {
            Vec::new()
        } else {
            let any = request.targets.len() > 1;
            self.select(target, &request.selector, MAX_OBJECTS, any)?
        };
        let results = if request.skip_stats || (objects.is_empty() && !from_requests) {
            Vec::new()
        } else {
            self.measure(plan.queries).await?
        };
        let rows = match target.kind {
            TargetKind::Authority => request.authority_rows(target, results, &plan.key),
            TargetKind::Object(ListedKind::Service) => {
                let name = format!("{}.{}.svc.{domain}", target.name, target.namespace);
                let name = Name::new(&target.namespace, &name);
                let inventory = self.inventory.lock();
                let profile = routes::profile_detail(&inventory, &name);
                request.service_rows(target, profile, results, &plan.key)
            }
            TargetKind::Object(_) => {
                let objects_of_table = objects.iter().map(Arc::as_ref);
                let pods = self
                    .inventory
                    .lock()
                    .count_pods(objects_of_table, &self.settings.control_namespace);
                request.object_rows(target, &objects, &pods, results, &plan.key)
            }
        };
        if rows.len() > MAX_OBJECTS {
            return Err(Failure::Request(format!(
                "the result has more than {MAX_OBJECTS} rows; select a namespace or a name"
            )));
        }
        Ok(stat::table(rows))
    }

    async fn top_routes(
        &self,
        request: &TopRoutesRequest,
    ) -> Result<top_routes_response::Ok, Failure> {
        let request = RoutesRequest::parse(request).map_err(Failure::Request)?;
        self.check_window(&request.window).await?;
        let objects = self.select(&request.target, &request.selector, MAX_ROUTE_OBJECTS, false)?;
        // Profiles are looked up before the queries, because the lock is not held across them.
        let tables: Vec<(Arc<ListedObject>, Vec<Profile>)> = {
            let inventory = self.inventory.lock();
            let profiles =
                |object| request.profiles(&inventory, object, &self.settings.cluster_domain);
            objects
                .iter()
                .map(|object| (object.clone(), profiles(object)))
                .collect()
        };
        let tables = tables
            .into_iter()
            .filter(|(_, profiles)| !profiles.is_empty())
            .map(|(object, profiles)| {
                let request = &request;
                async move {
                    let name = &object.name.name;
                    let results = self.measure(request.queries(name, &profiles)).await?;
                    Ok::<_, Status>(request.table(name, &profiles, results))
                }
            });
        let tables: Vec<_> = futures_util::stream::iter(tables)
            .buffered(CONCURRENT_ROUTE_OBJECTS)
            .collect()
            .await;
        let routes = tables.into_iter().collect::<Result<Vec<_>, _>>()?;
        if routes.is_empty() {
            return Err(Failure::Request(
                "No Service Profiles found for selected resources".to_owned(),
            ));
        }
        Ok(top_routes_response::Ok { routes })
    }

    async fn edges(&self, request: &EdgesRequest) -> Result<edges_response::Ok, Failure> {
        let target = edges::parse(request).map_err(Failure::Request)?;
        let result = self.query(&edges::query(target.kind)).await;
        // As in Linkerd, a failed query is an error within the response.
        let samples = result.map_err(|status| Failure::Request(status.message().to_owned()))?;
        let inventory = self.inventory.lock();
        let identity = |pod: &Name| edges::identity(&inventory, pod);
        Ok(edges_response::Ok {
            edges: edges::edges(&target, &samples, identity),
        })
    }

    async fn authz(&self, request: &AuthzRequest) -> Result<authz_response::Ok, Failure> {
        let (target, window) = authz::parse(request).map_err(Failure::Request)?;
        let result = self.measure(authz::queries(&target, &window)).await;
        // As in Linkerd, a failed query is an error within the response.
        let results = result.map_err(|status| Failure::Request(status.message().to_owned()))?;
        let rows = authz::rows(request, &window, results);
        Ok(authz_response::Ok {
            stat_table: Some(stat::table(rows)),
        })
    }

    async fn gateways(&self, request: &GatewaysRequest) -> Result<GatewaysTable, Status> {
        let window = TimeWindow::parse(&request.time_window);
        let window = window.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let results = self.measure(gateways::queries(request, &window)).await?;
        let paired = gateways::paired_services(&self.inventory.lock());
        Ok(GatewaysTable {
            rows: gateways::rows(&paired, results),
        })
    }

    async fn list_pods(&self, request: &ListPodsRequest) -> Result<ListPodsResponse, Status> {
        let request = PodsRequest::parse(request).map_err(Status::invalid_argument)?;
        let samples = match &self.source {
            Some(_) => self.query(&request.query()).await?,
            None => Vec::new(),
        };
        let inventory = self.inventory.lock();
        let ignored = &self.settings.ignored_namespaces;
        let pods = request.pods(&inventory, ignored, &samples, SystemTime::now());
        Ok(ListPodsResponse { pods })
    }

    fn list_services(&self, request: &ListServicesRequest) -> ListServicesResponse {
        let inventory = self.inventory.lock();
        let services = inventory.in_namespace(ListedKind::Service, &request.namespace);
        let services = services.map(|service| Service {
            name: service.name.name.to_string(),
            namespace: service.name.namespace.to_string(),
        });
        ListServicesResponse {
            services: services.collect(),
        }
    }

    async fn self_check(&self) -> SelfCheckResponse {
        let check = |subsystem: &str, description: &str, error: Option<String>| CheckResult {
            subsystem_name: subsystem.to_owned(),
            check_description: description.to_owned(),
            status: match error {
                None => CheckStatus::Ok,
                Some(_) => CheckStatus::Error,
            }
            .into(),
            friendly_message_to_user: error.unwrap_or_default(),
        };
        // The service starts when everything has been listed, and objects stay known while the API
        // server is unreachable.
        let description = format!("linkerd viz can talk to {}", self.settings.objects);
        let mut results = vec![check("kubernetes", &description, None)];
        match &self.source {
            Some(MetricsSource::Prometheus(_)) => {
                let result = self.query(&pods::start_query("")).await;
                let error = result.err().map(|status| {
                    let message = status.message();
                    format!("Error calling Prometheus from the control plane: {message}")
                });
                results.push(check(
                    "prometheus",
                    "linkerd viz can talk to Prometheus",
                    error,
                ));
            }
            Some(MetricsSource::Proxies(proxies)) => {
                let error = proxies.check().err();
                results.push(check(
                    "proxies",
                    "linkerd viz can scrape the proxies",
                    error,
                ));
            }
            None => {}
        }
        SelfCheckResponse { results }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

impl Failure {
    /// Returns the error within the response, unless the call failed.
    fn into_error(self, resource: Option<&Resource>) -> Result<ResourceError, Status> {
        match self {
            Self::Request(error) => Ok(ResourceError {
                resource: resource.cloned(),
                error,
            }),
            Self::Call(status) => Err(status),
        }
    }
}

/// Returns the response with the result of a method, or with its error.
macro_rules! response {
    ($module:ident, $response:ident, $result:expr, $resource:expr) => {
        async {
            let response = match $result.await {
                Ok(ok) => $module::Response::Ok(ok),
                Err(error) => $module::Response::Error(error.into_error($resource)?),
            };
            Ok($response {
                response: Some(response),
            })
        }
    };
}

#[async_trait]
impl Api for MetricsApiService {
    async fn stat_summary(
        &self,
        request: Request<StatSummaryRequest>,
    ) -> Result<Response<StatSummaryResponse>, Status> {
        let request = request.into_inner();
        let resource = selected(request.selector.as_ref());
        let call = response!(
            stat_summary_response,
            StatSummaryResponse,
            self.stat_summary(&request),
            resource
        );
        self.respond(&self.methods.stat_summary, call).await
    }

    async fn edges(
        &self,
        request: Request<EdgesRequest>,
    ) -> Result<Response<EdgesResponse>, Status> {
        let request = request.into_inner();
        let resource = selected(request.selector.as_ref());
        let call = response!(
            edges_response,
            EdgesResponse,
            self.edges(&request),
            resource
        );
        self.respond(&self.methods.edges, call).await
    }

    async fn top_routes(
        &self,
        request: Request<TopRoutesRequest>,
    ) -> Result<Response<TopRoutesResponse>, Status> {
        let request = request.into_inner();
        let resource = selected(request.selector.as_ref());
        let call = response!(
            top_routes_response,
            TopRoutesResponse,
            self.top_routes(&request),
            resource
        );
        self.respond(&self.methods.top_routes, call).await
    }

    async fn authz(
        &self,
        request: Request<AuthzRequest>,
    ) -> Result<Response<AuthzResponse>, Status> {
        let request = request.into_inner();
        let resource = request.resource.as_ref();
        let call = response!(
            authz_response,
            AuthzResponse,
            self.authz(&request),
            resource
        );
        self.respond(&self.methods.authz, call).await
    }

    async fn gateways(
        &self,
        request: Request<GatewaysRequest>,
    ) -> Result<Response<GatewaysResponse>, Status> {
        let request = request.into_inner();
        let call = async {
            let gateways_table = Some(self.gateways(&request).await?);
            let ok = gateways_response::Ok { gateways_table };
            Ok(GatewaysResponse {
                response: Some(gateways_response::Response::Ok(ok)),
            })
        };
        self.respond(&self.methods.gateways, call).await
    }

    async fn list_pods(
        &self,
        request: Request<ListPodsRequest>,
    ) -> Result<Response<ListPodsResponse>, Status> {
        let request = request.into_inner();
        let call = self.list_pods(&request);
        self.respond(&self.methods.list_pods, call).await
    }

    async fn list_services(
        &self,
        request: Request<ListServicesRequest>,
    ) -> Result<Response<ListServicesResponse>, Status> {
        let request = request.into_inner();
        let call = async { Ok(self.list_services(&request)) };
        self.respond(&self.methods.list_services, call).await
    }

    async fn self_check(
        &self,
        _request: Request<SelfCheckRequest>,
    ) -> Result<Response<SelfCheckResponse>, Status> {
        let call = async { Ok(self.self_check().await) };
        self.respond(&self.methods.self_check, call).await
    }
}

/// Returns the resource of a request, for an error within the response.
fn selected(selection: Option<&ResourceSelection>) -> Option<&Resource> {
    selection?.resource.as_ref()
}

#[cfg(test)]
mod tests;
