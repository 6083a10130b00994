//! Replicas from a domain name, such as that of a headless service.
//!
//! In: a name and the kind of its records. Out: a replica for each address (A, AAAA), whose id is its `ip:port`, or for each
//! target (SRV), whose id is its `name:port` and whose address is the first of that name. The name is asked for again once the
//! records' shortest TTL has passed, within bounds: no cache stands between, so that a replica that is gone is gone with its
//! record.
//!
//! A lookup that fails keeps what is known for `keep_ms`, and so does an answer without records: a name server that is
//! restarted says just that. An answer without records where nothing is known is taken at its word.

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
    ttl: Duration,
}

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
    let mut last: Option<(Instant, BTreeMap<String, SocketAddr>)> = None;
    loop {
        let (least, most) = config.ttl;
        // Made anew each time: it costs little, and the system's name servers may be others by now.
        let asked = match resolver(&config) {
            Ok(resolver) => timeout(ANSWER_LIMIT, ask(&resolver, &config)).await,
            Err(error) => Ok(Err(NoAnswer::Failed(error.to_string()))),
        };
        let wait = match asked.unwrap_or_else(|_| Err(NoAnswer::Failed("no answer in time".into()))) {
            Ok(Answer { replicas, ttl }) => {
                if last.as_ref().is_none_or(|(_, known)| *known != replicas) {
                    teller.replicas(made(&config, &replicas));
                } else {
                    teller.working();
                }
                last = Some((Instant::now(), replicas));
                ttl.clamp(least, most)
            }
            Err(NoAnswer::NoRecords(_)) if last.as_ref().is_none_or(|(_, known)| known.is_empty()) => {
                if last.is_none() {
                    teller.replicas(Vec::new());
                } else {
                    teller.working();
                }
                last = Some((Instant::now(), BTreeMap::new()));
                least
            }
            Err(NoAnswer::NoRecords(problem) | NoAnswer::Failed(problem)) => {
                teller.failed(problem);
                if let Some((at, known)) = &mut last
                    && !known.is_empty()
                    && at.elapsed() >= config.keep
                {
                    known.clear();
                    teller.gave_up();
                }
                least
            }
        };
        tokio::time::sleep(wait).await;
    }
}

fn made(config: &DnsDiscovery, replicas: &BTreeMap<String, SocketAddr>) -> Vec<ReplicaConfig> {
    replicas.iter().map(|(id, address)| config.template.replica(id.clone(), *address)).collect()
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
            Ok(Answer { replicas: by_address(addresses, port), ttl })
        }
        DnsRecords::Aaaa(port) => {
            let (addresses, ttl) = addresses(resolver, &config.name, RecordType::AAAA).await?;
            Ok(Answer { replicas: by_address(addresses, port), ttl })
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

/// The targets of a name's SRV records. A target without an address is left out.
async fn targets(resolver: &TokioResolver, name: &str) -> Result<Answer, NoAnswer> {
    let lookup = resolver.lookup(name, RecordType::SRV).await.map_err(|error| NoAnswer::from(name, &error))?;
    let mut answer = Answer { replicas: BTreeMap::new(), ttl: shortest(lookup.answers()) };
    let mut last_error = NoAnswer::none_of(name, RecordType::SRV);
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
        match found {
            Ok((ip, ttl)) => {
                let host = target.trim_end_matches('.');
                answer.replicas.insert(format!("{host}:{port}"), SocketAddr::new(ip, port));
                answer.ttl = answer.ttl.min(ttl);
            }
            Err(error) => last_error = error,
        }
    }
    if answer.replicas.is_empty() { Err(last_error) } else { Ok(answer) }
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
