//! The core as a [`Server`]: a publisher for what is reported, a lookup for what is asked, and a clock that is a number.
//!
//! What the contract's handler does around a lookup is here too: the reserved tenant, the deadlines, and what of an
//! answer is echoed.

use std::cell::Cell;
use std::collections::BTreeMap;

use warmroute::fingerprint::BlockSize;
use warmroute::index::Index;
use warmroute::observation::{BlockKey, RESERVED_TENANT, Scope};
use warmroute::publisher::message as reported;
use warmroute::publisher::{Publisher, PublisherLimits};
use warmroute::request::{
    ChainBlock, LookupRequest, PromptInput, PromptSource, TextPrompt, TokenizeError, Tokenized, Tokenizer as Tokenize,
    WireChain,
};
use warmroute::routing::lookup::{Answer, Lookup as CoreLookup, lookup_route};
use warmroute::routing::policy::{Policy, Ranking, Strategy};
use warmroute::routing::reason::ReasonCode;

use crate::cases::format::{self, Config, Tenant, Tokenizer, TokenizerKind};
use crate::cases::messages::{
    Bytes, CacheState, Counts, Entry, Event, EventKind, Lookup, ReplicaScore, ReplicaState, Request, Response, Stats,
    TokenIds, Update,
};
use crate::cases::{Server, settings};

/// When the clock starts: Unix time in ms.
const START_MS: u64 = 1_700_000_000_000;
/// How long a text may take where nobody sets a deadline.
const TEXT_TIMEOUT_MS: u64 = 5_000;

/// The core, set up for one case.
pub struct Core {
    /// What was reported.
    pub publisher: Publisher,
    /// The constants of the score.
    pub ranking: Ranking,
    block_size: BlockSize,
    tokenizer: Option<Tokenizer>,
    ttl_ms: u64,
    lookup_delay_ms: u64,
    /// Unix time in ms.
    pub now_ms: u64,
}

/// A time that only what is slow moves, in ms from the call on.
struct Elapsed {
    ms: Cell<u64>,
    deadline_ms: Option<u64>,
}

/// The case's tokenizer, in a lookup.
struct SlowTokenizer<'a> {
    as_set_up: Option<&'a Tokenizer>,
    elapsed: &'a Elapsed,
}

// === impl Core ===

impl Core {
    /// Knows nothing yet, and is set up as `config` says.
    pub fn new(config: &Config) -> Core {
        let limits = PublisherLimits {
            max_entries: config.max_entries.unwrap_or(PublisherLimits::default().max_entries),
            quotas: settings::quotas(&config.tenants),
            ..PublisherLimits::default()
        };
        let mut core = Core {
            publisher: Publisher::new(limits),
            ranking: settings::ranking(&config.ranker),
            block_size: settings::block_size(config),
            tokenizer: config.tokenizer.clone(),
            ttl_ms: settings::ttl_ms(config),
            lookup_delay_ms: config.lookup_delay_ms,
            now_ms: START_MS,
        };
        core.set_policies(&config.policies, None);
        core
    }

    /// What `index` answers under `policy`; the rest is as the core is set up.
    pub fn answer(&self, index: &Index, policy: &Policy, lookup: &Lookup) -> Answer {
        let request = self.request(&lookup.request);
        let elapsed = Elapsed { ms: Cell::new(0), deadline_ms: self.deadline_ms(lookup, policy, &request.prompt) };
        let tokenizer = SlowTokenizer { as_set_up: self.tokenizer.as_ref(), elapsed: &elapsed };
        let asked = Cell::new(0);
        let is_late = || {
            // Whether the time is up is asked three times; the last time the index has been looked up.
            asked.set(asked.get() + 1);
            if asked.get() == 3 {
                elapsed.pass(self.lookup_delay_ms);
            }
            elapsed.is_late()
        };
        let lookup = CoreLookup {
            index,
            policy,
            ranking: &self.ranking,
            tokenizer: &tokenizer,
            now_ms: self.now_ms,
            is_late: &is_late,
        };
        lookup_route(&lookup, &request)
    }

    /// The tighter of the caller's deadline and the policy's; without either, a text that is used has one of its own.
    fn deadline_ms(&self, lookup: &Lookup, policy: &Policy, prompt: &PromptInput) -> Option<u64> {
        let caller = lookup.caller_deadline_ms.map(|ms| u64::try_from(ms).unwrap_or(0));
        let own = Some(u64::from(policy.lookup_timeout_ms)).filter(|ms| *ms > 0);
        let of_text = || {
            let set = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.timeout_ms);
            uses_text(prompt, policy.strategy).then(|| set.unwrap_or(TEXT_TIMEOUT_MS))
        };
        caller.into_iter().chain(own).min().or_else(of_text)
    }

    /// What is asked for.
    pub fn request(&self, request: &Request) -> LookupRequest {
        LookupRequest {
            scope: Scope {
                tenant_id: request.tenant_id.clone(),
                model_id: request.model_id.clone(),
                hash_scheme: request.hash_scheme.clone(),
                adapter_id: request.adapter_id.clone(),
            },
            prompt: prompt(request),
            block_size: self.block_size,
            slo_ttft_ms: u32::try_from(request.slo_ttft_ms).ok(),
        }
    }

    fn timestamp_us(at_ms: Option<i64>) -> i64 {
        at_ms.map_or(0, |at_ms| (START_MS as i64).saturating_add(at_ms).saturating_mul(1_000))
    }
}

impl Server for Core {
    fn ingest(&mut self, update: &Update) {
        let message = reported::CacheStateUpdate {
            replica_id: update.replica_id.clone(),
            model_id: update.model_id.clone(),
            tenant_id: update.tenant_id.clone(),
            hash_scheme: update.hash_scheme.clone(),
            timestamp_us: Core::timestamp_us(update.at_ms),
            prefixes: update.prefixes.iter().map(prefix_entry).collect(),
            stats: update.stats.as_ref().map(reported_stats),
            adapter_id: update.adapter_id.clone(),
        };
        if update.bypass {
            self.publisher.report_any_tenant(&message, self.now_ms);
        } else {
            self.publisher.report(&message, self.now_ms);
        }
    }

    fn event(&mut self, event: &Event) {
        let message = reported::CacheEvent {
            kind: match event.kind {
                EventKind::Unspecified | EventKind::Unknown => reported::EventKind::Unspecified,
                EventKind::PrefixAdded => reported::EventKind::PrefixAdded,
                EventKind::PrefixEvicted => reported::EventKind::PrefixEvicted,
                EventKind::ReplicaUpdated => reported::EventKind::ReplicaUpdated,
                EventKind::AllCleared => reported::EventKind::AllCleared,
            },
            replica_id: event.replica_id.clone(),
            model_id: event.model_id.clone(),
            tenant_id: event.tenant_id.clone(),
            prefix_hash: event.prefix_hash.0.clone(),
            timestamp_us: Core::timestamp_us(event.at_ms),
            adapter_id: event.adapter_id.clone(),
        };
        self.publisher.event(&message, self.now_ms);
    }

    fn lookup(&mut self, lookup: &Lookup) -> Response {
        if is_reserved(lookup) {
            return unanswered();
        }
        let policy = self.publisher.policies().for_tenant(&lookup.request.tenant_id);
        let answer = self.answer(self.publisher.index(), policy, lookup);
        if let Some(chain) = &answer.chain {
            self.publisher.credit(&self.request(&lookup.request).scope, chain, &answer.decision.ranked);
        }
        response(lookup, answer)
    }

    fn cache_state(&mut self, model_id: &str, tenant_id: &str) -> CacheState {
        let state = self.publisher.cache_state(tenant_id, model_id);
        CacheState {
            replicas: state
                .replicas
                .into_iter()
                .map(|replica| ReplicaState {
                    replica_id: replica.replica_id,
                    cache_memory_bytes: replica.stats.cache_memory_bytes,
                    hit_rate: replica.stats.hit_rate,
                    pressure: replica.stats.pressure,
                    client_version: String::new(),
                    t2_hit_tokens: replica.stats.t2_hit_tokens,
                    t2_query_tokens: replica.stats.t2_query_tokens,
                })
                .collect(),
            total_prefixes: i64::try_from(state.total_prefixes).unwrap_or(i64::MAX),
            hot_prefixes: 0,
        }
    }

    fn set_policies(&mut self, policies: &[format::Policy], tenants: Option<&[Tenant]>) {
        self.publisher.set_policies(settings::policies(policies, self.ttl_ms));
        if let Some(tenants) = tenants {
            self.publisher.set_quotas(settings::quotas(tenants));
        }
    }

    fn advance(&mut self, ms: i64) {
        self.now_ms = self.now_ms.saturating_add_signed(ms);
    }

    fn sweep(&mut self) {
        self.publisher.sweep(self.now_ms);
    }

    fn counts(&mut self) -> Option<Counts> {
        let counts = self.publisher.counts();
        let evictions = self.publisher.evictions();
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let all_signed =
            |counts: BTreeMap<String, u64>| counts.into_iter().map(|(name, n)| (name, signed(n))).collect();
        let over_quota = evictions.over_quota.iter();
        let entries = evictions.entries.iter();
        Some(Counts {
            prefix_keys: signed(counts.prefix_keys),
            replica_entries: signed(counts.entries),
            total: signed(counts.total),
            by_tenant: all_signed(counts.by_tenant),
            by_model: all_signed(counts.by_model),
            tenant_evictions: over_quota.map(|(id, n)| (format!("{id}|over_entries"), signed(*n))).collect(),
            index_evictions: entries.map(|((by, why), n)| (format!("{by}|{why}"), signed(*n))).collect(),
        })
    }

    fn access_count(&mut self, entry: &Entry) -> Option<i64> {
        let key = BlockKey::of_request(&entry.prefix_hash.0);
        let count = self.publisher.access_count(&scope_of(entry), &key, &entry.replica_id);
        Some(count.map_or(-1, i64::from))
    }

    fn set_access_count(&mut self, entry: &Entry, count: i64) {
        let key = BlockKey::of_request(&entry.prefix_hash.0);
        let count = u32::try_from(count).unwrap_or(0);
        self.publisher.set_access_count(&scope_of(entry), &key, &entry.replica_id, count);
    }
}

// === impl Elapsed ===

impl Elapsed {
    fn pass(&self, ms: u64) {
        self.ms.set(self.ms.get().saturating_add(ms));
    }

    fn is_late(&self) -> bool {
        self.deadline_ms.is_some_and(|deadline_ms| self.ms.get() >= deadline_ms)
    }
}

// === impl SlowTokenizer ===

impl Tokenize for SlowTokenizer<'_> {
    fn tokenize(&self, _: &str, _: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        let tokenizer = self.as_set_up.ok_or(TokenizeError::Unavailable)?;
        if tokenizer.saturated {
            return Err(TokenizeError::Saturated);
        }
        self.elapsed.pass(tokenizer.delay_ms);
        if self.elapsed.is_late() {
            // Nobody waited for what it would have said.
            return Err(TokenizeError::Failed);
        }
        match tokenizer.kind {
            TokenizerKind::Fixed => Ok(Tokenized { ids: tokenizer.tokens.0.clone(), complete: true }),
            TokenizerKind::Error => Err(TokenizeError::Failed),
            TokenizerKind::Unavailable => Err(TokenizeError::Unavailable),
        }
    }
}

// === what the core says, in the contract's words ===

/// Whether a lookup is for the tenant that none is answered for.
pub fn is_reserved(lookup: &Lookup) -> bool {
    lookup.request.tenant_id == RESERVED_TENANT
}

/// The response to such a lookup.
pub fn unanswered() -> Response {
    Response { reason_code: ReasonCode::NoHint.as_str().to_owned(), ..Response::default() }
}

/// The response that an answer is.
pub fn response(lookup: &Lookup, answer: Answer) -> Response {
    let Answer { decision, chain, tokenized } = answer;
    let scores = decision.ranked.iter().map(|ranked| ReplicaScore {
        replica_id: ranked.replica_id.to_string(),
        score: ranked.score,
        matched_tokens: i32::try_from(ranked.matched_tokens).unwrap_or(i32::MAX),
        estimated_cache_hit_prob: ranked.hit_probability,
        tier: ranked.tier.number().into(),
    });
    Response {
        reason_code: decision.reason.as_str().to_owned(),
        replica_scores: scores.collect(),
        token_ids: tokenized.map(|tokenized| tokenized.ids).unwrap_or_default(),
        adapter_id: if chain.is_some() { lookup.request.adapter_id.clone() } else { String::new() },
    }
}

// === what cases say, in the core's words ===

fn prompt(request: &Request) -> PromptInput {
    let TokenIds(ids) = &request.token_ids;
    let text = request.text();
    PromptInput {
        prefix_hash: BlockKey::from_bytes(&request.prefix_hash.0).ok(),
        prefix_token_count: request.prefix_token_count,
        chain: wire_chain(&request.block_hashes, &request.block_token_counts),
        source: match (ids.is_empty(), text.is_empty()) {
            (false, _) => PromptSource::TokenIds(ids.clone()),
            (true, false) => PromptSource::Text(TextPrompt::User(text)),
            (true, true) => PromptSource::Absent,
        },
        ..PromptInput::default()
    }
}

fn wire_chain(hashes: &[Bytes], counts: &[i32]) -> WireChain {
    if hashes.len() != counts.len() {
        return WireChain::Malformed;
    }
    let blocks = hashes.iter().zip(counts);
    let blocks: Vec<ChainBlock> =
        blocks.map(|(Bytes(hash), tokens)| ChainBlock { key: BlockKey::of_request(hash), tokens: *tokens }).collect();
    if blocks.is_empty() { WireChain::Absent } else { WireChain::Chain(blocks) }
}

/// Whether it is the text that keys are made of.
fn uses_text(prompt: &PromptInput, strategy: Strategy) -> bool {
    let chain_decides = strategy.enable_chain_matching && prompt.chain != WireChain::Absent;
    !chain_decides && prompt.prefix_hash.is_none() && matches!(prompt.source, PromptSource::Text(_))
}

fn prefix_entry(prefix: &crate::cases::messages::Prefix) -> reported::PrefixEntry {
    reported::PrefixEntry {
        prefix_hash: prefix.prefix_hash.0.clone(),
        token_count: prefix.token_count,
        block_hashes: prefix.block_hashes.iter().map(|hash| hash.0.clone()).collect(),
        block_token_counts: prefix.block_token_counts.clone(),
        before: None,
        tier: prefix.tier,
        adapter_id: prefix.adapter_id.clone(),
    }
}

fn reported_stats(stats: &Stats) -> reported::ReportedStats {
    reported::ReportedStats {
        cache_memory_bytes: stats.cache_memory_bytes,
        hit_rate: stats.hit_rate.0 as f32,
        pressure: stats.pressure.0 as f32,
        t2_hit_tokens: stats.t2_hit_tokens,
        t2_query_tokens: stats.t2_query_tokens,
    }
}

/// The scope of an entry.
pub fn scope_of(entry: &Entry) -> Scope {
    Scope {
        tenant_id: entry.tenant_id.clone(),
        model_id: entry.model_id.clone(),
        hash_scheme: entry.hash_scheme.clone(),
        adapter_id: entry.adapter_id.clone(),
    }
}
