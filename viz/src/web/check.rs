//! `/api/check`: whether the mesh works, as far as the dashboard can see it.
//!
//! The response has the categories and fields of Linkerd's dashboard. `meshctl check` has more
//! checks. They need rights that a page without authentication must not have.

use std::time::Duration;

use http::StatusCode;
use kube::Client;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use self::rows::Row;
use super::client::Failure;
use super::feed::{Answer, Feeds};
use super::objects;
use super::query::{Params, Query};
use super::settings::PageSettings;
use super::sources::Place;

mod rows;

/// Runs the checks, at most once in an interval.
pub(crate) struct Checker {
    client: Client,
    feeds: Feeds,
    place: Place,
    control_namespace: String,
    viz_namespace: String,
    /// The last result and its time. Locked while checks run, so that they run once at a time.
    last: Mutex<Option<(Instant, Value)>>,
}

/// A result is reused for this time.
const INTERVAL: Duration = Duration::from_secs(5);

/// The pods of one namespace that are read.
const MAX_PODS: usize = 500;

const INJECTOR: &str = "linkerd-proxy-injector-webhook-config";
const TAP_INJECTOR: &str = "linkerd-tap-injector-webhook-config";
const TAP_API: &str = "v1alpha1.tap.linkerd.io";

impl Checker {
    pub(crate) fn new(client: Client, feeds: Feeds, place: Place, settings: &PageSettings) -> Self {
        Self {
            client,
            feeds,
            place,
            control_namespace: settings.controller_namespace.clone(),
            viz_namespace: settings.viz_namespace.clone(),
            last: Mutex::new(None),
        }
    }

    /// Returns `success` and `results` by category.
    pub(crate) async fn run(&self) -> Value {
        let mut last = self.last.lock().await;
        if let Some((at, result)) = &*last
            && at.elapsed() < INTERVAL
        {
            return result.clone();
        }
        let result = to_json(&self.rows().await);
        *last = Some((Instant::now(), result.clone()));
        result
    }

    async fn rows(&self) -> Vec<Row> {
        match self.place {
            Place::Cluster => self.rows_of_cluster().await,
            Place::LocalNode => self.rows_of_node().await,
        }
    }

    async fn rows_of_node(&self) -> Vec<Row> {
        let (control, own, viz) = tokio::join!(
            self.pods(&self.control_namespace),
            self.pods(&self.viz_namespace),
            self.viz_rows(),
        );
        let mut rows = vec![
            rows::control_plane(&control, &rows::COMPONENTS_OF_NODE),
            rows::viz_pods(&self.viz_namespace, &own),
        ];
        rows.extend(viz);
        rows
    }

    /// Returns the checks that the metrics API answers.
    async fn viz_rows(&self) -> Vec<Row> {
        let (checks, pods) = tokio::join!(self.ask("self-check"), self.ask("pods"));
        let mut rows = rows::self_checks(&checks);
        let scraper = match self.place {
            Place::Cluster => "Prometheus",
            Place::LocalNode => "the metrics API",
        };
        rows.extend(rows::data_plane(&pods, scraper));
        rows
    }

    async fn rows_of_cluster(&self) -> Vec<Row> {
        let version = self.object("/version".to_owned()).await;
        let is_reachable = version.is_ok();
        let mut rows = vec![rows::api_server(&version)];
        if !is_reachable {
            rows.extend(self.viz_rows().await);
            return rows;
        }
        let (control, own, injector, tap_injector, tap, viz) = tokio::join!(
            self.pods(&self.control_namespace),
            self.pods(&self.viz_namespace),
            self.webhook(INJECTOR),
            self.webhook(TAP_INJECTOR),
            self.object(format!(
                "/apis/apiregistration.k8s.io/v1/apiservices/{TAP_API}"
            )),
            self.viz_rows(),
        );
        rows.push(rows::control_plane(&control, &rows::COMPONENTS));
        rows.push(rows::webhook("proxy-injector", &injector));
        rows.push(rows::webhook("tap-injector", &tap_injector));
        rows.push(rows::tap_api(&tap));
        rows.push(rows::viz_pods(&self.viz_namespace, &own));
        rows.extend(viz);
        rows
    }

    async fn object(&self, path: String) -> Result<Value, String> {
        let object = objects::get(&self.client, &path).await;
        object.map_err(|Failure { error, .. }| error)
    }

    async fn pods(&self, namespace: &str) -> Result<Value, String> {
        let path = format!("/api/v1/namespaces/{namespace}/pods?limit={MAX_PODS}");
        self.object(path).await
    }

    async fn webhook(&self, name: &str) -> Result<Value, String> {
        let group = "/apis/admissionregistration.k8s.io/v1";
        self.object(format!("{group}/mutatingwebhookconfigurations/{name}"))
            .await
    }

    /// Asks the metrics API.
    async fn ask(&self, endpoint: &str) -> Result<Value, String> {
        let query = Query::parse(endpoint, &Params::default());
        let query = query.ok_or_else(|| format!("{endpoint} is not a question"))??;
        let answer = self.feeds.get(query).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let Answer { status, body } = &*answer;
        let value: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        match *status {
            StatusCode::OK => Ok(value),
            _ => Err(value["error"].as_str().unwrap_or_default().to_owned()),
        }
    }
}

fn to_json(rows: &[Row]) -> Value {
    let mut results: Map<String, Value> = Map::new();
    for row in rows {
        let of_category = results
            .entry(row.category.to_owned())
            .or_insert_with(|| json!([]));
        if let Some(of_category) = of_category.as_array_mut() {
            of_category.push(row.to_json());
        }
    }
    let success = rows.iter().all(|row| row.error.is_none() || row.is_warning);
    json!({ "success": success, "results": results })
}
