//! Bounds of what a hub calls things, and the scopes that the log names.
//!
//! Names go into every VM's dictionary and, all of them, into one page. A hub takes none longer than this from anybody.

use hashbrown::HashMap;

use crate::observation::{MAX_NAME_BYTES, Member, Scope, ScopeSlot};

/// Scopes a log may name at a time: as many as a hub does at its defaults, reported and followed.
pub(super) const MAX_SCOPES: usize = 131_072;
/// Bytes of all of their names.
pub(super) const MAX_SCOPE_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of an address: a DNS name with a port is shorter.
const MAX_ADDRESS_BYTES: usize = 300;

/// The scopes of a log, by name.
#[derive(Debug, Default)]
pub(super) struct ScopeNames {
    slots: HashMap<Scope, ScopeSlot>,
    bytes: usize,
}

// === impl ScopeNames ===

impl ScopeNames {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = ScopeSlot> {
        self.slots.values().copied()
    }

    pub(super) fn get(&self, scope: &Scope) -> Option<ScopeSlot> {
        self.slots.get(scope).copied()
    }

    /// Whether there is room for another one of so many bytes.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.slots.len() < MAX_SCOPES && self.bytes.saturating_add(bytes) <= MAX_SCOPE_BYTES
    }

    pub(super) fn insert(&mut self, scope: Scope, slot: ScopeSlot) {
        let bytes = scope_bytes(&scope);
        if self.slots.insert(scope, slot).is_none() {
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    pub(super) fn remove(&mut self, scope: &Scope) {
        if self.slots.remove(scope).is_some() {
            self.bytes = self.bytes.saturating_sub(scope_bytes(scope));
        }
    }

    /// Forgets those of this number and after.
    pub(super) fn forget_from(&mut self, first: ScopeSlot) {
        self.slots.retain(|_, slot| *slot < first);
        self.bytes = self.slots.keys().map(scope_bytes).sum();
    }
}

/// Bytes of a scope's names.
pub(super) fn scope_bytes(scope: &Scope) -> usize {
    bytes_of(&scope.names())
}

/// Bytes of a replica's names and address.
pub(super) fn member_bytes(member: &Member, address: &str) -> usize {
    bytes_of(&member.names()).saturating_add(address.len())
}

/// Whether each of these names is as short as it must be.
pub(super) fn are_short(names: &[&str]) -> bool {
    names.iter().all(|name| name.len() <= MAX_NAME_BYTES)
}

/// The same of a replica's names and its address.
pub(super) fn is_short_member(member: &Member, address: &str) -> bool {
    are_short(&member.names()) && address.len() <= MAX_ADDRESS_BYTES
}

fn bytes_of(names: &[&str]) -> usize {
    names.iter().map(|name| name.len()).sum()
}
