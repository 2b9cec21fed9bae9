//! An API server in memory, for tests of clients that write: objects by path, merge patches,
//! resource versions, and faults for each client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

/// An API server. Clones share its objects.
#[derive(Clone, Default)]
pub(crate) struct ScriptedApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    faults: BTreeMap<&'static str, Fault>,
    /// Writes to paths that contain this text are refused with this status.
    refused: Option<(&'static str, u16)>,
    writes: Vec<Write>,
}

/// A fault of the requests of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
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
pub(crate) struct Write {
    pub(crate) client: &'static str,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

impl ScriptedApi {
    pub(crate) fn client(&self, name: &'static str) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, std::convert::Infallible>(api.serve(name, request).await) }
        });
        Client::new(service, "default")
    }

    pub(crate) fn put(&self, path: &str, mut object: Value) {
        let mut state = self.0.lock();
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        state.objects.insert(path.to_owned(), object);
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().objects.get(path).cloned()
    }

    pub(crate) fn delete(&self, path: &str) {
        self.0.lock().objects.remove(path);
    }

    pub(crate) fn set_fault(&self, client: &'static str, fault: Option<Fault>) {
        let mut state = self.0.lock();
        match fault {
            Some(fault) => state.faults.insert(client, fault),
            None => state.faults.remove(client),
        };
    }

    /// Refuses writes of all clients to paths with this part.
    pub(crate) fn refuse_writes_to(&self, part: &'static str, code: u16) {
        self.0.lock().refused = Some((part, code));
    }

    /// Returns the successful writes to paths with this part.
    pub(crate) fn writes(&self, part: &str) -> Vec<Write> {
        let state = self.0.lock();
        let writes = state.writes.iter();
        writes
            .filter(|write| write.path.contains(part))
            .cloned()
            .collect()
    }

    async fn serve(&self, client: &'static str, request: Request<Body>) -> Response<Full<Bytes>> {
        let fault = self.0.lock().faults.get(client).copied();
        match fault {
            Some(Fault::Lost) => std::future::pending().await,
            Some(Fault::Status(code)) => return status(code, "scripted"),
            Some(Fault::Slow(delay)) => sleep(delay).await,
            Some(Fault::ResponseLost) | None => {}
        }
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let response = match parts.method {
            Method::GET => match self.get(&path) {
                Some(object) => json_response(&object),
                None => status(404, "not found"),
            },
            Method::PATCH => {
                let is_apply = parts.headers[http::header::CONTENT_TYPE]
                    .to_str()
                    .unwrap()
                    .contains("apply-patch");
                let body: Value = serde_json::from_slice(&body).unwrap();
                self.patch(client, path, query, &body, is_apply)
            }
            method => panic!("{method} {path}"),
        };
        if let Some(Fault::ResponseLost) = fault {
            std::future::pending::<()>().await;
        }
        response
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
        if let Some((part, code)) = state.refused
            && path.contains(part)
        {
            return status(code, "scripted");
        }
        let object = path.strip_suffix("/status").unwrap_or(&path).to_owned();
        let version = body["metadata"]["resourceVersion"].as_str();
        let before = state.objects.get(&object).cloned();
        let mut after = match before {
            None if is_apply => json!({}),
            None => return status(404, "not found"),
            Some(before) => {
                let current = before["metadata"]["resourceVersion"].as_str();
                if version.is_some() && version != current {
                    return status(409, "the object has been modified");
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
        state.version += 1;
        after["metadata"]["resourceVersion"] = state.version.to_string().into();
        state.objects.insert(object, after.clone());
        state.writes.push(Write {
            client,
            path,
            query,
            body: body.clone(),
        });
        json_response(&after)
    }
}

/// A JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn status(code: u16, message: &str) -> Response<Full<Bytes>> {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "Scripted",
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    let mut response = json_response(&body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

fn json_response(body: &Value) -> Response<Full<Bytes>> {
    Response::new(Full::new(body.to_string().into()))
}
