//! More blocks than are kept: the hub gives the oldest up and says so; what it says stays true.

use crate::client::{eventually, metric};
use crate::hub_support::{BLOCK, Engine, Framing, keys_of, observed, removed, stored, tokens};

#[tokio::test]
async fn what_is_unseen_for_longest_goes_and_subscribers_are_told() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "limits: {max_replica_blocks: 80}").await;
    let prompt = |number: u32, blocks: u32| tokens(number * 10_000..number * 10_000 + blocks * BLOCK as u32);
    let keys = |number: u64, blocks: u64| (0..blocks).map(|key| number * 1_000 + key).collect::<Vec<_>>();
    for number in 0..4 {
        engine.publish(vec![stored(&keys(number, 20), None, &prompt(number as u32, 20))]).await;
        let held = 20 * (number as usize + 1);
        observer.until("a prompt", |seen| seen.held.get("r0").is_some_and(|keys| keys.len() == held)).await;
        // Times differ by a millisecond at least.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    engine.publish(vec![stored(&keys(9, 5), None, &prompt(9, 5))]).await;
    // 85 are more than 80: down to 70, from the end of the first prompt.
    let left = || {
        let mut left = keys_of(&prompt(0, 5));
        [1, 2, 3].iter().for_each(|number| left.extend(keys_of(&prompt(*number, 20))));
        left.extend(keys_of(&prompt(9, 5)));
        left
    };
    observer.until("what is left", |seen| seen.held.get("r0") == Some(&left())).await;
    let line = "warmroute_hub_blocks_given_up_total{replica=\"r0\",reason=\"max_replica_blocks\"}";
    eventually("the count", async || metric(&hub, line).await == 15.0).await;
    // What goes on from a block that was given up is not credited; removing such blocks says nothing; the rest is as ever.
    engine.publish(vec![stored(&[77], Some(19), &tokens(90..94)), removed(&[18, 19]), removed(&[3, 4])]).await;
    let mut after = left();
    keys_of(&prompt(0, 5)).difference(&keys_of(&prompt(0, 3))).for_each(|key| assert!(after.remove(key)));
    observer.until("the removals", |seen| seen.held.get("r0") == Some(&after)).await;
    engine.publish(vec![stored(&keys(0, 20)[3..6], Some(2), &prompt(0, 6)[3 * BLOCK..])]).await;
    after.extend(keys_of(&prompt(0, 6)));
    observer.until("what is stored again", |seen| seen.held.get("r0") == Some(&after)).await;
    // A reset says the same.
    let mut late = crate::hub_support::Observer::new(&hub).await;
    late.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    assert_eq!(late.held["r0"], after);
    hub.shutdown().await;
}

#[tokio::test]
async fn all_replicas_together_have_a_limit_which_the_largest_pays_for() {
    let (mut small, mut large) = (Engine::start(Framing::Two).await, Engine::start(Framing::Three).await);
    let (hub, mut observer) = observed(&[&small, &large], "limits: {max_blocks: 80}").await;
    let keys = |count: u64| (0..count).collect::<Vec<u64>>();
    small.publish(vec![stored(&keys(20), None, &tokens(0..20 * BLOCK as u32))]).await;
    large.publish(vec![stored(&keys(70), None, &tokens(0..70 * BLOCK as u32))]).await;
    observer
        .until("what is left", |seen| {
            let held = |replica| seen.held.get(replica).map_or(0, |keys| keys.len());
            (held("r0"), held("r1")) == (20, 50)
        })
        .await;
    assert!(observer.holds("r1", &tokens(0..50 * BLOCK as u32)), "the beginning stays");
    let line = "warmroute_hub_blocks_given_up_total{replica=\"r1\",reason=\"max_blocks\"}";
    eventually("the count", async || metric(&hub, line).await == 20.0).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn many_keys_for_one_block_count_as_many_and_go_with_it() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "limits: {max_replica_blocks: 80}").await;
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the block", |seen| seen.holds("r0", &tokens(0..4))).await;
    // The same block 200 times, each time by another key.
    engine.publish((1_000..1_200).map(|key| stored(&[key], None, &tokens(0..4))).collect()).await;
    observer.until("the block to be given up", |seen| seen.holds("r0", &[])).await;
    let of =
        |what: &str| format!("warmroute_hub_{what}_given_up_total{{replica=\"r0\",reason=\"max_replica_blocks\"}}");
    eventually("the keys", async || metric(&hub, &of("keys")).await == 201.0).await;
    assert_eq!(metric(&hub, &of("blocks")).await, 1.0);
    // It is followed as ever.
    engine.publish(vec![removed(&[1, 1_000]), stored(&[5, 6], None, &tokens(8..16))]).await;
    observer.until("other blocks", |seen| seen.holds("r0", &tokens(8..16))).await;
    hub.shutdown().await;
}
