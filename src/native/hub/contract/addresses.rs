//! Where Envoy reaches the replicas that producers report.
//!
//! In: a replica's tenant and id. Out: `ip:port`, or nothing where it is not known, in this order: the id itself, if it is
//! an `ip:port`; `reports.addresses`; the address of the followed replica of that id; `reports.address_template`. Names
//! are resolved, and what came of it is kept for a while, so that a report seldom waits for a name server.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::{Instant, timeout};
use tracing::info;

use crate::native::hub::config::{ReplicaConfig, ReportsConfig, filled};
use crate::native::hub::problems::is_host_and_port;

/// How long a name server may take.
const RESOLVE_LIMIT: Duration = Duration::from_secs(1);
/// A resolved name is asked for again after this long.
const KEEP_RESOLVED: Duration = Duration::from_secs(30);
/// A name without an address is asked for again after this long.
const KEEP_UNRESOLVED: Duration = Duration::from_secs(5);
/// The most names that are kept.
const MAX_NAMES: usize = 16_384;
/// The longest name with its port, in bytes: what a name server can know, and some.
const MAX_NAME_BYTES: usize = 264;

/// Knows where replicas are.
pub struct AddressBook {
    listed: BTreeMap<String, String>,
    followed: HashMap<String, String>,
    template: Option<String>,
    resolved: Mutex<HashMap<String, Resolved>>,
}

struct Resolved {
    address: Option<SocketAddr>,
    ask_again: Instant,
}

// === impl AddressBook ===

impl AddressBook {
    /// What the configuration says.
    pub fn new(reports: &ReportsConfig, followed: &[ReplicaConfig]) -> AddressBook {
        AddressBook {
            listed: reports.addresses.clone(),
            followed: followed.iter().map(|replica| (replica.id.clone(), replica.address.clone())).collect(),
            template: reports.address_template.clone(),
            resolved: Mutex::default(),
        }
    }

    /// `ip:port` of this replica, if it is known.
    pub async fn address(&self, tenant_id: &str, replica_id: &str) -> Option<SocketAddr> {
        let name = self.name(tenant_id, replica_id)?;
        if let Ok(literal) = name.parse() {
            return Some(literal);
        }
        if let Some(address) = self.kept(&name) {
            return address;
        }
        let addresses = timeout(RESOLVE_LIMIT, lookup_host(&name)).await;
        let addresses: Vec<SocketAddr> = addresses.ok().and_then(Result::ok).into_iter().flatten().collect();
        // A name of several addresses comes in any order: what was chosen first stays while it is one of them.
        let chosen = self.last(&name).filter(|last| addresses.contains(last));
        let address = chosen.or_else(|| addresses.first().copied());
        if address.is_none() {
            info!(replica_id, name, "the address of a reported replica is not known");
        }
        self.keep(name, address);
        address
    }

    /// `host:port` of this replica, if it has one.
    fn name(&self, tenant_id: &str, replica_id: &str) -> Option<String> {
        if replica_id.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0) {
            return Some(replica_id.to_owned());
        }
        if let Some(name) = self.listed.get(replica_id).or_else(|| self.followed.get(replica_id)) {
            return Some(name.clone());
        }
        let name = filled(self.template.as_ref()?, tenant_id, replica_id);
        (name.len() <= MAX_NAME_BYTES && is_host_and_port(&name)).then_some(name)
    }

    fn kept(&self, name: &str) -> Option<Option<SocketAddr>> {
        let resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        resolved.get(name).filter(|resolved| Instant::now() < resolved.ask_again).map(|resolved| resolved.address)
    }

    /// What the name was last, however long ago.
    fn last(&self, name: &str) -> Option<SocketAddr> {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner).get(name)?.address
    }

    fn keep(&self, name: String, address: Option<SocketAddr>) {
        let now = Instant::now();
        let ask_again = now + if address.is_some() { KEEP_RESOLVED } else { KEEP_UNRESOLVED };
        let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        if resolved.len() >= MAX_NAMES {
            resolved.retain(|_, kept| now < kept.ask_again);
        }
        if resolved.len() < MAX_NAMES {
            resolved.insert(name, Resolved { address, ask_again });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(template: Option<&str>) -> AddressBook {
        let reports = ReportsConfig {
            addresses: [("listed", "10.0.0.7:80"), ("10.0.0.1:80", "10.0.0.9:90")]
                .map(|(id, address)| (id.to_owned(), address.to_owned()))
                .into(),
            address_template: template.map(str::to_owned),
            ..ReportsConfig::default()
        };
        AddressBook {
            followed: [("listed", "10.0.0.8:80"), ("followed", "localhost:8000")]
                .map(|(id, address)| (id.to_owned(), address.to_owned()))
                .into(),
            ..AddressBook::new(&reports, &[])
        }
    }

    #[test]
    fn an_address_comes_from_the_first_place_that_has_one() {
        let book = book(Some("{replica_id}.{tenant_id}.svc:80"));
        let name = |id| book.name("team", id);
        assert_eq!(name("10.0.0.1:80").as_deref(), Some("10.0.0.1:80"));
        assert_eq!(name("[::1]:80").as_deref(), Some("[::1]:80"));
        assert_eq!(name("listed").as_deref(), Some("10.0.0.7:80"));
        assert_eq!(name("followed").as_deref(), Some("localhost:8000"));
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
    async fn names_are_resolved_and_kept() {
        let book = book(Some("{replica_id}:80"));
        let address = book.address("t", "followed").await.unwrap();
        assert!(address.ip().is_loopback() && address.port() == 8_000);
        assert_eq!(book.kept("localhost:8000"), Some(Some(address)));
        assert_eq!(book.address("t", "no-such-name.invalid").await, None);
        assert_eq!(book.kept("no-such-name.invalid:80"), Some(None));
    }
}
