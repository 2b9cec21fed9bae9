//! The responses of the dashboard: its files, the JSON API, the stream of updates and taps.
//!
//! Everything is read-only, so that GET and HEAD are the only methods.

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use kube::Client;
use mesh_runtime::drain;
use regex::Regex;
use serde_json::json;

use super::assets::{Assets, accepts_gzip};
use super::check::Checker;
use super::client::Failure;
use super::feed::{Answer, AnswerRx, Feeds};
use super::limits::{Limits, MAX_VIEWERS};
use super::query::{Params, Query};
use super::security::{Refusal, add_headers, check_host, check_origin};
use super::settings::PageSettings;
use super::stream::{Compresses, MAX_QUERIES, Updates};
use super::tap::{MAX_TAPS, TapSession};
use super::{Body, empty, full, objects, profile, upgrade};

/// Responds to requests.
pub(crate) struct Dashboard {
    pub(crate) assets: Assets,
    pub(crate) feeds: Feeds,
    pub(crate) checker: Checker,
    pub(crate) client: Client,
    pub(crate) hosts: Regex,
    pub(crate) settings: PageSettings,
    pub(crate) drain: drain::Watch,
    pub(crate) limits: Limits,
}

const API: &str = "/api/";

/// Why there are no definitions.
const HIDDEN: &str = "this dashboard does not show definitions: --hide-definitions (value dashboard.restrictPrivileges) is set";

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const YAML: HeaderValue = HeaderValue::from_static("text/yaml; charset=utf-8");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

impl Dashboard {
    /// Responds to a request.
    pub(crate) async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        let mut response = match self.check(&request) {
            Ok(()) => self.dispatch(request).await,
            Err((status, problem)) => refused(status, &problem),
        };
        add_headers(response.headers_mut());
        if is_head {
            *response.body_mut() = empty();
        }
        response
    }

    /// Refuses a request that does not come from a user of the dashboard, or would change
    /// something.
    fn check(&self, request: &Request<Incoming>) -> Result<(), (StatusCode, String)> {
        let host = check_host(request.uri(), request.headers(), &self.hosts);
        let host = host.map_err(|refusal| {
            self.limits.foreign_host.inc();
            (StatusCode::BAD_REQUEST, refusal.to_string())
        })?;
        if request.uri().path().starts_with(API) {
            check_origin(request.headers(), host).map_err(|refusal: Refusal| {
                self.limits.foreign_origin.inc();
                (StatusCode::FORBIDDEN, refusal.to_string())
            })?;
        }
        if [Method::GET, Method::HEAD].contains(request.method()) {
            return Ok(());
        }
        let problem = "the dashboard changes nothing: expected GET".to_owned();
        Err((StatusCode::METHOD_NOT_ALLOWED, problem))
    }

    async fn dispatch(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if path == profile::PATH {
            let query = request.uri().query().unwrap_or_default();
            let file = profile::respond(query, &self.settings.cluster_domain);
            return file.unwrap_or_else(|problem| refused(StatusCode::BAD_REQUEST, &problem));
        }
        let Some(endpoint) = path.strip_prefix(API).map(ToOwned::to_owned) else {
            let file = self.assets.respond(path, request.headers());
            return file.unwrap_or_else(|| refused(StatusCode::NOT_FOUND, "not found"));
        };
        if endpoint == "tap" {
            return self.tap(request);
        }
        let query = request.uri().query().unwrap_or_default();
        let response = match endpoint.as_str() {
            "stream" => self.stream(query, request.headers()),
            endpoint => self.endpoint(endpoint, query).await,
        };
        response.unwrap_or_else(|failure| answer(&Answer::error(failure.status, &failure.error)))
    }

    async fn endpoint(&self, endpoint: &str, query: &str) -> Result<Response<Body>, Failure> {
        let params = Params::parse(query).map_err(Failure::invalid)?;
        if let Some(query) = Query::parse(endpoint, &params) {
            let last = self.feeds.get(query.map_err(Failure::invalid)?).await;
            return Ok(answer(&*last.map_err(unavailable)?));
        }
        let value = match endpoint {
            "version" => json!({ "version": env!("CARGO_PKG_VERSION") }),
            "settings" => self.settings.to_json(),
            // Boxed, because its future holds all requests to the API server.
            "check" => Box::pin(self.checker.run()).await,
            "extensions" => objects::extensions(&self.client, &params).await?,
            "resource-definition" if !self.settings.definitions => {
                return Err(Failure {
                    status: StatusCode::FORBIDDEN,
                    error: HIDDEN.to_owned(),
                });
            }
            "resource-definition" => {
                let yaml = objects::definition(&self.client, &params).await?;
                return Ok(response(StatusCode::OK, YAML, full(yaml)));
            }
            _ => {
                return Err(Failure {
                    status: StatusCode::NOT_FOUND,
                    error: "not found".to_owned(),
                });
            }
        };
        Ok(answer(&Answer::ok(&value)))
    }

    /// Returns the updates of the questions in the parameters `q`.
    fn stream(&self, query: &str, headers: &HeaderMap) -> Result<Response<Body>, Failure> {
        let asked = form_urlencoded::parse(query.as_bytes());
        let asked = asked.filter(|(name, _)| name == "q");
        let queries: Vec<Query> = asked
            .map(|(_, path)| Query::parse_path(&path).map_err(Failure::invalid))
            .take(MAX_QUERIES + 1)
            .collect::<Result<_, _>>()?;
        if queries.is_empty() || queries.len() > MAX_QUERIES {
            return Err(Failure::invalid(format!(
                "expected 1 to {MAX_QUERIES} parameters q, such as q=pods"
            )));
        }
        let permit = self.limits.viewer().ok_or_else(|| {
            unavailable(format!("{MAX_VIEWERS} pages are open, which is the limit"))
        })?;
        let answers = queries.into_iter().map(|query| self.feeds.subscribe(query));
        let answers: Vec<AnswerRx> = answers.collect::<Result<_, _>>().map_err(unavailable)?;
        let compresses = if accepts_gzip(headers) {
            Compresses::Gzip
        } else {
            Compresses::Nothing
        };
        let updates = Updates::new(answers, self.drain.clone(), permit, compresses);
        let body = StreamBody::new(updates.frames()).boxed_unsync();
        let mut response = response(StatusCode::OK, EVENTS, body);
        if compresses == Compresses::Gzip {
            let encoding = HeaderValue::from_static("gzip");
            response.headers_mut().insert(CONTENT_ENCODING, encoding);
        }
        Ok(response)
    }

    /// Accepts a WebSocket.
    fn tap(&self, mut request: Request<Incoming>) -> Response<Body> {
        let accepted = match upgrade::accept(request.headers()) {
            Ok(accepted) => accepted,
            Err(problem) => {
                let mut response = answer(&Answer::error(StatusCode::UPGRADE_REQUIRED, problem));
                upgrade::advertise(response.headers_mut());
                return response;
            }
        };
        let Some(permit) = self.limits.tap() else {
            let problem = format!("{MAX_TAPS} taps are open, which is the limit");
            return answer(&Answer::error(StatusCode::SERVICE_UNAVAILABLE, &problem));
        };
        let session = TapSession {
            client: self.client.clone(),
            drain: self.drain.clone(),
            dropped: self.limits.dropped.clone(),
            _permit: permit,
        };
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            match upgraded.await {
                Ok(connection) => session.run(connection).await,
                Err(error) => tracing::debug!(%error, "Upgrade to a WebSocket failed"),
            }
        });
        accepted
    }
}

fn unavailable(error: impl ToString) -> Failure {
    Failure {
        status: StatusCode::SERVICE_UNAVAILABLE,
        error: error.to_string(),
    }
}

fn answer(answer: &Answer) -> Response<Body> {
    response(answer.status, JSON, full(answer.body.clone()))
}

fn refused(status: StatusCode, problem: &str) -> Response<Body> {
    let mut response = response(status, TEXT, full(format!("{problem}\n")));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        let methods = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, methods);
    }
    response
}

fn response(status: StatusCode, content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
