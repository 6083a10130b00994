//! Parts `late` and `memory`: what Envoy takes at two sizes, and a VM that starts when the index is full.
//!
//! The late VMs belong to a listener that is added while Envoy runs: same module, same `vm_id`, same plugin, but another
//! `vm_config.configuration`, for which Envoy makes VMs of their own that share the old ones' shared data. Until they have
//! the whole index they may say `catching_up` and nothing else.

use std::time::{Duration, Instant};

use super::ask::{Decision, decide};
use super::content::Conversation;
use super::measure::Usage;
use super::options::{Part, ScaleOptions};
use super::site::Site;
use super::verdict::Verdicts;
use super::{ScaleError, load, machine, site};
use crate::native::load::client::Client;
use crate::native::load::stack::eventually;

/// The limit.
const COMPLETE_WITHIN_S: f64 = 30.0;
/// When a late VM is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(120);
/// Connections in each pass over the replicas: enough that every worker gets some.
const CONNECTIONS: usize = 4;
/// After loading, until memory is read: allocators give back, pages are written.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// What the late VMs said until they were complete.
#[derive(Clone, Debug, Default)]
pub struct LateVm {
    /// From the first response over the listener until a whole pass was answered from the whole index.
    pub complete_after: Duration,
    /// Answers that said `catching_up`.
    pub catching_up: usize,
    /// Answers from the whole index.
    pub whole: usize,
    /// Anything else, which must not be.
    pub other: usize,
    /// The first of them.
    pub example: Option<String>,
}

/// Runs both parts.
///
/// # Errors
/// When a program does not answer.
pub async fn run(options: &ScaleOptions, verdicts: &mut Verdicts) -> Result<(), ScaleError> {
    let mut rows = Vec::new();
    let mut late_vms = Vec::new();
    for workers in &options.memory_workers {
        let site = site(options, *workers, options.many_pairs).await?;
        let empty = Usage::of(site.stack.envoy.pid())?;
        for pairs in [options.pairs, options.many_pairs] {
            load(&site, options, pairs).await?;
            tokio::time::sleep(SETTLED_AFTER).await;
            rows.push(memory_row(&site, *workers, empty.rss_bytes).await?);
        }
        if options.has(Part::Late) {
            late_vms.push((*workers, site.pool.blocks(), add_late_vm(&site).await?));
            rows.push(memory_row(&site, *workers, empty.rss_bytes).await?);
        }
    }
    println!("\n## Memory of Envoy\n");
    println!(
        "| workers | VMs | pairs | RSS MB | above empty MB | bytes per pair | per pair and VM | accounted per pair |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    rows.iter().for_each(|row| println!("{row}"));
    if !late_vms.is_empty() {
        println!("\n## VMs that start late\n");
        println!("| workers | pairs | complete after s | catching_up | from the whole index | anything else | load |");
        println!("|---|---|---|---|---|---|---|");
    }
    for (workers, pairs, LateVm { complete_after, catching_up, whole, other, example }) in late_vms {
        let seconds = complete_after.as_secs_f64();
        println!("| {workers} | {pairs} | {seconds:.1} | {catching_up} | {whole} | {other} | {} |", machine::load());
        example.iter().for_each(|example| println!("\n  e.g. {example}"));
        verdicts.at_most("seconds until a late VM answers from the whole index", COMPLETE_WITHIN_S, seconds);
        verdicts.none("answers of a late VM from a part of the index", other);
    }
    println!();
    Ok(())
}

async fn memory_row(site: &Site, workers: u32, empty_bytes: u64) -> Result<String, ScaleError> {
    let figures = site.figures().await?;
    // The main thread has a VM too; a late listener has as many again.
    let late = site.stack.metrics().await?.sum("envoy_listener_manager_total_listeners_active", &[]) > 2.0;
    let vms = u64::from(workers + 1) * if late { 2 } else { 1 };
    let grown = figures.envoy.rss_bytes.saturating_sub(empty_bytes) as f64;
    let accounted =
        if figures.index_bytes > 0.0 { format!("{:.1}", figures.index_bytes / figures.pairs) } else { "-".into() };
    Ok(format!(
        "| {workers} | {vms} | {} | {:.0} | {:.0} | {:.1} | {:.1} | {accounted} |",
        figures.pairs,
        figures.envoy.rss_bytes as f64 / 1e6,
        grown / 1e6,
        grown / figures.pairs,
        grown / figures.pairs / vms as f64,
    ))
}

async fn add_late_vm(site: &Site) -> Result<LateVm, ScaleError> {
    let url = format!("http://{}", site.add_late_listener()?);
    let live = eventually(GIVEN_UP_AFTER, async || Client::default().get(&format!("{url}/health")).await.is_ok());
    if !live.await {
        return Err(ScaleError::new(format!(
            "the late listener is not live; Envoy wrote last:\n{}",
            site.stack.envoy.log_tail()
        )));
    }
    let (start, mut late) = (Instant::now(), LateVm::default());
    for pass in 0.. {
        let asked = ask_every_replica(site, &url, pass).await?;
        let all_whole = asked.iter().all(|(conversation, decision)| decision.is_whole(conversation));
        asked.iter().for_each(|(conversation, decision)| late.add(conversation, decision));
        if all_whole || start.elapsed() > GIVEN_UP_AFTER {
            break;
        }
    }
    late.complete_after = start.elapsed();
    Ok(late)
}

/// One prompt for every replica over each of some new connections, which Envoy spreads over its workers.
async fn ask_every_replica(site: &Site, url: &str, pass: u64) -> Result<Vec<(Conversation, Decision)>, ScaleError> {
    let mut asked = Vec::new();
    for connection in 0..CONNECTIONS as u64 {
        let client = Client::default();
        for place in 0..site.pool.len() {
            let Some(conversation) = site.pool.held_by(place, pass * CONNECTIONS as u64 + connection) else { continue };
            asked.push((conversation, decide(&client, url, &conversation).await?));
        }
    }
    Ok(asked)
}

// === impl LateVm ===

impl LateVm {
    fn add(&mut self, conversation: &Conversation, decision: &Decision) {
        if decision.is_whole(conversation) {
            self.whole += 1;
        } else if decision.is_catching_up() {
            self.catching_up += 1;
        } else {
            self.other += 1;
            self.example.get_or_insert_with(|| format!("{conversation:?}: {decision:?}"));
        }
    }
}
