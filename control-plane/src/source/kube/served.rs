//! Under which version the API server serves a kind, if it does.

use kube::{Client, core::ApiResource};

use super::kinds::Watched;

/// The best version that is served; nothing when the server says that it serves none.
pub(super) async fn find(
    client: &Client,
    watched: &Watched,
) -> Result<Option<ApiResource>, kube::Error> {
    let (kind, api) = (watched.kind, watched.api());
    if api.built_in {
        return Ok(Some(api.resource(kind, api.versions[0])));
    }
    // The list of groups first: asking about a version that is not served is an error without a
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

/// Nothing is served under this path. An API server says so without a reason when it has never
/// heard of the path.
pub(super) fn is_not_found(error: &kube::Error) -> bool {
    const NOT_FOUND: u16 = 404;
    matches!(error, kube::Error::Api(status) if status.code == NOT_FOUND)
}
