//! The codec of the hub's gRPC services: protobuf, with one precaution.
//!
//! Some messages of a few MiB take a long time to decode, since they are a million small fields. Where the runtime has
//! several threads, such a message is decoded while another thread takes over the tasks that wait for this one.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Larger messages can take more than about a millisecond to decode.
const LARGE_BYTES: usize = 128 * 1024;

/// Encodes `T`, decodes `U`.
#[derive(Clone, Debug)]
pub struct MessageCodec<T, U>(PhantomData<(T, U)>);

/// Decodes `U`.
#[derive(Clone, Debug)]
pub struct MessageDecoder<U>(ProstDecoder<U>);

// === impl MessageCodec ===

impl<T, U> Default for MessageCodec<T, U> {
    fn default() -> MessageCodec<T, U> {
        MessageCodec(PhantomData)
    }
}

impl<T, U> Codec for MessageCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = MessageDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> MessageDecoder<U> {
        MessageDecoder(ProstCodec::<T, U>::default().decoder())
    }
}

// === impl MessageDecoder ===

impl<U: Message + Default> Decoder for MessageDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let has_other_threads =
            Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
        if buffer.remaining() > LARGE_BYTES && has_other_threads {
            block_in_place(|| self.0.decode(buffer))
        } else {
            self.0.decode(buffer)
        }
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}
