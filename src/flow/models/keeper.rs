//! The leader's part: what shared data has of the announced versions.
//!
//! A new leader looks at the parts that are there, some a tick, and asks the hub for a version from the first one that is
//! missing; one version at a time, again when nothing comes. What the hub sends is written as pages are, under the lease.
//! One part a tick is looked at again: what others wrote over is asked for again. The parts of a version that no model has
//! any more are emptied; which versions may have parts stands in a list, so that the next leader finds them too.

use std::collections::BTreeMap;

use super::holdings::{Found, Holding, find, read};
use crate::flow::keys::Keys;
use crate::flow::lease::{Deposed, Lease};
use crate::flow::metrics::{self, PartRefusal};
use crate::flow::observer::Observer;
use crate::host::{Cas, Host, SharedValue, StreamToken};
use crate::index::dictionary::Dictionary;
use crate::index::log::ModelList;
use crate::model::MAX_PACKAGE_BYTES;
use crate::observation::{ModelDigest, ModelPart, ModelVersion, SubscriberMessage};

/// Parts looked at, and emptied, in one tick: some 20 us each.
const PARTS_A_TICK: usize = 4;
/// Without a part for so long, the hub is asked again, for the next version if there is one.
const ASK_AGAIN_MS: u64 = 3_000;
/// Versions read from a list: as many as a log announces, a few times over.
const MAX_LISTED: usize = 1_024;

/// What a leader knows of the parts in shared data.
#[derive(Debug, Default)]
pub struct Keeper {
    holdings: BTreeMap<ModelDigest, Holding>,
    /// Versions that nobody needs, and the next part to empty.
    leftovers: BTreeMap<ModelDigest, (ModelVersion, u32)>,
    /// The list as it stands in shared data, once it was read.
    listed: Option<Vec<ModelVersion>>,
    asked: Option<Asked>,
    /// The next part to look at again; the first one if there is none.
    next_scrubbed: Option<(ModelDigest, u32)>,
    has_work_left: bool,
}

/// What the hub was asked for last.
#[derive(Clone, Copy, Debug)]
struct Asked {
    digest: ModelDigest,
    stream: StreamToken,
    /// When it was, or when the last part came, Unix time in ms.
    at_ms: u64,
}

// === impl Keeper ===

impl Keeper {
    /// Whether there is more to look at or to empty than a tick may.
    pub fn has_work_left(&self) -> bool {
        self.has_work_left
    }

    /// A leader's tick; `dictionary` says what is announced.
    ///
    /// # Errors
    /// When another VM leads.
    pub fn tick(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        lease: &Lease,
        dictionary: &Dictionary,
        observer: &Observer,
    ) -> Result<(), Deposed> {
        // Until the hub has told all, nobody knows what is no longer needed.
        let knows_all = lease.head().complete;
        self.read_list_once(host, keys);
        self.follow(dictionary, knows_all);
        self.write_list(host, keys, lease)?;
        self.look(host, keys);
        self.scrub(host, keys);
        if knows_all {
            self.empty(host, keys, lease)?;
        }
        self.ask(host, observer);
        let looks_on = self.holdings.values().any(Holding::is_to_look_at);
        self.has_work_left = looks_on || knows_all && !self.leftovers.is_empty();
        self.report(host, dictionary);
        Ok(())
    }

    /// The hub sent a part: it is written if it was asked for and is not there.
    ///
    /// # Errors
    /// When another VM leads.
    pub fn store(&mut self, host: &impl Host, keys: &Keys, lease: &Lease, part: &ModelPart) -> Result<(), Deposed> {
        let Some(holding) = self.holdings.get_mut(&part.digest).filter(|holding| holding.asked_from.is_some()) else {
            metrics::count_part_refused(host, PartRefusal::NotAskedFor);
            return Ok(());
        };
        if !holding.expects(part) {
            metrics::count_part_refused(host, PartRefusal::Malformed);
            return Ok(());
        }
        match find(host, keys, holding.version, part.number) {
            Found::Whole => {}
            Found::Other(cas) | Found::Nothing(cas) => {
                let key = keys.model_part(part.digest, part.number);
                lease.write_value(host, keys, &key, &part.encode(), cas)?;
                host.count(metrics::MODEL_PARTS_STORED, 1);
            }
        }
        holding.has(part.number);
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.digest == part.digest) {
            asked.at_ms = host.now_ms();
        }
        Ok(())
    }

    /// What a leader before this one may have left there is not needed, unless it is announced.
    fn read_list_once(&mut self, host: &impl Host, keys: &Keys) {
        if self.listed.is_none() {
            let (listed, _) = read_list(host, keys);
            let known = listed.iter().filter(|version| may_be_kept(**version)).take(MAX_LISTED);
            self.leftovers = known.map(|version| (version.digest, (*version, 0))).collect();
            self.listed = Some(listed);
        }
    }

    fn follow(&mut self, dictionary: &Dictionary, knows_all: bool) {
        let mut announced: BTreeMap<ModelDigest, ModelVersion> = BTreeMap::new();
        for (_, version) in dictionary.models().filter(|(_, version)| may_be_kept(*version)) {
            announced.entry(version.digest).or_insert(version);
        }
        if knows_all {
            let leftovers = &mut self.leftovers;
            self.holdings.retain(|digest, holding| {
                let is_announced = announced.contains_key(digest);
                if !is_announced {
                    leftovers.insert(*digest, (holding.version, 0));
                }
                is_announced
            });
        }
        for (digest, version) in announced {
            self.leftovers.remove(&digest);
            let holding = self.holdings.entry(digest).or_insert_with(|| Holding::new(version));
            if holding.version != version {
                *holding = Holding::new(version);
            }
        }
    }

    /// No part is written before its version is in the list.
    fn write_list(&mut self, host: &impl Host, keys: &Keys, lease: &Lease) -> Result<(), Deposed> {
        let holdings = self.holdings.values().map(|holding| holding.version);
        let mut versions: Vec<ModelVersion> =
            holdings.chain(self.leftovers.values().map(|(version, _)| *version)).collect();
        versions.sort_unstable();
        if self.listed.as_ref() == Some(&versions) {
            return Ok(());
        }
        let (_, cas) = read_list(host, keys);
        let list = ModelList(versions);
        lease.write_value(host, keys, &keys.model_list(), &list.encode(), cas)?;
        self.listed = Some(list.0);
        Ok(())
    }

    fn look(&mut self, host: &impl Host, keys: &Keys) {
        let mut left = PARTS_A_TICK;
        for holding in self.holdings.values_mut() {
            while left > 0 && holding.is_to_look_at() {
                holding.look(host, keys);
                left -= 1;
            }
        }
    }

    /// Looks at one part that was there; after the last one at the list.
    fn scrub(&mut self, host: &impl Host, keys: &Keys) {
        if self.listed.as_ref().is_none_or(Vec::is_empty) {
            return;
        }
        let (digest, number) = self.next_scrubbed.unwrap_or((ModelDigest(0), 0));
        let mut due = self.holdings.range_mut(digest..);
        let next = due.find_map(|(at, holding)| {
            let number = if *at == digest { number } else { 0 };
            (number < holding.there).then_some((*at, number, holding))
        });
        let Some((digest, number, holding)) = next else {
            self.next_scrubbed = None;
            self.listed = self.listed.as_ref().map(|_| read_list(host, keys).0);
            return;
        };
        self.next_scrubbed = Some((digest, number + 1));
        if find(host, keys, holding.version, number) != Found::Whole {
            host.count(metrics::SHARED_UNREADABLE, 1);
            holding.lost(number);
        }
    }

    fn empty(&mut self, host: &impl Host, keys: &Keys, lease: &Lease) -> Result<(), Deposed> {
        for _ in 0..PARTS_A_TICK {
            let Some((digest, (version, next))) = self.leftovers.iter_mut().next() else { break };
            let (digest, number) = (*digest, *next);
            if number >= version.parts() {
                self.leftovers.remove(&digest);
                continue;
            }
            *next += 1;
            if let SharedValue::Present { bytes, cas } = read(host, keys, digest, number)
                && !bytes.is_empty()
            {
                lease.write_value(host, keys, &keys.model_part(digest, number), &[], cas)?;
            }
        }
        Ok(())
    }

    /// Asks for the next version that lacks parts, unless those of one that was asked for are coming.
    fn ask(&mut self, host: &impl Host, observer: &Observer) {
        let Some(stream) = observer.token() else { return };
        let wanting = self.holdings.iter().filter(|(_, holding)| holding.is_wanting());
        let digests: Vec<ModelDigest> = wanting.map(|(digest, _)| *digest).collect();
        let holdings = &self.holdings;
        self.asked = self.asked.filter(|asked| holdings.get(&asked.digest).is_some_and(|asked| !asked.is_complete()));
        if digests.is_empty() && self.asked.is_none() {
            return;
        }
        let now_ms = host.now_ms();
        let last = self.asked.map(|asked| asked.digest);
        if let Some(asked) = &mut self.asked {
            // A clock that was set back must not stretch the wait.
            asked.at_ms = now_ms.min(asked.at_ms);
            if asked.stream == stream && now_ms - asked.at_ms <= ASK_AGAIN_MS {
                return;
            }
        }
        let after = |digest: &ModelDigest| last.is_none_or(|last| *digest > last);
        let next = digests.iter().find(|digest| after(digest)).or(digests.first()).copied();
        let Some((digest, holding)) = next.and_then(|digest| Some((digest, self.holdings.get_mut(&digest)?))) else {
            return;
        };
        let first_part = holding.there;
        holding.asked_from = Some(holding.asked_from.map_or(first_part, |from| from.min(first_part)));
        observer.ask(host, &SubscriberMessage::WantModel { digest, first_part });
        self.asked = Some(Asked { digest, stream, at_ms: now_ms });
    }

    fn report(&self, host: &impl Host, dictionary: &Dictionary) {
        host.gauge(metrics::MODELS_ANNOUNCED, dictionary.models().count() as u64);
        let complete = self.holdings.values().filter(|holding| holding.is_complete());
        host.gauge(metrics::MODEL_VERSIONS_STORED, complete.count() as u64);
        host.gauge(metrics::MODEL_BYTES, self.holdings.values().map(Holding::bytes).sum());
    }
}

/// Whether a version is no longer than a package can be.
fn may_be_kept(version: ModelVersion) -> bool {
    version.length as usize <= MAX_PACKAGE_BYTES
}

/// The list in shared data, without entries if it cannot be read, and its number.
fn read_list(host: &impl Host, keys: &Keys) -> (Vec<ModelVersion>, Cas) {
    match host.shared_get(&keys.model_list()) {
        SharedValue::Absent => (Vec::new(), Cas::ABSENT),
        SharedValue::Present { bytes, cas } => match ModelList::decode(&bytes) {
            Ok(list) => (list.0, cas),
            Err(_) => {
                host.count(metrics::SHARED_UNREADABLE, 1);
                (Vec::new(), cas)
            }
        },
    }
}
