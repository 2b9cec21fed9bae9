//! Lists and watches of the objects in memory, for tests of whole programs.

use std::convert::Infallible;
use std::fmt::Debug;
use std::net::SocketAddr;

use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::scripted::{Fault, Logged, ScriptedApi, refusal};
use super::{response, start};

/// The body of a response, which ends only if it is not a watch.
type ApiBody = UnsyncBoxBody<Bytes, Infallible>;

/// A kind, and the namespace of the objects or all.
#[derive(Debug, PartialEq, Eq)]
struct Collection<'a> {
    /// The group and the version, as `/api/v1`.
    api: String,
    namespace: Option<&'a str>,
    plural: &'a str,
}

impl ScriptedApi {
    /// Serves the objects with lists and watches on a port of the loopback until the runtime ends,
    /// to a client with this name, and returns the address. Of faults, lists and watches that begin
    /// have a status.
    pub async fn listen(&self, client: &'static str) -> SocketAddr {
        let api = self.clone();
        start(move |request| {
            let api = api.clone();
            async move { api.respond(client, request).await }
        })
        .await
    }

    async fn respond<B: Body<Error: Debug>>(
        &self,
        client: &'static str,
        request: Request<B>,
    ) -> Response<ApiBody> {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let collection = Collection::of(&path);
        match (request.method(), collection) {
            (&Method::GET, Some((collection, None))) if !self.has(&path) => {
                if let Some(Fault::Status(status)) = self.fault(client) {
                    refusal(status).map(BodyExt::boxed_unsync)
                } else if query.contains("watch=true") {
                    self.watch(path, query)
                } else {
                    self.list(&collection, &query).map(BodyExt::boxed_unsync)
                }
            }
            _ => {
                let response = self.serve(client, request).await;
                response.map(BodyExt::boxed_unsync)
            }
        }
    }

    fn fault(&self, client: &str) -> Option<Fault> {
        self.0.lock().faults.get(client).copied()
    }

    fn has(&self, path: &str) -> bool {
        self.0.lock().objects.contains_key(path)
    }

    fn list(&self, collection: &Collection<'_>, query: &str) -> Response<Full<Bytes>> {
        let state = self.0.lock();
        let items = state.objects.iter();
        let items = items.filter(|(path, _)| collection.has(path, query));
        let items = items.filter(|(_, object)| has_label(object, query));
        let items: Vec<&Value> = items.map(|(_, object)| object).collect();
        let number = |name| parameter(query, name)?.parse::<usize>().ok();
        let start = number("continue").unwrap_or_default().min(items.len());
        let limit = number("limit").unwrap_or(usize::MAX);
        let end = start.saturating_add(limit).min(items.len());
        let mut metadata = json!({ "resourceVersion": state.version.to_string() });
        if end < items.len() {
            metadata["continue"] = end.to_string().into();
        }
        let list = json!({
            "kind": "List",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": items[start..end],
        });
        response(StatusCode::OK, &list)
    }

    /// Responds with the changes after the version of the query.
    fn watch(&self, path: String, query: String) -> Response<ApiBody> {
        let version = parameter(&query, "resourceVersion");
        let mut version: u64 = version.and_then(|it| it.parse().ok()).unwrap_or_default();
        let (frames, sent) = mpsc::channel(1);
        let api = self.clone();
        let mut changed = self.0.lock().changed.subscribe();
        tokio::spawn(async move {
            loop {
                let events = api.events(&path, &query, &mut version);
                let frame = Ok(Frame::data(Bytes::from(events)));
                if frames.send(frame).await.is_err() || changed.changed().await.is_err() {
                    return;
                }
            }
        });
        let body = StreamBody::new(ReceiverStream::new(sent));
        Response::new(BodyExt::boxed_unsync(body))
    }

    fn events(&self, path: &str, query: &str, version: &mut u64) -> String {
        let state = self.0.lock();
        let Some((collection, _)) = Collection::of(path) else {
            return String::new();
        };
        let new = state.log.iter().filter(|it| it.version > *version);
        let new = new.filter(|it| collection.has(&it.path, query));
        let lines = new.map(line).collect();
        *version = state.version;
        lines
    }
}

/// An API server sends the type first, so that clients need not buffer the object.
fn line(Logged { event, object, .. }: &Logged) -> String {
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n")
}

impl<'a> Collection<'a> {
    /// Returns the collection of a path, and the name of an object or of what lies below it.
    fn of(path: &'a str) -> Option<(Self, Option<&'a str>)> {
        let mut parts = path.split('/').skip(1);
        let api = match parts.next()? {
            "api" => format!("/api/{}", parts.next()?),
            "apis" => format!("/apis/{}/{}", parts.next()?, parts.next()?),
            _ => return None,
        };
        let parts: Vec<&str> = parts.collect();
        let (namespace, plural, name) = match parts[..] {
            ["namespaces", namespace, plural, ref rest @ ..] => {
                (Some(namespace), plural, rest.first().copied())
            }
            [plural, ref rest @ ..] => (None, plural, rest.first().copied()),
            [] => return None,
        };
        let collection = Self {
            api,
            namespace,
            plural,
        };
        Some((collection, name))
    }

    /// Returns whether the object of a path is selected. Of selectors it knows the one of a name.
    fn has(&self, path: &str, query: &str) -> bool {
        let Some((of, Some(name))) = Collection::of(path) else {
            return false;
        };
        let fields = parameter(query, "fieldSelector").unwrap_or_default();
        let selected = fields.strip_prefix("metadata.name%3D");
        of.api == self.api
            && of.plural == self.plural
            && (self.namespace.is_none() || of.namespace == self.namespace)
            && selected.is_none_or(|selected| selected == name)
    }
}

/// Returns whether an object of a list is selected. Of selectors of labels it knows the one of
/// existence.
fn has_label(object: &Value, query: &str) -> bool {
    let selector = parameter(query, "labelSelector").unwrap_or_default();
    let label = selector.replace("%2F", "/");
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"./-".contains(&byte);
    !label.bytes().all(is_key) || label.is_empty() || !object["metadata"]["labels"][label].is_null()
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut parameters = query.split('&');
    parameters.find_map(|it| it.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_selected_by_a_label() {
        let labelled = json!({ "metadata": { "labels": { "a.example/b": "c" } } });
        let other = json!({ "metadata": {} });
        for (query, selects_other) in [
            ("", true),
            ("labelSelector=a.example%2Fb", false),
            ("labelSelector=a.example%2Fb%3Dc", true),
        ] {
            assert!(has_label(&labelled, query));
            assert_eq!(has_label(&other, query), selects_other, "{query}");
        }
    }

    #[test]
    fn objects_belong_to_collections_of_their_namespace_and_of_all() {
        let has = |collection: &str, path: &str, query: &str| {
            let (collection, name) = Collection::of(collection).unwrap();
            assert_eq!(name, None);
            collection.has(path, query)
        };
        let web = "/api/v1/namespaces/shop/services/web";
        assert!(has("/api/v1/services", web, ""));
        assert!(has("/api/v1/namespaces/shop/services", web, ""));
        assert!(!has("/api/v1/namespaces/bank/services", web, ""));
        assert!(!has("/api/v1/endpoints", web, ""));
        assert!(!has("/apis/apps/v1/services", web, ""));
        let selected = "a=b&fieldSelector=metadata.name%3Dweb";
        assert!(has("/api/v1/services", web, selected));
        assert!(!has("/api/v1/services", &format!("{web}-1"), selected));
        let shop = "/api/v1/namespaces/shop";
        assert!(has("/api/v1/namespaces", shop, ""));
        assert!(!has("/api/v1/namespaces", web, ""));
    }
}
