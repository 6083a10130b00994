//! What of a report was left out, and why.

/// Why something that a producer reported was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The tenant is reserved for probes.
    ReservedTenant,
    /// The replica has no id.
    EmptyReplica,
    /// An entry came without a hash scheme.
    EmptyScheme,
    /// A hash has no bytes.
    EmptyHash,
    /// A hash has more than [`crate::observation::MAX_KEY_BYTES`].
    LongHash,
    /// A name has more than [`crate::observation::MAX_NAME_BYTES`].
    LongName,
    /// A chain has more hashes than token counts, or fewer.
    MismatchedChain,
    /// A token count, or the sum of a chain's, is below 1 or above the contract's int32.
    TokenCount,
    /// The time is further in the future than [`super::PublisherLimits::future_tolerance_ms`].
    FutureTimestamp,
    /// This publisher follows the replica itself, and knows better.
    FollowedReplica,
    /// There are as many replicas as there may be, or their numbers have run out.
    TooManyMembers,
    /// There are as many scopes as there may be.
    TooManyScopes,
    /// The tenant's quota has no room for the block: it went with the report that brought it.
    OverQuota,
    /// The cap has no room for the block at this replica: it went with the report that brought it.
    OverCap,
}

/// How much was left out, by reason: one for each block, prefix, statistics record or event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped([u64; DropReason::ALL.len()]);

// === impl DropReason ===

impl DropReason {
    /// Every reason, in the order of declaration.
    pub const ALL: [DropReason; 14] = [
        DropReason::ReservedTenant,
        DropReason::EmptyReplica,
        DropReason::EmptyScheme,
        DropReason::EmptyHash,
        DropReason::LongHash,
        DropReason::LongName,
        DropReason::MismatchedChain,
        DropReason::TokenCount,
        DropReason::FutureTimestamp,
        DropReason::FollowedReplica,
        DropReason::TooManyMembers,
        DropReason::TooManyScopes,
        DropReason::OverQuota,
        DropReason::OverCap,
    ];

    /// The value of the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            DropReason::ReservedTenant => "reserved_tenant",
            DropReason::EmptyReplica => "empty_replica",
            DropReason::EmptyScheme => "empty_scheme",
            DropReason::EmptyHash => "empty_hash",
            DropReason::LongHash => "long_hash",
            DropReason::LongName => "long_name",
            DropReason::MismatchedChain => "mismatched_chain",
            DropReason::TokenCount => "token_count",
            DropReason::FutureTimestamp => "future_timestamp",
            DropReason::FollowedReplica => "followed_replica",
            DropReason::TooManyMembers => "too_many_members",
            DropReason::TooManyScopes => "too_many_scopes",
            DropReason::OverQuota => "over_quota",
            DropReason::OverCap => "over_cap",
        }
    }
}

// === impl Dropped ===

impl Dropped {
    /// How much was left out for this reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }

    /// How much was left out.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons for which something was left out, with how much.
    pub fn reasons(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }

    /// `count` more were left out for this reason.
    pub(super) fn add(&mut self, reason: DropReason, count: u64) {
        if let Some(counted) = self.0.get_mut(reason as usize) {
            *counted = counted.saturating_add(count);
        }
    }
}

impl std::ops::AddAssign for Dropped {
    fn add_assign(&mut self, more: Dropped) {
        more.reasons().for_each(|(reason, count)| self.add(reason, count));
    }
}
