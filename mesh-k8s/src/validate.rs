//! The verdicts of the validating webhooks, as pure functions of a submitted object.
//!
//! They read the JSON of the object and not its type, so that all its errors are reported at once,
//! each with the path and the value of its field. The verdicts are Linkerd's: a policy resource
//! that its type cannot represent is denied; a route of the Gateway API is admitted then, because
//! its API may be newer than this program, and other controllers may serve the route.
//!
//! The webhooks of `mesh-controller policy` and `mesh-controller sp-validator` call them.

use std::fmt;

use serde_json::Value;

use self::node::{Findings, Node};
pub use self::service_profile::service_profile;
pub use crate::invalid::{Invalid, summary};

mod authorization;
mod egress_network;
mod grpc_route;
mod http_route;
mod identity;
mod networks;
mod node;
mod rate_limit;
mod route;
mod selector;
mod server;
mod server_authorization;
mod service_profile;
mod target;

/// An object that a client creates or changes.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// The API group.
    pub group: &'a str,
    /// The kind.
    pub kind: &'a str,
    /// The namespace; empty for an object of the cluster.
    pub namespace: &'a str,
    /// The JSON of the object.
    pub object: &'a Value,
}

/// Why an object is denied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The webhook has no rules for the kind.
    #[error(
        "{kind} of group {group:?} is not validated by this webhook; remove it from the rules of the webhook configuration"
    )]
    UnknownKind {
        /// The API group.
        group: String,
        /// The kind.
        kind: String,
    },
    /// The object has errors.
    #[error(transparent)]
    Invalid(#[from] InvalidObject),
}

/// An invalid object with its errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidObject {
    /// Kind, namespace and name: `Server shop/web`.
    pub object: String,
    /// The first errors, in the order of the fields.
    pub errors: Vec<FieldError>,
    /// The number of further errors.
    pub omitted: usize,
}

/// An error of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the field: `spec.networks[0].cidr`.
    pub field: String,
    /// The JSON of the value, shortened; absent if the field is missing.
    pub value: Option<String>,
    /// The problem, a clause without subject: `is not a port number`.
    pub problem: String,
    /// What to do about it, in the imperative; empty if the problem says it.
    pub fix: String,
}

/// How a resource is validated.
#[derive(Clone, Copy)]
enum Mode {
    /// An object that its type cannot represent is denied.
    Strict,
    /// An object that its type cannot represent is admitted.
    Lenient,
}

type Rules = fn(&Node<'_>);

const POLICY: &str = crate::crd::GROUP;

const GATEWAY: &str = "gateway.networking.k8s.io";

/// The kinds of the policy validator. Groups and kinds are compared without regard to case, and
/// every version of a kind has the same rules, as in Linkerd.
const POLICY_KINDS: [(&str, &str, Mode, Rules); 12] = [
    (
        POLICY,
        "AuthorizationPolicy",
        Mode::Strict,
        authorization::authorization_policy,
    ),
    (
        POLICY,
        "MeshTLSAuthentication",
        Mode::Strict,
        authorization::mesh_tls_authentication,
    ),
    (
        POLICY,
        "NetworkAuthentication",
        Mode::Strict,
        authorization::network_authentication,
    ),
    (POLICY, "Server", Mode::Strict, server::server),
    (
        POLICY,
        "ServerAuthorization",
        Mode::Strict,
        server_authorization::server_authorization,
    ),
    (
        POLICY,
        "EgressNetwork",
        Mode::Strict,
        egress_network::egress_network,
    ),
    (
        POLICY,
        "HTTPLocalRateLimitPolicy",
        Mode::Strict,
        rate_limit::rate_limit_policy,
    ),
    (POLICY, "HTTPRoute", Mode::Strict, http_route::policy),
    (GATEWAY, "HTTPRoute", Mode::Lenient, http_route::gateway),
    (GATEWAY, "GRPCRoute", Mode::Lenient, grpc_route::gateway),
    (GATEWAY, "TLSRoute", Mode::Lenient, route::connections),
    (GATEWAY, "TCPRoute", Mode::Lenient, route::connections),
];

/// Validates an object of the kinds of `policy.linkerd.io`, or a route of the Gateway API.
///
/// # Errors
///
/// The object is invalid, or of another kind.
pub fn policy(submission: Submission<'_>) -> Result<(), Denied> {
    let found = POLICY_KINDS.iter().find(|(group, kind, _, _)| {
        group.eq_ignore_ascii_case(submission.group) && kind.eq_ignore_ascii_case(submission.kind)
    });
    match found {
        Some((_, _, mode, rules)) => validate(submission, *mode, *rules),
        None => Err(unknown_kind(submission)),
    }
}

/// Validates a ServiceProfile.
///
/// # Errors
///
/// The object is invalid, or of another kind.
pub fn profile(submission: Submission<'_>) -> Result<(), Denied> {
    let is_profile = submission.group.eq_ignore_ascii_case("linkerd.io")
        && submission.kind.eq_ignore_ascii_case("ServiceProfile");
    if !is_profile {
        return Err(unknown_kind(submission));
    }
    let Err(problems) = service_profile(submission.object) else {
        return Ok(());
    };
    let omitted = problems.len().saturating_sub(node::MAX_ERRORS);
    let errors = problems.into_iter().take(node::MAX_ERRORS);
    let errors = errors.map(|invalid| FieldError {
        field: shorten(&invalid.field),
        value: None,
        problem: invalid.problem,
        fix: String::new(),
    });
    Err(InvalidObject {
        object: object_name(submission),
        errors: errors.collect(),
        omitted,
    }
    .into())
}

fn unknown_kind(submission: Submission<'_>) -> Denied {
    Denied::UnknownKind {
        group: shorten(submission.group),
        kind: shorten(submission.kind),
    }
}

fn validate(submission: Submission<'_>, mode: Mode, rules: Rules) -> Result<(), Denied> {
    let findings = Findings::new(submission.namespace);
    let root = Node::root(submission.object, &findings);
    if root.is_object() {
        rules(&root);
    } else {
        root.malformed(
            "is not an object",
            "submit an object with metadata and spec",
        );
    }
    let admitted = findings.is_clean() || matches!(mode, Mode::Lenient) && findings.is_malformed();
    if admitted {
        return Ok(());
    }
    let (errors, omitted) = findings.into_errors();
    Err(InvalidObject {
        object: object_name(submission),
        errors,
        omitted,
    }
    .into())
}

/// Returns kind, namespace and name.
fn object_name(submission: Submission<'_>) -> String {
    let name = |pointer| submission.object.pointer(pointer).and_then(Value::as_str);
    // Without a name yet if the API server is to generate one.
    let name = name("/metadata/name").or_else(|| name("/metadata/generateName"));
    let kind = shorten(submission.kind);
    let name = shorten(name.unwrap_or("without name"));
    match submission.namespace {
        "" => format!("{kind} {name}"),
        namespace => format!("{kind} {}/{name}", shorten(namespace)),
    }
}

/// Bounds a name in a message.
fn shorten(text: &str) -> String {
    node::excerpt(text)
}

impl std::error::Error for InvalidObject {}

impl fmt::Display for InvalidObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is invalid: ", self.object)?;
        if let ([error], 0) = (self.errors.as_slice(), self.omitted) {
            return error.fmt(f);
        }
        write!(f, "{} errors", self.errors.len() + self.omitted)?;
        for error in &self.errors {
            write!(f, "\n* {error}")?;
        }
        if self.omitted > 0 {
            write!(f, "\n* and {} more", self.omitted)?;
        }
        Ok(())
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.field)?;
        if let Some(value) = &self.value {
            write!(f, "{value} ")?;
        }
        f.write_str(&self.problem)?;
        match self.fix.as_str() {
            "" => Ok(()),
            fix => write!(f, "; {fix}"),
        }
    }
}

#[cfg(test)]
mod tests;
