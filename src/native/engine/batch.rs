//! One payload as a [`Batch`]: the frame that all engines have in common.
//!
//! A batch is an array `[ts, events, rank]` or a map; an event is an array with its tag first or a map with its tag under
//! `type`. Fields may be missing at the end or be nil; further fields and unknown keys are passed over, so that a newer
//! engine costs what it adds and nothing else. What cannot be read of an event does not cost the others, but leaves
//! [`KvEvent::Missed`] in its place.

use super::layout::{Dialect, Field, removed_field, stored_field};
use super::msgpack::{Cursor, Malformed, Value};
use super::{Batch, BlockRemoved, BlockStored, EventFault, KvEvent, Missed, Place, vllm};

/// The tag of a stored event.
pub const BLOCK_STORED: &str = "BlockStored";
/// The tag of a removed event.
pub const BLOCK_REMOVED: &str = "BlockRemoved";
/// The tag of a cleared event.
pub const ALL_BLOCKS_CLEARED: &str = "AllBlocksCleared";
/// The tag of an event by which one storage is cleared.
pub const TIER_BLOCKS_CLEARED: &str = "TierBlocksCleared";

/// A payload that is not a batch of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedBatch(pub &'static str);

/// Reads one payload.
///
/// # Errors
/// When it is not MessagePack and nothing else, or neither an array nor a map with a list of events.
pub fn decode(payload: &[u8], dialect: &Dialect) -> Result<Batch, MalformedBatch> {
    let mut at = Cursor::new(payload);
    let mut batch = Batch::default();
    let mut has_events = false;
    match at.value()? {
        Value::List(items) => {
            for position in 0..items {
                let names: [&[u8]; 3] = [b"ts", b"events", b"data_parallel_rank"];
                let name = usize::try_from(position).ok().and_then(|position| names.get(position));
                has_events |= batch_field(name.copied().unwrap_or_default(), &mut at, &mut batch, dialect)?;
            }
        }
        Value::Map(pairs) => {
            for _ in 0..pairs {
                let name = name(&mut at)?;
                has_events |= batch_field(name, &mut at, &mut batch, dialect)?;
            }
        }
        _ => return Err(MalformedBatch("neither an array nor a map")),
    }
    match (has_events, at.is_at_end()) {
        (false, _) => Err(MalformedBatch("`events` is not a list")),
        (_, false) => Err(MalformedBatch("something follows it")),
        _ => Ok(batch),
    }
}

/// Reads a field of the batch; true if it is its list of events.
fn batch_field(name: &[u8], at: &mut Cursor<'_>, batch: &mut Batch, dialect: &Dialect) -> Result<bool, MalformedBatch> {
    let start = *at;
    match (name, at.value()?) {
        (b"ts", Value::Float(seconds)) => batch.timestamp = Some(seconds),
        (b"ts", Value::Unsigned(seconds)) => batch.timestamp = Some(seconds as f64),
        (b"data_parallel_rank" | b"attn_dp_rank", Value::Unsigned(rank)) => {
            batch.data_parallel_rank = i64::try_from(rank).ok();
        }
        (b"events", Value::List(events)) => {
            for _ in 0..events {
                batch.push(event(at.take()?, dialect));
            }
            return Ok(true);
        }
        // With whatever is in it.
        _ => {
            *at = start;
            at.skip()?;
        }
    }
    Ok(false)
}

fn event(whole: Cursor<'_>, dialect: &Dialect) -> Result<KvEvent, EventFault> {
    match tag(whole).unwrap_or_default() {
        tag if tag == BLOCK_STORED.as_bytes() => stored(whole, dialect).map(KvEvent::BlockStored),
        tag if tag == BLOCK_REMOVED.as_bytes() => removed(whole).map(KvEvent::BlockRemoved),
        tag if tag == ALL_BLOCKS_CLEARED.as_bytes() => Ok(KvEvent::AllBlocksCleared),
        tag if tag == TIER_BLOCKS_CLEARED.as_bytes() => tier_cleared(whole).map(KvEvent::TierBlocksCleared),
        _ => Err(EventFault::UnknownTag),
    }
}

fn stored(whole: Cursor<'_>, dialect: &Dialect) -> Result<BlockStored, EventFault> {
    let mut event = BlockStored::default();
    fields(whole, BLOCK_STORED, vllm::STORED, |field, at| stored_field(field, at, &mut event, dialect))?;
    Ok(event)
}

fn removed(whole: Cursor<'_>) -> Result<BlockRemoved, EventFault> {
    let mut event = BlockRemoved::default();
    fields(whole, BLOCK_REMOVED, vllm::REMOVED, |field, at| removed_field(field, at, &mut event))?;
    Ok(event)
}

/// Which storage was cleared must be said.
fn tier_cleared(whole: Cursor<'_>) -> Result<Place, EventFault> {
    let mut event = BlockRemoved::default();
    let (tag, medium) = (TIER_BLOCKS_CLEARED, Field::Medium);
    each_field(whole, tag, vllm::TIER_CLEARED, |field, at| removed_field(field, at, &mut event))?;
    if event.place.medium.is_some() {
        return Ok(event.place);
    }
    Err(EventFault::Malformed { tag, field: medium.name() })
}

fn tag<'a>(mut at: Cursor<'a>) -> Option<&'a [u8]> {
    let pairs = match at.value().ok()? {
        Value::List(_) => {
            let Value::Text(tag) = at.value().ok()? else { return None };
            return Some(tag);
        }
        Value::Map(pairs) => pairs,
        _ => return None,
    };
    for _ in 0..pairs {
        if name(&mut at).ok()? == b"type" {
            let Value::Text(tag) = at.value().ok()? else { return None };
            return Some(tag);
        }
        at.skip().ok()?;
    }
    None
}

/// Hands each field to `read`, which says whether it could be read. `block_hashes`, without which an event says nothing,
/// must be there.
fn fields<'a>(
    at: Cursor<'a>,
    tag: &'static str,
    positions: &[Field],
    mut read: impl FnMut(Field, &mut Cursor<'a>) -> Option<()>,
) -> Result<(), EventFault> {
    let mut has_keys = false;
    each_field(at, tag, positions, |field, at| {
        has_keys |= field == Field::BlockHashes && at.clone().value() != Ok(Value::Nil);
        read(field, at)
    })?;
    if has_keys { Ok(()) } else { Err(EventFault::Malformed { tag, field: Field::BlockHashes.name() }) }
}

fn each_field<'a>(
    mut at: Cursor<'a>,
    tag: &'static str,
    positions: &[Field],
    mut read: impl FnMut(Field, &mut Cursor<'a>) -> Option<()>,
) -> Result<(), EventFault> {
    let malformed = |field: &'static str| EventFault::Malformed { tag, field };
    let shape = at.value().map_err(|_| malformed("type"))?;
    let items = match shape {
        Value::List(items) | Value::Map(items) => items,
        _ => 0,
    };
    for position in 0..items {
        let field = match shape {
            Value::Map(_) => Field::named(name(&mut at).map_err(|_| malformed("type"))?),
            // The tag is first.
            _ => usize::try_from(position).ok().and_then(|at| positions.get(at.checked_sub(1)?)).copied(),
        };
        let Some(field) = field else {
            at.skip().map_err(|_| malformed("type"))?;
            continue;
        };
        read(field, &mut at).ok_or_else(|| malformed(field.name()))?;
    }
    Ok(())
}

/// A key of a map; without bytes if it is no text.
fn name<'a>(at: &mut Cursor<'a>) -> Result<&'a [u8], Malformed> {
    match at.take()?.value()? {
        Value::Text(name) => Ok(name),
        _ => Ok(&[]),
    }
}

// === impl Batch ===

impl Batch {
    /// Adds what was made of an event.
    pub fn push(&mut self, event: Result<KvEvent, EventFault>) {
        match event {
            Ok(event) => {
                self.read += 1;
                self.events.push(event);
            }
            Err(fault) => self.push_fault(fault),
        }
    }

    fn push_fault(&mut self, fault: EventFault) {
        let missed = KvEvent::Missed(fault.missed());
        // Saying it again adds nothing, and would let a small payload take much memory.
        if self.events.last() != Some(&missed) {
            self.events.push(missed);
        }
        match self.faults.iter_mut().find(|(known, _)| *known == fault) {
            Some((_, count)) => *count += 1,
            None => self.faults.push((fault, 1)),
        }
    }
}

// === impl EventFault ===

impl EventFault {
    /// What an event may have said that could not be read.
    pub fn missed(self) -> Missed {
        match self {
            EventFault::Malformed { tag, .. } if tag != BLOCK_STORED => Missed::Anything,
            _ => Missed::Stores,
        }
    }
}

impl From<Malformed> for MalformedBatch {
    fn from(_: Malformed) -> MalformedBatch {
        MalformedBatch("it ends too early, or is not MessagePack")
    }
}

impl std::fmt::Display for MalformedBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not a batch of KV events: {}", self.0)
    }
}

impl std::error::Error for MalformedBatch {}

impl std::fmt::Display for EventFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EventFault::UnknownTag => f.write_str("an event is of an unknown kind"),
            EventFault::Malformed { tag, field } => write!(f, "`{field}` of a {tag} is of the wrong type"),
        }
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
