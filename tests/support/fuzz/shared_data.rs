//! Values in shared data, and messages in the shared queue, that nobody of ours need have written.

use warmroute::config::FilterConfig;
use warmroute::flow::keys::Keys;
use warmroute::flow::metrics;
use warmroute::host::{Cas, Host};
use warmroute::index::log::{Credits, Head, ModelList, Page, Segment};
use warmroute::observation::ModelPart;
use xxhash_rust::xxh3::xxh3_64;

use super::pieces;
use super::vms::fleet::Fleet;
use super::vms::proxy::Proxy;

const CONFIG: &str = super::stream::CONFIG;
const START_MS: u64 = 1_700_000_000_000;
const TICK_MS: u64 = 10_000;
const MOST_VALUES: usize = 24;
/// Ticks after which one of the VMs leads, though it cannot read what is there.
const ROUNDS: u64 = 80;

/// Each piece is where a value goes (`H`, `L` and `P` with a number, `M`, `I`, or `C`), and what comes after its magic and
/// kind; format and checksum are put right. VMs that find all of them follow what there is, and one comes to lead.
pub fn shared_data(bytes: &[u8]) {
    let config = FilterConfig::from_json(CONFIG.as_bytes()).unwrap();
    let keys = Keys::new(&config.domain());
    let mut fleet = Fleet::new(Proxy::at(START_MS), config, 2);
    for piece in pieces(bytes).into_iter().take(MOST_VALUES) {
        let [kind, number, contents @ ..] = piece else { continue };
        let value = value(*kind, contents);
        survives(&value);
        let key = match kind {
            b'H' => keys.head(),
            b'L' => keys.log(u64::from(*number), 256),
            b'P' => keys.page(u32::from(*number)),
            b'M' => match ModelPart::decode(&value) {
                Ok(part) => keys.model_part(part.digest, part.number),
                Err(_) => continue,
            },
            b'I' => keys.model_list(),
            _ => {
                let queue = fleet.proxy.register_queue(&keys.credits()).unwrap();
                fleet.proxy.enqueue(queue, &value);
                continue;
            }
        };
        fleet.proxy.shared_set(&key, &value, Cas(0));
    }
    for round in 1..=ROUNDS {
        fleet.proxy.set_clock(START_MS + round * TICK_MS);
        fleet.ask(1);
        (0..2).for_each(|vm| fleet.tick(vm));
    }
    assert!(fleet.proxy.counted(metrics::STREAM_OPENED) > 0, "nobody leads: {:?}", fleet.proxy.logged());
}

fn value(kind: u8, contents: &[u8]) -> Vec<u8> {
    let mut value = vec![b'W', b'R', kind, 1];
    value.extend_from_slice(contents);
    let checksum = xxh3_64(&value);
    value.extend(checksum.to_le_bytes());
    value
}

/// What is read is what is read of it once it has been written again.
fn survives(value: &[u8]) {
    if let Ok(head) = Head::decode(value) {
        assert_eq!(Head::decode(&head.encode()), Ok(head));
    }
    if let Ok(segment) = Segment::decode(value) {
        assert_eq!(Segment::decode(&segment.encode()), Ok(segment));
    }
    if let Ok(page) = Page::decode(value) {
        assert_eq!(Page::decode(&page.encode()), Ok(page));
    }
    if let Ok(credits) = Credits::decode(value) {
        assert_eq!(Credits::decode(&credits.clone().encode()), Ok(credits));
    }
    if let Ok(list) = ModelList::decode(value) {
        assert_eq!(ModelList::decode(&list.encode()), Ok(list));
    }
}
