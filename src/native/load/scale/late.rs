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
/// New connections, one answer over each, that have to be right one after the other: enough that every worker gets some.
const CONNECTIONS: usize = 48;
/// From one of them to the next. A request helps its VM to catch up, so there are few of them.
const ASK_EVERY: Duration = Duration::from_millis(40);
/// After loading, until memory is read: allocators give back, pages are written.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// What the late VMs said until they were complete.
#[derive(Clone, Debug, Default)]
pub struct LateVm {
    /// From the first response over the listener until every further one came from the whole index.
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
            let url = site.stack.envoy_url();
            let caught_up = complete(&site, &url).await?.complete_after;
            println!(
                "{workers} workers: every VM answered from the whole index {:.1} s later",
                caught_up.as_secs_f64()
            );
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
    complete(site, &url).await
}

/// Asks until so many answers one after the other, each over a new connection, come from the whole index.
async fn complete(site: &Site, url: &str) -> Result<LateVm, ScaleError> {
    let (start, mut late) = (Instant::now(), LateVm::default());
    let (mut whole_in_turn, mut asked) = (0, 0);
    while whole_in_turn < CONNECTIONS && start.elapsed() < GIVEN_UP_AFTER {
        let place = asked % site.pool.len().max(1);
        asked += 1;
        let Some(conversation) = site.pool.held_by(place, asked as u64) else { continue };
        let decision = decide(&Client::default(), url, &conversation).await?;
        late.add(&conversation, &decision);
        if !decision.is_whole(&conversation) {
            whole_in_turn = 0;
        } else if whole_in_turn == 0 {
            late.complete_after = start.elapsed();
            whole_in_turn = 1;
        } else {
            whole_in_turn += 1;
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    if whole_in_turn < CONNECTIONS {
        late.complete_after = start.elapsed();
    }
    Ok(late)
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
