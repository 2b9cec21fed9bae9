//! Listens on the socket and answers. The work itself is done by the thread that owns the node
//! (module `daemon`).

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use mesh_core::node::{Answer, Refusal, RefusalReason, Request};
use mesh_runtime::drain;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    time::timeout,
};

use super::MAX_REQUEST;
use crate::daemon::Caretaker;

/// A client writes its one line at once; one that does not is not ours.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("another mesh agent answers on {0}; only one can run on a node")]
    Taken(PathBuf),
    #[error("cannot listen on {path}")]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Does somebody listen there?
pub fn is_taken(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}

/// Binds the socket, replacing one that a killed agent left behind.
pub fn bind(path: &Path) -> Result<UnixListener, BindError> {
    let failed = |source| BindError::Listen {
        path: path.to_owned(),
        source,
    };
    if is_taken(path) {
        return Err(BindError::Taken(path.to_owned()));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // Bound under another name and renamed when only root may connect: nobody sees it with a wider
    // mode.
    let draft = path.with_extension("new");
    let _ = fs::remove_file(&draft);
    let listener = UnixListener::bind(&draft).map_err(failed)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    fs::rename(&draft, path).map_err(failed)?;
    Ok(listener)
}

/// Accepts until the drain begins. A request that has been read is answered.
pub async fn serve(listener: UnixListener, caretaker: Arc<Caretaker>, drain: drain::Watch) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.draining() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (caretaker, drain) = (Arc::clone(&caretaker), drain.clone());
                // Ends by itself within the request timeout; the drain waits for it through the
                // watch that it holds.
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, &caretaker).await {
                        tracing::debug!(%error, "A connection to the agent's socket broke");
                    }
                    drop(drain);
                });
            }
            Err(error) => {
                // Out of descriptors, usually. Without a pause this loop would take the whole
                // processor.
                tracing::warn!(%error, "Cannot accept a connection on the agent's socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, caretaker: &Caretaker) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    if peer.uid() != 0 {
        tracing::warn!(
            uid = peer.uid(),
            pid = peer.pid(),
            "Refused a client that is not root"
        );
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    timeout(
        REQUEST_TIMEOUT,
        (&mut stream).take(MAX_REQUEST).read_until(b'\n', &mut line),
    )
    .await??;
    let answer = match serde_json::from_slice::<Request>(&line) {
        Ok(request) => caretaker.ask(request).await,
        Err(error) => Answer::Refused(Refusal {
            reason: RefusalReason::Invalid,
            message: format!("the request cannot be read: {error}"),
        }),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    stream.get_mut().write_all(&text).await?;
    stream.get_mut().shutdown().await
}
