//! Responses of engines, read for what was cached.

use warmroute::flow::exchange::usage::{Framing, Scanner};

/// The first byte says how it is framed and cut. A body that comes in pieces says what it says in one.
pub fn usage(bytes: &[u8]) {
    let Some((how, body)) = bytes.split_first() else { return };
    let framing = if how & 1 == 0 { Framing::Json } else { Framing::Events };
    let mut whole = Scanner::new(framing);
    whole.read(body);
    let mut cut = Scanner::new(framing);
    body.chunks(usize::from(how >> 1) + 1).for_each(|piece| cut.read(piece));
    assert_eq!(whole.usage(), cut.usage());
    let _ = (whole.usage().cached_tokens(), whole.usage().agrees_with(u64::MAX));
}
