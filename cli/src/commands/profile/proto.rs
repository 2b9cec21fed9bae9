//! The routes of the gRPC services of a protobuf file.

use mesh_k8s::crd::ServiceProfileSpec;

use super::route::route;
use crate::exit::Failure;

/// Returns a route for each method, with its name, as `linkerd profile` does. Imported files are
/// not read.
pub(super) fn spec(text: &str, file: &str) -> Result<ServiceProfileSpec, Failure> {
    let parsed = protox_parse::parse("input.proto", text).map_err(|error| {
        let line = error.span().map(|span| {
            let before = text.get(..span.start).unwrap_or(text);
            format!(" line {}", before.matches('\n').count() + 1)
        });
        let line = line.unwrap_or_default();
        Failure::Input(format!("{file}{line} is not a protobuf file: {error}"))
    })?;
    let package = match parsed.package() {
        "" => String::new(),
        package => format!("{package}."),
    };
    let mut routes = Vec::new();
    for service in &parsed.service {
        for method in &service.method {
            let path = format!("/{package}{}/{}", service.name(), method.name());
            routes.push(route(method.name().to_owned(), "POST", &path));
        }
    }
    if routes.is_empty() {
        return Err(Failure::Input(format!(
            "{file} has no service with methods; write the file that declares the service"
        )));
    }
    Ok(ServiceProfileSpec {
        routes: Some(routes),
        ..ServiceProfileSpec::default()
    })
}
