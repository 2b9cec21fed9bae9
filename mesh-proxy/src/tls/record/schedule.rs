//! What the library keeps of a connection: the secrets that the next keys are derived from, and
//! where tickets go.

use rustls::ConnectionTrafficSecrets;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;

use super::error::RecordError;

/// The rest of the library's connection, by role.
pub(in crate::tls) enum KeySchedule {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// Used when the library does not name a limit: half of what it names for AES-GCM.
const CAUTIOUS_LIMIT: u64 = 1 << 23;

impl KeySchedule {
    pub(super) fn next_sending(&mut self) -> Result<(u64, ConnectionTrafficSecrets), RecordError> {
        match self {
            Self::Client(connection) => connection.update_tx_secret(),
            Self::Server(connection) => connection.update_tx_secret(),
        }
        .map_err(RecordError::Schedule)
    }

    pub(super) fn next_receiving(
        &mut self,
    ) -> Result<(u64, ConnectionTrafficSecrets), RecordError> {
        match self {
            Self::Client(connection) => connection.update_rx_secret(),
            Self::Server(connection) => connection.update_rx_secret(),
        }
        .map_err(RecordError::Schedule)
    }

    /// Remembers a ticket of a server. Clients do not send any. `message` is without its type and
    /// length.
    pub(super) fn ticket(&mut self, message: &[u8]) -> Result<(), RecordError> {
        match self {
            Self::Client(connection) => connection
                .handle_new_session_ticket(message)
                .map_err(RecordError::Ticket),
            Self::Server(_) => Err(RecordError::Message(super::incoming::NEW_SESSION_TICKET)),
        }
    }

    /// Records after which the key must have been changed (RFC 8446 §5.5): half of what the suite
    /// bears, 128 GiB of full records with AES-GCM.
    pub(super) fn record_limit(&self) -> u64 {
        let suite = match self {
            Self::Client(connection) => connection.negotiated_cipher_suite(),
            Self::Server(connection) => connection.negotiated_cipher_suite(),
        };
        suite.tls13().map_or(CAUTIOUS_LIMIT, |suite| {
            suite.common.confidentiality_limit / 2
        })
    }
}
