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
    for version in api.versions {
        let group_version = format!("{}/{version}", kind.group());
        match client.list_api_group_resources(&group_version).await {
            Ok(served) => {
                let ours = served.resources.iter().any(|it| it.name == api.plural);
                if ours {
                    return Ok(Some(api.resource(kind, version)));
                }
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
