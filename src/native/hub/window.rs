//! How far a stream may run ahead of its subscriber, in bytes.
//!
//! In: messages sent and acknowledgements. Out: whether another message fits. Pure.

use std::collections::VecDeque;

use crate::wire::MAX_UNACKNOWLEDGED_BYTES;

/// Messages that are under way.
#[derive(Debug, Default)]
pub struct Window {
    /// Number and bytes, ascending.
    under_way: VecDeque<(u64, usize)>,
    bytes: usize,
    last: u64,
}

/// An acknowledgement of a message that was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSent;

// === impl Window ===

impl Window {
    /// The number that the next message gets.
    pub fn next_number(&self) -> u64 {
        self.last + 1
    }

    /// Bytes that are under way.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a message of `bytes` may be sent.
    pub fn fits(&self, bytes: usize) -> bool {
        self.bytes + bytes <= MAX_UNACKNOWLEDGED_BYTES
    }

    /// The next message, of `bytes`, was sent.
    pub fn sent(&mut self, bytes: usize) {
        self.last += 1;
        self.bytes += bytes;
        self.under_way.push_back((self.last, bytes));
    }

    /// Every message up to `number` was applied.
    ///
    /// # Errors
    /// When that message was not sent.
    pub fn acknowledged(&mut self, number: u64) -> Result<(), NotSent> {
        if number > self.last {
            return Err(NotSent);
        }
        while let Some((_, bytes)) = self.under_way.pop_front_if(|(sent, _)| *sent <= number) {
            self.bytes -= bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_make_room() {
        let mut window = Window::default();
        let quarter = MAX_UNACKNOWLEDGED_BYTES / 4;
        for number in 1..=4 {
            assert!(window.fits(quarter));
            assert_eq!(window.next_number(), number);
            window.sent(quarter);
        }
        assert!(!window.fits(1));
        assert_eq!(window.acknowledged(2), Ok(()));
        assert_eq!(window.acknowledged(1), Ok(()), "an older one says nothing new");
        assert!(window.fits(2 * quarter) && !window.fits(2 * quarter + 1));
        assert_eq!(window.acknowledged(5), Err(NotSent));
    }
}
