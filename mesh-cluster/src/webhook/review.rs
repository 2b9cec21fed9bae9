//! `AdmissionReview`: the request of the API server and the response.
//!
//! `v1` and `v1beta1` have the same fields; the response has the version of the request. Only the
//! used fields are parsed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mesh_k8s::inject::Patch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The request to review an object before it is stored.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AdmissionRequest {
    pub uid: String,
    pub kind: Kind,
    /// `None` for cluster-scoped objects.
    pub namespace: Option<String>,
    /// `CREATE`, `UPDATE`, …
    pub operation: String,
    /// Whether the object will not be stored, so that the review must have no side effects.
    pub dry_run: Option<bool>,
    object: Box<RawValue>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Kind {
    /// Empty for the core group.
    pub group: String,
    pub kind: String,
}

/// The decision about an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionDecision {
    /// Why the object is denied.
    pub denied: Option<String>,
    pub patch: Patch,
    /// Messages for the client that creates the object.
    pub warnings: Vec<String>,
}

/// The fields of the request that the response repeats.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReviewHeader {
    api_version: String,
    kind: String,
    #[serde(skip)]
    uid: String,
}

/// Why a body is not a valid review.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    #[error("the body is not the JSON of an AdmissionReview")]
    Json(#[source] serde_json::Error),
    #[error("the body is neither JSON nor YAML of an AdmissionReview")]
    Yaml(#[source] serde_norway::Error),
    #[error(
        "the body is YAML with anchors, which are not supported because a small text could expand to a large one"
    )]
    Anchors,
    #[error("expected an AdmissionReview of admission.k8s.io, got {kind:?} of {api_version:?}")]
    Kind { api_version: String, kind: String },
    #[error("the review has no request, or a request without uid")]
    NoRequest,
}

/// The API server truncates warnings to this total length.
const MAX_WARNINGS: usize = 4096;

pub fn parse(body: &[u8]) -> Result<(AdmissionRequest, ReviewHeader), ReviewError> {
    #[derive(Deserialize)]
    struct Body {
        #[serde(flatten)]
        header: ReviewHeader,
        request: Option<AdmissionRequest>,
    }
    let Body {
        mut header,
        request,
    } = if body.trim_ascii_start().starts_with(b"{") {
        serde_json::from_slice(body).map_err(ReviewError::Json)?
    } else if has_anchor(body) {
        return Err(ReviewError::Anchors);
    } else {
        // API servers send JSON. Linkerd's webhook also accepts YAML, for manual requests.
        let json: Value = serde_norway::from_slice(body).map_err(ReviewError::Yaml)?;
        serde_json::from_value(json).map_err(ReviewError::Json)?
    };
    if header.kind != "AdmissionReview" || !header.api_version.starts_with("admission.k8s.io/") {
        return Err(ReviewError::Kind {
            api_version: header.api_version,
            kind: header.kind,
        });
    }
    let review = request
        .filter(|request| !request.uid.is_empty())
        .ok_or(ReviewError::NoRequest)?;
    header.uid.clone_from(&review.uid);
    Ok((review, header))
}

/// Returns whether there is `&name` where a YAML value may start. May find one within a string, but
/// never misses an anchor.
fn has_anchor(body: &[u8]) -> bool {
    let may_start = |before: u8| before.is_ascii_whitespace() || b"[{,:-?!".contains(&before);
    body.first() == Some(&b'&')
        || body
            .windows(3)
            .any(|at| may_start(at[0]) && at[1] == b'&' && !at[2].is_ascii_whitespace())
}

pub fn encode_response(
    header: &ReviewHeader,
    decision: &AdmissionDecision,
) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ReviewResponse<'a> {
        api_version: &'a str,
        kind: &'a str,
        response: Response<'a>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Response<'a> {
        uid: &'a str,
        allowed: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<Status<'a>>,
        /// Base64, as Go writes bytes.
        #[serde(skip_serializing_if = "Option::is_none")]
        patch: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        patch_type: Option<&'static str>,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        warnings: &'a [String],
    }
    #[derive(Serialize)]
    struct Status<'a> {
        code: u16,
        message: &'a str,
    }
    let patch = &decision.patch;
    let patch = (!patch.is_empty()).then(|| STANDARD.encode(patch.as_str()));
    let denied = decision.denied.as_deref();
    let answer = ReviewResponse {
        api_version: &header.api_version,
        kind: &header.kind,
        response: Response {
            uid: &header.uid,
            allowed: denied.is_none(),
            status: denied.map(|message| Status { code: 400, message }),
            patch_type: patch.as_ref().map(|_| "JSONPatch"),
            patch,
            warnings: first_warnings(&decision.warnings),
        },
    };
    serde_json::to_vec(&answer)
}

/// Returns the warnings that the API server passes on.
fn first_warnings(warnings: &[String]) -> &[String] {
    let mut left = MAX_WARNINGS;
    let fits = warnings.iter().take_while(|warning| {
        let fits = warning.len() <= left;
        left = left.saturating_sub(warning.len());
        fits
    });
    &warnings[..fits.count()]
}

impl AdmissionRequest {
    /// Reads the object, which is null for deletions. A reviewer reads it once, as the type that it
    /// needs.
    pub fn object<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_str(self.object.get())
            .map_err(|error| format!("cannot read the {}: {error}", self.kind.kind))
    }
}

impl AdmissionDecision {
    pub fn allow() -> Self {
        Self::default()
    }

    pub fn deny(reason: String) -> Self {
        Self {
            denied: Some(reason),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::annotation;
    use mesh_k8s::inject::{Values, patch_service};
    use mesh_k8s::kinds::{ObjectMeta, Service};
    use serde_json::json;

    use super::*;

    fn body(api_version: &str) -> Vec<u8> {
        let review = json!({
            "apiVersion": api_version,
            "kind": "AdmissionReview",
            "request": {
                "uid": "u1",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "namespace": "shop",
                "operation": "CREATE",
                "userInfo": {"username": "me"},
                "object": {"metadata": {"name": "web"}},
                "oldObject": null,
                "dryRun": true,
            },
        });
        serde_json::to_vec(&review).unwrap()
    }

    #[test]
    fn response_has_version_of_request() {
        for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
            let (review, header) = parse(&body(version)).unwrap();
            assert_eq!(
                (review.kind.kind.as_str(), review.dry_run),
                ("Pod", Some(true))
            );
            let object: Value = review.object().unwrap();
            assert_eq!(object["metadata"]["name"], "web");
            let error = review.object::<Vec<Value>>().unwrap_err();
            assert!(error.starts_with("cannot read the Pod: "), "{error}");
            let mut namespace = ObjectMeta::default();
            let ports = (annotation::OPAQUE_PORTS.to_owned(), "5432".to_owned());
            namespace.annotations = Some([ports].into());
            let patch = patch_service(&Values::default(), &namespace, &Service::default());
            let encoded = STANDARD.encode(patch.as_str());
            let decision = AdmissionDecision {
                patch,
                warnings: vec!["w".into(), "x".repeat(MAX_WARNINGS)],
                denied: None,
            };
            let answer: Value =
                serde_json::from_slice(&encode_response(&header, &decision).unwrap()).unwrap();
            let expect = json!({
                "apiVersion": version,
                "kind": "AdmissionReview",
                "response": {
                    "uid": "u1",
                    "allowed": true,
                    "patchType": "JSONPatch",
                    "patch": encoded,
                    "warnings": ["w"],
                },
            });
            assert_eq!(answer, expect);
        }
    }

    #[test]
    fn yaml_is_accepted_without_anchors() {
        let json: Value = serde_json::from_slice(&body("admission.k8s.io/v1")).unwrap();
        let yaml = serde_norway::to_string(&json).unwrap();
        let (review, _) = parse(yaml.as_bytes()).unwrap();
        let (expected, _) = parse(&body("admission.k8s.io/v1")).unwrap();
        assert_eq!(format!("{review:?}"), format!("{expected:?}"));
        // Nested references expand exponentially.
        let bomb = "a: &a [x, x]\nb: &b [*a, *a]\napiVersion: admission.k8s.io/v1\n";
        assert!(matches!(parse(bomb.as_bytes()), Err(ReviewError::Anchors)));
        let text = "metadata: {name: a & b}";
        assert!(!has_anchor(text.as_bytes()) && has_anchor(b"&a b"));
    }

    #[test]
    fn denial_has_reason_and_no_patch() {
        let (_, header) = parse(&body("admission.k8s.io/v1")).unwrap();
        let decision = AdmissionDecision {
            denied: Some("no".into()),
            ..AdmissionDecision::default()
        };
        let answer: Value =
            serde_json::from_slice(&encode_response(&header, &decision).unwrap()).unwrap();
        let expect =
            json!({"uid": "u1", "allowed": false, "status": {"code": 400, "message": "no"}});
        assert_eq!(answer["response"], expect);
    }

    #[test]
    fn errors_name_reason_of_invalid_review() {
        let error = |body: &str| parse(body.as_bytes()).unwrap_err().to_string();
        assert!(error("{").contains("not the JSON"));
        assert!(error("a: [").contains("neither JSON nor YAML"));
        assert!(error(r#"{"apiVersion": "v1", "kind": "Pod"}"#).contains("\"Pod\""));
        let header = r#""apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview""#;
        assert!(error(&format!("{{{header}}}")).contains("no request"));
        assert!(error(&format!("{{{header}, \"request\": {{}}}}")).contains("without uid"));
    }
}
