//! Compares the custom resource definitions of the chart with the types that read the resources.

use std::fs;

use kube::{CustomResourceExt, ResourceExt};
use mesh_k8s::crd;
use serde_json::{Value, json};

use crate::generated::root;
use crate::helm;

/// Fields of the Gateway API's types that Linkerd's HTTPRoute lacks. The definition rejects them.
const ONLY_IN_TYPE: [&str; 9] = [
    "cors",
    "extensionRef",
    "requestMirror",
    "urlRewrite",
    "sessionPersistence",
    "retry",
    "fraction",
    "externalAuth",
    "percent",
];

#[test]
fn definitions_match_types() {
    require_helm!("definitions_match_types");
    let mut objects = helm::crds();
    objects.extend(helm::multicluster("{}").unwrap());
    let types = [
        (crd::ExternalWorkload::crd(), "v1beta1"),
        (crd::Server::crd(), "v1beta3"),
        (crd::ServerAuthorization::crd(), "v1beta1"),
        (crd::AuthorizationPolicy::crd(), "v1alpha1"),
        (crd::MeshTLSAuthentication::crd(), "v1alpha1"),
        (crd::NetworkAuthentication::crd(), "v1alpha1"),
        (crd::HttpLocalRateLimitPolicy::crd(), "v1alpha1"),
        (crd::PolicyHttpRoute::crd(), "v1beta3"),
        (crd::ServiceProfile::crd(), "v1alpha2"),
        (crd::EgressNetwork::crd(), "v1alpha1"),
        (crd::Link::crd(), "v1alpha3"),
    ];
    for (of_type, version) in types {
        let definition = helm::find(&objects, "CustomResourceDefinition", &of_type.name_any());
        let of_type = serde_json::to_value(&of_type).unwrap();
        for names in ["plural", "kind"] {
            assert_eq!(
                definition["spec"]["names"][names],
                of_type["spec"]["names"][names]
            );
        }
        let short = |crd: &Value| {
            crd["spec"]["names"]["shortNames"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        };
        assert_eq!(short(definition), short(&of_type));
        let versions = definition["spec"]["versions"].as_array().unwrap();
        let stored: Vec<&Value> = versions
            .iter()
            .filter(|version| version["storage"] == true)
            .collect();
        assert_eq!(stored.len(), 1);
        assert_eq!(stored[0]["name"], version);
        let path = definition["spec"]["names"]["kind"].as_str().unwrap();
        let schema = |version: &Value, part: &str| {
            version["schema"]["openAPIV3Schema"]["properties"][part].clone()
        };
        let of_type = &of_type["spec"]["versions"][0];
        compare(path, &schema(stored[0], "spec"), &schema(of_type, "spec"));
        if path == "Link" {
            let path = format!("{path}.status");
            let (stored, of_type) = (schema(stored[0], "status"), schema(of_type, "status"));
            compare(&path, &stored, &of_type);
        }
    }
}

/// The fields that each version of a Link has. The API server prunes others.
#[test]
fn versions_of_links_have_the_fields_of_linkerd() {
    require_helm!("versions_of_links_have_the_fields_of_linkerd");
    let objects = helm::multicluster("{}").unwrap();
    let name = "links.multicluster.linkerd.io";
    let definition = helm::find(&objects, "CustomResourceDefinition", name);
    let versions = definition["spec"]["versions"].as_array().unwrap();
    let found: Vec<(&str, bool, bool)> = versions
        .iter()
        .map(|version| {
            assert_eq!(version["served"], true);
            let properties = &version["schema"]["openAPIV3Schema"]["properties"];
            let spec = &properties["spec"]["properties"];
            let has_status = version["subresources"]["status"].is_object();
            assert_eq!(has_status, properties["status"].is_object());
            assert_eq!(has_status, spec["federatedServiceSelector"].is_object());
            let excludes = spec["excludedLabels"].is_object();
            assert_eq!(excludes, spec["excludedAnnotations"].is_object());
            (version["name"].as_str().unwrap(), has_status, excludes)
        })
        .collect();
    let expected = [
        ("v1alpha1", false, false),
        ("v1alpha2", true, false),
        ("v1alpha3", true, true),
    ];
    assert_eq!(found, expected);
}

/// Checks that both have the same fields, and that the definition requires or defaults the fields
/// that the type requires.
fn compare(path: &str, definition: &Value, of_type: &Value) {
    if let (Some(items), Some(of_type)) = (definition.get("items"), of_type.get("items")) {
        return compare(&format!("{path}[]"), items, of_type);
    }
    let Some(fields) = of_type["properties"].as_object() else {
        return;
    };
    let Some(defined) = definition["properties"].as_object() else {
        panic!("{path} has no properties in the definition");
    };
    for (name, field) in fields {
        let path = format!("{path}.{name}");
        match defined.get(name) {
            Some(defined) => compare(&path, defined, field),
            None => assert!(
                ONLY_IN_TYPE.contains(&name.as_str()) || path.contains("matchExpressions"),
                "the definition lacks {path}"
            ),
        }
    }
    for name in defined.keys() {
        assert!(fields.contains_key(name), "no type reads {path}.{name}");
    }
    let required = |schema: &Value| schema["required"].as_array().cloned().unwrap_or_default();
    for name in required(of_type) {
        let name = name.as_str().unwrap();
        let guaranteed =
            required(definition).contains(&name.into()) || defined[name].get("default").is_some();
        assert!(
            guaranteed,
            "the type requires {path}.{name}, which is optional in the definition"
        );
    }
}

#[test]
fn definitions_are_kept_without_the_chart_unless_the_value_is_false() {
    require_helm!("definitions_are_kept_without_the_chart_unless_the_value_is_false");
    for (values, policy) in [
        ("{}", json!("keep")),
        ("keep: null", json!("keep")),
        ("keep: false", Value::Null),
    ] {
        let objects = helm::crds_with(values);
        assert_eq!(objects.len(), 10);
        for object in objects {
            let annotations = &object["metadata"]["annotations"];
            assert_eq!(annotations["helm.sh/resource-policy"], policy, "{values}");
        }
    }
}

#[test]
fn types_read_accepted_resources() {
    let mut read = 0;
    for document in documents("accepted.yaml") {
        let object: Value = serde_norway::from_str(&document).unwrap();
        let result = match object["kind"].as_str().unwrap() {
            "Server" => serde_json::from_value::<crd::Server>(object).map(drop),
            "AuthorizationPolicy" => {
                serde_json::from_value::<crd::AuthorizationPolicy>(object).map(drop)
            }
            "MeshTLSAuthentication" => {
                serde_json::from_value::<crd::MeshTLSAuthentication>(object).map(drop)
            }
            "NetworkAuthentication" => {
                serde_json::from_value::<crd::NetworkAuthentication>(object).map(drop)
            }
            "EgressNetwork" => serde_json::from_value::<crd::EgressNetwork>(object).map(drop),
            "HTTPRoute" => serde_json::from_value::<crd::PolicyHttpRoute>(object).map(drop),
            "ServiceProfile" => serde_json::from_value::<crd::ServiceProfile>(object).map(drop),
            "Link" => serde_json::from_value::<crd::Link>(object).map(drop),
            _ => continue,
        };
        result.unwrap_or_else(|error| panic!("{error}:\n{document}"));
        read += 1;
    }
    assert!(read >= 17, "{read}");
}

fn documents(file: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("mesh-k8s/testdata/crds").join(file)).unwrap();
    text.split("\n---\n").map(str::to_owned).collect()
}
