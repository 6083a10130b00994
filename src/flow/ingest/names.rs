//! Bounds of what a hub calls things, and the scopes that the log names.
//!
//! Names go into every VM's dictionary and, all of them, into one page. A hub takes none longer than this from anybody.

use hashbrown::HashMap;

use crate::observation::{Member, Scope, ScopeSlot};

/// Scopes a log may name at a time: as many as a hub does at its defaults, reported and followed.
pub(super) const MAX_SCOPES: usize = 131_072;
/// Bytes of all of their names.
pub(super) const MAX_SCOPE_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of one name: of a tenant, model, hash scheme, adapter or replica.
pub(super) const MAX_NAME_BYTES: usize = 512;
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
    parts(scope).iter().map(|name| name.len()).sum()
}

/// Bytes of a replica's names and address.
pub(super) fn member_bytes(member: &Member, address: &str) -> usize {
    [&member.tenant_id, &member.model_id, &member.replica_id].iter().map(|name| name.len()).sum::<usize>()
        + address.len()
}

/// Whether each of its names is as short as it must be.
pub(super) fn is_short(scope: &Scope) -> bool {
    parts(scope).iter().all(|name| name.len() <= MAX_NAME_BYTES)
}

/// The same of a replica's names and its address.
pub(super) fn is_short_member(member: &Member, address: &str) -> bool {
    let names = [&member.tenant_id, &member.model_id, &member.replica_id];
    names.iter().all(|name| name.len() <= MAX_NAME_BYTES) && address.len() <= MAX_ADDRESS_BYTES
}

fn parts(scope: &Scope) -> [&String; 4] {
    [&scope.tenant_id, &scope.model_id, &scope.hash_scheme, &scope.adapter_id]
}
