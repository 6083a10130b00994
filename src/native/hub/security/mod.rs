//! Who may talk to the hub: TLS, client certificates, bearer tokens, and how many at a time.
//!
//! ```text
//! socket ─► door (connections, TLS, client certificate) ─► gate (token, calls in flight) ─► service
//!                     └── refusals: counted by reason, logged now and then ──┘
//! ```
//!
//! Whom the hub does not know learns nothing but that: there is one answer to a missing and to a wrong token, whatever the
//! method, be there such a method or not. `grpc.health.v1.Health/Check`, `/healthz` and `/readyz` answer anybody who gets
//! through the door, as probes carry no tokens: whether the hub serves, and nothing of what it knows. Reflection needs a
//! token that allows some call. Where no tokens are configured, all who get through the door may call.
//!
//! The files are read again when they change. The last good ones stay where the new ones are not. Streams whose token is no
//! longer there end; connections go on with the certificates with which they began.

mod calls;
mod door;
mod gate;
mod operations;
mod refusals;
mod tls;
mod tokens;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::config::SecurityConfig;
use tokens::TokenSet;

pub use calls::{Calls, Holding};
pub use door::{Connection, Door, Incoming, Peer};
pub use gate::GateLayer;
pub use operations::guarded;
pub use refusals::{Refusal, Refusals, SecurityMetrics};
pub use tokens::{Grant, Revoked, first_token};

/// Contents by file, as they were read.
type Files = BTreeMap<PathBuf, Result<Vec<u8>, String>>;

/// What the configuration and its files come to.
pub struct Security {
    config: SecurityConfig,
    material: RwLock<Material>,
}

/// What the files come to.
#[derive(Clone, Default)]
struct Material {
    grpc: Option<Arc<ServerConfig>>,
    http: Option<Arc<ServerConfig>>,
    tokens: Arc<TokenSet>,
}

// === impl Security ===

impl Security {
    /// Reads the files.
    ///
    /// # Errors
    /// A line for each thing that is wrong with them.
    pub fn load(config: &SecurityConfig) -> Result<(Security, Files), Vec<String>> {
        let files = read(config);
        let material = Material::new(config, &files, None)?;
        Ok((Security { config: config.clone(), material: RwLock::new(material) }, files))
    }

    /// What is wrong with the files, one line each.
    pub fn problems(config: &SecurityConfig) -> Vec<String> {
        Security::load(config).err().unwrap_or_default()
    }

    /// Reads the files again and again, until `stop`. `files` is what they were.
    pub async fn follow(self: Arc<Security>, mut files: Files, metrics: SecurityMetrics, stop: CancellationToken) {
        if files.is_empty() {
            return;
        }
        while stop.run_until_cancelled(sleep(self.config.reload)).await.is_some() {
            let config = self.config.clone();
            let Ok(now) = spawn_blocking(move || read(&config)).await else { return };
            if now != files {
                self.replace(&now, &metrics);
                files = now;
            }
        }
    }

    fn replace(&self, files: &Files, metrics: &SecurityMetrics) {
        let current = self.material.read().unwrap_or_else(PoisonError::into_inner).clone();
        match Material::new(&self.config, files, Some(&current.tokens)) {
            Ok(material) => {
                current.tokens.end_those_not_in(&material.tokens);
                *self.material.write().unwrap_or_else(PoisonError::into_inner) = material;
                metrics.reloaded();
                info!("certificates and tokens were read again");
            }
            Err(problems) => {
                metrics.reload_failed(problems.len());
                problems.iter().for_each(|problem| warn!("{problem}; what was there before stays in use"));
            }
        }
    }

    /// How the gRPC side takes TLS; `None` where it does not.
    fn grpc_tls(&self) -> Option<Arc<ServerConfig>> {
        self.material.read().unwrap_or_else(PoisonError::into_inner).grpc.clone()
    }

    /// How the HTTP side takes TLS; `None` where it does not.
    fn http_tls(&self) -> Option<Arc<ServerConfig>> {
        self.material.read().unwrap_or_else(PoisonError::into_inner).http.clone()
    }

    fn tokens(&self) -> Arc<TokenSet> {
        Arc::clone(&self.material.read().unwrap_or_else(PoisonError::into_inner).tokens)
    }
}

// === impl Material ===

impl Material {
    fn new(config: &SecurityConfig, files: &Files, before: Option<&TokenSet>) -> Result<Material, Vec<String>> {
        let mut problems = Vec::new();
        let mut contents = |path: &PathBuf| match files.get(path) {
            Some(Ok(bytes)) => bytes.as_slice(),
            Some(Err(problem)) => {
                problems.push(format!("{}: {problem}", path.display()));
                &[]
            }
            None => &[],
        };
        let tls = config.tls.as_ref().map(|tls| tls::Pem {
            cert: contents(&tls.cert),
            key: contents(&tls.key),
            client_ca: tls.client_ca.as_ref().map(&mut contents),
        });
        let tokens: Vec<_> = config.tokens.iter().map(|tokens| (tokens, contents(&tokens.file))).collect();
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut material = Material::default();
        if let (Some(pem), Some(names)) = (tls, &config.tls) {
            match tls::configs(&pem, names) {
                Ok((grpc, http)) => {
                    material.grpc = Some(grpc);
                    material.http = config.operations.tls.then_some(http);
                }
                Err(found) => problems.extend(found),
            }
        }
        match TokenSet::new(&tokens, before) {
            Ok(tokens) => material.tokens = Arc::new(tokens),
            Err(found) => problems.extend(found),
        }
        if problems.is_empty() { Ok(material) } else { Err(problems) }
    }
}

fn read(config: &SecurityConfig) -> Files {
    let of_tls = config.tls.iter().flat_map(|tls| [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]).flatten();
    let paths = of_tls.chain(config.tokens.iter().map(|tokens| &tokens.file));
    let contents = |path: &PathBuf| std::fs::read(path).map_err(|error| format!("cannot be read: {error}"));
    paths.map(|path| (path.clone(), contents(path))).collect()
}
