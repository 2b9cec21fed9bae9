//! `AdmissionReview`: the request of the API server and the response.
//!
//! `v1` and `v1beta1` have the same fields; the response has the version of the request. Only the
//! used fields are parsed. The texts that a response repeats are short, and values parsed from a
//! body are charged to the [memory of the review](ReviewMemory).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Bytes;
use mesh_k8s::inject::Patch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::memory::Refusal;
pub use super::memory::ReviewMemory;
use super::metered::Metered;

mod text;

/// The request to review an object before it is stored.
#[derive(Debug)]
pub struct AdmissionRequest {
    pub kind: Kind,
    /// `None` for cluster-scoped objects.
    pub namespace: Option<String>,
    /// `CREATE`, `UPDATE`, …
    pub operation: String,
    /// Whether the object will not be stored, so that the review must have no side effects.
    pub dry_run: Option<bool>,
    /// The JSON of the object, a part of the body.
    object: Bytes,
    memory: Arc<ReviewMemory>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Kind {
    /// Empty for the core group.
    #[serde(deserialize_with = "text::group")]
    pub group: String,
    #[serde(deserialize_with = "text::kind")]
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
#[derive(Debug)]
pub struct ReviewHeader {
    api_version: &'static str,
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
    #[error(
        "the body is not JSON, and has more than the {} KiB that YAML may have; send JSON",
        MAX_YAML >> 10
    )]
    LongYaml,
    #[error("the body cannot be parsed: {0}")]
    Memory(Refusal),
    #[error(
        "expected an AdmissionReview of {} or {}, got {kind:?} of {api_version:?}",
        VERSIONS[0], VERSIONS[1]
    )]
    Kind { api_version: String, kind: String },
    #[error("the review has no request, or a request without uid")]
    NoRequest,
}

/// A review as the API server sends it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(deserialize_with = "text::api_version")]
    api_version: String,
    #[serde(deserialize_with = "text::kind")]
    kind: String,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Request<'a> {
    #[serde(deserialize_with = "text::uid")]
    uid: String,
    kind: Kind,
    #[serde(deserialize_with = "text::namespace")]
    namespace: Option<String>,
    #[serde(deserialize_with = "text::operation")]
    operation: String,
    dry_run: Option<bool>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
}

const KIND: &str = "AdmissionReview";

const VERSIONS: [&str; 2] = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"];

/// The API server truncates warnings to this total length.
const MAX_WARNINGS: usize = 4096;

/// The length of a review in YAML, which only users send.
const MAX_YAML: usize = 32 * 1024;

/// The memory that the parser of YAML takes for each byte, at most: it reads all events of a text
/// into memory, with their positions and tags, and one byte may begin and end a list.
const YAML_FACTOR: usize = 512;

/// The length of a problem, which may quote a text of the body.
const MAX_PROBLEM: usize = 1024;

/// Reads a body. `memory` is charged for values parsed from it, and has been for the body.
///
/// # Errors
///
/// The body is not a review, or is too large to be parsed.
pub fn parse(
    body: Bytes,
    memory: Arc<ReviewMemory>,
) -> Result<(AdmissionRequest, ReviewHeader), ReviewError> {
    let body = if body.trim_ascii_start().starts_with(b"{") {
        body
    } else {
        // API servers send JSON. Linkerd's webhook also accepts YAML, for manual requests.
        json_of_yaml(&body, &memory)?
    };
    let Body {
        api_version,
        kind,
        request,
    } = serde_json::from_slice(&body).map_err(ReviewError::Json)?;
    let known = VERSIONS.into_iter().find(|known| *known == api_version);
    let Some(known) = known.filter(|_| kind == KIND) else {
        return Err(ReviewError::Kind { api_version, kind });
    };
    let request = request
        .filter(|request| !request.uid.is_empty())
        .ok_or(ReviewError::NoRequest)?;
    let header = ReviewHeader {
        api_version: known,
        uid: request.uid,
    };
    let object = match request.object {
        Some(object) => body.slice_ref(object.get().as_bytes()),
        None => Bytes::from_static(b"null"),
    };
    let review = AdmissionRequest {
        kind: request.kind,
        namespace: request.namespace,
        operation: request.operation,
        dry_run: request.dry_run,
        object,
        memory,
    };
    Ok((review, header))
}

/// Converts a review in YAML.
fn json_of_yaml(yaml: &[u8], memory: &ReviewMemory) -> Result<Bytes, ReviewError> {
    if yaml.len() > MAX_YAML {
        return Err(ReviewError::LongYaml);
    }
    if has_anchor(yaml) {
        return Err(ReviewError::Anchors);
    }
    memory
        .charge(yaml.len() * YAML_FACTOR)
        .map_err(ReviewError::Memory)?;
    let document = serde_norway::Deserializer::from_slice(yaml);
    let value = Value::deserialize(Metered::new(document, memory)).map_err(|error| {
        let refusal = memory.refusal().map(ReviewError::Memory);
        refusal.unwrap_or(ReviewError::Yaml(error))
    })?;
    let json = serde_json::to_vec(&value).map_err(ReviewError::Json)?;
    memory.charge(json.len()).map_err(ReviewError::Memory)?;
    Ok(json.into())
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

/// Returns the beginning of the description of a problem.
pub(super) fn shortened(mut problem: String) -> String {
    if problem.len() > MAX_PROBLEM {
        problem.truncate(problem.floor_char_boundary(MAX_PROBLEM));
        problem.push('…');
        problem.shrink_to_fit();
    }
    problem
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
        api_version: header.api_version,
        kind: KIND,
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
    /// needs, and keeps the review until it has dropped the object, whose memory belongs to it.
    ///
    /// # Errors
    ///
    /// The object is not of the type, or there is not enough memory for it.
    pub fn object<T: DeserializeOwned>(&self) -> Result<T, String> {
        let mut json = serde_json::Deserializer::from_slice(&self.object);
        let read = self.memory.charge(size_of::<T>()).map_or_else(
            |refusal| Err(refusal.to_string()),
            |()| {
                let read = T::deserialize(Metered::new(&mut json, &*self.memory));
                read.map_err(|error| match self.memory.refusal() {
                    Some(refusal) => refusal.to_string(),
                    None => error.to_string(),
                })
            },
        );
        read.map_err(|problem| shortened(format!("cannot read the {}: {problem}", self.kind.kind)))
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
mod tests;
