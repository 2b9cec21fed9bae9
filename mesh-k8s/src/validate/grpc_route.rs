//! GRPCRoute of the Gateway API.

use mesh_core::route::filter::RequestKind;

use super::Node;
use super::route::{self, Parents, RetryConditions};

pub(super) fn gateway(object: &Node<'_>) {
    let Some(spec) = object.get("spec") else {
        return;
    };
    let parents = route::parents(&spec);
    route::hosts(&spec);
    route::annotations(object, parents, RetryConditions::Grpc);
    for rule in spec.items_of("rules") {
        for entry in rule.items_of("matches") {
            if let Some(method) = entry.get("method") {
                method_match(&method, parents);
            }
            route::value_matches(&entry.items_of("headers"), true);
        }
        filters(object, &rule);
        route::backends(&rule);
        for backend in rule.items_of("backendRefs") {
            filters(object, &backend);
        }
    }
}

fn method_match(method: &Node<'_>, parents: Parents) {
    if method.object().is_none() {
        return;
    }
    let kind = method.get("type");
    let kind = kind.as_ref();
    let exact = kind.is_none_or(|kind| {
        kind.one_of(&["Exact", "RegularExpression"]) != Some("RegularExpression")
    });
    // Other controllers support them.
    if let Some(kind) = kind.filter(|_| !exact && parents.any()) {
        kind.invalid(
            "is not supported with a Server, Service or EgressNetwork as parent",
            "write Exact, and a match for each method",
        );
    }
    let given = |name| method.text_of(name).is_some_and(|text| !text.is_empty());
    let (service, method_name) = (given("service"), given("method"));
    if !service && !method_name {
        method.conflict(
            "has neither service nor method",
            "set one of them, or remove the match for every call",
        );
    }
}

fn filters(object: &Node<'_>, node: &Node<'_>) {
    for filter in node.items_of("filters") {
        let (field, check): (_, fn(&Node<'_>)) = match filter.text_of("type") {
            Some("RequestHeaderModifier") => ("requestHeaderModifier", route::header_modifier),
            Some("ResponseHeaderModifier") => ("responseHeaderModifier", route::header_modifier),
            Some("RequestMirror") => ("requestMirror", route::request_mirror),
            Some("ExtensionRef") => {
                if let Some(reference) = filter.get("extensionRef") {
                    route::fault(&reference, object, RequestKind::Grpc);
                }
                continue;
            }
            _ => continue,
        };
        if let Some(settings) = filter.require(field, "set it, the type of the filter requires it")
        {
            check(&settings);
        }
    }
}
