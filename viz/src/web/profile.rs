//! `/profiles/new`: the ServiceProfile that a user begins with, as a file to save.

use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderValue, Response};
use mesh_core::identity::is_dns_label;
use mesh_k8s::profile::template;

use super::query::Params;
use super::{Body, full};

/// The path, which is Linkerd's.
pub(super) const PATH: &str = "/profiles/new";

/// Returns the file for the Service of the query, or why there is none.
pub(super) fn respond(query: &str, cluster_domain: &str) -> Result<Response<Body>, String> {
    let params = Params::parse(query)?;
    let (service, namespace) = (params.get("service"), params.get("namespace"));
    for (name, value) in [("service", service), ("namespace", namespace)] {
        // A DNS label needs no quotes in YAML and in a header.
        if !is_dns_label(value) {
            return Err(format!(
                "{name} is missing or not a name in Kubernetes: expected for example {PATH}?service=web&namespace=shop"
            ));
        }
    }
    let disposition = format!("attachment; filename=\"{service}-profile.yml\"");
    let disposition = HeaderValue::try_from(disposition).map_err(|error| error.to_string())?;
    let mut response = Response::new(full(template(service, namespace, cluster_domain)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/yaml"));
    headers.insert(CONTENT_DISPOSITION, disposition);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn profile_is_named_after_the_service() {
        let text = template("web", "shop", "k8s.test");
        let object: Value = serde_norway::from_str(&text).unwrap();
        assert_eq!(object["apiVersion"], "linkerd.io/v1alpha2");
        assert_eq!(object["kind"], "ServiceProfile");
        assert_eq!(object["metadata"]["name"], "web.shop.svc.k8s.test");
        assert_eq!(object["metadata"]["namespace"], "shop");
    }

    #[test]
    fn names_that_are_not_labels_are_refused() {
        let long = "x".repeat(64);
        for bad in ["", "a\"b", "a%0d%0ab", "-a", "a-", "A", "a.b", &long] {
            let query = format!("service={bad}&namespace=shop");
            let error = respond(&query, "cluster.local").unwrap_err();
            assert!(error.starts_with("service is missing"), "{error}");
        }
        assert!(respond("service=web", "cluster.local").is_err());
        let longest = "x".repeat(63);
        let query = format!("service={longest}&namespace=shop");
        assert!(respond(&query, "cluster.local").is_ok());
    }
}
