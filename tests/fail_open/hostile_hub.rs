//! A hub that answers, and does everything else wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::time::sleep;
use warmroute::native::load::stack::eventually;
use warmroute::wire::v1::ObserveResponse;
use warmroute::wire::v1::fact::Kind as Fact;

use crate::load::Load;
use crate::random::Random;
use crate::scripted_hub::*;
use crate::world::{COMES_BACK, GROWTH_MIB, STALE_AFTER, TENANTS, World};

/// How long it may take until a hub has done all that it does wrong.
const SLOWLY: Duration = Duration::from_secs(60);
/// What Envoy's memory may grow by with as many names as there may be, in MiB: 16 MiB of them in each of four VMs' dictionaries,
/// in the leader's maps and in a page.
const NAMES_MIB: u64 = 512;
/// What any hub is to be outlived for.
const WHILE: Duration = Duration::from_secs(4);

fn noise(random: &mut Random, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| random.next() as u8).collect()
}

/// Both tenants' prompts, held as they are.
fn facts(world: &World) -> Vec<Fact> {
    let mut facts = Vec::new();
    for (place, tenant) in TENANTS.iter().enumerate() {
        let [holder, other] = tenant.engines;
        let first = 10 * place as u32;
        facts.push(scope(place as u32, tenant.id));
        for (replica, engine) in [(first, holder), (first + 1, other)] {
            let address = world.stack.addresses.engines[engine].http.to_string();
            facts.push(replica_up(replica, &world.stack.replica_id(engine), &address, tenant.id));
            if engine == holder {
                facts.push(stored(replica, place as u32, &tenant.held()));
            }
            facts.push(complete(replica));
        }
    }
    facts
}

/// The real hub takes the place of the hostile one, and everything is as if that had not been.
async fn is_outlived(world: World, load: Load, hub: ScriptedHub, besides: &[&str]) {
    is_outlived_within(world, load, hub, besides, GROWTH_MIB).await;
}

/// The same where Envoy's memory may grow by so many MiB.
async fn is_outlived_within(mut world: World, load: Load, hub: ScriptedHub, besides: &[&str], growth_mib: u64) {
    eprintln!("{} streams, {} bytes", hub.streams(), hub.bytes());
    drop(hub);
    world.stack.hub.start().unwrap();
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    let tally = load.stop().await;
    // The state of the real hub may have to be caught up with.
    let besides: Vec<&str> = besides.iter().copied().chain(["NO_HINT/catching_up?", "NO_HINT/stale?"]).collect();
    world.is_unharmed_within(&tally, &besides, growth_mib).await;
}

async fn refused(world: &World) -> f64 {
    world.stack.metrics().await.unwrap().sum("warmroute_stream_refused_messages_total", &[])
}

/// A few bytes at a time, with pauses that are almost a silence.
#[tokio::test(flavor = "multi_thread")]
async fn hub_slow() {
    let world = World::without_hub(|_| {}).await;
    let load = Load::start(&world.stack.envoy_url());
    load.sees("NO_HINT/cold", COMES_BACK).await;
    let facts = facts(&world);
    let hub = ScriptedHub::start(world.stack.addresses.hub_grpc, move |stream| {
        let facts = facts.clone();
        async move {
            let mut hub = Speaker::new(7);
            for message in hub.state(facts) {
                let bytes = framed(&message.encode_to_vec());
                for piece in bytes.chunks(bytes.len().div_ceil(20)) {
                    if !stream.send(piece.to_vec()).await {
                        return;
                    }
                    sleep(STALE_AFTER / 40).await;
                }
            }
            while stream.say(&hub.heartbeat()).await {
                sleep(STALE_AFTER / 2).await;
            }
        }
    })
    .await;
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    load.goes_on(STALE_AFTER).await;
    assert_eq!((hub.streams(), refused(&world).await), (1, 0.0), "slow is not wrong");
    let tally = load.stop().await;
    world.is_unharmed(&tally, &["NO_HINT/cold"]).await;
}

/// Bytes of no meaning at every layer above HTTP/2, and messages with single bits wrong.
#[tokio::test(flavor = "multi_thread")]
async fn hub_garbage() {
    let world = World::without_hub(|_| {}).await;
    let load = Load::start(&world.stack.envoy_url());
    let facts = facts(&world);
    let hub = ScriptedHub::start(world.stack.addresses.hub_grpc, move |stream| {
        let mut random = Random(u64::from(stream.number));
        let facts = facts.clone();
        async move {
            match stream.number % 5 {
                // No frames.
                0 => drop(stream.send(noise(&mut random, 10_000)).await),
                // Frames of no messages.
                1 => drop(stream.send(framed(&noise(&mut random, 5_000))).await),
                // Said to be compressed.
                2 => {
                    let mut frame = framed(&noise(&mut random, 100));
                    frame[0] = 1;
                    stream.send(frame).await;
                }
                3 => stream.end_with(13).await,
                // A bit wrong in each message: replicas, blocks and numbers that are not.
                _ => {
                    for message in Speaker::new(7).state(facts) {
                        let mut bytes = message.encode_to_vec();
                        let at = random.below(bytes.len() as u64) as usize;
                        bytes[at] ^= 1 << random.below(8);
                        stream.send(framed(&bytes)).await;
                    }
                }
            }
            sleep(STALE_AFTER / 10).await;
        }
    })
    .await;
    load.goes_on(WHILE).await;
    assert!(hub.streams() >= 3, "{} streams", hub.streams());
    assert_eq!(load.tally().count("PREFIX_MATCH"), 0);
    is_outlived(world, load, hub, &["NO_HINT/cold"]).await;
}

/// Messages beyond what the contract allows, to one of gigabytes that never ends.
#[tokio::test(flavor = "multi_thread")]
async fn hub_huge_messages() {
    const MIB: usize = 1024 * 1024;
    let world = World::without_hub(|_| {}).await;
    let load = Load::start(&world.stack.envoy_url());
    let facts = facts(&world);
    let hub = ScriptedHub::start(world.stack.addresses.hub_grpc, move |stream| {
        let facts = facts.clone();
        async move {
            let mut hub = Speaker::new(7);
            stream.say(&hub.reset()).await;
            match stream.number % 4 {
                // Several times what a message may be, and otherwise right.
                0 => {
                    let mut many = facts.clone();
                    many.resize(100_000, complete(1));
                    stream.say(&hub.chunk(many)).await;
                    stream.say(&hub.reset_complete(1)).await;
                }
                // Hundreds and thousands of times that.
                1 => drop(stream.send(framed(&vec![0x5a; 16 * MIB])).await),
                2 => drop(stream.send(framed(&vec![0x5a; 128 * MIB])).await),
                // As large as a frame can say, a megabyte at a time.
                _ => {
                    stream.send(vec![0, 0xff, 0xff, 0xff, 0xff]).await;
                    while stream.send(vec![0; MIB]).await {
                        sleep(STALE_AFTER / 30).await;
                    }
                }
            }
            sleep(STALE_AFTER).await;
        }
    })
    .await;
    load.goes_on(WHILE).await;
    // Each once, and the first one again.
    let all = eventually(SLOWLY, async || hub.streams() > 4 && refused(&world).await >= 2.0).await;
    assert!(all, "{} streams, {} refused\n{}", hub.streams(), refused(&world).await, world.stack.envoy.log_tail());
    assert_eq!(load.tally().count("PREFIX_MATCH"), 0);
    is_outlived(world, load, hub, &["NO_HINT/cold", "NO_HINT/stale?"]).await;
}

/// Ways to say `facts` so that they must not be believed.
fn out_of_order(way: u32, facts: Vec<Fact>) -> Vec<ObserveResponse> {
    let mut hub = Speaker::new(7);
    match way {
        // A part without its beginning.
        0 => vec![hub.chunk(facts), hub.reset_complete(1)],
        // A change of nothing.
        1 => vec![hub.delta(facts)],
        // Blocks before their replica and scope.
        2 => {
            let (first, rest) = facts.split_at(2);
            vec![hub.reset(), hub.chunk(rest.to_vec()), hub.chunk(first.to_vec()), hub.reset_complete(1)]
        }
        // Another lifetime, before anything is complete.
        3 => {
            let mut messages = hub.state(Vec::new());
            hub.epoch = 8;
            messages.push(hub.delta(facts));
            messages
        }
        // A change that was skipped.
        4 => {
            let mut messages = hub.state(Vec::new());
            hub.sequence += 1;
            messages.push(hub.delta(facts));
            messages
        }
        // Going on from where nobody was.
        5 => vec![hub.heartbeat(), hub.delta(facts)],
        // From back to front.
        _ => {
            let mut messages = hub.state(facts);
            messages.reverse();
            messages
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_out_of_order() {
    const WAYS: u32 = 7;
    let world = World::without_hub(|_| {}).await;
    let load = Load::start(&world.stack.envoy_url());
    let facts = facts(&world);
    let hub = ScriptedHub::start(world.stack.addresses.hub_grpc, move |stream| {
        let messages = out_of_order(stream.number % WAYS, facts.clone());
        async move {
            for message in messages {
                stream.say(&message).await;
            }
            sleep(STALE_AFTER).await;
        }
    })
    .await;
    let all = eventually(SLOWLY, async || hub.streams() > WAYS).await;
    assert!(all, "{} streams", hub.streams());
    assert!(refused(&world).await >= f64::from(WAYS), "{}", world.stack.envoy.log_tail());
    assert_eq!(load.tally().count("PREFIX_MATCH"), 0);
    // What has nothing in it is complete and fresh all the same.
    is_outlived(world, load, hub, &["NO_HINT/cold", "NO_HINT/stale"]).await;
}

/// Facts without end, as fast as they are taken, whatever has been acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn hub_never_ending() {
    let world = World::without_hub(|_| {}).await;
    let load = Load::start(&world.stack.envoy_url());
    let hub = ScriptedHub::start(world.stack.addresses.hub_grpc, move |stream| async move {
        let mut hub = Speaker::new(7 + u64::from(stream.number));
        let mut next = 0;
        stream.say(&hub.reset()).await;
        let is_reset = stream.number.is_multiple_of(2);
        if !is_reset {
            stream.say(&hub.reset_complete(1)).await;
        }
        loop {
            let mut facts = Vec::new();
            for _ in 0..100 {
                next += 1;
                let tenant = TENANTS[next as usize % TENANTS.len()].id;
                facts.push(scope_of(next, tenant, "another", &format!("adapter-{next}")));
                if next == 1 {
                    facts.push(replica_up(1, "endless", "127.0.0.1:1", "another"));
                }
                facts.push(stored(1, next, &crate::pool::tokens(next % 40_000, 320)));
            }
            if !stream.say(&if is_reset { hub.chunk(facts) } else { hub.delta(facts) }).await {
                return;
            }
        }
    })
    .await;
    load.goes_on(WHILE + WHILE).await;
    assert!(hub.bytes() > 1_000_000, "{} bytes", hub.bytes());
    assert_eq!(load.tally().count("PREFIX_MATCH"), 0);
    drop(hub);
    // Where the index is full of the endless hub's blocks, those of the next one's first state may be evicted with them: that it
    // is heard is all that can be asked for.
    let mut world = world;
    world.stack.hub.start().unwrap();
    load.sees("NO_HINT/miss", SLOWLY).await;
    let tally = load.stop().await;
    world.is_unharmed(&tally, &["NO_HINT/cold", "NO_HINT/catching_up?", "NO_HINT/stale?"]).await;
}

/// Names that are too long, and more of the longest that may be than there is room for; every rule of the contract is kept.
#[tokio::test(flavor = "multi_thread")]
async fn hub_of_many_long_names() {
    const LONGEST: usize = 512;
    let world = World::without_hub(|options| {
        // A page of all the names is written again and again.
        options.plugin["limits"]["log_segments"] = 2_048.into();
    })
    .await;
    let load = Load::start(&world.stack.envoy_url());
    let done = Arc::new(AtomicU32::new(0));
    let said = Arc::clone(&done);
    let hub = ScriptedHub::start(world.stack.addresses.hub_grpc, move |stream| {
        let said = Arc::clone(&said);
        async move {
            let mut hub = Speaker::new(7 + u64::from(stream.number));
            let mut next = 0;
            stream.say(&hub.reset()).await;
            for length in [60_000].into_iter().cycle().take(200).chain([LONGEST].into_iter().cycle().take(700)) {
                let facts = (0..(60_000 / length.max(4 * LONGEST)).max(1)).map(|_| {
                    next += 1;
                    let name = |part: &str| format!("{part}{next}-{}", "n".repeat(length))[..length].to_owned();
                    let [tenant, model, adapter] = ["t", "m", "a"].map(name);
                    match length {
                        LONGEST => scope_of(next, &tenant, &model, &adapter),
                        _ => scope_of(next, &tenant, "m", ""),
                    }
                });
                let facts = facts.collect();
                stream.say_in_turn(&hub.chunk(facts)).await;
            }
            stream.say_in_turn(&hub.reset_complete(1)).await;
            said.fetch_add(1, Ordering::Relaxed);
            while stream.say_in_turn(&hub.heartbeat()).await {
                tokio::time::sleep(STALE_AFTER / 4).await;
            }
        }
    })
    .await;
    let is_told = eventually(SLOWLY * 2, async || done.load(Ordering::Relaxed) > 0);
    assert!(is_told.await, "{} bytes in {} streams", hub.bytes(), hub.streams());
    load.goes_on(STALE_AFTER).await;
    let metrics = world.stack.metrics().await.unwrap();
    // 200 that are too long, and of the others what 16 MiB have no room for.
    let refused = metrics.sum("warmroute_names_refused_total", &[]);
    assert!(refused > 8_000.0, "{refused} names refused");
    assert_eq!(metrics.sum("warmroute_stream_refused_messages_total", &[]), 0.0);
    is_outlived_within(world, load, hub, &["NO_HINT/cold"], NAMES_MIB).await;
}
