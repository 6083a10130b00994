//! A line of the table: seven entries in a cache line, and what an entry is made of.
//!
//! ```text
//! hash    root 6 bits | tag 28 bits | unused
//! entry   taken | tag 28 bits | run's high 3 bits
//!         run's low 21 bits | offset 11 bits
//! ```

/// Bits of an offset within a run.
pub const OFFSET_BITS: u32 = 11;
/// Bits of a run's number.
pub const RUN_BITS: u32 = 24;
/// Bits of a run's number that are in the upper half of an entry.
pub const HIGH_RUN_BITS: u32 = 3;
const LOW_RUN_BITS: u32 = RUN_BITS - HIGH_RUN_BITS;
/// Bits of a hash that are kept.
pub const TAG_BITS: u32 = 28;
/// The lowest so many bits.
pub const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
/// Bits of a hash before those.
pub const ROOT_BITS: u32 = 6;
const TAKEN: u32 = 1 << 31;
/// Entries of a line.
pub const LINE: usize = 7;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The run's number, at least 1.
    pub run: u32,
    /// The block's offset in it.
    pub at: usize,
}

/// Entries in no order, the halves of each at the same place of the two. The eighth place has none: in place of a tag it
/// has 1 where entries that belong here or before are after this line, and its other half is there to be written to.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct Line {
    tags: [u32; LINE + 1],
    places: [u32; LINE + 1],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub tag: u32,
    pub place: u32,
}

/// Entries of one tag, from its home on.
pub struct Candidates<'t> {
    tag: u32,
    lines: std::slice::Iter<'t, Line>,
    line: Option<&'t Line>,
    /// Slots of `line` that are still to come.
    left: u32,
    goes_on: bool,
}

// === impl Line ===

impl Line {
    /// The slots that `is` holds for, as bits. No branch depends on what is in the line.
    #[inline]
    fn slots(&self, is: impl Fn(u32) -> bool) -> u32 {
        self.tags.iter().enumerate().fold(0, |slots, (slot, tag)| slots | u32::from(is(*tag)) << slot)
    }

    #[inline]
    fn taken(&self) -> u32 {
        self.slots(|tag| tag & TAKEN != 0)
    }

    /// Whether entries that belong here or before are after it.
    #[inline]
    pub fn pushes_on(&self) -> bool {
        self.tags[LINE] != 0
    }

    #[inline]
    pub fn push_on(&mut self, on: bool) {
        self.tags[LINE] = u32::from(on);
    }

    /// Writes where nothing is kept.
    #[inline]
    pub fn touch(&mut self) {
        self.places[LINE] = 0;
    }

    /// Slots whose entries have this tag, of whatever run.
    #[inline]
    fn tagged(&self, tag: u32) -> u32 {
        self.slots(|other| (other ^ tag) >> HIGH_RUN_BITS == 0)
    }

    /// The entry's slot. Only the places of its tag are read: the line may have been touched just now.
    #[inline]
    pub fn find(&self, entry: Entry) -> Option<u32> {
        let mut slots = self.slots(|tag| tag == entry.tag);
        while slots != 0 {
            let slot = slots.trailing_zeros();
            if self.places.get(slot as usize) == Some(&entry.place) {
                return Some(slot);
            }
            slots &= slots - 1;
        }
        None
    }

    /// False if the line is full.
    #[inline]
    pub fn put(&mut self, entry: Entry) -> bool {
        let slot = self.taken().trailing_ones() as usize;
        if slot < LINE {
            self.set(slot, entry);
        }
        slot < LINE
    }

    #[inline]
    pub fn set(&mut self, slot: usize, entry: Entry) {
        if let (Some(tag), Some(place)) = (self.tags.get_mut(slot), self.places.get_mut(slot)) {
            (*tag, *place) = (entry.tag, entry.place);
        }
    }

    #[inline]
    pub fn clear(&mut self, slot: u32) {
        if let Some(tag) = self.tags.get_mut(slot as usize) {
            *tag = 0;
        }
    }

    pub fn entries(&self) -> impl Iterator<Item = (u32, Entry)> {
        let entries = self.tags.iter().zip(&self.places).zip(0..);
        entries
            .filter(|((tag, _), _)| **tag & TAKEN != 0)
            .map(|((tag, place), slot)| (slot, Entry { tag: *tag, place: *place }))
    }
}

// === impl Candidates ===

impl<'t> Candidates<'t> {
    /// Those with this tag in `lines`, of which the first is its home.
    #[inline]
    pub fn new(tag: u32, lines: &'t [Line]) -> Candidates<'t> {
        Candidates { tag, lines: lines.iter(), line: None, left: 0, goes_on: true }
    }
}

impl Iterator for Candidates<'_> {
    type Item = Place;

    #[inline]
    fn next(&mut self) -> Option<Place> {
        while self.left == 0 {
            if !self.goes_on {
                return None;
            }
            let line = self.lines.next()?;
            self.left = line.tagged(self.tag);
            self.goes_on = line.pushes_on();
            self.line = Some(line);
        }
        let slot = self.left.trailing_zeros() as usize;
        self.left &= self.left - 1;
        let line = self.line?;
        let entry = Entry { tag: *line.tags.get(slot)?, place: *line.places.get(slot)? };
        Some(entry.place())
    }
}

// === impl Entry ===

impl Entry {
    #[inline]
    pub fn new(hash: u64, Place { run, at }: Place) -> Entry {
        let high = run >> LOW_RUN_BITS & ((1 << HIGH_RUN_BITS) - 1);
        Entry { tag: tag_of(hash) | high, place: run << OFFSET_BITS | at as u32 }
    }

    #[inline]
    pub fn place(self) -> Place {
        let high = self.tag & ((1 << HIGH_RUN_BITS) - 1);
        let run = high << LOW_RUN_BITS | self.place >> OFFSET_BITS;
        Place { run, at: (self.place & ((1 << OFFSET_BITS) - 1)) as usize }
    }
}

/// The upper half of an entry, of a run whose high bits are zero.
#[inline]
pub fn tag_of(hash: u64) -> u32 {
    let tag = hash >> (u64::BITS - ROOT_BITS - TAG_BITS) & TAG_MASK;
    TAKEN | (tag as u32) << HIGH_RUN_BITS
}
