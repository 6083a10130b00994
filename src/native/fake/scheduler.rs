//! Which request runs, on what part of the cache, and when its tokens come.
//!
//! A request waits, first come first served, for one of `max_running` places, for the prefill lane (one prompt is
//! computed at a time, as one GPU would) and for enough blocks. Then it runs: its prompt takes the time that [`Timing`]
//! gives for the tokens that are not cached, after which its blocks are stored; then tokens come one by one. A
//! request that is dropped gives everything back at once.
//!
//! Events are handed over under the lock that the cache changes under, so their order is the cache's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use super::cache::{BlockCache, BlocksInUse, Namespace, Sequence};
use super::engine_key::EngineKey;
use super::events::KvEvent;
use super::options::{EngineOptions, Timing};
use super::publisher::EventSink;
use super::tokens::PromptDigest;

/// The scheduler; clones share it.
#[derive(Clone)]
pub struct Scheduler(Arc<Shared>);

/// What an engine reports about its load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Prompt tokens looked up in the cache since the start.
    pub queried_tokens: u64,
    /// Of those, the ones that were cached.
    pub hit_tokens: u64,
    /// Share of blocks in use, 0 to 1.
    pub cache_usage: f64,
}

/// A running request whose prompt has been computed.
pub struct Generation {
    running: Running,
    digest: PromptDigest,
    max_tokens: usize,
    produced: usize,
    first_token_at: Instant,
    prompt_tokens: usize,
    cached_tokens: usize,
}

/// The engine is shutting down and takes no more requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShuttingDown;

struct Shared {
    state: Mutex<State>,
    places: Arc<Semaphore>,
    prefill_lane: tokio::sync::Mutex<()>,
    /// Told when blocks are released; only the request at the head of the lane listens.
    released: Notify,
    timing: Timing,
    generated_tokens_cached: bool,
    capacity_tokens: usize,
    /// The tokens that may be generated.
    generated: Arc<[u32]>,
}

struct State {
    cache: BlockCache,
    load: Load,
    sink: EventSink,
}

/// Counts a waiting request for as long as it lives.
struct Waiting<'a>(&'a Scheduler);

/// Holds a running request's blocks and place for as long as it lives.
struct Running {
    scheduler: Scheduler,
    sequence: Option<Sequence>,
    place: Option<OwnedSemaphorePermit>,
}

// === impl Scheduler ===

impl Scheduler {
    /// An idle scheduler over an empty cache, which generates tokens among `generated`.
    pub fn new(options: &EngineOptions, generated: Arc<[u32]>, sink: EventSink) -> Scheduler {
        let cache = BlockCache::new(options.blocks, options.block_size, EngineKey::random_root());
        if options.event_encoding.announces_an_empty_cache() {
            sink.publish(vec![KvEvent::AllBlocksCleared]);
        }
        Scheduler(Arc::new(Shared {
            places: Arc::new(Semaphore::new(options.max_running.get().min(Semaphore::MAX_PERMITS))),
            prefill_lane: tokio::sync::Mutex::new(()),
            released: Notify::new(),
            timing: options.timing,
            generated_tokens_cached: options.generated_tokens_cached,
            capacity_tokens: cache.capacity_tokens(),
            generated,
            state: Mutex::new(State { cache, load: Load::default(), sink }),
        }))
    }

    /// The most tokens that a prompt and its completion may have together.
    pub fn capacity_tokens(&self) -> usize {
        self.0.capacity_tokens
    }

    /// The load now.
    pub fn load(&self) -> Load {
        let state = self.state();
        Load { cache_usage: state.cache.usage(), ..state.load }
    }

    /// Empties the cache.
    ///
    /// # Errors
    /// When requests use blocks of it.
    pub fn reset_prefix_cache(&self) -> Result<(), BlocksInUse> {
        self.state().change(|cache, events| cache.clear(events))
    }

    /// Starts over: with an empty cache, of which nothing is said, and a publisher whose numbers begin again.
    ///
    /// # Errors
    /// When requests use blocks of it.
    pub fn restart(&self) -> Result<(), BlocksInUse> {
        let mut state = self.state();
        state.cache.clear(&mut Vec::new())?;
        state.sink.restart();
        Ok(())
    }

    /// Takes no more requests; those that wait are refused.
    pub fn shut_down(&self) {
        self.0.places.close();
    }

    /// Waits until the request can run and computes its prompt. The prompt and
    /// `max_tokens` together must not exceed [`Scheduler::capacity_tokens`], or the request waits forever.
    ///
    /// # Errors
    /// When the engine shuts down before the request runs.
    pub async fn prefill(
        &self,
        namespace: Namespace<'_>,
        prompt: &[u32],
        max_tokens: usize,
    ) -> Result<Generation, ShuttingDown> {
        let waiting = Waiting::new(self);
        let place = Arc::clone(&self.0.places).acquire_owned().await.map_err(|_| ShuttingDown)?;
        let _lane = self.0.prefill_lane.lock().await;
        let sequence = self.admit(namespace, prompt, max_tokens).await;
        drop(waiting);

        let cached_tokens = sequence.cached_tokens();
        let mut running = Running::new(self, sequence, place, prompt.len());
        sleep(self.0.timing.prefill(prompt.len().saturating_sub(cached_tokens))).await;
        running.change(|cache, sequence, events| cache.store(sequence, events));
        Ok(Generation {
            running,
            digest: PromptDigest::of(prompt),
            max_tokens,
            produced: 0,
            first_token_at: Instant::now(),
            prompt_tokens: prompt.len(),
            cached_tokens,
        })
    }

    async fn admit(&self, namespace: Namespace<'_>, prompt: &[u32], max_tokens: usize) -> Sequence {
        // The last generated token is never fed back, so nothing is cached for it.
        let more_tokens = if self.0.generated_tokens_cached { max_tokens.saturating_sub(1) } else { 0 };
        loop {
            // Listens before it tries, so that no release in between is missed.
            let released = self.0.released.notified();
            let admitted = self.state().change(|cache, events| cache.admit(namespace, prompt, more_tokens, events));
            match admitted {
                Ok(sequence) => return sequence,
                Err(_) => released.await,
            }
        }
    }

    /// A panic while it was held would leave counts that are off, not memory that is unsound.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn change<T>(&mut self, change: impl FnOnce(&mut BlockCache, &mut Vec<KvEvent>) -> T) -> T {
        let mut events = Vec::new();
        let result = change(&mut self.cache, &mut events);
        self.sink.publish(events);
        result
    }
}

// === impl Waiting ===

impl Waiting<'_> {
    fn new(scheduler: &Scheduler) -> Waiting<'_> {
        scheduler.state().load.waiting += 1;
        Waiting(scheduler)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.load.waiting = state.load.waiting.saturating_sub(1);
    }
}

// === impl Running ===

impl Running {
    fn new(scheduler: &Scheduler, sequence: Sequence, place: OwnedSemaphorePermit, prompt_tokens: usize) -> Running {
        let mut state = scheduler.state();
        state.load.running += 1;
        state.load.queried_tokens += prompt_tokens as u64;
        state.load.hit_tokens += sequence.cached_tokens() as u64;
        drop(state);
        Running { scheduler: scheduler.clone(), sequence: Some(sequence), place: Some(place) }
    }

    fn change(&mut self, change: impl FnOnce(&mut BlockCache, &mut Sequence, &mut Vec<KvEvent>)) {
        if let Some(sequence) = self.sequence.as_mut() {
            self.scheduler.state().change(|cache, events| change(cache, sequence, events));
        }
    }

    fn finish(&mut self) {
        let Some(sequence) = self.sequence.take() else { return };
        let mut state = self.scheduler.state();
        state.cache.release(sequence);
        state.load.running = state.load.running.saturating_sub(1);
        drop(state);
        self.place = None;
        self.scheduler.0.released.notify_one();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.finish();
    }
}

// === impl Generation ===

impl Generation {
    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Tokens of the prompt that came from the cache.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// Tokens generated so far.
    pub fn produced(&self) -> usize {
        self.produced
    }

    /// The next token once it is due; none after the last. With the last one the request has stopped running.
    pub async fn next_token(&mut self) -> Option<u32> {
        if self.produced >= self.max_tokens {
            return None;
        }
        let shared = Arc::clone(&self.running.scheduler.0);
        if let Some(previous) = self.produced.checked_sub(1) {
            sleep_until(self.first_token_at + shared.timing.decode(self.produced)).await;
            if shared.generated_tokens_cached {
                let token_id = self.digest.generate(previous, &shared.generated);
                self.running.change(|cache, sequence, events| cache.extend(sequence, token_id, events));
            }
        }
        let token_id = self.digest.generate(self.produced, &shared.generated);
        self.produced += 1;
        if self.produced == self.max_tokens {
            self.running.finish();
        }
        Some(token_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;
    use std::time::Duration;

    fn scheduler(blocks: usize, max_running: usize) -> Scheduler {
        let options = EngineOptions {
            blocks: NonZeroUsize::new(blocks).unwrap(),
            max_running: NonZeroUsize::new(max_running).unwrap(),
            ..EngineOptions::default()
        };
        Scheduler::new(&options, Arc::new([1, 2, 3]), EventSink::none())
    }

    async fn complete(scheduler: &Scheduler, prompt: Vec<u32>, max_tokens: usize) -> (usize, Duration) {
        let start = Instant::now();
        let mut generation = scheduler.prefill(Namespace::default(), &prompt, max_tokens).await.unwrap();
        let first_token = start.elapsed();
        while generation.next_token().await.is_some() {}
        (generation.cached_tokens(), first_token)
    }

    #[tokio::test(start_paused = true)]
    async fn time_to_first_token_follows_uncached_tokens() {
        let scheduler = scheduler(100, 8);
        let prompt: Vec<u32> = (0..170).collect();
        let (cached, cold) = complete(&scheduler, prompt.clone(), 1).await;
        assert_eq!((cached, cold.as_millis()), (0, 22));
        let (cached, warm) = complete(&scheduler, prompt, 1).await;
        assert_eq!((cached, warm.as_millis()), (160, 6));
    }

    #[tokio::test(start_paused = true)]
    async fn prompts_are_computed_one_at_a_time_and_counted() {
        let scheduler = scheduler(1_000, 2);
        let tasks: Vec<_> = (0..4_u32)
            .map(|n| {
                let scheduler = scheduler.clone();
                tokio::spawn(async move { complete(&scheduler, vec![n; 950], 100).await.1 })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(150)).await;
        let load = scheduler.load();
        assert_eq!((load.running, load.waiting), (2, 2));
        let mut times = Vec::new();
        for task in tasks {
            times.push(task.await.unwrap().as_millis());
        }
        // The third starts when the first has generated its 100 tokens: 100 + 99 x 2 ms.
        assert_eq!(times, [100, 200, 398, 498]);
        let load = scheduler.load();
        assert_eq!((load.running, load.waiting, load.cache_usage), (0, 0, 0.0));
        assert_eq!((load.queried_tokens, load.hit_tokens), (3_800, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_blocks() {
        let scheduler = scheduler(10, 8);
        let first = scheduler.prefill(Namespace::default(), &[1; 150], 10).await.unwrap();
        let waiting = tokio::spawn({
            let scheduler = scheduler.clone();
            async move { complete(&scheduler, vec![2; 20], 1).await.1 }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(scheduler.load().waiting, 1);
        drop(first);
        assert!(waiting.await.unwrap() >= Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_dropped_while_it_waits_or_runs_leaves_nothing() {
        let scheduler = scheduler(10, 1);
        for _ in 0..2 {
            let running = tokio::spawn({
                let scheduler = scheduler.clone();
                async move { complete(&scheduler, vec![1; 100], 1).await }
            });
            let waiting = tokio::spawn({
                let scheduler = scheduler.clone();
                async move { complete(&scheduler, vec![2; 100], 1).await }
            });
            tokio::time::sleep(Duration::from_millis(3)).await;
            assert_eq!((scheduler.load().running, scheduler.load().waiting), (1, 1));
            waiting.abort();
            running.abort();
            assert!(waiting.await.is_err() && running.await.is_err());
            let load = scheduler.load();
            assert_eq!((load.running, load.waiting, load.cache_usage), (0, 0, 0.0));
        }
    }
}
