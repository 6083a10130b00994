//! How much stands in shared data, as far as it has been looked at.

use crate::host::SharedValue;

/// The sizes of numbered values.
#[derive(Debug, Default)]
pub struct Sizes {
    by_number: Vec<u32>,
    bytes: u64,
    values: u64,
}

// === impl Sizes ===

impl Sizes {
    /// The value of that number was found to be this.
    pub fn note(&mut self, number: u32, value: &SharedValue) {
        let size = match value {
            SharedValue::Present { bytes, .. } => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            SharedValue::Absent => 0,
        };
        let at = number as usize;
        if at >= self.by_number.len() {
            self.by_number.resize(at + 1, 0);
        }
        let Some(known) = self.by_number.get_mut(at) else { return };
        self.bytes = self.bytes.saturating_sub(u64::from(*known)).saturating_add(u64::from(size));
        self.values = self.values.saturating_sub(u64::from(*known > 0)).saturating_add(u64::from(size > 0));
        *known = size;
    }

    /// Bytes of all together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many are there.
    pub fn values(&self) -> u64 {
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Cas;

    #[test]
    fn a_value_that_is_looked_at_again_counts_once() {
        let value = |size| SharedValue::Present { bytes: vec![0; size], cas: Cas(1) };
        let mut sizes = Sizes::default();
        sizes.note(7, &value(100));
        sizes.note(2, &value(10));
        sizes.note(3, &SharedValue::Absent);
        assert_eq!((sizes.bytes(), sizes.values()), (110, 2));
        sizes.note(7, &value(40));
        assert_eq!((sizes.bytes(), sizes.values()), (50, 2));
        sizes.note(2, &SharedValue::Absent);
        assert_eq!((sizes.bytes(), sizes.values()), (40, 1));
    }
}
