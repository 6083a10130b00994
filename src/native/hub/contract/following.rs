//! `StreamCacheEvents`: what changes, for as long as the client reads.
//!
//! Events are made when the client has room for them, from the hub's ring of latest changes: a client that does not read
//! costs nothing but its place. One whose place leaves the ring has missed something, and is told so by the stream's end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{Stream, try_unfold};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::events::EventFilter;
use super::messages::v1alpha1::{CacheEvent, StreamEventsRequest};
use crate::native::hub::state::HubState;

/// How many bytes of changes are turned into events at once; at least one change is.
const PIECE_BYTES: usize = 4 * 1024;

/// A stream of events.
pub type Events = Pin<Box<dyn Stream<Item = Result<CacheEvent, Status>> + Send>>;

/// One client's place in the hub's history.
struct Following {
    state: Arc<HubState>,
    stop: CancellationToken,
    latest: watch::Receiver<u64>,
    filter: EventFilter,
    /// The last change that was turned into events.
    sequence: u64,
    /// Events not yet read.
    events: VecDeque<CacheEvent>,
}

/// The events from now on that `wanted` asks for, until `stop`.
pub fn follow(state: &Arc<HubState>, wanted: StreamEventsRequest, stop: &CancellationToken) -> Events {
    let names = state.names();
    let following = Following {
        state: Arc::clone(state),
        stop: stop.clone(),
        latest: state.watch(),
        sequence: names.sequence,
        filter: EventFilter::new(wanted, names),
        events: VecDeque::new(),
    };
    Box::pin(try_unfold(following, |mut following| async move {
        let event = following.next().await?;
        Ok(event.map(|event| (event, following)))
    }))
}

// === impl Following ===

impl Following {
    /// The next event; `None` when the hub is gone.
    async fn next(&mut self) -> Result<Option<CacheEvent>, Status> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let changes = self.state.after(self.sequence, PIECE_BYTES).map_err(|_| {
                Status::out_of_range("events were missed: they were read more slowly than they happened")
            })?;
            for change in &changes {
                self.filter.take(&change.observation, self.state.wall(), &mut self.events);
                self.sequence = change.sequence;
            }
            if !changes.is_empty() {
                continue;
            }
            let sequence = self.sequence;
            tokio::select! {
                changed = self.latest.wait_for(|latest| *latest > sequence) => {
                    if changed.is_err() {
                        return Ok(None);
                    }
                }
                () = self.stop.cancelled() => return Err(Status::unavailable("the hub is shutting down")),
            }
        }
    }
}
