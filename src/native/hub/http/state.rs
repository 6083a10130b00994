//! `/state`, put together from what the parts of the hub say of themselves.

use axum::Json;
use axum::extract::State;

use super::Operations;
use crate::native::hub::clock::{hub_ms, unix_ms};
use crate::native::hub::fleet::FollowerView;
use crate::native::hub::followed::ReplicaView;
use crate::native::hub::report::{
    HubReport, MAX_FOLLOWED, MAX_REPORTED, MAX_STREAMS, MemoryReport, ModelReport, ReplicaReport, ReportedReport,
    StreamReport,
};
use crate::native::hub::roster::StreamView;
use crate::native::hub::state::HubState;
use crate::publisher::Publisher;
use crate::wire::MAX_UNACKNOWLEDGED_BYTES;

/// Answers with a report.
pub(super) async fn state(State(operations): State<Operations>) -> Json<HubReport> {
    Json(report(&operations))
}

fn report(operations: &Operations) -> HubReport {
    let Operations { state, metrics, fleet } = operations;
    // Ages are by the hub's own time, which no clock that is set changes.
    let (now_ms, sequence) = (hub_ms(), state.sequence());
    let (streams, _) = metrics.roster().view(MAX_STREAMS);
    let mut followers = fleet.view();
    let views = state.view();
    let replicas_total = views.len();
    let known = views.into_iter().filter_map(|view| Some((followers.remove(&view.index)?, view)));
    let replicas = known.take(MAX_FOLLOWED).map(|(follower, view)| replica(&view, follower, now_ms));
    let (reported, reported_total) = state.read(reported);
    HubReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        now_ms: unix_ms(),
        epoch: state.epoch(),
        sequence,
        complete: state.is_complete(),
        subscribers: metrics.subscribers(),
        streams: streams.into_iter().map(|view| stream(view, sequence, now_ms)).collect(),
        replicas: replicas.collect(),
        replicas_total,
        reported,
        reported_total,
        models: models(state),
        memory: memory(state),
    }
}

fn stream(view: StreamView, sequence: u64, now_ms: u64) -> StreamReport {
    StreamReport {
        node_id: view.node_id,
        open_for_ms: now_ms.saturating_sub(view.since_ms),
        position: view.position,
        behind: sequence.saturating_sub(view.position),
        unacknowledged_bytes: view.unacknowledged_bytes,
        window_bytes: MAX_UNACKNOWLEDGED_BYTES,
    }
}

fn replica(view: &ReplicaView, follower: FollowerView, now_ms: u64) -> ReplicaReport {
    let FollowerView { config, rank, metrics, scrapes } = follower;
    let counts = metrics.counts();
    let ago = |ms: Option<u64>| ms.map(|ms| now_ms.saturating_sub(ms));
    let figures = scrapes.figures;
    ReplicaReport {
        id: view.id.clone(),
        tenant: config.tenant,
        model: config.model,
        address: view.address.clone(),
        engine: config.engine.as_str().to_owned(),
        data_parallel_size: config.data_parallel_size,
        data_parallel_rank: rank,
        incomplete: metrics.incomplete.get() == 1,
        connected: metrics.connected.get() == 1,
        complete: view.complete,
        blocks: view.blocks,
        blocks_by_tier: ["T1", "T2", "T3"].map(str::to_owned).into_iter().zip(view.by_tier).collect(),
        event_sequence: metrics.last_sequence.get(),
        gaps: counts.gaps,
        replays: counts.replays,
        replays_failed: counts.replays_failed,
        restarts: counts.restarts,
        clears: counts.clears,
        drops: counts.drops.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect(),
        lag_ms: counts.lag_ms,
        last_event_ago_ms: ago(counts.last_event_ms),
        last_message_ago_ms: ago(counts.last_message_ms),
        running: figures.running,
        waiting: figures.waiting,
        pressure: view.stats.map(|stats| stats.pressure),
        hit_rate: view.stats.map(|stats| stats.hit_rate),
        cache_usage: figures.cache_usage,
        external_hit_tokens: figures.external_hits,
        external_query_tokens: figures.external_queries,
        last_scrape_ago_ms: ago(scrapes.answered_ms),
        scrape_fault: scrapes.fault.map(|fault| fault.as_str().to_owned()),
    }
}

fn models(state: &HubState) -> Vec<ModelReport> {
    let all = state.models().all().into_iter();
    all.map(|(model_id, model)| ModelReport {
        id: model_id.to_string(),
        digest: format!("{:032x}", model.version.digest.0),
        bytes: model.version.length as u64,
        kind: model.outline.kind.to_string(),
        vocabulary: model.outline.vocabulary as u64,
        chat_template: model.has_chat_template,
    })
    .collect()
}

fn reported(publisher: &Publisher) -> (Vec<ReportedReport>, usize) {
    let all = publisher.reported();
    let total = all.len();
    let first = all.into_iter().take(MAX_REPORTED).map(|(slot, replica)| ReportedReport {
        id: replica.member.replica_id.to_string(),
        tenant: replica.member.tenant_id.to_string(),
        model: replica.member.model_id.to_string(),
        address: replica.address.to_string(),
        blocks: publisher.index().pairs_of(slot),
        pressure: replica.stats.map(|stats| stats.pressure),
        hit_rate: replica.stats.map(|stats| stats.hit_rate),
    });
    (first.collect(), total)
}

fn memory(state: &HubState) -> MemoryReport {
    let sizes = state.sizes();
    MemoryReport {
        resident_bytes: resident_bytes(),
        resume_buffer_bytes: sizes.resume_buffer_bytes,
        followed_blocks: sizes.followed_blocks,
        index_pairs: sizes.index_pairs,
        index_bytes: sizes.index_bytes,
        scopes: sizes.scopes,
    }
}

/// What the process has in memory, as Linux says it.
fn resident_bytes() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split_ascii_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(u64::try_from(rustix::param::page_size()).ok()?)
}
