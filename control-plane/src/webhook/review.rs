//! `AdmissionReview`: what the API server asks, and how it is answered.
//!
//! `v1` and `v1beta1` have the same fields; the answer bears the version of the question. Only what
//! a reviewer looks at is read.

use json_patch::Patch;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An object about to be stored.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Review {
    pub(crate) uid: String,
    pub(crate) kind: Kind,
    /// Absent for objects that are in no namespace.
    pub(crate) namespace: Option<String>,
    /// `CREATE`, `UPDATE`, …
    pub(crate) operation: String,
    /// Nothing may be changed but the object: it will not be stored.
    pub(crate) dry_run: Option<bool>,
    pub(crate) object: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Kind {
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) kind: String,
}

/// What becomes of the object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    /// Why the object must not be stored.
    pub(crate) denied: Option<String>,
    pub(crate) patch: Patch,
    /// Shown to whoever stores the object.
    pub(crate) warnings: Vec<String>,
}

/// What the answer repeats.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head {
    api_version: String,
    kind: String,
    #[serde(skip)]
    uid: String,
}

/// Why a body is no review.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviewError {
    #[error("the body is not the JSON of an AdmissionReview: {0}")]
    Json(#[source] serde_json::Error),
    #[error("the body is neither JSON nor YAML of an AdmissionReview: {0}")]
    Yaml(#[source] serde_norway::Error),
    #[error(
        "the body is YAML with anchors, which are not read because they can make a small text large: write the values out"
    )]
    Anchors,
    #[error("expected an AdmissionReview of admission.k8s.io, got {kind:?} of {api_version:?}")]
    Kind { api_version: String, kind: String },
    #[error("the review has no request, or one without uid")]
    NoRequest,
}

/// More text than this the API server cuts off, all warnings together.
const MAX_WARNINGS: usize = 4096;

pub(crate) fn read(body: &[u8]) -> Result<(Review, Head), ReviewError> {
    #[derive(Deserialize)]
    struct Body {
        #[serde(flatten)]
        head: Head,
        request: Option<Review>,
    }
    let Body { mut head, request } = if body.trim_ascii_start().starts_with(b"{") {
        serde_json::from_slice(body).map_err(ReviewError::Json)?
    } else if has_anchor(body) {
        return Err(ReviewError::Anchors);
    } else {
        // API servers send JSON. Linkerd's webhook reads YAML too, which people and tools send by
        // hand.
        serde_norway::from_slice(body).map_err(ReviewError::Yaml)?
    };
    if head.kind != "AdmissionReview" || !head.api_version.starts_with("admission.k8s.io/") {
        return Err(ReviewError::Kind {
            api_version: head.api_version,
            kind: head.kind,
        });
    }
    let review = request
        .filter(|request| !request.uid.is_empty())
        .ok_or(ReviewError::NoRequest)?;
    head.uid.clone_from(&review.uid);
    Ok((review, head))
}

/// Looks for `&name` where a YAML value may begin. May take text inside of a string for it, never
/// the other way round.
fn has_anchor(body: &[u8]) -> bool {
    let begins = |before: u8| before.is_ascii_whitespace() || b"[{,:-?!".contains(&before);
    body.first() == Some(&b'&')
        || body
            .windows(3)
            .any(|at| begins(at[0]) && at[1] == b'&' && !at[2].is_ascii_whitespace())
}

pub(crate) fn answer(head: &Head, verdict: &Verdict) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer<'a> {
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
    let patch = match &verdict.patch {
        Patch(operations) if operations.is_empty() => None,
        patch => {
            use base64::{Engine as _, engine::general_purpose::STANDARD};
            Some(STANDARD.encode(serde_json::to_vec(patch)?))
        }
    };
    let denied = verdict.denied.as_deref();
    let answer = Answer {
        api_version: &head.api_version,
        kind: &head.kind,
        response: Response {
            uid: &head.uid,
            allowed: denied.is_none(),
            status: denied.map(|message| Status { code: 400, message }),
            patch_type: patch.as_ref().map(|_| "JSONPatch"),
            patch,
            warnings: first_warnings(&verdict.warnings),
        },
    };
    serde_json::to_vec(&answer)
}

/// As many as the API server passes on.
fn first_warnings(warnings: &[String]) -> &[String] {
    let mut left = MAX_WARNINGS;
    let fits = warnings.iter().take_while(|warning| {
        let fits = warning.len() <= left;
        left = left.saturating_sub(warning.len());
        fits
    });
    &warnings[..fits.count()]
}

impl Verdict {
    pub(crate) fn allow() -> Self {
        Self::default()
    }

    pub(crate) fn deny(reason: String) -> Self {
        Self {
            denied: Some(reason),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn both_versions_are_read_and_answered_in_kind() {
        for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
            let (review, head) = read(&body(version)).unwrap();
            assert_eq!(
                (review.kind.kind.as_str(), review.dry_run),
                ("Pod", Some(true))
            );
            assert_eq!(review.object["metadata"]["name"], "web");
            let verdict = Verdict {
                patch: serde_json::from_value(json!([{"op": "add", "path": "/a", "value": 1}]))
                    .unwrap(),
                warnings: vec!["w".into(), "x".repeat(MAX_WARNINGS)],
                denied: None,
            };
            let answer: Value = serde_json::from_slice(&answer(&head, &verdict).unwrap()).unwrap();
            let expect = json!({
                "apiVersion": version,
                "kind": "AdmissionReview",
                "response": {
                    "uid": "u1",
                    "allowed": true,
                    "patchType": "JSONPatch",
                    "patch": "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d",
                    "warnings": ["w"],
                },
            });
            assert_eq!(answer, expect);
        }
    }

    #[test]
    fn yaml_is_read_without_anchors() {
        let json: Value = serde_json::from_slice(&body("admission.k8s.io/v1")).unwrap();
        let yaml = serde_norway::to_string(&json).unwrap();
        let (review, _) = read(yaml.as_bytes()).unwrap();
        assert_eq!(review, read(&body("admission.k8s.io/v1")).unwrap().0);
        // Ten lines of ten references each would be ten thousand million items.
        let bomb = "a: &a [x, x]\nb: &b [*a, *a]\napiVersion: admission.k8s.io/v1\n";
        assert!(matches!(read(bomb.as_bytes()), Err(ReviewError::Anchors)));
        let text = "metadata: {name: a & b}";
        assert!(!has_anchor(text.as_bytes()) && has_anchor(b"&a b"));
    }

    #[test]
    fn a_denial_has_a_reason_and_no_patch() {
        let (_, head) = read(&body("admission.k8s.io/v1")).unwrap();
        let verdict = Verdict {
            denied: Some("no".into()),
            ..Verdict::default()
        };
        let answer: Value = serde_json::from_slice(&answer(&head, &verdict).unwrap()).unwrap();
        let expect =
            json!({"uid": "u1", "allowed": false, "status": {"code": 400, "message": "no"}});
        assert_eq!(answer["response"], expect);
    }

    #[test]
    fn what_is_no_review_is_said() {
        let error = |body: &str| read(body.as_bytes()).unwrap_err().to_string();
        assert!(error("{").contains("not the JSON"));
        assert!(error("a: [").contains("neither JSON nor YAML"));
        assert!(error(r#"{"apiVersion": "v1", "kind": "Pod"}"#).contains("\"Pod\""));
        let head = r#""apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview""#;
        assert!(error(&format!("{{{head}}}")).contains("no request"));
        assert!(error(&format!("{{{head}, \"request\": {{}}}}")).contains("without uid"));
    }
}
