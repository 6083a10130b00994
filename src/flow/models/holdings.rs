//! What the leader knows of one version's parts in shared data.

use crate::flow::keys::Keys;
use crate::host::{Cas, Host, SharedValue};
use crate::observation::{ModelDigest, ModelPart, ModelVersion};

/// What is known of a version's parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    pub(super) version: ModelVersion,
    /// The parts before this one are there.
    pub(super) there: u32,
    /// The part of this number was looked for and is not.
    pub(super) lacks_next: bool,
    /// The hub was asked for the parts from this one on.
    pub(super) asked_from: Option<u32>,
}

/// A part's value as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The part.
    Whole,
    /// Something else, to be written over under this number.
    Other(Cas),
    /// No value, or one without bytes.
    Nothing(Cas),
}

// === impl Holding ===

impl Holding {
    /// Nothing is known yet.
    pub(super) fn new(version: ModelVersion) -> Holding {
        Holding { version, there: 0, lacks_next: false, asked_from: None }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.there >= self.version.parts()
    }

    /// Whether nobody has looked for the next part yet.
    pub(super) fn is_to_look_at(&self) -> bool {
        !self.is_complete() && !self.lacks_next
    }

    /// Whether the hub has to be asked.
    pub(super) fn is_wanting(&self) -> bool {
        !self.is_complete() && self.lacks_next
    }

    /// Bytes of the contents that are there.
    pub(super) fn bytes(&self) -> u64 {
        (0..self.there).map(|number| self.version.part_bytes(number) as u64).sum()
    }

    /// Whether `part` is one that the hub was asked for, of the right length.
    pub(super) fn expects(&self, part: &ModelPart) -> bool {
        self.asked_from.is_some_and(|from| part.number >= from)
            && !part.contents.is_empty()
            && part.contents.len() == self.version.part_bytes(part.number)
    }

    /// A part is there.
    pub(super) fn has(&mut self, number: u32) {
        if number == self.there {
            self.there += 1;
            self.lacks_next = false;
        }
    }

    /// A part is not, or not any more.
    pub(super) fn lost(&mut self, number: u32) {
        if number <= self.there {
            self.there = number;
            self.lacks_next = true;
        }
    }

    /// Looks at the next part.
    pub(super) fn look(&mut self, host: &impl Host, keys: &Keys) {
        match find(host, keys, self.version, self.there) {
            Found::Whole => self.has(self.there),
            Found::Other(_) | Found::Nothing(_) => self.lacks_next = true,
        }
    }
}

/// Looks at a part, without copying its contents.
pub(super) fn find(host: &impl Host, keys: &Keys, version: ModelVersion, number: u32) -> Found {
    match read(host, keys, version.digest, number) {
        SharedValue::Absent => Found::Nothing(Cas::ABSENT),
        SharedValue::Present { bytes, cas } if bytes.is_empty() => Found::Nothing(cas),
        SharedValue::Present { bytes, cas } => match ModelPart::stamp(&bytes) {
            Ok(stamp)
                if (stamp.digest, stamp.number) == (version.digest, number)
                    && stamp.bytes == version.part_bytes(number) =>
            {
                Found::Whole
            }
            _ => Found::Other(cas),
        },
    }
}

/// The value of a part.
pub(super) fn read(host: &impl Host, keys: &Keys, digest: ModelDigest, number: u32) -> SharedValue {
    host.shared_get(&keys.model_part(digest, number))
}
