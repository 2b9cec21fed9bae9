//! Joining a mesh with a join file, over the agent's socket.

use std::sync::Arc;
use std::time::SystemTime;

use mesh_core::machine::{JoinFile, MembershipStatus, Secret};

use super::member::{self, MemberRecord};
use super::{Member, Membership, MembershipError, identity_service, time, tls};

/// Joins, and returns the membership. Nothing is stored unless the identity service has issued the
/// certificate.
pub(crate) async fn join(
    membership: &Membership,
    file: JoinFile,
) -> Result<MembershipStatus, MembershipError> {
    let _serial = membership.joining.lock().await;
    file.validate()?;
    tls::count_anchors(&file.mesh.trust_anchors).map_err(|_error| MembershipError::Anchors)?;
    let key = membership.read_key()?.ok_or(MembershipError::NoKey)?;
    let fingerprint = key.fingerprint();
    if file.key_sha256 != fingerprint {
        return Err(MembershipError::OtherKey {
            of_file: file.key_sha256,
            own: fingerprint,
        });
    }
    let now = SystemTime::now();
    let previous = membership.member();
    check_previous(previous.as_deref(), &file, now)?;
    check_token(&file, now)?;
    let JoinFile {
        machine,
        token: Secret(token),
        mesh,
        ..
    } = file;
    let name = member::name(&machine, &mesh);
    let request = key.certificate_request(&name)?;
    let certified =
        identity_service::certify(&mesh, &key, &name, token.into_bytes(), request).await;
    let certified =
        certified.map_err(|error| MembershipError::of_service(&machine, &fingerprint, error))?;
    let record = MemberRecord::new(&machine, mesh, &certified, SystemTime::now());
    let member = membership.replace(previous.as_ref(), Arc::new(key), record)?;
    tracing::info!(
        machine,
        trust_domain = member.mesh().trust_domain,
        expires = time::text(member.expires()),
        "The machine has joined the mesh"
    );
    Ok(member.status(None))
}

/// A machine whose certificate has expired joins the same mesh again, and its units go on.
fn check_previous(
    previous: Option<&Member>,
    file: &JoinFile,
    now: SystemTime,
) -> Result<(), MembershipError> {
    let Some(previous) = previous else {
        return Ok(());
    };
    let (own, other) = (previous.mesh(), &file.mesh);
    let is_same = previous.machine() == file.machine
        && own.trust_domain == other.trust_domain
        && own.control_plane_namespace == other.control_plane_namespace;
    if is_same && now >= previous.expires() {
        return Ok(());
    }
    Err(MembershipError::Joined {
        machine: previous.machine().to_owned(),
        trust_domain: own.trust_domain.clone(),
        expires: time::text(previous.expires()),
    })
}

fn check_token(file: &JoinFile, now: SystemTime) -> Result<(), MembershipError> {
    let expires = time::parse(&file.token_expires)
        .ok_or_else(|| MembershipError::TokenTime(file.token_expires.clone()))?;
    if now < expires {
        return Ok(());
    }
    Err(MembershipError::TokenExpired {
        machine: file.machine.clone(),
        key: file.key_sha256.clone(),
        expired: file.token_expires.clone(),
        now: time::text(now),
    })
}
