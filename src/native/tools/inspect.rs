//! `inspect`: what a hub knows, as tables or as the JSON of its `/state`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use super::Failure;
use super::engine::error_chain;
use super::table::Table;
use crate::native::hub::config::defaults;
use crate::native::hub::https::{self, Connector, Trust};
use crate::native::hub::report::{HubReport, ReplicaReport};
use crate::native::hub::security::first_token;

/// How long the hub may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The longest answer, in bytes: as many replicas as a hub follows take some megabytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// The arguments of `inspect`.
#[derive(Args, Debug)]
pub struct InspectArguments {
    /// The hub's HTTP address, `listen.http` of its configuration
    #[arg(long, value_name = "URL", default_value_t = format!("http://{}", defaults::HTTP))]
    hub: String,
    /// A file of tokens, as the hub has them, of which the first is shown, where the hub wants one
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The authorities that the hub's certificate is of, PEM; the system's without it
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate to show, PEM, where the hub knows operators by theirs
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Print the JSON as it is
    #[arg(long)]
    json: bool,
}

/// Asks the hub and writes what it says.
pub(super) async fn run(arguments: &InspectArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let url = state_url(&arguments.hub)?;
    let token = arguments.token_file.as_deref().map(bearer).transpose()?;
    let identity = arguments.cert.as_deref().zip(arguments.key.as_deref());
    if url.scheme_str() == Some("http") && (arguments.ca.is_some() || identity.is_some()) {
        let refused = format!("--hub is `{}`, allowed with --ca or --cert is https://host:port", arguments.hub);
        return Err(Failure::Refused(refused));
    }
    let connector = https::connector(Trust { ca: arguments.ca.as_deref(), identity }).map_err(Failure::Refused)?;
    let answer = timeout(ANSWER_LIMIT, get(&url, connector, token))
        .await
        .unwrap_or_else(|_| Err("no answer in time".to_owned()));
    let body = answer.map_err(|problem| Failure::NoAnswer(format!("{url}: {problem}")))?;
    let report: HubReport = serde_json::from_slice(&body)
        .map_err(|error| Failure::NoAnswer(format!("{url}: not the state of a hub: {error}")))?;
    if arguments.json {
        out.write_all(&body)?;
        writeln!(out)?;
    } else {
        out.write_all(rendered(&report).as_bytes())?;
    }
    Ok(())
}

fn state_url(base: &str) -> Result<Uri, Failure> {
    let refused = || Failure::Refused(format!("--hub is `{base}`, allowed is http://host:port or https://host:port"));
    let url: Uri = format!("{}/state", base.trim_end_matches('/')).parse().map_err(|_| refused())?;
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    if is_http && url.host().is_some() { Ok(url) } else { Err(refused()) }
}

/// What a token is shown as.
fn bearer(path: &Path) -> Result<HeaderValue, Failure> {
    let refused = |what: &dyn std::fmt::Display| Failure::Refused(format!("--token-file {what}"));
    let contents = std::fs::read(path).map_err(|error| refused(&format!("{}: {error}", path.display())))?;
    let token = first_token(&contents, path).map_err(|problem| refused(&problem))?;
    let mut value = HeaderValue::try_from([b"Bearer ", token].concat()).map_err(|error| refused(&error))?;
    value.set_sensitive(true);
    Ok(value)
}

async fn get(url: &Uri, connector: Connector, token: Option<HeaderValue>) -> Result<Bytes, String> {
    let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector);
    let mut request = Request::get(url.clone()).body(Empty::new()).map_err(|error| error.to_string())?;
    if let Some(token) = token {
        request.headers_mut().insert(AUTHORIZATION, token);
    }
    let response = client.request(request).await.map_err(|error| error_chain(&error))?;
    match response.status() {
        status if status.is_success() => {}
        status @ StatusCode::UNAUTHORIZED => {
            return Err(format!("it answers {status}: it wants a token, or another one"));
        }
        status @ StatusCode::FORBIDDEN => {
            return Err(format!("it answers {status}: the token is not one that allows operators"));
        }
        status => return Err(format!("it answers {status}")),
    }
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    Ok(body.map_err(|error| error.to_string())?.to_bytes())
}

/// The report for people.
fn rendered(report: &HubReport) -> String {
    let memory = &report.memory;
    let resident = memory.resident_bytes.map_or("-".to_owned(), bytes);
    let mut text = format!(
        "hub {}  sequence {}  complete {}  memory {resident} ({} blocks followed, {} pairs in {}, {} of changes)\n\n",
        report.version,
        report.sequence,
        yes(report.complete),
        memory.followed_blocks,
        memory.index_pairs,
        bytes(memory.index_bytes),
        bytes(u64::try_from(memory.resume_buffer_bytes).unwrap_or(u64::MAX)),
    );
    text += &replicas(report);
    text += &drops(report);
    text += &reported(report);
    text += &streams(report);
    text
}

fn replicas(report: &HubReport) -> String {
    if report.replicas.is_empty() {
        return "no replicas are followed\n".to_owned();
    }
    let columns = [
        "REPLICA",
        "MODEL",
        "ADDRESS",
        "CONNECTED",
        "COMPLETE",
        "BLOCKS",
        "SEQUENCE",
        "GAPS",
        "REPLAYS",
        "DROPS",
        "LAG",
        "LAST EVENT",
        "PRESSURE",
        "HIT RATE",
        "SCRAPED",
    ];
    let mut table = Table::new(&columns);
    for replica in &report.replicas {
        table.row([
            replica.id.clone(),
            replica.model.clone(),
            replica.address.clone().unwrap_or_else(none),
            yes(replica.connected).to_owned(),
            yes(replica.complete).to_owned(),
            blocks(replica),
            if replica.event_sequence < 0 { none() } else { replica.event_sequence.to_string() },
            replica.gaps.to_string(),
            replays(replica),
            replica.drops.values().sum::<u64>().to_string(),
            replica.lag_ms.map_or_else(none, age),
            replica.last_event_ago_ms.map_or_else(none, age),
            replica.pressure.map_or_else(none, |share| format!("{share:.2}")),
            replica.hit_rate.map_or_else(none, |share| format!("{share:.2}")),
            scraped(replica),
        ]);
    }
    table.rendered() + &more(report.replicas_total, report.replicas.len())
}

/// Blocks held, by tier where some are not in the engine's own cache.
fn blocks(replica: &ReplicaReport) -> String {
    let elsewhere = replica.blocks_by_tier.iter().any(|(tier, count)| tier != "T1" && *count > 0);
    if !elsewhere {
        return replica.blocks.to_string();
    }
    let tiers = replica.blocks_by_tier.iter().map(|(tier, count)| format!("{tier}:{count}"));
    tiers.collect::<Vec<_>>().join(" ")
}

fn replays(replica: &ReplicaReport) -> String {
    match replica.replays_failed {
        0 => replica.replays.to_string(),
        failed => format!("{} ({failed} failed)", replica.replays),
    }
}

fn scraped(replica: &ReplicaReport) -> String {
    let ago = replica.last_scrape_ago_ms.map_or_else(|| "never".to_owned(), age);
    replica.scrape_fault.as_ref().map_or(ago.clone(), |fault| format!("{ago} ({fault})"))
}

fn drops(report: &HubReport) -> String {
    let mut table = Table::new(&["REPLICA", "DROPPED", "REASON"]);
    for replica in &report.replicas {
        for (reason, count) in replica.drops.iter().filter(|(_, count)| **count > 0) {
            table.row([replica.id.clone(), count.to_string(), reason.clone()]);
        }
    }
    if table.is_empty() { String::new() } else { format!("\n{}", table.rendered()) }
}

fn reported(report: &HubReport) -> String {
    if report.reported_total == 0 {
        return String::new();
    }
    let mut table = Table::new(&["REPORTED", "TENANT", "MODEL", "ADDRESS", "BLOCKS"]);
    for replica in &report.reported {
        let address = if replica.address.is_empty() { none() } else { replica.address.clone() };
        table.row([
            replica.id.clone(),
            replica.tenant.clone(),
            replica.model.clone(),
            address,
            replica.blocks.to_string(),
        ]);
    }
    let more = more(report.reported_total, report.reported.len());
    format!("\n{}{more}", table.rendered())
}

fn streams(report: &HubReport) -> String {
    let total = usize::try_from(report.subscribers).unwrap_or(0);
    if report.streams.is_empty() {
        return "\nno subscribers\n".to_owned();
    }
    let mut table = Table::new(&["SUBSCRIBER", "POSITION", "BEHIND", "UNACKNOWLEDGED", "OPEN"]);
    for stream in &report.streams {
        let (unacknowledged, window) = (stream.unacknowledged_bytes, stream.window_bytes);
        table.row([
            if stream.node_id.is_empty() { none() } else { stream.node_id.clone() },
            stream.position.to_string(),
            stream.behind.to_string(),
            format!("{unacknowledged} of {window} bytes"),
            age(stream.open_for_ms),
        ]);
    }
    format!("\n{}{}", table.rendered(), more(total, report.streams.len()))
}

fn more(total: usize, shown: usize) -> String {
    match total.saturating_sub(shown) {
        0 => String::new(),
        more => format!("and {more} more\n"),
    }
}

fn none() -> String {
    "-".to_owned()
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// A time in its largest units, as kubectl has it.
fn age(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms}ms"),
        1..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn bytes(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    format!("{mib:.1} MiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::hub::report::StreamReport;

    #[test]
    fn a_report_is_rendered_as_tables() {
        let replica = ReplicaReport {
            id: "vllm-0".into(),
            model: "llama".into(),
            address: Some("10.0.0.7:8000".into()),
            connected: true,
            complete: true,
            blocks: 1_234,
            event_sequence: 88,
            gaps: 2,
            replays: 5,
            replays_failed: 1,
            drops: [("extra_keys".to_owned(), 7), ("medium".to_owned(), 0)].into(),
            lag_ms: Some(3),
            last_event_ago_ms: Some(61_000),
            pressure: Some(0.25),
            last_scrape_ago_ms: Some(400),
            scrape_fault: Some("missing_load".into()),
            ..ReplicaReport::default()
        };
        let quiet = ReplicaReport { id: "v".into(), event_sequence: -1, ..ReplicaReport::default() };
        let tiers = [("T1".to_owned(), 1), ("T2".to_owned(), 4)].into();
        let offloads = ReplicaReport { id: "w".into(), blocks_by_tier: tiers, ..ReplicaReport::default() };
        let stream = StreamReport { node_id: "envoy-1".into(), position: 90, behind: 9, ..StreamReport::default() };
        let report = HubReport {
            sequence: 99,
            subscribers: 3,
            replicas: vec![replica, quiet, offloads],
            streams: vec![stream],
            ..HubReport::default()
        };
        let text = rendered(&report);
        let words = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
            line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(
            words("vllm-0  "),
            [
                "vllm-0",
                "llama",
                "10.0.0.7:8000",
                "yes",
                "yes",
                "1234",
                "88",
                "2",
                "5 (1 failed)",
                "7",
                "3ms",
                "61s",
                "0.25",
                "-",
                "400ms (missing_load)"
            ]
        );
        assert_eq!(words("v  ")[1..].join(" "), "- no no 0 - 0 0 0 - - - - never");
        assert!(words("w  ").contains(&"T1:1 T2:4"));
        assert_eq!(words("envoy-1"), ["envoy-1", "90", "9", "0 of 0 bytes", "0ms"]);
        assert!(text.contains("extra_keys") && !text.contains("medium") && text.contains("and 2 more"), "{text}");
        assert!(rendered(&HubReport::default()).contains("no replicas are followed"));
    }

    #[test]
    fn ages_are_short() {
        let ages = [999, 1_000, 119_999, 120_000, 7_199_999, 7_200_000, 172_800_000].map(age);
        assert_eq!(ages, ["999ms", "1s", "119s", "2m", "119m", "2h", "2d"]);
    }

    #[test]
    fn what_is_no_url_of_a_hub_is_refused() {
        for base in ["", "localhost:8081", "ftp://h:1", "https://", "http://", "http://a b"] {
            assert!(matches!(state_url(base), Err(Failure::Refused(_))), "{base}");
        }
        assert_eq!(state_url("http://h:1/").unwrap(), "http://h:1/state");
        assert_eq!(state_url("https://h:1").unwrap(), "https://h:1/state");
    }
}
