//! An API server in memory, for tests of clients that write: objects by path, resource versions,
//! and faults for each client.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tower::Service;

use super::{failure, found, merge, response};

/// An API server. Clones share its objects.
#[derive(Clone, Default)]
pub struct ScriptedApi(pub(super) Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    pub(super) objects: BTreeMap<String, Value>,
    pub(super) version: u64,
    /// All changes, for watches.
    pub(super) log: Vec<Logged>,
    /// Notifies of changes.
    pub(super) changed: watch::Sender<()>,
    pub(super) faults: BTreeMap<&'static str, Fault>,
    /// Writes to paths that contain this text are refused with this status.
    refused: Option<(&'static str, u16)>,
    /// The user that every token is of, for TokenReviews.
    user: Option<&'static str>,
    writes: Vec<Write>,
}

/// A change of an object.
pub(super) struct Logged {
    pub(super) version: u64,
    pub(super) event: &'static str,
    pub(super) path: String,
    pub(super) object: Value,
}

/// A fault of the requests of a client.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// They have no response, and no effect.
    Lost,
    /// They have an effect, and no response.
    ResponseLost,
    /// They are refused with this status.
    Status(u16),
    /// They take effect after a delay.
    Slow(Duration),
}

/// A successful write.
#[derive(Clone, Debug)]
pub struct Write {
    pub client: &'static str,
    pub path: String,
    pub query: String,
    pub body: Value,
}

impl ScriptedApi {
    /// Returns a service for the client with this name.
    pub fn service<B>(
        &self,
        client: &'static str,
    ) -> impl Service<Request<B>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + use<B>
    where
        B: Body<Data: Send, Error: Debug> + Send + 'static,
    {
        let api = self.clone();
        tower::service_fn(move |request: Request<B>| {
            let api = api.clone();
            async move { Ok(api.serve(client, request).await) }
        })
    }

    pub fn put(&self, path: &str, object: Value) {
        self.0.lock().store(path.to_owned(), object);
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().objects.get(path).cloned()
    }

    pub fn delete(&self, path: &str) {
        self.0.lock().remove(path);
    }

    pub fn set_fault(&self, client: &'static str, fault: Option<Fault>) {
        let mut state = self.0.lock();
        match fault {
            Some(fault) => state.faults.insert(client, fault),
            None => state.faults.remove(client),
        };
    }

    /// Refuses writes of all clients to paths with this part.
    pub fn refuse_writes_to(&self, part: &'static str, status: u16) {
        self.0.lock().refused = Some((part, status));
    }

    /// Authenticates every token as this user.
    pub fn authenticate_as(&self, user: &'static str) {
        self.0.lock().user = Some(user);
    }

    /// Returns the successful writes to paths with this part.
    pub fn writes(&self, part: &str) -> Vec<Write> {
        let state = self.0.lock();
        let writes = state.writes.iter();
        writes
            .filter(|write| write.path.contains(part))
            .cloned()
            .collect()
    }

    pub(super) async fn serve<B: Body<Error: Debug>>(
        &self,
        client: &'static str,
        request: Request<B>,
    ) -> Response<Full<Bytes>> {
        let fault = self.0.lock().faults.get(client).copied();
        match fault {
            Some(Fault::Lost) => std::future::pending().await,
            Some(Fault::Status(status)) => return refusal(status),
            Some(Fault::Slow(delay)) => sleep(delay).await,
            Some(Fault::ResponseLost) | None => {}
        }
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .expect("the body of a request")
            .to_bytes();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let response = match parts.method {
            Method::GET => found(self.get(&path)),
            Method::PATCH => {
                let patch_type = parts.headers[http::header::CONTENT_TYPE].to_str();
                let is_apply = patch_type.is_ok_and(|it| it.contains("apply-patch"));
                let body: Value = serde_json::from_slice(&body).expect("a patch");
                self.patch(client, path, query, &body, is_apply)
            }
            Method::POST | Method::PUT => {
                let mut object: Value = serde_json::from_slice(&body).expect("an object");
                // A question, which is not stored: everything is authorized.
                if path.ends_with("/selfsubjectaccessreviews") {
                    object["status"] = json!({ "allowed": true });
                    return response(StatusCode::CREATED, &object);
                }
                if path.ends_with("/tokenreviews")
                    && let Some(user) = self.0.lock().user
                {
                    let audiences = object["spec"]["audiences"].clone();
                    object["status"] = json!({
                        "authenticated": true, "audiences": audiences,
                        "user": { "username": user, "uid": "u" },
                    });
                    return response(StatusCode::CREATED, &object);
                }
                let creates = parts.method == Method::POST;
                self.write(client, path, query, object, creates)
            }
            Method::DELETE => {
                let options = serde_json::from_slice(&body).unwrap_or_default();
                self.delete_version(&path, &options)
            }
            method => panic!("{method} {path}"),
        };
        if let Some(Fault::ResponseLost) = fault {
            std::future::pending::<()>().await;
        }
        response
    }

    /// Creates an object in a collection, or replaces the version that it names.
    fn write(
        &self,
        client: &'static str,
        path: String,
        query: String,
        object: Value,
        creates: bool,
    ) -> Response<Full<Bytes>> {
        let mut state = self.0.lock();
        let name = object["metadata"]["name"].as_str().expect("a name");
        let path = if creates {
            format!("{path}/{name}")
        } else {
            path
        };
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        match state.objects.get(&path) {
            Some(_) if creates => return failure(StatusCode::CONFLICT, "the object exists"),
            None if !creates => return found(None),
            Some(before) if version(before) != version(&object) => {
                return failure(StatusCode::CONFLICT, "the object has been modified");
            }
            _ => {}
        }
        state.writes.push(Write {
            client,
            path: path.clone(),
            query,
            body: object.clone(),
        });
        response(StatusCode::OK, &state.store(path, object))
    }

    /// Deletes an object, if it still has the version of the preconditions.
    fn delete_version(&self, path: &str, options: &Value) -> Response<Full<Bytes>> {
        let mut state = self.0.lock();
        let Some(object) = state.objects.get(path) else {
            return found(None);
        };
        let required = &options["preconditions"]["resourceVersion"];
        if !required.is_null() && *required != object["metadata"]["resourceVersion"] {
            return failure(StatusCode::CONFLICT, "the object has been modified");
        }
        found(state.remove(path))
    }

    fn patch(
        &self,
        client: &'static str,
        path: String,
        query: String,
        body: &Value,
        is_apply: bool,
    ) -> Response<Full<Bytes>> {
        let mut state = self.0.lock();
        if let Some((part, status)) = state.refused
            && path.contains(part)
        {
            return refusal(status);
        }
        let object = path.strip_suffix("/status").unwrap_or(&path).to_owned();
        let version = body["metadata"]["resourceVersion"].as_str();
        let before = state.objects.get(&object).cloned();
        let mut after = match before {
            None if is_apply => json!({}),
            None => return found(None),
            Some(before) => {
                let current = before["metadata"]["resourceVersion"].as_str();
                if version.is_some() && version != current {
                    return failure(StatusCode::CONFLICT, "the object has been modified");
                }
                before
            }
        };
        // A patch of the status changes nothing else.
        if path.ends_with("/status") {
            merge(&mut after["status"], &body["status"]);
        } else {
            merge(&mut after, body);
        }
        state.writes.push(Write {
            client,
            path,
            query,
            body: body.clone(),
        });
        response(StatusCode::OK, &state.store(object, after))
    }
}

impl State {
    /// Stores an object with the next version, and returns it.
    fn store(&mut self, path: String, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let before = self.objects.insert(path.clone(), object.clone());
        let event = if before.is_none() {
            "ADDED"
        } else {
            "MODIFIED"
        };
        self.record(event, path, object.clone());
        object
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let object = self.objects.remove(path)?;
        self.version += 1;
        let mut last = object.clone();
        last["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.record("DELETED", path.to_owned(), last);
        Some(object)
    }

    fn record(&mut self, event: &'static str, path: String, object: Value) {
        self.log.push(Logged {
            version: self.version,
            event,
            path,
            object,
        });
        self.changed.send_replace(());
    }
}

pub(super) fn refusal(status: u16) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(status).expect("the status of a response");
    failure(status, "scripted")
}
