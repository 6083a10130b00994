//! Part `killed`: the hub is killed while the chunks of a reset are under way, and restarted.
//!
//! The relay makes the moment certain: it keeps the filter's stream away until the hub knows everything, so that the
//! stream begins with a reset of full size; it then holds still in the middle of it, and there the hub is killed. While it
//! is dead, every replica lets conversations go: a hint to one of them afterwards would be wrong.

use std::time::{Duration, Instant};

use super::ScaleError;
use super::ask::{Agreement, compare};
use super::content::Conversation;
use super::options::ScaleOptions;
use super::site::Site;
use super::traffic::Traffic;
use super::verdict::Verdicts;
use crate::native::load::stack::eventually;

/// How long the reset may take to its middle.
const MIDDLE_WITHIN: Duration = Duration::from_secs(60);
/// Bytes of a reset for each pair that certainly have a second half after them: a pair takes 8 for its key alone.
const BYTES_PER_PAIR: u64 = 4;
/// How long the hub stays dead.
const DEAD_FOR: Duration = Duration::from_secs(1);
/// Conversations that each replica lets go meanwhile.
const CONVERSATIONS_GONE: usize = 3;

/// What came of the kill.
#[derive(Debug)]
pub struct Killed {
    /// Bytes of the reset that had passed.
    pub passed: u64,
    /// From the restart until the hub knew exactly what is held.
    pub hub_recovered: Duration,
    /// From the restart until decisions were the hub's, or until they were waited for no more.
    pub recovered: Duration,
    /// The last decisions compared, about what is held and what went.
    pub agreement: Agreement,
}

/// Runs the part.
///
/// # Errors
/// When a program does not answer or does not recover.
pub async fn run(site: &mut Site, options: &ScaleOptions, verdicts: &mut Verdicts) -> Result<(), ScaleError> {
    println!("\n## The hub killed during a reset\n");
    let traffic = Traffic::start(&site.target(options.connections, options.rate), &site.pool);
    let killed = kill_during_reset(site, options.prompts, options.load_limit()).await;
    let outcome = traffic.stop().await;
    let Killed { passed, hub_recovered, recovered, agreement } = killed?;
    println!(
        "killed after {passed} bytes of the reset; after the restart the hub knew all in {:.1} s, decisions were the hub's \
         in {:.1} s\n\
         requests meanwhile: {} sent, {} answered, {} hinted, {} hinted wrongly\n{agreement}",
        hub_recovered.as_secs_f64(),
        recovered.as_secs_f64(),
        outcome.sent,
        outcome.answered,
        outcome.hinted,
        outcome.wrong
    );
    outcome.failure.iter().for_each(|failure| println!("a request failed: {failure}"));
    let swept = site.all_known(options.load_limit()).await?;
    println!("{:.1} s later the index had exactly the pairs that are held\n", swept.as_secs_f64());
    verdicts.none("requests not answered around the kill", outcome.sent - outcome.answered);
    verdicts.none("hints around the kill to a replica that never held it", outcome.wrong);
    verdicts.none("decisions after the kill that credit more than the hub", agreement.over);
    verdicts.none("decisions after the kill that credit less than the hub", agreement.under);
    Ok(())
}

/// Kills the hub in the middle of a reset, restarts it, and compares `prompts` decisions with the hub's own until they are
/// the same, for `limit` at most.
///
/// # Errors
/// When a program does not answer, or the hub does not know again within `limit` what is held.
pub async fn kill_during_reset(site: &mut Site, prompts: usize, limit: Duration) -> Result<Killed, ScaleError> {
    let hub = site.stack.addresses.hub_grpc;
    site.relay.shut();
    site.stack.hub.restart().await?;
    site.hub_knows(limit).await?;
    site.relay.open(hub, Some(site.pool.blocks() as u64 * BYTES_PER_PAIR));
    if !eventually(MIDDLE_WITHIN, async || site.relay.holds_still()).await {
        let problem = format!("after {MIDDLE_WITHIN:?} only {} bytes of a reset have come", site.relay.passed());
        return Err(ScaleError::new(problem));
    }
    let passed = site.relay.passed();
    site.stack.hub.kill().await?;
    site.pool.drop_oldest(CONVERSATIONS_GONE).await?;
    tokio::time::sleep(DEAD_FOR).await;
    let restart = Instant::now();
    site.relay.open(hub, None);
    site.stack.hub.start()?;
    site.hub_knows(limit).await?;
    let hub_recovered = restart.elapsed();
    let (client, envoy) = (&site.stack.client, site.stack.envoy_url());
    let mut agreement = Agreement::default();
    while !agreement.is_whole() && restart.elapsed() < limit {
        agreement = compare(client, &envoy, hub, asked(site, prompts)).await?;
    }
    let recovered = restart.elapsed();
    Ok(Killed { passed, hub_recovered, recovered, agreement })
}

/// Prompts spread over all replicas; one in four has gone.
fn asked(site: &Site, prompts: usize) -> Vec<Conversation> {
    let places = || (0..site.pool.len()).cycle();
    let held = places().zip(0..).map(|(place, turn)| site.pool.held_by(place, turn));
    let held = held.take(prompts - prompts / 4).flatten();
    let most = (prompts / 4).div_ceil(site.pool.len().max(1));
    let gone = (0..site.pool.len()).flat_map(|place| site.pool.gone_from(place).take(most));
    held.chain(gone.take(prompts / 4)).collect()
}
