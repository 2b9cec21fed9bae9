//! The first message of a viewer, and the call of the tap API that it asks for.

use mesh_api::linkerd2::tap::TapByResourceRequest;
use mesh_api::linkerd2::tap::tap_by_resource_request::r#match::{
    Http, Match as Condition, Seq, http as http_match,
};
use mesh_api::linkerd2::tap::tap_by_resource_request::{Extract, Match, extract};
use mesh_api::linkerd2::viz::{Resource, ResourceSelection};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::query::canonical_type;
use crate::tap::Target;

/// The parameters of Linkerd's dashboard.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct TapParams {
    /// How Linkerd's page names the request to itself.
    #[serde(rename = "id")]
    _id: Option<IgnoredAny>,
    /// `<type>/<name>`, or `<type>` of a namespace.
    resource: String,
    namespace: String,
    to_resource: String,
    to_namespace: String,
    /// Requests per second over all pods; 0 for 100.
    max_rps: f32,
    scheme: String,
    method: String,
    authority: String,
    path: String,
    label_selector: String,
    /// Whether events have header fields.
    extract: bool,
    /// Whether a message tells how many events have been dropped; only known to this dashboard.
    report_drops: bool,
}

/// A call of the tap API.
#[derive(Debug, PartialEq)]
pub(super) struct TapCall {
    pub(super) path: String,
    pub(super) message: TapByResourceRequest,
}

/// A name in Kubernetes.
const MAX_NAME: usize = 253;

impl TapParams {
    pub(super) fn reports_drops(&self) -> bool {
        self.report_drops
    }

    /// Returns the call, or the error in the parameters.
    pub(super) fn request(&self) -> Result<TapCall, String> {
        let resource = resource(&self.resource, &self.namespace)?;
        let target =
            Target::from_message(&resource).map_err(|status| status.message().to_owned())?;
        if !target.is_complete() {
            return Err("expected the resource as <type>/<name>, such as deploy/web".to_owned());
        }
        Ok(TapCall {
            path: target.path(),
            message: TapByResourceRequest {
                target: Some(ResourceSelection {
                    resource: Some(resource),
                    label_selector: self.label_selector.clone(),
                }),
                r#match: Some(Match {
                    r#match: Some(Condition::All(Seq {
                        matches: self.conditions()?,
                    })),
                }),
                max_rps: self.max_rps,
                extract: self.extract.then(headers),
            },
        })
    }

    fn conditions(&self) -> Result<Vec<Match>, String> {
        let mut conditions = Vec::new();
        if !self.to_resource.is_empty() {
            let namespace = match self.to_namespace.as_str() {
                "" => &self.namespace,
                namespace => namespace,
            };
            conditions.push(Condition::Destinations(ResourceSelection {
                resource: Some(resource(&self.to_resource, namespace)?),
                label_selector: String::new(),
            }));
        }
        let http = [
            (&self.scheme, http_match::Match::Scheme as fn(String) -> _),
            (&self.method, http_match::Match::Method),
            (&self.authority, http_match::Match::Authority),
            (&self.path, http_match::Match::Path),
        ];
        let given = http.into_iter().filter(|(value, _)| !value.is_empty());
        conditions.extend(given.map(|(value, condition)| {
            Condition::Http(Http {
                r#match: Some(condition(value.clone())),
            })
        }));
        let conditions = conditions.into_iter();
        Ok(conditions
            .map(|condition| Match {
                r#match: Some(condition),
            })
            .collect())
    }
}

fn headers() -> Extract {
    let headers = extract::http::Extract::Headers(extract::http::Headers {});
    Extract {
        extract: Some(extract::Extract::Http(extract::Http {
            extract: Some(headers),
        })),
    }
}

/// Parses `<type>/<name>` or `<type>`. Names become parts of a path.
fn resource(text: &str, namespace: &str) -> Result<Resource, String> {
    let (kind, name) = text.split_once('/').unwrap_or((text, ""));
    let kind = canonical_type(kind)?;
    for name in [name, namespace] {
        let is_name = name.len() <= MAX_NAME
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
        if !is_name {
            let name: String = name.chars().take(40).collect();
            return Err(format!("{name:?} is not a name"));
        }
    }
    let namespace = match (kind.as_str(), namespace) {
        ("namespace", _) => "",
        (_, "") => "default",
        (_, namespace) => namespace,
    };
    Ok(Resource {
        namespace: namespace.to_owned(),
        r#type: kind,
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(json: &str) -> Result<TapCall, String> {
        let params: TapParams = serde_json::from_str(json).map_err(|error| error.to_string())?;
        params.request()
    }

    #[test]
    fn parameters_of_linkerd_become_a_call() {
        let call = call(
            r#"{"id":"tap-web","resource":"deploy/web","namespace":"shop","toResource":"job/import",
            "maxRps":5.5,"method":"GET","path":"/a","scheme":"http","authority":"web:80",
            "labelSelector":"a=b","extract":true}"#,
        )
        .unwrap();
        assert_eq!(
            call.path,
            "/apis/tap.linkerd.io/v1alpha1/watch/namespaces/shop/deployments/web/tap"
        );
        let message = call.message;
        assert_eq!(message.max_rps, 5.5);
        assert!(message.extract.is_some());
        let target = message.target.unwrap();
        assert_eq!(target.label_selector, "a=b");
        assert_eq!(target.resource.unwrap().r#type, "deployment");
        let Some(Condition::All(all)) = message.r#match.unwrap().r#match else {
            panic!();
        };
        let Some(Condition::Destinations(to)) = &all.matches[0].r#match else {
            panic!();
        };
        assert_eq!(to.resource.as_ref().unwrap().namespace, "shop");
        assert_eq!(all.matches.len(), 5);
    }

    #[test]
    fn namespaces_are_named_by_their_type() {
        let call = call(r#"{"resource":"ns/shop","namespace":"other"}"#).unwrap();
        assert_eq!(
            call.path,
            "/apis/tap.linkerd.io/v1alpha1/watch/namespaces/shop/tap"
        );
        assert_eq!(call.message.target.unwrap().resource.unwrap().namespace, "");
    }

    #[test]
    fn invalid_parameters_are_refused() {
        for (json, problem) in [
            ("{}", "not a type"),
            (r#"{"resource":"deploy"}"#, "<type>/<name>"),
            (r#"{"resource":"ns"}"#, "<type>/<name>"),
            (r#"{"resource":"deploy/a/b"}"#, "not a name"),
            (r#"{"resource":"deploy/a?b"}"#, "not a name"),
            (
                r#"{"resource":"deploy/a","namespace":"../x"}"#,
                "not a name",
            ),
            (r#"{"resource":"server/a"}"#, "unimplemented"),
            (
                r#"{"resource":"deploy/a","toResource":"x/y"}"#,
                "not a type",
            ),
            (r#"{"resource":"deploy/a","color":"red"}"#, "unknown field"),
            (r#"{"resource":1}"#, "invalid type"),
        ] {
            let error = call(json).unwrap_err();
            assert!(error.contains(problem), "{json}: {error}");
        }
    }
}
