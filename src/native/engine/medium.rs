//! Where a block is stored, in every spelling, and what tier that is.

use super::{Place, SkipReason};
use crate::observation::Tier;

/// A storage that can hold a block beside the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The engine's KV cache.
    Gpu,
    /// Memory of the engine's machine.
    Cpu,
    /// A disk of the engine's machine.
    Disk,
    /// A file system, which may be shared.
    FileSystem,
    /// An object store.
    ObjectStore,
    /// Storage of a kind that is not said.
    Storage,
    /// A pool shared with others.
    External,
    /// Another machine, whatever stores it there.
    Remote,
}

/// A set of [`Medium`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Media(u8);

// === impl Medium ===

impl Medium {
    /// Every medium.
    pub const ALL: [Medium; 8] = [
        Medium::Gpu,
        Medium::Cpu,
        Medium::Disk,
        Medium::FileSystem,
        Medium::ObjectStore,
        Medium::Storage,
        Medium::External,
        Medium::Remote,
    ];

    /// The medium that `place` names: the engine's KV cache if it names none.
    ///
    /// # Errors
    /// When the name is unknown.
    pub fn of(place: &Place) -> Result<Medium, SkipReason> {
        if place.remote {
            return Ok(Medium::Remote);
        }
        let Some(name) = &place.medium else { return Ok(Medium::Gpu) };
        let known = [
            ("GPU", Medium::Gpu),
            ("CPU", Medium::Cpu),
            ("CPU_PINNED", Medium::Cpu),
            ("CPU_TIER1", Medium::Cpu),
            ("CPU_TIER2", Medium::Storage),
            ("DISK", Medium::Disk),
            ("NVME", Medium::Disk),
            ("FS", Medium::FileSystem),
            ("OBJ", Medium::ObjectStore),
            ("STORAGE", Medium::Storage),
            ("EXTERNAL", Medium::External),
        ];
        let found = known.into_iter().find(|(spelling, _)| name.eq_ignore_ascii_case(spelling));
        found.map(|(_, medium)| medium).ok_or(SkipReason::Medium)
    }

    /// How fast it is. What may be shared with other machines is as slow as they are.
    pub fn tier(self) -> Tier {
        match self {
            Medium::Gpu => Tier::T1,
            Medium::Cpu | Medium::Disk => Tier::T2,
            Medium::FileSystem | Medium::ObjectStore | Medium::Storage | Medium::External | Medium::Remote => Tier::T3,
        }
    }
}

// === impl Media ===

impl Media {
    /// Every medium.
    pub const ALL: Media = Media(u8::MAX);

    /// One medium.
    pub fn only(medium: Medium) -> Media {
        Media(1 << medium as u8)
    }

    /// Those of both.
    pub fn with(self, other: Media) -> Media {
        Media(self.0 | other.0)
    }

    /// Those that are not in `other`.
    pub fn without(self, other: Media) -> Media {
        Media(self.0 & !other.0)
    }

    /// Whether it has one of `other`.
    pub fn intersects(self, other: Media) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether one of them is of this tier.
    pub fn has_tier(self, tier: Tier) -> bool {
        Medium::ALL.into_iter().any(|medium| medium.tier() == tier && self.intersects(Media::only(medium)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_has_a_tier() {
        let tier = |name: Option<&str>, remote| {
            let place = Place { medium: name.map(str::to_owned), remote, ..Place::default() };
            Medium::of(&place).map(Medium::tier)
        };
        for (name, expected) in [
            ("GPU", Tier::T1),
            ("gpu", Tier::T1),
            ("CPU", Tier::T2),
            ("cpu", Tier::T2),
            ("CPU_PINNED", Tier::T2),
            ("CPU_TIER1", Tier::T2),
            ("CPU_TIER2", Tier::T3),
            ("DISK", Tier::T2),
            ("NVME", Tier::T2),
            ("FS", Tier::T3),
            ("OBJ", Tier::T3),
            ("STORAGE", Tier::T3),
            ("EXTERNAL", Tier::T3),
        ] {
            assert_eq!(tier(Some(name), false), Ok(expected), "{name}");
            assert_eq!(tier(Some(name), true), Ok(Tier::T3), "{name} elsewhere");
        }
        assert_eq!(tier(None, false), Ok(Tier::T1));
        assert_eq!(tier(Some("TAPE"), false), Err(SkipReason::Medium));
    }

    #[test]
    fn media_are_told_apart() {
        let both = Media::only(Medium::Cpu).with(Media::only(Medium::Disk));
        assert!(both.has_tier(Tier::T2) && !both.has_tier(Tier::T1));
        assert!(both.without(Media::only(Medium::Cpu)).has_tier(Tier::T2));
        assert!(both.without(both).is_empty() && both.without(Media::ALL).is_empty());
        assert!(Medium::ALL.into_iter().all(|medium| Media::ALL.intersects(Media::only(medium))));
    }
}
