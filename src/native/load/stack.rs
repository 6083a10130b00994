//! A local stack: Envoy with the module, a hub, and fake engines, each a child process on free loopback ports.
//!
//! Started, it is ready: every program answers its health check. Dropped, its processes are killed by their ids and its
//! folder is removed; after a panic the folder stays, with everything the programs wrote, and its path is printed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::child::Child;
use super::client::{Answer, Client, RequestFailed};
use super::envoy_config::{Addresses, EngineAddresses, UnknownSample};
use super::ports::NoFreePort;
use super::programs::MissingProgram;
use super::prometheus::Scrape;

mod options;

pub use options::{Edit, EngineOptions, ServedModel, StackOptions};

/// How long a program may take until it is ready: Envoy compiles the module first, which on a busy machine takes its time.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How often a condition is looked at again.
const POLL: Duration = Duration::from_millis(25);

/// The running stack.
pub struct Stack {
    /// Where everything listens.
    pub addresses: Addresses,
    /// A client to share.
    pub client: Client,
    /// Envoy.
    pub envoy: Child,
    /// The hub.
    pub hub: Child,
    /// The engines, `engine-0` first.
    pub engines: Vec<Child>,
    folder: Folder,
}

/// A stack that did not start, or a program of it that cannot be handled.
#[derive(Debug)]
pub enum StackError {
    /// A program is not there.
    Missing(MissingProgram),
    /// No port is free.
    NoFreePort(NoFreePort),
    /// The sample configuration is not as expected.
    Sample(UnknownSample),
    /// A configuration cannot be written as YAML.
    Yaml(serde_norway::Error),
    /// The system refuses.
    Io(io::Error),
    /// A program did not become ready.
    NotReady {
        /// Its name.
        name: String,
        /// What it wrote last.
        log_tail: String,
    },
}

/// The folder of a stack's files.
struct Folder(PathBuf);

// === impl Stack ===

impl Stack {
    /// Starts everything and waits until it is ready.
    ///
    /// # Errors
    /// When a program is missing, cannot be started, or is not ready in time; what was started is stopped again.
    pub async fn start(mut options: StackOptions) -> Result<Stack, StackError> {
        let addresses = options.addresses()?;
        let folder = Folder::new()?;
        let envoy_file = folder.write("envoy.yaml", &options.envoy_yaml(&addresses)?)?;
        let hub_file = folder.write("hub.yaml", &options.hub_yaml(&addresses)?)?;
        let programs = options.programs.clone();
        let mut envoy_arguments = envoy_arguments(&envoy_file, options.workers);
        envoy_arguments.extend(std::mem::take(&mut options.envoy_arguments));
        let children = if options.with_engines { addresses.engines.as_slice() } else { &[] };
        let engine = |(place, addresses): (usize, &EngineAddresses)| {
            let id = engine_id(place);
            let arguments = options.engine.arguments(&id, &options.model_of(place), addresses);
            Child::new(&id, &programs.fake_engine, arguments, &folder.0)
        };
        let hub = Child::new("hub", &programs.hub, vec!["--config".into(), hub_file], &folder.0);
        let mut stack = Stack {
            envoy: Child::new("envoy", &programs.envoy, envoy_arguments, &folder.0),
            hub: if options.hub_yields { hub.yielding() } else { hub },
            engines: children.iter().enumerate().map(engine).collect(),
            addresses,
            client: Client::default(),
            folder,
        };
        stack.start_all(options.with_hub).await?;
        Ok(stack)
    }

    async fn start_all(&mut self, with_hub: bool) -> Result<(), StackError> {
        for engine in &mut self.engines {
            engine.start()?;
        }
        if with_hub {
            self.hub.start()?;
        }
        self.envoy.start()?;
        for place in 0..self.engines.len() {
            self.engine_ready(place).await?;
        }
        if with_hub {
            self.hub_ready().await?;
        }
        let url = self.admin_url("/ready");
        ready(&self.client, &mut self.envoy, &url).await
    }

    /// Waits until an engine answers its health check.
    ///
    /// # Errors
    /// When it does not in time, or has ended.
    pub async fn engine_ready(&mut self, place: usize) -> Result<(), StackError> {
        let url = format!("{}/health", self.engine_url(place));
        match self.engines.get_mut(place) {
            Some(engine) => ready(&self.client, engine, &url).await,
            None => Err(StackError::NotReady { name: engine_id(place), log_tail: String::new() }),
        }
    }

    /// Waits until the hub answers its readiness check.
    ///
    /// # Errors
    /// When it does not in time, or has ended.
    pub async fn hub_ready(&mut self) -> Result<(), StackError> {
        let url = format!("http://{}/readyz", self.addresses.hub_http);
        ready(&self.client, &mut self.hub, &url).await
    }

    /// Envoy's URL, without a path.
    pub fn envoy_url(&self) -> String {
        format!("http://{}", self.addresses.envoy)
    }

    /// The URL of the listener without the filter.
    pub fn plain_url(&self) -> String {
        format!("http://{}", self.addresses.plain)
    }

    /// A URL of Envoy's admin interface; `path` begins with `/`.
    pub fn admin_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addresses.admin)
    }

    /// An engine's own URL, without a path.
    pub fn engine_url(&self, place: usize) -> String {
        let address = self.addresses.engines.get(place).map(|engine| engine.http.to_string());
        format!("http://{}", address.unwrap_or_default())
    }

    /// What an engine is called in the hub's configuration and in the filter's answers.
    pub fn replica_id(&self, place: usize) -> String {
        engine_id(place)
    }

    /// Envoy's metrics, the filter's among them.
    ///
    /// # Errors
    /// When Envoy does not answer.
    pub async fn metrics(&self) -> Result<Scrape, RequestFailed> {
        self.client.get(&self.admin_url("/stats/prometheus")).await.map(|answer| Scrape::parse(&answer.text()))
    }

    /// Makes an engine forget every block.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub async fn reset_prefix_cache(&self, place: usize) -> Result<Answer, RequestFailed> {
        self.client.post_json(&format!("{}/reset_prefix_cache", self.engine_url(place)), "").await
    }

    /// Where the programs' files and logs are.
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for child in [&self.envoy, &self.hub].into_iter().chain(&self.engines) {
                eprintln!("--- the end of {}.log\n{}", child.name(), child.log_tail());
            }
        }
    }
}

/// Looks at a condition until it holds or the time is over; whether it held.
pub async fn eventually(within: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    loop {
        if condition().await {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Waits for a 200 at `url`, as long as the program runs.
async fn ready(client: &Client, child: &mut Child, url: &str) -> Result<(), StackError> {
    let mut ended = false;
    let answered = eventually(READY_WITHIN, async || {
        ended = child.has_exited();
        ended || client.get(url).await.is_ok_and(|answer| answer.status.is_success())
    })
    .await;
    if answered && !ended {
        return Ok(());
    }
    Err(StackError::NotReady { name: child.name().to_owned(), log_tail: child.log_tail() })
}

fn engine_id(place: usize) -> String {
    format!("engine-{place}")
}

fn envoy_arguments(config: &str, workers: u32) -> Vec<String> {
    let workers = workers.to_string();
    ["-c", config, "--concurrency", &workers, "--disable-hot-restart", "--log-level", "info"]
        .map(str::to_owned)
        .to_vec()
}

// === impl Folder ===

impl Folder {
    fn new() -> io::Result<Folder> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("warmroute-stack-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    fn write(&self, name: &str, text: &str) -> io::Result<String> {
        let path = self.0.join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the stack's files are in {}", self.0.display());
        } else if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

// === impl StackError ===

impl std::fmt::Display for StackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StackError::Missing(error) => error.fmt(f),
            StackError::NoFreePort(error) => error.fmt(f),
            StackError::Sample(error) => error.fmt(f),
            StackError::Yaml(error) => error.fmt(f),
            StackError::Io(error) => error.fmt(f),
            StackError::NotReady { name, log_tail } => {
                write!(f, "{name} is not ready after {READY_WITHIN:?}, or has ended; it wrote last:\n{log_tail}")
            }
        }
    }
}

impl std::error::Error for StackError {}

impl From<MissingProgram> for StackError {
    fn from(error: MissingProgram) -> StackError {
        StackError::Missing(error)
    }
}

impl From<NoFreePort> for StackError {
    fn from(error: NoFreePort) -> StackError {
        StackError::NoFreePort(error)
    }
}

impl From<UnknownSample> for StackError {
    fn from(error: UnknownSample) -> StackError {
        StackError::Sample(error)
    }
}

impl From<serde_norway::Error> for StackError {
    fn from(error: serde_norway::Error) -> StackError {
        StackError::Yaml(error)
    }
}

impl From<io::Error> for StackError {
    fn from(error: io::Error) -> StackError {
        StackError::Io(error)
    }
}
