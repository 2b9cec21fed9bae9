//! Rows of `check` for the findings of `meshctl analyze` that explain failing traffic.

use mesh_core::annotation::EXTENSION;
use mesh_k8s::kinds::{Namespace, ResourceExt as _};

use super::framework::{CheckResult, Finding, Outcome};
use crate::analyze;
use crate::facts::{Facts, OwnNamespaces};

/// A row with the findings that have one of some codes.
pub(super) struct Rows {
    pub(super) codes: &'static [&'static str],
    pub(super) is_shown: fn(&analyze::Finding) -> bool,
}

/// What a policy or route refers to does not exist, or cannot be referred to.
pub(super) const REFERENCES: Rows = Rows::all(&["missing-reference", "attaches-nowhere"]);

pub(super) const SERVER_PORTS: Rows = Rows::all(&["duplicate-port"]);

/// Policies for ports whose connections bypass the proxy of the server or the client.
pub(super) const SKIPPED_PORTS: Rows = Rows::all(&["skipped-port"]);

pub(super) const DEFAULT_DENY: Rows = Rows::all(&["default-deny"]);

pub(super) const IDENTITIES: Rows = Rows::all(&["foreign-identity"]);

pub(super) const ACCOUNTS: Rows = Rows::all(&["missing-account", "unmeshed-account"]);

pub(super) const TIMEOUTS: Rows = Rows::all(&["timeout-order"]);

pub(super) const GRACE_PERIODS: Rows = Rows::all(&["grace-period"]);

/// A policy or route that another one replaces, that cannot apply, or whose requests all fail.
pub(super) const EFFECTS: Rows = Rows {
    codes: &["conflict", "never-matches", "no-backend", "no-effect"],
    // An authentication that no policy requires breaks nothing; annotations have their own row.
    is_shown: |finding| !finding.field.is_empty() && !is_annotation(finding),
};

pub(super) const INVALID: Rows = Rows {
    codes: &["invalid"],
    is_shown: |finding| !is_annotation(finding),
};

pub(super) const SERVERS: Rows = Rows {
    codes: &["selects-nothing"],
    is_shown: |finding| finding.kind != "Service",
};

pub(super) const SERVICES: Rows = Rows {
    codes: &["selects-nothing", "no-such-port"],
    is_shown: |finding| finding.kind == "Service",
};

/// Annotations that have no effect where they are, do not exist or have invalid values.
pub(super) const ANNOTATIONS: Rows = Rows {
    codes: &["unknown-annotation", "no-effect", "invalid"],
    is_shown: is_annotation,
};

fn is_annotation(finding: &analyze::Finding) -> bool {
    finding.field.contains("metadata.annotations[")
}

impl Rows {
    const fn all(codes: &'static [&'static str]) -> Self {
        Self {
            codes,
            is_shown: |_finding| true,
        }
    }

    /// Returns the findings about users' objects of the scope. Other rows report the faults that
    /// cause findings about the mesh's own objects.
    pub(super) fn findings(&self, facts: &Facts) -> Result<Vec<Finding>, String> {
        let own = facts.own_namespaces();
        let all = facts.analysis()?.iter();
        let shown = all.filter(|finding| {
            self.codes.contains(&finding.code)
                && (self.is_shown)(finding)
                && (finding.namespace.is_empty() || facts.scope.contains(&finding.namespace))
                && !is_of_mesh(facts, &own, &finding.namespace)
        });
        Ok(shown.map(of_analysis).collect())
    }

    pub(super) fn fail(&self, facts: &Facts) -> CheckResult {
        Ok(Outcome::fail_if(self.findings(facts)?, ""))
    }

    pub(super) fn warn(&self, facts: &Facts) -> CheckResult {
        Ok(Outcome::warn_if(self.findings(facts)?, ""))
    }

    /// Does the same for findings that depend on the values of the installation.
    pub(super) fn warn_by_values(&self, facts: &Facts) -> CheckResult {
        facts.values()?;
        self.warn(facts)
    }
}

/// Returns whether the control plane, the agents or an extension run in the namespace.
fn is_of_mesh(facts: &Facts, own: &OwnNamespaces<'_>, name: &str) -> bool {
    let extension = |namespace: &Namespace| namespace.labels().contains_key(EXTENSION);
    own.contain(name) || facts.namespace(name).is_some_and(extension)
}

fn of_analysis(finding: &analyze::Finding) -> Finding {
    let field = match &*finding.field {
        "" => String::new(),
        field => format!("{field}: "),
    };
    let kind = finding.kind.to_ascii_lowercase();
    // Two API groups have a kind HTTPRoute.
    let kind = match &*finding.group {
        "" => kind,
        group => format!("{kind}.{group}"),
    };
    let namespace = match &*finding.namespace {
        "" => String::new(),
        namespace => format!("-n {namespace} "),
    };
    let (fix, name) = (&finding.fix, &finding.name);
    let fix = if fix.contains("kubectl ") {
        // It names another object, which is the one to change.
        fix.clone()
    } else if finding.field.starts_with("metadata.name") {
        // Names and namespaces of objects cannot be edited.
        format!("{fix}, then kubectl {namespace}delete {kind} {name}")
    } else {
        format!("{fix}: kubectl {namespace}edit {kind} {name}")
    };
    Finding::new(format!("{}: {field}{}", finding.object(), finding.problem)).with_fix(fix)
}
