//! Time that a thread spent running, which on a shared machine says more than time that went by.

use std::time::Instant;

/// A point in time, by the thread's own clock where Linux tells it, else by the wall's.
pub struct OwnTime {
    own_ns: Option<u64>,
    wall: Instant,
}

impl OwnTime {
    pub fn now() -> OwnTime {
        OwnTime { own_ns: own_ns(), wall: Instant::now() }
    }

    pub fn elapsed_ns(&self) -> f64 {
        let wall_ns = self.wall.elapsed().as_nanos() as f64;
        match (self.own_ns, own_ns()) {
            (Some(before), Some(now)) => now.saturating_sub(before) as f64,
            _ => wall_ns,
        }
    }
}

/// The account is as of the last time that the scheduler looked, so it is asked to.
fn own_ns() -> Option<u64> {
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok()
}
