//! Free loopback ports.
//!
//! They are taken from below the range that the kernel gives to outgoing connections, so that no client's connection
//! sits on a port between its choice and the moment a child process listens on it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports to choose from.
const RANGE: Range<u32> = 10_240..32_768;

/// Counts the ports handed out by this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Nothing in the range is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFreePort;

/// A loopback address that nothing listens on. This process never hands one out twice before the range is through.
///
/// # Errors
/// When every port of the range is in use.
pub fn free_address() -> Result<SocketAddr, NoFreePort> {
    let width = RANGE.end - RANGE.start;
    // Processes start at different places, so that two at a time rarely try the same port.
    let start = std::process::id().wrapping_mul(7919);
    (0..width)
        .map(|_| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % width + RANGE.start)
        .filter_map(|port| u16::try_from(port).ok())
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .find(|address| TcpListener::bind(address).is_ok())
        .ok_or(NoFreePort)
}

// === impl NoFreePort ===

impl std::fmt::Display for NoFreePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no loopback port from {} to {} is free", RANGE.start, RANGE.end - 1)
    }
}

impl std::error::Error for NoFreePort {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ_and_can_be_listened_on() {
        let first = free_address().unwrap();
        let second = free_address().unwrap();
        assert_ne!(first, second);
        assert!(TcpListener::bind(first).is_ok() && TcpListener::bind(second).is_ok());
    }
}
