//! The hub's clocks, read here and nowhere else in it.
//!
//! Ages are told by the hub's own time, [`hub_ms`]: the wall clock's at the start of the process and from then on what has
//! passed, whatever is done to the wall clock. All times that the hub keeps are of it, so that nothing expires, and nothing
//! lives on, by a wall clock that jumps. Times that others state or are told are the wall clock's; [`Wall`] turns one into the
//! other at the edge, in a way that keeps ages.

use std::fmt::{self, Debug, Formatter};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::observation::Observation;

/// By how much the wall clock may differ from what it was known to differ by, in ms, before it has jumped. Both clocks are read
/// one after the other, so that they seem to differ by more when the process is held up between.
const JUMP_MS: u64 = 1_000;

/// The start of the hub's own time.
static START: LazyLock<(Instant, u64)> = LazyLock::new(|| (Instant::now(), unix_ms()));

/// What the wall clock says beside the hub's own time.
pub struct Wall {
    read: Box<dyn Fn() -> (u64, u64) + Send + Sync>,
    /// By how much the wall clock was last found ahead, in ms.
    ahead_ms: AtomicI64,
}

/// The hub's own time in ms: Unix time as the wall clock had it at the start, and what has passed since.
pub fn hub_ms() -> u64 {
    let (start, unix_ms) = *START;
    unix_ms.saturating_add(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX))
}

/// The wall clock's Unix time in ms.
pub fn unix_ms() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock's Unix time in ns.
pub fn unix_ns() -> u64 {
    u64::try_from(since_1970().as_nanos()).unwrap_or(u64::MAX)
}

/// A clock set before 1970 counts as 1970.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

// === impl Wall ===

impl Default for Wall {
    fn default() -> Wall {
        Wall::read_by(|| (hub_ms(), unix_ms()))
    }
}

impl Wall {
    /// One by these clocks: the hub's own time and the wall clock's.
    pub fn read_by(read: impl Fn() -> (u64, u64) + Send + Sync + 'static) -> Wall {
        Wall { read: Box::new(read), ahead_ms: AtomicI64::new(0) }
    }

    /// The wall clock's Unix time in ms.
    pub fn now_ms(&self) -> u64 {
        (self.read)().1
    }

    /// A time of the hub's as the wall clock has it.
    pub fn of_hub_ms(&self, hub_ms: u64) -> u64 {
        hub_ms.saturating_add_signed(self.ahead_ms())
    }

    /// A time of the wall clock's as the hub has it.
    pub fn to_hub_ms(&self, unix_ms: u64) -> u64 {
        unix_ms.saturating_add_signed(self.ahead_ms().saturating_neg())
    }

    /// The same in us; 0, which is no time, stays.
    pub fn to_hub_us(&self, unix_us: i64) -> i64 {
        match unix_us {
            0 => 0,
            unix_us => match unix_us.saturating_sub(self.ahead_ms().saturating_mul(1_000)) {
                0 => -1,
                hub_us => hub_us,
            },
        }
    }

    /// `observation`, whose times are the hub's, as others are told of it.
    pub fn tell(&self, observation: &mut Observation) {
        let time_ms = match observation {
            Observation::Stored(stored) => &mut stored.last_seen_ms,
            Observation::Stats { stats, .. } => &mut stats.reported_ms,
            Observation::Reasserted { at_ms, .. } => at_ms,
            _ => return,
        };
        // 0 stands for no time at all.
        if *time_ms != 0 {
            *time_ms = self.of_hub_ms(*time_ms).max(1);
        }
    }

    /// By how much the wall clock has jumped since this was last asked, in ms, if it has.
    pub fn jump(&self) -> Option<i64> {
        let (before_ms, now_ms) = (self.ahead_ms.load(Ordering::Relaxed), self.ahead_ms());
        self.ahead_ms.store(now_ms, Ordering::Relaxed);
        Some(now_ms.saturating_sub(before_ms)).filter(|jump_ms| *jump_ms != 0)
    }

    /// By how much the wall clock is ahead of the hub's own time.
    fn ahead_ms(&self) -> i64 {
        let known_ms = self.ahead_ms.load(Ordering::Relaxed);
        let (hub_ms, unix_ms) = (self.read)();
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let ahead_ms = signed(unix_ms).saturating_sub(signed(hub_ms));
        if ahead_ms.abs_diff(known_ms) > JUMP_MS { ahead_ms } else { known_ms }
    }
}

impl Debug for Wall {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wall").field("ahead_ms", &self.ahead_ms).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::observation::{ReplicaSlot, ReplicaStats, Stored};

    /// Clocks that are set by hand: the hub's and the wall's, in ms.
    #[derive(Clone, Debug, Default)]
    pub struct Hands(pub Arc<[AtomicU64; 2]>);

    impl Hands {
        /// Both at this time.
        pub fn at(ms: u64) -> Hands {
            let hands = Hands::default();
            hands.set(ms, ms);
            hands
        }

        pub fn set(&self, hub_ms: u64, unix_ms: u64) {
            self.0[0].store(hub_ms, Ordering::Relaxed);
            self.0[1].store(unix_ms, Ordering::Relaxed);
        }

        pub fn wall(&self) -> Wall {
            let hands = self.clone();
            Wall::read_by(move || (hands.0[0].load(Ordering::Relaxed), hands.0[1].load(Ordering::Relaxed)))
        }
    }

    #[test]
    fn the_hubs_time_passes_and_begins_with_the_wall_clocks() {
        let (first, unix) = (hub_ms(), unix_ms());
        assert!(first.abs_diff(unix) < 60_000, "{first} {unix}");
        let limit = Instant::now() + Duration::from_secs(60);
        while hub_ms() == first {
            assert!(Instant::now() < limit, "it stands still");
        }
        assert!(hub_ms() > first);
    }

    #[test]
    fn ages_stay_whatever_the_wall_clock_does() {
        const HOUR: u64 = 3_600_000;
        let hands = Hands::at(10 * HOUR);
        let wall = hands.wall();
        assert_eq!((wall.of_hub_ms(7), wall.to_hub_ms(7), wall.jump()), (7, 7, None));
        for unix_ms in [11 * HOUR, 9 * HOUR, 500 * HOUR, 10 * HOUR + 2_000] {
            hands.set(10 * HOUR, unix_ms);
            // Before the jump is looked for as well as after.
            for _ in 0..2 {
                assert_eq!(wall.of_hub_ms(10 * HOUR - 5), unix_ms - 5);
                assert_eq!(wall.to_hub_ms(unix_ms - 5), 10 * HOUR - 5);
                assert_eq!(wall.to_hub_us((unix_ms as i64 - 5) * 1_000), (10 * HOUR as i64 - 5) * 1_000);
                wall.jump();
            }
            assert_eq!(wall.jump(), None);
        }
        assert_eq!(wall.to_hub_us(0), 0, "no time");
        assert_eq!(wall.to_hub_us(2_000_000), -1, "a time, if an early one");
    }

    #[test]
    fn a_jump_is_told_once_and_a_moment_between_two_readings_is_none() {
        let hands = Hands::at(1_000_000);
        let wall = hands.wall();
        hands.set(1_005_000, 1_005_700);
        assert_eq!((wall.jump(), wall.of_hub_ms(1_005_000)), (None, 1_005_000));
        hands.set(1_010_000, 1_012_500);
        assert_eq!((wall.jump(), wall.jump()), (Some(2_500), None));
        hands.set(1_010_000, 1);
        assert_eq!((wall.jump(), wall.of_hub_ms(5)), (Some(-1_012_499), 0));
        hands.set(u64::MAX, 0);
        assert!(wall.jump().is_some());
        assert_eq!(wall.of_hub_ms(9), 0);
    }

    #[test]
    fn every_time_in_an_observation_is_told_by_the_wall_clock() {
        let hands = Hands::at(1_000_000);
        let wall = hands.wall();
        hands.set(1_000_000, 5_000_000);
        let replica = ReplicaSlot(1);
        let at = |ms: u64| {
            [
                Observation::Stored(Stored { replica, last_seen_ms: ms, ..Stored::default() }),
                Observation::Stats { replica, stats: ReplicaStats { reported_ms: ms, ..ReplicaStats::default() } },
                Observation::Reasserted { replica, at_ms: ms },
                Observation::Cleared { replica },
            ]
        };
        let mut told = at(900_000);
        told.iter_mut().for_each(|observation| wall.tell(observation));
        assert_eq!(told, at(4_900_000));
        let mut none = at(0);
        none.iter_mut().for_each(|observation| wall.tell(observation));
        assert_eq!(none, at(0));
    }
}
