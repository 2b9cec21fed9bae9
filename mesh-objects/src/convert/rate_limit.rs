//! HTTPLocalRateLimitPolicies.

use mesh_k8s::crd;
use mesh_k8s::kinds::ServiceAccount;

use super::policy::{kind_and_group, resolve_name};
use super::{ConvertError, created, name};
use crate::model::{Name, RateLimitPolicy};

pub(crate) fn rate_limit_policy(
    policy: &crd::HttpLocalRateLimitPolicy,
) -> Result<RateLimitPolicy, ConvertError> {
    let own = name(&policy.metadata);
    let spec = &policy.spec;
    if !spec.target_ref.targets::<crd::Server>() {
        return Err(ConvertError::new(
            "spec.targetRef",
            format!(
                "is {}; expected Server of group {:?}",
                kind_and_group(&spec.target_ref.kind, spec.target_ref.group.as_deref()),
                crd::GROUP
            ),
        ));
    }
    let total = spec.total.map(|rate| rate.requests_per_second);
    let identity = spec.identity.map(|rate| rate.requests_per_second);
    let checked =
        |field: String, rate: u32| check(rate, total).map_err(|error| error.inside(&field));
    for (field, rate) in [("total", total), ("identity", identity)] {
        if let Some(rate) = rate {
            checked(format!("spec.{field}"), rate)?;
        }
    }
    let overrides = spec.overrides.iter().flatten().enumerate();
    let overrides = overrides.map(|(at, entry)| {
        let field = format!("spec.overrides[{at}]");
        let clients = clients(&own, entry).map_err(|error| error.inside(&field))?;
        checked(field, entry.requests_per_second)?;
        Ok((clients, entry.requests_per_second))
    });
    Ok(RateLimitPolicy {
        created: created(&policy.metadata),
        server: spec.target_ref.name.as_str().into(),
        total,
        identity,
        overrides: overrides.collect::<Result<_, _>>()?,
        name: own,
    })
}

fn check(rate: u32, total: Option<u32>) -> Result<(), ConvertError> {
    let problem = match total {
        _ if rate == 0 => {
            "is 0; expected at least 1, and an AuthorizationPolicy to refuse clients".to_owned()
        }
        Some(total) if rate > total => {
            format!("is {rate}, more than total.requestsPerSecond; expected at most {total}")
        }
        _ => return Ok(()),
    };
    Err(ConvertError::new("requestsPerSecond", problem))
}

fn clients(own: &Name, entry: &crd::RateOverride) -> Result<Vec<Name>, ConvertError> {
    let references = entry.client_refs.iter().enumerate();
    let client = |(at, reference): (usize, &crd::NamespacedTargetRef)| {
        if reference.targets::<ServiceAccount>() {
            return Ok(resolve_name(own, reference));
        }
        Err(ConvertError::new(
            format!("clientRefs[{at}].kind"),
            format!("is {:?}; expected ServiceAccount", reference.kind),
        ))
    };
    references.map(client).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_field_is_named_with_its_fix() {
        let error = |spec: &str| {
            let spec = spec.replace(
                "SERVER",
                "targetRef: {group: policy.linkerd.io, kind: Server, name: web}",
            );
            let text = format!("metadata: {{name: a, namespace: shop}}\nspec: {spec}");
            let read: crd::HttpLocalRateLimitPolicy = serde_norway::from_str(&text).unwrap();
            rate_limit_policy(&read).unwrap_err().to_string()
        };
        for (spec, field, fix) in [
            (
                "{targetRef: {kind: Service, name: web}}",
                "spec.targetRef: is \"Service\" without group",
                "expected Server of group",
            ),
            (
                "{SERVER, total: {requestsPerSecond: 0}}",
                "spec.total.requestsPerSecond: is 0",
                "at least 1",
            ),
            (
                "{SERVER, total: {requestsPerSecond: 5}, identity: {requestsPerSecond: 6}}",
                "spec.identity.requestsPerSecond: is 6",
                "at most 5",
            ),
            (
                "{SERVER, overrides: [{requestsPerSecond: 0, clientRefs: []}]}",
                "spec.overrides[0].requestsPerSecond: is 0",
                "at least 1",
            ),
            (
                "{SERVER, total: {requestsPerSecond: 5}, overrides: [{requestsPerSecond: 9, clientRefs: []}]}",
                "spec.overrides[0].requestsPerSecond: is 9",
                "at most 5",
            ),
            (
                "{SERVER, overrides: [{requestsPerSecond: 1, clientRefs: [{kind: Namespace, name: a}]}]}",
                "spec.overrides[0].clientRefs[0].kind: is \"Namespace\"",
                "expected ServiceAccount",
            ),
        ] {
            let found = error(spec);
            assert!(found.starts_with(field) && found.contains(fix), "{found}");
        }
    }

    #[test]
    fn rate_that_is_not_an_unsigned_number_is_refused() {
        for rate in ["-1", "4294967296", "1.5", "many"] {
            let text = format!(
                "metadata: {{name: a}}\nspec: {{targetRef: {{kind: Server, name: web}}, total: {{requestsPerSecond: {rate}}}}}"
            );
            let error = serde_norway::from_str::<crd::HttpLocalRateLimitPolicy>(&text).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("spec.total.requestsPerSecond"), "{error}");
        }
    }
}
