//! Replicas from a domain name, such as that of a headless service.
//!
//! In: a name and the kind of its records. Out: a replica for each address (A, AAAA), whose id is its `ip:port`, or for each
//! target (SRV), whose id is its `name:port` and whose address is the first of that name. The name is asked for again once the
//! records' shortest TTL has passed, within bounds: no cache stands between, so that a replica that is gone is gone with its
//! record.
//!
//! A lookup that fails keeps what is known for `keep_ms`, and so does an answer without records: a name server that is
//! restarted says just that. The same goes for a single target whose address cannot be had, while its SRV record stands. An answer without records where nothing is known is taken at its word.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use tokio::time::{Instant, timeout};

use super::Teller;
use crate::native::hub::config::{DnsDiscovery, DnsRecords, MAX_REPLICAS, ReplicaConfig};

/// How long one question may take, with all its attempts.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long one attempt may take.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);

/// What was found, by id, and for how long it counts.
#[derive(Debug)]
struct Answer {
    replicas: BTreeMap<String, SocketAddr>,
    /// Ids of targets without an address, and why.
    unresolved: BTreeMap<String, NoAnswer>,
    ttl: Duration,
}

/// What is known, by id, and when each was last found.
#[derive(Debug, Default)]
struct Known(BTreeMap<String, (SocketAddr, Instant)>);

/// Why there is none.
#[derive(Debug)]
enum NoAnswer {
    /// The name has no such records.
    NoRecords(String),
    /// Nobody knows.
    Failed(String),
}

/// Asks for the name again and again, and tells what is found.
pub(super) async fn follow(config: DnsDiscovery, mut teller: Teller) {
    let mut last: Option<(Instant, Known)> = None;
    loop {
        let (least, most) = config.ttl;
        // Made anew each time: it costs little, and the system's name servers may be others by now.
        let asked = match resolver(&config) {
            Ok(resolver) => timeout(ANSWER_LIMIT, ask(&resolver, &config)).await,
            Err(error) => Ok(Err(NoAnswer::Failed(error.to_string()))),
        };
        let wait = match asked.unwrap_or_else(|_| Err(NoAnswer::Failed("no answer in time".into()))) {
            Ok(answer) => {
                let (ttl, problem) = (answer.ttl, answer.problem());
                let (before, now) = (last.take().map(|(_, known)| known), Instant::now());
                let known = Known::new(answer, before.as_ref(), config.keep, now);
                match problem {
                    None if before.as_ref().is_some_and(|before| before.is_like(&known)) => teller.working(),
                    None => teller.replicas(known.made(&config)),
                    Some(problem) => {
                        if before.is_none_or(|before| !before.is_like(&known)) {
                            teller.changed(known.made(&config));
                        }
                        teller.failed(problem);
                    }
                }
                last = Some((now, known));
                ttl.clamp(least, most)
            }
            Err(NoAnswer::NoRecords(_)) if last.as_ref().is_none_or(|(_, known)| known.0.is_empty()) => {
                if last.is_none() {
                    teller.replicas(Vec::new());
                } else {
                    teller.working();
                }
                last = Some((Instant::now(), Known::default()));
                least
            }
            Err(NoAnswer::NoRecords(problem) | NoAnswer::Failed(problem)) => {
                teller.failed(problem);
                if let Some((at, known)) = &mut last
                    && !known.0.is_empty()
                    && at.elapsed() >= config.keep
                {
                    known.0.clear();
                    teller.gave_up();
                }
                least
            }
        };
        tokio::time::sleep(wait).await;
    }
}

fn resolver(config: &DnsDiscovery) -> Result<TokioResolver, NetError> {
    let mut builder = if config.name_servers.is_empty() {
        TokioResolver::builder_tokio()?
    } else {
        let servers = config.name_servers.iter().map(|server| {
            let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
                connection.port = server.port();
                connection
            });
            NameServerConfig::new(server.ip(), true, connections.into())
        });
        let servers = ResolverConfig::from_name_servers(servers.collect());
        TokioResolver::builder_with_config(servers, TokioRuntimeProvider::default())
    };
    let options = builder.options_mut();
    options.cache_size = 0;
    options.timeout = ATTEMPT_LIMIT;
    options.attempts = 2;
    options.try_tcp_on_error = true;
    builder.build()
}

async fn ask(resolver: &TokioResolver, config: &DnsDiscovery) -> Result<Answer, NoAnswer> {
    match config.records {
        DnsRecords::A(port) => {
            let (addresses, ttl) = addresses(resolver, &config.name, RecordType::A).await?;
            Ok(Answer { replicas: by_address(addresses, port), unresolved: BTreeMap::new(), ttl })
        }
        DnsRecords::Aaaa(port) => {
            let (addresses, ttl) = addresses(resolver, &config.name, RecordType::AAAA).await?;
            Ok(Answer { replicas: by_address(addresses, port), unresolved: BTreeMap::new(), ttl })
        }
        DnsRecords::Srv => targets(resolver, &config.name).await,
    }
}

fn by_address(addresses: Vec<IpAddr>, port: u16) -> BTreeMap<String, SocketAddr> {
    let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, port));
    addresses.map(|address| (address.to_string(), address)).collect()
}

/// The addresses of a name, at least one, and their shortest TTL.
async fn addresses(
    resolver: &TokioResolver,
    name: &str,
    kind: RecordType,
) -> Result<(Vec<IpAddr>, Duration), NoAnswer> {
    let lookup = resolver.lookup(name, kind).await.map_err(|error| NoAnswer::from(name, &error))?;
    let ttl = shortest(lookup.answers());
    let addresses: Vec<IpAddr> = lookup.answers().iter().filter_map(address).take(MAX_REPLICAS).collect();
    if addresses.is_empty() { Err(NoAnswer::none_of(name, kind)) } else { Ok((addresses, ttl)) }
}

/// The targets of a name's SRV records, those without an address apart.
async fn targets(resolver: &TokioResolver, name: &str) -> Result<Answer, NoAnswer> {
    let lookup = resolver.lookup(name, RecordType::SRV).await.map_err(|error| NoAnswer::from(name, &error))?;
    let ttl = shortest(lookup.answers());
    let mut answer = Answer { replicas: BTreeMap::new(), unresolved: BTreeMap::new(), ttl };
    let records = lookup.answers().iter().filter_map(|record| match &record.data {
        RData::SRV(srv) => Some((srv.target.to_string(), srv.port)),
        _ => None,
    });
    for (target, port) in records.take(MAX_REPLICAS) {
        // Most servers send the targets' addresses along.
        let sent_along = lookup.additionals().iter().filter(|record| record.name.to_string() == target);
        let sent_along = sent_along.filter_map(|record| Some((address(record)?, record.ttl))).min();
        let found = match sent_along {
            Some((ip, ttl)) => Ok((ip, Duration::from_secs(u64::from(ttl)))),
            None => first_address(resolver, &target).await,
        };
        let id = format!("{}:{port}", target.trim_end_matches('.'));
        match found {
            Ok((ip, ttl)) => {
                answer.replicas.insert(id, SocketAddr::new(ip, port));
                answer.ttl = answer.ttl.min(ttl);
            }
            Err(error) => {
                answer.unresolved.insert(id, error);
                // It is asked for again as soon as may be.
                answer.ttl = Duration::ZERO;
            }
        }
    }
    match (answer.replicas.is_empty(), answer.unresolved.pop_last()) {
        (true, Some((_, error))) => Err(error),
        (true, None) => Err(NoAnswer::none_of(name, RecordType::SRV)),
        (false, last) => {
            answer.unresolved.extend(last);
            Ok(answer)
        }
    }
}

/// The smallest address of a name, IPv4 before IPv6: which comes first says nothing.
async fn first_address(resolver: &TokioResolver, name: &str) -> Result<(IpAddr, Duration), NoAnswer> {
    let found = match addresses(resolver, name, RecordType::A).await {
        Ok(found) => found,
        Err(NoAnswer::NoRecords(_)) => addresses(resolver, name, RecordType::AAAA).await?,
        Err(failed) => return Err(failed),
    };
    let (addresses, ttl) = found;
    let first = addresses.into_iter().min().ok_or_else(|| NoAnswer::none_of(name, RecordType::A))?;
    Ok((first, ttl))
}

fn address(record: &Record) -> Option<IpAddr> {
    match &record.data {
        RData::A(ip) => Some(IpAddr::V4(ip.0)),
        RData::AAAA(ip) => Some(IpAddr::V6(ip.0)),
        _ => None,
    }
}

fn shortest(records: &[Record]) -> Duration {
    Duration::from_secs(u64::from(records.iter().map(|record| record.ttl).min().unwrap_or(0)))
}

// === impl Answer ===

impl Answer {
    /// What is wrong with it, if anything is.
    fn problem(&self) -> Option<String> {
        let first = self.unresolved.values().next()?;
        let (NoAnswer::NoRecords(why) | NoAnswer::Failed(why)) = first;
        let others = self.unresolved.len() - 1;
        Some(if others == 0 { why.clone() } else { format!("{why}, and {others} more targets without an address") })
    }
}

// === impl Known ===

impl Known {
    /// What `answer` says at `now`. Of targets without an address what was known `before` stays for `keep`.
    fn new(answer: Answer, before: Option<&Known>, keep: Duration, now: Instant) -> Known {
        let kept = answer.unresolved.into_keys().filter_map(|id| {
            let (address, found) = *before?.0.get(&id)?;
            (now.saturating_duration_since(found) < keep).then_some((id, (address, found)))
        });
        let mut known: BTreeMap<_, _> = kept.collect();
        known.extend(answer.replicas.into_iter().map(|(id, address)| (id, (address, now))));
        Known(known)
    }

    /// Whether both are the same replicas.
    fn is_like(&self, other: &Known) -> bool {
        let of = |known: &Known| known.0.iter().map(|(id, (address, _))| (id.clone(), *address)).collect::<Vec<_>>();
        of(self) == of(other)
    }

    fn made(&self, config: &DnsDiscovery) -> Vec<ReplicaConfig> {
        self.0.iter().map(|(id, (address, _))| config.template.replica(id.clone(), *address)).collect()
    }
}

// === impl NoAnswer ===

impl NoAnswer {
    fn from(name: &str, error: &NetError) -> NoAnswer {
        let what = format!("{name}: {error}");
        // A server that refuses or fails says so with no records either.
        if error.is_nx_domain() || says_there_are_none(error) {
            NoAnswer::NoRecords(what)
        } else {
            NoAnswer::Failed(what)
        }
    }

    fn none_of(name: &str, kind: RecordType) -> NoAnswer {
        NoAnswer::NoRecords(format!("{name} has no {kind} records"))
    }
}

/// Whether a server answered without error that there are no such records.
fn says_there_are_none(error: &NetError) -> bool {
    use hickory_resolver::net::DnsError;
    use hickory_resolver::proto::op::ResponseCode;
    let NetError::Dns(DnsError::NoRecordsFound(none)) = error else { return false };
    none.response_code == ResponseCode::NoError
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(replicas: &[(&str, &str)], unresolved: &[&str]) -> Answer {
        let replicas = replicas.iter().map(|(id, address)| ((*id).to_owned(), address.parse().unwrap()));
        let unresolved = unresolved.iter().map(|id| ((*id).to_owned(), NoAnswer::Failed(format!("{id} is not known"))));
        Answer { replicas: replicas.collect(), unresolved: unresolved.collect(), ttl: Duration::ZERO }
    }

    fn ids(known: &Known) -> Vec<&str> {
        known.0.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_target_without_an_address_keeps_the_last_one_for_a_while_and_no_longer_than_its_record() {
        let (start, keep) = (Instant::now(), Duration::from_secs(60));
        let both = Known::new(answer(&[("a:1", "10.0.0.1:1"), ("b:1", "10.0.0.2:1")], &[]), None, keep, start);
        let one_fails = || answer(&[("a:1", "10.0.0.1:1")], &["b:1", "c:1"]);
        assert_eq!(one_fails().problem().unwrap(), "b:1 is not known, and 1 more targets without an address");
        let later = Known::new(one_fails(), Some(&both), keep, start + keep / 2);
        assert!(later.is_like(&both), "{later:?}");
        // That it was kept makes it no younger.
        let late = Known::new(one_fails(), Some(&later), keep, start + keep);
        assert_eq!(ids(&late), ["a:1"]);
        let no_record = Known::new(answer(&[("a:1", "10.0.0.1:1")], &[]), Some(&both), keep, start + keep / 2);
        assert_eq!(ids(&no_record), ["a:1"]);
        let back = Known::new(answer(&[("b:1", "10.0.0.9:1")], &[]), Some(&later), keep, start + keep);
        assert!(!back.is_like(&both) && ids(&back) == ["b:1"]);
    }
}
