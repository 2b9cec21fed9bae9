//! The bugs that can be planted.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// A name that no bug has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownBug(pub String);

impl Display for UnknownBug {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "no bug is called {:?}", self.0)
    }
}

impl std::error::Error for UnknownBug {}

macro_rules! bugs {
    ($($(#[doc = $text:literal])+ $bug:ident = $name:literal,)+) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Bug {
            $($(#[doc = $text])+ $bug,)+
        }

        impl Bug {
            /// All bugs, in the order of their definition.
            pub const ALL: &'static [Self] = &[$(Self::$bug,)+];

            /// Lower case, with hyphens.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }

            /// One sentence about the bug.
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$bug => concat!($($text,)+).trim_ascii(),)+
                }
            }
        }
    };
}

bugs! {
    // Bytes of a connection.
    /// A reset of one peer reaches the other one as the end of the stream.
    ResetIsEnd = "reset-is-end",
    /// The end of a peer's stream reaches the other one as a reset.
    EndIsReset = "end-is-reset",
    /// The end of one direction is forwarded only after the end of the other one.
    HalfCloseLost = "half-close-lost",
    /// The end of one direction ends the other one, too.
    HalfCloseEndsBoth = "half-close-ends-both",
    /// The time limit of half-closed connections counts from the first FIN, whatever bytes follow.
    HalfClosedTimerIgnoresBytes = "half-closed-timer-ignores-bytes",
    /// After a socket has taken a part of a read, a byte of the rest is lost.
    PartialWriteLosesByte = "partial-write-loses-byte",
    /// A task that yields after many bytes is not woken again.
    LostWakeUpOfCopy = "lost-wake-up-of-copy",
    /// What a full socket does not take of a TLS record's transfer is lost.
    SealedRestLost = "sealed-rest-lost",
    /// The time limit of detection never ends.
    DetectionNeverEnds = "detection-never-ends",
    /// What a client has sent before detection timed out is lost.
    HeldBytesLost = "held-bytes-lost",
    /// What a server sends before its client is lost.
    ServerFirstBytesLost = "server-first-bytes-lost",
    /// A ClientHello is complete only with one byte more than its length.
    HelloEndMissed = "hello-end-missed",
    /// The server name of a ClientHello is searched one byte too early.
    HelloNameMissed = "hello-name-missed",
    /// A transport header is complete only with one byte more than its length.
    TransportHeaderEndMissed = "transport-header-end-missed",
    /// A byte after the transport header is taken for a part of it.
    TransportHeaderTakesByte = "transport-header-takes-byte",
    /// The end of a TLS stream is sent without close_notify.
    CloseNotifyLost = "close-notify-lost",

    // HTTP/1: messages.
    /// The end of a header section is found one byte too early.
    HeadEndsEarly = "head-ends-early",
    /// Only the last of several lines of a field is forwarded.
    RepeatedFieldLost = "repeated-field-lost",
    /// A chunk that arrives in two reads has one byte less.
    ChunkSplitLosesByte = "chunk-split-loses-byte",
    /// The last chunk is taken for one of content, so that the body does not end.
    LastChunkMissed = "last-chunk-missed",
    /// Trailers of a chunked body are read and dropped.
    TrailerLost = "trailer-lost",
    /// Trailers are not written after the last chunk.
    TrailerNotSent = "trailer-not-sent",
    /// `content-length: 0` is not forwarded.
    LengthOfZeroRemoved = "length-of-zero-removed",
    /// A request without a body gets `content-length: 0`.
    LengthOfZeroAdded = "length-of-zero-added",
    /// The proxy waits for the content of a response to HEAD.
    HeadHasBody = "head-has-body",
    /// The proxy waits for the content of a 204.
    NoContentHasBody = "no-content-has-body",
    /// The proxy waits for the content of a 304.
    NotModifiedHasBody = "not-modified-has-body",
    /// Interim responses of a server of HTTP/1 are dropped.
    InterimLost = "interim-lost",
    /// The proxy answers `expect: 100-continue` itself.
    ContinueByProxy = "continue-by-proxy",
    /// A body that ends before its length counts as complete.
    CutBodyIsComplete = "cut-body-is-complete",
    /// A response until the end of the connection is complete when the server resets it.
    ResetBodyIsComplete = "reset-body-is-complete",
    /// A target that is not a URI is forwarded with other characters.
    RawTargetLost = "raw-target-lost",
    /// The reason phrase is replaced by the standard one.
    ReasonLost = "reason-lost",
    /// Names of fields are written with capital letters.
    NamesInCapitals = "names-in-capitals",
    /// A chunked message has two lines of `transfer-encoding`.
    TransferEncodingTwice = "transfer-encoding-twice",
    /// The size of a chunk of 16, 256, 4096, … bytes lacks its first digit.
    ChunkSizeDigitLost = "chunk-size-digit-lost",
    /// After a socket has taken a part of the output, a byte of the rest is lost.
    OutputSkipsByte = "output-skips-byte",
    /// A request of HTTP/1.0 crosses two proxies as one of HTTP/1.1.
    VersionLost = "version-lost",

    // HTTP/1: connections.
    /// A connection with bytes after a response carries the next request.
    LeftoverReused = "leftover-reused",
    /// A connection that the server has closed carries the next request.
    ClosedReused = "closed-reused",
    /// `connection: close` does not end a connection.
    CloseIgnored = "close-ignored",
    /// A request that arrives with the one before it is dropped.
    PipelinedRequestLost = "pipelined-request-lost",
    /// What arrives together with a 101, or after CONNECT, is lost.
    TunnelBytesLost = "tunnel-bytes-lost",
    /// An upgrade is forwarded without its protocol.
    UpgradeNotForwarded = "upgrade-not-forwarded",
    /// A refused upgrade becomes a tunnel.
    RefusalIsTunnel = "refusal-is-tunnel",
    /// The server does not notice that the client of a request has closed.
    ClientCloseLost = "client-close-lost",

    // HTTP/2: frames and fields.
    /// A frame header that arrives in two reads is misread.
    SplitFrameHeaderMisread = "split-frame-header-misread",
    /// DATA that arrives in two reads loses END_STREAM.
    SplitDataLosesEnd = "split-data-loses-end",
    /// The last frame of content is sent without END_STREAM.
    EndStreamLost = "end-stream-lost",
    /// A frame of content that is not full has END_STREAM.
    EndStreamEarly = "end-stream-early",
    /// A large frame of content overtakes the one before it.
    BytesReordered = "bytes-reordered",
    /// Flow-control capacity of padding is not returned.
    PaddingNotReturned = "padding-not-returned",
    /// Flow-control capacity of content is not returned.
    WindowNotReturned = "window-not-returned",
    /// A changed SETTINGS_INITIAL_WINDOW_SIZE does not change open streams.
    InitialWindowNotApplied = "initial-window-not-applied",
    /// SETTINGS are not acknowledged.
    SettingsNotAcknowledged = "settings-not-acknowledged",
    /// A PING is not acknowledged.
    PingNotAnswered = "ping-not-answered",
    /// An integer of HPACK of three bytes is misread.
    IntegerMisread = "integer-misread",
    /// The encoder's index of an older entry of the dynamic table is one too large.
    EncoderIndexOffByOne = "encoder-index-off-by-one",
    /// The decoder adds entries at the wrong end of its dynamic table.
    DecoderTableReversed = "decoder-table-reversed",
    /// A field block of several frames is sent without END_HEADERS.
    ContinuationEndLost = "continuation-end-lost",
    /// A field that continues in the next frame loses its beginning.
    ContinuationRestLost = "continuation-rest-lost",
    /// Trailers of HTTP/2 are dropped.
    Http2TrailerLost = "http2-trailer-lost",
    /// Interim responses of HTTP/2 are dropped.
    Http2InterimLost = "http2-interim-lost",
    /// Only the last of several lines of a field of HTTP/2 is forwarded.
    Http2RepeatedFieldLost = "http2-repeated-field-lost",

    // HTTP/2: streams.
    /// A GOAWAY fails the last stream that the server has processed.
    GoAwayFailsLastStream = "go-away-fails-last-stream",
    /// Streams after the last one of a GOAWAY wait indefinitely.
    GoAwayIgnored = "go-away-ignored",
    /// The last GOAWAY of a graceful shutdown is not sent.
    FinalGoAwayLost = "final-go-away-lost",
    /// A stream is reset with CANCEL, whatever the peer's code was.
    ResetCodeLost = "reset-code-lost",
    /// RST_STREAM of a peer is ignored.
    PeerResetIgnored = "peer-reset-ignored",
    /// A request gets the response of the next stream, if there is one.
    ResponseToOther = "response-to-other",
    /// One stream less than the server allows is opened.
    StreamLimitOffByOne = "stream-limit-off-by-one",
    /// A stream that was reset counts as open.
    StreamPermitLeak = "stream-permit-leak",
    /// Streams are not woken when the connection's window opens.
    LostWakeUpOfConnectionWindow = "lost-wake-up-of-connection-window",
    /// A stream is not woken when its window opens.
    LostWakeUpOfStreamWindow = "lost-wake-up-of-stream-window",
    /// Requests that wait for the stream limit are not woken when a stream ends.
    LostWakeUpOfStreamLimit = "lost-wake-up-of-stream-limit",

    // The mesh's own decisions.
    /// Requests on an open connection are authorized by its first policy.
    StalePolicy = "stale-policy",
    /// Open connections stay when the policy denies them.
    RevocationLost = "revocation-lost",
    /// A watch of the control plane drops its second message.
    MissedEvent = "missed-event",
    /// Connections go to the first address of a destination.
    StaleAddress = "stale-address",
    /// A client outside the mesh states its identity in `l5d-client-id`.
    ClientIdForwarded = "client-id-forwarded",
    /// The client of a resumed TLS session has no identity.
    ResumedIdentityLost = "resumed-identity-lost",
    /// A request that is not idempotent is repeated when its connection was lost.
    UnsafeRequestRepeated = "unsafe-request-repeated",
    /// A retry has only the first 16 KiB of the body.
    ReplayInPart = "replay-in-part",
    /// A request is retried once more than the policy allows.
    RetryOnceMore = "retry-once-more",
    /// Memory that was reserved for the copy of a body is not released.
    ReplayMemoryLeak = "replay-memory-leak",
    /// The permit of a closed connection is not returned.
    ConnectionPermitLeak = "connection-permit-leak",
    /// The permit of a complete request is not returned.
    RequestPermitLeak = "request-permit-leak",
    /// A closed connection stays in the gauge of open ones.
    GaugeLeak = "gauge-leak",
    /// What waits for the beginning of a drain is not notified.
    DrainIgnored = "drain-ignored",
}

impl Display for Bug {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Bug {
    type Err = UnknownBug;

    fn from_str(name: &str) -> Result<Self, UnknownBug> {
        let mut bugs = Self::ALL.iter().copied();
        let bug = bugs.find(|bug| bug.name() == name);
        bug.ok_or_else(|| UnknownBug(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_parsed() {
        let names: BTreeSet<&str> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        assert_eq!(names.len(), Bug::ALL.len());
        for bug in Bug::ALL {
            assert_eq!(bug.name().parse(), Ok(*bug));
            let text = bug.description();
            assert!(!text.starts_with(' ') && text.ends_with('.'), "{text:?}");
        }
        let unknown = "no-such-bug".parse::<Bug>();
        assert_eq!(unknown, Err(UnknownBug("no-such-bug".to_owned())));
    }
}
