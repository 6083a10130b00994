//! The contents of models' packages in shared data: parts, and the list of the versions that have some there.
//!
//! What they say is true in every life of the log, so the incarnation is 0.

use super::{Incarnation, Reader, Unreadable, Writer};
use crate::observation::{MODEL_PART_BYTES, ModelDigest, ModelPart, ModelVersion};

/// Bytes of an entry of the list.
const LISTED_BYTES: usize = 20;

/// What a model's part says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartStamp {
    /// Of which contents.
    pub digest: ModelDigest,
    /// Its number.
    pub number: u32,
    /// Bytes of the contents.
    pub bytes: usize,
}

/// The versions of models that have, or may have, parts in shared data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelList(pub Vec<ModelVersion>);

// === impl ModelPart ===

impl ModelPart {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(b'M', Incarnation(0));
        value.0.reserve(self.contents.len());
        value.digest(self.digest);
        value.u32(self.number);
        value.0.extend_from_slice(&self.contents);
        value.finish()
    }

    /// The part in `bytes`.
    ///
    /// # Errors
    /// When the bytes are not a part in this format.
    pub fn decode(bytes: &[u8]) -> Result<ModelPart, Unreadable> {
        let mut value = Reader::new(b'M', bytes)?;
        let PartStamp { digest, number, .. } = value.part_stamp()?;
        Ok(ModelPart { digest, number, contents: value.rest.to_vec() })
    }

    /// What the part in `bytes` says of itself; the checksum is verified, the contents are not copied.
    ///
    /// # Errors
    /// When the bytes are not a part in this format.
    pub fn stamp(bytes: &[u8]) -> Result<PartStamp, Unreadable> {
        Reader::new(b'M', bytes)?.part_stamp()
    }
}

// === impl ModelList ===

impl ModelList {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Writer::new(b'I', Incarnation(0));
        for version in &self.0 {
            value.digest(version.digest);
            value.u32(version.length);
        }
        value.finish()
    }

    /// The list in `bytes`.
    ///
    /// # Errors
    /// When the bytes are not a list in this format.
    pub fn decode(bytes: &[u8]) -> Result<ModelList, Unreadable> {
        let mut value = Reader::new(b'I', bytes)?;
        let mut versions = Vec::with_capacity(value.rest.len() / LISTED_BYTES);
        while !value.rest.is_empty() {
            versions.push(ModelVersion { digest: value.digest()?, length: value.u32()? });
        }
        Ok(ModelList(versions))
    }
}

// === impl Writer ===

impl Writer {
    fn digest(&mut self, digest: ModelDigest) {
        self.0.extend(digest.0.to_be_bytes());
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn digest(&mut self) -> Result<ModelDigest, Unreadable> {
        self.take().map(u128::from_be_bytes).map(ModelDigest)
    }

    fn part_stamp(&mut self) -> Result<PartStamp, Unreadable> {
        let (digest, number) = (self.digest()?, self.u32()?);
        match self.rest.len() {
            bytes @ 1..=MODEL_PART_BYTES => Ok(PartStamp { digest, number, bytes }),
            _ => Err(Unreadable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::log::Head;

    fn part(bytes: usize) -> ModelPart {
        ModelPart { digest: ModelDigest(7 << 64), number: 3, contents: vec![5; bytes] }
    }

    #[test]
    fn a_part_says_what_it_is_of_and_survives() {
        for bytes in [1, 100, MODEL_PART_BYTES] {
            let value = part(bytes).encode();
            assert_eq!(ModelPart::stamp(&value), Ok(PartStamp { digest: ModelDigest(7 << 64), number: 3, bytes }));
            assert_eq!(ModelPart::decode(&value), Ok(part(bytes)));
        }
        for bytes in [0, MODEL_PART_BYTES + 1] {
            assert_eq!(ModelPart::decode(&part(bytes).encode()), Err(Unreadable), "{bytes} bytes");
        }
    }

    #[test]
    fn a_value_with_any_byte_changed_is_unreadable() {
        let list = ModelList(vec![ModelVersion { digest: ModelDigest(9), length: 1 }]);
        for value in [part(9).encode(), list.encode()] {
            for at in 0..value.len() {
                let mut changed = value.clone();
                changed[at] ^= 1;
                assert!(ModelPart::stamp(&changed).is_err() && ModelList::decode(&changed).is_err(), "byte {at}");
                let cut = &value[..at];
                assert!(ModelPart::stamp(cut).is_err() && ModelList::decode(cut).is_err(), "cut at {at}");
            }
        }
        assert_eq!(ModelPart::decode(&list.encode()), Err(Unreadable));
        assert_eq!(ModelList::decode(&part(9).encode()), Err(Unreadable));
        assert_eq!(ModelPart::decode(&Head::new(Incarnation(0), 1, 2, 3).encode()), Err(Unreadable));
    }

    #[test]
    fn a_list_survives_and_one_that_is_cut_in_an_entry_does_not() {
        let versions = |count: u32| (1..=count).map(|at| ModelVersion { digest: ModelDigest(at.into()), length: at });
        for count in [0, 1, 40] {
            let list = ModelList(versions(count).collect());
            assert_eq!(ModelList::decode(&list.encode()), Ok(list));
        }
        let mut cut = Writer::new(b'I', Incarnation(0));
        cut.u64(1);
        assert_eq!(ModelList::decode(&cut.finish()), Err(Unreadable));
    }
}
