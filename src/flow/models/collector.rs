//! A VM's part: from parts in shared data to models that make token ids.
//!
//! Wanted are the announced versions of the models that the VM's configurations name. In one step one part is taken over;
//! the last one of a version brings the model. What is not announced any more is dropped first. A version that does not fit
//! into the VM's share of memory, or whose package cannot be used, is set aside: its texts have no tokenizer.

use std::collections::{BTreeMap, BTreeSet};

use super::holdings::read;
use crate::config::{FilterConfig, Limits};
use crate::flow::keys::Keys;
use crate::flow::metrics::{self, PackageRefusal};
use crate::host::{Host, Level, SharedValue};
use crate::index::dictionary::Dictionary;
use crate::model::{Assembly, InvalidPackage, LoadedModel, Models};
use crate::observation::{ModelDigest, ModelPart, ModelVersion};

/// What a VM has of the models.
#[derive(Debug, Default)]
pub struct Collector {
    models: Models,
    memo_bytes: usize,
    /// The models that each root context's configuration names.
    named: BTreeMap<u32, BTreeSet<String>>,
    assemblies: BTreeMap<ModelDigest, Gathering>,
    refused: BTreeMap<ModelDigest, PackageRefusal>,
}

/// A package that is coming together.
#[derive(Debug)]
struct Gathering {
    assembly: Assembly,
    /// Unix time in ns.
    since_ns: u64,
}

/// What one look at a version came to.
enum Came {
    /// Its next part is not there.
    Nothing,
    /// A part.
    Part,
    /// The last part.
    Last(Gathering),
}

// === impl Collector ===

impl Collector {
    /// What requests tokenize with.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// A root context has ticked: its configuration's models are wanted.
    pub fn name(&mut self, context: u32, config: &FilterConfig) {
        let named = self.named.entry(context).or_default();
        if !named.iter().eq(config.models.keys()) {
            *named = config.models.keys().cloned().collect();
        }
    }

    /// A root context is done.
    pub fn forget(&mut self, context: u32) {
        self.named.remove(&context);
    }

    /// Takes one part over. True if there may be more to do.
    pub fn step(&mut self, host: &impl Host, keys: &Keys, dictionary: &Dictionary, limits: &Limits) -> bool {
        if self.memo_bytes != limits.memo_bytes {
            self.memo_bytes = limits.memo_bytes;
            self.models.set_memo_bytes(limits.memo_bytes);
        }
        let wanted = self.wanted(dictionary);
        self.drop_all_but(&wanted);
        for version in wanted {
            if self.models.has(version.digest) || !self.may_take(host, version, limits) {
                continue;
            }
            match self.take_part(host, keys, version) {
                Came::Nothing => {}
                Came::Part => return true,
                Came::Last(gathering) => {
                    self.load(host, version, gathering);
                    return true;
                }
            }
        }
        false
    }

    /// The versions to have, in the order of their models' names.
    fn wanted(&self, dictionary: &Dictionary) -> Vec<ModelVersion> {
        let is_named = |model_id: &str| self.named.values().any(|named| named.contains(model_id));
        let mut wanted: Vec<ModelVersion> = Vec::new();
        for (_, version) in dictionary.models().filter(|(model_id, _)| is_named(model_id)) {
            if wanted.iter().all(|other| other.digest != version.digest) {
                wanted.push(version);
            }
        }
        wanted
    }

    fn drop_all_but(&mut self, wanted: &[ModelVersion]) {
        let length_of =
            |digest: ModelDigest| wanted.iter().find(|version| version.digest == digest).map(|version| version.length);
        self.models.retain(|digest| length_of(digest).is_some());
        self.refused.retain(|digest, _| length_of(*digest).is_some());
        self.assemblies.retain(|digest, gathering| length_of(*digest) == Some(gathering.assembly.version().length));
    }

    /// Whether the version can be used as far as is known, and fits beside what is here.
    fn may_take(&mut self, host: &impl Host, version: ModelVersion, limits: &Limits) -> bool {
        let refused = self.refused.get(&version.digest).copied();
        if refused.is_some_and(|refusal| refusal != PackageRefusal::TooLarge) {
            return false;
        }
        if self.assemblies.contains_key(&version.digest) {
            return true;
        }
        let assembling = self.assemblies.values().map(|gathering| gathering.assembly.version().length as usize);
        let taken = self.models.bytes().saturating_add(assembling.sum());
        let fits = taken.saturating_add(version.length as usize) <= limits.max_model_bytes;
        match (fits, refused) {
            (true, Some(_)) => {
                self.refused.remove(&version.digest);
                self.models.take_back(version.digest);
            }
            (false, None) => {
                let bytes = version.length;
                let reason = format!("its {bytes} bytes do not fit beside {taken} (limits.max_model_bytes)");
                self.refuse(host, version, PackageRefusal::TooLarge, &reason);
            }
            _ => {}
        }
        fits
    }

    fn take_part(&mut self, host: &impl Host, keys: &Keys, version: ModelVersion) -> Came {
        let digest = version.digest;
        let number = self.assemblies.get(&digest).map_or(0, |gathering| gathering.assembly.next_part());
        let SharedValue::Present { bytes, .. } = read(host, keys, digest, number) else { return Came::Nothing };
        if bytes.is_empty() {
            return Came::Nothing;
        }
        // What others wrote there the leader asks for again.
        let is_part = |part: &ModelPart| {
            (part.digest, part.number, part.contents.len()) == (digest, number, version.part_bytes(number))
        };
        let Some(part) = ModelPart::decode(&bytes).ok().filter(is_part) else {
            host.count(metrics::SHARED_UNREADABLE, 1);
            return Came::Nothing;
        };
        let mut gathering = match self.assemblies.remove(&digest).map_or_else(|| Gathering::new(host, version), Ok) {
            Ok(gathering) => gathering,
            Err(error) => {
                self.refuse(host, version, PackageRefusal::Invalid, &error.to_string());
                return Came::Nothing;
            }
        };
        if gathering.assembly.push(&part).is_ok() && gathering.assembly.is_complete() {
            return Came::Last(gathering);
        }
        self.assemblies.insert(digest, gathering);
        Came::Part
    }

    fn load(&mut self, host: &impl Host, version: ModelVersion, gathering: Gathering) {
        let loading_ns = host.now_ns();
        let package = match gathering.assembly.finish() {
            Ok(package) => package,
            Err(error) => {
                let refusal = match error {
                    InvalidPackage::Digest => PackageRefusal::Damaged,
                    _ => PackageRefusal::Invalid,
                };
                return self.refuse(host, version, refusal, &error.to_string());
            }
        };
        match LoadedModel::load(package) {
            Ok(model) => {
                self.models.insert(version.digest, model);
                let now_ns = host.now_ns();
                host.record(metrics::MODEL_LOAD_US, now_ns.saturating_sub(loading_ns) / 1_000);
                host.record(metrics::MODEL_COLLECT_MS, now_ns.saturating_sub(gathering.since_ns) / 1_000_000);
            }
            Err(error) => self.refuse(host, version, PackageRefusal::Invalid, &error.to_string()),
        }
    }

    fn refuse(&mut self, host: &impl Host, version: ModelVersion, refusal: PackageRefusal, reason: &str) {
        self.refused.insert(version.digest, refusal);
        self.models.set_aside(version.digest);
        metrics::count_package_refused(host, refusal);
        let digest = version.digest.0;
        host.log(Level::Warn, &format!("the model package {digest:032x} is not used: {reason}"));
    }
}

// === impl Gathering ===

impl Gathering {
    fn new(host: &impl Host, version: ModelVersion) -> Result<Gathering, InvalidPackage> {
        Ok(Gathering { assembly: Assembly::new(version)?, since_ns: host.now_ns() })
    }
}
