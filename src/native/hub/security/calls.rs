//! How many calls are open on a connection, and when there has been none for too long.
//!
//! HTTP/2 is asked for signs of life whether it carries a call or not, so that bytes alone do not show that a connection is
//! used. A call is open from its request's head until all of its response was sent or given up. One that was refused is none.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::sleep;

/// The calls of one connection.
#[derive(Clone, Debug)]
pub struct Calls(watch::Sender<usize>);

/// An open call, until it is dropped.
#[derive(Debug)]
pub struct Call(Calls);

/// A response's body, which holds something until it was sent or given up.
pub struct Holding<B, T> {
    body: B,
    _held: T,
}

// === impl Calls ===

impl Default for Calls {
    fn default() -> Calls {
        Calls(watch::Sender::new(0))
    }
}

impl Calls {
    /// A call begins.
    pub fn begin(&self) -> Call {
        self.0.send_modify(|open| *open += 1);
        Call(self.clone())
    }

    /// Waits until there was no call for so long.
    pub async fn idle_for(&self, limit: Duration) {
        let mut open = self.0.subscribe();
        loop {
            // The sender is here: that it is gone cannot be.
            let _ = open.wait_for(|open| *open == 0).await;
            tokio::select! {
                _ = open.changed() => {}
                () = sleep(limit) => return,
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open = open.saturating_sub(1));
    }
}

// === impl Holding ===

impl<B, T> Holding<B, T> {
    /// `body`, for which there is what is `held`.
    pub fn new(body: B, held: T) -> Holding<B, T> {
        Holding { body, _held: held }
    }
}

impl<B: Body<Data = Bytes> + Unpin, T: Unpin> Body for Holding<B, T> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn idle_is_who_has_had_no_call_for_long() {
        let (calls, begun) = (Calls::default(), Instant::now());
        calls.idle_for(LIMIT).await;
        assert_eq!(begun.elapsed().as_secs(), 10);
        let (first, second) = (calls.begin(), calls.begin());
        let idle = tokio::spawn({
            let calls = calls.clone();
            async move {
                calls.idle_for(LIMIT).await;
                Instant::now()
            }
        });
        sleep(100 * LIMIT).await;
        drop(first);
        sleep(100 * LIMIT).await;
        assert!(!idle.is_finished());
        drop(second);
        sleep(LIMIT / 2).await;
        // However short it is.
        drop(calls.begin());
        let last = Instant::now();
        assert_eq!((idle.await.unwrap() - last).as_secs(), 10);
    }
}
