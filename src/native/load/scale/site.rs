//! A stack for a large pool: Envoy and the hub as child processes, the pool in this one, a relay between the two.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ScaleError;
use super::measure::{Buckets, Usage};
use super::pool::Pool;
use super::traffic::Target;
use crate::native::load::envoy_config;
use crate::native::load::listeners::{ListenerFile, serve_from};
use crate::native::load::ports::free_address;
use crate::native::load::programs::Programs;
use crate::native::load::prometheus::Scrape;
use crate::native::load::relay::Relay;
use crate::native::load::stack::{Edit, Stack, StackOptions, eventually};

/// The module's histogram of background steps.
const BACKGROUND_STEPS: &str = "warmroute_background_step_us";

/// Envoy writes its metrics on the thread on which the leading VM runs: not to be asked for all the time.
const SCRAPE_EVERY: Duration = Duration::from_millis(150);

/// What a site is like.
#[derive(Clone, Debug)]
pub struct SiteOptions {
    /// Replicas.
    pub replicas: usize,
    /// Envoy's workers.
    pub workers: u32,
    /// `limits.max_index_entries`.
    pub max_index_entries: usize,
}

/// The stack, with nothing held yet.
pub struct Site {
    /// Envoy and the hub.
    pub stack: Stack,
    /// The replicas.
    pub pool: Arc<Pool>,
    /// The way from Envoy to the hub.
    pub relay: Relay,
    listeners: ListenerFile,
}

/// What is counted, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Blocks that the hub took in or let go, so far.
    pub hub_changes: f64,
    /// Segments in the shared log, so far.
    pub log_sequence: f64,
    /// Pairs in the leader's index.
    pub pairs: f64,
    /// Bytes that index accounts for; 0 where the module does not say.
    pub index_bytes: f64,
    /// Blocks refused because the index was full.
    pub refused: f64,
    /// Times a VM fell off the log.
    pub fell_off: f64,
    /// Event messages that the hub missed.
    pub gaps: f64,
    /// Background steps, in us; empty where the module does not say.
    pub background: Buckets,
    /// What Envoy uses.
    pub envoy: Usage,
    /// What the hub uses.
    pub hub: Usage,
}

// === impl Site ===

impl Site {
    /// Starts everything.
    ///
    /// # Errors
    /// When a program is missing or does not get ready.
    pub async fn start(options: &SiteOptions) -> Result<Site, ScaleError> {
        Site::start_with(options, Box::new(|_, _| {})).await
    }

    /// The same, with Envoy's configuration changed first.
    ///
    /// # Errors
    /// As [`Site::start`].
    pub async fn start_with(options: &SiteOptions, edit_envoy: Edit) -> Result<Site, ScaleError> {
        let relay = Relay::start().await?;
        let listeners = ListenerFile::default();
        let mut stack = Stack::start(stack_options(options, relay.address(), &listeners, edit_envoy)?).await?;
        let pool = Arc::new(Pool::start(&stack.addresses.engines).await?);
        relay.open(stack.addresses.hub_grpc, None);
        stack.hub.start()?;
        stack.hub_ready().await?;
        Ok(Site { stack, pool, relay, listeners })
    }

    /// Where requests go.
    pub fn target(&self, connections: usize, per_second: f64) -> Target {
        let (filtered, plain, direct) = (self.stack.envoy_url(), self.stack.plain_url(), self.stack.engine_url(0));
        Target { filtered, plain, direct, connections, per_second }
    }

    /// Blocks that the hub knows to be held.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn hub_blocks(&self) -> Result<usize, ScaleError> {
        let answer = self.stack.client.get(&format!("http://{}/state", self.stack.addresses.hub_http)).await?;
        let state: Value = serde_json::from_slice(&answer.body).map_err(ScaleError::new)?;
        let replicas = state.get("replicas").and_then(Value::as_array).into_iter().flatten();
        let blocks = replicas.filter_map(|replica| replica.get("blocks")?.as_u64()).sum::<u64>();
        usize::try_from(blocks).map_err(ScaleError::new)
    }

    /// Waits until the hub knows exactly what the pool holds; how long that took.
    ///
    /// # Errors
    /// When it does not within that time.
    pub async fn hub_knows(&self, within: Duration) -> Result<Duration, ScaleError> {
        let start = Instant::now();
        let mut known = 0;
        let knows = eventually(within, async || {
            known = self.hub_blocks().await.unwrap_or(0);
            known == self.pool.blocks()
        });
        match knows.await {
            true => Ok(start.elapsed()),
            false => Err(ScaleError::new(format!(
                "after {within:?} the hub knows of {known} blocks, held are {}; it wrote last:\n{}",
                self.pool.blocks(),
                self.stack.hub.log_tail()
            ))),
        }
    }

    /// Waits until the hub and the leading VM know exactly what the pool holds; how long that took.
    ///
    /// # Errors
    /// When they do not within that time.
    pub async fn all_known(&self, within: Duration) -> Result<Duration, ScaleError> {
        let start = Instant::now();
        self.hub_knows(within).await?;
        let mut pairs = 0.0;
        let knows = eventually(within.saturating_sub(start.elapsed()), async || {
            tokio::time::sleep(SCRAPE_EVERY).await;
            pairs = self.scrape().await.map_or(-1.0, |scrape| scrape.sum("warmroute_index_pairs", &[]));
            pairs == self.pool.blocks() as f64
        });
        match knows.await {
            true => Ok(start.elapsed()),
            false => Err(ScaleError::new(format!(
                "after {within:?} the index has {pairs} pairs, held are {}; Envoy wrote last:\n{}",
                self.pool.blocks(),
                self.stack.envoy.log_tail()
            ))),
        }
    }

    /// What is counted now.
    ///
    /// # Errors
    /// When Envoy or the hub does not answer.
    pub async fn figures(&self) -> Result<Figures, ScaleError> {
        let module = self.scrape().await?;
        let url = format!("http://{}/metrics", self.stack.addresses.hub_http);
        let hub = Scrape::parse(&self.stack.client.get(&url).await?.text());
        Ok(Figures {
            hub_changes: hub.sum("warmroute_hub_blocks_stored_total", &[])
                + hub.sum("warmroute_hub_blocks_removed_total", &[]),
            gaps: hub.sum("warmroute_hub_gaps_total", &[]),
            log_sequence: module.sum("warmroute_log_sequence", &[]),
            pairs: module.sum("warmroute_index_pairs", &[]),
            index_bytes: module.sum("warmroute_index_bytes", &[]),
            refused: module.sum("warmroute_blocks_refused_total", &[("kind", "full")]),
            fell_off: module.sum("warmroute_fell_off_log_total", &[]),
            background: Buckets::of(&module, BACKGROUND_STEPS),
            envoy: Usage::of(self.stack.envoy.pid())?,
            hub: Usage::of(self.stack.hub.pid())?,
        })
    }

    /// Adds a listener whose VMs are new; where it will be.
    ///
    /// # Errors
    /// When the listeners' file cannot be changed.
    pub fn add_late_listener(&self) -> Result<SocketAddr, ScaleError> {
        let address = free_address().map_err(ScaleError::new)?;
        self.listeners.add_listener_with_own_vms("late", address)?;
        Ok(address)
    }

    async fn scrape(&self) -> Result<Scrape, ScaleError> {
        Ok(self.stack.metrics().await?)
    }
}

fn stack_options(
    options: &SiteOptions,
    hub: SocketAddr,
    listeners: &ListenerFile,
    edit_envoy: Edit,
) -> Result<StackOptions, ScaleError> {
    let path = listeners.path().to_path_buf();
    Ok(StackOptions {
        engines: options.replicas,
        workers: options.workers,
        with_hub: false,
        hub_yields: true,
        with_engines: false,
        plain_listener: true,
        plugin: json!({
            "output": { "response_headers": true },
            "limits": { "max_index_entries": options.max_index_entries },
        }),
        // The publishers share the machine with everything else and may be slow to answer: a replay that is given up costs
        // the hub all that it knows of the replica.
        edit_hub: Some(Box::new(|config, _| {
            let events = json!({ "replay_timeout_ms": 20_000, "replay_cooldown_ms": 0 });
            if let (Some(config), Ok(events)) = (config.as_mapping_mut(), serde_norway::to_value(events)) {
                config.insert("events".into(), events);
            }
        })),
        // What cannot be replaced shows when Envoy does not get ready.
        edit_envoy: Some(Box::new(move |config, addresses| {
            edit_envoy(config, addresses);
            let _ = envoy_config::set_hub(config, hub);
            let _ = serve_from(config, &path);
        })),
        ..StackOptions::new(Programs::find().map_err(ScaleError::new)?)
    })
}
