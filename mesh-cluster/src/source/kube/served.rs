//! Discovery of the served version of a kind.

use kube::Client;
use kube::core::ApiResource;

use super::kinds::WatchedKind;

/// Returns the preferred served version; `None` if none is served.
pub(super) async fn find_version(
    client: &Client,
    watched: &WatchedKind,
) -> Result<Option<ApiResource>, kube::Error> {
    let (kind, api) = (watched.kind, watched.api());
    if api.built_in {
        return Ok(Some(api.resource(kind, api.versions[0])));
    }
    // The list of groups first: a request for a version that is not served is an error without a
    // status.
    let groups = client.list_api_groups().await?.groups;
    let Some(group) = groups.iter().find(|group| group.name == kind.group()) else {
        return Ok(None);
    };
    let served = |version: &&&str| group.versions.iter().any(|it| it.version == **version);
    for version in api.versions.iter().filter(served) {
        let group_version = format!("{}/{version}", kind.group());
        let resources = match client.list_api_group_resources(&group_version).await {
            Ok(list) => list.resources,
            Err(error) if is_not_found(&error) => continue,
            Err(error) => return Err(error),
        };
        if resources.iter().any(|it| it.name == api.plural) {
            return Ok(Some(api.resource(kind, version)));
        }
    }
    Ok(None)
}

/// Returns whether the path is not served. The response for an unknown path has no reason, so only
/// the code is compared.
pub(super) fn is_not_found(error: &kube::Error) -> bool {
    const NOT_FOUND: u16 = 404;
    matches!(error, kube::Error::Api(status) if status.code == NOT_FOUND)
}
