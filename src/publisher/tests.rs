use super::*;

#[test]
fn a_publisher_can_be_shared_between_threads() {
    fn assert_send<T: Send>(_: T) {}
    assert_send(Publisher::new(PublisherLimits::default()));
}
