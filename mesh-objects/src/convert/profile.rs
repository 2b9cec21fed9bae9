//! ServiceProfiles.

use mesh_k8s::{crd, invalid, profile};

use super::{ConvertError, name};
use crate::model::ServiceProfile;

pub(crate) fn service_profile(
    written: &crd::ServiceProfile,
) -> Result<ServiceProfile, ConvertError> {
    let name = name(&written.metadata);
    let converted = profile::convert(&name.name, &written.spec)
        .map_err(|problems| ConvertError::all(&problems))?;
    if !converted.ignored.is_empty() {
        let problems = invalid::summary(&converted.ignored);
        tracing::warn!(%name, problems, "Ignored fields of a ServiceProfile");
    }
    Ok(ServiceProfile {
        name,
        rules: converted.rules,
    })
}
