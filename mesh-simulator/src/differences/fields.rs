//! Fields of messages, and parts of start lines.

use std::collections::BTreeSet;

use mesh_proxy::simulation::Feature;

use super::{Context, sibling};
use crate::facts::{Aspect, Change, OF_CONNECTION, Subject, shared_names};
use crate::script::Side;
use crate::world::Position;

pub(super) fn is_offer_of_h2c(context: &Context<'_>, change: &Change) -> bool {
    let Aspect::Field(name) = &change.key.aspect else {
        return false;
    };
    let offer = Aspect::Field("upgrade".to_owned());
    let offer = sibling(context.direct, &change.key, offer).unwrap_or_default();
    let offer = String::from_utf8_lossy(offer).to_lowercase();
    matches!(change.key.subject, Subject::Request(_))
        && change.mesh.is_none()
        && matches!(name.as_str(), "upgrade" | "connection" | "http2-settings")
        && offer.contains("h2c")
}

pub(super) fn is_hop_by_hop(context: &Context<'_>, change: &Change) -> bool {
    let Aspect::Field(name) = &change.key.aspect else {
        return false;
    };
    let options = Aspect::Field("connection".to_owned());
    let options = sibling(context.direct, &change.key, options);
    let options = String::from_utf8_lossy(options.unwrap_or_default()).to_lowercase();
    let mut options = options.split([',', ':', '\n']).map(str::trim);
    OF_CONNECTION.contains(&name.as_str())
        || (change.mesh.is_none() && options.any(|option| option == name))
}

pub(super) fn is_case_of_name(_: &Context<'_>, change: &Change) -> bool {
    let is_field = matches!(
        change.key.aspect,
        Aspect::Field(_) | Aspect::Trailer(_) | Aspect::Interim(_)
    );
    let (Some(direct), Some(mesh)) = (&change.direct, &change.mesh) else {
        return false;
    };
    is_field && with_lower_names(direct) == *mesh
}

/// Field lines with their names in lower case.
fn with_lower_names(lines: &[u8]) -> Vec<u8> {
    let mut is_name = true;
    let bytes = lines.iter().map(|byte| {
        if *byte == b'\n' {
            is_name = true;
        } else if *byte == b':' {
            is_name = false;
        }
        if is_name {
            byte.to_ascii_lowercase()
        } else {
            *byte
        }
    });
    bytes.collect()
}

/// Lines of one name that are apart in the direct run. A name that only one run has is a change of
/// its own.
pub(super) fn is_order(_: &Context<'_>, change: &Change) -> bool {
    let (Some(direct), Some(mesh)) = (&change.direct, &change.mesh) else {
        return false;
    };
    let [direct, mesh] = shared_names(direct, mesh).map(|names| {
        let mut seen = BTreeSet::new();
        let names = names.into_iter().filter(|name| seen.insert(name.clone()));
        names.collect::<Vec<_>>()
    });
    change.key.aspect == Aspect::Order && direct == mesh
}

pub(super) fn is_field_of_mesh(context: &Context<'_>, change: &Change) -> bool {
    let has_prefix = |name: &String| name.starts_with("l5d-");
    let is_changed = matches!(
        &change.key.aspect,
        Aspect::Field(name) | Aspect::Trailer(name) if has_prefix(name)
    );
    // A client outside the mesh must see none of them.
    let is_for_client = change.direct.is_some() || context.position.has_client_proxy();
    is_changed && (change.key.peer == Side::Server || is_for_client)
}

pub(super) fn is_span(context: &Context<'_>, change: &Change) -> bool {
    context.features.contains(&Feature::Tracing)
        && matches!(change.key.subject, Subject::Request(_))
        && matches!(
            &change.key.aspect,
            Aspect::Field(name) if matches!(name.as_str(), "b3" | "grpc-trace-bin" | "traceparent" | "x-b3-parentspanid" | "x-b3-spanid")
        )
}

pub(super) fn is_version(context: &Context<'_>, change: &Change) -> bool {
    if change.key.aspect != Aspect::Pseudo("version".to_owned()) || change.key.peer != Side::Client
    {
        return false;
    }
    let values = [&change.direct, &change.mesh].map(|value| value.as_deref().unwrap_or_default());
    let is_http1 = |value: &&[u8]| matches!(*value, b"HTTP/1.0" | b"HTTP/1.1");
    let is_answer = matches!(change.key.subject, Subject::Response(..))
        && sibling(context.mesh, &change.key, Aspect::End).is_some();
    is_answer && values.iter().all(is_http1)
}

pub(super) fn is_reason(context: &Context<'_>, change: &Change) -> bool {
    let (Some(direct), Some(_)) = (&change.direct, &change.mesh) else {
        return false;
    };
    // A message of HTTP/1 crosses HTTP/2 only between two proxies.
    let may_be_lost = context.position == Position::Both || direct.is_empty();
    change.key.aspect == Aspect::Pseudo("reason".to_owned()) && may_be_lost
}

pub(super) fn is_authority(context: &Context<'_>, change: &Change) -> bool {
    let host = Aspect::Field("host".to_owned());
    let host = sibling(context.direct, &change.key, host);
    let host = host.and_then(|line| line.strip_prefix(b"host: "));
    change.key.aspect == Aspect::Pseudo("authority".to_owned())
        && change.direct.is_none()
        && host.is_some()
        && change.mesh.as_deref() == host
}
