//! Opens one stream of answers, with a buffer of the size of its messages.
//!
//! The clients that are generated give each stream 8 KiB for what it receives, and keep them as long as the stream is open. A proxy holds three streams for each
//! destination, whose messages have a few hundred bytes.

use std::marker::PhantomData;

use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::{Client, MAX_MESSAGE};

/// The codec of the generated clients, except that nothing is allocated before there is something to hold.
struct Growing<Q, A>(PhantomData<(Q, A)>);

/// tonic's own threshold: an encoder hands over what it has when that is this much.
const YIELD_THRESHOLD: usize = 32 * 1024;

impl<Q, A> Codec for Growing<Q, A>
where
    Q: Message + Send + 'static,
    A: Message + Default + Send + 'static,
{
    type Encode = Q;
    type Decode = A;
    type Encoder = <ProstCodec<Q, A> as Codec>::Encoder;
    type Decoder = <ProstCodec<Q, A> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<Q, A>::raw_encoder(BufferSettings::new(0, YIELD_THRESHOLD))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<Q, A>::raw_decoder(BufferSettings::new(0, YIELD_THRESHOLD))
    }
}

/// Calls the method at `path` (`/SERVICE/METHOD`).
pub async fn open<Q, A>(
    client: Client,
    path: &'static str,
    request: Q,
) -> Result<Response<Streaming<A>>, Status>
where
    Q: Message + Send + 'static,
    A: Message + Default + Send + 'static,
{
    // `Client` is always ready, so nobody asks it.
    let mut grpc = Grpc::new(client).max_decoding_message_size(MAX_MESSAGE);
    let path = PathAndQuery::from_static(path);
    grpc.server_streaming(Request::new(request), path, Growing(PhantomData))
        .await
}
