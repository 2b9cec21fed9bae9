//! The part of a connection that rustls keeps: the secrets for deriving the next keys, and the
//! session storage.

use rustls::ConnectionTrafficSecrets;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;

use super::error::RecordError;

/// rustls' key schedule, by role.
pub(crate) enum KeySchedule {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// The limit for a suite without one in rustls: half of rustls' limit for AES-GCM.
const DEFAULT_RECORD_LIMIT: u64 = 1 << 23;

impl KeySchedule {
    pub(super) fn next_send_secrets(
        &mut self,
    ) -> Result<(u64, ConnectionTrafficSecrets), RecordError> {
        match self {
            Self::Client(connection) => connection.update_tx_secret(),
            Self::Server(connection) => connection.update_tx_secret(),
        }
        .map_err(RecordError::KeySchedule)
    }

    pub(super) fn next_receive_secrets(
        &mut self,
    ) -> Result<(u64, ConnectionTrafficSecrets), RecordError> {
        match self {
            Self::Client(connection) => connection.update_rx_secret(),
            Self::Server(connection) => connection.update_rx_secret(),
        }
        .map_err(RecordError::KeySchedule)
    }

    /// Stores a server's ticket; clients do not send tickets. `message` is the body of the
    /// NewSessionTicket.
    pub(super) fn store_ticket(&mut self, message: &[u8]) -> Result<(), RecordError> {
        match self {
            Self::Client(connection) => connection
                .handle_new_session_ticket(message)
                .map_err(RecordError::InvalidTicket),
            Self::Server(_) => Err(RecordError::UnexpectedMessage(
                super::reassembler::NEW_SESSION_TICKET,
            )),
        }
    }

    /// Returns the number of records until the key must be updated (RFC 8446, section 5.5): half of
    /// the suite's limit, which is 128 GiB of full records with AES-GCM.
    pub(super) fn record_limit(&self) -> u64 {
        let suite = match self {
            Self::Client(connection) => connection.negotiated_cipher_suite(),
            Self::Server(connection) => connection.negotiated_cipher_suite(),
        };
        suite.tls13().map_or(DEFAULT_RECORD_LIMIT, |suite| {
            suite.common.confidentiality_limit / 2
        })
    }
}
