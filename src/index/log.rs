//! The values in shared data: the head, log segments, pages and parts of models' packages, as bytes; and the batches of
//! delivered hits in the shared queue. `tests/golden/shared_data.json` has some of each, made from what is said here.
//!
//! All integers are little-endian; the last 8 bytes of a value are the XXH3-64 (seed 0) of all before them. Layout:
//!
//! ```text
//! every value   magic "WR" | kind u8 ('H', 'L', 'P', 'M', 'I' or 'C') | format u8 | incarnation u64 | … | checksum u64
//! head          term u64 | first u64 | last u64 | oldest_page u64 | pages u32 | ring u32 | hub_epoch u64 |
//!               hub_sequence u64 | heard_ms u64 | beat u64 | next_replica u32 | next_scope u32 |
//!               flags u32 (1 the leader serves, 2 complete)
//! log segment   term u64 | sequence u64 | records
//! page          number u32 | as_of u64 | records
//! model part    digest 16 bytes, big-endian | number u32 | contents, at most 48 KiB
//! model list    (digest 16 bytes, big-endian | length u32)…
//! credits       records
//! ```
//!
//! Records are a `warmroute.v1.Chunk` of the length that is left: fields in the order of their numbers, those with the
//! value 0 left out (but not an `access_count`), counts packed, keys big-endian. `observation.proto` says what each field
//! is. One commit is one segment and one log sequence. A value that does not parse is a value to read again; it is never
//! used in part. A kind of record that a build does not know is skipped.
//!
//! In the log, replicas and scopes have numbers of the log's own. What a record means there:
//!
//! | Record | In segments | In pages |
//! |---|---|---|
//! | `Scope`, `ScopeGone` | the number has this name, or none any more | page 0 names the scopes |
//! | `ReplicaUp` | a new generation, which counts from its `ReplicaComplete` | page 0: one that has not ended |
//! | `ReplicaComplete` | it counts, and ends those before it of the same replica | page 0: it counts |
//! | `ReplicaGone` | it has ended, and those before it of the same replica | never |
//! | `PublishedNumber` | the hub's number for it now, for the next leader | page 0: the same |
//! | `ReplicaStats`, `Reasserted` | as in the stream | page 0: the last of each generation |
//! | `CachePolicy`, `CachePolicyGone` | as in the stream | page 0 has the policies that there are |
//! | `ModelVersion`, `ModelGone` | as in the stream | page 0 has the versions that there are |
//! | `BlockStored` | held, and listed by page `page` + 1; hits stay as they are | page n + 1: held; `page` is n |
//! | `BlockRemoved`, `AllBlocksCleared` | not held any more: reported, expired or evicted | never |
//! | `HitCounts` | what the hits are now | never: `BlockStored` says so there |
//!
//! So page 0 is the dictionary, and page n + 1 lists the (block, replica) pairs whose last `BlockStored` named n, run by
//! run: consecutive blocks that a generation holds alike, with the key before them in their run, and whether they are
//! chained. Generations that have ended are left out. A page that was loaded as of a sequence has what segments up to
//! there say of the pairs that it lists, and nothing of theirs changes it again; what they say of others is applied.
//!
//! The contents of a model's version are beside the log, as parts under the version's digest, in every life of it the
//! same: their incarnation is 0. The list has every version of which parts may be there. What is no longer needed is an
//! empty value, since no value can be taken away.
//!
//! The records of credits are `HitCounts` only, whose counts are what to add, at least 1 and the same throughout a
//! record; what does not parse is dropped.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod part;

pub use part::{ModelList, PartStamp};

use xxhash_rust::xxh3::xxh3_64;

use crate::observation::{Counted, Observation};
use crate::wire;

/// The layout's version, part of every key and value.
pub const FORMAT: u8 = 1;

const MAGIC: [u8; 2] = *b"WR";
const CHECKSUM_BYTES: usize = 8;
const LEADER_SERVES: u32 = 1;
const COMPLETE: u32 = 2;

/// Names one life of the log: a value from another one means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation(pub u64);

/// Lease and fence in one: who leads, and what is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The life of the log.
    pub incarnation: Incarnation,
    /// The leader's identity.
    pub term: u64,
    /// The oldest log sequence that can still be read.
    pub first: u64,
    /// The newest committed log sequence; 0 for none.
    pub last: u64,
    /// No page is older than this log sequence.
    pub oldest_page: u64,
    /// Number of pages: the dictionary's, and those that list blocks.
    pub pages: u32,
    /// Number of log slots.
    pub ring: u32,
    /// The hub's position that `last` covers; 0, 0 while a reset is under way.
    pub hub_epoch: u64,
    /// See `hub_epoch`.
    pub hub_sequence: u64,
    /// When the leader last heard the hub, Unix time in ms; 0 for never.
    pub heard_ms: u64,
    /// Counts the leader's ticks, so that its value changes even when nothing else does.
    pub beat: u64,
    /// The next replica number to give.
    pub next_replica: u32,
    /// The next scope number to give.
    pub next_scope: u32,
    /// The leader's VM serves requests: one that does not may take over.
    pub leader_serves: bool,
    /// A reset has been completed in this incarnation.
    pub complete: bool,
}

/// A committed batch of records.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// The life of the log.
    pub incarnation: Incarnation,
    /// The term of the leader that wrote it.
    pub term: u64,
    /// Its log sequence.
    pub sequence: u64,
    /// The records.
    pub records: Vec<Observation>,
}

/// A part of the state: page 0 is the dictionary, the others list blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The life of the log.
    pub incarnation: Incarnation,
    /// Its number.
    pub number: u32,
    /// The log sequence it is true of.
    pub as_of: u64,
    /// Records that rebuild the state.
    pub records: Vec<Observation>,
}

/// Delivered hits, as a worker tells the leader of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credits {
    /// The life of the log whose numbers the hits are in.
    pub incarnation: Incarnation,
    /// The hits: the counts are what to add, one number throughout each.
    pub hits: Vec<Counted>,
}

/// What a page says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageStamp {
    /// The life of the log.
    pub incarnation: Incarnation,
    /// Its number.
    pub number: u32,
    /// The log sequence it is true of.
    pub as_of: u64,
}

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentStamp {
    /// The life of the log.
    pub incarnation: Incarnation,
    /// The term of the leader that wrote it.
    pub term: u64,
    /// Its log sequence.
    pub sequence: u64,
}

/// Bytes that are not a whole value of the expected kind and format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

// === impl Head ===

impl Head {
    /// The head of a new log.
    pub fn new(incarnation: Incarnation, term: u64, pages: u32, ring: u32) -> Head {
        Head {
            incarnation,
            term,
            first: 1,
            last: 0,
            oldest_page: 0,
            pages,
            ring,
            hub_epoch: 0,
            hub_sequence: 0,
            heard_ms: 0,
            beat: 0,
            next_replica: 1,
            next_scope: 1,
            leader_serves: false,
            complete: false,
        }
    }

    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(b'H', self.incarnation);
        for field in [self.term, self.first, self.last, self.oldest_page] {
            value.u64(field);
        }
        value.u32(self.pages);
        value.u32(self.ring);
        for field in [self.hub_epoch, self.hub_sequence, self.heard_ms, self.beat] {
            value.u64(field);
        }
        value.u32(self.next_replica);
        value.u32(self.next_scope);
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        value.u32(flag(self.leader_serves, LEADER_SERVES) | flag(self.complete, COMPLETE));
        value.finish()
    }

    /// The head in `bytes`.
    ///
    /// # Errors
    /// When the bytes are not a head of this format.
    pub fn decode(bytes: &[u8]) -> Result<Head, Unreadable> {
        let mut value = Reader::new(b'H', bytes)?;
        let incarnation = value.incarnation;
        let [term, first, last, oldest_page] = value.u64s()?;
        let pages = value.u32()?;
        let ring = value.u32()?;
        let [hub_epoch, hub_sequence, heard_ms, beat] = value.u64s()?;
        let next_replica = value.u32()?;
        let next_scope = value.u32()?;
        let flags = value.u32()?;
        Ok(Head {
            incarnation,
            term,
            first,
            last,
            oldest_page,
            pages,
            ring,
            hub_epoch,
            hub_sequence,
            heard_ms,
            beat,
            next_replica,
            next_scope,
            leader_serves: flags & LEADER_SERVES != 0,
            complete: flags & COMPLETE != 0,
        })
    }
}

// === impl Segment ===

impl Segment {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(b'L', self.incarnation);
        value.u64(self.term);
        value.u64(self.sequence);
        value.records(&self.records);
        value.finish()
    }

    /// The segment in `bytes`.
    ///
    /// # Errors
    /// When the bytes are not a segment of this format.
    pub fn decode(bytes: &[u8]) -> Result<Segment, Unreadable> {
        let mut value = Reader::new(b'L', bytes)?;
        let SegmentStamp { incarnation, term, sequence } = value.segment_stamp()?;
        Ok(Segment { incarnation, term, sequence, records: value.records()? })
    }

    /// What the segment in `bytes` says of itself; the checksum is verified, the records are not read.
    ///
    /// # Errors
    /// When the bytes are not a segment of this format.
    pub fn stamp(bytes: &[u8]) -> Result<SegmentStamp, Unreadable> {
        Reader::new(b'L', bytes)?.segment_stamp()
    }
}

// === impl Page ===

impl Page {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(b'P', self.incarnation);
        value.u32(self.number);
        value.u64(self.as_of);
        value.records(&self.records);
        value.finish()
    }

    /// The page in `bytes`.
    ///
    /// # Errors
    /// When the bytes are not a page of this format.
    pub fn decode(bytes: &[u8]) -> Result<Page, Unreadable> {
        let mut value = Reader::new(b'P', bytes)?;
        let PageStamp { incarnation, number, as_of } = value.page_stamp()?;
        Ok(Page { incarnation, number, as_of, records: value.records()? })
    }

    /// What the page in `bytes` says of itself; the checksum is verified, the records are not read.
    ///
    /// # Errors
    /// When the bytes are not a page of this format.
    pub fn stamp(bytes: &[u8]) -> Result<PageStamp, Unreadable> {
        Reader::new(b'P', bytes)?.page_stamp()
    }
}

// === impl Credits ===

impl Credits {
    /// The batch's bytes.
    pub fn encode(self) -> Vec<u8> {
        let records: Vec<Observation> = self.hits.into_iter().map(Observation::Counted).collect();
        let mut value = Writer::new(b'C', self.incarnation);
        value.records(&records);
        value.finish()
    }

    /// The batch in `bytes`.
    ///
    /// # Errors
    /// When the bytes are not a batch of this format.
    pub fn decode(bytes: &[u8]) -> Result<Credits, Unreadable> {
        let value = Reader::new(b'C', bytes)?;
        let hits = value.records()?.into_iter().map(|record| match record {
            Observation::Counted(counted) if adds_one_number(&counted) => Ok(counted),
            _ => Err(Unreadable),
        });
        Ok(Credits { incarnation: value.incarnation, hits: hits.collect::<Result<_, _>>()? })
    }
}

fn adds_one_number(counted: &Counted) -> bool {
    let mut counts = counted.replicas.iter().flat_map(|at| &at.counts);
    counts.next().is_some_and(|first| *first > 0 && counts.all(|count| count == first))
}

struct Writer(Vec<u8>);

// === impl Writer ===

impl Writer {
    fn new(kind: u8, incarnation: Incarnation) -> Writer {
        let mut writer = Writer(Vec::with_capacity(128));
        writer.0.extend(MAGIC);
        writer.0.extend([kind, FORMAT]);
        writer.u64(incarnation.0);
        writer
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn records(&mut self, records: &[Observation]) {
        self.0.extend(wire::encode_records(records));
    }

    fn finish(mut self) -> Vec<u8> {
        let checksum = xxh3_64(&self.0);
        self.u64(checksum);
        self.0
    }
}

struct Reader<'a> {
    incarnation: Incarnation,
    rest: &'a [u8],
}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn new(kind: u8, bytes: &'a [u8]) -> Result<Reader<'a>, Unreadable> {
        let checked = bytes.len().checked_sub(CHECKSUM_BYTES).ok_or(Unreadable)?;
        let (body, checksum) = bytes.split_at_checked(checked).ok_or(Unreadable)?;
        if checksum != xxh3_64(body).to_le_bytes() {
            return Err(Unreadable);
        }
        let mut reader = Reader { incarnation: Incarnation(0), rest: body };
        let [m0, m1, its_kind, format] = reader.take::<4>()?;
        if [m0, m1] != MAGIC || its_kind != kind || format != FORMAT {
            return Err(Unreadable);
        }
        reader.incarnation = Incarnation(reader.u64()?);
        Ok(reader)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Unreadable)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, Unreadable> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Unreadable> {
        self.take().map(u64::from_le_bytes)
    }

    fn u64s<const N: usize>(&mut self) -> Result<[u64; N], Unreadable> {
        let mut values = [0; N];
        for value in &mut values {
            *value = self.u64()?;
        }
        Ok(values)
    }

    fn segment_stamp(&mut self) -> Result<SegmentStamp, Unreadable> {
        let [term, sequence] = self.u64s()?;
        Ok(SegmentStamp { incarnation: self.incarnation, term, sequence })
    }

    fn page_stamp(&mut self) -> Result<PageStamp, Unreadable> {
        Ok(PageStamp { incarnation: self.incarnation, number: self.u32()?, as_of: self.u64()? })
    }

    fn records(&self) -> Result<Vec<Observation>, Unreadable> {
        wire::decode_records(self.rest).map_err(|_| Unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{BlockKey, ReplicaCounts, ReplicaSlot, ScopeSlot};

    fn head() -> Head {
        Head { last: 7, heard_ms: 9, complete: true, ..Head::new(Incarnation(3), 2, 257, 512) }
    }

    #[test]
    fn values_survive_their_encoding() {
        assert_eq!(Head::decode(&head().encode()), Ok(head()));
        let records = vec![Observation::Cleared { replica: ReplicaSlot(4) }];
        let segment = Segment { incarnation: Incarnation(3), term: 2, sequence: 8, records: records.clone() };
        assert_eq!(Segment::decode(&segment.encode()), Ok(segment));
        let page = Page { incarnation: Incarnation(3), number: 1, as_of: 8, records };
        assert_eq!(Page::decode(&page.encode()), Ok(page));
    }

    #[test]
    fn the_head_has_this_layout() {
        let bytes = head().encode();
        assert_eq!(&bytes[..4], b"WRH\x01");
        assert_eq!(bytes[4..12], 3u64.to_le_bytes());
        assert_eq!(bytes[12..20], 2u64.to_le_bytes());
        assert_eq!(bytes.len(), 4 + 8 + 4 * 8 + 2 * 4 + 4 * 8 + 3 * 4 + 8);
    }

    fn hits(counts: &[u32]) -> Counted {
        let keys = [1, 0x0203].map(BlockKey::Hash64).to_vec();
        let replicas = vec![
            ReplicaCounts { replica: ReplicaSlot(4), counts: counts.to_vec() },
            ReplicaCounts { replica: ReplicaSlot(5), counts: counts[..1].to_vec() },
        ];
        Counted { scope: ScopeSlot(6), keys, replicas }
    }

    #[test]
    fn credits_have_this_layout() {
        let credits = Credits { incarnation: Incarnation(3), hits: vec![hits(&[7, 7])] };
        let bytes = credits.clone().encode();
        let golden = "57524301 0300000000000000 0a27 7a25 0806 1210 0000000000000001 0000000000000203 1808 2206 0804
                      12020707 2205 0805 120107";
        let hex: String = bytes[..bytes.len() - 8].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.split_whitespace().collect::<String>());
        assert_eq!(bytes[bytes.len() - 8..], xxh3_64(&bytes[..bytes.len() - 8]).to_le_bytes());
        assert_eq!(Credits::decode(&bytes), Ok(credits));
    }

    #[test]
    fn credits_that_add_nothing_or_not_one_number_are_unreadable() {
        for counts in [[0, 0], [1, 2]] {
            let bytes = Credits { incarnation: Incarnation(3), hits: vec![hits(&counts)] }.encode();
            assert_eq!(Credits::decode(&bytes), Err(Unreadable), "{counts:?}");
        }
        let mut other = Writer::new(b'C', Incarnation(3));
        other.records(&[Observation::Cleared { replica: ReplicaSlot(4) }]);
        assert_eq!(Credits::decode(&other.finish()), Err(Unreadable));
    }

    #[test]
    fn a_value_with_any_byte_changed_is_unreadable() {
        let bytes = head().encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(Head::decode(&changed), Err(Unreadable), "byte {at}");
            assert_eq!(Head::decode(&bytes[..at]), Err(Unreadable), "cut at {at}");
        }
    }

    #[test]
    fn a_value_of_another_kind_is_unreadable() {
        assert_eq!(Segment::decode(&head().encode()), Err(Unreadable));
        assert_eq!(Page::decode(&head().encode()), Err(Unreadable));
    }
}
