//! Where Envoy reaches the replicas that producers report.
//!
//! In: a replica's tenant and id. Out: `ip:port`, or nothing where it is not known, in this order: the id itself, if it is
//! an `ip:port`; `reports.addresses`; the address of the followed replica of that id; `reports.address_template`. Names
//! are resolved beside the reports, which wait for no name server, a few at a time and each for all who ask; what came of
//! it is kept for a while. Memory and log lines are bounded, whatever names are reported.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tracing::info;

use crate::native::hub::config::{ReportsConfig, filled};
use crate::native::hub::fleet::FleetBook;
use crate::native::hub::problems::is_host_and_port;
use crate::observation::Member;

/// How long a name server may take.
const RESOLVE_LIMIT: Duration = Duration::from_secs(1);
/// A resolved name is asked for again after this long.
const KEEP_RESOLVED: Duration = Duration::from_secs(30);
/// A name without an address is asked for again after this long.
const KEEP_UNRESOLVED: Duration = Duration::from_secs(5);
/// A name without an address is logged once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The most names that are kept.
const MAX_NAMES: usize = 16_384;
/// The most members that wait for one name.
const MAX_WAITING: usize = 4_096;
/// The most names that are asked for at once.
const MAX_ASKING: usize = 16;
/// The longest name with its port, in bytes: what a name server can know, and some.
const MAX_NAME_BYTES: usize = 264;

/// Knows where replicas are.
pub struct AddressBook {
    listed: BTreeMap<String, String>,
    followed: Arc<FleetBook>,
    template: Option<String>,
    names: Mutex<HashMap<String, Resolved>>,
    places: Semaphore,
}

/// What is known of a name.
#[derive(Default)]
struct Resolved {
    address: Option<SocketAddr>,
    /// None before the first answer.
    ask_again: Option<Instant>,
    logged: Option<Instant>,
    /// Who waits for an answer; none while nobody asks.
    waiting: HashSet<Member>,
}

/// A name that is about to be asked for.
pub struct Asking {
    book: Arc<AddressBook>,
    name: String,
}

// === impl AddressBook ===

impl AddressBook {
    /// What the configuration says, and who is followed at the time of each question.
    pub fn new(reports: &ReportsConfig, followed: &Arc<FleetBook>) -> AddressBook {
        AddressBook {
            listed: reports.addresses.clone(),
            followed: Arc::clone(followed),
            template: reports.address_template.clone(),
            names: Mutex::default(),
            places: Semaphore::new(MAX_ASKING),
        }
    }

    /// `ip:port` of this replica, as far as that needs no name server.
    pub fn known(&self, tenant_id: &str, replica_id: &str) -> Option<SocketAddr> {
        let name = self.name(tenant_id, replica_id)?;
        name.parse().ok().or_else(|| {
            let names = self.names();
            let resolved = names.get(&name).filter(|resolved| !resolved.is_due(Instant::now()))?;
            resolved.address
        })
    }

    /// A question to a name server that somebody has to ask, if it is time to; whoever asks it has an answer for `member`
    /// too, and so does one that is under way already.
    pub fn ask(book: &Arc<AddressBook>, member: &Member) -> Option<Asking> {
        let name = book.name(&member.tenant_id, &member.replica_id)?;
        if name.parse::<SocketAddr>().is_ok() {
            return None;
        }
        let now = Instant::now();
        let mut names = book.names();
        if names.len() >= MAX_NAMES && !names.contains_key(&name) {
            names.retain(|_, known| !known.can_go(now));
            if names.len() >= MAX_NAMES {
                return None;
            }
        }
        let known = names.entry(name.clone()).or_default();
        if !known.is_due(now) {
            return None;
        }
        let is_first = known.waiting.is_empty();
        if known.waiting.len() < MAX_WAITING {
            known.waiting.insert(member.clone());
        }
        drop(names);
        is_first.then(|| Asking { book: Arc::clone(book), name })
    }

    fn names(&self) -> MutexGuard<'_, HashMap<String, Resolved>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what a name server said; who waited for it, and the address for them.
    fn answered(&self, name: &str, addresses: &[SocketAddr]) -> Vec<(Member, SocketAddr)> {
        let now = Instant::now();
        let mut names = self.names();
        let Some(known) = names.get_mut(name) else { return Vec::new() };
        // A name of several addresses comes in any order: what was chosen first stays while it is one of them.
        let chosen = known.address.filter(|last| addresses.contains(last));
        known.address = chosen.or_else(|| addresses.first().copied());
        known.ask_again = Some(now + if known.address.is_some() { KEEP_RESOLVED } else { KEEP_UNRESOLVED });
        if known.address.is_none() && known.may_log(now) {
            known.logged = Some(now);
            info!(name, "the address of reported replicas is not known");
        }
        let waiting = std::mem::take(&mut known.waiting);
        let Some(address) = known.address else { return Vec::new() };
        waiting.into_iter().map(|member| (member, address)).collect()
    }

    /// `host:port` of this replica, if it has one.
    fn name(&self, tenant_id: &str, replica_id: &str) -> Option<String> {
        if replica_id.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0) {
            return Some(replica_id.to_owned());
        }
        let listed = self.listed.get(replica_id).cloned();
        if let Some(name) = listed.or_else(|| self.followed.address(replica_id)) {
            return Some(name);
        }
        let name = filled(self.template.as_ref()?, tenant_id, replica_id);
        (name.len() <= MAX_NAME_BYTES && is_host_and_port(&name)).then_some(name)
    }
}

// === impl Asking ===

impl Asking {
    /// Asks, once it is its turn. Whoever waited for the answer, with the address; nobody if there is none.
    pub async fn answer(self) -> Vec<(Member, SocketAddr)> {
        let Ok(_place) = self.book.places.acquire().await else { return Vec::new() };
        let addresses = timeout(RESOLVE_LIMIT, lookup_host(&self.name)).await;
        let addresses: Vec<SocketAddr> = addresses.ok().and_then(Result::ok).into_iter().flatten().collect();
        self.book.answered(&self.name, &addresses)
    }
}

// === impl Resolved ===

impl Resolved {
    /// Whether it is time to ask (again).
    fn is_due(&self, now: Instant) -> bool {
        self.ask_again.is_none_or(|ask_again| now >= ask_again)
    }

    fn may_log(&self, now: Instant) -> bool {
        self.logged.is_none_or(|logged| now >= logged + LOG_INTERVAL)
    }

    /// Whether nothing is lost with it.
    fn can_go(&self, now: Instant) -> bool {
        self.waiting.is_empty() && self.is_due(now) && self.may_log(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::hub::config::replicas_of_file;

    fn book(template: Option<&str>) -> AddressBook {
        let reports = ReportsConfig {
            addresses: [("listed", "10.0.0.7:80"), ("10.0.0.1:80", "10.0.0.9:90")]
                .map(|(id, address)| (id.to_owned(), address.to_owned()))
                .into(),
            address_template: template.map(str::to_owned),
            ..ReportsConfig::default()
        };
        let followed = "[{id: listed, address: '10.0.0.8:80', kv_events: 'tcp://h:1', model: m}, \
                        {id: followed, address: 'localhost:8000', kv_events: 'tcp://h:2', model: m}]";
        let fleet = FleetBook::default();
        fleet.set(replicas_of_file(followed).unwrap().iter());
        AddressBook::new(&reports, &Arc::new(fleet))
    }

    #[test]
    fn an_address_comes_from_the_first_place_that_has_one() {
        let book = book(Some("{replica_id}.{tenant_id}.svc:80"));
        let name = |id| book.name("team", id);
        assert_eq!(name("10.0.0.1:80").as_deref(), Some("10.0.0.1:80"));
        assert_eq!(name("[::1]:80").as_deref(), Some("[::1]:80"));
        assert_eq!(name("listed").as_deref(), Some("10.0.0.7:80"));
        assert_eq!(name("followed").as_deref(), Some("localhost:8000"));
        book.followed.set([].into_iter());
        assert_eq!(name("followed").as_deref(), Some("followed.team.svc:80"), "it is followed no more");
        assert_eq!(name("other").as_deref(), Some("other.team.svc:80"));
    }

    #[test]
    fn what_is_no_address_is_none() {
        let nameless = book(None);
        let book = book(Some("{replica_id}:80"));
        for id in ["", "a b", "a:b", "a/../b", "\u{0}", "10.0.0.1:0", &"x".repeat(300)] {
            assert_eq!(book.name("t", id), None, "{id:?}");
        }
        assert_eq!(nameless.name("t", "other"), None);
    }

    #[tokio::test]
    async fn names_are_asked_for_once_for_all_who_wait_and_kept() {
        let book = Arc::new(book(Some("{replica_id}:80")));
        let (one, other) = (Member::new("t", "m", "followed"), Member::new("t", "n", "followed"));
        assert_eq!(book.known("t", "followed"), None);
        let asking = AddressBook::ask(&book, &one).unwrap();
        assert!(AddressBook::ask(&book, &other).is_none(), "it is under way");
        let answers: BTreeMap<Member, SocketAddr> = asking.answer().await.into_iter().collect();
        let address = answers[&one];
        assert!(address.ip().is_loopback() && address.port() == 8_000 && answers[&other] == address);
        assert_eq!(book.known("t", "followed"), Some(address));
        assert!(AddressBook::ask(&book, &one).is_none(), "it is kept");

        let nowhere = Member::new("t", "m", "no-such-name.invalid");
        assert_eq!(AddressBook::ask(&book, &nowhere).unwrap().answer().await, []);
        assert!(AddressBook::ask(&book, &nowhere).is_none(), "that it has no address is kept");
        assert!(AddressBook::ask(&book, &Member::new("t", "m", "10.0.0.1:80")).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_without_an_address_is_logged_once_a_minute_and_names_are_bounded() {
        let book = Arc::new(book(Some("{replica_id}:80")));
        let member = |id: String| Member::new("t", "m", &*id);
        let mut logged = HashSet::new();
        for _ in 0..20 {
            AddressBook::ask(&book, &member("x".into())).unwrap();
            book.answered("x:80", &[]);
            logged.insert(book.names()["x:80"].logged.unwrap());
            tokio::time::advance(Duration::from_secs(6)).await;
        }
        assert_eq!(logged.len(), 2, "in two minutes");
        let asked = (0..MAX_NAMES + 10).filter(|at| AddressBook::ask(&book, &member(format!("y{at}"))).is_some());
        assert_eq!(asked.count(), MAX_NAMES, "the name that was asked for long ago makes room");
        assert_eq!(book.names().len(), MAX_NAMES);
    }
}
